"""The description of a saved model, model.json: the classes of the package are its schema.

Nothing is converted, nothing may be missing or added, and numbers have ranges. The arrays next to
it are declared by the estimators that take them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import ValidationError

from aam.config import CovariateConfig, ModelConfig, UnifracMetric
from aam.data.targets import Covariates, Targets
from aam.errors import InputError, shown
from aam.evaluate.conformal import Conformal
from aam.evaluate.likeness import TableLikeness
from aam.options import STRICT, Seed, to_dict, typed
from aam.typing import Count, Label, Number, PositiveCount, Proportion, SmallNumber

MODEL_FORMAT = 6
# Formats of models that the last release reads.
RELEASED, LAST_RELEASE = (1, 2), "aam 0.1.0 (commit afbb84f9)"

# The longest ASV that a model may describe: memory grows with it.
LONGEST = 100_000

# Number of problems that a message lists.
MOST_PROBLEMS = 8


@dataclass(frozen=True)
class InputOptions:
    """Options of the training that predictions, or their evaluation, read."""

    token_limit: PositiveCount = 1024
    group_column: str | None = None
    batch_column: str | None = None
    study_column: str | None = None

    @classmethod
    def of(cls, options: Any) -> InputOptions:
        """Those among the options of a study."""
        return cls(**{name: getattr(options, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Notes:
    """What is known of the training.

    `network` says why the network is a member or is left out; `guesses` are the median or the class
    shares of each target; `intervals` were fitted on the `interval_samples`, which the model has
    not learned from.
    """

    seen_samples: tuple[str, ...] = ()
    labelled_samples: tuple[str, ...] = ()
    labelled_groups: tuple[str, ...] = ()
    interval_samples: tuple[str, ...] = ()
    best_epoch: Count | None = None
    network: str | None = None
    guesses: dict[Label, Number | list[Proportion]] = field(default_factory=dict)
    intervals: dict[Label, Conformal] = field(default_factory=dict)
    likeness: TableLikeness | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a model knows apart from its arrays."""

    data: InputOptions
    model: ModelConfig
    depth: PositiveCount
    seed: Seed
    notes: Notes
    targets: Targets
    covariates: Covariates = field(default_factory=Covariates)


@dataclass(frozen=True)
class NetworkHeads:
    """Heads of a network, as far as they do not follow from targets and covariates."""

    metric: UnifracMetric | None
    scale: tuple[SmallNumber, SmallNumber]
    counts: bool
    covariates: CovariateConfig


@dataclass(frozen=True, kw_only=True)
class Description(ModelFacts):
    """All of model.json. `members` are those that read counts alone."""

    __pydantic_config__ = STRICT

    format: Literal[6]
    version: Annotated[str, Len(1, 100)]
    torch: Annotated[str, Len(1, 100)]
    members: tuple[Literal["presence", "forest"], ...]
    heads: NetworkHeads | None
    reference: Label | None

    def __post_init__(self) -> None:
        """Raise `ValueError` for fields that contradict each other."""
        if problems := list(self._contradictions()):
            raise ValueError("; ".join(problems))

    def _contradictions(self) -> Iterator[str]:
        notes, targets = self.notes, {spec.name: spec for spec in self.targets.specs}
        parts: dict[str, Any] = {f"targets: {name!r}": spec for name, spec in targets.items()}
        parts |= {f"notes.intervals: {name!r}": part for name, part in notes.intervals.items()}
        parts |= {"covariates": self.covariates, "notes.likeness": notes.likeness}
        for place, part in parts.items():
            problems = () if part is None else part.contradictions()
            yield from (f"{place}: {problem}" for problem in problems)
        if len(targets) < len(self.targets.specs):
            yield "targets: two have one name"
        if len(set(self.members)) < len(self.members):
            yield "members: one occurs twice"
        has_members = bool(self.members or (targets and self.heads))
        if has_members != bool(targets):
            yield "members: there are none for the targets, or no targets for them"
        if (self.model.max_bp or 0) > LONGEST:
            yield "model.max_bp: too large"
        if not notes.intervals.keys() <= {spec.name for spec in self.targets.numeric}:
            yield "notes.intervals: one is not of a number"
        for name, guess in notes.guesses.items():
            if name not in targets:
                yield "notes.guesses: one is not of a target"
            elif (len(guess) if isinstance(guess, list) else 0) != len(targets[name].labels):
                yield f"notes.guesses: not as many as classes of {name!r}"


def checked_description(path: Path, value: Any) -> Description:
    """The description in a file.

    Raises `InputError` with every field that is wrong, its value and why. An earlier format is
    refused by its number.
    """
    number = value.get("format") if isinstance(value, dict) else None
    if type(number) is int and 1 <= number < MODEL_FORMAT:
        found = f"a model of format {number}, expected {MODEL_FORMAT}"
        if number in RELEASED:
            found += f": {LAST_RELEASE} reads it; install that version, or train again"
        raise InputError(f"{path}: {found}")
    try:
        description: Description = typed(value, Description)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, each['loc'])) or 'the whole'} is {each['input']!r:.60}: "
            f"{each['msg']:.300}"
            for each in error.errors(include_url=False)
        ]
        more = len(problems) - MOST_PROBLEMS
        listed = "; ".join(problems[:MOST_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        raise InputError(f"{path}: a damaged description: {listed}") from None
    # Defaults stand in for nothing: a file has all of its fields.
    if lacking := [name for name, part in to_dict(description).items() if part != value.get(name)]:
        raise InputError(f"{path}: a damaged description: fields of {shown(lacking)} are missing")
    return description
