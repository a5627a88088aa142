"""Splits: which samples train, validate and test, whole groups at a time; in files, and as options
ask for them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from aam.config import DataConfig
from aam.device.rng import generator
from aam.errors import InputError, Problems, shown
from aam.files.atomic import write_text
from aam.io.ids import difference
from aam.io.metadata import Metadata
from aam.io.tables import AmpliconTable
from aam.io.text import read_header, read_text, until_full

if TYPE_CHECKING:
    from aam.data.study import Study

Subset = Literal["train", "validation", "test"]

Strata = Sequence[str | None] | npt.NDArray[np.float64] | None

SUBSETS: tuple[Subset, ...] = ("train", "validation", "test")

# Numeric strata are quintiles, or single values of which there are no more; columns of more classes
# are not spread over the subsets.
QUANTILES, MOST_STRATA = 5, 100

# Exchanges tried between parts of unequal groups. Five folds of the 248 fish of `mackerel-type`
# hold a fifth of each type to within 0.008; the best of 100 random divisions holds it to within
# 0.033.
SWAPS = 2000

# Share of the groups that is held out by default, and the minimum number of groups for it.
DEFAULT_TEST_SHARE, LEAST_GROUPS_FOR_TEST = 0.2, 30

# Folds that name a folder as they are.
FOLDER_NAME = re.compile(r"(?!\.)[\w.,+=-]([\w.,+= -]{0,98}[\w.,+=-])?")

# The second column kept its name when the word for its values became subset.
HEADER = ["sample-id", "side", "fold"]

log = logging.getLogger("aam")


@dataclass(frozen=True)
class Split:
    """The subset of each sample: sorted ids, the subset of each, and the fold that tests it or
    ''.
    """

    sample_ids: tuple[str, ...]
    subsets: tuple[Subset, ...]
    folds: tuple[str, ...]

    def ids(self, subset: Subset) -> tuple[str, ...]:
        """Return the samples of one subset, sorted."""
        return tuple(
            sample
            for sample, name in zip(self.sample_ids, self.subsets, strict=True)
            if name == subset
        )

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
        """The fold that is the test subset; empty text without folds or without a test subset."""
        return next(
            (fold for fold, name in zip(self.folds, self.subsets, strict=True) if name == "test"),
            "",
        )


@dataclass(frozen=True)
class _Samples:
    """Sorted samples with their group and, as numbers from 0, their stratum."""

    ids: list[str]
    groups: list[str]
    strata: npt.NDArray[np.int64]
    kind: str = "samples"

    @classmethod
    def of(cls, ids: Sequence[str], groups: Sequence[str] | None, strata: Strata) -> _Samples:
        """Return the samples sorted by id; without `groups` each is its own group."""
        if repeated := sorted(name for name, times in Counter(ids).items() if times > 1):
            raise InputError(f"split: samples occur more than once: {shown(repeated)}")
        if not ids:
            raise InputError("split: no samples to divide")
        order = sorted(range(len(ids)), key=ids.__getitem__)
        own, kind = (ids, "samples") if groups is None else (groups, "groups")
        names = [ids[row] for row in order]
        return cls(names, [own[row] for row in order], _codes(strata, len(ids))[order], kind)

    def without(self, dropped: set[str]) -> _Samples:
        """Return the samples that are not of these groups."""
        rows = [row for row, group in enumerate(self.groups) if group not in dropped]
        ids, groups = ([names[row] for row in rows] for names in (self.ids, self.groups))
        return replace(self, ids=ids, groups=groups, strata=self.strata[rows])

    def parts(self, sizes: Sequence[int], *names: int | str) -> dict[str, int]:
        """Deal the groups into parts of `sizes` groups each, at random and evenly over the strata.

        Groups of one (most frequent) stratum stand side by side in random order and the parts take
        turns, so that each stratum is divided to within one group. Where groups are unequal, two
        random groups then change places as often as that makes the parts' shares of all strata more
        even.
        """
        groups, row = np.unique(np.array(self.groups, dtype=object), return_inverse=True)
        counts = np.zeros((len(groups), int(self.strata.max()) + 1))
        np.add.at(counts, (row, self.strata), 1)
        random = generator(*names)
        turn = np.concatenate([(np.arange(size) + random.random()) / size for size in sizes])
        owner = np.repeat(np.arange(len(sizes)), sizes)[np.argsort(turn, kind="stable")]
        part = np.empty(len(groups), dtype=np.int64)
        part[np.lexsort((random.random(len(groups)), counts.argmax(axis=1)))] = owner
        if self.kind == "groups":
            _even_out(part, counts / np.maximum(counts.sum(axis=0), 1), sizes, random)
        return dict(zip(groups.tolist(), part.tolist(), strict=True))

    def held_out(self, share: float, option: str, *names: int | str) -> set[str]:
        """Return the groups that are held out: `share` of them, at least one where it is above 0,
        and never all.
        """
        if not 0 <= share < 1:
            raise InputError(f"{option} is {share}, expected a share from 0 to below 1")
        total = len(set(self.groups))
        size = max(1, int(share * total + 0.5)) if share > 0 else 0
        if size >= total:
            raise InputError(
                f"split: {option} {share} takes {size} of {total} {self.kind} and leaves none to "
                f"train on; pass a smaller {option}, 0 for none, or another --group-column"
            )
        part = self.parts([total - size, size], *names) if size else {}
        return {group for group, place in part.items() if place == 1}

    def split(self, test: set[str], folds: dict[str, str], share: float, seed: int) -> Split:
        """Return the split whose test groups are `test`, with validation carved from the others."""
        names = (seed, "split", "validation", folds[min(test)] if folds else "")
        validation = self.without(test).held_out(share, "--validation-size", *names)
        subset_of: dict[str, Subset] = {
            **dict.fromkeys(validation, "validation"),
            **dict.fromkeys(test, "test"),
        }
        subsets = tuple(subset_of.get(group, "train") for group in self.groups)
        return Split(tuple(self.ids), subsets, tuple(folds.get(name, "") for name in self.groups))


def _codes(strata: Strata, n: int) -> npt.NDArray[np.int64]:
    """Return the stratum of each sample: one per text, numbers by quantile, missing values by
    themselves.
    """
    if strata is None:
        return np.zeros(n, dtype=np.int64)
    if isinstance(strata, np.ndarray):
        levels = np.unique(present := strata[~np.isnan(strata)])
        edges = levels[1:]
        if len(levels) > QUANTILES:
            edges = np.quantile(present, np.arange(1, QUANTILES) / QUANTILES)
        strata = [
            None if np.isnan(x) else f"{np.searchsorted(edges, x, side='right')}" for x in strata
        ]
    code_of = {name: code for code, name in enumerate(sorted({*strata} - {None}, key=str))}
    return np.array([code_of.get(stratum, len(code_of)) for stratum in strata])


def _even_out(
    part: npt.NDArray[np.int64],
    shares: npt.NDArray[np.float64],
    sizes: Sequence[int],
    random: np.random.Generator,
) -> None:
    """Exchange groups between parts, in place, while the squared excess of the strata's shares
    falls.
    """
    expected = np.array(sizes)[:, None] / len(part)
    excess = np.repeat(-expected, shares.shape[1], axis=1)
    np.add.at(excess, part, shares)
    for first, second in random.integers(len(part), size=(SWAPS, 2)).tolist():
        a, b = part[first], part[second]
        moved = shares[second] - shares[first]
        after_a, after_b = excess[a] + moved, excess[b] - moved
        change = (after_a**2 - excess[a] ** 2) / expected[a] + (
            after_b**2 - excess[b] ** 2
        ) / expected[b]
        if a != b and change.sum() < -1e-12:
            part[first], part[second] = b, a
            excess[a], excess[b] = after_a, after_b


def make_split(
    ids: Sequence[str],
    *,
    groups: Sequence[str] | None = None,
    strata: Strata = None,
    test_size: float = 0.0,
    validation_size: float = 0.15,
    seed: int,
) -> Split:
    """Divide samples at random, whole groups at a time; the order of `ids` changes nothing.

    `groups` (subject, study) and `strata` (class, or number that is cut into quantiles, to be
    spread evenly over the subsets) belong to the samples; without `groups` each sample is one.
    `test_size` is the share of the groups that tests, `validation_size` that of the remaining ones
    that validates.

    Raises `InputError`: a share outside 0 to 1 or that leaves a subset empty, duplicate ids.
    """
    samples = _Samples.of(ids, groups, strata)
    test = samples.held_out(test_size, "--test-size", seed, "split", "test")
    return samples.split(test, {}, validation_size, seed)


def _scattered(
    groups: Iterable[str | None], parts: Iterable[str]
) -> tuple[dict[str, set[str]], list[str]]:
    """Return the parts that samples of each group, where they have one, are in, and the groups that
    are in several.
    """
    parts_of: dict[str, set[str]] = {}
    for group, part in zip(groups, parts, strict=True):
        if group is not None:
            parts_of.setdefault(group, set()).add(part)
    return parts_of, sorted(group for group, names in parts_of.items() if len(names) > 1)


def from_column(
    ids: Sequence[str],
    fold_values: Sequence[str],
    test_fold: str,
    groups: Sequence[str] | None = None,
    validation_size: float = 0.15,
    *,
    strata: Strata = None,
    seed: int,
) -> Split:
    """Hold out the samples whose fold is `test_fold` and carve validation from the others, as
    `make_split`.

    Raises `InputError`: a fold that does not exist, groups that lie in several folds.
    """
    samples = _Samples.of(ids, groups, strata)
    fold_of = dict(zip(ids, fold_values, strict=True))
    folds_of, crossing = _scattered(samples.groups, (fold_of[name] for name in samples.ids))
    if crossing:
        raise InputError(
            f"split: {len(crossing)} of {len(folds_of)} groups lie in several folds and would be "
            f"trained on and tested: {shown(crossing)}, e.g. {crossing[0]!r} in folds "
            f"{shown(sorted(folds_of[crossing[0]]))}; give each group one fold, or name the column "
            "of the folds as --group-column (unset, it is --study-column) too"
        )
    folds = {group: min(values) for group, values in folds_of.items()}
    present = sorted(set(folds.values()))
    if len(present) < 2:
        raise InputError(
            f"split: all samples are in fold {shown(present)}, expected two folds or more; name "
            "another column by --cv or --split-column (unset, it is --study-column)"
        )
    if test_fold not in present:
        raise InputError(
            f"split: folds are {shown(present, 20)}, expected --test-fold {test_fold!r} among them"
        )
    test = {group for group, fold in folds.items() if fold == test_fold}
    return samples.split(test, folds, validation_size, seed)


def kfold(
    ids: Sequence[str],
    k: int,
    groups: Sequence[str] | None = None,
    strata: Strata = None,
    validation_size: float = 0.15,
    *,
    seed: int,
) -> list[Split]:
    """Deal the groups into folds ``"0"`` to ``"k-1"``; split i tests fold i; parameters as
    `make_split`.

    Raises `InputError`: `k` below 2 or above the number of groups, or as `make_split`.
    """
    samples = _Samples.of(ids, groups, strata)
    total = len(set(samples.groups))
    if not 2 <= k <= total:
        raise InputError(f"--cv is {k}, expected 2 to {total}, the number of {samples.kind}")
    sizes = [total // k + (fold < total % k) for fold in range(k)]
    part = samples.parts(sizes, seed, "split", "folds", k)
    folds = {group: str(place) for group, place in part.items()}
    tests = [{group for group, place in part.items() if place == fold} for fold in range(k)]
    return [samples.split(test, folds, validation_size, seed) for test in tests]


def check_groups(split: Split, groups: Mapping[str, str | None]) -> None:
    """Refuse a split that has samples of one group in two subsets; `groups` maps sample id to
    group.
    """
    subsets, leaking = _scattered(map(groups.get, split.sample_ids), split.subsets)
    if leaking:
        raise InputError(
            f"split: {len(leaking)} of {len(subsets)} groups stand in two subsets: "
            f"{shown(leaking)}, e.g. {leaking[0]!r} in {shown(sorted(subsets[leaking[0]]))}; make "
            "the split with this --group-column"
        )


def restricted(split: Split, sample_ids: Sequence[str]) -> Split:
    """Return the split of the samples that a table has, without those that only the split names.

    Raises `InputError`: the split does not name a sample, or a subset of it would be empty.
    """
    wanted = set(sample_ids)
    if absent := sorted(wanted.difference(split.sample_ids)):
        raise InputError(
            f"split: {len(absent)} of {len(wanted)} samples are not in it: {shown(absent)}"
            f"{difference(wanted, split.sample_ids)}; add them to split.tsv or make a new split"
        )
    rows = zip(split.sample_ids, split.subsets, split.folds, strict=True)
    ids, subsets, folds = zip(*(row for row in rows if row[0] in wanted), strict=True)
    if empty := [subset for subset in SUBSETS if subset in {*split.subsets} - {*subsets}]:
        of_fold = f" of fold {split.test_fold!r}" if split.test_fold else ""
        raise InputError(
            f"split: none of the {len(wanted)} samples is in the subset {shown(empty)}{of_fold}; "
            "lower --rarefy-depth if it dropped them, or make a new split"
        )
    return Split(ids, subsets, folds)


def write_split(path: Path, split: Split) -> None:
    """Write split.tsv: sample-id, side, fold; one row per sample, sorted."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, dialect="excel-tab", lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(zip(split.sample_ids, split.subsets, split.folds, strict=True))
    write_text(path, text.getvalue())


