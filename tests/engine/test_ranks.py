"""Steps of several ranks, which take their parts in turn in one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from aam.device.distributed import SINGLE, World
from aam.device.precision import UNSCALED
from aam.engine.ranks import FlatGradients, Message, RankSteps
from aam.engine.step import StepOutcome, StepSetup, train_step
from aam.engine.task import Encoded, Task, Terms
from tests.engine.conftest import options


@dataclass(frozen=True)
class Seat(World):
    """A rank beside the others: what it sends is kept in the first round and read in the second."""

    kept: dict[int, Tensor] = field(default_factory=dict)

    def gather_into(self, every: Tensor, values: Tensor) -> None:
        self.kept[self.rank] = values
        if len(self.kept) == self.size:
            every.copy_(torch.stack([self.kept[rank] for rank in range(self.size)]))

    def add_up(self, values: Tensor) -> None:
        self.kept.setdefault(self.rank, values.clone())
        if len(self.kept) == self.size:
            values.copy_(torch.stack([*self.kept.values()]).sum(dim=0))


class Points(NamedTuple):
    """Parts of samples that a rank encodes [n, 7], to which parts of all ranks each of its samples
    belongs [n, N], distances [n, N] to all samples, and the number of samples of each rank.
    """

    x: Tensor
    mixture: Tensor
    distance: Tensor
    samples: tuple[int, ...]
    rank: int

    @property
    def first(self) -> int:
        return sum(self.samples[: self.rank])


class Learned(nn.Module):
    """Vectors, and a learned scale of their distances."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(7, 16), nn.GELU(), nn.Linear(16, 5))
        # Distances have no bias: Adam would scale its rounding to full steps.
        self.sample = nn.Linear(5, 4, bias=False)
        self.log_scale = nn.Parameter(torch.tensor(0.3))
        self.unused = nn.Linear(2, 2)


class Distances(Task):
    """Pairs of samples have a distance; the norm of a vector shall be 1."""

    loss_names, loss_weights, shares_vectors = ("pairs", "norm"), {"norm": 0.5}, True

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = Learned()

    def encode(self, network: nn.Module, batch: Points) -> Encoded:
        vectors = network.encoder(batch.x)
        outputs = {"parts": vectors, "norms": (vectors.norm(dim=1) - 1).square()}
        return Encoded(outputs, {"parts": vectors})

    def compare(self, network: nn.Module, batch: Points, shared: dict[str, Tensor]) -> Encoded:
        vectors = network.sample(batch.mixture @ shared["parts"])
        outputs = vectors, shared["norms"]
        return Encoded(outputs, {"vectors": vectors})

    def joint_losses(self, network, batch, outputs, gathered) -> Terms:
        vectors, norms = outputs
        doubled = 2 * vectors - vectors.detach()
        return self.terms(network, batch, norms, doubled, gathered["vectors"], 0.5)

    def losses(self, network: nn.Module, batch: Points) -> Terms:
        encoded = self.encode(network, batch).outputs
        vectors, norms = self.compare(network, batch, encoded).outputs
        return self.terms(network, batch, norms, vectors, vectors, 0.5)

    def terms(self, network, batch, norms, rows, columns, weight) -> Terms:
        others = torch.ones_like(batch.distance, dtype=torch.bool)
        others.diagonal(batch.first).fill_(False)
        apart = network.log_scale.exp() * torch.cdist(rows, columns) - batch.distance
        pairs = weight * apart.square()[others].sum()
        counts = self.loss_counts(batch)
        return {"pairs": (pairs, counts["pairs"]), "norm": (norms.sum(), counts["norm"])}

    def loss_counts(self, batch: Points) -> dict[str, Tensor]:
        rows, columns = batch.distance.shape
        counts = {"pairs": rows * (columns - 1) / 2, "norm": float(rows)}
        return {name: torch.tensor(value) for name, value in counts.items()}


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def points(seed: int, samples: tuple[int, ...]) -> list[Points]:
    """The samples of each rank."""
    draw, number = torch.Generator().manual_seed(seed), sum(samples)
    x = torch.randn(number, 7, generator=draw)
    mixture, distance = torch.rand(2, number, number, generator=draw)
    distance = (distance + distance.T) / 2
    parts = zip(*(values.split(samples) for values in (x, mixture, distance)), strict=True)
    return [Points(*part, samples, rank) for rank, part in enumerate(parts)]


