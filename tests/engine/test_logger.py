"""Metrics as lines that survive, and in TensorBoard's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aam.engine.checkpoint import State
from aam.engine.logger import RunLogger
from aam.engine.run import TrainingFolder
from aam.engine.trainer import Trainer
from aam.options import RunConfig
from tests.engine.conftest import Doubling, options


def logger_in(folder: Path, state: State | None = None, **units: str) -> RunLogger:
    """The logger of a training of 2 epochs with 20 steps."""
    trainer = Trainer(Doubling(), options(epochs=2), RunConfig())
    trainer.total_steps, trainer.task.units = 20, units
    return RunLogger(TrainingFolder(None, folder, "training", state), trainer)


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def step(number: int) -> dict:
    return {"event": "step", "step": number, "lr": 0.1, "train_loss": 1 / number}


def epoch(number: int) -> dict:
    losses = {"train_loss": 2.0, "val_loss": 1.5}
    return {"event": "epoch", "epoch": number, "best": 1, **losses, "samples_per_s": 3.0}


def board_of(folder: Path) -> EventAccumulator:
    board = EventAccumulator(str(folder / "tensorboard"))
    board.Reload()
    return board


def test_records_are_lines_and_scalars(tmp_path, caplog):
    with logger_in(tmp_path) as logger:
        logger.record({"event": "step", "step": 9, "lr": 0.1})
        logger.record(step(10))
        logger.record(epoch(1))
    written = [(record["event"], record["step"]) for record in records(tmp_path)]
    assert written == [("step", 10), ("epoch", 10)]
    (loss,) = board_of(tmp_path).Scalars("step/train_loss")
    assert (loss.step, loss.value) == (10, pytest.approx(0.1))
    assert board_of(tmp_path).Scalars("epoch/val_loss")[0].value == 1.5


def test_the_terminal_shows_the_units_of_metrics(tmp_path, caplog):
    with caplog.at_level("INFO", "aam"), logger_in(tmp_path, val_mae="(standardized)") as logger:
        logger.record({**epoch(1), "val_mae": 0.25})
    assert "val_loss 1.5, val_mae 0.25 (standardized), samples_per_s 3" in caplog.text
    assert records(tmp_path)[0]["val_mae"] == 0.25


def test_what_came_after_the_checkpoint_is_cut_off(tmp_path):
    with logger_in(tmp_path) as logger:
        logger.record(step(10))
        facts = {"logger": json.loads(json.dumps(logger.state()))}
        state = State({}, facts, {"metrics.jsonl": logger.text})
        logger.record(step(20))
        logger.record(epoch(1))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "st')
    with logger_in(tmp_path, state) as logger:
        logger.record(step(11))
    assert [record["step"] for record in records(tmp_path)] == [10, 11]
    assert [loss.step for loss in board_of(tmp_path).Scalars("step/train_loss")] == [10, 11]
    assert records(tmp_path)[1]["seconds"] >= facts["logger"]["seconds"]


def test_lines_that_could_not_be_written_are_written_later(tmp_path, monkeypatch, caplog):
    with logger_in(tmp_path) as logger:
        logger.record(step(10))
        opening = Path.open

        def full(self: Path, *arguments: object, **options: object):
            if self.name == "metrics.jsonl":
                raise OSError(28, "No space left on device")
            return opening(self, *arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", full)
            logger.record(epoch(1))
        assert "training continues, and it is tried again" in caplog.text
        assert len(records(tmp_path)) == 1
        logger.record(step(20))
    assert [record["event"] for record in records(tmp_path)] == ["step", "epoch", "step"]
