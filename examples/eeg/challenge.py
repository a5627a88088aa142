"""Challenge files: predictions in the columns that a challenge reads, and the checks that it
makes.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

from aam.errors import InputError, shown
from aam.files.atomic import write_text
from aam.io.text import is_number
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
    rows = []
    for row, target in itertools.product(predictions, targets):
        confidence = row.get(f"{target}_confidence", "")
        values = (row["participant_id"], "1", "rest", target, row[target], confidence)
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


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
        found = shown(rows[0] if rows else (), 10)
        return [f"{path}: columns {found}, expected {shown(COLUMNS, 10)}"]
    problems, size = [], path.stat().st_size
    if size > MAX_BYTES:
        problems.append(f"{path}: {size / 1e6:.1f} MB, expected at most {MAX_BYTES / 1e6:.0f} MB")
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
        prediction, confidence = row["prediction"], row["confidence"]
        if not (prediction if is_class else is_number(prediction)):
            found = f"prediction is {prediction!r}, expected a finite number"
            problems.append(f"{path}, line {number}: {found}")
        if is_class and not (is_number(confidence) and 0 <= float(confidence) <= 1):
            found = f"confidence is {confidence!r}, expected 0 to 1"
            problems.append(f"{path}, line {number}: {found}")
    return problems


def challenge(config: ChallengeConfig) -> dict[str, Any]:
    """Write a challenge file, or check one."""
    rows = read_rows(not_none(config.predictions), "\t")
    if not rows or "participant_id" not in rows[0]:
        found = shown(rows[0] if rows else (), 3)
        expected = "expected 'participant_id', as `train` writes them"
        raise InputError(f"{config.predictions}: columns {found}, {expected}")
    if config.output is not None:
        write_text(config.output, challenge_text(rows))
    checked = config.check or config.output
    if checked is None:
        raise InputError("name a file by --output, to write it, or by --check")
    if problems := challenge_problems(checked, rows):
        raise InputError(*problems)
    return {"valid": checked}
