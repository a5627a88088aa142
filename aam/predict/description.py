"""The description of a saved model, model.json: one strict schema of types, ranges and kinds.

`Description` refuses unknown and missing fields, numbers that are not finite, and fields that
contradict each other. The arrays next to it are checked by the estimators that take them.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence
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
RELEASED, LAST_RELEASE = (1, 2), "aam v0.1.0-complete"

# Options of a study that predictions read. Encoders that plugins ship leave out their defaults.
READ_OF_DATA = {"study_column", "group_column", "token_limit"}

# The longest ASV that a model may describe: memory grows with it.
LONGEST = 100_000

# Rounding of a mean or a standard deviation, as a share of the range of the values.
RANGE_ROUNDING = 1e-6

# Number of problems that a message lists.
MOST_PROBLEMS = 8

Number = Annotated[float, Ge(-1e38), Le(1e38)]
Positive = Annotated[float, Gt(0), Le(1e38)]
NonNegative = Annotated[float, Ge(0), Le(1e9)]
Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(0), Le(2**31)]
PositiveCount = Annotated[int, Ge(1), Le(2**31)]
Name = Annotated[str, Len(1, 10_000)]
Pair = Annotated[list[Number], Len(2, 2)]
SavedMember = Literal["presence", "forest"]
Features = Literal["presence", "shares", "clr"]


def _options(default: Any) -> Any:
    """The type of a section of options, given by name; `ValueError` for a wrong one."""

    def check(values: dict[str, Any]) -> dict[str, Any]:
        try:
            configured(default, values, "model.json")
        except InputError as error:
            raise ValueError("; ".join(error.problems)) from None
        return values

    return Annotated[dict[str, Any], AfterValidator(check)]


def _ascends(values: Sequence[Any]) -> bool:
    """Whether each value is larger than the one before."""
    return all(low < high for low, high in itertools.pairwise(values))


class Part(BaseModel):
    """A part of a description: nothing is converted, nothing may be missing or added."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class ScalePart(Part):
    """A scale of numbers: (value - center) / spread."""

    center: Number
    spread: Positive

    def problem(self, low: float, high: float) -> str:
        """Why numbers between two bounds cannot have this scale; empty if they can."""
        margin = RANGE_ROUNDING * (high - low) + RANGE_ROUNDING * max(abs(low), abs(high))
        if not low - margin <= self.center <= high + margin:
            return f"its center is {self.center:g}, expected {low:g} to {high:g}"
        if self.spread > high - low + margin and high > low:
            return f"its spread is {self.spread:g}, expected at most {high - low:g}"
        return ""


class TargetPart(Part):
    """A target: its classes, or its scale and bounds."""

    name: Name
    kind: Literal["numeric", "class"]
    labels: list[Name]
    transform: Transform
    scale: ScalePart
    bounds: Pair | None

    @model_validator(mode="after")
    def check(self) -> TargetPart:
        """Raise `ValueError` for parts that contradict each other."""
        if self.kind == "class":
            is_sorted = _ascends(self.labels)
            with contextlib.suppress(ValueError):
                is_sorted |= _ascends([float(label) for label in self.labels])
            if len(self.labels) < 2 or not is_sorted:
                raise ValueError("its labels are not two or more in ascending order")
            if self.bounds is not None or self.transform != "none":
                raise ValueError("classes have no bounds and no transform")
            return self
        if self.labels or self.bounds is None or not self.bounds[0] <= self.bounds[1]:
            raise ValueError("a number has no labels, and two bounds in ascending order")
        low, high = self.bounds
        if self.transform == "log-zscore":
            if low <= -1:
                raise ValueError(f"its smallest value is {low:g}, expected more than -1")
            low, high = math.log1p(low), math.log1p(high)
        if self.transform == "none" and (self.scale.center, self.scale.spread) != (0, 1):
            raise ValueError("it is not transformed and has a scale")
        if self.transform != "none" and (problem := self.scale.problem(low, high)):
            raise ValueError(problem)
        return self


