"""What the inputs of a job hold, before it is queued: headers and first rows, by the standard
library; what aam alone can read is left to the job.
"""

from __future__ import annotations

import csv
import difflib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from aam.errors import shown
from slurm.jobs.options import INPUT_FOLDERS, Options, expand_home
from slurm.jobs.request import Request

# Options of aam whose values name columns of the metadata; --cv may also be a number of folds.
COLUMN = re.compile("--(.+-columns?|cv)")
# Rows of the metadata whose ids are compared with those of a table.
FIRST_ROWS = 20
# Beginnings of files that aam reads and Python's standard library does not: HDF5, and archives.
BINARY = (b"\x89HDF", b"PK\x03\x04", b"\x1f\x8b")
# Where a folder holds a model: its own, that of a run, or those of the folds of a run.
MODELS = ("model.json", "model/model.json", "fold-*/model/model.json")
# Characters at the beginning of a tree in which its first bracket stands.
TREE_HEAD = 1 << 16


def rows_of(path: Path) -> Iterator[list[str]]:
    """Yield the rows of a table of text without its comments; none where it is no UTF-8 text."""
    with path.open("rb") as file:
        if file.read(4).startswith(BINARY):
            return
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = (line for line in file if line.strip() and not line.startswith("# "))
            header = next(lines, "")
            separator = next((each for each in "\t,;" if each in header), "\t")
            for row in csv.reader(itertools.chain([header], lines), delimiter=separator):
                yield [cell.strip() for cell in row]
    except (UnicodeDecodeError, csv.Error):
        return


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
            hint = f"{close[0]!r}?" if close else f"it has {shown(header[1:])}"
            problems.append(f"{name} {value!r}: {metadata} has no such column; {hint}")
    return problems


def id_problems(tables: list[Path], metadata: Path, ids: list[str]) -> list[str]:
    """Return a problem where tables of text hold none of the first samples of the metadata."""
    samples: set[str] = set()
    for table in tables:
        header = next(rows_of(table), [""])
        if header[0].lower() not in ("#otu id", "feature-id"):
            return []
        samples.update(header[1:])
    if not ids or not samples or samples & set(ids):
        return []
    names = f"{metadata} begins with {shown(ids)}, the table has {shown(sorted(samples))}"
    return [f"--metadata: none of its first {len(ids)} ids is a sample of --table: {names}"]


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
    """List what is wrong in the inputs of a job, as far as headers and first rows show it."""
    data = request.data.absolute()
    paths = [
        (name, data / expand_home(value))
        for name, values in options
        if name in ("--table", "--tree", "--metadata", *INPUT_FOLDERS)
        for value in values
        if value and not is_promised_to(request, name)
    ]
    problems = [problem for name, path in paths for problem in kind_problems(name, path)]
    files = {name: [path for key, path in paths if key == name] for name, _ in paths}
    for metadata in files.get("--metadata", []):
        rows = rows_of(metadata) if metadata.is_file() else iter(())
        header = next(rows, [])
        if len(header) < 2:
            continue
        problems += column_problems(options, metadata, header)
        samples = (row[0] for row in rows if row and not row[0].startswith("#"))
        ids = [*itertools.islice(samples, FIRST_ROWS)]
        tables = files.get("--table", [])
        if all(table.is_file() for table in tables):
            problems += id_problems(tables, metadata, ids)
    return problems
