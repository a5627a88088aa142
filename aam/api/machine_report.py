"""Reports of `aam doctor` and `aam profile`: compared with an earlier one, and written."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from aam.device.platform import Facts
from aam.engine.logger import flatten
from aam.errors import InputError
from aam.files.atomic import read_json, write_text

# Differences of measured numbers below this share are noise.
LEAST_CHANGE = 0.05


def read_baseline(path: Path | None) -> Facts | None:
    """Return the content of a JSON file that an earlier call wrote; None without a path."""
    if path is None:
        return None
    report = read_json(path)
    if not isinstance(report, dict):
        raise InputError(f"--baseline: {path} is not a report of this command")
    return report


def is_report(path: Path) -> bool:
    """Return whether a file is a report of `aam doctor`, of a machine or of what joins ranks."""
    with contextlib.suppress(InputError):
        report = read_json(path)
        if isinstance(report, dict) and isinstance(report.get("format"), int):
            return not {"aam", "all_reduce"}.isdisjoint(report)
    return False


def compare_reports(report: Facts, baseline: Facts) -> list[str]:
    """Return one line per value that differs from a baseline; numbers with their ratio."""
    now, before = flatten(report), flatten(baseline)
    lines = []
    for name in dict.fromkeys([*before, *now]):
        earlier, current = before.get(name), now.get(name)
        if earlier == current or name == "date" or isinstance(current, list):
            continue
        numbers = all(type(value) in (int, float) for value in (earlier, current))
        if numbers and earlier and abs(current / earlier - 1) >= LEAST_CHANGE:
            lines.append(f"{name}: {earlier:.4g} -> {current:.4g} ({current / earlier:.2f} times)")
        elif not numbers or not earlier:
            lines.append(f"{name}: {earlier} -> {current}")
    return lines or ["no difference from the baseline"]


def write_report(report: Facts, baseline: Facts | None, output: Path | None) -> None:
    """Print the differences from a baseline, and write the report."""
    if baseline is not None:
        print("\n".join(compare_reports(report, baseline)))
    if output is not None:
        write_text(output, json.dumps(report, indent=1) + "\n")
        print(output, flush=True)