def read_split(path: Path) -> Split:
    """Read a split that `write_split` wrote.

    Raises `InputError`: another header, a row of another length, an unknown subset, empty or
    duplicate ids, folds for some samples only, no training samples.
    """
    problems, rows = Problems(), dict[str, tuple[Subset, str]]()
    subset_of = {str(subset): subset for subset in SUBSETS}
    header, body = read_header(read_text(path), path, f"the header {HEADER}")
    if header != HEADER:
        raise InputError(f"{path}: the header is {header}, expected {HEADER}, separated by tabs")
    for line, cells in until_full(body, problems):
        where = f"{path}: line {line}"
        if len(cells) != len(HEADER):
            problems.add(f"{where}: {len(cells)} cells, expected {len(HEADER)}")
        elif cells[1] not in SUBSETS:
            problems.add(f"{where}: side is {cells[1]!r}, expected {' or '.join(SUBSETS)}")
        elif not cells[0] or cells[0] in rows:
            problems.add(f"{where}: sample-id {cells[0]!r} is empty or occurs twice")
        else:
            rows[cells[0]] = subset_of[cells[1]], cells[2]
    folded = sum(fold != "" for _, fold in rows.values())
    if 0 < folded < len(rows):
        problems.add(f"{path}: {len(rows) - folded} samples have no fold and {folded} have one")
    if not problems.messages and all(subset != "train" for subset, _ in rows.values()):
        problems.add(f"{path}: {len(rows)} samples and none with the side 'train'")
    problems.raise_if_any()
    ids = tuple(sorted(rows))
    return Split(ids, tuple(rows[name][0] for name in ids), tuple(rows[name][1] for name in ids))


