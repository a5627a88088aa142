"""Splits: which samples train, validate and test, whole groups at a time, and split.tsv."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aam.data.dealing import Samples, Strata, dealt, sorted_samples
from aam.data.readers import decoded, parse_rows, read_bytes
from aam.errors import InputError, Problems, shown
from aam.runtime.files import write_text

Side = Literal["train", "validation", "test"]

SIDES: tuple[Side, ...] = ("train", "validation", "test")
HEADER = ["sample-id", "side", "fold"]
MOST_PROBLEMS = 10


@dataclass(frozen=True)
class Split:
    """Which side each sample stands on.

    Attributes
    ----------
    sample_ids : tuple of str
        Sorted.
    sides : tuple of str
        ``train``, ``validation`` or ``test`` of each sample.
    folds : tuple of str
        The fold in which each sample is the test side; empty text where there are no folds.
    """

    sample_ids: tuple[str, ...]
    sides: tuple[Side, ...]
    folds: tuple[str, ...]

    def ids(self, side: Side) -> tuple[str, ...]:
        """Samples of one side, sorted."""
        return tuple(sample for sample, at in zip(self.sample_ids, self.sides, strict=True) if at == side)

    @property
    def test_fold(self) -> str:
        """The fold that is the test side; empty text without folds or without a test side."""
        return next((fold for fold, at in zip(self.folds, self.sides, strict=True) if at == "test"), "")


def _held_out(samples: Samples, share: float, option: str, *names: int | str) -> set[str]:
    """Groups that `share` of all holds out: at least one where it is above 0, and never all."""
    if not 0 <= share < 1:
        raise InputError(f"{option} is {share}, expected a share from 0 to below 1")
    total = len(set(samples.groups))
    size = max(1, int(share * total + 0.5)) if share > 0 else 0
    if size >= total:
        kind = "groups" if samples.grouped else "samples"
        raise InputError(
            f"split: {option} {share} takes {size} of {total} {kind} and leaves none to train on; pass a "
            f"smaller {option}, 0 for none, or another --group-column"
        )
    if size == 0:
        return set()
    part = dealt(samples, [total - size, size], *names)
    return {group for group, place in part.items() if place == 1}


def _divided(
    samples: Samples, test: set[str], folds: Mapping[str, str], validation_size: float, seed: int
) -> Split:
    """The split whose test groups are `test`, with validation carved from the other groups."""
    fold = next((folds[group] for group in sorted(test)), "") if folds else ""
    validation = _held_out(
        samples.without(test), validation_size, "--validation-size", seed, "split", "validation", fold
    )
    sides: list[Side] = [
        "test" if group in test else "validation" if group in validation else "train"
        for group in samples.groups
    ]
    return Split(tuple(samples.ids), tuple(sides), tuple(folds.get(group, "") for group in samples.groups))


def make_split(
    ids: Sequence[str],
    *,
    groups: Sequence[str | None] | None = None,
    strata: Strata = None,
    test_size: float = 0.0,
    validation_size: float = 0.15,
    seed: int,
) -> Split:
    """Divide samples at random, whole groups at a time; the order of `ids` changes nothing.

    Parameters
    ----------
    ids : sequence of str
        Sample ids.
    groups : sequence of str, optional
        Group (subject, study) of each sample; without it each sample is a group.
    strata : sequence of str or float64 array, optional
        Class, or number that is cut into quantiles, of each sample, to be spread evenly over the sides.
    test_size : float
        Share of the groups that is held out as the test side.
    validation_size : float
        Share of the remaining groups that validates.
    seed : int

    Raises
    ------
    InputError
        A share that is none or leaves a side empty, samples without a group, duplicate ids.
    """
    samples = sorted_samples(ids, groups, strata)
    test = _held_out(samples, test_size, "--test-size", seed, "split", "test")
    return _divided(samples, test, {}, validation_size, seed)


def from_column(
    ids: Sequence[str],
    fold_values: Sequence[str | None],
    test_fold: str,
    groups: Sequence[str | None] | None = None,
    validation_size: float = 0.15,
    *,
    strata: Strata = None,
    seed: int,
) -> Split:
    """Hold out the samples whose fold is `test_fold` and carve validation from the others.

    Raises
    ------
    InputError
        Samples without a fold, a fold that does not exist, groups that lie in several folds, a side that
        would be empty, or as `make_split`.
    """
    samples = sorted_samples(ids, groups, strata)
    fold_of = dict(zip(ids, fold_values, strict=True))
    lost = [sample for sample in samples.ids if fold_of[sample] is None]
    if lost:
        raise InputError(
            f"split: {len(lost)} samples have no value in the fold column: {shown(lost)}; fill them in, or "
            "leave these samples out with --missing drop"
        )
    found: dict[str, set[str]] = {}
    for sample, group in zip(samples.ids, samples.groups, strict=True):
        found.setdefault(group, set()).add(str(fold_of[sample]))
    crossing = sorted(group for group, folds in found.items() if len(folds) > 1)
    if crossing:
        raise InputError(
            f"split: {len(crossing)} of {len(found)} groups lie in several folds and would be trained on and "
            f"tested: {shown(crossing)}, e.g. {crossing[0]!r} in folds {shown(sorted(found[crossing[0]]))}; "
            "give each group one fold, or choose another --group-column"
        )
    folds = {group: min(values) for group, values in found.items()}
    present = sorted(set(folds.values()))
    if test_fold not in present or len(present) < 2:
        raise InputError(
            f"split: folds are {shown(present, 20)}, expected --test-fold {test_fold!r} and another"
        )
    return _divided(
        samples, {group for group in folds if folds[group] == test_fold}, folds, validation_size, seed
    )


def kfold(
    ids: Sequence[str],
    k: int,
    groups: Sequence[str | None] | None = None,
    strata: Strata = None,
    validation_size: float = 0.15,
    *,
    seed: int,
) -> list[Split]:
    """Deal the groups into folds ``"0"`` to ``"k-1"``; split i tests fold i. Parameters as `make_split`.

    Raises
    ------
    InputError
        `k` below 2 or above the number of groups, or as `make_split`.
    """
    samples = sorted_samples(ids, groups, strata)
    total = len(set(samples.groups))
    if not 2 <= k <= total:
        kind = "groups" if samples.grouped else "samples"
        raise InputError(f"--cv is {k}, expected 2 to {total}, the number of {kind}")
    sizes = [total // k + (fold < total % k) for fold in range(k)]
    part = dealt(samples, sizes, seed, "split", "folds", k)
    folds = {group: str(place) for group, place in part.items()}
    return [
        _divided(
            samples, {group for group in folds if folds[group] == str(fold)}, folds, validation_size, seed
        )
        for fold in range(k)
    ]


def check_groups(split: Split, groups: Mapping[str, str | None]) -> None:
    """Refuse a split that has samples of one group on two sides; `groups` maps sample id to group."""
    sides: dict[str, set[str]] = {}
    for sample, side in zip(split.sample_ids, split.sides, strict=True):
        group = groups.get(sample)
        if group is not None:
            sides.setdefault(group, set()).add(side)
    leaking = sorted(group for group, found in sides.items() if len(found) > 1)
    if leaking:
        raise InputError(
            f"split: {len(leaking)} of {len(sides)} groups stand on two sides: {shown(leaking)}, e.g. "
            f"{leaking[0]!r} on {shown(sorted(sides[leaking[0]]))}; make the split with this --group-column"
        )


def restricted(split: Split, sample_ids: Sequence[str]) -> Split:
    """The split of the samples that a table has; samples that only the split names are left out.

    Raises
    ------
    InputError
        The split does not name a sample, or a side of it would be empty.
    """
    known, wanted = set(split.sample_ids), set(sample_ids)
    absent = sorted(wanted - known)
    if absent:
        raise InputError(
            f"split: {len(absent)} of {len(wanted)} samples are not in it: {shown(absent)}; add them to "
            "split.tsv or make a new split"
        )
    rows = [row for row in zip(split.sample_ids, split.sides, split.folds, strict=True) if row[0] in wanted]
    empty = [side for side in SIDES if side in split.sides and side not in {row[1] for row in rows}]
    if empty:
        raise InputError(
            f"split: none of the {len(wanted)} samples stands on the side {shown(empty)}; lower "
            "--rarefy-depth if it dropped them, or make a new split"
        )
    ids, sides, folds = zip(*rows, strict=True)
    return Split(ids, sides, folds)


def write_split(path: Path, split: Split) -> None:
    """Write split.tsv: sample-id, side, fold; one row per sample, sorted."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, dialect="excel-tab", lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(zip(split.sample_ids, split.sides, split.folds, strict=True))
    write_text(path, text.getvalue())


