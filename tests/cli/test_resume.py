"""Runs that stop and go on, that are repeated from their run.json, and that are compared."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import aam.training.run  # noqa: F401 (a user without rights may not be able to read it later)
from aam.cli.main import main
from aam.data.table import read_table, write_biom
from aam.runtime.files import only_writer
from aam.training.journal import Journal

SMALL = "--embedding-dim 16 --attention-layers 1 --attention-heads 2 --batch-size 16 --rarefy-depth 300 --threads 1"
NOBODY = 65534
TIMES = re.compile(rb'"(started|seconds|samples_per_s)": [^,}\n]+')


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "study"
    assert main(f"simulate --output-dir {folder} --samples 60 --asvs 80 --length 50 --depth 1500".split()) == 0
    return folder


def pretraining(study: Path, output: Path, more: str = "") -> list[str]:
    inputs = f"--table {study}/table.biom --tree {study}/tree.nwk --metadata {study}/metadata.tsv"
    return f"pretrain {inputs} --output-dir {output} --epochs 3 {SMALL} {more}".split()


def training(study: Path, output: Path, more: str = "") -> list[str]:
    inputs = f"--table {study}/table.biom --metadata {study}/metadata.tsv --metadata-column ph --cv 3"
    return f"train {inputs} --output-dir {output} --epochs 2 {SMALL} {more}".split()


@pytest.fixture(scope="module")
def whole(study: Path) -> Path:
    assert main(pretraining(study, study.parent / "whole")) == 0
    return study.parent / "whole"


def interrupted(monkeypatch: pytest.MonkeyPatch, words: list[str], after: int, name: str = "SIGUSR2") -> None:
    """Send a signal after so many steps of the whole call, which then ends with status 85."""
    report, steps = Journal.report, []

    def signalling(self, record) -> None:
        report(self, record)
        steps.append(record["event"])
        if steps.count("step") == after and record["event"] == "step":
            os.kill(os.getpid(), getattr(signal, name))

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "report", signalling)
        assert main(words) == 85


@pytest.mark.parametrize(("after", "name"), [(1, "SIGTERM"), (4, "SIGUSR2"), (7, "SIGINT")])
def test_a_run_that_was_signalled_goes_on(study, whole, tmp_path, monkeypatch, capsys, after, name):
    words = pretraining(study, tmp_path / "run", "--resume-from auto")
    interrupted(monkeypatch, words, after, name)
    said = capsys.readouterr().err
    assert f"{name} came" in said
    assert "the same command with --resume-from auto goes on" in said
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [f"step-{after}"]
    assert main(words) == 0
    assert f"goes on after step {after}" in capsys.readouterr().err
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert main(["compare", str(whole), str(tmp_path / "run")]) == 1, "resume_from is not the same"
    said = " ".join(capsys.readouterr().out.split())
    assert "metrics.jsonl" not in said
    assert "weights" not in said
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["resumed"]) == 1


def test_folds_that_were_done_are_not_trained_again(study, tmp_path, monkeypatch):
    assert main(training(study, tmp_path / "whole")) == 0
    words = training(study, tmp_path / "run", "--resume-from auto")
    interrupted(monkeypatch, words, after=8)
    done = tmp_path / "run" / "fold-0" / "model" / "manifest.json"
    before = done.stat().st_mtime_ns
    assert not (tmp_path / "run" / "predictions.tsv").exists()
    assert main(words) == 0
    assert done.stat().st_mtime_ns == before
    for name in ("predictions.tsv", "metrics.json", "fold-1/model/weights.safetensors", "fold-2/split.tsv"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_damaged_model_of_a_fold_is_trained_again(study, tmp_path, monkeypatch, capsys):
    words = training(study, tmp_path / "run", "--resume-from auto")
    interrupted(monkeypatch, words, after=8)
    weights = tmp_path / "run" / "fold-0" / "model" / "weights.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1])
    assert main(words) == 0
    assert "weights.safetensors: missing or damaged" in capsys.readouterr().err
    assert weights.read_bytes() == good


def test_changes_of_the_meaning_are_refused_together(study, tmp_path, monkeypatch, capsys):
    table = tmp_path / "table.biom"
    table.write_bytes((study / "table.biom").read_bytes())
    words = [*pretraining(study, tmp_path / "run", "--resume-from auto"), "--table", str(table)]
    interrupted(monkeypatch, words, after=4)
    capsys.readouterr()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    read = read_table(study / "table.biom")
    write_biom(read.__class__(read.counts, read.sample_ids[::-1], read.feature_ids, read.sequences), table)
    assert main([*words, "--lr", "1e-3", "--batch-size", "8"]) == 2
    said = capsys.readouterr().err
    assert "3 problems" in said
    assert "config.train.lr was 0.0005 and is 0.001" in said
    assert "config.train.batch_size was 16 and is 8" in said
    assert "inputs.table.sha256 was" in said
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


def test_changes_of_the_last_bits_are_said(study, tmp_path, monkeypatch, capsys):
    words = pretraining(study, tmp_path / "run", "--resume-from auto")
    interrupted(monkeypatch, words, after=4)
    moved = tmp_path / "elsewhere.biom"
    moved.write_bytes((study / "table.biom").read_bytes())
    assert main([*words, "--table", str(moved), "--asv-chunk-size", "7", "--num-workers", "1"]) == 0
    said = capsys.readouterr().err
    assert "config.runtime.asv_chunk_size was None and is 7: the rest of the run may differ in the last bits" in said
    assert "num_workers" not in said
    assert "elsewhere" not in said, "the same content elsewhere is the same input"


def test_a_finished_run_is_left_as_it_is(study, tmp_path, capsys):
    words = pretraining(study, tmp_path / "run")
    assert main(words) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.safetensors")}
    assert main(words) == 2
    assert "go on with a run that was ended by --resume-from auto" in capsys.readouterr().err
    assert main([*words, "--resume-from", "auto"]) == 0
    assert "finished already" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_checkpoint_can_be_named(study, whole, tmp_path, monkeypatch, capsys):
    """In its own run, which goes back, or for another run of the same options."""
    words = pretraining(study, tmp_path / "run", "--checkpoint-minutes 0 --keep-checkpoints 9")
    interrupted(monkeypatch, words, after=5)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert len(list(checkpoints.iterdir())) == 5
    again = [*pretraining(study, tmp_path / "other"), "--resume-from", str(checkpoints / "step-3")]
    assert main(again) == 0
    assert "goes on after step 3" in capsys.readouterr().err
    assert len(list(checkpoints.iterdir())) == 3, "later ones are gone"
    for output in ("run", "other"):
        if output == "run":
            assert main([*words, "--resume-from", str(checkpoints / "step-2")]) == 0
        weights = [folder / "model" / "weights.safetensors" for folder in (tmp_path / output, whole)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
        assert (tmp_path / output / "last" / "weights.safetensors").read_bytes() != b""
    assert main(training(study, tmp_path / "cv", f"--resume-from {checkpoints}")) == 2
    assert "expected auto with --cv" in capsys.readouterr().err
    assert main(pretraining(study, tmp_path / "new", "--resume-from nowhere")) == 2
    assert "nowhere/manifest.json: cannot be read" in capsys.readouterr().err


def test_one_process_writes_to_a_run(study, tmp_path, monkeypatch, capsys):
    words = pretraining(study, tmp_path / "run", "--resume-from auto")
    interrupted(monkeypatch, words, after=2)
    with only_writer(tmp_path / "run"):
        assert main(words) == 2
    assert "another process is writing there" in capsys.readouterr().err
    assert main(words) == 0


def test_a_run_is_repeated_from_its_run_json_and_compared(study, whole, tmp_path, capsys):
    again = tmp_path / "again"
    assert main(["pretrain", "--config", str(whole / "run.json"), "--output-dir", str(again)]) == 0
    assert main(["compare", str(whole), str(again)]) == 0
    assert "The runs are alike" in capsys.readouterr().out
    other = tmp_path / "other"
    words = ["pretrain", "--config", str(whole / "run.json"), "--output-dir", str(other)]
    assert main([*words, "--seed", "1", "--lr", "1e-3"]) == 0
    capsys.readouterr()
    assert main(["compare", str(whole), str(other)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    for part in ("config.runtime.seed", "config.train.lr", "records part at step", "model/weights.safetensors"):
        assert part in said
    assert main(["compare", str(whole), str(study)]) == 2
    assert main(["compare"]) == 2


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.parametrize("case", ["output", "table", "resume"])
def test_what_another_user_may_not_do_is_said(study, tmp_path, monkeypatch, case):
    """Root ignores modes, so these run as nobody."""
    words = pretraining(study, tmp_path / "run", "--resume-from auto")
    if case == "resume":
        interrupted(monkeypatch, words, after=2)
    folders = [path for path in (tmp_path, *tmp_path.parents, study, *study.parents) if path != Path("/")]
    modes = {path: path.stat().st_mode for path in folders}
    for path in folders:
        path.chmod(0o755)
    (study / "table.biom").chmod(0o600 if case == "table" else 0o644)
    log = tmp_path / "said"
    log.touch()
    log.chmod(0o666)
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        sys.stderr = log.open("w", buffering=1)
        os._exit(main(words))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for path, mode in modes.items():
        path.chmod(mode)
    said = log.read_text()
    assert "Traceback" not in said
    assert "ermission" in said
    assert status == {"output": 2, "table": 2, "resume": 1}[case], said
    assert sorted(path.name for path in tmp_path.iterdir()) == (["run", "said"] if case == "resume" else ["said"])


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    board = EventAccumulator(str(folder))
    board.Reload()
    names = [name for name in board.Tags()["scalars"] if not name.endswith(("seconds", "samples_per_s"))]
    return [(name, one.step, one.value) for name in names for one in board.Scalars(name)]


@pytest.mark.parametrize("words_of", [pretraining, training])
def test_two_runs_are_alike_in_every_byte_but_times_and_names_of_event_files(study, tmp_path, monkeypatch, words_of):
    """Nothing of the environment, where tokens stand, is written either."""
    monkeypatch.setenv("SOME_TOKEN", "hunter2-hunter2")
    found = []
    for number in range(2):
        assert main(words_of(study, tmp_path / "run", "--deterministic")) == 0
        files = {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()}
        assert not any(b"hunter2" in blob for blob in files.values())
        found.append({p: TIMES.sub(b"", blob) for p, blob in files.items() if "tfevents" not in p.name})
        found[-1] |= {path.parent: scalars(path.parent) for path in files if "tfevents" in path.name}
        (tmp_path / "run").rename(tmp_path / f"run-{number}")
    assert found[0].keys() == found[1].keys()
    assert [str(path) for path, content in found[0].items() if content != found[1][path]] == []
