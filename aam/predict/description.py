"""The description of a saved model, model.json: one strict schema of types, ranges and kinds.

`Description` refuses unknown and missing fields, numbers that are not finite, and fields that
contradict each other. The arrays next to it are checked by the estimators that take them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from aam.config import CovariateConfig, DataConfig, FineTuneConfig, Transform, UnifracMetric
from aam.errors import InputError
from aam.options import Seed, configured

# Encoders of earlier formats are read, models with targets are not.
MODEL_FORMAT = 5
# Formats of models that the last release reads.
RELEASED, LAST_RELEASE = (1, 2), "aam 0.1.0 (commit afbb84f9)"

# Options of a study that predictions read. Encoders that plugins ship leave out their defaults.
READ_OF_DATA = {"study_column", "group_column", "token_limit"}

# The longest ASV that a model may describe: memory grows with it.
LONGEST = 100_000

# Rounding of a mean or a standard deviation, as a share of the range of the values.
RANGE_ROUNDING = 1e-6

# How the names of estimators of a kind of target end.
KINDS = {"class": "Classifier", "numeric": "Regressor"}

# Number of problems that a message lists.
MOST_PROBLEMS = 8


def _options(default: Any) -> Any:
    """The type of a section of options, given by name; `ValueError` for a wrong one."""

    def check(values: dict[str, Any]) -> dict[str, Any]:
        try:
            configured(default, values, "model.json")
        except InputError as error:
            raise ValueError("; ".join(error.problems)) from None
        return values

    return Annotated[dict[str, Any], AfterValidator(check)]


def _ordered(values: list[Any]) -> list[Any]:
    """Return values that do not descend; `ValueError` for others."""
    if values != sorted(values):
        raise ValueError("not in ascending order")
    return values


def _distinct(values: list[Any]) -> list[Any]:
    """Return values that are distinct; `ValueError` for others."""
    if len(set(values)) < len(values):
        raise ValueError("a value occurs twice")
    return values


def _ordered_labels(labels: list[str]) -> list[str]:
    """Return labels that ascend as numbers or as text; `ValueError` for others."""
    try:
        _distinct(_ordered([float(label) for label in labels]))
    except ValueError:
        _ordered(labels)
    return labels


Number = Annotated[float, Ge(-1e38), Le(1e38)]
Positive = Annotated[float, Gt(0), Le(1e38)]
NonNegative = Annotated[float, Ge(0), Le(1e9)]
Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(0), Le(2**31)]
PositiveCount = Annotated[int, Ge(1), Le(2**31)]
Name = Annotated[str, Len(1, 10_000)]
Range = Annotated[list[Number], Len(2, 2), AfterValidator(_ordered)]
Labels = Annotated[list[Name], Len(2), AfterValidator(_distinct), AfterValidator(_ordered_labels)]
Categories = Annotated[list[str], Len(1), AfterValidator(_distinct), AfterValidator(_ordered)]
Knots = Annotated[list[Number], Len(1, 100), AfterValidator(_ordered)]
SavedMember = Literal["presence", "forest"]
Features = Literal["presence", "shares", "clr"]


class Part(BaseModel):
    """A part of a description: nothing is converted, nothing may be missing or added."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)

    def _contradictions(self) -> Iterator[str]:
        """Problems that fields have together."""
        yield from ()

    @model_validator(mode="after")
    def check(self) -> Part:
        """Raise `ValueError` for fields that contradict each other."""
        if problems := list(self._contradictions()):
            raise ValueError("; ".join(problems))
        return self


class ScalePart(Part):
    """A scale of numbers: (value - center) / spread."""

    center: Number
    spread: Positive

    def contradictions_with(self, low: float, high: float) -> Iterator[str]:
        """Say why numbers between two bounds cannot have this scale."""
        margin = RANGE_ROUNDING * (high - low) + RANGE_ROUNDING * max(abs(low), abs(high))
        if not low - margin <= self.center <= high + margin:
            yield f"its center is {self.center:g}, expected {low:g} to {high:g}"
        if self.spread > high - low + margin and high > low:
            yield f"its spread is {self.spread:g}, expected at most {high - low:g}"


class ClassPart(Part):
    """A target of classes."""

    name: Name
    kind: Literal["class"]
    labels: Labels
    transform: Literal["none"]
    scale: ScalePart
    bounds: None


