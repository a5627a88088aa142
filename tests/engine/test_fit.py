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
from aam.options import RunConfig, TrainingOptions, section
from examples.runs import fit_and_save, plan_with_device
from tests.engine.conftest import Doubling, same

EPOCHS = 8


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


def run(
    folder: Path,
    pause: float = 0.0,
    epochs: int = EPOCHS,
    lr: float = 0.02,
    resume_from: str = "auto",
) -> int:
    train = TrainingOptions(epochs=epochs, lr=lr, patience=0)
    runtime = RunConfig(
        output_dir=folder, device="cpu", threads=1, checkpoint_minutes=0.0, resume_from=resume_from
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
    folder = tmp_path / "killed"
    test = "from tests.engine.test_fit import run; from pathlib import Path"
    path = os.pathsep.join((str(Path(__file__).parents[2]), os.environ["PYTHONPATH"]))
    words = [sys.executable, "-c", f"{test}; run(Path({str(folder)!r}), 0.05)"]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": path})
    while not find_checkpoints(folder / "checkpoints"):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "model").exists()
    assert run(folder) == FINISHED
    for name in ("model", "last"):
        assert same(load(tmp_path / "whole" / name).tensors, load(folder / name).tensors)
    results = json.loads((folder / "metrics.json").read_text())
    assert results == json.loads((tmp_path / "whole" / "metrics.json").read_text())
    assert results["size"] == 3
    assert not (folder / "checkpoints").exists()
    manifest = folder / "model" / "manifest.json"
    before = manifest.stat().st_mtime_ns
    assert run(folder) == FINISHED
    assert manifest.stat().st_mtime_ns == before
    with pytest.raises(InputError, match="model is not a checkpoint of a run; expected auto, or"):
        run(tmp_path / "new", resume_from=str(folder / "model"))


def test_it_is_said_when_no_epoch_was_better_than_the_start(tmp_path, monkeypatch):
    lines: list[str] = []
    say = lambda text, *values: lines.append(text % values)  # noqa: E731
    monkeypatch.setattr(logging.getLogger("aam"), "info", say)
    start = "0 of 3, the start: no epoch made the network better on the validation samples"
    for name, lr, best in (("learns", 0.02, "3 of 3"), ("does-not", 1e-30, start)):
        lines.clear()
        assert run(tmp_path / name, epochs=3, lr=lr) == FINISHED
        said = [line.partition("best epoch ")[2] for line in lines if "best epoch" in line]
        assert said == [best], lines
        # One device, and no accumulation.
        assert any(line.endswith("samples per step") for line in lines)
