"""Labels: metadata columns as targets and covariates, all fitted on the training samples only."""

from __future__ import annotations

import logging
import math
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from aam.config import CovariateConfig, TargetConfig, Transform
from aam.errors import InputError, Problems, problem, short, shown
from aam.io.metadata import Metadata
from aam.io.text import is_number
from aam.typing import Array, Floats, Ids, Ints, Label, Number, PositiveNumber, Reals

log = logging.getLogger("aam")

TargetKind = Literal["numeric", "class"]
LOG: Transform = "log-zscore"

MAX_CLASSES = 100
# The truth of a sample whose class no training sample had: the model has no probability of it.
UNKNOWN_CLASS = -2
# A class of fewer groups cannot be learned in each fold and tested in another.
LEAST_GROUPS_OF_CLASS = 3
# Maximum number of classes that a message names.
MOST_NAMED = 5
# Maximum number of classes that are listed with their samples.
MOST_SHOWN = 20
# Below this share of the values' own size, a spread is rounding.
SMALLEST_SPREAD = 1e-12
# Rounding of a mean or a standard deviation, as a share of the values' range and size.
RANGE_ROUNDING = 1e-6


@dataclass(frozen=True)
class Scale:
    """An affine scale: encoded = (value - center) / spread."""

    center: Number = 0.0
    spread: PositiveNumber = 1.0

    def contradictions(self, low: float, high: float) -> Iterator[str]:
        """Say why numbers between two bounds cannot have this scale."""
        margin = RANGE_ROUNDING * (high - low + max(abs(low), abs(high)))
        if not low - margin <= self.center <= high + margin:
            yield f"its center is {self.center:g}, expected {low:g} to {high:g}"
        if self.spread > high - low + margin and high > low:
            yield f"its spread is {self.spread:g}, expected at most {high - low:g}"


@dataclass(frozen=True)
class TargetSpec:
    """One metadata column as a target, with what was fitted on the training samples.

    `labels` are the sorted classes as the metadata writes them; `scale` is that of the numbers, or
    of log(1 + x) for ``log-zscore``; `bounds` are the smallest and largest training number in own
    units.
    """

    name: Label
    kind: TargetKind
    labels: tuple[Label, ...] = ()
    transform: Transform = "none"
    scale: Scale = Scale()
    bounds: tuple[Number, Number] | None = None

    def contradictions(self) -> Iterator[str]:
        """Say why a model cannot have fitted these values together."""
        if self.kind == "class":
            if len(self.labels) < 2 or not (_ascends(self.labels) or _ascends(self.labels, float)):
                yield "its labels are not two or more in ascending order"
            if (self.transform, self.bounds) != ("none", None):
                yield "it is of classes and has a transform or bounds"
        elif self.labels or self.bounds is None or self.bounds[0] > self.bounds[1]:
            yield "it is a number and has labels, or no bounds in ascending order"
        elif self.transform == "none":
            if self.scale != Scale():
                yield "it is not transformed and has a scale"
        elif self.transform == LOG and self.bounds[0] <= -1:
            yield f"its smallest value is {self.bounds[0]:g}, expected more than -1"
        else:
            low, high = map(math.log1p if self.transform == LOG else float, self.bounds)
            yield from self.scale.contradictions(low, high)

    def encoded(self, numbers: Floats) -> Floats:
        """Numbers in own units on the scale."""
        transformed = np.log1p(numbers) if self.transform == LOG else numbers
        return np.asarray((transformed - self.scale.center) / self.scale.spread)

    def truth(self, metadata: Metadata, ids: Ids | None = None) -> Array:
        """Numbers of samples in own units, NaN where missing, or places in `labels`, -1 where
        missing and `UNKNOWN_CLASS` where the class is none of them.
        """
        if self.kind == "numeric":
            return metadata.numbers(self.name, ids)
        values = metadata.values(self.name, ids)
        is_missing = np.array([value is None for value in values], bool)
        places = _places(values, self.labels)
        return np.where(is_missing, -1, np.where(places < 0, UNKNOWN_CLASS, places))

    def encode(self, metadata: Metadata) -> Array:
        """`truth` with numbers on the scale."""
        if self.kind == "numeric":
            return self.encoded(_numbers(metadata, self.name, self.transform))
        if ((truth := self.truth(metadata)) == UNKNOWN_CLASS).any():
            unknown = {*metadata.values(self.name)} - {None, *self.labels}
            fault = f"no training sample has the classes {shown(sorted(map(str, unknown)))}"
            remedy = "put each class in several groups or folds, or empty these cells and pass "
            remedy += "--missing drop"
            where = f"{metadata.source}: column {self.name!r}"
            raise InputError(problem(where, fault, shown(self.labels, 10), remedy))
        return truth