class NumberPart(Part):
    """A target of numbers."""

    name: Name
    kind: Literal["numeric"]
    labels: Annotated[list[Name], Len(0, 0)]
    transform: Transform
    scale: ScalePart
    bounds: Range

    def _contradictions(self) -> Iterator[str]:
        low, high = self.bounds
        if self.transform == "none":
            if (self.scale.center, self.scale.spread) != (0, 1):
                yield "it is not transformed and has a scale"
        elif self.transform == "log-zscore" and low <= -1:
            yield f"its smallest value is {low:g}, expected more than -1"
        elif self.transform == "log-zscore":
            yield from self.scale.contradictions_with(math.log1p(low), math.log1p(high))
        else:
            yield from self.scale.contradictions_with(low, high)


TargetPart = Annotated[ClassPart | NumberPart, Field(discriminator="kind")]


class CovariatesPart(Part):
    """Further columns that a model reads."""

    categorical: dict[Name, Categories] = {}
    numeric: dict[Name, ScalePart] = {}
    ranges: dict[Name, Range] = {}

    def _contradictions(self) -> Iterator[str]:
        if self.categorical.keys() & self.numeric.keys():
            yield "a column has two kinds"
        for name, bounds in self.ranges.items():
            if name not in self.numeric:
                yield f"{name!r} has a range and no scale"
            else:
                problems = self.numeric[name].contradictions_with(*bounds)
                yield from (f"{name!r}: {problem}" for problem in problems)


class ConformalPart(Part):
    """The conformal interval of a number."""

    knots: Knots
    scales: Annotated[list[Positive], Len(1, 100)]
    quantile: NonNegative
    floor: Annotated[float, Ge(0), Le(0)] | None

    def _contradictions(self) -> Iterator[str]:
        if len(self.knots) != len(self.scales):
            yield "its knots are not each with a scale"


class LikenessPart(Part):
    """What the training table was like."""

    asvs: Annotated[list[Name], AfterValidator(_distinct)]
    prevalence: list[Share]
    samples: PositiveCount
    most_shift: NonNegative
    most_unseen: Share

    def _contradictions(self) -> Iterator[str]:
        if len(self.asvs) != len(self.prevalence):
            yield "its ASVs are not each with a prevalence"


class NotesPart(Part):
    """What is known of the training."""

    seen_samples: list[str]
    labelled_samples: list[str] = []
    labelled_groups: list[str] = []
    interval_samples: list[str] = []
    command: str | None = None
    best_epoch: Count | None = None
    network: str | None = None
    guesses: dict[Name, Number | list[Share]] = {}
    intervals: dict[Name, ConformalPart] = {}
    likeness: LikenessPart | None = None


class CountsParameters(Part):
    """Parameters of every estimator on counts."""

    depth: PositiveCount
    passes: Annotated[int, Ge(1), Le(100)]
    seed: Seed


class BlendParameters(CountsParameters):
    """Parameters of a blend."""

    members: Annotated[list[SavedMember], Len(1)]


class LinearParameters(CountsParameters):
    """Parameters of a linear model."""

    features: Features


class TreesParameters(LinearParameters):
    """Parameters of trees."""

    kind: Literal["extra", "random"]
    n_estimators: Annotated[int, Ge(1), Le(10**6)]


class LinearFitted(Part):
    """Numbers that a linear model has learned, next to its arrays."""

    penalty_: Positive


class TreesFitted(Part):
    """Numbers that trees have learned, next to their arrays."""


class LinearPart(Part):
    """A linear model."""

    kind: Literal["LinearClassifier", "LinearRegressor"] = Field(alias="class")
    parameters: LinearParameters
    fitted: LinearFitted


class TreesPart(Part):
    """Trees."""

    kind: Literal["TreesClassifier", "TreesRegressor"] = Field(alias="class")
    parameters: TreesParameters
    fitted: TreesFitted


MemberPart = Annotated[LinearPart | TreesPart, Field(discriminator="kind")]


class BlendPart(Part):
    """The estimators that predict a target together."""

    parameters: BlendParameters
    members: dict[SavedMember, MemberPart]

    def _contradictions(self) -> Iterator[str]:
        if list(self.members) != self.parameters.members:
            yield f"its members are {[*self.members]}, not those of its parameters"


class HeadsPart(Part):
    """Heads of a network."""

    metric: UnifracMetric | None
    scale: Annotated[list[NonNegative], Len(2, 2)]
    counts: bool
    n_targets: Count
    n_classes: list[Count]
    levels: list[Count]
    numbers: Count
    covariates: _options(CovariateConfig())  # type: ignore[valid-type]


