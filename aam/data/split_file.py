"""Splits in files: split.tsv, and two files of sample ids."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from aam.data.split import SUBSETS, Split, Subset
from aam.device.files import write_text
from aam.errors import InputError, Problems, shown
from aam.io.text import MAX_PROBLEMS, decoded, parse_rows, read_bytes

# The second column kept its name when the word for its values became subset.
HEADER = ["sample-id", "side", "fold"]


def write_split(path: Path, split: Split) -> None:
    """Write split.tsv: sample-id, side, fold; one row per sample, sorted."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, dialect="excel-tab", lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(zip(split.sample_ids, split.subsets, split.folds, strict=True))
    write_text(path, text.getvalue())


def read_split(path: Path) -> Split:
    """Read a split that `write_split` wrote.

    Raises `InputError`: another header, a row of another length, an unknown subset, empty or duplicate ids,
    folds for some samples only, no training samples.
    """
    problems = Problems()
    rows: dict[str, tuple[Subset, str]] = {}
    for number, (line, cells) in enumerate(parse_rows(decoded(read_bytes(path), path), path)):
        if len(problems.messages) == MAX_PROBLEMS:
            break
        where = f"{path}: line {line}"
        if number == 0:
            if cells != HEADER:
                raise InputError(f"{where}: header is {cells}, expected {HEADER}, separated by tabs")
        elif len(cells) != len(HEADER):
            problems.add(f"{where}: {len(cells)} cells, expected {len(HEADER)}")
        elif cells[1] not in SUBSETS:
            problems.add(f"{where}: side is {cells[1]!r}, expected {' or '.join(SUBSETS)}")
        elif not cells[0] or cells[0] in rows:
            both = shown(sorted({cells[1], rows.get(cells[0], (cells[1], ""))[0]}))
            problems.add(f"{where}: sample-id {cells[0]!r} is empty or stands there twice, with the side {both}")
        else:
            rows[cells[0]] = (next(subset for subset in SUBSETS if subset == cells[1]), cells[2])
    folded = [sample for sample, (_, fold) in rows.items() if fold]
    if folded and len(folded) < len(rows):
        problems.add(f"{path}: {len(rows) - len(folded)} samples have no fold and {len(folded)} have one")
    if not problems.messages and all(subset != "train" for subset, _ in rows.values()):
        problems.add(f"{path}: {len(rows)} samples and none with the side 'train'")
    problems.raise_if_any()
    ids = sorted(rows)
    return Split(tuple(ids), tuple(rows[name][0] for name in ids), tuple(rows[name][1] for name in ids))


def read_subsets(train: Path, test: Path) -> Split:
    """Return the split of two files of sample ids, one per line.

    Raises `InputError`: a file without ids, or a sample in both.
    """
    lines = [decoded(read_bytes(path), path).split("\n") for path in (train, test)]
    train_ids, test_ids = ({line.strip() for line in file} - {""} for file in lines)
    problems = [f"{path}: no sample id in it" for path, ids in ((train, train_ids), (test, test_ids)) if not ids]
    if both := sorted(train_ids & test_ids):
        problems.append(f"{train} and {test}: {len(both)} samples are in both, expected none: {shown(both)}")
    if problems:
        raise InputError(*problems)
    ids = tuple(sorted(train_ids | test_ids))
    return Split(ids, tuple("test" if name in test_ids else "train" for name in ids), ("",) * len(ids))
