"""The largest batch of a simulated memory, and steps that leave no trace."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

from aam.device.rng import random_state
from aam.engine import step as steps_module
from aam.engine.step import StepRunner, largest_batch, make_optimizer
from tests.engine.conftest import Doubling, options, same

CPU = torch.device("cpu")


@pytest.fixture
def runner() -> StepRunner:
    task = Doubling()
    return StepRunner(task, make_optimizer(task.model, options()))


def batches(task: Doubling):
    for epoch in itertools.count():
        yield from task.batches(epoch, 0)


def run_steps(runner: StepRunner, number: int) -> None:
    for step, batch in enumerate(itertools.islice(batches(runner.task), number)):
        runner.step(batch, step)


def snapshot(runner: StepRunner) -> dict[str, torch.Tensor]:
    """Copies of weights, optimizer state and random state."""
    tensors = {f"model.{name}": value for name, value in runner.model.state_dict().items()}
    for number, values in runner.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in values.items()}
    return copy.deepcopy(tensors | random_state(CPU))


# --- single steps ------------------------------------------------------------------------------


def test_steps_learn_and_their_losses_are_kept(runner):
    run_steps(runner, 40)
    assert len(runner.losses) == 40
    assert runner.losses[-1] < 0.5 * runner.losses[0]


def test_restored_leaves_nothing_behind_even_after_an_error(runner):
    run_steps(runner, 2)
    before = snapshot(runner)

    def fail() -> None:
        with runner.restored():
            run_steps(runner, 2)
            torch.rand(3)
            assert not same(before, snapshot(runner))
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert same(before, snapshot(runner))
    assert len(runner.losses) == 2
    assert all(parameter.grad is None for parameter in runner.model.parameters())


# --- the largest batch -------------------------------------------------------------------------


class Memory:
    """Simulated memory: 1,000 bytes and 100 for each sample, beside `base` bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, base: int = 0) -> None:
        self.base = base
        self.tried: list[int] = []
        monkeypatch.setattr(steps_module, "resident_memory", lambda: base)

    def peak(self, size: int) -> int:
        self.tried.append(size)
        return self.base + 1000 + 100 * size


@pytest.mark.parametrize("base", [0, 10**9])
def test_the_largest_batch_is_found_by_growth_and_bisection(runner, monkeypatch, base):
    memory = Memory(monkeypatch, base)
    fits = largest_batch(runner, memory.peak, base + 1000 + 100 * 23, 36)
    assert 22 <= max(fits) <= 23
    assert memory.tried[:5] == [1, 2, 4, 8, 16]
    assert max(memory.tried) <= 23, (
        "nothing that does not fit is tried where memory grows as it did"
    )
    assert fits == {size: base + 1000 + 100 * size for size in memory.tried}


def test_a_device_that_is_full_ends_the_growth_and_other_errors_pass(runner):
    def full(size: int) -> int:
        if size > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 1

    assert max(largest_batch(runner, full, 10**15, 36)) == 5
    with pytest.raises(ZeroDivisionError):
        largest_batch(runner, lambda size: 1 // 0, 10**15, 36)