def advance(parts):
    """Take the next part; return its exchange, or the outcome of the last part."""
    try:
        return next(parts), None
    except StopIteration as end:
        return None, end.value


def rank_steps(seats: list[Seat]) -> list[RankSteps]:
    """Steps of a task of its own on each rank."""
    tasks = [Distances() for _ in seats]
    return [
        RankSteps(StepSetup(task.model, task, task.configure_optimizer(options()), world=seat))
        for task, seat in zip(tasks, seats, strict=True)
    ]


def take_together(steps: list[RankSteps], windows, seats) -> list[StepOutcome]:
    """Take a step on each rank."""
    parts = [one.parts(window) for one, window in zip(steps, windows, strict=True)]
    taken = [advance(part) for part in parts]
    while taken[0][1] is None:
        for _ in range(2):
            for exchange, _ in taken:
                exchange()
        seats[0].kept.clear()
        taken = [advance(part) for part in parts]
    return [outcome for _, outcome in taken]


@pytest.mark.parametrize("samples", [(4, 4), (3, 3, 3, 3)])
@pytest.mark.parametrize("batches", [1, 2])
def test_several_ranks_take_the_step_of_one(samples, batches):
    alone, kept = Distances(), {}
    optimizer = alone.configure_optimizer(options())
    seats = [Seat(rank, len(samples), kept=kept) for rank in range(len(samples))]
    steps = rank_steps(seats)
    for number in range(3):
        drawn = [points(10 * number + at, samples) for at in range(batches)]
        whole = [points(10 * number + at, (sum(samples),))[0] for at in range(batches)]
        expected = train_step(alone.model, whole, alone, optimizer, UNSCALED, SINGLE, 1.0)
        windows = [[of_ranks[seat.rank] for of_ranks in drawn] for seat in seats]
        outcomes = take_together(steps, windows, seats)
        for name, (total, count) in expected.terms.items():
            shares = [outcome.terms[name] for outcome in outcomes]
            torch.testing.assert_close(sum(share for share, _ in shares), total)
            torch.testing.assert_close(sum(share for _, share in shares), count)
    for one in steps:
        pairs = zip(one.setup.network.parameters(), alone.model.parameters(), strict=True)
        for weight, other in pairs:
            torch.testing.assert_close(weight, other, rtol=1e-12, atol=1e-14)
    assert alone.model.unused.weight.grad is None
    assert steps[0].setup.network.unused.weight.grad is None


def test_a_loss_that_is_not_finite_on_one_rank_changes_no_weight_on_any():
    kept: dict[int, Tensor] = {}
    seats = [Seat(rank, 2, kept=kept) for rank in range(2)]
    steps = rank_steps(seats)
    drawn = points(0, (3, 3))
    broken = drawn[1]._replace(x=torch.full_like(drawn[1].x, torch.inf))
    before = [weight.clone() for weight in steps[0].setup.network.parameters()]
    windows = [[drawn[0]], [broken]]
    outcomes = take_together(steps, windows, seats)
    assert all(outcome.nonfinite for outcome in outcomes)
    for one in steps:
        pairs = zip(one.setup.network.parameters(), before, strict=True)
        assert all(torch.equal(weight, old) for weight, old in pairs)


def test_a_message_holds_tensors_of_any_type():
    tensors = [
        {"a": torch.arange(3) + rank, "b": torch.rand(7, 5).float(), "c": torch.rand(3).bfloat16()}
        for rank in range(2)
    ]
    kept: dict[int, Tensor] = {}
    messages = [Message(tensors[rank], Seat(rank, 2, kept=kept)) for rank in range(2)]
    for message, sent in zip(messages, tensors, strict=True):
        message.write(sent)
    for message in (*messages, *messages):
        message.gather()
    for message in messages:
        for name, value in message.read().items():
            assert torch.equal(value, torch.cat([sent[name] for sent in tensors]))


def test_gradients_are_views_of_one_buffer_and_begin_aligned():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    model(torch.ones(2, 3)).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    gradients = FlatGradients(model)
    gradients.collect(torch.tensor(0.0))
    storage = gradients.values.untyped_storage().data_ptr()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.grad, gradient)
        assert parameter.grad.untyped_storage().data_ptr() == storage
        assert parameter.grad.storage_offset() % 4 == 0
    assert not gradients.nonfinite
    buffer = gradients.values
    gradients.collect(torch.tensor(1.0))
    assert gradients.values is buffer
    assert gradients.nonfinite
