"""The samples of a report: an ordination of them, and those predicted worst."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import sparse

from aam.diversity.batch import bray_curtis
from aam.evaluate.evaluation import Evaluation
from aam.evaluate.intervals import number
from aam.evaluate.metrics import Array, sorted_levels
from aam.evaluate.target_predictions import TargetPredictions
from aam.io.tables import AmpliconTable
from aam.report.charts import LIGHT, RAMP, Figure
from aam.report.tables import Table
from aam.report.training_figures import ordination_figure, pcoa

# Distances are taken between at most so many samples, of fewer where they have many ASVs: samples
# times ASVs at once.
MOST_SAMPLES, LEAST_SAMPLES, MOST_ENTRIES = 500, 200, 6_000_000

# So many samples are listed as the worst.
WORST_SAMPLES = 15

# Fewer samples are no picture.
FEWEST = 10


@dataclass(frozen=True, eq=False)
class Surroundings:
    """N samples of a table, and how they lie to each other.

    Attributes
    ----------
    sample_ids : tuple of str [N]
    points : float64 [N, 2]
        Principal coordinates of Bray-Curtis distances.
    shares : float64 [2]
        The share of the variation that each axis holds.
    total : int
        The samples of which these are a part.
    """

    sample_ids: tuple[str, ...]
    points: Array
    shares: Array
    total: int

    def at(self, complete: TargetPredictions) -> tuple[Array, Array]:
        """Return which samples have a truth and a prediction, as rows here and rows of
        `complete`.
        """
        row_of = {name: row for row, name in enumerate(complete.sample_ids)}
        pairs = [
            (here, row_of[name]) for here, name in enumerate(self.sample_ids) if name in row_of
        ]
        here, there = np.array(pairs, np.int64).reshape(-1, 2).T
        return here, there


def worst_rows(complete: TargetPredictions, most: int) -> Array:
    """Return the rows of the samples that are predicted worst, the worst first."""
    return np.argsort(-complete.errors, kind="stable")[:most]


def surroundings(
    table: AmpliconTable, predictions: Sequence[TargetPredictions]
) -> Surroundings | None:
    """Return how the predicted samples of a table lie to each other: a random part, with the worst
    of each target.

    There is nothing for fewer than `FEWEST` samples. The choice of samples is the same every time.
    """
    complete = [one.complete() for one in predictions]
    worst = [
        one.sample_ids[at] for one in complete for at in worst_rows(one, WORST_SAMPLES).tolist()
    ]
    known = dict.fromkeys(
        name for one in complete for name in one.sample_ids if name in table.row_of
    )
    if len(known) < FEWEST:
        return None
    rows = _chosen(table, list(known), {name for name in worst if name in known})
    points, shares = pcoa(bray_curtis(sparse.csr_matrix(table.counts[rows])))
    return Surroundings(tuple(table.sample_ids[row] for row in rows), points, shares, len(known))


def _chosen(table: AmpliconTable, names: Sequence[str], kept: Collection[str]) -> Array:
    """Return the rows of the samples between which distances are taken: those `kept`, and a random
    part of all.
    """
    rows = np.array([table.row_of[name] for name in names])
    most = MOST_SAMPLES
    if len(rows) * table.counts.shape[1] > MOST_ENTRIES:
        most = min(most, max(LEAST_SAMPLES, MOST_ENTRIES // max(len(table.columns_of(rows)), 1)))
    if len(rows) <= most:
        return rows
    first = [table.row_of[name] for name in kept]
    drawn = np.random.default_rng(0).permutation(np.setdiff1d(rows, first))[: most - len(first)]
    return np.sort(np.r_[np.array(first, np.int64), drawn])


def _fifths(values: Array) -> tuple[list[str], dict[str, int]]:
    """Return the fifth that each value [N] is in, named by its ends, and the colour of each from
    low to high.
    """
    edges = np.unique(np.quantile(values, np.linspace(0, 1, len(RAMP) + 1)))
    texts = [number(edge) for edge in edges.tolist()]
    if len(set(texts)) < len(texts):
        texts = [f"{edge:.9g}" for edge in edges.tolist()]
    names = [f"{low} to below {high}" for low, high in itertools.pairwise(texts[:-1])]
    names.append(" to ".join(texts[-2:]))
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(names) - 1)
    first = len(LIGHT) + (len(RAMP) - len(names)) // 2
    return [names[at] for at in place.tolist()], {name: first + at for at, name in enumerate(names)}


def _colourings(
    result: Evaluation, complete: TargetPredictions
) -> list[tuple[str, str, list[str], dict[str, int]]]:
    """Return file, title, and the colours of the samples: by truth, error, and batch or group if
    those are few.
    """
    names, labels = result.names, complete.labels
    colourings = []
    if not labels:
        colourings.append(("truth", f"coloured by {names.target}", *_fifths(complete.truth)))
    elif len(labels) <= len(LIGHT):
        classes = [labels[at] for at in complete.truth.tolist()]
        colourings.append(
            (
                "truth",
                f"coloured by {names.target}",
                classes,
                {name: k for k, name in enumerate(labels)},
            )
        )
    kind = "1 - probability of the true class" if labels else "absolute error"
    colourings.append(("error", f"coloured by {kind}", *_fifths(complete.errors)))
    for name, values in ((names.batch, complete.batch), (names.group, complete.groups)):
        some = [] if values is None else sorted_levels(values)
        if values is not None and 1 < len(some) <= len(LIGHT):
            colours = {str(level): at for at, level in enumerate(some)}
            return [
                *colourings,
                ("group", f"coloured by {name}", list(map(str, values.tolist())), colours),
            ]
    return colourings


@lru_cache(maxsize=4)
def sample_figures(result: Evaluation, around: Surroundings | None) -> list[Figure]:
    """Return the ordination of the samples in the colours of their truth, error, and batch or
    group, made once.
    """
    if around is None:
        return []
    complete = result.predictions.complete()
    here, there = around.at(complete)
    if len(here) < FEWEST:
        return []
    part = complete.at(there)
    of = ""
    if len(around.sample_ids) < around.total:
        of = (
            f" Drawn are {len(here)} of {around.total} samples: those predicted worst and a "
            "random part of the others, "
            "since distances between more samples, or of more ASVs, take long."
        )
    caption = f"Near samples share their ASVs (principal coordinates of Bray-Curtis distances).{of}"
    ordination = around.points[here], around.shares
    return [
        ordination_figure(
            f"samples-by-{file}",
            f"The samples, {title}",
            ordination,
            kinds,
            colours,
            [f"{sample}: {kind}" for sample, kind in zip(part.sample_ids, kinds, strict=True)],
            caption,
        )
        for file, title, kinds, colours in _colourings(result, part)
    ]


def worst_table(result: Evaluation) -> list[Table]:
    """The samples with the largest errors."""
    complete, names = result.predictions.complete(), result.names
    if not len(complete.truth):
        return []
    known = {names.group: complete.groups, names.batch: complete.batch, "fold": complete.fold}
    columns = {name: values for name, values in known.items() if values is not None}
    labels, rows = complete.labels, worst_rows(complete, WORST_SAMPLES)

    def value(at: int) -> tuple[str, str, str]:
        if labels:
            true, shares = int(complete.truth[at]), complete.predicted[at]
            return labels[true], labels[int(np.argmax(shares))], number(float(shares[true]))
        cells = (complete.truth[at], complete.predicted[at], complete.errors[at])
        true_, predicted, error = (number(float(cell)) for cell in cells)
        return true_, predicted, error

    third = "probability of the true one" if labels else "absolute error"
    header = ("sample-id", f"true {names.target}", f"predicted {names.target}", third, *columns)
    body = [
        (complete.sample_ids[at], *value(at), *(str(v[at]) for v in columns.values()))
        for at in rows.tolist()
    ]
    return [Table(f"The {len(body)} samples predicted worst", header, tuple(body), "worst")]
