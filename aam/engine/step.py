"""One step of training: the losses of its batches as sums and counts, their gradients, and the
optimizer.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.device.distributed import SINGLE, World
from aam.device.measure import peak_memory, reset_peak, resident_memory, stage
from aam.device.precision import UNSCALED, Scaler
from aam.device.rng import random_state, set_random_state
from aam.device.sharding import averaged_ranks, full_tensor, no_sync, shard_like
from aam.errors import RunError
from aam.options import TrainingOptions

if TYPE_CHECKING:
    from aam.engine.task import Task, Terms

# Smallest count that a mean is divided by: weights of classes may add up to less than 1.
MIN_COUNT = 1e-6


class StepOutcome(NamedTuple):
    """Loss terms of a step, detached, and whether loss or gradient were not finite; both stay on
    the device, as the sum of what several ranks wish (`aam.engine.ranks`).
    """

    terms: Terms
    nonfinite: Tensor
    wish: Tensor | None = None


def sum_terms(parts: Sequence[Terms]) -> Terms:
    """Return the terms of several batches as those of one, detached."""
    if len(parts) == 1:
        return {name: (total.detach(), count) for name, (total, count) in parts[0].items()}
    summed: Terms = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(parts)):
        totals, counts = zip(*(part[name] for part in parts if name in part), strict=True)
        summed[name] = torch.stack(totals).detach().sum(), torch.stack(counts).sum()
    return summed


def total_loss(
    terms: Terms, weights: Mapping[str, float], counts: Mapping[str, Tensor] | None = None
) -> Tensor:
    """Return the weighted sum of the mean losses; a term that counts nothing adds nothing.

    With `counts`, those of all batches of a step, it is this batch's share: the shares add up to
    the loss of the batches as one.
    """
    means = []
    for name, (total, count) in terms.items():
        divisor = count if counts is None else counts.get(name, count)
        means.append(weights.get(name, 1.0) * total / divisor.clamp_min(MIN_COUNT))
    return torch.stack(means).sum()


def step_counts(task: Task, window: Sequence[Any], world: World) -> dict[str, Tensor] | None:
    """Count of each loss in all batches of a step on all ranks; None if the step has one batch."""
    shared = world.size > 1 and task.splits_batches
    if len(window) == 1 and not shared:
        return None
    sums = window_counts(task, window)
    if sums is None:
        return None
    sums = world.all_reduce_sum(sums) if shared else sums
    return dict(zip(task.loss_names, sums.unbind(), strict=True))


def window_counts(task: Task, window: Sequence[Any]) -> Tensor | None:
    """Count of each loss, ``[loss_names]``, in all batches of a step on this rank; None where the
    task does not count.
    """
    counted = [counts for batch in window if (counts := task.loss_counts(batch)) is not None]
    if not counted:
        return None
    zero, names = torch.zeros((), device=task.device), task.loss_names
    batches = [torch.stack([c.get(name, zero).to(zero) for name in names]) for c in counted]
    return torch.stack(batches, dim=1).sum(dim=1)


def clip_gradients(parts: Sequence[nn.Module], max_grad_norm: float) -> Tensor:
    """Clip the gradients of each part to `max_grad_norm`; return the sum of their norms before."""
    norms = []
    for part in parts:
        gradients = [p.grad for p in part.parameters() if p.grad is not None]
        norm = full_tensor(nn.utils.get_total_norm(gradients))
        nn.utils.clip_grads_with_norm_(part.parameters(), max_grad_norm, norm)
        norms.append(norm)
    return torch.stack(norms).sum()


# A step in parts: what is yielded exchanges between ranks, and the next part relies on it.
StepParts = Generator[Callable[[], None], None, StepOutcome]


def take_parts(parts: StepParts, exchanges: bool = True) -> StepOutcome:
    """Take the parts of a step one after the other, with what ranks exchange between them.

    Without `exchanges` each part reads what was exchanged last.
    """
    while True:
        try:
            exchange = next(parts)
        except StopIteration as end:
            outcome: StepOutcome = end.value
            return outcome
        if exchanges:
            exchange()


def train_step(
    network: nn.Module,
    window: Sequence[Any],
    task: Task,
    optimizer: Optimizer,
    scaler: Scaler,
    world: World,
    max_grad_norm: float,
) -> StepOutcome:
    """Take one step of the optimizer on the prepared batches of `window`, as if they were one.

    Where loss or gradient are not finite, on any rank, the weights stay as they are.
    """
    with stage("optimizer"):
        optimizer.zero_grad(set_to_none=True)
    counts = step_counts(task, window, world)
    # Where gradients are averaged over ranks, each rank's loss is its share of the sum.
    share = 1 / len(window) if counts is None else averaged_ranks(network, world)
    terms, losses = [], []
    for number, batch in enumerate(window, 1):
        with contextlib.nullcontext() if number == len(window) else no_sync(network):
            with stage("losses"):
                terms.append(task.losses(network, batch))
                loss = share * total_loss(terms[-1], task.loss_weights, counts)
            with stage("backward"):
                scaler.scale(loss).backward()
        losses.append(loss.detach())
    nonfinite = world.all_reduce_sum(nonfinite_flag(losses)) > 0
    return StepOutcome(
        sum_terms(terms), optimizer_step(task, optimizer, scaler, nonfinite, max_grad_norm)
    )


class StepSetup(NamedTuple):
    """What all steps of a training share: the parameters of `train_step` except the window."""

    network: nn.Module
    task: Task
    optimizer: Optimizer
    scaler: Scaler = UNSCALED
    world: World = SINGLE
    max_grad_norm: float = 1.0

    def take(self, window: Sequence[Any]) -> StepOutcome:
        """Take one step of the optimizer, eagerly."""
        return train_step(window=window, **self._asdict())

    def parts(self, window: Sequence[Any]) -> StepParts:
        """Take one step as a single part, without an exchange between ranks."""
        yield from ()
        return self.take(window)


# What takes a step on a window of prepared batches: `StepSetup.take`, or its equal by graphs or on
# several ranks.
TakeStep = Callable[[Sequence[Any]], StepOutcome]


def nonfinite_flag(losses: list[Tensor]) -> Tensor:
    """Return 1.0 if the loss of any batch of a step is not finite, else 0.0."""
    return (~torch.isfinite(torch.stack(losses).sum())).float()


@stage("optimizer")
def optimizer_step(
    task: Task, optimizer: Optimizer, scaler: Scaler, nonfinite_loss: Tensor, max_grad_norm: float
) -> Tensor:
    """Clip the gradients and move the weights, unless loss or gradient are not finite; return
    whether that is an error.
    """
    scaler.unscale_(optimizer)
    norm = clip_gradients(task.parts(), max_grad_norm)
    nonfinite = nonfinite_loss | ~torch.isfinite(norm)
    # As in torch's GradScaler: fused optimizers skip the step on the device.
    optimizer.grad_scale, optimizer.found_inf = None, nonfinite.float()  # type: ignore[attr-defined]
    with stage("step"):
        optimizer.step()
    return nonfinite_loss | scaler.update_scale(nonfinite)


class RunningMeans:
    """Running means of the loss terms `names`: sums and counts ``[2, names]``, which stay on the
    device.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.values = torch.zeros(2, len(self.names), dtype=torch.float64)

    def add(self, terms: Terms, nonfinite: Tensor | None = None) -> None:
        """Add the terms of one batch, unless it is `nonfinite`."""
        if not terms:
            return
        zero = torch.zeros_like(next(iter(terms.values()))[0])
        pairs = [terms.get(name, (zero, zero)) for name in self.names]
        rows = zip(*pairs, strict=True)
        sums = torch.stack([torch.stack([value.double() for value in row]) for row in rows])
        if nonfinite is not None:
            sums = sums.masked_fill(nonfinite, 0)
        self.values = self.values.to(sums.device) + sums

    def all_reduce(self, world: World) -> RunningMeans:
        """Return the means of all ranks together; every rank must call it."""
        means = RunningMeans(self.names)
        means.values = world.all_reduce_sum(self.values.cpu()) if world.size > 1 else self.values
        return means

    def read(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the mean of each term and, as ``loss``, their weighted sum."""
        sums, counts = self.values.tolist()
        rows = sorted(zip(self.names, sums, counts, strict=True))
        means = {name: total / max(n, MIN_COUNT) for name, total, n in rows if n > 0}
        loss = sum((weights.get(name, 1.0) * value for name, value in means.items()), 0.0)
        return {"loss": loss, **means}


# --- the optimizer, and its state, keyed by the names of parameters ------------------------------


def parameter_groups(
    model: nn.Module, weight_decay: float, factor: Callable[[str], float] = lambda name: 1.0
) -> list[dict[str, Any]]:
    """Return the groups of trainable parameters for an optimizer; only weight matrices decay.

    Parameters
    ----------
    model : nn.Module
    weight_decay : float
    factor : callable
        Factor of the learning rate by the name of a parameter; stands as ``factor`` in each group.
    """
    groups: dict[tuple[float, bool], list[Tensor]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[factor(name), parameter.ndim >= 2].append(parameter)
    return [
        {"params": params, "weight_decay": weight_decay * is_matrix, "factor": rate}
        for (rate, is_matrix), params in groups.items()
    ]


def make_optimizer(
    model: nn.Module, options: TrainingOptions, factor: Callable[[str], float] = lambda name: 1.0
) -> Optimizer:
    """Return fused AdamW over `parameter_groups`."""
    groups = parameter_groups(model, options.weight_decay, factor)
    # A captured step reads its learning rate from the device.
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    return torch.optim.AdamW(groups, lr=options.lr, fused=True, capturable=on_gpu)


def optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the state of an optimizer as ``PARAMETER:NAME``."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}:{key}": value
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
    }


def load_optimizer_state(
    optimizer: Optimizer, model: nn.Module, state: Mapping[str, Tensor]
) -> None:
    """Load a state that `optimizer_state` returned, sharded as the parameters are."""
    parameters = dict(model.named_parameters())
    grouped = (parameter for group in optimizer.param_groups for parameter in group["params"])
    position = {parameter: number for number, parameter in enumerate(grouped)}
    values: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for name, value in state.items():
        parameter_name, _, key = name.rpartition(":")
        parameter = parameters[parameter_name]
        like_parameter = value.shape == parameter.shape
        values[position[parameter]][key] = shard_like(value, parameter) if like_parameter else value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": dict(values), "param_groups": groups})


# --- single steps outside a run, and the largest batch that fits into memory ---------------------


class Snapshot:
    """The weights, the state of the optimizer and the random state of a training.

    They are restored in place: a graph reads and writes these very tensors.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, device: torch.device) -> None:
        self.tensors = [*model.parameters(), *model.buffers()]
        self.optimizer, self.device = optimizer, device
        self.values = [value.detach().clone() for value in self.tensors]
        self.states = {
            parameter: {name: torch.as_tensor(value).clone() for name, value in state.items()}
            for parameter, state in optimizer.state.items()
        }
        self.random = random_state(device)

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back as it was."""
        for value, before in zip(self.tensors, self.values, strict=True):
            value.copy_(before)
        for parameter, state in self.optimizer.state.items():
            before_step = self.states.get(parameter)
            for name, value in state.items():
                if before_step is None:
                    value.zero_()
                else:
                    value.copy_(before_step[name])
        set_random_state(self.random, self.device)

    @torch.no_grad()
    def weights(self) -> list[Tensor]:
        """Return a copy of the weights and buffers of the model."""
        return [value.detach().clone() for value in self.tensors]


def weight_distance(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Return the Euclidean distance between two lists of weights, in float64."""
    pairs = zip(left, right, strict=True)
    squares = [(a.double() - b.double()).square().sum() for a, b in pairs]
    return float(torch.stack(squares).sum().sqrt())


