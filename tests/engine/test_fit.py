"""A task that is trained in a run directory: models, resume after a kill, and a run that is
finished.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from aam.engine.checkpoint import find_checkpoints, load
from aam.engine.run import run_command, training_outputs
from aam.errors import FINISHED, InputError
from aam.options import section
from aam.sections import RunConfig, TrainingOptions
from examples.runs import fit_and_save, plan_with_device
from tests.engine.conftest import Doubling, same

EPOCHS = 30


@dataclass(frozen=True)
class Config:
    """The options of a small command."""

    train: TrainingOptions = section(TrainingOptions())
    runtime: RunConfig = section(RunConfig())


class Slow(Doubling):
    """Steps that take long enough to be interrupted."""

    pause, validates_first = 0.0, True

    def prepare(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        time.sleep(self.pause)
        return batch


def run(folder: Path, pause: float = 0.0, epochs: int = EPOCHS, lr: float = 0.02) -> int:
    train = TrainingOptions(epochs=epochs, lr=lr, patience=0)
    runtime = RunConfig(
        output_dir=folder, device="cpu", threads=1, checkpoint_minutes=0.0, resume_from="auto"
    )

    def work(run, device, inputs):
        task = Slow()
        task.pause = pause
        best = fit_and_save(lambda: task, train, run, run.path, "doubling", {"size": 3})
        return {"size": best.facts["size"], "best_epoch": best.facts["best_epoch"]}

    prepare = plan_with_device(
        Config(train, runtime), runtime, {}, training_outputs(), lambda device: None, work
    )
    return run_command("double", runtime, prepare)


def test_inputs_are_read_before_an_earlier_run_is_removed(tmp_path):
    assert run(tmp_path / "run", epochs=1) == FINISHED
    before = sorted(path for path in tmp_path.rglob("*"))
    runtime = RunConfig(output_dir=tmp_path / "run", device="cpu", overwrite=True)

    def read(device):
        raise InputError("a damaged input")

    for folder in (tmp_path / "run", tmp_path / "new"):
        runtime = dataclasses.replace(runtime, output_dir=folder)
        config = Config(TrainingOptions(), runtime)
        prepare = plan_with_device(config, runtime, {}, training_outputs(), read, lambda *given: {})
        with pytest.raises(InputError, match="a damaged input"):
            run_command("double", runtime, prepare)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_run_that_is_killed_goes_on_and_ends_with_the_same_bits(tmp_path):
    assert run(tmp_path / "whole") == FINISHED
    folder = str(tmp_path / "killed")
    source = (
        "from tests.engine.test_fit import run; from pathlib import Path; "
        f"run(Path({folder!r}), 0.02)"
    )
    path = os.pathsep.join((str(Path(__file__).parents[2]), os.environ["PYTHONPATH"]))
    process = subprocess.Popen(
        [sys.executable, "-c", source], env={**os.environ, "PYTHONPATH": path}
    )
    while not find_checkpoints(tmp_path / "killed" / "checkpoints"):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "model").exists()
    assert run(tmp_path / "killed") == FINISHED
    for name in ("model", "last"):
        whole, killed = (load(tmp_path / folder / name) for folder in ("whole", "killed"))
        assert same(whole.tensors, killed.tensors)
    results = json.loads((tmp_path / "killed" / "metrics.json").read_text())
    assert results == json.loads((tmp_path / "whole" / "metrics.json").read_text())
    assert results["size"] == 3
    assert not (tmp_path / "killed" / "checkpoints").exists()
    before = (tmp_path / "killed" / "model" / "manifest.json").stat().st_mtime_ns
    assert run(tmp_path / "killed") == FINISHED
    assert (tmp_path / "killed" / "model" / "manifest.json").stat().st_mtime_ns == before


def test_it_is_said_when_no_epoch_was_better_than_the_start(tmp_path, monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(
        logging.getLogger("aam"), "info", lambda text, *values: lines.append(text % values)
    )
    for name, epochs, lr in (("learns", 3, 0.02), ("does-not", 3, 1e-30)):
        lines.clear()
        assert run(tmp_path / name, epochs=epochs, lr=lr) == FINISHED
        said = [line.partition("best epoch ")[2] for line in lines if "best epoch" in line]
        assert (
            said
            == {
                "learns": ["3 of 3"],
                "does-not": [
                    "0 of 3, the start: no epoch made the network better on the validation samples"
                ],
            }[name]
        ), lines
        assert any(line.endswith("samples per step") for line in lines), (
            "one device, and no accumulation"
        )
