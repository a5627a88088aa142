"""Checkpoints: read as they were written, the newest undamaged one found, and saved when it is
time.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from aam.engine.checkpoint import CheckpointManager, State, load, load_latest, remove_later, save
from aam.engine.signals import Signals
from aam.errors import InputError
from aam.options import RunConfig
from tests.engine.conftest import same


def state_of(step: int) -> State:
    tensors = {"model.a": torch.arange(4.0) + step, "model.b.c": torch.tensor(True)}
    texts = {"metrics.jsonl": "é\n"}
    return State({**tensors, "best.a": torch.zeros(0)}, {"step": step}, texts)


def folders_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def manager_of(
    folder: Path, minutes: float = 0.0, signals: Signals | None = None
) -> CheckpointManager:
    return CheckpointManager(folder, RunConfig(checkpoint_minutes=minutes), signals or Signals())


def test_a_state_is_read_as_it_was_written(tmp_path):
    save(tmp_path / "step-1", state_of(1))
    loaded, expected = load(tmp_path / "step-1"), state_of(1)
    assert same(loaded.tensors, expected.tensors)
    assert loaded.facts == {"format": 2, **expected.facts}
    assert loaded.texts == {"metrics.jsonl": "é\n"}
    assert loaded.part("model").keys() == {"a", "b.c"}


def test_the_newest_are_kept_and_the_newest_is_read(tmp_path):
    manager = manager_of(tmp_path / "checkpoints")
    for step in (8, 9, 10, 11):
        manager.maybe_save(step, lambda step=step: state_of(step))
    assert folders_in(manager.folder) == ["step-10", "step-11"]
    assert load_latest(manager.folder).facts["step"] == 11
    assert load_latest(tmp_path / "nowhere") is None


def test_a_checkpoint_is_written_when_it_is_time(tmp_path):
    manager = manager_of(tmp_path, minutes=2.0)
    for step, seconds in enumerate((60, 110, 120, 10, 110, 121)):
        manager.last_save = time.monotonic() - seconds
        manager.maybe_save(step, lambda step=step: state_of(step))
        assert (time.monotonic() - manager.last_save < 60) == (step in (2, 3, 5)), seconds
    assert folders_in(tmp_path) == ["step-2", "step-5"]


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path, caplog, name, damage):
    manager = manager_of(tmp_path)
    for step in (1, 2):
        manager.maybe_save(step, lambda step=step: state_of(step))
    path = tmp_path / "step-2" / name
    blob = path.read_bytes()
    damaged = {"flip": bytes([blob[0] ^ 1]) + blob[1:], "cut": blob[: len(blob) // 2]}
    path.write_bytes(damaged.get(damage, b""))
    if damage == "remove":
        path.unlink()
    assert load_latest(tmp_path).facts["step"] == 1
    assert name in caplog.text
    assert "the checkpoint before it is tried" in caplog.text
    manager.maybe_save(3, lambda: state_of(3))
    # The damaged one does not count.
    assert folders_in(tmp_path) == ["damaged-step-2", "step-1", "step-3"]


def test_going_back_removes_what_came_later(tmp_path):
    for step in (2, 10, 30):
        save(tmp_path / f"step-{step}", state_of(step))
    remove_later(tmp_path / "step-10")
    assert folders_in(tmp_path) == ["step-10", "step-2"]
    with pytest.raises(InputError, match=r"step-7/manifest.json: no such file"):
        load(tmp_path / "step-7")


@pytest.mark.parametrize("signal_name", ["", "SIGTERM"])
def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(
    tmp_path, monkeypatch, caplog, signal_name
):
    """On a full disk training continues; after a signal the process says that it failed."""
    manager = manager_of(tmp_path)
    manager.maybe_save(1, lambda: state_of(1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    manager.signals.caught = signal_name
    if signal_name:
        with pytest.raises(OSError, match="No space left"):
            manager.maybe_save(2, lambda: state_of(2))
    else:
        manager.maybe_save(2, lambda: state_of(2))
        assert f"the last complete checkpoint: {tmp_path / 'step-1'}" in caplog.text
    assert folders_in(tmp_path) == ["step-1"]
    assert load_latest(tmp_path).facts["step"] == 1
