"""Steps of training captured as CUDA graphs (HIP graphs on AMD), one for each shape of a batch.

A graph holds a whole step, from the forward pass to the optimizer; with several ranks one of the
three parts between which they exchange (`aam.engine.ranks`). The host copies a batch and the
learning rates, and starts the graph: the device no longer waits for the host between operations.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.device.measure import held_memory, memory_limit, peak_memory, reset_peak
from aam.engine.step import (
    MicroBatch,
    Snapshot,
    StepOutcome,
    StepParts,
    StepSetup,
    take_parts,
    weight_distance,
)
from aam.errors import InputError
from aam.options import TrainingOptions

log = logging.getLogger("aam")

# Steps by which captured and eager training are compared, and the largest relative difference of
# their weights: atomic sums on a device differ in their order.
GATE_STEPS, GATE_TOLERANCE = 10, 1e-4
# How many times the difference of two eager runs captured steps may differ from them.
GATE_FACTOR = 10.0
# Eager steps before the first capture, in which libraries allocate what they keep.
WARM_UP_STEPS = 3
# Share of a device's memory that a step may take.
MOST_MEMORY = 0.95
# Whose calls may end a capture: this thread's. The watchdog of RCCL asks for events at any time;
# with "global", ROCm before 7.2 lets it end the process (github.com/ROCm/hip/issues/3876).
ERROR_MODE = "thread_local"


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
        ends.append(before.weights())
        before.restore()
    difference, movement = weight_distance(*ends), weight_distance(ends[0], before.values)
    return difference / max(movement, 1e-30)


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


@contextlib.contextmanager
def capture_into(graph: Any, pool: Any, device: torch.device) -> Iterator[None]:
    """Capture what runs inside as a graph, in the memory `pool`.

    Where that fails, eager steps can go on, and the first error is raised. Later ones only say that
    there was an error.
    """
    stream = torch.cuda.current_stream(device)
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode=ERROR_MODE):
            yield
    except RuntimeError as error:
        # torch stays on the stream of the capture, and 2.7 leaves its generator in the capture, so
        # that each later dropout fails. A copy of its state is in none.
        torch.cuda.set_stream(stream)
        random = torch.cuda.default_generators[torch.cuda.current_device()]
        random.graphsafe_set_state(random.clone_state())
        cause = error.__context__
        raise (cause if isinstance(cause, RuntimeError) else error) from None


@dataclass
class CapturedStep:
    """A captured step: where its batch is read, its parts with the exchange after each but the
    last, and what it leaves.
    """

    inputs: list[Tensor]
    graphs: list[Any]
    exchanges: list[Callable[[], None]]
    names: tuple[str, ...]
    results: Tensor

    def replay(self) -> None:
        """Run the parts, and exchange between them."""
        for graph, exchange in itertools.zip_longest(self.graphs, self.exchanges):
            graph.replay()
            if exchange is not None:
                exchange()


@dataclass(eq=False)
class CapturedSteps:
    """Takes steps as `train_step` does, by graphs where the batch has a constant shape.

    Of several ranks all capture a step or none does: their batches have the same shapes in the same
    order, and they agree on memory, captures and the check.

    Attributes
    ----------
    setup : StepSetup
        `Task.shape` names the shapes that may be captured, the optimizer is `capturable`, and the
        ranks of the world agree.
    parts : callable, optional
        Takes a step on a window in parts, each of which is a graph; `StepSetup.parts` without it.
    graphs : dict
        By the shape of the batch.
    known_shapes : set
        Shapes of the batches so far. The first batch of a shape is not captured: its step is
        compiled, and libraries allocate what it needs.
    """

    setup: StepSetup
    parts: Callable[[Sequence[MicroBatch]], StepParts] | None = None
    graphs: dict[Hashable, CapturedStep] = field(default_factory=dict)
    known_shapes: set[Hashable] = field(default_factory=set)
    step_count: int = 0
    is_right: bool | None = None
    # Whether eager steps are taken where a further shape cannot be captured.
    falls_back: bool = True
    # Bytes that a step on the largest batch takes.
    needed: int = 0
    rates: list[Tensor] = field(default_factory=list)
    pool: Any = None

    def __post_init__(self) -> None:
        self.task, self.world = self.setup.task, self.setup.world
        self.optimizer = self.setup.optimizer
        device = self.task.device
        self.rates = [torch.zeros((), device=device) for _ in self.optimizer.param_groups]

    def obstacle(self, options: TrainingOptions) -> str:
        """Why no step of a run is captured, and what that costs; empty where steps may be."""
        cost = "the host starts each operation, which takes a small network several times as long"
        if reason := self.task.refusal or self.task.varying_shapes():
            return f"{reason}; {cost}"
        if self.setup.scaler.is_enabled():
            return f"--mixed-precision fp16 scales the loss; {cost}; bf16 and none are captured"
        if options.gradient_accumulation_steps > 1:
            return f"--gradient-accumulation-steps is above 1; {cost}"
        return ""

    def take(self, window: Sequence[MicroBatch]) -> StepOutcome:
        """Take one step of the optimizer."""
        task, parts = self.task, self.parts or self.setup.parts
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(float(group["lr"]))
                group["lr"] = rate

        def eager() -> StepOutcome:
            return take_parts(parts(window))

        def captured() -> StepOutcome:
            return self._replay(self.graphs[shape], window[0])

        self.step_count += 1
        may_capture = len(window) == 1 and not self.setup.scaler.is_enabled()
        shape = task.shape(window[0].data) if may_capture else None
        if shape is None or self.is_right is False or task.refusal:
            return eager()
        if shape not in self.known_shapes or self.step_count <= WARM_UP_STEPS:
            self.known_shapes.add(shape)
            return self._measure_step(eager, window[0].data)
        if shape not in self.graphs and not self._try_capture(shape, parts, window[0]):
            return eager()
        if self.is_right is None:
            self._judge(eager, captured)
            return eager()
        return captured()

    def _measure_step(self, eager: Callable[[], StepOutcome], batch: Any) -> StepOutcome:
        """Take a step, and refuse the batches of the run where the largest would not fit."""
        task, device = self.task, self.task.device
        before = int(torch.cuda.memory_allocated(device))
        reset_peak(device)
        outcome = eager()
        sizes = [before, peak_memory(device), -memory_limit(device, MOST_MEMORY)]
        # The rank with the least room decides for all.
        agreed = self.world.largest_values(torch.tensor(sizes, dtype=torch.int64))
        held, peak, limit = (abs(size) for size in agreed.tolist())
        share = task.share_of_largest(batch)
        check_memory(held, peak, share, task.samples(batch) // self.world.size, limit)
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

    def _try_capture(
        self, shape: Hashable, parts: Callable[[Sequence[MicroBatch]], StepParts], micro: MicroBatch
    ) -> bool:
        """Capture a step on batches of a shape, on all ranks or on none."""
        problem: RuntimeError | None = None
        try:
            self._check_pools()
            self.graphs[shape] = self._capture(parts, micro)
        except RuntimeError as error:
            problem = error
        # No rank has exchanged anything yet, so none waits for one that fails.
        if not self.world.any(problem is not None):
            return True
        if problem is not None and not self.falls_back:
            raise problem
        reason = "another rank cannot capture them"
        self._refuse(reason if problem is None else str(problem).splitlines()[0])
        return False

    def _judge(self, eager: Callable[[], object], captured: Callable[[], object]) -> None:
        """Compare captured with eager steps, as far as eager steps agree with each other."""
        network, device = self.setup.network, self.task.device
        compare = partial(difference_of_steps, network, self.optimizer, device, eager)
        try:
            differences = torch.tensor([compare(eager), compare(captured)], dtype=torch.float64)
        except RuntimeError as error:
            if self.world.size > 1:
                # The other ranks wait for this one.
                raise
            self._refuse(str(error).splitlines()[0])
            return
        noise, apart = self.world.largest_values(differences.nan_to_num(nan=math.inf)).tolist()
        reason = f"the weights differ by {apart:.2g} after {GATE_STEPS} steps from eager steps"
        self.is_right = apart < max(GATE_TOLERANCE, GATE_FACTOR * noise) < math.inf
        if self.is_right:
            log.info("steps are captured as graphs (%s)", reason)
        else:
            self._refuse(f"{reason}, and those by {noise:.2g} from each other")

    def _capture(
        self, step: Callable[[Sequence[MicroBatch]], StepParts], micro: MicroBatch
    ) -> CapturedStep:
        """Capture a step on batches of one shape, without running it."""
        tensors = self.task.tensors(micro.data)
        inputs = {name: value.clone() for name, value in tensors.items()}
        static = micro._replace(data=self.task.with_tensors(micro.data, inputs))
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize(self.task.device)
        parts, graphs, exchanges, results = step([static]), [], [], None
        while results is None:
            graphs.append(torch.cuda.CUDAGraph())
            with capture_into(graphs[-1], self.pool, self.task.device):
                try:
                    exchanges.append(next(parts))
                except StopIteration as end:
                    names, results = _outcome_tensor(end.value)
            self.pool = graphs[-1].pool() if self.pool is None else self.pool
        return CapturedStep([*inputs.values()], graphs, exchanges, names, results)

    def _replay(self, captured: CapturedStep, micro: MicroBatch) -> StepOutcome:
        """Run a captured step on a batch."""
        torch._foreach_copy_(captured.inputs, list(self.task.tensors(micro.data).values()))
        captured.replay()
        # The next replay writes over the results.
        *values, nonfinite = captured.results.clone().unbind()
        pairs = zip(values[::2], values[1::2], strict=True)
        return StepOutcome(dict(zip(captured.names, pairs, strict=True)), nonfinite > 0)


def _outcome_tensor(outcome: StepOutcome) -> tuple[tuple[str, ...], Tensor]:
    """Return the names of the terms of a step, and all numbers that it leaves."""
    values = [value for pair in outcome.terms.values() for value in pair]
    results = torch.stack([value.double() for value in (*values, outcome.nonfinite)])
    return tuple(outcome.terms), results
