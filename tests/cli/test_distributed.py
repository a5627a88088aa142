"""Several processes from the command line: how they start, stop, fail, and go on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import safetensors.numpy

from aam.cli import main

pytestmark = pytest.mark.slow


SMALL = "--embedding-dim 16 --attention-layers 1 --attention-heads 2 --rarefy-depth 300"
SMALL += " --threads 1 --patience 0"


def pretraining(study: Path, output: Path, more: str = "") -> list[str]:
    inputs = f"--table {study}/table.biom --tree {study}/tree.nwk --output-dir {output}"
    return f"pretrain {inputs} --epochs 6 --batch-size 8 --resume-from auto {SMALL} {more}".split()


def begun(words: list[str], **environment: str) -> subprocess.Popen[str]:
    """A command under way on two cores."""
    two = sorted(os.sched_getaffinity(0))[:2]
    options = {"env": {**os.environ, **environment}, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "aam", *words]
    return subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, two), **options)


def ranks_of(study: Path, output: Path, more: str = "", second: str = "") -> list:
    """Two ranks that something else started, the second perhaps with other words."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    words = pretraining(study, output, f"--distributed {more}")
    return [
        begun([*words, *second.split() * rank], **shared, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank in range(2)
    ]


def ended(process: subprocess.Popen[str], within: float = 90) -> tuple[int, str]:
    stderr = process.communicate(timeout=within)[1]
    return process.returncode, stderr


def weights(output: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(output / "model" / "weights.safetensors")


def same(one: Path, other: Path) -> bool:
    pairs = zip(weights(one).values(), weights(other).values(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def steps_are_there(output: Path, process: subprocess.Popen[str]) -> None:
    """Wait until training has begun."""
    metrics, deadline = output / "metrics.jsonl", time.monotonic() + 60
    while not (metrics.is_file() and metrics.read_text().count("epoch") > 0):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def whole(study: Path) -> Path:
    """A run of two ranks that nothing interrupted."""
    output = study.parent / "whole"
    status, stderr = ended(begun(pretraining(study, output, "--data-parallel")))
    assert status == 0, stderr
    assert "16 samples per step (1 x 8 on each of 2 devices)" in stderr
    assert stderr.count("epoch 6/6") == 1, "only the leading rank speaks"
    return output


def test_two_devices_equal_one(study, whole, tmp_path):
    assert main([*pretraining(study, tmp_path / "one"), "--batch-size", "16"]) == 0
    one, two = weights(tmp_path / "one"), weights(whole)
    difference = sum(float(np.square(one[name] - two[name]).sum()) for name in one)
    assert difference < 1e-10 * sum(float(np.square(value).sum()) for value in one.values())
    lines = [(path / "metrics.jsonl").read_text().count("\n") for path in (whole, tmp_path / "one")]
    assert lines[0] == lines[1]


def test_a_warning_saves_on_all_ranks_and_the_run_goes_on(study, whole, tmp_path):
    words = pretraining(study, tmp_path / "run", "--data-parallel")
    process = begun(words)
    steps_are_there(tmp_path / "run", process)
    process.send_signal(signal.SIGUSR2)
    status, stderr = ended(process)
    assert status == 85, stderr
    assert "is saved" in stderr
    assert ended(begun(words))[0] == 0
    assert same(whole, tmp_path / "run")


def test_bad_input_that_only_rank_0_finds_has_the_status_of_bad_input(study, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    status, stderr = ended(begun(pretraining(study, tmp_path / "run", "--data-parallel")))
    assert status == 2, stderr
    assert "is not empty and was not created by this version of aam" in stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_a_rank_that_is_killed_ends_the_others(study, whole, tmp_path):
    words = pretraining(study, tmp_path / "run", "--data-parallel --checkpoint-minutes 0")
    process = begun(words)
    steps_are_there(tmp_path / "run", process)
    killed = psutil.Process(process.pid).children()[-1]
    killed.kill()
    started = time.monotonic()
    status, stderr = ended(process)
    assert time.monotonic() - started < 60
    assert status == 1
    assert "a rank was lost" in stderr
    assert "was ended by SIGKILL" in stderr
    assert ended(begun(words))[0] == 0
    assert same(whole, tmp_path / "run")


def test_ranks_end_with_whoever_started_them(study, tmp_path):
    process = begun(pretraining(study, tmp_path / "run", "--data-parallel --epochs 1000"))
    steps_are_there(tmp_path / "run", process)
    ranks = psutil.Process(process.pid).children()
    process.kill()
    gone, alive = psutil.wait_procs(ranks, timeout=60)
    assert (len(gone), alive) == (2, [])
    process.communicate()
    assert [*(tmp_path / "run" / "checkpoints").glob("step-*")], "they were warned, and have saved"


def test_a_second_warning_ends_a_rank_that_stands_still(study, tmp_path):
    process = begun(pretraining(study, tmp_path / "run", "--data-parallel --epochs 1000"))
    steps_are_there(tmp_path / "run", process)
    psutil.Process(process.pid).children()[-1].suspend()
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
    status, stderr = ended(process, 60)
    assert status == 1
    assert "the process of rank 1 did not end by itself" in stderr


def test_an_error_on_one_rank_is_the_error_of_all(study, tmp_path):
    ranks = ranks_of(study, tmp_path / "run", second=f"--table {tmp_path}/nowhere.biom")
    (first, stderr), (second, second_stderr) = (ended(rank, 60) for rank in ranks)
    assert (first, second) == (1, 2)
    assert "a rank was lost" in stderr
    assert "nowhere.biom" in second_stderr
    assert not (tmp_path / "run").exists()


def test_bad_input_is_said_once(study, tmp_path):
    """Also that of a rule which needs the study: a subset smaller than the devices."""
    ranks = ranks_of(study, tmp_path / "run", "--validation-size 0.01")
    (first, stderr), (second, quiet) = (ended(rank, 60) for rank in ranks)
    assert (first, second) == (2, 2)
    assert "the validation subset has 1 samples for 2 devices" in stderr
    assert "validation" not in quiet
