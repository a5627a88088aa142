"""Challenge files: predictions in the columns that a challenge reads, and the checks that it
makes.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any

from aam.errors import InputError, shown
from aam.files.atomic import write_text
from aam.io.metadata import is_number
from aam.options import not_none
from examples.eeg.config import ChallengeConfig

COLUMNS = ("subject", "session", "task", "target", "prediction", "confidence")
MAX_BYTES = 10_000_000


def read_rows(path: Path, delimiter: str) -> list[dict[str, str]]:
    """Return the rows of a table; `InputError` where it cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file, delimiter=delimiter, restval=""))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def challenge_rows(predictions: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows of a challenge file of those of predictions.tsv: one for each subject and
    target.
    """
    names = [name for name in next(iter(predictions), {}) if name != "participant_id"]
    targets = [name for name in names if not name.endswith("_confidence")]
    return [
        {
            "subject": row["participant_id"],
            "session": "1",
            "task": "rest",
            "target": target,
            "prediction": row[target],
            "confidence": row.get(f"{target}_confidence", ""),
        }
        for row in predictions
        for target in targets
    ]


def challenge_text(predictions: list[dict[str, str]]) -> str:
    """Return the challenge file of the rows of predictions.tsv."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(challenge_rows(predictions))
    return text.getvalue()


def challenge_problems(path: Path, predictions: list[dict[str, str]]) -> list[str]:
    """Return what a challenge would refuse: columns, rows that are there twice or not at all,
    values, size.
    """
    rows = read_rows(path, ",")
    if not rows or tuple(rows[0]) != COLUMNS:
        return [
            f"{path}: columns {shown(rows[0] if rows else (), 10)}, expected {shown(COLUMNS, 10)}"
        ]
    problems = []
    if path.stat().st_size > MAX_BYTES:
        problems.append(
            f"{path}: {path.stat().st_size / 1e6:.1f} MB, at most {MAX_BYTES / 1e6:.0f} MB are "
            "taken"
        )
    count, expected = (
        Counter(f"{row['subject']} {row['target']}" for row in each)
        for each in (rows, challenge_rows(predictions))
    )
    listed = {
        "there twice": [key for key in count if count[key] > 1],
        "missing": expected - count,
        "not asked for": count.keys() - expected.keys(),
    }
    problems += [
        f"{path}: {what}: {shown(sorted(wrong))}" for what, wrong in listed.items() if wrong
    ]
    for number, row in enumerate(rows, 2):
        is_class = bool(row["confidence"])
        if not (row["prediction"] if is_class else is_number(row["prediction"])):
            problems.append(
                f"{path}, line {number}: prediction is {row['prediction']!r}, expected a finite "
                "number"
            )
        if is_class and not (is_number(row["confidence"]) and 0 <= float(row["confidence"]) <= 1):
            problems.append(
                f"{path}, line {number}: confidence is {row['confidence']!r}, expected 0 to 1"
            )
    return problems


def challenge(config: ChallengeConfig) -> dict[str, Any]:
    """Write a challenge file, or check one."""
    rows = read_rows(not_none(config.predictions), "\t")
    if not rows or "participant_id" not in rows[0]:
        found = shown(rows[0] if rows else (), 3)
        raise InputError(
            f"{config.predictions}: columns {found}, expected 'participant_id', as `train` "
            "writes them"
        )
    if config.output is not None:
        write_text(config.output, challenge_text(rows))
    checked = config.check or config.output
    if checked is None:
        raise InputError("name a file by --output, to write it, or by --check")
    if problems := challenge_problems(checked, rows):
        raise InputError(*problems)
    return {"valid": checked}
