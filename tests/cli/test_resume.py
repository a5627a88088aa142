"""Runs that stop and go on, that are repeated from their run.json, and that are compared."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import aam.api.training  # noqa: F401 (a user without rights may not be able to read it later)
from aam.cli import main
from aam.data.table import read_table, write_biom
from aam.engine.logger import RunLogger
from aam.files.output_folder import lock_folder
from tests.cli.test_overwrite import contents
from tests.programs import absent
from tests.runs import assert_same_run

pytestmark = pytest.mark.slow


SMALL = "--embedding-dim 16 --attention-layers 1 --attention-heads 2 --batch-size 16"
SMALL += " --rarefy-depth 300 --threads 1"
NOBODY = 65534
TIMES = re.compile(
    rb'"(started|seconds|samples_per_s)": [^,}\n]+'
    rb"|\d{4}-\d\d-\d\dT[\d:]+[+-]\d{4}(, [^<,]+ until this report)?"
)


def pretraining(study: Path, output: Path, more: str = "") -> list[str]:
    inputs = f"--table {study}/table.biom --tree {study}/tree.nwk --metadata {study}/metadata.tsv"
    return f"pretrain {inputs} --output-dir {output} --epochs 3 {SMALL} {more}".split()


def training(study: Path, output: Path, more: str = "") -> list[str]:
    inputs = f"--table {study}/table.biom --metadata {study}/metadata.tsv --output-dir {output}"
    taught = "--metadata-column ph --categorical-columns season --numeric-columns null"
    members = "--members deep presence --cv 3 --dropout 0.1 --epochs 2"
    return f"train {inputs} {taught} {members} {SMALL} {more}".split()


def weights_of(run: Path, name: str = "model") -> bytes:
    return (run / name / "weights.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(study: Path) -> Path:
    assert main(pretraining(study, study.parent / "whole")) == 0
    return study.parent / "whole"


def interrupted(
    monkeypatch: pytest.MonkeyPatch, words: list[str], after: int, name: str = "SIGUSR2"
) -> None:
    """Send a signal after so many steps of the whole call, which then ends with status 85."""
    report, steps = RunLogger.record, []

    def signalling(self, record) -> None:
        report(self, record)
        steps.append(record["event"])
        if steps.count("step") == after and record["event"] == "step":
            os.kill(os.getpid(), getattr(signal, name))

    with monkeypatch.context() as patch:
        patch.setattr(RunLogger, "record", signalling)
        assert main(words) == 85


@pytest.mark.parametrize(("after", "name"), [(1, "SIGUSR2"), (7, "SIGINT")])
def test_a_run_that_was_signalled_goes_on(study, whole, tmp_path, monkeypatch, capsys, after, name):
    words = pretraining(study, tmp_path / "run", "--resume-from auto")
    interrupted(monkeypatch, words, after, name)
    stderr = capsys.readouterr().err
    assert f"{name} came" in stderr
    assert "the same command with --resume-from auto continues" in stderr
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [f"step-{after}"]
    assert main(words) == 0
    assert f"continues after step {after}" in capsys.readouterr().err
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert_same_run(whole, tmp_path / "run")
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["resumed"]) == 1


def test_folds_that_were_done_are_not_trained_again_unless_they_are_damaged(
    study, tmp_path, monkeypatch, capsys
):
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert main(training(study, whole)) == 0
    words = training(study, run, "--resume-from auto")
    interrupted(monkeypatch, words, after=14)
    done, damaged = run / "fold-0" / "last" / "manifest.json", run / "fold-1" / "last"
    before = done.stat().st_mtime_ns
    assert not (run / "predictions.tsv").exists()
    (damaged / "weights.safetensors").write_bytes(weights_of(run / "fold-1", "last")[:-1])
    assert main(words) == 0
    assert "weights.safetensors: missing or damaged" in capsys.readouterr().err
    assert done.stat().st_mtime_ns == before
    names = ["predictions.tsv", "metrics.json", "fold-2/split.tsv"]
    # The description of a model says whether the network joins, and why.
    parts = ("last/weights.safetensors", "model/members.safetensors", "model/model.json")
    for name in (*names, *(f"fold-{fold}/{part}" for fold in range(3) for part in parts)):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name


def test_changes_of_the_meaning_are_refused_and_those_of_the_last_bits_are_said(
    study, tmp_path, monkeypatch, capsys, refused
):
    read, table = read_table(study / "table.biom"), tmp_path / "table.biom"
    words = pretraining(study, tmp_path / "run", "--resume-from auto")
    interrupted(monkeypatch, words, after=4)
    before = contents(tmp_path / "run")
    other = read.__class__(read.counts, read.sample_ids[::-1], read.feature_ids, read.sequences)
    write_biom(other, table)
    changed = ["--table", str(table), "--lr", "1e-3", "--batch-size", "8", "--seed", "7"]
    stderr = refused(main, [*words, *changed])
    parts = ["4 problems", "--seed was 0 and is 7", "--lr was 0.0005 and is 0.001"]
    parts += ["--batch-size was 16 and is 8", "inputs.table.sha256 was"]
    assert absent(stderr, *parts) == []
    assert contents(tmp_path / "run") == before
    moved = shutil.copy(study / "table.biom", tmp_path / "elsewhere.biom")
    assert main([*words, "--table", str(moved), "--asv-chunk-size", "7", "--num-workers", "1"]) == 0
    stderr = capsys.readouterr().err
    said = "--asv-chunk-size was unset and is 7: the rest of the run may differ in the last bits"
    assert said in stderr
    assert "num_workers" not in stderr
    assert "elsewhere" not in stderr, "the same content elsewhere is the same input"


def test_a_finished_run_is_left_as_it_is_but_models_that_are_gone_are_made_again(
    study, whole, tmp_path, capsys, refused
):
    run = shutil.copytree(whole, tmp_path / "run")
    words = pretraining(study, run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")}
    assert "continue an interrupted run with --resume-from auto" in refused(main, words)
    assert main([*words, "--resume-from", "auto"]) == 0
    assert "finished already" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in before} == before
    shutil.rmtree(run / "last")
    assert main([*words, "--resume-from", "auto"]) == 0
    for name in ("last", "model"):
        assert weights_of(run, name) == weights_of(whole, name)


def test_a_checkpoint_can_be_named(study, whole, tmp_path, monkeypatch, capsys, refused):
    """In its own run, which goes back, or for another run of the same options."""
    monkeypatch.setattr("aam.engine.checkpoint.KEPT", 9)
    words = pretraining(study, tmp_path / "run", "--checkpoint-minutes 0")
    interrupted(monkeypatch, words, after=5)
    checkpoints = tmp_path / "run" / "checkpoints"
    for start, more, message in (
        (pretraining, f"--lr 1e-3 --resume-from {checkpoints}/step-2", "--lr was"),
        (training, f"--resume-from {checkpoints}", "expected auto with --cv"),
        (pretraining, "--resume-from nowhere", "nowhere/manifest.json: no such file"),
    ):
        assert message in refused(main, start(study, tmp_path / "new", more))
        assert not (tmp_path / "new").exists()
    other = [*pretraining(study, tmp_path / "other"), "--resume-from", str(checkpoints / "step-3")]
    assert main(other) == 0
    assert "continues after step 3" in capsys.readouterr().err
    assert len(list(checkpoints.iterdir())) == 5, "those of another run are left alone"
    assert main([*words, "--resume-from", str(checkpoints / "step-2")]) == 0
    removed = f"{checkpoints / 'step-3'}: removed, the run goes back before it"
    assert removed in capsys.readouterr().err
    for run in (tmp_path / "run", tmp_path / "other"):
        assert weights_of(run) == weights_of(whole)
        assert weights_of(run, "last") != b""


def test_one_process_writes_to_a_run(study, whole, tmp_path, refused):
    """Whoever comes second changes nothing, whatever it was asked to do."""
    run = shutil.copytree(whole, tmp_path / "run")
    (run / ".partial~host~1~report.html").write_text("half")
    before = contents(run)
    with lock_folder(run):
        for more in ("--overwrite", "--resume-from auto", "--overwrite --resume-from auto"):
            said = refused(main, pretraining(study, run, more))
            assert "another process is writing there" in said
    assert contents(run) == before


def test_nothing_is_deleted_before_all_else_is_right(study, whole, tmp_path, refused):
    run = shutil.copytree(whole, tmp_path / "run")
    words = pretraining(study, run, "--overwrite")
    tuning = training(study, run, f"--dropout 0 --overwrite --pretrained-encoder {run}")
    before = contents(run)
    for wrong, message in (
        ([*words, "--resume-from", str(tmp_path / "nowhere")], "--resume-from"),
        ([*words, "--split", str(run / "split.tsv")], "--overwrite would delete what is read"),
        (tuning, "--overwrite would delete what is read"),
    ):
        assert message in refused(main, wrong)
        assert contents(run) == before


def test_a_warning_to_the_whole_group_reaches_the_main_process_only(study, tmp_path):
    """Loader workers that died of it would take the run with them."""
    words = pretraining(study, tmp_path / "run", "--num-workers 2 --resume-from auto")
    words[words.index("--epochs") + 1] = "400"
    command = [sys.executable, "-m", "aam", *words]
    with subprocess.Popen(
        command, start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 120
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not (metrics.is_file() and metrics.stat().st_size):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGTERM)
        stderr = process.communicate(timeout=60)[1]
    assert process.returncode == 85, stderr
    assert "Traceback" not in stderr
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1


def test_folds_stay_inside_the_run(study, tmp_path):
    metadata, run = tmp_path / "metadata.tsv", tmp_path / "deep" / "er" / "run"
    rows = (study / "metadata.tsv").read_text().splitlines()
    folds = ["evil", *("x/../../../evil" if row % 2 else "a" for row in range(len(rows) - 1))]
    metadata.write_text("".join(f"{row}\t{fold}\n" for row, fold in zip(rows, folds, strict=True)))
    words = f"train --table {study}/table.biom --metadata {metadata} --metadata-column ph --cv evil"
    words += f" --members presence --rarefy-depth 300 --threads 1 --output-dir {run}"
    assert main(words.split()) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "metadata.tsv"]
    assert [path.name for path in run.parent.iterdir()] == ["run"]
    plain, evil = sorted(path for path in run.glob("fold-*"))
    assert plain.name == "fold-a"
    assert evil.name.startswith("fold-x_")
    assert (evil / "split.tsv").is_file()


def test_the_output_may_be_a_link_or_have_a_hostile_name(
    study, tmp_path, monkeypatch, capsys, refused
):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert main(pretraining(study, tmp_path / "link")) == 0
    assert main(pretraining(study, tmp_path / "link", "--overwrite")) == 0
    assert (tmp_path / "real" / "metrics.json").is_file()
    assert (tmp_path / "link").is_symlink()
    hostile = tmp_path / "a 'b' [x] [bold]\n$(c);"
    (tmp_path / "real").rename(hostile)
    assert (hostile / "metrics.json").is_file()
    other = tmp_path / "other"
    other.mkdir()
    for broken in ("[]", "null", "{}", '{"inputs": 3, "config": {}}'):
        (other / "run.json").write_text(broken)
        assert main(pretraining(study, other, "--resume-from auto")) == 2
    (tmp_path / "file").write_text("")
    assert "is a file, expected a folder" in refused(main, pretraining(study, tmp_path / "file"))
    monkeypatch.chdir(tmp_path / "other")
    (other / "run.json").unlink()
    (other / ".lock").unlink(missing_ok=True)
    assert main(pretraining(study, Path())) == 0


def test_a_run_is_repeated_from_its_run_json(whole, tmp_path):
    again = tmp_path / "again"
    assert main(["pretrain", "--config", str(whole / "run.json"), "--output-dir", str(again)]) == 0
    assert_same_run(whole, again)


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs root, to become another user"
)
@pytest.mark.parametrize("case", ["output", "table", "resume"])
def test_what_another_user_may_not_do_is_said(study, tmp_path, monkeypatch, case):
    """Root ignores modes, so these run as nobody."""
    words = pretraining(study, tmp_path / "run", "--resume-from auto")
    if case == "resume":
        interrupted(monkeypatch, words, after=2)
    parents = (tmp_path, *tmp_path.parents, study, *study.parents)
    folders = [path for path in parents if path != Path("/")]
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
    output = log.read_text()
    assert "Traceback" not in output
    assert "ermission" in output
    assert status == 2, output
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == (["run", "said"] if case == "resume" else ["said"])


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    board, times = EventAccumulator(str(folder)), ("seconds", "samples_per_s")
    board.Reload()
    names = [name for name in board.Tags()["scalars"] if not name.endswith(times)]
    return [(name, one.step, one.value) for name in names for one in board.Scalars(name)]


def test_two_runs_are_alike_in_every_byte_but_times_and_names_of_event_files(
    study, tmp_path, monkeypatch
):
    """Nothing of the environment, where tokens stand, is written either."""
    monkeypatch.setenv("SOME_TOKEN", "hunter2-hunter2")
    runs = []
    for number in range(2):
        run: dict[Path, object] = {}
        assert main(training(study, tmp_path / "run", "--deterministic")) == 0
        for path in filter(Path.is_file, (tmp_path / "run").rglob("*")):
            assert b"hunter2" not in path.read_bytes()
            if "tfevents" in path.name:
                run[path.parent] = scalars(path.parent)
            else:
                run[path] = TIMES.sub(b"", path.read_bytes())
        (tmp_path / "run").rename(tmp_path / f"run-{number}")
        runs.append(run)
    assert runs[0].keys() == runs[1].keys()
    assert [str(path) for path, content in runs[0].items() if content != runs[1][path]] == []
