"""Trials of captured steps, on a CPU that records and replays them as a GPU does."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.utils.checkpoint

from aam.config import ModelConfig, PretrainConfig, TrainConfig
from aam.engine.capture import CapturedSteps
from aam.engine.step import StepRunner, train_step
from aam.errors import RunError
from aam.options import RunConfig
from aam.training import trials
from aam.training.decisions import PretrainingSteps, steps_of
from aam.training.trials import check_captured, check_steps, run_eager, trial_batches
from tests.graphs import no_state, stand_in

CPU = torch.device("cpu")
ULP = torch.finfo(torch.float32).eps / 2


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    stand_in(monkeypatch)


@pytest.fixture
def study(study_of, tiny):
    return study_of(**tiny(samples=24, asvs=160, lengths=(15,)))


def steps_on(study, dropout: float = 0.0) -> PretrainingSteps:
    config = PretrainConfig(
        model=ModelConfig(
            embedding_dim=8, attention_heads=2, max_bp=15, attention_layers=1, dropout=dropout
        ),
        train=TrainConfig(batch_size=8),
        runtime=RunConfig(device="cpu", threads=1),
    )
    steps = steps_of(config, study, CPU)
    steps.task.use_constant_shapes()
    return steps


def judged(steps: StepRunner, batches) -> dict[str, object]:
    return check_captured(steps, batches, run_eager(steps, batches, ULP))


@pytest.fixture
def steps(study) -> PretrainingSteps:
    return steps_on(study)


def test_captured_steps_pass_and_leave_the_training(steps):
    before = {name: value.clone() for name, value in steps.model.state_dict().items()}
    rates = [group["lr"] for group in steps.optimizer.param_groups]
    batches = trial_batches(steps)
    shapes = {steps.task.shape(steps.task.prepare(batch, 0)) for batch in batches}
    facts = judged(steps, batches)
    assert facts["graphs"] == len(shapes - {None}) >= 2
    assert len(batches) == 6 * len(shapes) + 1
    assert facts["difference"] <= facts["limit"]
    assert all(torch.equal(value, before[name]) for name, value in steps.model.state_dict().items())
    assert [group["lr"] for group in steps.optimizer.param_groups] == rates


def test_a_constant_of_the_first_batch_is_found_out(steps, monkeypatch):
    """A number of the host, which differs from batch to batch, becomes part of a graph."""
    terms, numbers = steps.task.terms, {"factor": 1.0}
    prepare = steps.task.prepare

    def prepared(batch, number):
        numbers["factor"] = float(number % 7 > 2)
        return prepare(batch, number)

    def scaled(outputs, batch):
        losses = terms(outputs, batch)
        return losses | {"count": (numbers["factor"] * losses["count"][0], losses["count"][1])}

    monkeypatch.setattr(steps.task, "prepare", prepared)
    monkeypatch.setattr(steps.task, "terms", scaled)
    with pytest.raises(RunError, match="the weights differ by"):
        judged(steps, trial_batches(steps))


def test_a_learning_rate_in_a_graph_is_found_out(steps, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "fill_", lambda rate, value: rate)
    batches = trial_batches(steps)
    eager = run_eager(steps, batches, ULP)
    take = CapturedSteps(steps.task, steps.optimizer)
    take.is_right, take.rates = True, [torch.tensor(1e-5) for _ in take.rates]
    with pytest.raises(RunError, match="the weights differ by"):
        check_steps(steps, take, batches, eager)


def noisy(share: float, *arguments):
    """Take a step on a device whose sums have other last bits each time."""
    outcome = train_step(*arguments)
    with torch.no_grad():
        for weight in arguments[0].parameters():
            weight.mul_(1 + share * torch.rand_like(weight))
    return outcome


@pytest.mark.parametrize(("share", "passes"), [(1e-5, True), (3e-5, True), (1.0, False)])
def test_steps_are_judged_by_how_far_eager_ones_differ(steps, monkeypatch, share, passes):
    """A fixed limit of 1e-4 would refuse what this device always does."""
    monkeypatch.setattr(trials, "train_step", partial(noisy, share))
    seeds = iter(range(9))
    restore = trials.Snapshot.restore

    def restored(snapshot):
        restore(snapshot)
        torch.manual_seed(next(seeds))

    monkeypatch.setattr(trials.Snapshot, "restore", restored)
    batches = trial_batches(steps)
    if not passes:
        with pytest.raises(RunError, match="nothing can be judged"):
            run_eager(steps, batches, ULP)
        return
    eager = run_eager(steps, batches, ULP)
    assert eager.noise > 1e-4
    check_steps(steps, partial(noisy, share), batches, eager)
    with pytest.raises(RunError, match="the weights differ by"):
        check_steps(steps, partial(noisy, 100 * share), batches, eager)


def test_dropout_draws_anew_in_each_replay(study):
    steps = steps_on(study, dropout=0.3)
    assert judged(steps, trial_batches(steps))["graphs"] >= 2


def test_numbers_that_are_not_finite_are_no_reference(steps):
    with torch.no_grad():
        next(steps.model.parameters()).fill_(torch.nan)
    with pytest.raises(RunError, match="eager steps"):
        judged(steps, trial_batches(steps))


def test_what_the_host_waits_for_is_refused(steps, monkeypatch):
    terms = steps.task.terms
    monkeypatch.setattr(
        steps.task, "terms", lambda *args: (args[0].samples.detach().sum().item(), terms(*args))[1]
    )
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        judged(steps, trial_batches(steps))


def test_both_pools_are_counted(steps, monkeypatch):
    monkeypatch.setattr(trials, "held_memory", lambda device: 9 * 10**9)
    monkeypatch.setattr(trials, "memory_limit", lambda device, share: 8 * 10**9)
    with pytest.raises(RunError, match=r"graphs together need 9.0 GB of the 8.0 GB"):
        judged(steps, trial_batches(steps))


@pytest.mark.parametrize(("dropout", "chunk"), [(0.0, None), (0.0, 50), (0.3, None), (0.3, 50)])
def test_recomputation_is_captured_where_nothing_is_drawn(study, monkeypatch, dropout, chunk):
    """torch up to 2.9 cannot read the random state of a GPU while a graph is recorded."""
    monkeypatch.setattr(torch.cpu, "_initialized", True, raising=False)
    monkeypatch.setattr(torch.utils.checkpoint, "get_device_states", no_state)
    steps = steps_on(study, dropout)
    steps.model.bound_memory(chunk, recompute=True)
    if not dropout:
        assert judged(steps, trial_batches(steps))["graphs"] >= 2
        return
    with pytest.raises(RuntimeError, match="current_seed during CUDA graph capture"):
        judged(steps, trial_batches(steps))
