"""Targets: metadata columns as numbers and classes, on scales fitted on the training samples only."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from aam.config import Transform
from aam.errors import InputError, Problems, shown
from aam.io.metadata import Metadata, is_number

Kind = Literal["numeric", "class"]
Floats = npt.NDArray[np.float64]

MAX_CLASSES = 100
# Below this share of the values' own size, a spread is rounding.
SMALLEST_SPREAD = 1e-12
# A category whose standard deviation is a smaller share than this of the column's counts as constant.
SMALLEST_CATEGORY = 1e-3


@dataclass(frozen=True)
class Scale:
    """An affine scale: encoded = (value - center) / spread."""

    center: float
    spread: float


UNSCALED = Scale(0.0, 1.0)


@dataclass(frozen=True)
class TargetSpec:
    """One metadata column as a target, with what was fitted on the training samples.

    `labels` are the sorted classes as the metadata writes them; `scale` is that of the numbers (of log(1 + x)
    for ``log`` transforms), `categories` hold those of the values of column `normalize_by`, others use
    `scale`; `bounds` are the smallest and largest training number in own units; `quantiles` what a ``quantile``
    `loss` predicts beside the number, which is its median.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...] = ()
    transform: Transform = "none"
    scale: Scale = UNSCALED
    normalize_by: str | None = None
    categories: dict[str, Scale] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None
    loss: str = "huber"
    quantiles: tuple[float, ...] = ()

    def encoded(self, value: float) -> float:
        """Return `value`, which is in own units, on the scale of all categories."""
        return ((math.log1p(value) if self.transform.startswith("log-") else value) - self.scale.center) / (
            self.scale.spread
        )


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

    @property
    def bounds(self) -> Floats:
        """Smallest and largest training value of each numeric target, float64 ``[T, 2]``, own units."""
        return np.array([spec.bounds for spec in self.numeric], dtype=np.float64).reshape(-1, 2)

    def encode(self, metadata: Metadata, ids: Sequence[str]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return targets float32 [N, T] and labels int64 [N, K] of the samples `ids`, NaN and -1 where missing.

        Raises `InputError`: text among numbers, a value too large for the transform or float32, a label that
        no training sample has.
        """
        target = np.full((len(ids), len(self.numeric)), math.nan, dtype=np.float32)
        label = np.full((len(ids), len(self.classes)), -1, dtype=np.int64)
        problems = Problems()
        for specs, encode, out in ((self.numeric, _encoded, target), (self.classes, _labelled, label)):
            for column, spec in enumerate(specs):
                with _collected(problems):
                    out[:, column] = encode(spec, metadata, ids)
        problems.raise_if_any()
        return target, label

    def decode(
        self, target: npt.NDArray[np.floating[Any]], metadata: Metadata | None = None, ids: Sequence[str] = ()
    ) -> Floats:
        """Return encoded targets ``[N, T]`` in the columns' own units, float64 ``[N, T]``.

        `metadata` and `ids` of the N samples are needed when a target is normalized by category; without
        them that is an `InputError`.
        """
        decoded = np.empty(target.shape, dtype=np.float64)
        for column, spec in enumerate(self.numeric):
            center, spread = _scales(spec, metadata, ids, len(target))
            values = target[:, column].astype(np.float64) * spread + center
            with np.errstate(over="ignore"):
                decoded[:, column] = np.expm1(values) if spec.transform.startswith("log-") else values
        return decoded

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain JSON data that `from_json` reads: lists, dicts, text and numbers."""
        return [asdict(spec) for spec in self.specs]

    @classmethod
    def from_json(cls, value: object) -> Targets:
        """Return targets from the parsed JSON that `to_json` gave; `InputError` for anything else."""
        try:
            return cls(tuple(map(_parsed, value if isinstance(value, list) else [value])))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"targets of the model: damaged description, {error}") from error


@contextlib.contextmanager
def _collected(problems: Problems) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        problems.extend(error)


def _scales(spec: TargetSpec, metadata: Metadata | None, ids: Sequence[str], n: int) -> tuple[Floats, Floats]:
    """Return center and spread for each of `n` samples, float64 ``[N]``."""
    scales = [spec.scale] * n
    if spec.normalize_by is not None:
        if metadata is None:
            raise InputError(
                f"target {spec.name!r} was learned per category of {spec.normalize_by!r}; pass --metadata "
                "with this column, as for training"
            )
        categories = metadata.values(spec.normalize_by, ids)
        scales = [spec.categories.get(category or "", spec.scale) for category in categories]
    center, spread = np.array([(scale.center, scale.spread) for scale in scales]).reshape(-1, 2).T
    return center, spread


