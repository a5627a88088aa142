"""The notebook runs from its first cell to its last, and is short."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"

RESULTS = """
assert len(predicted) == len(table) == len(vectors) > 100
assert (metadata.ph - predicted).abs().mean() < (metadata.ph - metadata.ph.median()).abs().mean()
assert importance["importance"].iloc[0] > 0
"""


def code() -> str:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code") + "\n"


def test_the_notebook_is_short():
    assert len([line for line in code().splitlines() if line.strip()]) < 20


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    (tmp_path / "notebook.py").write_text(code() + RESULTS, encoding="utf-8")
    path = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "notebook.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
