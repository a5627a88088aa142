"""What the inputs of a job hold, before it is queued: the columns of the metadata, and whether a
model or a tree is one; what aam alone can read is left to the job.
"""

from __future__ import annotations

import csv
import difflib
import re
from pathlib import Path

from slurm.jobs.options import INPUT_FOLDERS, Options, expand_home
from slurm.jobs.request import Request

# Options of aam whose values name columns of the metadata; --cv may also be a number of folds.
COLUMN = re.compile("--(.+-columns?|cv)")
# Beginnings of files that aam reads and Python's standard library does not: HDF5, and archives.
BINARY = (b"\x89HDF", b"PK\x03\x04", b"\x1f\x8b")
# Where a folder holds a model: its own, that of a run, or those of the folds of a run.
MODELS = ("model.json", "model/model.json", "fold-*/model/model.json")
# Characters at the beginning of a tree in which its first bracket stands.
TREE_HEAD = 1 << 16


def header_of(metadata: Path) -> list[str]:
    """Return the cells of the first line of a metadata file; none where it is no UTF-8 text."""
    try:
        with metadata.open(encoding="utf-8-sig", newline="") as file:
            header = next((line for line in file if line.strip() and line[:2] != "# "), "")
    except UnicodeDecodeError:
        return []
    separator = next((each for each in "\t,;" if each in header), "\t")
    return [cell.strip() for cell in next(csv.reader([header], delimiter=separator), [])]


def some(names: list[str]) -> str:
    """Return a few names for a message."""
    return ", ".join(map(repr, names[:5])) + ", ..." * (len(names) > 5)


def column_problems(options: Options, metadata: Path, header: list[str]) -> list[str]:
    """List the options that name a column which the metadata does not have."""
    problems = []
    for name, values in options:
        if not COLUMN.fullmatch(name):
            continue
        for value in values:
            if value in header or (name == "--cv" and re.fullmatch("[0-9]+", value)):
                continue
            close = difflib.get_close_matches(value, header, 1)
            hint = f"{close[0]!r}?" if close else f"it has {some(header[1:])}"
            problems.append(f"{name} {value!r}: {metadata} has no such column; {hint}")
    return problems


def kind_problems(name: str, path: Path) -> list[str]:
    """Return a problem where a model or a tree is none."""
    if name in INPUT_FOLDERS and path.is_dir():
        if not any(found for pattern in MODELS for found in path.glob(pattern)):
            return [f"{name}: {path} holds no model.json; name the folder `model` of a run"]
    elif path.exists() and not path.is_dir() and not path.is_file():
        return [f"{name}: {path} is a device and no file"]
    elif path.is_file() and not path.stat().st_size:
        return [f"{name}: {path} is empty"]
    elif name == "--tree" and path.is_file():
        with path.open("rb") as file:
            head = file.read(TREE_HEAD)
        if b"(" not in head and not head.startswith(BINARY):
            return [
                f"{name}: {path} is no tree in Newick; expected brackets such as ((A:1,B:1):1);"
            ]
    return []


def is_promised_to(request: Request, name: str) -> bool:
    """Return whether an earlier job writes the input of an option."""
    return bool(request.after) and name in INPUT_FOLDERS


def content_problems(options: Options, request: Request) -> list[str]:
    """List what is wrong in the inputs of a job, as far as their beginnings show it."""
    data = request.data.absolute()
    paths = [
        (name, data / expand_home(value))
        for name, values in options
        if name in ("--table", "--tree", "--metadata", *INPUT_FOLDERS)
        for value in values
        if value and not is_promised_to(request, name)
    ]
    problems = [problem for name, path in paths for problem in kind_problems(name, path)]
    for name, path in paths:
        header = header_of(path) if name == "--metadata" and path.is_file() else []
        problems += column_problems(options, path, header) if len(header) > 1 else []
    return problems
