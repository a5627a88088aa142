"""Steps on bf16 weights with float32 masters: when they are taken, what they learn, that a run goes
on as if it had never stopped.
"""

from __future__ import annotations

import copy

import pytest
import torch

from aam.config import FineTuneConfig, ModelConfig
from aam.device.precision import Bf16Copy
from aam.options import RunConfig
from aam.training import pretrain
from tests.training.test_task import (
    CONDITIONED,
    PRETRAIN,
    check_going_on,
    conditioned,
    config_of,
    trainer_of,
)


def bf16_trainer(model, study, precision="bf16", recompute=False, **train):
    runtime = RunConfig(device="cpu", mixed_precision=precision)
    torch.manual_seed(3)
    trainer = trainer_of(model, study, config_of(3, 2, patience=0, runtime=runtime, **train))
    trainer.model.bound_memory(None, recompute)
    return trainer


@pytest.fixture
def wide(monkeypatch):
    """The networks of these tests are wide enough."""
    monkeypatch.setattr(pretrain, "LEAST_COPIED_WIDTH", 16)


@pytest.mark.parametrize(
    ("width", "precision", "is_sharded", "expected"),
    [
        (512, "bf16", False, True),
        (508, "bf16", False, False),
        (512, "auto", False, False),
        (512, "none", False, False),
        (512, "fp16", False, False),
        (512, "bf16", True, False),
    ],
)
def test_only_wide_networks_in_bf16_that_are_not_sharded_have_bf16_weights(
    study, model_of, width, precision, is_sharded, expected
):
    task = bf16_trainer(model_of(PRETRAIN), study, precision).task
    config = FineTuneConfig(model=ModelConfig(embedding_dim=width), runtime=task.config.runtime)
    task.config, task.is_joint, task.shares_vectors = config, is_sharded, False
    assert task.has_bf16_weights == expected


@pytest.mark.parametrize(
    ("heads", "options"),
    [(PRETRAIN, {}), (CONDITIONED, {"recompute": True, "gradient_accumulation_steps": 2})],
)
def test_the_losses_are_those_of_autocast(study, model_of, monkeypatch, heads, options):
    read, losses = study if heads is PRETRAIN else conditioned(study), []
    for width in (512, 16):
        monkeypatch.setattr(pretrain, "LEAST_COPIED_WIDTH", width)
        trainer = bf16_trainer(model_of(heads, noise=0.0), read, **options)
        records = []
        trainer.on_record = records.append
        trainer.fit()
        assert (trainer.task.copied is None) == (width == 512)
        assert all(weight.dtype == torch.float32 for weight in trainer.last_weights.values())
        epochs = [record for record in records if record["event"] == "epoch"]
        losses.append([[one["train_loss"], one["val_loss"]] for one in epochs if one["epoch"]])
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=0.03, atol=0)
    assert losses[0] != losses[1]


@pytest.mark.usefixtures("wide")
def test_masters_advance_by_less_than_a_bf16_weight_can(study, model_of):
    trainer = bf16_trainer(model_of(PRETRAIN), study, lr=1e-6, warmup_steps=0, ema_decay=0.5)
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.fit()
    moved = rounded = 0
    for name, weight in trainer.last_weights.items():
        moved += int((weight != before[name]).sum())
        rounded += int((weight.bfloat16() != before[name].bfloat16()).sum())
    assert moved > 10 * rounded


def test_gradients_of_batches_are_added_in_float32_and_frozen_weights_get_none():
    model = torch.nn.Linear(3, 2)
    copied = Bf16Copy(model, ["bias"])
    model.bias.requires_grad_(False)
    for scale in (1.0, 2.0**-12):
        network = copied.refreshed()
        assert (network.weight.dtype, network.bias.dtype) == (torch.bfloat16, torch.float32)
        (network.weight * scale).sum().backward()
        assert network.weight.grad is None
    assert torch.equal(model.weight.grad, torch.full((2, 3), 1 + 2.0**-12))
    assert model.bias.grad is None


@pytest.mark.usefixtures("wide")
def test_a_run_that_goes_on_ends_as_if_it_had_never_stopped(study, model_of, tmp_path):
    def trainer():
        return bf16_trainer(model_of(PRETRAIN, noise=0.0, dropout=0.2), study, ema_decay=0.9)

    check_going_on(trainer, tmp_path, (1, 4))
