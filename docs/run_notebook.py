"""Runs docs/notebook.ipynb in an empty folder and keeps the outputs of its cells: ``python
docs/run_notebook.py``.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

NOTEBOOK = Path(__file__).parent / "notebook.ipynb"


def shown(value: Any) -> dict[str, Any]:
    """Return a value as a notebook shows it: a chart as picture, a table as HTML, all as text."""
    if isinstance(value, alt.TopLevelMixin):
        png = vl_convert.vegalite_to_png(value.to_dict(), scale=1.5)
        return {"image/png": base64.b64encode(png).decode(), "text/plain": "a chart"}
    html = (
        {"text/html": value.to_html(float_format="{:.3g}".format)}
        if hasattr(value, "to_html")
        else {}
    )
    return {**html, "text/plain": repr(value)}


def outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell and return what it prints, without lines of progress, and the value of its last
    line.
    """
    tree, printed, kept = ast.parse(source), io.StringIO(), []
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        code = ast.Expression(last.value if last else ast.Constant(None))
        value = eval(compile(ast.fix_missing_locations(code), "cell", "eval"), names)  # noqa: S307
    if printed.getvalue():
        kept.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue()})
    if value is not None and not isinstance(value, int):
        data = shown(value)
        kept.append(
            {
                "output_type": "execute_result",
                "execution_count": count,
                "metadata": {},
                "data": data,
            }
        )
    return kept


def main() -> None:
    """Run all cells, and write the notebook with their outputs."""
    notebook, names = json.loads(NOTEBOOK.read_text(encoding="utf-8")), {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for count, cell in enumerate(cells, 1):
            cell["execution_count"], cell["outputs"] = (
                count,
                outputs("".join(cell["source"]), names, count),
            )
            print(f"cell {count} of {len(cells)}", flush=True)
        os.chdir(NOTEBOOK.parent)
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
