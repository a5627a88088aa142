"""A task that is trained in a run directory: models, resume after a kill, and a run that is
finished.
"""

from __future__ import annotations

import contextlib
import logging
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from aam.engine.checkpoint import State, save
from aam.engine.run import describe, open_run, training_outputs
from aam.engine.trainer import fit
from aam.errors import FINISHED, InputError
from aam.files.output_folder import lock_folder
from aam.options import RunConfig, TrainingOptions, section, to_dict
from examples.runs import fit_and_save
from tests.engine.conftest import Doubling


@dataclass(frozen=True)
class Config:
    """The options of a small command."""

    train: TrainingOptions = section(TrainingOptions())
    runtime: RunConfig = section(RunConfig())


def run(folder: Path, epochs: int, lr: float = 0.02, resume_from: str = "auto") -> int:
    train = TrainingOptions(epochs=epochs, lr=lr, patience=0)
    runtime = RunConfig(
        output_dir=folder, device="cpu", threads=1, checkpoint_minutes=0.0, resume_from=resume_from
    )
    config, task = Config(train, runtime), Doubling()
    task.validates_first = True
    with open_run(config) as run:
        run.begin(describe("double", to_dict(config), {}, {}, training_outputs()))
        if run.is_finished():
            return FINISHED
        best = fit_and_save(lambda: task, train, run, run.path, "doubling", {"size": 3})
        run.write_results({name: best.facts[name] for name in ("size", "best_epoch")})
    return FINISHED


class Faulty(Doubling):
    """A task whose fourth batch cannot be read."""

    def prepare(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        if number == 3:
            raise InputError("a damaged batch")
        return batch


def test_folds_whose_models_exist_are_left_out_and_others_continue(tmp_path):
    train = TrainingOptions(epochs=1, lr=0.02, patience=0)
    runtime = RunConfig(
        output_dir=tmp_path / "run", device="cpu", checkpoint_minutes=0.0, resume_from="auto"
    )
    config, folds = Config(train, runtime), {tmp_path / "run" / name: name for name in "abc"}
    steps, handler = list[str](), signal.getsignal(signal.SIGTERM)
    for task_of_b in (Faulty, Doubling):
        with contextlib.suppress(InputError), open_run(config) as run:
            run.begin(describe("double", to_dict(config), {}, {}, ["*/**"]))
            for path, name in run.unfinished(folds):
                with run.training(path, name) as training:
                    state = training.state
                    step = 0 if state is None else state.facts["progress"]["step"]
                    steps.append(f"{name} from step {step}")
                    task = task_of_b() if name == "b" else Doubling()
                    trainer = fit(task, train, training)
                    for folder in ("last", "model"):
                        save(path / folder, State(trainer.best_weights, {}))
        # The lock and the signals of the program are free again.
        assert signal.getsignal(signal.SIGTERM) is handler
        with lock_folder(tmp_path / "run"):
            pass
    assert steps == ["a from step 0", "b from step 0", "b from step 3", "c from step 0"]
    assert not list(tmp_path.rglob("checkpoints"))


def test_inputs_are_read_before_an_earlier_run_is_removed(tmp_path):
    assert run(tmp_path / "run", epochs=1) == FINISHED
    before = sorted(path for path in tmp_path.rglob("*"))
    for folder in (tmp_path / "run", tmp_path / "new"):
        runtime = RunConfig(output_dir=folder, device="cpu", overwrite=True)
        with (
            pytest.raises(InputError, match="a damaged input"),
            open_run(Config(TrainingOptions(), runtime)),
        ):
            raise InputError("a damaged input")
    assert sorted(path for path in tmp_path.rglob("*")) == before


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
    lines.clear()
    assert run(tmp_path / "learns", epochs=3) == FINISHED
    assert lines == [f"{tmp_path / 'learns'}: finished already"]
    with pytest.raises(InputError, match="model is not a checkpoint of a run; expected auto, or"):
        run(tmp_path / "new", epochs=3, resume_from=str(tmp_path / "learns" / "model"))
