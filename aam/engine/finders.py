"""Single steps of any task, and the largest batch that fits into memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.device.distributed import SINGLE
from aam.device.measure import stage
from aam.device.memory import peak_memory, reset_peak, resident_memory
from aam.device.precision import UNSCALED, Scaler
from aam.engine.capture import Snapshot
from aam.engine.step import MicroBatch, total_loss, train_step
from aam.engine.task import Task
from aam.errors import RunError


@dataclass(eq=False)
class StepRunner:
    """Runs single steps of a task outside a run and keeps their losses."""

    task: Task
    optimizer: Optimizer
    scaler: Scaler = UNSCALED
    max_grad_norm: float = 1.0
    losses: list[Tensor] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        """The device of the task."""
        return self.task.device

    @property
    def model(self) -> nn.Module:
        """The model of the task."""
        return self.task.model

    def step(self, batch: Any, number: int = 0) -> None:
        """Take one step on one batch; `number` names it for the task."""
        window = [MicroBatch(self.task.prepare(batch, number), number)]
        network = self.task.network
        outcome = train_step(
            network, window, self.task, self.optimizer, self.scaler, SINGLE, self.max_grad_norm
        )
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
            (smaller, smaller_bytes), (larger, larger_bytes) = [
                (0, base),
                (0, base),
                *sorted(fits.items()),
            ][-2:]
            expected = larger_bytes + (larger_bytes - smaller_bytes) / max(larger - smaller, 1) * (
                size - larger
            )
            try:
                held = limit + 1 if expected > limit else peak(size)
            except torch.OutOfMemoryError:
                held = limit + 1
            if held <= limit:
                low, fits[size] = size, held
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
