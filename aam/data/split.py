"""Splits: which samples train, validate and test, whole groups at a time, and split.tsv."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from aam.data.table import SampleTable
from aam.data.text import MOST_PROBLEMS, decoded, parse_rows, read_bytes
from aam.errors import InputError, Problems, shown
from aam.runtime.files import write_text
from aam.runtime.rng import generator

Side = Literal["train", "validation", "test"]

Strata = Sequence[str | None] | npt.NDArray[np.float64] | None

SIDES: tuple[Side, ...] = ("train", "validation", "test")

HEADER = ["sample-id", "side", "fold"]

# Numeric strata are quintiles.
QUANTILES = 5

MAX_STRATA = 101

# Exchanges tried between parts of unequal groups. Five folds of the 248 fish of `mackerel-type` hold a fifth
# of each type to within 0.008; the best of 100 random divisions holds it to within 0.033.
SWAPS = 2000


@dataclass(frozen=True)
class Split:
    """Which side each sample stands on: sorted ids, the side of each, the fold that tests it or ''."""

    sample_ids: tuple[str, ...]
    sides: tuple[Side, ...]
    folds: tuple[str, ...]

    def ids(self, side: Side) -> tuple[str, ...]:
        """Samples of one side, sorted."""
        return tuple(sample for sample, at in zip(self.sample_ids, self.sides, strict=True) if at == side)

    @property
    def held_out(self) -> tuple[str, ...]:
        """Samples that are reported: the test side or, where there is none, the validation side."""
        return self.ids("test") or self.ids("validation")

    @property
    def learned(self) -> tuple[str, ...]:
        """Samples that baselines learn from: all others."""
        return self.ids("train") + (self.ids("validation") if self.ids("test") else ())

    @property
    def test_fold(self) -> str:
        """The fold that is the test side; empty text without folds or without a test side."""
        return next((fold for fold, at in zip(self.folds, self.sides, strict=True) if at == "test"), "")


@dataclass(frozen=True)
class _Samples:
    """Sorted samples with their group and, as numbers from 0, their stratum."""

    ids: list[str]
    groups: list[str]
    strata: npt.NDArray[np.int64]
    grouped: bool

    def without(self, dropped: set[str]) -> _Samples:
        """Those not of these groups."""
        rows = [row for row, group in enumerate(self.groups) if group not in dropped]
        ids, groups = ([names[row] for row in rows] for names in (self.ids, self.groups))
        return _Samples(ids, groups, self.strata[rows], self.grouped)

    def parts(self, sizes: Sequence[int], *names: int | str) -> dict[str, int]:
        """Deal the groups into parts of `sizes` groups each, at random and evenly over the strata.

        Groups of one (most frequent) stratum stand side by side in random order and the parts take turns, so
        that each stratum is divided to within one group. Where groups are unequal, two random groups then
        change places as often as that makes the parts' shares of all strata more even.
        """
        groups, row = np.unique(np.array(self.groups, dtype=object), return_inverse=True)
        counts = np.zeros((len(groups), int(self.strata.max()) + 1))
        np.add.at(counts, (row, self.strata), 1)
        random = generator(*names)
        turn = np.concatenate([(np.arange(size) + random.random()) / size for size in sizes])
        owner = np.repeat(np.arange(len(sizes)), sizes)[np.argsort(turn, kind="stable")]
        part = np.empty(len(groups), dtype=np.int64)
        part[np.lexsort((random.random(len(groups)), counts.argmax(axis=1)))] = owner
        if self.grouped:
            _even_out(part, counts / np.maximum(counts.sum(axis=0), 1), sizes, random)
        return dict(zip(groups.tolist(), part.tolist(), strict=True))


def _codes(strata: Strata, n: int) -> npt.NDArray[np.int64]:
    """Stratum of each sample: text as it is, numbers by quantile, what is missing by itself."""
    if strata is None:
        return np.zeros(n, dtype=np.int64)
    if isinstance(strata, np.ndarray):
        present = strata[~np.isnan(strata)]
        edges = np.quantile(present, np.arange(1, QUANTILES) / QUANTILES) if present.size else present
        strata = [None if np.isnan(x) else f"{np.searchsorted(edges, x, side='right')}" for x in strata]
    names = sorted({each for each in strata if each is not None})
    place = {name: code for code, name in enumerate(names)}
    return np.array([len(names) if each is None else place[each] for each in strata])


def _sorted(ids: Sequence[str], groups: Sequence[str | None] | None, strata: Strata) -> _Samples:
    """Samples sorted by id; without `groups` each is its own group."""
    if repeated := sorted(name for name, times in Counter(ids).items() if times > 1):
        raise InputError(f"split: samples occur more than once: {shown(repeated)}")
    if not ids:
        raise InputError("split: no samples to divide")
    order = sorted(range(len(ids)), key=ids.__getitem__)
    named = [(ids[row], ids[row] if groups is None else groups[row]) for row in order]
    if lost := [sample for sample, group in named if group is None]:
        raise InputError(
            f"split: {len(lost)} samples have no value in --group-column: {shown(lost)}; fill them in, or "
            "leave these samples out with --missing drop"
        )
    codes = _codes(strata, len(ids))[order]
    if codes.max() >= MAX_STRATA:
        raise InputError(f"split: {codes.max() + 1} strata, expected at most {MAX_STRATA}")
    groups_of = [str(group) for _, group in named]
    return _Samples([sample for sample, _ in named], groups_of, codes, groups is not None)


def _even_out(
    part: npt.NDArray[np.int64], shares: npt.NDArray[np.float64], sizes: Sequence[int], random: np.random.Generator
) -> None:
    """Exchange groups between parts, in place, while the squared excess of the strata's shares falls."""
    expected = np.array(sizes)[:, None] / len(part)
    excess = np.repeat(-expected, shares.shape[1], axis=1)
    np.add.at(excess, part, shares)
    for one, other in random.integers(len(part), size=(SWAPS, 2)).tolist():
        a, b = part[one], part[other]
        moved = shares[other] - shares[one]
        after_a, after_b = excess[a] + moved, excess[b] - moved
        change = (after_a**2 - excess[a] ** 2) / expected[a] + (after_b**2 - excess[b] ** 2) / expected[b]
        if a != b and change.sum() < -1e-12:
            part[one], part[other] = b, a
            excess[a], excess[b] = after_a, after_b