class Description(Part):
    """All of model.json."""

    format: Annotated[int, Ge(1), Le(MODEL_FORMAT)]
    version: Annotated[str, Len(1, 100)]
    torch: Annotated[str, Len(1, 100)]
    depth: PositiveCount
    seed: Seed
    data: _options(DataConfig())  # type: ignore[valid-type]
    model: _options(FineTuneConfig().model)  # type: ignore[valid-type]
    covariates: CovariatesPart = CovariatesPart()
    notes: NotesPart
    targets: list[TargetPart]
    blends: list[BlendPart] = []
    heads: HeadsPart | None
    reference: Name | None = None

    def _contradictions(self) -> Iterator[str]:
        if len({target.name for target in self.targets}) < len(self.targets):
            yield "targets: two have one name"
        has_options = self.data.keys() >= READ_OF_DATA and "max_bp" in self.model
        if self.targets and not has_options:
            yield "data, model: options that predictions read are missing"
        if (self.model.get("max_bp") or 0) > LONGEST:
            yield "model.max_bp: too large"
        yield from self._contradictions_of_notes()
        yield from self._contradictions_of_blends()
        yield from self._contradictions_of_heads()

    def _contradictions_of_notes(self) -> Iterator[str]:
        targets, guesses = {target.name: target for target in self.targets}, self.notes.guesses
        numbers = {name for name, target in targets.items() if target.kind == "numeric"}
        if not self.notes.intervals.keys() <= numbers:
            yield "notes.intervals: one is not of a number"
        if not guesses.keys() <= targets.keys():
            yield "notes.guesses: one is not of a target"
        for name, guess in guesses.items():
            size = len(guess) if isinstance(guess, list) else 0
            if name in targets and size not in (len(targets[name].labels), 1):
                yield f"notes.guesses: not as many as classes of {name!r}"

    def _contradictions_of_blends(self) -> Iterator[str]:
        if len(self.blends) != len(self.targets) and (self.blends or self.heads is None):
            yield "blends: their number is not that of the targets"
        if len({tuple(blend.members) for blend in self.blends}) > 1:
            yield "blends: their members are not the same for all targets"
        numbers_first = sorted(self.targets, key=lambda target: target.kind == "class")
        for target, blend in zip(numbers_first, self.blends, strict=False):
            kind, members = KINDS[target.kind], blend.members.values()
            if any(not member.kind.endswith(kind) for member in members):
                yield f"blends: those of {target.name!r} do not predict its kind"
            parameters = (blend.parameters, *(member.parameters for member in members))
            if any((part.depth, part.seed) != (self.depth, self.seed) for part in parameters):
                yield "blends: their depth or seed is not that of the model"

    def _contradictions_of_heads(self) -> Iterator[str]:
        heads, covariates = self.heads, self.covariates
        if heads is None or not self.targets:
            return
        classes = [len(target.labels) for target in self.targets if target.kind == "class"]
        numbers = len(self.targets) - len(classes)
        if (heads.n_targets, heads.n_classes) != (numbers, classes):
            yield "heads: not those of the targets"
        levels = [1 + len(categories) for categories in covariates.categorical.values()]
        if (heads.levels, heads.numbers) != (levels, len(covariates.numeric)):
            yield "heads: not those of the covariates"


def checked_description(path: Path, value: Any) -> dict[str, Any]:
    """The fields of a description, integers as floats where numbers are real.

    Raises `InputError` with every field that is wrong, its value and why. A model with targets of
    an earlier format is refused by its number.
    """
    is_dict = isinstance(value, dict)
    number = value.get("format") if is_dict else None
    is_earlier = type(number) is int and 1 <= number < MODEL_FORMAT
    if is_earlier and value.get("targets"):
        found = f"a model of format {number}, expected {MODEL_FORMAT}"
        if number in RELEASED:
            found += f": {LAST_RELEASE} reads it; install that version, or train again"
        raise InputError(f"{path}: {found}")
    if is_earlier and isinstance(notes := value.get("notes"), dict):
        # Earlier encoders have notes that nobody reads.
        notes = {name: notes[name] for name in notes if name in NotesPart.model_fields}
        value = {**value, "notes": notes}
    try:
        return Description.model_validate(value).model_dump(by_alias=True, exclude_unset=True)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, each['loc'])) or 'the whole'} is {each['input']!r:.60}: "
            f"{each['msg']:.300}"
            for each in error.errors(include_url=False)
        ]
        more = len(problems) - MOST_PROBLEMS
        listed = "; ".join(problems[:MOST_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        raise InputError(f"{path}: a damaged description: {listed}") from None
