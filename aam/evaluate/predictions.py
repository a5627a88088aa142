"""Predictions of samples in the units of their targets, as one table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from aam.data.targets import TargetSpec

Array = npt.NDArray[np.float64]

# Suffixes of columns TARGET.SUFFIX: standard deviation over an ensemble, limits of the conformal interval.
MEMBERS = "member-sd"
LOW = "low"
HIGH = "high"


@dataclass(frozen=True, eq=False)
class PredictionTable:
    """One row per sample.

    Attributes
    ----------
    sample_ids : tuple of str [N]
    specs : tuple of TargetSpec
        The targets, in the order of their columns.
    values : dict of target to float64 [N]
        Numeric targets in their own units; NaN where no prediction was made.
    spreads : dict of target to float64 [N]
        Standard deviation over rarefactions, when there were several.
    probabilities : dict of target to float64 [N, classes]
    quantiles : dict of target to float64 [N, Q]
        At the levels of the target's specification, in own units, where the model predicts them.
    notes : tuple of str [N]
        Why a value is missing; empty otherwise.
    folds : tuple of str [N]
        Fold in which the sample was held out; empty without folds.
    derived : dict of column to float64 [N]
        More of numeric targets, by name of the column: `MEMBERS`, `LOW` and `HIGH` after a dot.
    subsets : tuple of str [N]
        What the sample was to the model: train, validation, test, or calibration (it fitted the conformal intervals);
        empty for a new sample, and for all where nothing is known.
    """

    sample_ids: tuple[str, ...]
    specs: tuple[TargetSpec, ...]
    values: dict[str, Array]
    spreads: dict[str, Array]
    probabilities: dict[str, Array]
    notes: tuple[str, ...]
    folds: tuple[str, ...]
    derived: dict[str, Array] = field(default_factory=dict)
    quantiles: dict[str, Array] = field(default_factory=dict)
    subsets: tuple[str, ...] = ()

    def limits(self, target: str) -> Array | None:
        """Return the limits of the conformal intervals of a target, [N, 2], if there are any."""
        low, high = (self.derived.get(f"{target}.{suffix}") for suffix in (LOW, HIGH))
        return None if low is None or high is None else np.stack([low, high], axis=1)

    def with_limits(self, target: str, limits: Array) -> PredictionTable:
        """Return the table with the conformal intervals [N, 2] of a target."""
        ends = {f"{target}.{suffix}": limits[:, at] for at, suffix in enumerate((LOW, HIGH))}
        return replace(self, derived={**self.derived, **ends})

    def with_rows(self, sample_ids: Sequence[str], notes: dict[str, str]) -> PredictionTable:
        """Return rows for `sample_ids` in their order; those without a prediction are empty and say why."""
        place = {name: row for row, name in enumerate(self.sample_ids)}
        rows = np.array([place.get(name, -1) for name in sample_ids], np.int64)

        def in_order(values: Array) -> Array:
            result = np.full((len(rows), *values.shape[1:]), math.nan)
            result[rows >= 0] = values[rows[rows >= 0]]
            return result

        return replace(
            self,
            sample_ids=tuple(sample_ids),
            values={name: in_order(column) for name, column in self.values.items()},
            spreads={name: in_order(column) for name, column in self.spreads.items()},
            probabilities={name: in_order(columns) for name, columns in self.probabilities.items()},
            derived={name: in_order(column) for name, column in self.derived.items()},
            quantiles={name: in_order(columns) for name, columns in self.quantiles.items()},
            notes=tuple(notes.get(name, "") for name in sample_ids),
            folds=tuple(self.folds[row] if row >= 0 else "" for row in rows),
            subsets=tuple(self.subsets[row] if row >= 0 else "" for row in rows) if self.subsets else (),
        )


def _union_of_bounds(versions: Sequence[TargetSpec]) -> tuple[float, float] | None:
    """Return the smallest and largest training value of a target in any of the tables."""
    bounds = [spec.bounds for spec in versions if spec.bounds is not None]
    return (min(low for low, _ in bounds), max(high for _, high in bounds)) if bounds else None


def _of_same_labels(tables: Sequence[PredictionTable]) -> tuple[tuple[TargetSpec, ...], list[dict[str, Array]]]:
    """Return targets and probabilities of each table over the labels of all; a label that one never saw gets 0."""
    specs, probabilities = [], [dict[str, Array]() for _ in tables]
    for column, versions in enumerate(zip(*(table.specs for table in tables), strict=True)):
        union = {label for version in versions for label in version.labels}
        labels = next((version.labels for version in versions if set(version.labels) == union), tuple(sorted(union)))
        specs.append(spec := replace(versions[0], labels=labels, bounds=_union_of_bounds(versions)))
        for table, of_table in zip(tables, probabilities, strict=True):
            if spec.kind == "class":
                of_table[spec.name] = np.zeros((len(table.sample_ids), len(spec.labels)))
                places = [spec.labels.index(label) for label in table.specs[column].labels]
                of_table[spec.name][:, places] = table.probabilities[spec.name]
    return tuple(specs), probabilities


def joined(tables: Sequence[PredictionTable]) -> PredictionTable:
    """Return the tables one below the other."""
    specs, probabilities = _of_same_labels(tables)

    def below(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    return PredictionTable(
        sum((table.sample_ids for table in tables), ()),
        specs,
        below([table.values for table in tables]),
        below([table.spreads for table in tables]),
        below(probabilities),
        sum((table.notes for table in tables), ()),
        sum((table.folds for table in tables), ()),
        quantiles=below([table.quantiles for table in tables]),
        subsets=sum((table.subsets or ("",) * len(table.sample_ids) for table in tables), ()),
    )


def combined(tables: Sequence[PredictionTable]) -> PredictionTable:
    """Return what several models predict of the same samples: means of values, limits and probabilities.

    The spread over rarefactions is that within a model; the one between the models stands beside it.
    """
    if len(tables) == 1:
        return tables[0]
    specs, probabilities = _of_same_labels(tables)

    def mean(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
        shared = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: np.mean([part[name] for part in parts], axis=0) for name in shared}

    squares = mean([{name: spread**2 for name, spread in table.spreads.items()} for table in tables])
    between = {
        f"{name}.{MEMBERS}": np.std([table.values[name] for table in tables], axis=0) for name in tables[0].values
    }
    return replace(
        tables[0],
        specs=specs,
        values=mean([table.values for table in tables]),
        spreads={name: np.sqrt(square) for name, square in squares.items()},
        probabilities=mean(probabilities),
        derived={**between, **mean([table.derived for table in tables])},
        quantiles=mean([table.quantiles for table in tables]),
    )
