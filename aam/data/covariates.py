"""Covariates: metadata columns that a model reads beside the ASVs, fitted on the training samples."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aam.config import CovariateConfig
from aam.data.targets import Scale
from aam.errors import InputError, Problems, shown
from aam.io.metadata import Metadata


@dataclass(frozen=True)
class Covariates:
    """Columns that a model reads beside the ASVs.

    Attributes
    ----------
    categorical : dict
        The categories of the training samples by column, sorted.
    numeric : dict
        The scale of each column, from the training samples.
    ranges : dict
        Smallest and largest training value of each numeric column; models of earlier versions have none.
    """

    categorical: dict[str, tuple[str, ...]] = field(default_factory=dict)
    numeric: dict[str, Scale] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        return (*self.categorical, *self.numeric)

    def encode(self, metadata: Metadata | None, ids: Sequence[str]) -> dict[str, Any]:
        """Return `category` int64 [N, C], 0 where empty or new, and `covariate` float32 [N, M], NaN where missing.

        Without metadata every value is unknown; nothing is returned where there are no columns. Raises `InputError`
        for text among numbers; `warnings` tells of values that differ from those of training.
        """
        if not self.columns:
            return {}
        category = np.zeros((len(ids), len(self.categorical)), np.int64)
        covariate = np.full((len(ids), len(self.numeric)), math.nan, np.float32)
        if metadata is None:
            return {"category": category, "covariate": covariate}
        for column, (name, levels) in enumerate(self.categorical.items()):
            code_of = {level: code for code, level in enumerate(levels, start=1)}
            category[:, column] = [code_of.get(value or "", 0) for value in metadata.categories(name, ids)]
        for column, (name, scale) in enumerate(self.numeric.items()):
            covariate[:, column] = (metadata.numbers(name, ids) - scale.center) / scale.spread
        return {"category": category, "covariate": covariate}

    def warnings(self, metadata: Metadata, ids: Sequence[str]) -> list[str]:
        """Return a sentence for each way in which the values of the samples `ids` differ from those of training.

        Missing values, categories that no training sample has, and numbers outside the training range.
        """
        messages = self.unknown_values(metadata, ids)
        for name in self.ranges:
            messages += self._out_of_range(name, metadata, ids)
        return messages

    def unknown_values(self, metadata: Metadata, ids: Sequence[str]) -> list[str]:
        """Return a sentence for each column of the samples `ids` with missing values, or categories never trained."""
        messages: list[str] = []
        for name in self.columns:
            where = f"{metadata.source}: covariate {name!r}"
            values = metadata.categories(name, ids) if name in self.categorical else metadata.values(name, ids)
            if missing := sum(value is None for value in values):
                share = "all" if missing == len(ids) else f"{missing} of"
                messages.append(f"{where} has no value for {share} {len(ids)} samples; read as unknown")
            if name in self.categorical:
                messages += self._new_categories(where, name, values)
        return messages

    def _new_categories(self, where: str, name: str, values: Sequence[str | None]) -> list[str]:
        levels = self.categorical[name]
        new = Counter(value for value in values if value is not None and value not in levels)
        if not new:
            return []
        names = shown(sorted(new))
        return [
            f"{where}: {new.total()} samples are in categories that no training sample has ({names}); read as unknown"
        ]

    def _out_of_range(self, name: str, metadata: Metadata, ids: Sequence[str]) -> list[str]:
        low, high = self.ranges[name]
        numbers = metadata.numbers(name, ids)
        outside = np.flatnonzero((numbers < low) | (numbers > high))
        if not len(outside):
            return []
        beyond = np.maximum(low - numbers[outside], numbers[outside] - high)
        farthest = outside[int(np.argmax(beyond))]
        return [
            f"{metadata.source}: covariate {name!r}: {len(outside)} of {len(ids)} samples lie outside the training "
            f"range, {low:g} to {high:g}; the "
            f"farthest is {numbers[farthest]:g} (sample {ids[farthest]!r}); is it in the same unit?"
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data, which `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Covariates:
        """Return the covariates from the parsed JSON that `to_json` gave."""
        levels = {name: tuple(map(str, levels)) for name, levels in value["categorical"].items()}
        scales = {name: Scale(**scale) for name, scale in value["numeric"].items()}
        ranges = {name: (float(low), float(high)) for name, (low, high) in value.get("ranges", {}).items()}
        return cls(levels, scales, ranges)


def fit_covariates(metadata: Metadata, config: CovariateConfig, train_ids: Sequence[str]) -> Covariates:
    """Fit categories and scales on the training samples.

    Raises
    ------
    InputError
        With every column that is constant or empty there, or holds text among numbers.
    """
    covariates, problems = Covariates(), Problems()
    metadata.require([*config.categorical_columns, *config.numeric_columns])
    for name in (*config.categorical_columns, *config.numeric_columns):
        categorical = name in config.categorical_columns
        values = metadata.categories(name, train_ids) if categorical else metadata.values(name, train_ids)
        levels = sorted({value for value in values if value is not None})
        if len(levels) < 2:
            problems.add(
                f"{metadata.source}: covariate {name!r} is {shown(levels) or 'missing'} for all {len(train_ids)} "
                "training samples and tells nothing; leave it out"
            )
        elif categorical:
            covariates.categorical[name] = tuple(levels)
        else:
            try:
                numbers = np.sort(metadata.numbers(name, train_ids))
            except InputError as error:
                problems.extend(error)
                continue
            spread = float(np.nanstd(numbers))
            covariates.numeric[name] = Scale(float(np.nanmean(numbers)), spread if spread > 0 else 1.0)
            covariates.ranges[name] = (float(np.nanmin(numbers)), float(np.nanmax(numbers)))
    problems.raise_if_any()
    return covariates
