"""Steps of training captured as CUDA graphs (HIP graphs on AMD), one for each shape of a batch.

A graph holds a whole step, from the forward pass to the optimizer; with several ranks one of its
parts, between which they exchange (`aam.engine.ranks`). The host copies a batch and the
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

from aam.device.measure import held_memory, memory_limit, peak_memory, reset_peak
from aam.device.platform import Facts
from aam.device.probe import describe_error
from aam.engine.step import (
    Snapshot,
    StepOutcome,
    StepParts,
    StepSetup,
    TakeStep,
    take_parts,
    weight_distance,
)
from aam.errors import InputError, RunError

log = logging.getLogger("aam")

# Steps by which a rank compares captured with eager steps, on one batch.
GATE_STEPS = 10
# How many times the difference of eager runs may be exceeded, and the bounds of that limit, as
# shares of the movement of the weights. Atomic sums on a device differ in their order.
FACTOR, LEAST_LIMIT, LARGEST_NOISE = 10.0, 1e-6, 0.1
# Learning rates of the steps that are compared, as shares of the run's.
RATES = (1.0, 0.5, 0.75)
# Eager steps before the first capture, in which libraries allocate what they keep.
WARM_UP_STEPS = 3
# Share of a device's memory that a step may take.
MOST_MEMORY = 0.95
# Whose calls may end a capture: this thread's. The watchdog of RCCL asks for events at any time;
# with "global", ROCm before 7.2 lets it end the process (github.com/ROCm/hip/issues/3876).
ERROR_MODE = "thread_local"


# The prepared batches by which steps are compared, made anew for each run.
Batches = Callable[[], Iterator[Any]]


def gate(
    setup: StepSetup,
    take: TakeStep,
    eager: TakeStep,
    batches: Batches,
    rounding: float = 0.0,
    least: float = LEAST_LIMIT,
) -> Facts:
    """Compare the weights after steps that are taken by `take` with those after eager steps, and
    leave the training as it was.

    Eager steps are taken three times. Some devices add in another order each time, and training
    enlarges what rounding does.

    Parameters
    ----------
    setup : StepSetup
    take, eager : TakeStep
        Take a step on a window of one batch.
    batches : callable
        Yields the batches. The learning rate changes from step to step.
    rounding : float
        Share of itself by which each weight begins off in one of the eager runs, up or down: as far
        as results may differ that sum in another order. 0 stands for that of the weights.
    least : float
        Least limit of the difference, as a share of the movement of the weights.

    Returns
    -------
    dict
        ``difference``, ``eager_difference`` and ``limit``, as shares of the movement, and a
        ``reason`` in words.

    Raises
    ------
    RunError
        Eager weights do not move, are not finite or differ too much to judge other steps by; or the
        difference is above `FACTOR` times that of eager runs, and above `least`.
    """
    rounding = rounding or torch.finfo(next(setup.task.model.parameters()).dtype).eps / 2
    begin = Snapshot(setup.task.model, setup.optimizer, setup.task.device)
    end, *others = (
        _weights_after(setup, eager, batches, begin, share) for share in (0.0, 0.0, rounding)
    )
    movement = weight_distance(end, begin.values)
    if not 0 < movement < math.inf:
        raise RunError(f"eager steps move the weights by {movement:g}")
    noise = max(weight_distance(other, end) for other in others) / movement
    if not noise <= LARGEST_NOISE:
        raise RunError(f"eager steps differ by {noise:.2g} from each other: nothing can be judged")
    difference = weight_distance(_weights_after(setup, take, batches, begin), end) / movement
    limit = min(max(FACTOR * noise, least), LARGEST_NOISE)
    reason = f"the weights differ by {difference:.2g} from those of eager steps"
    reason += f", and those by {noise:.2g} from each other"
    if not difference <= limit:
        raise RunError(reason)
    numbers = {"difference": difference, "eager_difference": noise, "limit": limit}
    return {"reason": reason, **numbers}


def _weights_after(
    setup: StepSetup, take: TakeStep, batches: Batches, begin: Snapshot, rounding: float = 0.0
) -> list[Tensor]:
    """Take a step on each batch, and put the training back to its `begin`; return the weights at
    the end.
    """
    groups = setup.optimizer.param_groups
    rates = [float(group["lr"]) for group in groups]
    try:
        if rounding:
            _round_weights(setup.task.model, rounding)
        for batch, share in zip(batches(), itertools.cycle(RATES), strict=False):
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = share * rate
            take([batch])
        return begin.weights()
    finally:
        begin.restore()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate


@torch.no_grad()
def _round_weights(model: nn.Module, share: float) -> None:
    """Move each weight up or down by a share of itself, without the generator of dropout."""
    for weight in model.parameters():
        draw = torch.Generator(weight.device).manual_seed(weight.numel())
        up = torch.rand(weight.shape, generator=draw, device=weight.device) < 0.5
        weight.mul_(torch.where(up, 1 + share, 1 - share))


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
    stream, first = torch.cuda.current_stream(device), None
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode=ERROR_MODE):
            try:
                yield
            except Exception as error:
                first = error
                raise
    # Compilers have errors of their own.
    except Exception as error:  # noqa: BLE001
        # torch stays on the stream of the capture, and 2.7 leaves its generator in the capture, so
        # that each later dropout fails. A copy of its state is in none.
        torch.cuda.set_stream(stream)
        random = torch.cuda.default_generators[torch.cuda.current_device()]
        random.graphsafe_set_state(random.clone_state())
        raise (first or error) from None


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

    def replay(self, exchanges: bool = True) -> None:
        """Run the parts, and exchange between them; as `take_parts` without `exchanges`."""
        for graph, exchange in itertools.zip_longest(self.graphs, self.exchanges):
            graph.replay()
            if exchanges and exchange is not None:
                exchange()


@dataclass(eq=False)
class CapturedSteps:
    """Takes steps as `train_step` does, by graphs where the batch has a constant shape.

    Of several ranks all capture a step or none does: their batches have the same shapes in the same
    order, and they agree on memory, refusals, captures and the check. Whatever fails on one rank
    while others may wait for it is a vote: no error passes an exchange.

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
    parts: Callable[[Sequence[Any]], StepParts] | None = None
    graphs: dict[Hashable, CapturedStep] = field(default_factory=dict)
    known_shapes: set[Hashable] = field(default_factory=set)
    step_count: int = 0
    is_right: bool | None = None
    # Whether any rank refuses to capture steps.
    is_refused: bool = False
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
        # One rank that was tried need not judge again; several do, each its own device.
        if self.task.is_tried and self.world.size == 1:
            self.is_right = True

    def take(self, window: Sequence[Any]) -> StepOutcome:
        """Take one step of the optimizer."""
        self.step_count += 1
        if self.step_count == 1:
            self.is_refused = self.world.any(bool(self.task.refusal))
        shape = self.task.shape(window[0])
        if shape is None or self.is_right is False or self.is_refused:
            return self._eager(window)
        if shape not in self.known_shapes or self.step_count <= WARM_UP_STEPS:
            self.known_shapes.add(shape)
            return self._measure_step(window)
        if shape not in self.graphs and not self._try_capture(shape, window[0]):
            return self._eager(window)
        if self.is_right is None:
            self._judge(window[0])
            return self._eager(window)
        return self._replay(window)

    def _set_rates(self) -> None:
        """Bring the learning rates of the optimizer to the tensors that graphs read."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(float(group["lr"]))
                group["lr"] = rate

    def _eager(self, window: Sequence[Any], exchanges: bool = True) -> StepOutcome:
        """Take a step eagerly."""
        self._set_rates()
        return take_parts((self.parts or self.setup.parts)(window), exchanges)

    def _measure_step(self, window: Sequence[Any]) -> StepOutcome:
        """Take a step, and refuse the batches of the run where the largest would not fit."""
        task, device, batch = self.task, self.task.device, window[0]
        before = int(torch.cuda.memory_allocated(device))
        reset_peak(device)
        try:
            outcome = self._eager(window)
        except torch.OutOfMemoryError:
            samples = task.samples(batch) // self.world.size
            problem = f"a step on {samples} samples does not fit into the device's memory"
            raise InputError(f"--batch-size: {problem}; lower it, or pass auto") from None
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

    def _all_can(self, act: Callable[[], object]) -> bool:
        """Do on all ranks what needs no other rank; where it fails on one, none captures steps."""
        problem: Exception | None = None
        try:
            if self.task.refusal:
                raise RunError(self.task.refusal)
            act()
        # Compilers have errors of their own.
        except Exception as error:  # noqa: BLE001
            problem = error
        if not self.world.any(problem is not None):
            return True
        if problem is not None and not self.falls_back:
            raise problem
        reason = "another rank cannot use them" if problem is None else describe_error(problem)
        self._refuse(reason)
        return False

    def _try_capture(self, shape: Hashable, batch: Any) -> bool:
        """Capture a step on batches of a shape, on all ranks or on none."""

        def capture() -> None:
            self._check_pools()
            self.graphs[shape] = self._capture(batch)

        return self._all_can(capture)

    def _judge(self, batch: Any) -> None:
        """Compare captured with eager steps on each rank, without exchanges: a rank that fails
        keeps no other waiting.
        """
        facts: Facts = {}
        eager = partial(self._eager, exchanges=False)

        def judge() -> None:
            take = partial(self._replay, exchanges=False)
            batches = partial(itertools.repeat, batch, GATE_STEPS)
            facts.update(gate(self.setup, take, eager, batches))

        if self._all_can(judge):
            self.is_right = True
            log.info("steps are captured as graphs (%s)", facts["reason"])

    def _capture(self, batch: Any) -> CapturedStep:
        """Capture a step on batches of one shape, without running it."""
        step = self.parts or self.setup.parts
        self._set_rates()
        tensors = self.task.tensors(batch)
        inputs = {name: value.clone() for name, value in tensors.items()}
        static = self.task.with_tensors(batch, inputs)
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

    def _replay(self, window: Sequence[Any], exchanges: bool = True) -> StepOutcome:
        """Take a step by the graphs of its shape."""
        self._set_rates()
        batch = window[0]
        captured = self.graphs[self.task.shape(batch)]
        torch._foreach_copy_(captured.inputs, list(self.task.tensors(batch).values()))
        captured.replay(exchanges)
        # The next replay writes over the results.
        values, number = captured.results.clone().unbind(), 2 * len(captured.names)
        pairs = zip(values[:number:2], values[1:number:2], strict=True)
        nonfinite, *wish = values[number:]
        return StepOutcome(dict(zip(captured.names, pairs, strict=True)), nonfinite > 0, *wish)


def _outcome_tensor(outcome: StepOutcome) -> tuple[tuple[str, ...], Tensor]:
    """Return the names of the terms of a step, and all numbers that it leaves."""
    values = [value for pair in outcome.terms.values() for value in pair]
    flags = [flag for flag in outcome[1:] if flag is not None]
    results = torch.stack([value.double() for value in (*values, *flags)])
    return tuple(outcome.terms), results
