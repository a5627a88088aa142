"""Training in half precision: the scale of the loss in fp16 is searched, and kept in checkpoints."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from aam.config import FineTuneConfig, ModelConfig, TrainConfig
from aam.data.loader import Loader
from aam.engine import step as step_module
from aam.engine.checkpoint import load, save
from aam.engine.options import RunConfig
from aam.engine.step import total_loss
from aam.engine.trainer import Trainer
from aam.errors import RunError
from aam.model.heads import HeadConfig
from aam.training.task import AmpliconTask

CPU = torch.device("cpu")
HEADS = HeadConfig(metric="unifrac", scale=(0.5, 0.2), counts=True)


def trainer_of(study_of, tiny, model_of, precision: str, epochs: int = 3) -> Trainer:
    study = study_of(**tiny())
    config = FineTuneConfig(
        model=ModelConfig(embedding_dim=16, attention_heads=2, max_bp=30),
        train=TrainConfig(lr=3e-3, epochs=epochs, batch_size=3, patience=0),
        runtime=RunConfig(device="cpu", mixed_precision=precision),
    )
    train, validation = (Loader(study, np.arange(*rows), 3, rows[0] == 0) for rows in ((0, 6), (6, 9)))
    task = AmpliconTask(model_of(HEADS, noise=0.0), config, train, validation, CPU)
    return Trainer(task, config.train, config.runtime)


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return copy.deepcopy(trainer.model.state_dict())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_training_in_half_precision_learns_what_float32_learns(study_of, tiny, model_of, half):
    losses = {}
    for precision in ("none", half):
        trainer, records = trainer_of(study_of, tiny, model_of, precision, epochs=3), []
        trainer.on_record = records.append
        trainer.fit()
        losses[precision] = [record["val_loss"] for record in records if record["event"] == "epoch"]
    assert losses[half] == pytest.approx(losses["none"], rel=0.05)
    assert losses[half] != losses["none"]


def planted(monkeypatch, factor: float) -> None:
    monkeypatch.setattr(step_module, "total_loss", lambda *terms: total_loss(*terms) * factor)


def test_a_gradient_that_overflows_changes_no_weight_and_halves_the_factor(study_of, tiny, model_of, monkeypatch):
    trainer = trainer_of(study_of, tiny, model_of, "fp16", epochs=1)
    planted(monkeypatch, 1e34)
    before = weights_of(trainer)
    trainer.fit()
    assert trainer.progress.step == 2
    assert same(before, trainer.last_weights)
    assert trainer.scaler.get_scale() == 1024 / 4
    assert trainer.progress.skipped == 0


@pytest.mark.parametrize(("factor", "steps"), [(math.nan, 1), (1e30, 11)])
def test_what_no_factor_mends_ends_the_run(study_of, tiny, model_of, monkeypatch, tmp_path, factor, steps):
    trainer = trainer_of(study_of, tiny, model_of, "fp16", epochs=30)
    trainer.folder = tmp_path
    planted(monkeypatch, factor)
    with pytest.raises(RunError, match="loss or gradient are not finite"):
        trainer.fit()
    assert steps <= trainer.progress.step <= steps + 2


def test_a_run_in_fp16_goes_on_with_its_factor(study_of, tiny, model_of, tmp_path):
    whole = trainer_of(study_of, tiny, model_of, "fp16")
    whole.scaler.load_state_dict({**whole.scaler.state_dict(), "growth_interval": 2})
    whole.after_step = lambda one: save(tmp_path / str(one.progress.step), one.state())
    whole.fit()
    for step in (1, 3, 4):
        resumed = trainer_of(study_of, tiny, model_of, "fp16")
        resumed.restore(load(tmp_path / str(step)))
        resumed.fit()
        assert same(whole.last_weights, resumed.last_weights)
        assert resumed.scaler.state_dict() == whole.scaler.state_dict()
    assert whole.scaler.get_scale() != 1024
