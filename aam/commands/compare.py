"""`aam compare`: two runs, two machines or two benchmarks."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from aam.config_commands import CompareConfig
from aam.engine.run import Record, differences, flatten, read_record
from aam.errors import FAILED, FINISHED, InputError
from aam.files.atomic import file_digest, read_json
from aam.files.output_folder import RUN
from aam.options import given

# What may differ in metrics.jsonl between two runs of one commit and one seed.
TIMES = ("seconds", "samples_per_s")


def _history(path: Path) -> list[Record]:
    """Return the records of a metrics.jsonl; a last line that a killed run left unfinished is left
    out.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        records = [json.loads(line) for line in lines if line.endswith("\n")]
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not the metrics of a run ({error})") from None
    if not all(
        isinstance(record, dict) and {"event", "step"} <= record.keys() for record in records
    ):
        raise InputError(f"{path}: not the metrics of a run; expected records with event and step")
    return records


def _first_difference(left: Path, right: Path) -> str:
    """Return where two metrics.jsonl first differ, apart from times; empty where nowhere."""
    histories = [_history(path) for path in (left, right)]
    for a, b in zip(*histories, strict=False):
        differing = [
            name
            for name in {**a, **b}
            if name not in TIMES and repr(a.get(name)) != repr(b.get(name))
        ]
        if differing:
            values = ", ".join(f"{name} {a.get(name)} and {b.get(name)}" for name in differing)
            return f"the {a['event']} records part at step {a['step']}: {values}"
    lengths = [len(history) for history in histories]
    return (
        ""
        if len(set(lengths)) == 1
        else f"alike until one ends: {lengths[0]} and {lengths[1]} records"
    )


def _files_apart(first: Path, second: Path) -> Iterator[str]:
    """Yield what differs between the metrics and weights of two runs."""
    for pattern in ("metrics.jsonl", "weights.safetensors"):
        for name in sorted(
            {path.relative_to(root) for root in (first, second) for path in root.rglob(pattern)}
        ):
            left, right = first / name, second / name
            if not (left.is_file() and right.is_file()):
                yield f"{name}: only in {first if left.is_file() else second}"
            elif pattern != "metrics.jsonl" and file_digest(left) != file_digest(right):
                yield f"{name}: the weights differ"
            elif pattern == "metrics.jsonl" and (difference := _first_difference(left, right)):
                yield f"{name}: {difference}"


def compare_runs(config: CompareConfig) -> int:
    """Print what two runs did differently and where their losses part; the exit status is 1 where
    anything differs.

    Raises
    ------
    InputError
        A folder that holds no run.
    """
    first, second = given(config.first), given(config.second)
    left, right = (read_record(path / RUN) for path in (first, second))
    table = Table(
        "", escape(str(first)), escape(str(second)), title="What differs", title_justify="left"
    )
    for column in table.columns:
        column.overflow = "fold"
    for name, (a, b) in differences(left, right).items():
        table.add_row(*map(Text, (name, str(a), str(b))))
    if table.row_count:
        Console().print(table)
    lines = list(_files_apart(first, second))
    alike = not (table.row_count or lines)
    print(
        "\n".join(
            ["The runs are alike: options, inputs, versions, losses and weights."]
            if alike
            else lines
        )
    )
    return FINISHED if alike else FAILED


# Measurements of which more is better or worse, by how their dotted names end; and those that must
# be alike.
MORE = re.compile(r"(samples_per_s\.p50|rates?\.[\w, ]+|product_rate)$")

LESS = re.compile(r"(step_s\.p50|seconds(\.p50)?|peak_bytes|\.error)$")

ALIKE = re.compile(r"(losses|activations\..*\.(mean|std|largest))$")

# Errors below this are rounding; losses and layers that are this much apart, as a share, are not
# alike.
ROUNDING, APART = 1e-4, 1e-2


def _worse(name: str, left: Any, right: Any, tolerance: float) -> bool:
    """Whether the second figure is worse than the first by more than `tolerance`, or wrong where it
    was not.
    """
    if name.endswith(".wrong"):
        return bool(right) and not left
    if not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
        return False
    if ALIKE.search(name):
        return abs(right - left) > APART * max(abs(left), ROUNDING)
    less = right < left / (1 + tolerance)
    more = right > max(left * (1 + tolerance), ROUNDING)
    return bool((less and MORE.search(name)) or (more and LESS.search(name)))


def _is_measured(name: str, value: Any) -> bool:
    """Whether `_worse` compares a figure of this name; one that is no number says nothing."""
    known = name.endswith(".wrong") or any(pattern.search(name) for pattern in (MORE, LESS, ALIKE))
    return known and isinstance(value, (int, float)) and not math.isnan(value)


def _report(path: Path) -> dict[str, Any]:
    report = read_json(path)
    if not isinstance(report, dict) or not ({"cases", "platform", "stages"} & report.keys()):
        raise InputError(f"{path}: expected the JSON of aam doctor, aam bench or aam profile step")
    flat = flatten(report)
    lists = {
        k: v
        for k, v in flat.items()
        if isinstance(v, list) and all(isinstance(x, float) for x in v)
    }
    return {**flat, **{f"{k}.{at}.losses": x for k, v in lists.items() for at, x in enumerate(v)}}


def compare(config: CompareConfig) -> int:
    """Compare two runs or, where both are files, two reports; the exit status is 1 where the second
    is worse.

    Raises
    ------
    InputError
        Nothing to compare, a file that is no report, or two reports that measure nothing alike.
    """
    first, second = given(config.first), given(config.second)
    if not (first.is_file() and second.is_file()):
        return compare_runs(config)
    left, right = _report(first), _report(second)
    measured = [
        {name for name, value in one.items() if _is_measured(name, value)} for one in (left, right)
    ]
    if not measured[0] & measured[1]:
        raise InputError(
            f"{second}: nothing is measured in it that {first} measures too; expected the same "
            "command"
        )
    table, worse = Table("", escape(str(first)), escape(str(second)), ""), 0
    for name in {**left, **right}:
        a, b = left.get(name), right.get(name)
        bad = _worse(name, a, b, config.tolerance)
        worse += bad
        if bad or (
            repr(a) != repr(b)
            and not isinstance(a, (float, list))
            and name not in ("date", "device")
        ):
            table.add_row(*map(escape, (name, str(a), str(b))), "worse" if bad else "")
    if table.row_count:
        Console().print(table)
    if alone := len(measured[0] ^ measured[1]):
        print(f"{alone} figures are in one of the two only, and compared with nothing")
    print(
        f"{worse} figures are worse by more than {config.tolerance:.0%}, or apart"
        if worse
        else "Nothing is worse."
    )
    return FAILED if worse else FINISHED
