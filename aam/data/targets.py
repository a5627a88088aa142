"""Labels: metadata columns as targets and covariates, all fitted on the training samples only."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict

from aam.config import CovariateConfig, TargetConfig, Transform
from aam.errors import InputError, Problems, reworded, shown
from aam.io.metadata import Metadata, is_number
from aam.options import typed

Kind = Literal["numeric", "class"]
LOG: Transform = "log-zscore"
Floats = npt.NDArray[np.float64]

MAX_CLASSES = 100
# Below this share of the values' own size, a spread is rounding.
SMALLEST_SPREAD = 1e-12
# A covariate states a target if at least this number of samples have both, and the ranks of two
# numbers have at least this correlation.
LEAST_TOLD, TOLD = 20, 0.999


@dataclass(frozen=True)
class Scale:
    """An affine scale: encoded = (value - center) / spread."""

    center: float
    spread: float


UNSCALED = Scale(0.0, 1.0)


@dataclass(frozen=True)
class TargetSpec:
    """One metadata column as a target, with what was fitted on the training samples.

    `labels` are the sorted classes as the metadata writes them; `scale` is that of the numbers, or
    of log(1 + x) for ``log-zscore``; `bounds` are the smallest and largest training number in own
    units.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    kind: Kind
    labels: tuple[str, ...] = ()
    transform: Transform = "none"
    scale: Scale = UNSCALED
    bounds: tuple[float, float] | None = None


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

    def encode(
        self, metadata: Metadata, ids: Sequence[str]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return targets float32 [N, T] and labels int64 [N, K] of the samples `ids`, NaN and -1
        where missing.

        Raises `InputError`: text among numbers, a value too large for the transform or float32, a
        label that no training sample has.
        """
        target = np.full((len(ids), len(self.numeric)), math.nan, dtype=np.float32)
        label = np.full((len(ids), len(self.classes)), -1, dtype=np.int64)
        problems = Problems()
        for column, spec in enumerate(self.numeric):
            with problems.collected():
                target[:, column] = _encoded(spec, metadata, ids)
        for column, spec in enumerate(self.classes):
            with problems.collected():
                label[:, column] = _labelled(spec, metadata, ids)
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

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain JSON data that `from_json` reads: lists, dicts, text and numbers."""
        return [asdict(spec) for spec in self.specs]

    @classmethod
    def from_json(cls, value: object) -> Targets:
        """Return targets from the parsed JSON that `to_json` gave; `InputError` for anything
        else.
        """
        with reworded((TypeError, ValueError), "targets of the model: damaged description"):
            specs = typed(value, tuple[TargetSpec, ...])
        if wrong := [spec.name for spec in specs if not _belongs_together(spec)]:
            problem = f"the values of {shown(wrong)} do not belong together"
            raise InputError(f"targets of the model: damaged description, {problem}")
        return cls(specs)


def _numbers(metadata: Metadata, name: str, ids: Sequence[str], transform: Transform) -> Floats:
    """Return values of a column in own units, NaN where missing, that `transform` can take."""
    values = metadata.numbers(name, ids)
    low = np.flatnonzero(values <= -1)
    if transform == LOG and low.size:
        examples = ", ".join(f"{values[row]:g} (sample {ids[row]!r})" for row in low[:5])
        raise InputError(
            f"{metadata.source}: column {name!r} has {low.size} values of -1 or less: {examples}; "
            f"{transform} takes log(1 + x); choose another --target-transform"
        )
    return values


def _encoded(spec: TargetSpec, metadata: Metadata, ids: Sequence[str]) -> npt.NDArray[np.float32]:
    values = _numbers(metadata, spec.name, ids, spec.transform)
    with np.errstate(over="ignore"):
        encoded = np.log1p(values) if spec.transform == LOG else values
        encoded = (encoded - spec.scale.center) / spec.scale.spread
    large = np.flatnonzero(np.abs(encoded) > np.finfo(np.float32).max)
    if large.size:
        value = f"{values[large[0]]:g} (sample {ids[large[0]]!r}), too large to learn"
        remedy = "correct it or choose another --target-transform"
        raise InputError(f"{metadata.source}: column {spec.name!r} has {value}; {remedy}")
    return encoded.astype(np.float32)


def _labelled(spec: TargetSpec, metadata: Metadata, ids: Sequence[str]) -> npt.NDArray[np.int64]:
    index = {label: place for place, label in enumerate(spec.labels)}
    values = metadata.values(spec.name, ids)
    if unseen := {value for value in values if value is not None and value not in index}:
        samples = [sample for sample, value in zip(ids, values, strict=True) if value in unseen]
        raise InputError(
            f"{metadata.source}: column {spec.name!r}: {len(samples)} samples ({shown(samples)}) "
            f"have labels that no training sample has: {shown(sorted(unseen))}; expected "
            f"{shown(spec.labels, 10)}; correct them; where all of a label are in one group or "
            "fold, which is held out whole, give them several; or leave these cells empty and pass "
            "--missing drop"
        )
    return np.array([index.get(value or "", -1) for value in values], dtype=np.int64)


def fit_targets(
    metadata: Metadata,
    columns: Sequence[str],
    train_ids: Sequence[str],
    *,
    classifier: bool = False,
    transform: Transform = "zscore",
) -> Targets:
    """Fit one target per metadata column on the training samples: numbers, or the classes of a text
    column.

    With `classifier` the distinct values of a numeric column are classes too.

    Raises `InputError`: with the problems of all columns: missing, empty or constant columns, text
    among numbers, values that the transform cannot take, too many classes, classes of one sample.
    """
    if not columns:
        raise InputError("no target: name at least one column with --metadata-column")
    metadata.require(columns)
    if len(set(columns)) < len(columns):
        raise InputError(f"--metadata-column names a column twice: {shown(columns)}")
    problems, specs = Problems(), []
    for name in columns:
        with problems.collected():
            if metadata.kinds[name] == "numeric" and not classifier:
                specs.append(_fitted_number(metadata, name, train_ids, transform))
            else:
                specs.append(_fitted_classes(metadata, name, train_ids))
    problems.raise_if_any()
    return Targets(tuple(specs))


def _check_varied(values: Sequence[object], where: str, present: int, n: int) -> None:
    """Refuse sorted, distinct training values, of the `present` ones of `n` samples, if they are
    none or one.
    """
    of = f"all {n} training samples"
    if not values:
        raise InputError(f"{where} is missing for {of}; choose another column or split")
    if present < n:
        of = f"the {present} of {n} training samples that have a value"
    if len(values) == 1:
        raise InputError(f"{where} is {values[0]!r} for {of}; choose another column or split")


def _fitted_classes(metadata: Metadata, name: str, train_ids: Sequence[str]) -> TargetSpec:
    counts = Counter(value for value in metadata.values(name, train_ids) if value is not None)
    where = f"{metadata.source}: column {name!r}"
    labels = sorted(counts)
    if (len(labels) > MAX_CLASSES or 1 in counts.values()) and (reason := metadata.not_read(name)):
        raise InputError(f"{where} {reason}")
    if all(map(is_number, labels)) and name not in metadata.declared:
        labels.sort(key=float)
        pairs = itertools.pairwise(labels)
        if same := [pair for pair in pairs if float(pair[0]) == float(pair[1])]:
            raise InputError(
                f"{where} writes one number in two ways: {shown(same)}; write it in one"
            )
    if len(labels) > MAX_CLASSES:
        raise InputError(
            f"{where} has {len(labels)} different values on the training samples "
            f"({shown(labels, 3)}), expected at most {MAX_CLASSES} classes; numbers are predicted "
            "as such without --classifier"
        )
    _check_varied(labels, where, counts.total(), len(train_ids))
    if single := [label for label in labels if counts[label] == 1]:
        raise InputError(
            f"{where} has classes of one training sample: {shown(single)}, expected two or more; "
            "merge them with others, or leave these cells empty and pass --missing drop"
        )
    return TargetSpec(name, "class", tuple(labels))


def _fitted_number(
    metadata: Metadata, name: str, train_ids: Sequence[str], transform: Transform
) -> TargetSpec:
    values = _numbers(metadata, name, train_ids, transform)
    # Sums depend on their order in the last bits; sorted, the order of the table does not matter.
    present = np.sort(values[~np.isnan(values)])
    where = f"{metadata.source}: column {name!r}"
    _check_varied(np.unique(present).tolist(), where, len(present), len(train_ids))
    low, high = float(present[0]), float(present[-1])
    scale = _fitted_scale(np.log1p(present) if transform == LOG else present, transform)
    if scale is None:
        raise InputError(
            f"{where} goes from {low!r} to {high!r} on the training samples, which {transform} "
            "cannot resolve; choose another unit or --target-transform"
        )
    return TargetSpec(name, "numeric", (), transform, scale, (low, high))


def _fitted_scale(values: Floats, transform: Transform) -> Scale | None:
    """Return the scale of sorted values, None where their spread is lost in rounding or
    overflows.
    """
    if transform == "none":
        return UNSCALED
    with np.errstate(over="ignore", invalid="ignore"):
        center, spread = values.mean(), values.std()
    resolved = np.isfinite(spread) and spread > SMALLEST_SPREAD * np.abs(values).max()
    return Scale(float(center), float(spread)) if resolved else None


def _belongs_together(spec: TargetSpec) -> bool:
    """Return whether a target has what its kind needs: two different labels or more, or finite
    numbers.
    """
    if spec.kind == "class":
        return 1 < len(set(spec.labels)) == len(spec.labels)
    numbers = [*(spec.bounds or ()), spec.scale.center, spec.scale.spread]
    return len(numbers) == 4 and spec.scale.spread > 0 and all(map(math.isfinite, numbers))


def _tells(covariate: Sequence[str | None], target: Sequence[str | None], numbers: bool) -> bool:
    """Return whether the values of a covariate tell those of a target, where samples have both."""
    pairs = [pair for pair in zip(covariate, target, strict=True) if None not in pair]
    levels = {value for value, _ in pairs}
    if len(pairs) < LEAST_TOLD or len({value for _, value in pairs}) < 2:
        return False
    if 2 * len(levels) <= len(pairs):
        return len(set(pairs)) == len(levels)
    if not numbers:
        return False
    ranks = [
        np.unique(np.array(values, np.float64), return_inverse=True)[1]
        for values in zip(*pairs, strict=True)
    ]
    return bool(abs(np.corrcoef(ranks[0], ranks[1])[0, 1]) > TOLD)


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

    categorical: dict[str, tuple[str, ...]] = field(default_factory=dict)
    numeric: dict[str, Scale] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return (*self.categorical, *self.numeric)

    def encode(
        self, metadata: Metadata | None, ids: Sequence[str]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return categories int64 [N, C], 0 where empty or new, and numbers float32 [N, M], NaN
        where missing.

        Without metadata every value is unknown. Raises `InputError` for text among numbers;
        `warnings` tells of values that differ from those of training.
        """
        category = np.zeros((len(ids), len(self.categorical)), np.int64)
        covariate = np.full((len(ids), len(self.numeric)), math.nan, np.float32)
        if metadata is None:
            return category, covariate
        for column, (name, levels) in enumerate(self.categorical.items()):
            code_of = {level: code for code, level in enumerate(levels, start=1)}
            values = metadata.values(name, ids)
            category[:, column] = [code_of.get(value or "", 0) for value in values]
        for column, (name, scale) in enumerate(self.numeric.items()):
            covariate[:, column] = (metadata.numbers(name, ids) - scale.center) / scale.spread
        return category, covariate

    def warnings(self, metadata: Metadata, ids: Sequence[str]) -> list[str]:
        """Return a sentence for each way in which the values of the samples `ids` differ from those
        of training.

        Missing values, categories that no training sample has, and numbers outside the training
        range.
        """
        messages = self.unknown_values(metadata, ids)
        for name, (low, high) in self.ranges.items():
            numbers = metadata.numbers(name, ids)
            beyond = np.nan_to_num(np.maximum(low - numbers, numbers - high))
            if (outside := int((beyond > 0).sum())) == 0:
                continue
            farthest = int(np.argmax(beyond))
            messages.append(
                f"{metadata.source}: covariate {name!r}: {outside} of {len(ids)} samples lie "
                f"outside the training range, {low:g} to {high:g}; the farthest is "
                f"{numbers[farthest]:g} (sample {ids[farthest]!r}); is it in the same unit?"
            )
        return messages

    def unknown_values(self, metadata: Metadata, ids: Sequence[str]) -> list[str]:
        """Return a sentence for each column of the samples `ids` with missing values, or categories
        never trained.
        """
        messages: list[str] = []
        for name in self.columns:
            where = f"{metadata.source}: covariate {name!r}"
            values = metadata.values(name, ids)
            if missing := values.count(None):
                share = "all" if missing == len(ids) else f"{missing} of"
                says = f"has no value for {share} {len(ids)} samples; read as unknown"
                messages.append(f"{where} {says}")
            seen = {None, *self.categorical.get(name, values)}
            new = [str(value) for value in values if value not in seen]
            if new:
                messages.append(
                    f"{where}: {len(new)} samples are in categories that no training sample has "
                    f"({shown(sorted(set(new)))}); read as unknown"
                )
        return messages

    def leaks(self, targets: Targets, metadata: Metadata, ids: Sequence[str]) -> list[str]:
        """Return a sentence for each column that tells a target of the samples `ids`, as one made
        of it does.

        That is a column of at most half as many values as samples, each of one target only, or a
        number that rises or falls with a number.
        """
        return [
            f"warning: {metadata.source}: covariate {name!r} states {spec.name!r} for every "
            "sample; if it is measured later or derived from it, leave it out, because no metric "
            "then shows what the ASVs add"
            for spec in targets.specs
            for name in self.columns
            if _tells(
                metadata.values(name, ids),
                metadata.values(spec.name, ids),
                name in self.numeric and spec.kind == "numeric",
            )
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data, which `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Covariates:
        """Return the covariates from the parsed JSON that `to_json` gave."""
        covariates: Covariates = typed(value, cls)
        return covariates


def fit_covariates(
    metadata: Metadata, config: CovariateConfig, train_ids: Sequence[str]
) -> Covariates:
    """Fit categories and scales on the training samples.

    Raises
    ------
    InputError
        With every column that is constant or empty there, or holds text among numbers.
    """
    covariates, problems = Covariates(), Problems()
    metadata.require(config.columns)
    for name in config.columns:
        levels = sorted({value for value in metadata.values(name, train_ids) if value is not None})
        if len(levels) < 2:
            value = f"{shown(levels) or 'missing'} for all {len(train_ids)} training samples"
            problems.add(
                f"{metadata.source}: covariate {name!r} is {value} and carries no information; "
                "leave it out"
            )
        elif name in config.categorical_columns:
            covariates.categorical[name] = tuple(levels)
        else:
            with problems.collected():
                numbers = np.sort(metadata.numbers(name, train_ids))
                spread = float(np.nanstd(numbers))
                center = float(np.nanmean(numbers))
                covariates.numeric[name] = Scale(center, spread if spread > 0 else 1.0)
                covariates.ranges[name] = (float(np.nanmin(numbers)), float(np.nanmax(numbers)))
    problems.raise_if_any()
    return covariates


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

    target: npt.NDArray[np.float32]
    label: npt.NDArray[np.int64]
    category: npt.NDArray[np.int64]
    covariate: npt.NDArray[np.float32]

    @classmethod
    def none(cls, samples: int) -> Labels:
        """Labels of samples without any."""
        reals, integers = np.zeros((samples, 0), np.float32), np.zeros((samples, 0), np.int64)
        return cls(reals, integers, integers, reals)


def fit_labels(
    metadata: Metadata,
    ids: Sequence[str],
    train_ids: Sequence[str],
    targets: TargetConfig,
    covariates: CovariateConfig,
) -> tuple[Labels, Targets, Covariates]:
    """Return targets and covariates of the samples `ids`, fitted on the samples
    `train_ids` alone.

    Raises `InputError`: columns or options from which nothing can be learned.
    """
    fitted = fit_targets(
        metadata,
        targets.metadata_column,
        train_ids,
        classifier=targets.classifier,
        transform=targets.target_transform,
    )
    kinds = {"mae": fitted.numeric, "r2": fitted.numeric, "val_loss": fitted.specs}
    if not kinds.get(targets.best_metric, fitted.classes):
        problem = "is not a metric of these columns; choose another"
        raise InputError(f"--best-metric {targets.best_metric} {problem}")
    fitted_covariates = fit_covariates(metadata, covariates, train_ids)
    labels = Labels(*fitted.encode(metadata, ids), *fitted_covariates.encode(metadata, ids))
    return labels, fitted, fitted_covariates
