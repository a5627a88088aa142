"""The notebook runs from its first cell to its last, and is a page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.programs import run_program, with_sources

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"

RESULTS = """
assert len(predicted) == len(table) == len(vectors) > 100
assert (metadata.ph - predicted).abs().mean() < (metadata.ph - metadata.ph.median()).abs().mean()
assert importance["importance"].iloc[0] > 0
"""


def cells() -> list[dict]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def code() -> str:
    sources = ("".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code")
    return "\n".join(sources) + "\n"


def test_the_notebook_is_a_page_with_its_outputs(monkeypatch):
    """`python docs/run_notebook.py` keeps them: two charts, and a table of importances."""
    kept = [output for cell in cells() for output in cell.get("outputs", []) if "data" in output]
    assert ["image/png" in output["data"] for output in kept] == [True, False, True]
    monkeypatch.syspath_prepend(str(NOTEBOOK.parent))
    from make_reference import notebook_page

    page = notebook_page(NOTEBOOK)
    assert page.count("data:image/png;base64,") == 2
    assert "<th>importance</th>" in page
    assert all("".join(cell["source"]) in page for cell in cells())


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    (tmp_path / "notebook.py").write_text(code() + RESULTS, encoding="utf-8")
    done = run_program(sys.executable, "notebook.py", cwd=tmp_path, env=with_sources())
    assert done.returncode == 0
