"""The functions of a job script that copy: run by bash without SLURM."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOSTILE = "a b'c\"d\na[$(touch x)]`y`;*\\"


@pytest.fixture
def bash(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs words of bash after the functions of a script; WORK is ``disk``, OUT is ``vast``."""
    text = (ROOT / "slurm" / "pretrain_node.sh").read_text()
    functions = text[text.index("say() {") : text.index("watch() {")]
    (tmp_path / "disk" / "run").mkdir(parents=True)
    (tmp_path / "vast").mkdir()
    head = f"set -uo pipefail; WORK={tmp_path}/disk OUT={tmp_path}/vast FILE= RESERVE=0 SLURM_JOB_ID=7\n"
    (tmp_path / "functions").write_text(head + functions)

    def run(words: str, *arguments: object, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-c", f". ./functions; {words}", "bash", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env={"PATH": path}, capture_output=True, text=True)

    return run


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_stage_out(bash, tmp_path):
    run, vast = tmp_path / "disk" / "run", tmp_path / "vast"
    for step in ("step-1", "step-2"):
        write(run / "checkpoints" / step, **{"manifest.json": step, "tensors": step})
    write(run / "checkpoints" / ".partial~step-3", tensors="half")
    write(run, **{"run.json": "1", "metrics.jsonl": "1", ".lock": "", HOSTILE: "x"})
    write(vast / "checkpoints" / ".partial-6-step-0", tensors="half")
    done = bash("stage_out")
    assert (done.returncode, done.stderr) == (0, "")
    whole = {f"checkpoints/{step}/{name}" for step in ("step-1", "step-2") for name in ("manifest.json", "tensors")}
    assert names(vast) == {*whole, "run.json", "metrics.jsonl", HOSTILE}
    # The run finishes: its checkpoints go, its model and its seal come.
    before = (vast / "run.json").stat().st_mtime_ns, (vast / "run.json").stat().st_ino
    subprocess.run(["rm", "-r", run / "checkpoints"], check=True)
    write(run / "model", **{"manifest.json": "m", "weights": "w"})
    write(run, **{"metrics.jsonl": "2", "metrics.json": "{}"})
    assert bash("stage_out").returncode == 0
    assert names(vast) == {"model/manifest.json", "model/weights", "run.json", "metrics.jsonl", "metrics.json", HOSTILE}
    assert (vast / "metrics.jsonl").read_text() == "2"
    assert ((vast / "run.json").stat().st_mtime_ns, (vast / "run.json").stat().st_ino) == before, "the same is kept"
    write(run / "model", **{"manifest.json": "n", "weights": "v"})
    assert bash("stage_out").returncode == 0
    assert (vast / "model" / "weights").read_text() == "v"
    assert not (tmp_path / "x").exists()


def test_the_seal_comes_last_and_nothing_is_removed_before(bash, tmp_path):
    """When a model cannot be written, VAST keeps the checkpoint and is not called finished."""
    run, vast = tmp_path / "disk" / "run", tmp_path / "vast"
    write(vast / "checkpoints" / "step-1", **{"manifest.json": "1", "tensors": "1"})
    write(run / "model", **{"manifest.json": "m", "weights": "w"})
    write(run, **{"run.json": "1", "metrics.json": "{}"})
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cp").write_text('#!/bin/sh\ncase "$*" in *model*) echo full >&2; exit 1;; esac\nexec /bin/cp "$@"\n')
    (tools / "cp").chmod(0o755)
    done = bash("stage_out", path=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "vast/model could not be written" in done.stderr
    assert names(vast) == {"checkpoints/step-1/manifest.json", "checkpoints/step-1/tensors", "run.json"}


def test_a_kill_during_a_copy_leaves_no_half(bash, tmp_path):
    run, vast = tmp_path / "disk" / "run", tmp_path / "vast"
    write(run / "checkpoints" / "step-1", **{"manifest.json": "1", "tensors": "x" * 1000})
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cp").write_text('#!/bin/sh\nmkdir "$3"; echo half > "$3/tensors"; touch here; sleep 60\n')
    (tools / "cp").chmod(0o755)
    command = ["bash", "-c", f". {tmp_path}/functions; stage_out"]
    environment = {"PATH": f"{tools}:{os.environ['PATH']}"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    while not (run / "here").exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (run / "here").unlink()
    assert not (vast / "checkpoints" / "step-1").exists()
    assert bash("stage_out").returncode == 0
    assert names(vast) == {"checkpoints/step-1/manifest.json", "checkpoints/step-1/tensors"}


def test_a_checkpoint_that_goes_while_it_is_copied_is_left_out(bash, tmp_path):
    run, vast = tmp_path / "disk" / "run", tmp_path / "vast"
    write(run / "checkpoints" / "step-1", **{"manifest.json": "1", "tensors": "1"})
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cp").write_text('#!/bin/sh\nrm -r "$2"; mkdir "$3"\n')
    (tools / "cp").chmod(0o755)
    assert bash("stage_out", path=f"{tools}:{os.environ['PATH']}").returncode == 0
    assert names(vast) == set()


def test_stage_in(bash, tmp_path):
    source = tmp_path / HOSTILE
    write(source / "model", weights="w", **{".lock": ""})
    words = 'fetch "$1" "$WORK/in/model/pre"'
    done = bash(words, source)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sha256" in done.stdout
    assert (tmp_path / "disk" / "in" / "model" / "pre" / "model" / "weights").read_text() == "w"
    assert "is there already" in bash(words, source).stdout
    (source / "model" / "weights").write_text("longer")
    assert "sha256" in bash(words, source).stdout
    assert (tmp_path / "disk" / "in" / "model" / "pre" / "model" / "weights").read_text() == "longer"
    assert "is missing or may not be read" in bash(words, tmp_path / "nothing").stderr
    assert bash('room "$WORK" 0 "$1"', source).returncode == 0
    assert not (tmp_path / "x").exists(), "no name is run"
    done = bash(f'room "$WORK" {2**60} "$1"', source)
    assert done.returncode == 1
    assert "are needed" in done.stderr


def test_a_copy_that_differs_is_refused(bash, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cp").write_text('#!/bin/sh\necho changed > "$3"\n')
    (tools / "cp").chmod(0o755)
    write(tmp_path, table="x")
    done = bash('fetch "$1" "$WORK/in/table"', tmp_path / "table", path=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "differs from it" in done.stderr
    assert not (tmp_path / "disk" / "in" / "table").exists()


def test_a_start_takes_what_is_on_vast(bash, tmp_path):
    write(tmp_path / "disk" / "run", stale="x")
    write(tmp_path / "vast" / "checkpoints" / "step-1", tensors="1")
    write(tmp_path / "vast" / "checkpoints" / ".partial-6-step-2", tensors="half")
    write(tmp_path / "vast" / "slurm", log="x")
    write(tmp_path / "vast", **{"run.json": "1"})
    done = bash("SOURCES=() PLACES=(); stage_in")
    assert (done.returncode, done.stderr) == (0, "")
    assert names(tmp_path / "disk" / "run") == {"run.json", "checkpoints/step-1/tensors"}
