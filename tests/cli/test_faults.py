"""Killed processes, full and faulty disks, damaged files: a few here, more by hand with
tests/faults.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.programs import run_program, with_sources

pytestmark = pytest.mark.slow


ROOT = Path(__file__).parents[2]


def run(script: str, *words: str) -> str:
    """What a script of tests/faults prints; it must find nothing wrong."""
    program = ROOT / "tests" / "faults" / script
    return run_program(sys.executable, program, *words, env=with_sources(), timeout=900).stdout


def test_killed_runs_end_like_others(tmp_path):
    stdout = run("kills.py", str(tmp_path), "--kills", "2", "--seed", "5")
    assert stdout.splitlines()[-1] == '{"pretrain": true, "train": true}'


@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which("cc"), reason="needs Linux and a C compiler"
)
def test_a_disk_that_fails_damages_nothing(tmp_path):
    stdout = run("faults.py", str(tmp_path), "--every", "151")
    assert stdout.count("exit statuses") == 6
    statuses = {int(status) for status in re.findall(r"(\d+): \d+[,}]", stdout)}
    assert statuses >= {0, 1}


@pytest.mark.skipif(sys.platform != "linux", reason="bounds memory as Linux does")
def test_damaged_files_are_read_or_refused(tmp_path):
    stdout = run("fuzz.py", str(tmp_path), "--inputs", "570")
    assert stdout.splitlines()[-1] == "570 inputs, 0 failures"
