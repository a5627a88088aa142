"""One target: its kind, labels, transform and fitted scales, and its way back from JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

Kind = Literal["numeric", "class"]
Transform = Literal["none", "minmax", "zscore", "zscore-category", "log-minmax", "log-zscore"]


@dataclass(frozen=True)
class Scale:
    """An affine scale: encoded = (value - center) / spread."""

    center: float
    spread: float


UNSCALED = Scale(0.0, 1.0)


@dataclass(frozen=True)
class TargetSpec:
    """One metadata column as a target, with what was fitted on the training samples.

    Attributes
    ----------
    name : str
        Metadata column.
    kind : str
        ``numeric`` or ``class``.
    labels : tuple of str
        Names of the classes as the metadata writes them, sorted; empty for a numeric target.
    transform : str
        Transform of a numeric target; ``log`` ones take log(1 + x) first.
    scale : Scale
        Scale of the (logged) values.
    normalize_by : str, optional
        Metadata column whose categories have scales of their own (``zscore-category``).
    categories : dict of str to Scale
        Those scales; a category that is not here uses `scale`.
    bounds : tuple of float, optional
        Smallest and largest training value of a numeric target, in its own units.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...] = ()
    transform: Transform = "none"
    scale: Scale = UNSCALED
    normalize_by: str | None = None
    categories: dict[str, Scale] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None

    @property
    def logged(self) -> bool:
        """Whether values are log(1 + x) before they are scaled."""
        return self.transform.startswith("log-")


def parsed(entry: Any) -> TargetSpec:
    """A target from its JSON object; anything unexpected raises KeyError, TypeError or ValueError."""
    expected = {each.name for each in fields(TargetSpec)}
    if set(entry) != expected:
        raise ValueError(f"found {sorted(entry)}, expected {sorted(expected)}")
    bounds = None if entry["bounds"] is None else tuple(map(_finite, entry["bounds"]))
    spec = TargetSpec(
        name=_word(entry["name"]),
        kind=entry["kind"],
        labels=tuple(map(_word, entry["labels"])),
        transform=entry["transform"],
        scale=_parsed_scale(entry["scale"]),
        normalize_by=None if entry["normalize_by"] is None else _word(entry["normalize_by"]),
        categories={name: _parsed_scale(scale) for name, scale in dict(entry["categories"]).items()},
        bounds=bounds,  # type: ignore[arg-type]
    )
    numeric = spec.kind == "numeric"
    distinct = len(set(spec.labels))
    fits = (bounds is not None and len(bounds) == 2) if numeric else 1 < distinct == len(spec.labels)
    if spec.kind not in get_args(Kind) or spec.transform not in get_args(Transform) or not fits:
        raise ValueError(f"kind, transform, labels and bounds of {spec.name!r} do not belong together")
    return spec


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _finite(value: object) -> float:
    if not isinstance(value, float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no finite number")
    return value


def _parsed_scale(entry: Any) -> Scale:
    scale = Scale(_finite(entry["center"]), _finite(entry["spread"]))
    if scale.spread <= 0:
        raise ValueError(f"spread {scale.spread!r} is not above 0")
    return scale