def fold_folder(fold: str) -> str:
    """Return the name of the folder of a fold: ``fold-FOLD``, made safe where FOLD holds marks that
    do not belong in a path, and then told apart from others by a hash.
    """
    if FOLDER_NAME.fullmatch(fold):
        return f"fold-{fold}"
    plain = re.sub(r"[^\w.,+=-]+", "_", fold).strip("._")[:60]
    return f"fold-{plain}-{hashlib.sha256(fold.encode()).hexdigest()[:6]}"


def fold_column(data: DataConfig) -> str | None:
    """Return the metadata column that holds the folds, if one does."""
    return data.split_column if data.cv is None else None if data.cv.isdigit() else data.cv


def split_columns(data: DataConfig) -> list[str]:
    """Return the metadata columns in which every sample needs a value for splits and reports."""
    columns = (data.study_column, data.batch_column, fold_column(data))
    return [name for name in columns if name is not None]


def _folds_of(metadata: Metadata, column: str, ids: Sequence[str]) -> list[str]:
    """Return the fold of each sample; `InputError` for samples without one."""
    folds = metadata.values(column, ids)
    if missing := [name for name, fold in zip(ids, folds, strict=True) if fold is None]:
        raise InputError(
            f"{metadata.source}: {len(missing)} of {len(folds)} samples have no value in --cv or "
            f"--split-column {column}: {shown(missing)}; fill them in, leave these samples out, or "
            "name another column"
        )
    return [fold for fold in folds if fold is not None]