def _numbers(metadata: Metadata, name: str, ids: Sequence[str], transform: Transform) -> Floats:
    """Return values of a column in own units, NaN where missing, that `transform` can take."""
    values = metadata.numbers(name, ids)
    low = np.flatnonzero(values <= -1)
    if transform.startswith("log-") and low.size:
        examples = ", ".join(f"{values[row]:g} (sample {ids[row]!r})" for row in low[:5])
        raise InputError(
            f"{metadata.source}: column {name!r} has {low.size} values of -1 or less: {examples}; {transform} "
            "takes log(1 + x) and needs more than -1; choose another --target-transform"
        )
    return values


def _encoded(spec: TargetSpec, metadata: Metadata, ids: Sequence[str]) -> npt.NDArray[np.float32]:
    values = _numbers(metadata, spec.name, ids, spec.transform)
    center, spread = _scales(spec, metadata, ids, len(ids))
    with np.errstate(over="ignore"):
        encoded = ((np.log1p(values) if spec.transform.startswith("log-") else values) - center) / spread
    large = np.flatnonzero(np.abs(encoded) > np.finfo(np.float32).max)
    if large.size:
        raise InputError(
            f"{metadata.source}: column {spec.name!r} has {values[large[0]]:g} (sample {ids[large[0]]!r}), "
            "too large to learn; correct it or choose another --target-transform"
        )
    return encoded.astype(np.float32)


def _labelled(spec: TargetSpec, metadata: Metadata, ids: Sequence[str]) -> npt.NDArray[np.int64]:
    index = {label: place for place, label in enumerate(spec.labels)}
    values = metadata.values(spec.name, ids)
    if unseen := {value for value in values if value is not None and value not in index}:
        samples = [sample for sample, value in zip(ids, values, strict=True) if value in unseen]
        raise InputError(
            f"{metadata.source}: column {spec.name!r}: {len(samples)} samples ({shown(samples)}) have labels "
            f"that no training sample has: {shown(sorted(unseen))}; expected {shown(spec.labels, 10)}; "
            "correct them, or leave these cells empty and pass --missing drop"
        )
    return np.array([index.get(value or "", -1) for value in values], dtype=np.int64)


def fit_targets(
    metadata: Metadata,
    columns: Sequence[str],
    train_ids: Sequence[str],
    *,
    classifier: bool = False,
    transform: Transform = "zscore",
    normalize_by: str | None = None,
) -> Targets:
    """Fit one target per metadata column on the training samples: numbers, or the classes of a text column.

    With `classifier` the distinct values of a numeric column are classes too.

    Raises `InputError`: with the problems of all columns: missing, empty or constant columns, text among
    numbers, values that the transform cannot take, too many classes, classes of one sample.
    """
    if not columns:
        raise InputError("no target: name at least one column with --metadata-column")
    metadata.require([*columns, normalize_by] if normalize_by else columns)
    problems = Problems()
    if len(set(columns)) < len(columns):
        problems.add(f"--metadata-column names a column twice: {shown(columns)}")
    if (transform == "zscore-category") != (normalize_by is not None):
        problems.add("--target-transform zscore-category and --normalize-by COLUMN need each other")
    problems.raise_if_any()
    specs = []
    for name in columns:
        with _collected(problems):
            if _looks_numeric(metadata, name) and not classifier:
                specs.append(_fitted_number(metadata, name, train_ids, transform, normalize_by))
            else:
                specs.append(_fitted_classes(metadata, name, train_ids))
    problems.raise_if_any()
    return Targets(tuple(specs))


def _looks_numeric(metadata: Metadata, name: str) -> bool:
    """Return whether text in a column is rather a mistake than a class: at least half of its values are numbers."""
    if metadata.kinds[name] == "numeric" or name in metadata.declared:
        return metadata.kinds[name] == "numeric"
    values = [value for value in metadata.values(name, metadata.ids) if value is not None]
    return 2 * sum(map(is_number, values)) >= len(values)


def _check_varied(values: Sequence[object], where: str, n: int) -> None:
    """Refuse sorted, distinct training values of `n` samples if they are none or one."""
    if len(values) < 2:
        value = repr(values[0]) if values else "missing"
        raise InputError(f"{where} is {value} for all {n} training samples; choose another column or split")


