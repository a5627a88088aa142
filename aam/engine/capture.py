"""Steps of training captured as CUDA graphs (HIP graphs on AMD), one for each shape of a batch.

A graph holds a whole step, from the forward pass to the optimizer. The host copies a batch and the
learning rates, and starts the graph: the device no longer waits for the host between operations.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.device.distributed import World
from aam.device.measure import held_memory, memory_limit, peak_memory, reset_peak
from aam.device.precision import Scaler
from aam.engine.step import MicroBatch, Snapshot, StepOutcome, train_step
from aam.engine.task import Task
from aam.errors import InputError
from aam.options import TrainingOptions

log = logging.getLogger("aam")

# Steps by which captured and eager training are compared, and the largest relative difference of
# their weights: atomic sums on a device differ in their order.
GATE_STEPS, GATE_TOLERANCE = 10, 1e-4
# How many times the difference of two eager runs captured steps may differ from them.
GATE_FACTOR = 10.0
# Eager steps before the first capture, in which libraries allocate what they keep.
WARM_UP = 3
# Share of a device's memory that a step may take.
MOST_MEMORY = 0.95


def difference_of_steps(
    model: nn.Module,
    optimizer: Optimizer,
    device: torch.device,
    expected: Callable[[], object],
    actual: Callable[[], object],
) -> float:
    """Compare the weights after `GATE_STEPS` steps that are taken in two ways.

    That is the norm of the difference over the norm of the movement; NaN where either is not
    finite. The training is left as it was.
    """
    before = Snapshot(model, optimizer, device)
    ends = []
    for take in (expected, actual):
        for _ in range(GATE_STEPS):
            take()
        ends.append(before.moved())
        before.restore()
    apart = _norm(ends[0], ends[1])
    moved = _norm(ends[0], before.values)
    return float(apart / moved.clamp_min(1e-30))


def _norm(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    pairs = zip(left, right, strict=True)
    squares = [(a.double() - b.double()).square().sum() for a, b in pairs]
    return torch.stack(squares).sum().sqrt()


def check_memory(held: int, peak: int, share: float, samples: int, limit: int) -> None:
    """Refuse a batch size if the largest batch would not fit into the memory of the device.

    Parameters
    ----------
    held, peak : int
        Bytes before a step and most bytes in it.
    share : float
        Size of its batch, as a share of that of the largest one of the run.
    samples : int
        Samples of its batch.
    limit : int
        Bytes that may be held.

    Raises
    ------
    InputError
        The message names the size that fits.
    """
    needed = held + (peak - held) / share
    if needed <= limit:
        return
    fitting = max(int(samples * (limit - held) / (needed - held)), 0)
    raise InputError(
        f"--batch-size: the largest batches need about {needed / 1e9:.1f} GB of the device's "
        f"{limit / 1e9:.1f} GB; {fitting} samples fit. Lower --batch-size, or pass auto"
    )


@dataclass
class _Graph:
    """A captured step: where its batch and learning rates are read, and what it leaves."""

    graph: Any
    inputs: list[Tensor]
    names: tuple[str, ...]
    results: Tensor


@dataclass(eq=False)
class CapturedSteps:
    """Takes steps as `train_step` does, by graphs where the batch has a constant shape.

    Attributes
    ----------
    task : Task
        `Task.shape` names the shapes that may be captured.
    optimizer : Optimizer
        Made with `capturable`.
    graphs : dict
        By the shape of the batch.
    seen : set
        Shapes of the batches so far. The first batch of a shape is not captured: its step is
        compiled, and libraries allocate what it needs.
    """

    task: Task
    optimizer: Optimizer
    graphs: dict[Hashable, _Graph] = field(default_factory=dict)
    seen: set[Hashable] = field(default_factory=set)
    taken: int = 0
    is_right: bool | None = None
    # Whether eager steps are taken where a further shape cannot be captured.
    falls_back: bool = True
    # Bytes that a step on the largest batch takes.
    needed: int = 0
    rates: list[Tensor] = field(default_factory=list)
    pool: Any = None

    def __post_init__(self) -> None:
        device = self.task.device
        self.rates = [torch.zeros((), device=device) for _ in self.optimizer.param_groups]

    def obstacle(self, options: TrainingOptions, scaler: Scaler) -> str:
        """Why no step of a run is captured, and what that costs; empty where steps may be."""
        cost = "the host starts each operation, which takes a small network several times as long"
        if reason := self.task.refusal or self.task.varying_shapes():
            return f"{reason}; {cost}"
        if scaler.is_enabled():
            return f"--mixed-precision fp16 scales the loss; {cost}; bf16 and none are captured"
        if options.gradient_accumulation_steps > 1:
            return f"--gradient-accumulation-steps is above 1; {cost}"
        return ""

    def __call__(
        self,
        network: nn.Module,
        window: Sequence[MicroBatch],
        task: Task,
        optimizer: Optimizer,
        scaler: Scaler,
        world: World,
        max_grad_norm: float,
    ) -> StepOutcome:
        """Take one step of the optimizer; parameters as `train_step`."""
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(float(group["lr"]))
                group["lr"] = rate

        def eager() -> StepOutcome:
            return train_step(network, window, task, optimizer, scaler, world, max_grad_norm)

        self.taken += 1
        shape = task.shape(window[0].data) if len(window) == 1 and not scaler.is_enabled() else None
        if shape is None or self.is_right is False or task.refusal:
            return eager()
        if shape not in self.seen or self.taken <= WARM_UP:
            self.seen.add(shape)
            return self._measured(eager, window[0].data)

        def captured() -> StepOutcome:
            if shape not in self.graphs:
                self._check_pools()
                self.graphs[shape] = self._capture(eager_on, window[0])
            return self._replay(self.graphs[shape], window[0])

        def eager_on(micro: MicroBatch) -> StepOutcome:
            return train_step(network, [micro], task, optimizer, scaler, world, max_grad_norm)

        if self.is_right is None:
            self._judge(network, eager, captured)
            return eager()
        try:
            return captured()
        except RuntimeError as error:
            if shape in self.graphs or not self.falls_back:
                raise
            # Another shape than those before: its capture has changed nothing.
            self._refuse(str(error).splitlines()[0])
            return eager()

    def _measured(self, eager: Callable[[], StepOutcome], batch: Any) -> StepOutcome:
        """Take a step, and refuse the batches of the run where the largest would not fit."""
        task, device = self.task, self.task.device
        held = int(torch.cuda.memory_allocated(device))
        reset_peak(device)
        outcome = eager()
        share, peak = task.share_of_largest(batch), peak_memory(device)
        limit = memory_limit(device, MOST_MEMORY)
        check_memory(held, peak, share, task.samples(batch), limit)
        self.needed = max(self.needed, int((peak - held) / share))
        return outcome

    def _check_pools(self) -> None:
        """Raise `RuntimeError` unless the first graph fits beside what eager steps hold.

        Graphs have a pool of their own, and share it with each other.
        """
        device = self.task.device
        held, limit = held_memory(device), memory_limit(device, MOST_MEMORY)
        if self.pool is None and held + self.needed > limit:
            sizes = f"{held / 1e9:.1f} GB, graphs need {self.needed / 1e9:.1f} GB more"
            raise RuntimeError(f"eager steps hold {sizes}, and {limit / 1e9:.1f} GB may be held")

    def _refuse(self, reason: str) -> None:
        """Take eager steps from now on."""
        self.is_right = False
        self.graphs.clear()
        log.warning("steps are not captured as graphs: %s", reason)

    def _judge(
        self, network: nn.Module, eager: Callable[[], object], captured: Callable[[], object]
    ) -> None:
        """Compare captured with eager steps, as far as eager steps agree with each other."""
        compare = partial(difference_of_steps, network, self.optimizer, self.task.device, eager)
        try:
            noise, apart = compare(eager), compare(captured)
        except RuntimeError as error:
            self._refuse(str(error).splitlines()[0])
            return
        reason = f"the weights differ by {apart:.2g} after {GATE_STEPS} steps from eager steps"
        self.is_right = apart < max(GATE_TOLERANCE, GATE_FACTOR * noise)
        if self.is_right:
            log.info("steps are captured as graphs (%s)", reason)
        else:
            self._refuse(f"{reason}, and those by {noise:.2g} from each other")

    def _capture(self, step: Callable[[MicroBatch], StepOutcome], micro: MicroBatch) -> _Graph:
        """Capture a step on batches of one shape, without running it."""
        tensors = self.task.tensors(micro.data)
        inputs = {name: value.clone() for name, value in tensors.items()}
        static = micro._replace(data=self.task.with_tensors(micro.data, inputs))
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize(self.task.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            outcome = step(static)
            values = [value for pair in outcome.terms.values() for value in pair]
            results = torch.stack([value.double() for value in (*values, outcome.nonfinite)])
        self.pool = graph.pool() if self.pool is None else self.pool
        return _Graph(graph, list(inputs.values()), tuple(outcome.terms), results)

    def _replay(self, captured: _Graph, micro: MicroBatch) -> StepOutcome:
        """Run a captured step on a batch."""
        torch._foreach_copy_(captured.inputs, list(self.task.tensors(micro.data).values()))
        captured.graph.replay()
        # The next replay writes over the results.
        *values, nonfinite = captured.results.clone().unbind()
        pairs = zip(values[::2], values[1::2], strict=True)
        return StepOutcome(dict(zip(captured.names, pairs, strict=True)), nonfinite > 0)
