"""Writes the pages of the reference that come from the code: every option of every command, and the
Python names.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aam
from aam.cli import COMMANDS
from aam.options import Option, options_of

MADE = "<!-- Made from the code by docs/make_reference.py; changes here are lost. -->\n"


def _kind(option: Option) -> str:
    """Return what an option takes: choices, a kind of value, or nothing for a switch."""
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if option.item is bool:
        return f"switch; `--no-{option.name[2:]}` turns it off"
    return f"`{option.metavar}`"


def _default(option: Option) -> str:
    if option.value in (None, ()):
        return "required" if option.required else "not set"
    values = option.values
    return " ".join(f"`{value}`" for value in values)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def options_page() -> str:
    """Return the page of all options, one section for each command."""
    parts = [MADE, "# Commands and options\n"]
    parts.append(
        "Every command takes `--help` and `--config FILE` (TOML or the `run.json` of a run; the "
        "command line wins).\n"
    )
    for name, command in COMMANDS.items():
        config = command.default()
        parts.append(f"## aam {name}\n\n{_cell(str(type(config).__doc__).rstrip('.'))}.\n")
        parts.append("| option | takes | default | meaning |\n|---|---|---|---|")
        for option in options_of(config):
            about = option.about
            limits = f" Range: {option.range}." if option.range else ""
            meaning = _cell(about.help) + limits
            parts.append(
                f"| `{option.name}` | {_cell(_kind(option))} | {_default(option)} | {meaning} |"
            )
        parts.append("")
    return "\n".join(parts)


def _public_names() -> Iterator[str]:
    yield from sorted(name for name in aam.__all__ if not name.startswith("_"))


def _described(title: str, signature: str, about: str) -> str:
    return f"{title}\n\n```python\n{signature}\n```\n\n```text\n{about}\n```\n"


def python_page() -> str:
    """Return the page of the public names of the package, with their signatures and docstrings."""
    parts = [MADE, "# Python names\n", "[aam from Python](../python.md) shows how they are used.\n"]
    for name in _public_names():
        value = getattr(aam, name)
        signature = str(inspect.signature(value)) if inspect.isfunction(value) else ""
        parts.append(
            _described(f"## aam.{name}", f"{name}{signature}", inspect.getdoc(value) or "")
        )
        methods = inspect.getmembers(value, inspect.isfunction) if inspect.isclass(value) else []
        for method, function in methods:
            about = inspect.getdoc(function)
            if not method.startswith("_") and about and function.__module__.startswith("aam"):
                parts.append(
                    _described(
                        f"### {name}.{method}", f"{method}{inspect.signature(function)}", about
                    )
                )
    return "\n".join(parts)


def _output(output: dict[str, Any]) -> str:
    """Return an output of a cell as Markdown: a picture, a table, or text."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        return f'<img alt="what the cell draws" src="data:image/png;base64,{data["image/png"]}">\n'
    return data.get("text/html") or f"```text\n{data['text/plain'].strip()}\n```\n"


def notebook_page(path: Path) -> str:
    """Return the page of a notebook, with the outputs that it holds."""
    parts = [MADE]
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output) for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def write_reference(folder: Path) -> None:
    """Write the pages into a folder; files that would not change are left alone."""
    notebook = notebook_page(folder.parent / "notebook.ipynb")
    for name, text in (
        ("options.md", options_page()),
        ("names.md", python_page()),
        ("notebook.md", notebook),
    ):
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