def _strata(
    metadata: Metadata, target: str, ids: Sequence[str], classes: Collection[str]
) -> Strata:
    """Classes or numbers of a target, which are spread evenly over the subsets."""
    if target not in classes and metadata.kinds[target] == "numeric":
        return metadata.numbers(target, ids)
    labels = metadata.values(target, ids)
    return labels if len(set(labels)) <= MOST_STRATA else None


def split_samples(
    metadata: Metadata | None,
    data: DataConfig,
    ids: Sequence[str],
    seed: int,
    target: str | None = None,
    classes: Collection[str] = (),
) -> tuple[Split, ...]:
    """Divide the samples `ids`: one split, or one for each fold. A split file is returned as it was
    written. What is drawn is spread evenly over `target`: its quintiles or, where it is one of the
    columns of `classes` or text, its classes.

    Raises
    ------
    InputError
        The options cannot divide these samples.
    """
    groups = strata = None
    if metadata is not None and data.group_column is not None:
        groups = metadata.groups(data.group_column, ids)
    if metadata is not None and target is not None:
        strata = _strata(metadata, target, ids, classes)
    if data.split is not None:
        split = read_split(data.split)
        if groups is not None:
            check_groups(split, dict(zip(ids, groups, strict=True)))
        return (split,)
    column, size = fold_column(data), data.validation_size
    if column is not None and metadata is not None:
        folds = _folds_of(metadata, column, ids)
        tested = sorted(set(folds)) if data.cv else [str(data.test_fold)]
        return tuple(
            from_column(ids, folds, fold, groups, size, strata=strata, seed=seed) for fold in tested
        )
    if data.cv is not None:
        return tuple(kfold(ids, int(data.cv), groups, strata, size, seed=seed))
    share = data.test_size
    if share is None:
        enough = len(set(groups or ids)) >= LEAST_GROUPS_FOR_TEST
        share = DEFAULT_TEST_SHARE if enough else 0.0
    split = make_split(
        ids, groups=groups, strata=strata, test_size=share, validation_size=size, seed=seed
    )
    return (split,)


