"""A step that several ranks take together, in parts between which they exchange.

Each rank encodes its share of the distinct ASVs, and the vectors of all are gathered. Then it
encodes its own samples, and their vectors are gathered. After losses and backward pass the
gradients of ASV vectors are added up, each rank continues the backward pass of its ASVs, and the
gradients of weights are added up in one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from aam.device.distributed import World
from aam.device.measure import stage
from aam.engine.step import (
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
from aam.engine.task import Encoded, Task, Terms
from aam.options import not_none

# Bytes at which a tensor starts in a message, and numbers at which one starts among gradients.
ALIGNMENT, ALIGNED_NUMBERS = 16, 4


class Message:
    """Tensors that go from each rank to all, in one buffer of bytes.

    Parameters
    ----------
    tensors : mapping of str to tensor [n, ...]
        Those of this rank, which `write` sends; all ranks have the same names and shapes.
    world : World
    """

    def __init__(self, tensors: Mapping[str, Tensor], world: World) -> None:
        self.world, size = world, 0
        self.places: dict[str, tuple[slice, torch.dtype, torch.Size]] = {}
        for name, value in tensors.items():
            self.places[name] = slice(size, size + value.nbytes), value.dtype, value.shape[1:]
            size += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
        device = next((value.device for value in tensors.values()), None)
        self.every = torch.zeros(world.size, size, dtype=torch.uint8, device=device)
        self.own = torch.zeros(1, size, dtype=torch.uint8, device=device)

    def _tensors(self, buffer: Tensor) -> dict[str, Tensor]:
        """Return the tensors of the ranks in a buffer ``[ranks, bytes]``, one rank after the
        other; views of that of one rank.
        """
        return {
            name: buffer[:, place].view(dtype).reshape(-1, *shape)
            for name, (place, dtype, shape) in self.places.items()
        }

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the tensors of this rank."""
        if tensors:
            values = [value.detach() for value in tensors.values()]
            torch._foreach_copy_(list(self._tensors(self.own).values()), values)

    def gather(self) -> None:
        """Exchange with all ranks."""
        self.world.gather_into(self.every, self.own[0])

    def read(self) -> dict[str, Tensor]:
        """Return the tensors of all ranks, one rank after the other."""
        return self._tensors(self.every)


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
        Those of batches of constant shape, by it and their names: a captured step reads and writes
        these very tensors.
    """

    setup: StepSetup
    messages: dict[Hashable, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gradients = FlatGradients(self.setup.task.model)

    def take(self, window: Sequence[Any]) -> StepOutcome:
        """Take one step of the optimizer."""
        return take_parts(self.parts(window))

    def parts(self, window: Sequence[Any]) -> StepParts:
        """Take one step in parts; each yields an exchange between ranks, which the next relies on.

        The gradients of ranks are added up, so the loss of each is its share of the sum.
        """
        _, task, optimizer, scaler, world, max_grad_norm = self.setup
        optimizer.zero_grad(set_to_none=True)
        counts, gradients = window_counts(task, window), self.gradients
        terms, losses = [], []
        for batch in window:
            outcome = yield from self._loss_parts(batch, counts)
            terms.append(outcome[0])
            losses.append(outcome[1])
        gradients.collect(nonfinite_flag(losses))
        yield lambda: world.add_up(gradients.values)
        failed = optimizer_step(task, optimizer, scaler, gradients.nonfinite, max_grad_norm)
        # The next step writes over the buffer.
        return StepOutcome(sum_terms(terms), failed, gradients.values[-1].clone())

    def _loss_parts(
        self, batch: Any, counts: Tensor | None
    ) -> Generator[Callable[[], None], None, tuple[Terms, Tensor]]:
        """Run a batch forward and backward in parts; return its losses and their sum."""
        network, task, _, scaler, world, _ = self.setup
        with stage("forward"):
            encoded = task.encode(network, batch)
            message = self._message(batch, {"counts": not_none(counts), **encoded.message})
        yield message.gather
        with stage("forward"):
            gathered = message.read()
            totals = _total_counts(gathered.pop("counts"), task)
            shared = _leaves(encoded.outputs, gathered)
            compared = task.compare(network, batch, shared)
            message = self._message(batch, compared.message)
        if compared.message:
            yield message.gather
        with stage("losses"):
            terms = task.joint_losses(network, batch, compared.outputs, message.read())
            loss = total_loss(terms, task.loss_weights, totals)
        with stage("backward"):
            scaler.scale(loss).backward()
            gradients = {
                name: _summable(leaf.grad) for name, leaf in shared.items() if leaf.grad is not None
            }
        for name in encoded.message:
            if name in gradients:
                yield partial(world.add_up, gradients[name])
        with stage("backward"):
            _continue_backward(encoded, gradients, world)
        return terms, loss.detach()

    def _message(self, batch: Any, tensors: Mapping[str, Tensor]) -> Message:
        """Return the message of a part of a batch, written."""
        shape = self.setup.task.shape(batch)
        key = shape, *tensors
        message = self.messages.get(key) or Message(tensors, self.setup.world)
        if shape is not None:
            self.messages[key] = message
        message.write(tensors)
        return message


def _leaves(own: Mapping[str, Tensor], gathered: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as leaves, at which the backward pass stops; those of all ranks where they
    were gathered.
    """
    return {
        name: gathered.get(name, value).detach().requires_grad_(value.requires_grad)
        for name, value in own.items()
    }


def _summable(gradient: Tensor) -> Tensor:
    """Return a gradient as ranks add it up: in float32 at least."""
    return gradient.to(torch.promote_types(gradient.dtype, torch.float32)).contiguous()


def _continue_backward(encoded: Encoded, gradients: dict[str, Tensor], world: World) -> None:
    """Run the backward pass of the first part of a step, from the gradients of its tensors; those
    of a message are of all ranks.
    """
    for name in gradients.keys() & encoded.message.keys():
        gradients[name] = gradients[name].chunk(world.size)[world.rank]
    tensors = [encoded.outputs[name] for name in gradients]
    pairs = zip(gradients.values(), tensors, strict=True)
    torch.autograd.backward(tensors, [gradient.to(tensor.dtype) for gradient, tensor in pairs])


def _total_counts(counts: Tensor, task: Task) -> dict[str, Tensor]:
    """Return the sums of the counts of all ranks, which stand one rank after the other."""
    sums = counts.view(-1, len(task.loss_names)).sum(dim=0)
    return dict(zip(task.loss_names, sums.unbind(), strict=True))


def gather_vectors(encoded: Encoded, world: World) -> dict[str, Tensor]:
    """Return the tensors of all ranks outside a step; every rank must call it."""
    if not encoded.message:
        return {}
    message = Message(encoded.message, world)
    message.write(encoded.message)
    message.gather()
    return message.read()


class _Join(torch.autograd.Function):
    """Gathers vectors from all ranks; adds up their gradients."""

    @staticmethod
    def forward(context: Any, world: World, own: Tensor) -> Tensor:
        """Return the vectors of all ranks."""
        context.world = world
        return gather_vectors(Encoded(None, {"own": own}), world)["own"]

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        """Return the gradient of the vectors of this rank."""
        world, (gradient,) = context.world, gradients
        own = world.all_reduce_sum(_summable(gradient)).chunk(world.size)[world.rank]
        return None, own.to(gradient.dtype)


def join_vectors(world: World, own: Tensor) -> Tensor:
    """Return the vectors of all ranks, through which gradients flow."""
    joined: Tensor = _Join.apply(world, own)  # type: ignore[no-untyped-call]
    return joined
