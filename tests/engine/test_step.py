"""The optimizer and its state, steps that leave no trace, and the largest batch of a simulated
memory.
"""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

from aam.device.rng import random_state
from aam.engine import step as steps_module
from aam.engine.step import (
    StepRunner,
    batch_and_accumulation,
    largest_batch,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
)
from aam.options import TrainingOptions
from tests.engine.conftest import Doubling, options, same


def test_only_trainable_matrices_decay():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2), torch.nn.Linear(2, 2))
    model[2].requires_grad_(False)
    optimizer = make_optimizer(model, TrainingOptions(weight_decay=0.25, lr=0.125))
    assert type(optimizer) is torch.optim.AdamW
    groups = optimizer.param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    vectors = (model[0].bias, model[1].weight, model[1].bias)
    assert decay == {id(model[0].weight): 0.25} | {id(vector): 0.0 for vector in vectors}
    assert all(group["lr"] == 0.125 for group in groups)


def test_the_state_is_keyed_by_parameter_names_and_can_be_loaded():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    optimizer = make_optimizer(model, TrainingOptions())
    for _ in range(2):
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
    state, kinds = optimizer_state(optimizer, model), ("step", "exp_avg", "exp_avg_sq")
    assert set(state) == {f"{name}:{kind}" for name in model.state_dict() for kind in kinds}
    restored = make_optimizer(model, TrainingOptions())
    load_optimizer_state(restored, model, state)
    assert same(optimizer_state(restored, model), state)


# --- single steps ------------------------------------------------------------------------------


@pytest.fixture
def runner() -> StepRunner:
    task = Doubling()
    return StepRunner(task, make_optimizer(task.model, options()))


def run_steps(runner: StepRunner, number: int) -> None:
    epochs = (runner.task.batches(epoch, 0) for epoch in itertools.count())
    batches = itertools.islice(itertools.chain.from_iterable(epochs), number)
    for step, batch in enumerate(batches):
        runner.step(batch, step)


def snapshot(runner: StepRunner) -> dict[str, torch.Tensor]:
    """Copies of weights, optimizer state and random state."""
    tensors = {f"model.{name}": value for name, value in runner.model.state_dict().items()}
    for number, values in runner.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in values.items()}
    return copy.deepcopy(tensors | random_state(torch.device("cpu")))


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


@pytest.mark.parametrize("base", [0, 10**9])
def test_the_largest_batch_is_found_by_growth_and_bisection(runner, monkeypatch, base):
    """1,000 bytes and 100 for each sample, in addition to `base` bytes."""
    tried: list[int] = []
    monkeypatch.setattr(steps_module, "resident_memory", lambda: base)

    def peak(size: int) -> int:
        tried.append(size)
        return base + 1000 + 100 * size

    fits = largest_batch(runner, peak, base + 1000 + 100 * 23, 36)
    assert 22 <= max(fits) <= 23
    assert tried[:5] == [1, 2, 4, 8, 16]
    assert max(tried) <= 23, "nothing that does not fit is tried where memory grows as it did"
    assert fits == {size: base + 1000 + 100 * size for size in tried}


def test_a_device_that_is_full_ends_the_growth_and_other_errors_pass(runner):
    def full(size: int) -> int:
        if size > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 1

    assert max(largest_batch(runner, full, 10**15, 36)) == 5
    with pytest.raises(ZeroDivisionError):
        largest_batch(runner, lambda size: 1 // 0, 10**15, 36)


def test_accumulation_keeps_the_samples_of_a_step():
    pairs = [batch_and_accumulation(64, fitting) for fitting in (100, 64, 63, 5, 1)]
    assert pairs == [(64, 1), (64, 1), (32, 2), (4, 16), (1, 64)]