@dataclass(frozen=True)
class Targets:
    """The targets of a model, in the order in which the columns were asked for."""

    specs: tuple[TargetSpec, ...]

    @cached_property
    def numeric(self) -> tuple[TargetSpec, ...]:
        """Numeric targets: the columns T of encoded targets."""
        return tuple(spec for spec in self.specs if spec.kind == "numeric")

    @cached_property
    def classes(self) -> tuple[TargetSpec, ...]:
        """Class targets: the columns K of encoded labels."""
        return tuple(spec for spec in self.specs if spec.kind == "class")

    def encode(self, metadata: Metadata) -> tuple[Reals, Ints]:
        """Encode samples: targets float32 [N, T] and labels int64 [N, K], NaN and -1 where
        missing.

        Raises `InputError`: text among numbers, a value that the transform cannot take, a label
        that no training sample has.
        """
        target = np.full((len(metadata.ids), len(self.numeric)), math.nan, dtype=np.float32)
        label = np.full((len(metadata.ids), len(self.classes)), -1, dtype=np.int64)
        problems = Problems()
        for columns, specs in ((target, self.numeric), (label, self.classes)):
            for column, spec in enumerate(specs):
                with problems.collected():
                    columns[:, column] = spec.encode(metadata)
        problems.raise_if_any()
        return target, label

    def decode(self, target: npt.NDArray[np.floating[Any]]) -> Floats:
        """Return encoded targets ``[N, T]`` in the columns' own units, float64 ``[N, T]``."""
        decoded = np.empty(target.shape, dtype=np.float64)
        for column, spec in enumerate(self.numeric):
            values = target[:, column].astype(np.float64) * spec.scale.spread + spec.scale.center
            with np.errstate(over="ignore"):
                decoded[:, column] = np.expm1(values) if spec.transform == LOG else values
        return decoded


def _ascends(values: Sequence[str], key: Callable[[str], Any] = str) -> bool:
    """Whether values, or the numbers that they spell, are distinct and in ascending order."""
    try:
        keys = [key(value) for value in values]
    except ValueError:
        return False
    return keys == sorted(set(keys))


def _places(values: Sequence[str | None], levels: Ids) -> Ints:
    """Place of each value among the levels, -1 without one."""
    return np.asarray(pd.Index(levels, dtype=object).get_indexer(pd.Index(values, dtype=object)))


def _numbers(metadata: Metadata, name: str, transform: Transform) -> Floats:
    """Read the numbers of a column, NaN where missing; ``log-zscore`` takes those above -1."""
    values = metadata.numbers(name)
    if transform == LOG and (rows := np.flatnonzero(values <= -1)).size:
        listed = ", ".join(f"{values[row]:g} (sample {metadata.ids[row]!r})" for row in rows[:5])
        fault = f"column {name!r} has {rows.size} values of -1 or less: {listed}"
        remedy = f"{transform} takes log(1 + x); choose another --target-transform"
        raise InputError(problem(metadata.source, fault, remedy=remedy))
    return values