def make_splits(study: Study, data: DataConfig, seed: int) -> tuple[Split, ...]:
    """Return the split of the study's samples, or one for each fold.

    Samples are divided before those below the rarefaction depth are dropped, so that the depth may
    follow the labels of training samples and the test samples do not depend on the depth.

    Raises
    ------
    InputError
        The options cannot divide these samples, or the depth dropped a whole subset.
    """
    splits = _split_study(study, data, seed)
    named = set() if data.split is None else {*read_split(data.split).sample_ids}
    if absent := sorted(named.difference(study.selection.of_file)):
        log.warning(
            "warning: %s: %d of %d samples are not in the table: %s",
            *(data.split, len(absent), len(named), shown(absent)),
        )
    if all(x is None for x in (data.test_size, data.cv, data.split_column, data.split)):
        tested = len(splits[0].ids("test"))
        says = f"{tested} samples are held out as the test subset"
        says = says if tested else "no sample is held out for a test"
        log.info("%s; --test-size sets its share, --cv tests every sample", says)
    return splits


def _split_study(study: Study, data: DataConfig, seed: int) -> tuple[Split, ...]:
    """Return the splits of the samples that reach the depth.

    Where too few samples reach it, these only are divided, or without a validation subset, so that
    no subset is empty and every class has two training samples.
    """
    ids, size = study.table.sample_ids, data.validation_size
    target, classes = study.selection.target, study.selection.classes
    choices = [(study.selection.aligned or ids, size)]
    if data.split is None and fold_column(data) is None:
        choices += [(ids, size), (ids, 0.0)]
    found, errors = list[tuple[Split, ...]](), list[InputError]()
    for samples, validation_size in choices:
        asked = replace(data, validation_size=validation_size)
        try:
            splits = split_samples(study.metadata, asked, samples, seed, target, classes)
            found.append(tuple(restricted(split, ids) for split in splits))
        except InputError as error:
            errors.append(error)
            continue
        by_folds = data.cv is not None
        if all(_can_be_learned(split, classes, by_folds) for split in found[-1]):
            if len(found) + len(errors) > 1:
                without = "" if validation_size or not size else ", without a validation subset"
                log.info(
                    "the split is drawn again for the %d samples that reach the depth%s",
                    *(len(ids), without),
                )
            return found[-1]
    # What cannot be learned is said where it is fitted.
    if not found:
        raise errors[0]
    return found[-1]


