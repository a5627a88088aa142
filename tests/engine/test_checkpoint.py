"""A saved model comes back bit for bit, and nothing that is damaged, missing or foreign is taken for one."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from aam.config import DataConfig, ModelConfig
from aam.data.region import RegionProfile
from aam.data.targets import Scale, Targets, TargetSpec
from aam.engine.checkpoint import CheckpointManager, State, latest_checkpoint, load, remove_later, save
from aam.engine.options import RunConfig
from aam.engine.signals import Signals
from aam.errors import CallAgain, InputError
from aam.model.heads import HeadConfig
from aam.runtime.manifest import MANIFEST, write_manifest
from aam.runtime.options import RuntimeConfig
from aam.training.inference import run_model
from aam.training.saved_model import SavedModel, load_model, load_models, save_model

CPU = torch.device("cpu")
HEADS = HeadConfig("unifrac", (0.71, 0.13), counts=True, n_targets=1, n_classes=(2,))
TARGETS = Targets(
    (
        TargetSpec("age", "numeric", (), "zscore", Scale(1 / 3, 2.5), bounds=(0.0, 24.0)),
        TargetSpec("site", "class", ("gut", "oral = mouth")),
    )
)
FILES = ["manifest.json", "model.json", "profile.safetensors", "weights.safetensors"]


@pytest.fixture
def study(study_of, tiny):
    return study_of(**tiny())


@pytest.fixture
def saved(study, model_of) -> SavedModel:
    sizes = {"embedding_dim": 16, "attention_heads": 2, "max_bp": 30, "asv_stem": "nucleotide"}
    return SavedModel(
        network=model_of(HEADS, **sizes),
        data=DataConfig(table=Path("some") / "täble.biom", token_limit=77, cv="fold"),
        model=ModelConfig(**sizes),
        heads=HEADS,
        depth=40,
        seed=12,
        targets=TARGETS,
        profile=RegionProfile.fit(study.table.sequences),
        notes={"seen_samples": ["s1", "日本"], "best_epoch": 3},
    )


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    save_model(tmp_path / "run" / "model", saved)
    return tmp_path / "run" / "model"


def test_a_model_comes_back_bit_for_bit(saved, folder, study):
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    loaded = load_model(folder, CPU)
    for field in dataclasses.fields(SavedModel):
        if field.name not in ("network", "profile"):
            assert getattr(loaded, field.name) == getattr(saved, field.name), field.name
    for name, values in saved.profile.to_arrays().items():
        np.testing.assert_array_equal(loaded.profile.to_arrays()[name], values)
    assert not loaded.network.training
    found, expected = (run_model(one.network, study, np.arange(9), CPU, RuntimeConfig()) for one in (loaded, saved))
    assert expected.target.std() > 0.01
    np.testing.assert_array_equal(found.target, expected.target)
    np.testing.assert_array_equal(found.probabilities[0], expected.probabilities[0])
    np.testing.assert_array_equal(loaded.targets.decode(found.target), TARGETS.decode(expected.target))


def test_a_model_is_replaced_whole(saved, folder):
    with torch.no_grad():
        for parameter in saved.network.parameters():
            parameter += 1
    save_model(folder, saved)
    state = load_model(folder, CPU).network.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in saved.network.state_dict().items())
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("name", FILES[1:])
def test_a_flipped_bit_is_found(folder, name):
    path = folder / name
    whole = path.read_bytes()
    for place in {0, 7, len(whole) // 2, len(whole) - 1}:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(InputError, match=f"{name}: missing or damaged"):
            load_model(folder, CPU)
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=f"{name}: missing or damaged"):
        load_model(folder, CPU)
    path.write_bytes(whole)
    load_model(folder, CPU)


def test_a_flipped_bit_of_the_manifest_is_found(folder):
    path = folder / MANIFEST
    whole = path.read_bytes()
    for place, byte in enumerate(whole):
        path.write_bytes(whole[:place] + bytes([byte ^ 1]) + whole[place + 1 :])
        with pytest.raises(InputError):
            load_model(folder, CPU)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"{name}"):
        load_model(folder, CPU)


def test_every_damaged_file_is_named(folder):
    for name in FILES[1:]:
        (folder / name).write_bytes(b"")
    with pytest.raises(InputError) as caught:
        load_model(folder, CPU)
    assert len(caught.value.problems) == 3


def test_what_is_no_model(tmp_path):
    checkpoint = tmp_path / "best.pt"
    torch.save({"weight": torch.zeros(2)}, checkpoint)
    (tmp_path / "empty").mkdir()
    for path in (checkpoint, tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(InputError, match=r"no manifest.json; expected a model folder.*\.pt file"):
            load_model(path, CPU)
    for text in ("", "[]", "3", "{}", '{"format": 1, "files": 3}', '{"format": 1, "files": {"a": 1}}', "[" * 9999):
        (tmp_path / "empty" / MANIFEST).write_text(text)
        with pytest.raises(InputError, match=r"damaged|not valid JSON"):
            load_model(tmp_path / "empty", CPU)


def rewritten(folder: Path, **changes) -> None:
    """Change the description and make the manifest anew, as another version of aam would."""
    path = folder / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}), encoding="utf-8")
    (folder / MANIFEST).unlink()
    write_manifest(folder)


def test_a_model_of_another_version_is_refused(folder):
    description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    for changes, message in (
        ({"format": 2}, "model format 2, this aam reads 1"),
        ({"model": {**description["model"], "widthh": 3}}, "unknown key 'widthh'"),
        ({"model": {**description["model"], "embedding_dim": 32}}, "not a model this aam can read"),
        ({"heads": {**description["heads"], "n_targets": 2}}, "not a model this aam can read"),
        ({"targets": [3]}, "damaged description"),
        ({"depth": "many"}, "not a model this aam can read"),
    ):
        rewritten(folder, **{**description, **changes})
        with pytest.raises(InputError, match=message):
            load_model(folder, CPU)


def test_a_description_of_unreasonable_size_is_refused(folder, monkeypatch):
    monkeypatch.setattr("aam.runtime.files.MAX_JSON", 100)
    with pytest.raises(InputError, match="larger than"):
        load_model(folder, CPU)


def test_nothing_is_left_of_a_model_that_could_not_be_written(saved, tmp_path):
    with pytest.raises(TypeError):
        save_model(tmp_path / "model", dataclasses.replace(saved, notes={"no json": object()}))
    assert list(tmp_path.iterdir()) == []


def test_whoever_may_read_the_folder_may_read_the_model(saved, tmp_path):
    before = os.umask(0o022)
    try:
        save_model(tmp_path / "run" / "model", saved)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run" / "model").iterdir()}
    assert set(modes.values()) == {0o644}, modes
    (found,) = load_models([tmp_path / "run"], CPU)
    assert found.depth == saved.depth, "the folder of a run stands for its model"


def test_a_copy_is_a_model_too(folder, tmp_path):
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    shutil.rmtree(folder)
    assert load_model(copy, CPU).depth == 40


def test_no_file_holds_code(folder):
    """JSON and safetensors only: neither pickle nor zip."""
    for path in folder.iterdir():
        head = path.read_bytes()[:16]
        assert head.startswith(b"{") or head[8:9] == b"{", path.name


# --- checkpoints -------------------------------------------------------------------------------------------


def state_of(step: int) -> State:
    tensors = {"model.a": torch.arange(4.0) + step, "model.b.c": torch.tensor(True), "best.a": torch.zeros(0)}
    return State(tensors, {"step": step, "lines": ["é\n"]})


def steps_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def keeper_of(folder: Path, minutes: float = 0.0, signals: Signals | None = None) -> CheckpointManager:
    return CheckpointManager(folder, RunConfig(checkpoint_minutes=minutes, keep_checkpoints=2), signals or Signals())


def test_a_state_is_read_as_it_was_written(tmp_path):
    save(tmp_path / "step-1", state_of(1))
    found = load(tmp_path / "step-1")
    assert {name: value.tolist() for name, value in found.tensors.items()} == {
        name: value.tolist() for name, value in state_of(1).tensors.items()
    }
    assert found.facts == {"format": 1, **state_of(1).facts}
    assert found.part("model").keys() == {"a", "b.c"}


def test_the_newest_are_kept_and_the_newest_is_read(tmp_path):
    keeper = keeper_of(tmp_path / "checkpoints")
    for step in (8, 9, 10, 11):
        keeper.offer(step, lambda step=step: state_of(step))
    assert steps_in(keeper.folder) == ["step-10", "step-11"]
    assert latest_checkpoint(keeper.folder).facts["step"] == 11
    assert latest_checkpoint(tmp_path / "nowhere") is None


def test_a_checkpoint_is_written_when_it_is_time(tmp_path, monkeypatch):
    keeper, now = keeper_of(tmp_path, minutes=2.0), [1000.0]
    keeper.saved = now[0]
    monkeypatch.setattr("aam.engine.checkpoint.time.monotonic", lambda: now[0])
    for step, seconds in enumerate((60, 119, 120, 130, 239, 241)):
        now[0] = 1000 + seconds
        keeper.offer(step, lambda step=step: state_of(step))
    assert steps_in(tmp_path) == ["step-2", "step-5"]


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_is_passed_over_and_said(tmp_path, caplog, name, damage):
    keeper = keeper_of(tmp_path)
    for step in (1, 2):
        keeper.offer(step, lambda step=step: state_of(step))
    path = tmp_path / "step-2" / name
    blob = path.read_bytes()
    path.write_bytes({"flip": bytes([blob[0] ^ 1]) + blob[1:], "cut": blob[: len(blob) // 2], "remove": b""}[damage])
    if damage == "remove":
        path.unlink()
    assert latest_checkpoint(tmp_path).facts["step"] == 1
    assert name in caplog.text
    assert "the checkpoint before it is tried" in caplog.text
    keeper.offer(3, lambda: state_of(3))
    assert steps_in(tmp_path) == ["damaged-step-2", "step-1", "step-3"], "the damaged one does not count"


def test_going_back_removes_what_came_later(tmp_path):
    for step in (2, 10, 30):
        save(tmp_path / f"step-{step}", state_of(step))
    remove_later(tmp_path / "step-10")
    assert steps_in(tmp_path) == ["step-10", "step-2"]
    with pytest.raises(InputError, match=r"step-7/manifest.json: cannot be read"):
        load(tmp_path / "step-7")


@pytest.mark.parametrize("caught", ["", "SIGTERM"])
def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path, monkeypatch, caplog, caught):
    """On a full disk training goes on; after a signal the process says that it failed."""
    keeper = keeper_of(tmp_path)
    keeper.offer(1, lambda: state_of(1))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    keeper.signals.caught = caught
    if caught:
        with pytest.raises(OSError, match="No space left"):
            keeper.offer(2, lambda: state_of(2))
    else:
        keeper.offer(2, lambda: state_of(2))
        assert f"the last whole checkpoint: {tmp_path / 'step-1'}" in caplog.text
    assert steps_in(tmp_path) == ["step-1"]
    assert latest_checkpoint(tmp_path).facts["step"] == 1


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR2", "SIGINT"])
def test_a_signal_waits_for_the_step_and_then_saves(tmp_path, name):
    before = signal.getsignal(getattr(signal, name))
    with Signals() as signals:
        keeper = keeper_of(tmp_path, 10.0, signals)
        with signals:
            keeper.offer(1, lambda: state_of(1))
            os.kill(os.getpid(), getattr(signal, name))
            assert signals.caught == name
            with pytest.raises(CallAgain, match=rf"{name} came, .*step-2 is saved"):
                keeper.offer(2, lambda: state_of(2))
        assert steps_in(tmp_path) == ["step-2"]
        with pytest.raises(CallAgain, match="what is trained is saved"):
            signals.pause()
    assert signal.getsignal(getattr(signal, name)) == before


def test_outside_the_loop_a_signal_ends_the_run_where_it_is():
    with pytest.raises(CallAgain, match="nothing to save"), Signals():
        os.kill(os.getpid(), signal.SIGUSR2)


def test_a_second_signal_ends_the_process_at_once():
    source = """if True:
        import os, signal
        from aam.engine.signals import Signals
        with Signals() as signals, signals:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGUSR2)
            print(signals.caught, flush=True)
            Signals.GRACE = -1.0
            os.kill(os.getpid(), signal.SIGTERM)
            print("never")
    """
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "SIGTERM\n")


def test_a_process_that_was_started_ignores_the_warning():
    with Signals() as signals:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0 if signals.caught == "" else 3)
        assert os.waitpid(child, 0)[1] == 0