def read_split(path: Path) -> Split:
    """Read what `write_split` wrote.

    Raises
    ------
    InputError
        Another header, a row of another length, an unknown side, empty or duplicate ids, folds for some
        samples only, no training samples.
    """
    problems = Problems()
    rows: dict[str, tuple[Side, str]] = {}
    for number, (line, cells) in enumerate(parse_rows(decoded(read_bytes(path), path), path)):
        if len(problems.found) == MOST_PROBLEMS:
            break
        where = f"{path}: line {line}"
        if number == 0:
            if cells != HEADER:
                raise InputError(f"{where}: header is {cells}, expected {HEADER}, separated by tabs")
        elif len(cells) != len(HEADER):
            problems.add(f"{where}: {len(cells)} cells, expected {len(HEADER)}")
        elif cells[1] not in SIDES:
            problems.add(f"{where}: side is {cells[1]!r}, expected {' or '.join(SIDES)}")
        elif not cells[0] or cells[0] in rows:
            problems.add(f"{where}: sample-id {cells[0]!r} is empty or stands there twice")
        else:
            rows[cells[0]] = (next(side for side in SIDES if side == cells[1]), cells[2])
    folded = [sample for sample, (_, fold) in rows.items() if fold]
    if folded and len(folded) < len(rows):
        problems.add(f"{path}: {len(rows) - len(folded)} samples have no fold and {len(folded)} have one")
    if not problems.found and all(side != "train" for side, _ in rows.values()):
        problems.add(f"{path}: {len(rows)} samples and none on the side 'train'")
    problems.raise_if_any()
    ids = sorted(rows)
    return Split(tuple(ids), tuple(rows[name][0] for name in ids), tuple(rows[name][1] for name in ids))
