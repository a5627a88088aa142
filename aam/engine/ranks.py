"""A step that several ranks take together: each encodes its own samples, and they exchange twice.

The vectors of all ranks are gathered once, before the losses, and the gradients are added up once,
in one buffer. Between lie three parts that need no other rank: forward pass, losses with backward
pass, optimizer. Gradients need no other exchange (`Task.joint_losses`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from aam.device.distributed import World
from aam.device.measure import stage
from aam.engine.step import (
    MicroBatch,
    StepOutcome,
    StepParts,
    StepSetup,
    nonfinite_flag,
    optimizer_step,
    sum_terms,
    take_parts,
    total_loss,
    window_counts,
)
from aam.engine.task import Encoded, Task
from aam.options import not_none

# Parts of a step of several ranks: forward pass, losses, optimizer.
RANK_PARTS = 3

# Bytes at which a tensor starts in a message, and numbers at which one starts among gradients.
ALIGNMENT, ALIGNED_NUMBERS = 16, 4


class Message:
    """Tensors that go from each rank to all, in one buffer of bytes.

    Parameters
    ----------
    tensors : mapping of str to tensor [n, ...]
        Those of this rank, which `write` sends; all ranks have the same names.
    lengths : mapping of str to tuple of int
        The length n of each tensor on each rank.
    world : World
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], lengths: Mapping[str, tuple[int, ...]], world: World
    ) -> None:
        self.world, self.lengths = world, lengths
        self.places: dict[str, tuple[int, torch.dtype, torch.Size]] = {}
        size = 0
        for name, value in tensors.items():
            self.places[name] = size, value.dtype, value.shape[1:]
            needed = max(lengths[name]) * value.shape[1:].numel() * value.itemsize
            size += -(-needed // ALIGNMENT) * ALIGNMENT
        device = next(iter(tensors.values())).device
        self.every = torch.zeros(world.size, size, dtype=torch.uint8, device=device)
        self.own = torch.zeros(size, dtype=torch.uint8, device=device)

    def _view(self, buffer: Tensor, name: str, rank: int) -> Tensor:
        """Return the tensor of a rank in a buffer of bytes."""
        (at, dtype, rest), length = self.places[name], self.lengths[name][rank]
        size = length * math.prod(rest) * dtype.itemsize
        return buffer[at : at + size].view(dtype).view(length, *rest)

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors of this rank."""
        views = [self._view(self.own, name, self.world.rank) for name in tensors]
        torch._foreach_copy_(views, [value.detach() for value in tensors.values()])

    def gather(self) -> None:
        """Exchange with all ranks."""
        self.world.gather_into(self.every, self.own)

    def read(self) -> dict[str, Tensor]:
        """Return the tensors of all ranks, one rank after the other."""
        ranks = range(self.world.size)
        return {
            name: torch.cat([self._view(self.every[rank], name, rank) for rank in ranks])
            for name in self.places
        }


class FlatGradients:
    """The gradients of a model in one buffer, and after them whether a loss is not finite and what
    this rank wishes.

    They are added up over ranks in the precision of the weights.

    Attributes
    ----------
    wish : tensor of one number
        Set by the host at any time; a captured step reads it.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters = [*model.parameters()]
        self.trained: list[nn.Parameter] = []
        self.views: list[Tensor] = []
        self.values = torch.zeros(2)
        self.wish = self.parameters[0].detach().new_zeros(())

    def collect(self, nonfinite: Tensor) -> None:
        """Take the gradients of this rank, which are then views of the buffer, and its flag."""
        trained = [parameter for parameter in self.parameters if parameter.grad is not None]
        if list(map(id, trained)) != list(map(id, self.trained)):
            self._lay_out(trained)
        gradients = [not_none(parameter.grad) for parameter in trained]
        targets = [*self.views, self.values[-2], self.values[-1]]
        torch._foreach_copy_(targets, [*gradients, nonfinite, self.wish])
        for parameter, view in zip(trained, self.views, strict=True):
            parameter.grad = view

    def _lay_out(self, trained: list[nn.Parameter]) -> None:
        """Make a buffer for the gradients of these parameters, in which they start aligned."""
        steps = [
            -(-parameter.numel() // ALIGNED_NUMBERS) * ALIGNED_NUMBERS for parameter in trained
        ]
        self.trained, self.views, at = trained, [], 0
        self.values = trained[0].new_zeros(sum(steps) + 2, requires_grad=False)
        for parameter, step in zip(trained, steps, strict=True):
            self.views.append(self.values[at : at + parameter.numel()].view(parameter.shape))
            at += step

    @property
    def nonfinite(self) -> Tensor:
        """Whether a loss is not finite on any rank, after the sum over ranks."""
        return self.values[-2] > 0


@dataclass(eq=False)
class RankSteps:
    """Takes steps as `train_step` does, on several ranks.

    Attributes
    ----------
    setup : StepSetup
        Its task `shares_vectors`.
    messages : dict
        Those of batches of constant shape: a captured step reads and writes these very tensors.
    """

    setup: StepSetup
    messages: dict[Hashable, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gradients = FlatGradients(self.setup.task.model)

    def take(self, window: Sequence[MicroBatch]) -> StepOutcome:
        """Take one step of the optimizer."""
        return take_parts(self.parts(window))

    def parts(self, window: Sequence[MicroBatch]) -> StepParts:
        """Take one step in parts; each yields an exchange between ranks, which the next relies on.

        The gradients of ranks are added up, so the loss of each is its share of the sum.
        """
        network, task, optimizer, scaler, world, max_grad_norm = self.setup
        optimizer.zero_grad(set_to_none=True)
        counts, gradients = window_counts(task, window), self.gradients
        terms, losses = [], []
        for micro in window:
            with stage("forward"):
                encoded = task.encode(network, micro.data)
                message = self._message(task.shape(micro.data), encoded, counts, world)
            yield message.gather
            with stage("losses"):
                gathered = message.read()
                totals = _total_counts(gathered.pop("counts"), task)
                terms.append(task.joint_losses(network, micro.data, encoded, gathered))
                loss = total_loss(terms[-1], task.loss_weights, totals)
            with stage("backward"):
                scaler.scale(loss).backward()
            losses.append(loss.detach())
        gradients.collect(nonfinite_flag(losses))
        yield lambda: world.add_up(gradients.values)
        failed = optimizer_step(task, optimizer, scaler, gradients.nonfinite, max_grad_norm)
        # The next step writes over the buffer.
        return StepOutcome(sum_terms(terms), failed, gradients.values[-1].clone())

    def _message(
        self, shape: Hashable | None, encoded: Encoded, counts: Tensor | None, world: World
    ) -> Message:
        """Return the message of a batch, written."""
        if counts is None:
            raise ValueError("a task that shares vectors counts its losses")
        tensors = {"counts": counts, **encoded.message}
        lengths = {"counts": (len(counts),) * world.size, **encoded.lengths}
        message = self.messages.get(shape) or Message(tensors, lengths, world)
        if shape is not None:
            self.messages[shape] = message
        message.write(tensors)
        return message


def _total_counts(counts: Tensor, task: Task) -> dict[str, Tensor]:
    """Return the sums of the counts of all ranks, which stand one rank after the other."""
    sums = counts.view(-1, len(task.loss_names)).sum(dim=0)
    return dict(zip(task.loss_names, sums.unbind(), strict=True))


def gather_vectors(encoded: Encoded, world: World) -> dict[str, Tensor]:
    """Return the tensors of all ranks outside a step; every rank must call it."""
    if not encoded.message:
        return {}
    message = Message(encoded.message, encoded.lengths, world)
    message.write(encoded.message)
    message.gather()
    return message.read()
