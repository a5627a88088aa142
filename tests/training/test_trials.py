"""Trials of captured steps, on a CPU that records and replays them as a GPU does."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aam.config import FineTuneConfig, ModelConfig, PretrainConfig, TargetConfig, TrainConfig
from aam.data.loader import Loader, rarefied_batch
from aam.engine import capture
from aam.engine.capture import CapturedSteps
from aam.engine.step import StepRunner, train_step
from aam.errors import RunError
from aam.model.aam import HeadConfig
from aam.options import RunConfig
from aam.training import trials
from aam.training.decisions import PretrainingSteps, steps_of
from aam.training.finetune import SupervisedTask
from aam.training.losses import target_terms
from aam.training.trials import check_steps, trial_batches
from tests.data.labels import labelled
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
    return check_steps(steps, batches, ULP, captured=True)


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
    rates = CapturedSteps.__post_init__

    def fixed(made):
        rates(made)
        made.rates = [torch.tensor(1e-5) for _ in made.rates]

    monkeypatch.setattr(CapturedSteps, "__post_init__", fixed)
    with pytest.raises(RunError, match="the weights differ by"):
        judged(steps, trial_batches(steps))


def noisy(share: float, **arguments):
    """Take a step on a device whose sums have other last bits each time."""
    outcome = train_step(**arguments)
    with torch.no_grad():
        for weight in arguments["network"].parameters():
            weight.mul_(1 + share * torch.rand_like(weight))
    return outcome


@pytest.mark.parametrize(("share", "passes"), [(1e-5, True), (3e-5, True), (1.0, False)])
def test_steps_are_judged_by_how_far_eager_ones_differ(steps, monkeypatch, share, passes):
    """A fixed limit of 1e-4 would refuse what this device always does."""
    monkeypatch.setattr("aam.engine.step.train_step", partial(noisy, share))
    seeds = iter(range(9))
    restore = capture.Snapshot.restore

    def restored(snapshot):
        restore(snapshot)
        torch.manual_seed(next(seeds))

    monkeypatch.setattr(capture.Snapshot, "restore", restored)
    batches = trial_batches(steps)
    if not passes:
        with pytest.raises(RunError, match="nothing can be judged"):
            check_steps(steps, batches, ULP)
        return
    assert check_steps(steps, batches, ULP)["eager_difference"] > 1e-4

    def compile_losses(backend):
        monkeypatch.setattr("aam.engine.step.train_step", partial(noisy, 100 * share))

    monkeypatch.setattr(trials, "COMPILED_LIMIT", 0.0)
    monkeypatch.setattr(steps.task, "compile_losses", compile_losses)
    with pytest.raises(RunError, match="the weights differ by"):
        check_steps(steps, batches, ULP, "inductor")


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
    # torch 2.7 asks for the state of a GPU where all tensors are on the CPU, later ones of the CPU.
    for module in (torch.cpu, torch.cuda):
        monkeypatch.setattr(module, "_initialized", True, raising=False)
    monkeypatch.setattr(torch.utils.checkpoint, "get_device_states", no_state)
    steps = steps_on(study, dropout)
    steps.model.bound_memory(chunk, recompute=True)
    if not dropout:
        assert judged(steps, trial_batches(steps))["graphs"] >= 2
        return
    with pytest.raises(RuntimeError, match="current_seed during CUDA graph capture"):
        judged(steps, trial_batches(steps))


# --- compilers -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_compiler_that_fails_in_one_graph_is_refused_and_ends_no_run(plain_python):
    """In a process without the hook that checks types, which torch.compile cannot trace."""
    source = """
import torch
from torch._dynamo import register_backend
from aam.training.trials import check_steps, trial_batches
from aam.device.probe import describe_error
from tests.data.studies import make_study, random_counts
from tests.training.test_constant_shape import steps_on

@register_backend
def broken(graph, inputs):
    raise RuntimeError("no kernel for this chip")

steps = steps_on(make_study(**random_counts(samples=24, asvs=40, lengths=(30, 20))))
batches = trial_batches(steps)[:2]
try:
    check_steps(steps, batches, 1e-7, "broken")
except Exception as error:
    print(type(error).__name__, "|", describe_error(error))
torch._dynamo.reset()
steps.task.falls_back = True
steps.step(batches[0])
print(float(steps.losses[-1]) > 0, not steps.task.compiled)
"""
    printed = plain_python(source)
    assert printed.startswith("BackendCompilerFailed | backend='broken' raised:")
    assert "no kernel for this chip" in printed
    assert printed.strip().endswith("True True")


# --- what travels from the host in a step --------------------------------------------------------


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of several devices: in a graph they would be copies."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        values = tree_leaves((args, kwargs, result))
        devices = {value.device.type for value in values if isinstance(value, torch.Tensor)}
        assert devices <= {"meta"}, (func, devices)
        return result


def test_class_weights_are_on_the_device_before_a_step(study_of, tiny, model_of):
    """A tensor of the host would be copied in each step, which cannot be captured."""
    label = np.array([0, 1, 2, -1, 0, 1, 2, 0, 1])[:, None]
    study, meta = labelled(study_of(**tiny()), label=label), torch.device("meta")
    config = FineTuneConfig(
        targets=TargetConfig(class_weights=("balanced",)),
        model=ModelConfig(embedding_dim=16, attention_heads=2, max_bp=30),
        runtime=RunConfig(device="cpu", threads=1),
    )
    loader = Loader(study, np.arange(9), 9)
    model = model_of(HeadConfig(n_classes=(3,)))
    task = SupervisedTask(model, config, loader, loader, CPU)
    prepared = task.prepare(rarefied_batch(study, np.arange(9), 0), 0)
    outputs, _ = task.outputs(model, prepared)
    there = SupervisedTask(model.to(meta), config, loader, loader, meta)
    tensors = {name: value.to(meta) for name, value in prepared.batch.tensors().items()}
    batch = replace(prepared.batch, **tensors)
    logits = tuple(value.detach().to(meta) for value in outputs.labels)
    with OneDevice():
        terms = target_terms(replace(outputs, labels=logits), batch, "mse", there.class_weights)
    assert "label0" in terms
