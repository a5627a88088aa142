"""Splits: the samples that train, validate and test, with whole groups in one subset; split.tsv."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from aam.config import DataConfig, number_of_folds
from aam.data.duplicates import duplicates_of
from aam.device.rng import generator
from aam.errors import InputError, problem, short, shown
from aam.files.atomic import write_text
from aam.io.ids import difference
from aam.io.metadata import Metadata
from aam.io.tables import AmpliconTable
from aam.io.text import read_table_text, read_text
from aam.typing import Floats, Ids, Ints, Rows

if TYPE_CHECKING:
    from aam.data.study import Study

Subset = Literal["train", "validation", "test"]
Groups = Sequence[str] | None
Strata = Sequence[str | None] | Floats | None


SUBSETS: tuple[Subset, ...] = ("train", "validation", "test")
# The second column holds the subset; its name "side" is kept for existing files.
SPLIT_HEADER = ["sample-id", "side", "fold"]

# Numeric strata are quintiles, or the values themselves if there are at most five. Columns of more
# than 100 classes are not spread over the subsets.
QUANTILES, MOST_STRATA = 5, 100
# Exchanges tried between parts of unequal groups. Five folds of the 248 fish of `mackerel-type`
# hold a fifth of each type to within 0.008; the best of 100 random divisions holds it to within
# 0.033.
SWAP_TRIALS = 2000
# Share of the groups that is held out by default, and the minimum number of groups for it.
DEFAULT_TEST_SHARE, LEAST_GROUPS_FOR_TEST = 0.2, 30
# Folds that name a folder without a change, if they have few bytes: file systems allow 255.
FOLDER_NAME = re.compile(r"(?!\.)[\w.,+=-]([\w.,+= -]{0,98}[\w.,+=-])?")
MOST_BYTES = 200

log = logging.getLogger("aam")


@dataclass(frozen=True)
class Split:
    """The subset of each sample, sorted by id, and the fold that tests it or ''."""

    sample_ids: tuple[str, ...]
    subsets: tuple[Subset, ...]
    folds: tuple[str, ...]

    def ids(self, subset: Subset) -> tuple[str, ...]:
        """Samples of one subset, sorted."""
        pairs = zip(self.sample_ids, self.subsets, strict=True)
        return tuple(sample for sample, name in pairs if name == subset)

    @property
    def held_out(self) -> tuple[str, ...]:
        """Samples that are reported: the test subset, else the validation subset."""
        return self.ids("test") or self.ids("validation")

    @property
    def not_held_out(self) -> tuple[str, ...]:
        """Samples that baselines learn from: those that are not held out."""
        return self.ids("train") + (self.ids("validation") if self.ids("test") else ())

    @property
    def test_fold(self) -> str:
        """The fold that is the test subset; '' without folds or without a test subset."""
        return "" if "test" not in self.subsets else self.folds[self.subsets.index("test")]


class _Samples:
    """Samples sorted by id, each with a group and a stratum, to be divided by groups."""

    def __init__(self, ids: Ids, groups: Groups, strata: Strata, seed: int) -> None:
        order = sorted(range(len(ids)), key=ids.__getitem__)
        self.kind, labels = ("samples", ids) if groups is None else ("groups", groups)
        self.ids, self.groups = ([names[row] for row in order] for names in (ids, labels))
        self.strata, self.seed = strata_codes(strata, len(ids))[order], seed

    def parts(self, rows: Rows, sizes: Sequence[int], *names: int | str) -> dict[str, int]:
        """Deal the groups at `rows` into parts of `sizes` groups, evenly over the strata.

        Groups of the same (most frequent) stratum stand next to each other in random order and the
        parts take turns, so that each stratum is divided to within one group. With a group column,
        two random groups then change places as long as that makes the parts' shares of all strata
        more even.
        """
        labels, strata = np.array(self.groups, dtype=object)[rows], self.strata[rows]
        groups, row = np.unique(labels, return_inverse=True)
        counts = np.zeros((len(groups), int(strata.max()) + 1))
        np.add.at(counts, (row, strata), 1)
        random = generator(self.seed, "split", *names)
        turn = np.concatenate([(np.arange(size) + random.random()) / size for size in sizes])
        owner = np.repeat(np.arange(len(sizes)), sizes)[np.argsort(turn, kind="stable")]
        part = np.empty(len(groups), dtype=np.int64)
        part[np.lexsort((random.random(len(groups)), counts.argmax(axis=1)))] = owner
        if self.kind == "groups":
            shares = counts / np.maximum(counts.sum(axis=0), 1)
            expected = np.array(sizes)[:, None] / len(part)
            excess = np.repeat(-expected, shares.shape[1], axis=1)
            np.add.at(excess, part, shares)
            for pair in random.integers(len(part), size=(SWAP_TRIALS, 2)):
                places = part[pair]
                step = shares[pair[1]] - shares[pair[0]]
                before, after = excess[places], excess[places] + [step, -step]
                change = ((after**2 - before**2) / expected[places]).sum(axis=0)
                if places[0] != places[1] and change.sum() < -1e-12:
                    part[pair], excess[places] = places[::-1], after
        return dict(zip(groups.tolist(), part.tolist(), strict=True))

    def draw(self, size: float, option: str, *names: str, apart: Collection[str] = ()) -> set[str]:
        """Draw a share of the groups but those `apart`: one or more if it is above 0, never all."""
        rows = np.flatnonzero([group not in apart for group in self.groups])
        total = len({self.groups[row] for row in rows})
        number = max(1, int(size * total + 0.5)) if size > 0 else 0
        if number >= total:
            fault = f"{option} {size} takes {number} of {total} {self.kind}"
            remedy = f"pass a smaller {option}, 0 for none, or another --group-column"
            fault += " and leaves none to train on"
            raise InputError(problem("split", fault, remedy=remedy))
        part = self.parts(rows, [total - number, number], *names) if number else {}
        return {group for group, place in part.items() if place == 1}

    def split(self, test: set[str], folds: dict[str, str], size: float) -> Split:
        """Make the split with the test groups `test`; draw validation from the other groups."""
        names = "validation", folds[min(test)] if folds else ""
        subset_of: dict[str, Subset] = dict.fromkeys(test, "test")
        for group in self.draw(size, "--validation-size", *names, apart=test):
            subset_of[group] = "validation"
        subsets = tuple(subset_of.get(group, "train") for group in self.groups)
        return Split(tuple(self.ids), subsets, tuple(folds.get(name, "") for name in self.groups))

    def split_of_fold(self, fold: str, folds: dict[str, str], size: float) -> Split:
        """Make the split that tests one of the `folds` of the groups."""
        return self.split({group for group, name in folds.items() if name == fold}, folds, size)


def strata_codes(strata: Strata, n: int) -> Ints:
    """Number the strata: each text, or each quantile of numbers; missing values come last."""
    if strata is None:
        return np.zeros(n, dtype=np.int64)
    values: npt.NDArray[np.generic] = np.array(strata, dtype=object)
    if isinstance(strata, np.ndarray):
        numbers = strata[~np.isnan(strata)]
        levels = np.unique(numbers)
        edges = levels[1:]
        if len(levels) > QUANTILES:
            edges = np.quantile(numbers, np.arange(1, QUANTILES) / QUANTILES)
        values = np.where(np.isnan(strata), np.nan, np.searchsorted(edges, strata, side="right"))
    codes, labels = pd.factorize(values, sort=True)
    return np.where(codes < 0, len(labels), codes)


def make_split(
    ids: Ids, sizes: tuple[float, float], seed: int, groups: Groups = None, strata: Strata = None
) -> Split:
    """Divide samples at random, whole groups at a time; the order of `ids` changes nothing.

    `groups` (subject, study) and `strata` (class, or number that is cut into quantiles, to be
    spread evenly over the subsets) belong to the samples; without `groups` each sample is one.
    `sizes` are the share of the groups that tests, and that of the others that validates.

    Raises `InputError`: a share outside 0 to 1 or that leaves a subset empty, duplicate ids.
    """
    samples = _Samples(ids, groups, strata, seed)
    return samples.split(samples.draw(sizes[0], "--test-size", "test"), {}, sizes[1])


def _part_of_group(groups: Iterable[str | None], parts: Iterable[str], kind: str) -> dict[str, str]:
    """Return the part of each group; refuse groups with samples in several parts."""
    by_group = pd.Series([*parts], dtype=object).groupby(pd.Series([*groups], dtype=object))
    parts_of: dict[str, set[str]] = by_group.agg(set).to_dict()
    if crossing := sorted(group for group, names in parts_of.items() if len(names) > 1):
        example = f"{crossing[0]!r} in {shown(sorted(parts_of[crossing[0]]))}"
        fault = f"{len(crossing)} of {len(parts_of)} groups are in several {kind}"
        remedy = "make the split with this --group-column, or by a column of whole groups"
        fault += f": {shown(crossing)}, e.g. {example}"
        raise InputError(problem("split", fault, remedy=remedy))
    return {group: min(names) for group, names in parts_of.items()}


def kfold(
    ids: Ids, k: int, groups: Groups = None, strata: Strata = None, size: float = 0.15, *, seed: int
) -> list[Split]:
    """Deal the groups into folds ``"0"`` to ``"k-1"``; split i tests fold i; parameters as
    `make_split`.

    Raises `InputError`: `k` below 2 or above the number of groups, or as `make_split`.
    """
    samples = _Samples(ids, groups, strata, seed)
    total = len(set(samples.groups))
    if not 2 <= k <= total:
        raise InputError(f"--cv is {k}, expected 2 to {total}, the number of {samples.kind}")
    parts = [total // k + (fold < total % k) for fold in range(k)]
    part = samples.parts(np.arange(len(ids)), parts, "folds", k)
    folds = {group: str(place) for group, place in part.items()}
    return [samples.split_of_fold(str(fold), folds, size) for fold in range(k)]


def check_groups(split: Split, groups: Mapping[str, str | None]) -> None:
    """Refuse a split with samples of a group in two subsets; `groups` maps sample id to group."""
    _part_of_group(map(groups.get, split.sample_ids), split.subsets, "subsets")


def restricted(split: Split, sample_ids: Sequence[str]) -> Split:
    """Restrict a split to the samples of a table; others were dropped.

    Raises `InputError`: the split does not name a sample, or a subset of it would be empty.
    """
    samples = set(sample_ids)
    if unknown := sorted(samples.difference(split.sample_ids)):
        listed = f"{shown(unknown)}{difference(samples, split.sample_ids)}"
        fault = f"{len(unknown)} of {len(samples)} samples are not in it: {listed}"
        raise InputError(
            problem("split", fault, remedy="add them to split.tsv or make a new split")
        )
    rows = zip(split.sample_ids, split.subsets, split.folds, strict=True)
    ids, subsets, folds = zip(*(row for row in rows if row[0] in samples), strict=True)
    if empty := [subset for subset in SUBSETS if subset in {*split.subsets} - {*subsets}]:
        where = shown(empty) + (f" of fold {shown([split.test_fold])}" if split.test_fold else "")
        fault = f"none of the {len(samples)} samples is in the subset {where}"
        remedy = "lower --rarefy-depth or merge classes if these dropped them, or make a new split"
        raise InputError(problem("split", fault, remedy=remedy))
    return Split(ids, subsets, folds)


def write_split(path: Path, split: Split) -> None:
    """Write split.tsv: sample-id, side, fold; one row per sample, sorted."""
    rows = zip(split.sample_ids, split.subsets, split.folds, strict=True)
    frame = pd.DataFrame(rows, columns=SPLIT_HEADER)
    write_text(path, frame.to_csv(sep="\t", index=False, lineterminator="\n"))


def read_split(path: Path) -> Split:
    """Read a split that `write_split` wrote.

    Raises `InputError`: another header, a row of another length, an unknown subset, empty or
    duplicate ids, no training samples.
    """
    table = read_table_text(read_text(path), path, f"the header {SPLIT_HEADER}")
    if table.header != SPLIT_HEADER:
        header = f"the header is {table.header}, expected {SPLIT_HEADER}, separated by tabs"
        raise InputError(f"{path}: {header}")
    subset_of = {str(subset): subset for subset in SUBSETS}
    faults, rows = table.faults, dict[str, tuple[Subset, str]]()
    for line, (name, side, fold) in table.rows():
        if side not in SUBSETS or not name or name in rows:
            expected = f"expected a new sample-id, a side ({', '.join(SUBSETS)}) and a fold"
            faults.add(expected, line, f"holds {[name, side, fold]}")
        else:
            rows[name] = subset_of[side], fold
    if 0 < (folded := sum(fold != "" for _, fold in rows.values())) < len(rows):
        folds = f"{len(rows) - folded} samples have no fold and {folded} have one"
        faults.add(f"{folds}, expected a fold for all samples or for none")
    faults.raise_if_any()
    if all(subset != "train" for subset, _ in rows.values()):
        raise InputError(f"{path}: {len(rows)} samples and none with the side 'train'")
    ids = tuple(sorted(rows))
    return Split(ids, tuple(rows[name][0] for name in ids), tuple(rows[name][1] for name in ids))


def fold_folder(fold: str) -> str:
    """Return the name of the folder of a fold: ``fold-FOLD``, or a safe name with a hash if FOLD
    has characters that do not belong in a path.
    """
    if FOLDER_NAME.fullmatch(fold) and len(os.fsencode(fold)) <= MOST_BYTES:
        return f"fold-{fold}"
    plain = re.sub(r"[^\w.,+=-]+", "_", fold).strip("._")[:60]
    return f"fold-{plain}-{hashlib.sha256(fold.encode()).hexdigest()[:6]}"


def fold_column(data: DataConfig) -> str | None:
    """Return the metadata column that holds the folds, if one does."""
    column = data.split_column if data.cv is None else data.cv
    return column if number_of_folds(data.cv) is None else None


def split_columns(data: DataConfig) -> list[str]:
    """Return the metadata columns in which every sample needs a value for splits and reports."""
    columns = (data.study_column, data.batch_column, fold_column(data))
    return [name for name in columns if name is not None]


def split_samples(
    study: Study, data: DataConfig, ids: Sequence[str], seed: int
) -> tuple[Split, ...]:
    """Divide the samples `ids` of a study: one split, or one for each fold. A split file is read
    without a change. What is drawn is spread evenly over the first target: its classes, or
    quintiles.

    Raises
    ------
    InputError
        The options cannot divide these samples.
    """
    metadata, target = study.metadata, study.target
    groups, strata = None, None
    if metadata is not None and data.group_column is not None:
        groups = metadata.groups(data.group_column, ids)
    if metadata is not None and target is not None:
        is_number = target not in study.class_columns
        strata = metadata.numbers(target, ids) if is_number else metadata.values(target, ids)
        strata = strata if is_number or len(set(strata)) <= MOST_STRATA else None
    if data.split is not None:
        split = read_split(data.split)
        if groups is not None:
            check_groups(split, dict(zip(ids, groups, strict=True)))
        return (split,)
    column, size = fold_column(data), data.validation_size
    if column is not None and metadata is not None:
        samples = _Samples(ids, groups, strata, seed)
        folds = _folds_of(metadata, column, samples)
        if data.cv is None:
            in_file = filter(None, metadata.values(column, study.samples.index))
            empty = {*in_file}.difference(folds.values())
            return (_split_by_column(samples, folds, data, empty),)
        return tuple(samples.split_of_fold(fold, folds, size) for fold in sorted({*folds.values()}))
    if (number := number_of_folds(data.cv)) is not None:
        return tuple(kfold(ids, number, groups, strata, size, seed=seed))
    has_test = len(set(groups or ids)) >= LEAST_GROUPS_FOR_TEST
    share = DEFAULT_TEST_SHARE * has_test if data.test_size is None else data.test_size
    return (make_split(ids, (share, size), seed, groups, strata),)


def _folds_of(metadata: Metadata, column: str, samples: _Samples) -> dict[str, str]:
    """Return the fold of each group by a metadata column; refuse samples without a fold, groups in
    several, and a single fold.
    """
    values = metadata.values(column, samples.ids)
    pairs = zip(samples.ids, values, strict=True)
    if without_fold := [name for name, fold in pairs if fold is None]:
        fault = f"{len(without_fold)} of {len(values)} samples have no value in --cv or "
        fault += f"--split-column {column}: {shown(without_fold)}"
        remedy = "fill them in, leave these samples out, or name another column"
        raise InputError(problem(metadata.source, fault, remedy=remedy))
    folds = _part_of_group(samples.groups, map(str, values), "folds")
    if len(names := set(folds.values())) < 2:
        remedy = "name another column by --cv or --split-column (unset, it is --study-column)"
        raise InputError(problem("split", f"all samples are in fold {shown(names)}", remedy=remedy))
    return folds


def _split_by_column(
    samples: _Samples, folds: dict[str, str], data: DataConfig, empty: set[str]
) -> Split:
    """Make the split by ``--split-column``: its values are subsets, or with ``--test-fold`` folds
    of which that is tested.

    All samples with the values `empty` were dropped.
    """
    names, fold, size = {*folds.values()}, data.test_fold, data.validation_size
    expected = f"the subsets {shown(SUBSETS)}, or --test-fold with one of them"
    if fold is not None:
        expected, empty = f"--test-fold {fold!r} among them", empty & {fold}
    if empty:
        fault = f"no sample of {data.split_column!r} {shown(sorted(empty))} is left"
        remedy = "name another fold or column, or merge classes"
        raise InputError(problem("split", fault, remedy=remedy))
    if fold not in names if fold is not None else not {"train"} < names <= {*SUBSETS}:
        raise InputError(problem("split", f"folds are {shown(sorted(names), 20)}", expected))
    if fold is not None:
        return samples.split_of_fold(fold, folds, size)
    if "validation" not in names:
        return samples.split({x for x, name in folds.items() if name == "test"}, {}, size)
    parts = tuple(
        subset for group in samples.groups for subset in SUBSETS if subset == folds[group]
    )
    return Split(tuple(samples.ids), parts, ("",) * len(parts))


def make_splits(study: Study, data: DataConfig, seed: int) -> tuple[Split, ...]:
    """Make the split of the study's samples, or one for each fold.

    Samples are divided before those below the rarefaction depth are dropped, so that the depth may
    follow the labels of training samples and the test samples do not depend on the depth. If too
    few samples reach it, only these are divided, or without a validation subset, so that no subset
    is empty and every class has two training samples.

    Raises
    ------
    InputError
        The options cannot divide these samples, or the depth dropped a whole subset.
    """
    ids, classes, size = study.table.sample_ids, study.classes, data.validation_size
    choices = [(study.aligned or ids, size), (ids, size), (ids, 0.0)]
    if data.split is not None or fold_column(data) is not None:
        choices = choices[:1]
    splits, errors, choice = tuple[Split, ...](), list[InputError](), choices[0]
    for samples, validation_size in choices:
        options = replace(data, validation_size=validation_size)
        try:
            drawn = split_samples(study, options, samples, seed)
            splits = tuple(restricted(split, ids) for split in drawn)
        except InputError as error:
            errors.append(error)
            continue
        choice = samples, validation_size
        if all(_can_be_learned(split, classes, data.cv is not None) for split in splits):
            break
    if not splits:
        raise errors[0]
    if choice != choices[0]:
        reason = "" if choice[1] or not size else ", without a validation subset"
        text = "the split is drawn again for the %d samples that reach the depth%s"
        log.info(text, len(ids), reason)
    if data.split is not None:
        names = read_split(data.split).sample_ids
        if unknown := sorted(set(names).difference(study.samples.index)):
            text = "warning: %s: %d of %d samples are not in the table: %s"
            log.warning(text, data.split, len(unknown), len(names), shown(unknown))
    elif all(x is None for x in (data.test_size, data.cv, data.split_column)):
        number = len(splits[0].ids("test")) or "no"
        text = "%s samples are held out as the test subset; --test-size sets its share, --cv tests"
        log.info(f"{text} every sample", number)
    return splits


def _can_be_learned(split: Split, classes: pd.DataFrame, by_folds: bool) -> bool:
    """Return whether every class has two training samples; without folds, the labels of test
    samples decide nothing.
    """
    ids = split.sample_ids if by_folds else split.ids("train") + split.ids("validation")
    return not [*_classes_of_few_samples(split, classes.reindex([*ids]))]


def _classes_of_few_samples(
    split: Split, classes: pd.DataFrame
) -> Iterator[tuple[str, str, pd.Index]]:
    """Yield column, label and samples of the classes with fewer than two training samples."""
    is_trained = classes.index.isin(split.ids("train"))
    for name, labels in classes.items():
        for label, rows in labels.groupby(labels):
            if is_trained[classes.index.get_indexer(rows.index)].sum() < 2:
                yield str(name), str(label), rows.index


def classes_not_learned(
    splits: Sequence[Split], classes: pd.DataFrame
) -> dict[str, dict[str, str]]:
    """Classes that a split leaves too few training samples of, and the reason, by column."""
    reasons = dict[str, dict[str, str]]()
    for split in splits:
        fold = f" where fold {short(split.test_fold)} is held out" if split.test_fold else ""
        few = _classes_of_few_samples(split, classes.reindex([*split.sample_ids]))
        for name, label, ids in few:
            reason = f"has fewer than 2 training samples{fold} ({shown(ids)})"
            reasons.setdefault(name, {}).setdefault(label, reason)
    return reasons


def duplicates_across_subsets(table: AmpliconTable, splits: Iterable[Split]) -> list[str]:
    """Say in one sentence how many samples are near duplicates of a sample across a split."""
    leaks, pairs = dict[str, tuple[str, str]](), duplicates_of(table)
    for split in splits:
        held_out = set(split.held_out)
        for pair in pairs:
            if len(names := held_out.intersection(pair)) == 1:
                leaks.setdefault(names.pop(), pair)
    if not leaks:
        return []
    example = shown(next(iter(leaks.values())))
    return [
        f"{len(leaks)} held-out samples are near duplicates of samples that were learned from, as "
        f"{example} are: one sample under two ids, or are subjects missing? give both the same "
        "value in --group-column"
    ]
