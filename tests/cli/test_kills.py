"""Runs that are killed at random instants, a few here and hundreds by hand, end as if nothing had happened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_killed_runs_end_like_others(tmp_path):
    words = [sys.executable, str(ROOT / "tests" / "kills.py"), str(tmp_path), "--kills", "4", "--seed", "5"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == '{"pretrain": true, "train": true}'