def _fitted_classes(metadata: Metadata, name: str, train_ids: Sequence[str]) -> TargetSpec:
    counts = Counter(value for value in metadata.values(name, train_ids) if value is not None)
    where = f"{metadata.source}: column {name!r}"
    labels = sorted(counts)
    if metadata.kinds[name] == "numeric":
        labels.sort(key=float)
        if same := [pair for pair in itertools.pairwise(labels) if float(pair[0]) == float(pair[1])]:
            raise InputError(f"{where} writes one number in two ways: {shown(same)}; write it in one")
    if len(labels) > MAX_CLASSES:
        raise InputError(
            f"{where} has {len(labels)} different values on the training samples ({shown(labels, 3)}), "
            f"expected at most {MAX_CLASSES} classes; numbers are predicted as such without --classifier"
        )
    _check_varied(labels, where, len(train_ids))
    if single := [label for label in labels if counts[label] == 1]:
        raise InputError(
            f"{where} has classes of one training sample: {shown(single)}, expected two or more; merge them "
            "with others, or leave these cells empty and pass --missing drop"
        )
    return TargetSpec(name, "class", tuple(labels))


def _fitted_number(
    metadata: Metadata, name: str, train_ids: Sequence[str], transform: Transform, normalize_by: str | None
) -> TargetSpec:
    values = _numbers(metadata, name, train_ids, transform)
    # Sums depend on their order in the last bits; sorted, the order of the table does not matter.
    present = np.sort(values[~np.isnan(values)])
    where = f"{metadata.source}: column {name!r}"
    _check_varied(np.unique(present).tolist(), where, len(train_ids))
    low, high = float(present[0]), float(present[-1])
    scale = _fitted_scale(np.log1p(present) if transform.startswith("log-") else present, transform)
    if scale is None:
        raise InputError(
            f"{where} goes from {low!r} to {high!r} on the training samples, which {transform} cannot "
            "resolve; choose another unit or --target-transform"
        )
    categories: dict[str, Scale] = {}
    if normalize_by is not None:
        categories = _fitted_categories(values, metadata.values(normalize_by, train_ids), scale)
        if not categories:
            raise InputError(
                f"{metadata.source}: no category of {normalize_by!r} has two training samples that differ in "
                f"{name!r}; choose another --normalize-by"
            )
    return TargetSpec(name, "numeric", (), transform, scale, normalize_by, categories, (low, high))


def _fitted_scale(values: Floats, transform: Transform) -> Scale | None:
    """Return the scale of sorted values, none where their spread is lost in rounding or overflows."""
    if transform == "none" or not values.size:
        return UNSCALED if values.size else None
    with np.errstate(over="ignore", invalid="ignore"):
        if transform.endswith("minmax"):
            center, spread = values[0], values[-1] - values[0]
        else:
            center, spread = values.mean(), values.std()
    resolved = np.isfinite(spread) and spread > SMALLEST_SPREAD * np.abs(values).max()
    return Scale(float(center), float(spread)) if resolved else None


def _fitted_categories(values: Floats, categories: Sequence[str | None], column_scale: Scale) -> dict[str, Scale]:
    """Return the scale of each category with at least two values that differ enough."""
    scales = {}
    named = np.array([category or "" for category in categories])
    for category in sorted(set(named.tolist()) - {""}):
        members = values[named == category]
        scale = _fitted_scale(np.sort(members[~np.isnan(members)]), "zscore")
        if scale is not None and scale.spread > SMALLEST_CATEGORY * column_scale.spread:
            scales[category] = scale
    return scales


def _parsed(entry: Any) -> TargetSpec:
    """Return a target from its JSON object; anything unexpected raises KeyError, TypeError or ValueError."""
    entry = {"loss": "huber", "quantiles": [], **entry}
    spec = TargetSpec(
        **{
            **entry,
            "labels": tuple(entry["labels"]),
            "quantiles": tuple(entry["quantiles"]),
            "scale": Scale(**entry["scale"]),
            "categories": {name: Scale(**scale) for name, scale in dict(entry["categories"]).items()},
            "bounds": None if entry["bounds"] is None else tuple(entry["bounds"]),
        }
    )
    scales = [spec.scale, *spec.categories.values()]
    numbers = [number for scale in scales for number in asdict(scale).values()]
    numbers += [*(spec.bounds or ()), *spec.quantiles]
    words = [spec.name, spec.loss, *spec.labels] + ([] if spec.normalize_by is None else [spec.normalize_by])
    n = len(set(spec.labels))
    if (
        asdict(spec).keys() != entry.keys()
        or spec.kind not in get_args(Kind)
        or spec.transform not in get_args(Transform)
        or not all(isinstance(word, str) for word in words)
        or not all(isinstance(number, float) and math.isfinite(number) for number in numbers)
        or not all(scale.spread > 0 for scale in scales)
        or (not 1 < n == len(spec.labels) if spec.kind == "class" else len(spec.bounds or ()) != 2)
    ):
        raise ValueError(f"the values of {spec.name!r} do not belong together")
    return spec