def _held_out(samples: _Samples, share: float, option: str, *names: int | str) -> set[str]:
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
    part = samples.parts([total - size, size], *names) if size else {}
    return {group for group, place in part.items() if place == 1}


def _divided(samples: _Samples, test: set[str], folds: dict[str, str], share: float, seed: int) -> Split:
    """The split whose test groups are `test`, with validation carved from the other groups."""
    fold = folds[min(test)] if folds else ""
    names = (seed, "split", "validation", fold)
    validation = _held_out(samples.without(test), share, "--validation-size", *names)
    side: dict[str, Side] = {**dict.fromkeys(validation, "validation"), **dict.fromkeys(test, "test")}
    sides = tuple(side.get(group, "train") for group in samples.groups)
    return Split(tuple(samples.ids), sides, tuple(folds.get(group, "") for group in samples.groups))


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

    `groups` (subject, study) and `strata` (class, or number that is cut into quantiles, to be spread evenly
    over the sides) belong to the samples; without `groups` each sample is one. `test_size` is the share of
    the groups that tests, `validation_size` that of the remaining ones that validates.

    Raises `InputError`: a share that is none or leaves a side empty, samples without a group, duplicate ids.
    """
    samples = _sorted(ids, groups, strata)
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
    """Hold out the samples whose fold is `test_fold` and carve validation from the others, as `make_split`.

    Raises `InputError`: samples without a fold, a fold that does not exist, groups that lie in several folds.
    """
    samples = _sorted(ids, groups, strata)
    fold_of = dict(zip(ids, fold_values, strict=True))
    if lost := [sample for sample in samples.ids if fold_of[sample] is None]:
        raise InputError(
            f"split: {len(lost)} samples have no value in the fold column: {shown(lost)}; fill them in, or "
            "leave these samples out with --missing drop"
        )
    found: dict[str, set[str]] = {}
    for sample, group in zip(samples.ids, samples.groups, strict=True):
        found.setdefault(group, set()).add(str(fold_of[sample]))
    if crossing := sorted(group for group, folds in found.items() if len(folds) > 1):
        raise InputError(
            f"split: {len(crossing)} of {len(found)} groups lie in several folds and would be trained on and "
            f"tested: {shown(crossing)}, e.g. {crossing[0]!r} in folds {shown(sorted(found[crossing[0]]))}; "
            "give each group one fold, or choose another --group-column"
        )
    folds = {group: min(values) for group, values in found.items()}
    present = sorted(set(folds.values()))
    if test_fold not in present or len(present) < 2:
        expected = f"expected --test-fold {test_fold!r} and another"
        raise InputError(f"split: folds are {shown(present, 20)}, {expected}")
    test = {group for group, fold in folds.items() if fold == test_fold}
    return _divided(samples, test, folds, validation_size, seed)


def kfold(
    ids: Sequence[str],
    k: int,
    groups: Sequence[str | None] | None = None,
    strata: Strata = None,
    validation_size: float = 0.15,
    *,
    seed: int,
) -> list[Split]:
    """Deal the groups into folds ``"0"`` to ``"k-1"``; split i tests fold i; parameters as `make_split`.

    Raises `InputError`: `k` below 2 or above the number of groups, or as `make_split`.
    """
    samples = _sorted(ids, groups, strata)
    total = len(set(samples.groups))
    if not 2 <= k <= total:
        kind = "groups" if samples.grouped else "samples"
        raise InputError(f"--cv is {k}, expected 2 to {total}, the number of {kind}")
    sizes = [total // k + (fold < total % k) for fold in range(k)]
    part = samples.parts(sizes, seed, "split", "folds", k)
    folds = {group: str(place) for group, place in part.items()}
    tests = [{group for group, place in part.items() if place == fold} for fold in range(k)]
    return [_divided(samples, test, folds, validation_size, seed) for test in tests]


def check_groups(split: Split, groups: Mapping[str, str | None]) -> None:
    """Refuse a split that has samples of one group on two sides; `groups` maps sample id to group."""
    sides: dict[str, set[str]] = {}
    for sample, side in zip(split.sample_ids, split.sides, strict=True):
        group = groups.get(sample)
        if group is not None:
            sides.setdefault(group, set()).add(side)
    if leaking := sorted(group for group, found in sides.items() if len(found) > 1):
        raise InputError(
            f"split: {len(leaking)} of {len(sides)} groups stand on two sides: {shown(leaking)}, e.g. "
            f"{leaking[0]!r} on {shown(sorted(sides[leaking[0]]))}; make the split with this --group-column"
        )


def twins_apart(table: SampleTable, split: Split) -> tuple[str, ...]:
    """What is said of samples with the very same reads, under different ids, that stand on both sides of a split."""
    held_out, found = set(split.held_out), dict[bytes, list[str]]()
    for row, name in enumerate(table.sample_ids):
        columns, reads = table.row(row)
        found.setdefault(columns.tobytes() + reads.tobytes(), []).append(name)
    apart = [same for same in found.values() if 0 < len(held_out.intersection(same)) < len(same)]
    if not apart:
        return ()
    fold = f" of fold {split.test_fold}" if split.test_fold else ""
    return (
        f"{sum(len(held_out.intersection(same)) for same in apart)} held-out samples{fold} have the very reads of "
        f"others that were learned from: {shown(apart[0])}; one sample under two ids? --group-column keeps it together",
    )


def restricted(split: Split, sample_ids: Sequence[str]) -> Split:
    """The split of the samples that a table has; those that only the split names are left out.

    Raises `InputError`: the split does not name a sample, or a side of it would be empty.
    """
    wanted = set(sample_ids)
    if absent := sorted(wanted.difference(split.sample_ids)):
        raise InputError(
            f"split: {len(absent)} of {len(wanted)} samples are not in it: {shown(absent)}; add them to "
            "split.tsv or make a new split"
        )
    rows = [row for row in zip(split.sample_ids, split.sides, split.folds, strict=True) if row[0] in wanted]
    if empty := [side for side in SIDES if side in split.sides and side not in {row[1] for row in rows}]:
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

    Raises `InputError`: another header, a row of another length, an unknown side, empty or duplicate ids,
    folds for some samples only, no training samples.
    """
    problems = Problems()
    rows: dict[str, tuple[Side, str]] = {}
    for number, (line, cells) in enumerate(parse_rows(decoded(read_bytes(path), path), path)):
        if len(problems.messages) == MOST_PROBLEMS:
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
            both = shown(sorted({cells[1], rows.get(cells[0], (cells[1], ""))[0]}))
            problems.add(f"{where}: sample-id {cells[0]!r} is empty or stands there twice, on the side {both}")
        else:
            rows[cells[0]] = (next(side for side in SIDES if side == cells[1]), cells[2])
    folded = [sample for sample, (_, fold) in rows.items() if fold]
    if folded and len(folded) < len(rows):
        problems.add(f"{path}: {len(rows) - len(folded)} samples have no fold and {len(folded)} have one")
    if not problems.messages and all(side != "train" for side, _ in rows.values()):
        problems.add(f"{path}: {len(rows)} samples and none on the side 'train'")
    problems.raise_if_any()
    ids = sorted(rows)
    return Split(tuple(ids), tuple(rows[name][0] for name in ids), tuple(rows[name][1] for name in ids))


def read_sides(train: Path, test: Path) -> Split:
    """The split of two files of sample ids, one per line; `InputError` where one is empty or they share a sample."""
    lines = [decoded(read_bytes(path), path).split("\n") for path in (train, test)]
    learned, held_out = ({line.strip() for line in each} - {""} for each in lines)
    problems = [f"{path}: no sample id in it" for path, ids in ((train, learned), (test, held_out)) if not ids]
    if both := sorted(learned & held_out):
        problems.append(f"{train} and {test}: {len(both)} samples are in both, expected none: {shown(both)}")
    if problems:
        raise InputError(*problems)
    ids = tuple(sorted(learned | held_out))
    return Split(ids, tuple("test" if name in held_out else "train" for name in ids), ("",) * len(ids))