def _can_be_learned(
    split: Split, classes: Mapping[str, Mapping[str, str | None]], by_folds: bool
) -> bool:
    """Return whether every class has two training samples; without folds, the labels of test
    samples decide nothing.
    """
    asked = set(split.sample_ids if by_folds else split.ids("train") + split.ids("validation"))
    for label_of in classes.values():
        trained = Counter(label_of.get(sample) for sample in split.ids("train"))
        present = {label_of.get(sample) for sample in asked} - {None}
        if any(trained[label] < 2 for label in present):
            return False
    return True


# Two samples are nearly identical if this number of ASVs, and this share of the reads of the deeper
# sample, are equal in both.
EQUAL_ASVS, EQUAL_SHARE = 10, 0.9

# Only samples that share some of their most abundant ASVs, with the very number of reads, are
# looked at closely.
LOOKED_AT, SHARED = 10, 5

# Reads of an ASV that more samples have than this say nothing of two of them.
COMMON = 50


def duplicates_across_subsets(
    table: AmpliconTable, split: Split, group_column: str | None
) -> tuple[str, ...]:
    """Return a warning of samples with the same reads, or nearly, that are both held out and
    learned from.
    """
    held_out = set(split.held_out)
    across = [pair for pair in nearly_identical(table) if len(held_out.intersection(pair)) == 1]
    if not across:
        return ()
    fold = f" of fold {split.test_fold}" if split.test_fold else ""
    advice = "--group-column keeps it together"
    if group_column is not None:
        advice = f"give both the same value in the column of groups, {group_column!r}"
    number = len(held_out.intersection(name for pair in across for name in pair))
    return (
        f"{number} held-out samples{fold} have nearly the same reads as others that were learned "
        f"from: {shown(across[0])}; one sample under two ids? {advice}",
    )


def nearly_identical(table: AmpliconTable) -> list[tuple[str, str]]:
    """Return the pairs of samples whose reads are equal but for a tenth of them: of `EQUAL_ASVS`
    ASVs or more.

    A pair is found where `SHARED` of the `LOOKED_AT` most abundant ASVs of both have the same
    number of reads.
    """
    rows, keys = [], []
    for row in range(len(table)):
        columns, reads = table.row(row)
        top = np.argsort(-reads.astype(np.int64), kind="stable")[:LOOKED_AT]
        rows.append(np.full(len(top), row))
        keys.append(np.stack([columns[top], reads[top]], axis=1).astype(np.int64))
    _, key, times = np.unique(np.concatenate(keys), axis=0, return_inverse=True, return_counts=True)
    rare = times[key := key.ravel()] <= COMMON
    entries = (np.ones(rare.sum(), np.int8), (np.concatenate(rows)[rare], key[rare]))
    has = csr_array(entries, shape=(len(table), len(times)))
    shared = (has @ has.T).tocoo()
    found = (shared.data >= SHARED) & (shared.row < shared.col)
    names = table.sample_ids
    return [
        (names[first], names[second])
        for first, second in zip(
            shared.row[found].tolist(), shared.col[found].tolist(), strict=True
        )
        if _equal_but_for_a_tenth(table, first, second)
    ]


def _equal_but_for_a_tenth(table: AmpliconTable, first: int, second: int) -> bool:
    (columns, reads), (others, of_other) = table.row(first), table.row(second)
    _, at, there = np.intersect1d(columns, others, assume_unique=True, return_indices=True)
    equal = reads[at][reads[at] == of_other[there]]
    return (
        len(equal) >= EQUAL_ASVS
        and float(equal.sum()) >= EQUAL_SHARE * table.depths[[first, second]].max()
    )