@dataclass(eq=False)
class StepRunner:
    """Runs single steps of a task outside a run and keeps their losses.

    With several ranks each of them takes every step.

    Attributes
    ----------
    task, optimizer, scaler, max_grad_norm, world
        As those of `StepSetup`.
    losses : list of tensor
        The loss of each step.
    take_step : callable, optional
        What takes a step; `StepSetup.take` without it.
    """

    task: Task
    optimizer: Optimizer
    scaler: Scaler = UNSCALED
    max_grad_norm: float = 1.0
    losses: list[Tensor] = field(default_factory=list)
    world: World = SINGLE
    take_step: TakeStep | None = None

    @property
    def device(self) -> torch.device:
        """The device of the task."""
        return self.task.device

    @property
    def model(self) -> nn.Module:
        """The model of the task."""
        return self.task.model

    @property
    def setup(self) -> StepSetup:
        """What the steps have in common."""
        task, optimizer = self.task, self.optimizer
        return StepSetup(task.network, task, optimizer, self.scaler, self.world, self.max_grad_norm)

    def step(self, batch: Any, number: int = 0) -> None:
        """Take one step on one batch; `number` names it for the task."""
        take, prepared = self.take_step or self.setup.take, self.task.prepare(batch, number)
        outcome = take([prepared])
        with stage("losses"):
            self.losses.append(total_loss(outcome.terms, self.task.loss_weights))

    def peak_bytes(self, batch: Any) -> int:
        """Return the peak bytes of two steps on a batch, those of the optimizer included."""
        reset_peak(self.device)
        for number in range(2):
            self.step(batch, number)
        return peak_memory(self.device)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Put weights, optimizer, losses and random state back as they were, whatever happens
        inside.
        """
        before, losses = Snapshot(self.model, self.optimizer, self.device), list(self.losses)
        try:
            yield
        finally:
            self.optimizer.zero_grad(set_to_none=True)
            before.restore()
            for parameter in self.optimizer.state.keys() - before.states.keys():
                del self.optimizer.state[parameter]
            self.losses = losses


def largest_batch(
    runner: StepRunner, peak: Callable[[int], int], limit: int, max_size: int
) -> dict[int, int]:
    """Return the peak bytes of each batch size that was tried and stays below `limit`.

    Sizes grow and are then bisected. A size is tried only where a line through the last two
    predicts that it fits, so that the computer does not run out of memory. A size for which the
    device runs out of memory does not fit.

    Parameters
    ----------
    runner : StepRunner
        Takes the steps of `peak`, and is left as it was.
    peak : callable
        Runs steps on a batch of this number of samples and returns the peak bytes.
    limit : int
        Bytes that may be held.
    max_size : int
        The largest size to try.

    Raises
    ------
    RunError
        Not even one sample fits.
    """
    fits: dict[int, int] = {}
    low, high = 0, max_size + 1
    base = resident_memory() if runner.device.type == "cpu" else 0
    with runner.restored():
        while high - low > max(1, low // 16):
            size = min(max(2 * low, 1), high - 1) if high > max_size else (low + high) // 2
            pairs = [(0, base), (0, base), *sorted(fits.items())][-2:]
            (smaller, smaller_bytes), (larger, larger_bytes) = pairs
            slope = (larger_bytes - smaller_bytes) / max(larger - smaller, 1)
            expected = larger_bytes + slope * (size - larger)
            try:
                needed = limit + 1 if expected > limit else peak(size)
            except torch.OutOfMemoryError:
                needed = limit + 1
            if needed <= limit:
                low, fits[size] = size, needed
            else:
                high = size
    if not fits:
        raise RunError(f"not even one sample fits into {limit / 1e9:.1f} GB")
    return fits


def batch_and_accumulation(effective: int, fitting: int) -> tuple[int, int]:
    """Return batch size and accumulation whose product is `effective`, with at most `fitting`
    samples in a batch.
    """
    size = max(size for size in range(1, min(fitting, effective) + 1) if effective % size == 0)
    return size, effective // size