class CovariatesPart(Part):
    """Further columns that a model reads."""

    categorical: dict[Name, list[str]] = {}
    numeric: dict[Name, ScalePart] = {}
    ranges: dict[Name, Pair] = {}

    @model_validator(mode="after")
    def check(self) -> CovariatesPart:
        """Raise `ValueError` for parts that contradict each other."""
        for name, levels in self.categorical.items():
            if not levels or not _ascends(levels):
                raise ValueError(f"the categories of {name!r} do not ascend")
        if self.categorical.keys() & self.numeric.keys() or self.ranges.keys() - self.numeric:
            raise ValueError("a column has two kinds, or a range and no scale")
        for name, (low, high) in self.ranges.items():
            if low > high or (problem := self.numeric[name].problem(low, high)):
                raise ValueError(f"{name!r}: {problem if low <= high else 'its range descends'}")
        return self


class ConformalPart(Part):
    """The conformal interval of a number."""

    knots: Annotated[list[Number], Len(1, 100)]
    scales: Annotated[list[Positive], Len(1, 100)]
    quantile: NonNegative
    floor: Annotated[float, Ge(0), Le(0)] | None

    @model_validator(mode="after")
    def check(self) -> ConformalPart:
        """Raise `ValueError` for parts that contradict each other."""
        if len(self.knots) != len(self.scales) or self.knots != sorted(self.knots):
            raise ValueError("its knots are not in ascending order, each with a scale")
        return self


class LikenessPart(Part):
    """What the training table was like."""

    asvs: list[Name]
    prevalence: list[Share]
    samples: PositiveCount
    most_shift: NonNegative
    most_unseen: Share

    @model_validator(mode="after")
    def check(self) -> LikenessPart:
        """Raise `ValueError` for parts that contradict each other."""
        if len(self.asvs) != len(self.prevalence) or len({*self.asvs}) != len(self.asvs):
            raise ValueError("its ASVs are not distinct, each with a prevalence")
        return self


class NotesPart(Part):
    """What is known of the training."""

    seen_samples: list[str]
    labelled_samples: list[str] = []
    interval_samples: list[str] = []
    command: str | None = None
    best_epoch: Count | None = None
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

    @model_validator(mode="after")
    def check(self) -> BlendPart:
        """Raise `ValueError` for members that are not those of the parameters."""
        if list(self.members) != self.parameters.members:
            raise ValueError(f"its members are {[*self.members]}, not those of its parameters")
        return self


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

    @model_validator(mode="after")
    def check(self) -> Description:
        """Raise `ValueError` for parts that contradict each other."""
        numbers = [target for target in self.targets if target.kind == "numeric"]
        classes = [target for target in self.targets if target.kind == "class"]
        columns, names = self.covariates, {target.name for target in self.targets}
        problems = {
            "targets: two have one name": len(names) < len(self.targets),
            "blends: their number is not that of the targets": len(self.blends)
            not in ({0, len(names)} if self.heads is not None else {len(names)}),
            "notes.intervals: one is not of a number": not self.notes.intervals.keys()
            <= {target.name for target in numbers},
            "notes.guesses: one is not of a target": not self.notes.guesses.keys() <= names,
            "data, model: options that predictions read are missing": bool(self.targets)
            and not (self.data.keys() >= READ_OF_DATA and "max_bp" in self.model),
            "model.max_bp: too large": (self.model.get("max_bp") or 0) > LONGEST,
        }
        for target, blend in zip([*numbers, *classes], self.blends, strict=False):
            kind = "Classifier" if target.kind == "class" else "Regressor"
            members = blend.members.values()
            wrong = any(not member.kind.endswith(kind) for member in members)
            problems[f"blends: those of {target.name!r} do not predict its kind"] = wrong
            parameters = (blend.parameters, *(member.parameters for member in members))
            differ = any((each.depth, each.seed) != (self.depth, self.seed) for each in parameters)
            problems["blends: their depth or seed is not that of the model"] = differ
        for target in self.targets:
            guess = self.notes.guesses.get(target.name, 0.0)
            size = len(guess) if isinstance(guess, list) else 0
            is_wrong = target.name in self.notes.guesses and size not in (len(target.labels), 1)
            problems[f"notes.guesses: not as many as classes of {target.name!r}"] = is_wrong
        if (heads := self.heads) is not None and self.targets:
            of_targets = len(numbers), [len(target.labels) for target in classes]
            expected = [1 + len(levels) for levels in columns.categorical.values()]
            problems |= {
                "heads: not those of the targets": (heads.n_targets, heads.n_classes) != of_targets,
                "heads: not those of the covariates": (heads.levels, heads.numbers)
                != (expected, len(columns.numeric)),
            }
        if wrong_parts := [problem for problem, is_there in problems.items() if is_there]:
            raise ValueError("; ".join(wrong_parts))
        return self


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
