"""Processes that share the folds of one run: each fold is fitted once, and one process reports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def words(study: Path, output: Path) -> list[str]:
    files = f"--table {study}/table.biom --metadata {study}/metadata.tsv --output-dir {output}"
    options = "--metadata-column ph --cv 3 --rarefy-depth 300 --threads 1"
    return [sys.executable, "-m", "aam", "train", *files.split(), *options.split()]


def test_two_processes_do_what_one_does(study: Path, tmp_path: Path) -> None:
    shared = {**os.environ, "AAM_SHARE_FOLDS": "1"}
    command = [*words(study, tmp_path / "shared"), "--resume-from", "auto"]
    both = [
        subprocess.Popen(command, env=shared, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    messages = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], messages
    for fold in range(3):
        assert sum(f"fold {fold} (" in message for message in messages) == 1, messages
    assert sum("report: " in message for message in messages) == 1, messages
    subprocess.run(words(study, tmp_path / "alone"), check=True, capture_output=True)
    alone, together = (
        (tmp_path / name / "predictions.tsv").read_bytes() for name in ("alone", "shared")
    )
    assert alone == together
    again = subprocess.run(command, env=shared, capture_output=True, text=True, check=True)
    assert "finished already" in again.stderr