def described(metadata: Metadata, names: Ids, classes: Ids, groups: Ids) -> list[str]:
    """Describe the values of target columns: the `classes` with their samples and `groups`, rarest
    last, and the range of numbers.
    """
    sentences = []
    for name in names:
        where = f"{metadata.source}: {name!r}"
        if name not in classes:
            numbers = pd.Series(metadata.numbers(name)).dropna()
            text = f"{len(numbers)} numbers from {numbers.min():g} to {numbers.max():g}"
            text += f", median {numbers.median():g}, {numbers.nunique()} different values"
            if numbers.nunique() == 2:
                text += ", predicted as numbers; --classifier makes classes"
            sentences.append(f"{where}: {text}")
            continue
        frame = pd.DataFrame({"class": metadata.values(name), "group": groups})
        counts = frame.groupby("class")["group"].agg(["size", "nunique"])
        counts = counts.sort_values("size", ascending=False, kind="stable")
        listed = [f"{short(x)!r} {size} of {number}" for x, size, number in counts.itertuples()]
        if len(listed) > MOST_SHOWN:
            listed[MOST_SHOWN // 2 : -MOST_SHOWN // 2] = ["..."]
        sentences.append(f"{where}: {len(counts)} classes, samples of groups: {', '.join(listed)}")
    return sentences


# --- classes that cannot be learned -------------------------------------------------------------

# The reason why a class is left out, by column and class.
LeftOut = Mapping[str, Mapping[str, str]]


def classes_of_few_groups(
    metadata: Metadata, columns: Ids, group_column: str | None
) -> dict[str, dict[str, str]]:
    """Classes in fewer than `LEAST_GROUPS_OF_CLASS` groups, and the number of groups in words, by
    column.

    A sample is its own group without a `group_column`. A column of one class, or of more than
    `MAX_CLASSES`, has none.
    """
    ids, result = metadata.ids, dict[str, dict[str, str]]()
    groups = ids if group_column is None else metadata.groups(group_column)
    for name in columns:
        frame = pd.DataFrame({"class": metadata.values(name), "group": groups, "id": ids})
        by_class = frame.groupby("class")
        if not 1 < by_class.ngroups <= MAX_CLASSES:
            continue
        for label, rows in by_class:
            if (number := rows["group"].nunique()) < LEAST_GROUPS_OF_CLASS:
                reason = f"has {number} of the {LEAST_GROUPS_OF_CLASS} groups that learning needs"
                result.setdefault(name, {})[str(label)] = f"{reason} ({shown(rows['id'])})"
    return result


def left_out_in_words(metadata: Metadata, left_out: LeftOut) -> list[str]:
    """Name the classes that are left out, by column, and the remedy if they mean missing."""
    sentences = []
    for name, reasons in left_out.items():
        listed = [f"class {short(label)!r} {reason}" for label, reason in reasons.items()]
        more = f" and {len(listed) - MOST_NAMED} more" if len(listed) > MOST_NAMED else ""
        classes = f"{metadata.source}: column {name!r}: {'; '.join(listed[:MOST_NAMED])}{more}"
        words = shlex.join([*reasons][:MOST_NAMED])
        remedy = "if it means a missing value, leave these cells empty (None in Python), or pass "
        remedy += f"--missing-values {words} --missing drop"
        sentences.append(f"{classes}: left out of folds, learning and predictions; {remedy}")
    return sentences


def without_classes(metadata: Metadata, left_out: LeftOut, ids: Ids) -> Metadata:
    """The metadata in which the classes `left_out` are missing; they are logged.

    Raises `InputError`: a column of which fewer than two classes are left.
    """
    sentences = left_out_in_words(metadata, left_out)
    remedy = f"fewer than two classes of {LEAST_GROUPS_OF_CLASS} groups are left, so nothing is "
    remedy += "learned: merge classes, or choose another column"
    if few := [
        f"{sentence}; {remedy}"
        for sentence, (name, reasons) in zip(sentences, left_out.items(), strict=True)
        if len({*metadata.values(name, ids)} - {None, *reasons}) < 2
    ]:
        raise InputError(*few)
    for sentence in sentences:
        log.warning("warning: %s", sentence)
    return metadata.without(left_out)


def fit_targets(metadata: Metadata, config: TargetConfig) -> Targets:
    """Fit one target per column on the metadata of the training samples: numbers, or the classes
    of a text column. With the option classifier the distinct values of a numeric column are classes
    too.

    Raises `InputError`: with the problems of all columns: missing, empty or constant columns, text
    among numbers, values that the transform cannot take, too many classes.
    """
    columns, transform = config.metadata_column, config.target_transform
    if not columns:
        raise InputError("no target: name at least one column with --metadata-column")
    metadata.require(columns)
    if len(set(columns)) < len(columns):
        raise InputError(f"--metadata-column names a column twice: {shown(columns)}")
    problems, specs = Problems(), []
    for name in columns:
        with problems.collected():
            if metadata.kinds[name] == "numeric" and not config.classifier:
                specs.append(_fitted_number(metadata, name, transform))
            else:
                specs.append(_fitted_classes(metadata, name))
    problems.raise_if_any()
    return Targets(tuple(specs))


def _check_varied(present: Collection[object], n: int, where: str) -> None:
    """Refuse the values of `n` training samples that are all missing or the same."""
    if len(set(present)) < 2:
        value = short(repr(next(iter(present)))) if present else "missing"
        samples = f"all {n} training samples"
        if 0 < len(present) < n:
            samples = f"the {len(present)} of {n} training samples that have a value"
        raise InputError(f"{where} is {value} for {samples}; choose another column or split")


def sorted_labels(metadata: Metadata, name: str, labels: Iterable[str]) -> list[str]:
    """The classes of a column in order; numbers of a column of numbers in that of numbers."""
    ordered = sorted(labels)
    if metadata.kinds[name] == "numeric" and all(map(is_number, ordered)):
        ordered.sort(key=float)
    return ordered


def _fitted_classes(metadata: Metadata, name: str) -> TargetSpec:
    values = [value for value in metadata.values(name) if value is not None]
    where, counts = f"{metadata.source}: column {name!r}", Counter(values)
    labels = sorted_labels(metadata, name, counts)
    if len(labels) > MAX_CLASSES:
        fault = f"has {len(labels)} different values on the training samples ({shown(labels, 3)})"
        remedy = f"expected at most {MAX_CLASSES} classes; --classifier is for classes, not numbers"
        raise InputError(f"{where} {fault}, {remedy}")
    _check_varied(values, len(metadata.ids), where)
    return TargetSpec(name, "class", tuple(labels))


def _fitted_number(metadata: Metadata, name: str, transform: Transform) -> TargetSpec:
    where, numbers = f"{metadata.source}: column {name!r}", _numbers(metadata, name, transform)
    # Sums depend on their order in the last bits; sorted, the order of the table does not matter.
    values = np.sort(numbers[~np.isnan(numbers)])
    _check_varied(values.tolist(), len(metadata.ids), where)
    bounds = float(values[0]), float(values[-1])
    if transform == "none":
        return TargetSpec(name, "numeric", bounds=bounds)
    scaled = np.log1p(values) if transform == LOG else values
    center, spread = float(scaled.mean()), float(scaled.std())
    if spread <= SMALLEST_SPREAD * np.abs(scaled).max():
        fault = f"goes from {bounds[0]!r} to {bounds[1]!r} on the training samples"
        remedy = "choose another unit or --target-transform"
        raise InputError(f"{where} {fault}, which {transform} cannot resolve; {remedy}")
    return TargetSpec(name, "numeric", (), transform, Scale(center, spread), bounds)


@dataclass(frozen=True)
class Covariates:
    """Columns that a model reads next to the ASVs.

    Attributes
    ----------
    categorical : dict
        The categories of the training samples by column, sorted.
    numeric : dict
        The scale of each column, from the training samples.
    ranges : dict
        Smallest and largest training value of each numeric column.
    """

    categorical: dict[Label, tuple[str, ...]] = field(default_factory=dict)
    numeric: dict[Label, Scale] = field(default_factory=dict)
    ranges: dict[Label, tuple[Number, Number]] = field(default_factory=dict)

    def contradictions(self) -> Iterator[str]:
        """Say why a model cannot have fitted these columns together."""
        if self.categorical.keys() & self.numeric.keys():
            yield "a column has two kinds"
        if not all(values and _ascends(values) for values in self.categorical.values()):
            yield "categories are not in ascending order"
        for name, (low, high) in self.ranges.items():
            if name not in self.numeric or low > high:
                yield f"{name!r} has a range and no scale, or one that descends"
            else:
                problems = self.numeric[name].contradictions(low, high)
                yield from (f"{name!r}: {problem}" for problem in problems)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return (*self.categorical, *self.numeric)

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of categories of each categorical column."""
        return tuple(map(len, self.categorical.values()))

    @property
    def width(self) -> int:
        """Number of columns that estimators read: one for each category and each number."""
        return sum(self.levels) + len(self.numeric)

    def unknown(self, samples: int) -> tuple[Ints, Reals]:
        """Categories and numbers, as `encode`, of samples of which nothing is known."""
        category = np.zeros((samples, len(self.categorical)), np.int64)
        return category, np.full((samples, len(self.numeric)), math.nan, np.float32)

    def encode(self, metadata: Metadata) -> tuple[Ints, Reals]:
        """Return categories int64 [N, C], 0 where empty or new, and numbers float32 [N, M], NaN
        where missing.

        Raises `InputError` for text among numbers; `warnings` tells of values that differ from
        those of training.
        """
        category, covariate = self.unknown(len(metadata.ids))
        for column, (name, levels) in enumerate(self.categorical.items()):
            category[:, column] = _places(metadata.values(name), levels) + 1
        for column, (name, scale) in enumerate(self.numeric.items()):
            covariate[:, column] = (metadata.numbers(name) - scale.center) / scale.spread
        return category, covariate

    def warnings(self, metadata: Metadata) -> list[str]:
        """Name unknown values of samples, and numbers outside the training range."""
        messages, ids = self.unknown_values(metadata), metadata.ids
        for name, (low, high) in self.ranges.items():
            numbers = metadata.numbers(name)
            beyond = np.nan_to_num(np.maximum(low - numbers, numbers - high))
            farthest, outside = int(np.argmax(beyond)), int((beyond > 0).sum())
            if outside:
                messages.append(
                    f"{metadata.source}: covariate {name!r}: {outside} of {len(ids)} samples lie "
                    f"outside the range of training, {low:g} to {high:g}; the farthest is "
                    f"{numbers[farthest]:g} (sample {ids[farthest]!r}); is it in the same unit?"
                )
        return messages

    def unknown_values(self, metadata: Metadata) -> list[str]:
        """Name the columns in which samples have no value, or categories never trained."""
        messages = []
        for name in self.columns:
            values = metadata.values(name)
            categories = set(self.categorical.get(name, filter(None, values)))
            if unknown := [value for value in values if value not in categories]:
                listed = shown(sorted(filter(None, {*unknown})))
                reason = f" or a category that no training sample has ({listed})" if listed else ""
                number = f"{len(unknown)} of {len(values)} samples have no value{reason}"
                messages.append(f"{metadata.source}: covariate {name!r}: {number}; read as unknown")
        return messages


def fit_covariates(metadata: Metadata, config: CovariateConfig) -> Covariates:
    """Fit categories and scales on the metadata of the training samples.

    Raises
    ------
    InputError
        With every column that is constant or empty there, or holds text among numbers.
    """
    covariates, problems, samples = Covariates(), Problems(), len(metadata.ids)
    metadata.require(config.columns)
    for name in config.columns:
        where = f"{metadata.source}: covariate {name!r}"
        with problems.collected():
            if name in config.categorical_columns:
                labels = [value for value in metadata.values(name) if value is not None]
                _check_varied(labels, samples, where)
                covariates.categorical[name] = tuple(sorted(set(labels)))
                continue
            numbers = np.sort(metadata.numbers(name))
            _check_varied(numbers[~np.isnan(numbers)].tolist(), samples, where)
            center, spread = float(np.nanmean(numbers)), float(np.nanstd(numbers))
            covariates.numeric[name] = Scale(center, spread if spread > 0 else 1.0)
            covariates.ranges[name] = (float(np.nanmin(numbers)), float(np.nanmax(numbers)))
    problems.raise_if_any()
    return covariates


def head_sizes(targets: Targets, covariates: Covariates) -> dict[str, Any]:
    """Sizes of the heads of a network of these targets and covariates, as `HeadConfig` has them."""
    return {
        "n_targets": len(targets.numeric),
        "n_classes": tuple(len(spec.labels) for spec in targets.classes),
        "levels": tuple(1 + number for number in covariates.levels),
        "numbers": len(covariates.numeric),
    }


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels and covariates of samples as numbers; arrays without content have no columns.

    Attributes
    ----------
    target : float32 [N, T]
        Transformed numeric targets, NaN where missing.
    label : int64 [N, K]
        Classes, -1 where missing.
    category : int64 [N, C]
        Categorical covariates, 0 where unknown.
    covariate : float32 [N, M]
        Numeric covariates, NaN where missing.
    """

    target: Reals
    label: Ints
    category: Ints
    covariate: Reals

    @classmethod
    def none(cls, samples: int) -> Labels:
        """Labels of samples without any."""
        reals, integers = np.zeros((samples, 0), np.float32), np.zeros((samples, 0), np.int64)
        return cls(reals, integers, integers, reals)


def fit_labels(
    metadata: Metadata, train_ids: Ids, targets: TargetConfig, covariates: CovariateConfig
) -> tuple[Labels, Targets, Covariates]:
    """Return targets and covariates of the samples, fitted on the samples `train_ids`.

    Raises `InputError`: columns or options from which nothing can be learned.
    """
    training = metadata.at(train_ids)
    fitted = fit_targets(training, targets)
    kinds = {"mae": fitted.numeric, "r2": fitted.numeric, "val_loss": fitted.specs}
    if not kinds.get(targets.best_metric, fitted.classes):
        fault = "is not a metric of these columns; choose another"
        raise InputError(f"--best-metric {targets.best_metric} {fault}")
    fitted_covariates = fit_covariates(training, covariates)
    labels = Labels(*fitted.encode(metadata), *fitted_covariates.encode(metadata))
    return labels, fitted, fitted_covariates
