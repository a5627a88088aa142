"""The samples of a report: an ordination of them, and those predicted worst."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import sparse

from aam.diversity.distances import bray_curtis
from aam.evaluate.evaluation import Evaluation
from aam.evaluate.intervals import number
from aam.evaluate.metrics import Array, sorted_levels
from aam.evaluate.predictions import TargetPredictions
from aam.io.tables import AmpliconTable
from aam.report.charts import LIGHT, RAMP, Figure, levels, points, sized, x_axis, y_axis
from aam.report.tables import Table

# Maximum number of samples that are compared, the number with many ASVs, and the maximum of samples
# times ASVs.
MOST_SAMPLES, LEAST_SAMPLES, MOST_ENTRIES = 500, 200, 6_000_000

# Number of samples that are listed as the worst.
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
        All samples; these may be a part of them.
    """

    sample_ids: tuple[str, ...]
    points: Array
    shares: Array
    total: int


def worst_rows(complete: TargetPredictions, most: int = WORST_SAMPLES) -> Array:
    """Rows of the samples that are predicted worst, the worst first."""
    return np.argsort(-complete.errors, kind="stable")[:most]


def pcoa(distances: Array) -> tuple[Array, Array]:
    """Coordinates [N, 2] of a classical ordination of distances [N, N], and the share of each axis.

    Shares are of the sum of all positive eigenvalues (Gower 1966).
    """
    squared = -0.5 * distances.astype(np.float64) ** 2
    centred = squared - squared.mean(axis=0) - squared.mean(axis=1, keepdims=True) + squared.mean()
    values, vectors = np.linalg.eigh(centred)
    largest, total = np.maximum(values[[-1, -2]], 0.0), np.maximum(values, 0.0).sum()
    return np.asarray(vectors[:, [-1, -2]] * np.sqrt(largest)), largest / (total or 1.0)


def surroundings(
    table: AmpliconTable, predictions: Sequence[TargetPredictions]
) -> Surroundings | None:
    """Ordinate the predicted samples of a table: all, or a random part and the worst.

    None for fewer than `FEWEST` samples. The choice of samples is the same every time.
    """
    complete = [target.complete() for target in predictions]
    known = dict.fromkeys(
        name for target in complete for name in target.sample_ids if name in table.row_of
    )
    if len(known) < FEWEST:
        return None
    rows, most = np.array([table.row_of[name] for name in known]), MOST_SAMPLES
    if len(rows) * table.counts.shape[1] > MOST_ENTRIES:
        most = min(most, max(LEAST_SAMPLES, MOST_ENTRIES // max(len(table.columns_of(rows)), 1)))
    if len(rows) > most:
        worst = {target.sample_ids[at] for target in complete for at in worst_rows(target).tolist()}
        first = np.array([table.row_of[name] for name in known if name in worst], np.int64)
        others = np.random.default_rng(0).permutation(np.setdiff1d(rows, first))
        rows = np.sort(np.r_[first, others[: most - len(first)]])
    points, shares = pcoa(bray_curtis(sparse.csr_matrix(table.counts[rows])))
    return Surroundings(tuple(table.sample_ids[row] for row in rows), points, shares, len(known))


def _fifths(values: Array) -> tuple[list[str], dict[str, int]]:
    """The fifth that each value [N] is in, named by its ends, and the colour of each from low to
    high.
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
) -> Iterator[tuple[str, str, list[str], dict[str, int]]]:
    """File, title and colours of the samples: by truth, and by batch or group if those are few."""
    names, labels = result.names, complete.labels
    if not labels:
        yield "truth", names.target, *_fifths(complete.truth)
    elif len(labels) <= len(LIGHT):
        classes = [labels[at] for at in complete.truth.tolist()]
        yield "truth", names.target, classes, {name: k for k, name in enumerate(labels)}
    for name, values in ((names.batch, complete.batch), (names.group, complete.groups)):
        kinds = [] if values is None else [str(level) for level in sorted_levels(values)]
        if values is not None and 1 < len(kinds) <= len(LIGHT):
            yield "group", name, list(map(str, values)), {kind: k for k, kind in enumerate(kinds)}
            return


@lru_cache(maxsize=4)
def sample_figures(result: Evaluation, around: Surroundings | None) -> list[Figure]:
    """Ordination of the samples in the colours of their truth, and batch or group, made once."""
    if around is None:
        return []
    complete = result.predictions.complete()
    row_of = {name: row for row, name in enumerate(complete.sample_ids)}
    here = [at for at, name in enumerate(around.sample_ids) if name in row_of]
    if len(here) < FEWEST:
        return []
    part = complete.at(np.array([row_of[around.sample_ids[at]] for at in here]))
    caption = "Nearby samples share ASVs (principal coordinates of Bray-Curtis distances)."
    if len(around.sample_ids) < around.total:
        caption += (
            f" {len(here)} of {around.total} samples are drawn: those predicted worst and a random "
            "part of the others."
        )
    axes = [f"axis {at + 1} ({100 * share:.0f} %)" for at, share in enumerate(around.shares)]
    figures = []
    for file, name, kinds, colours in _colourings(result, part):
        rows = [
            {"x": x, "y": y, "kind": kind, "tip": f"{sample}: {kind}"}
            for (x, y), kind, sample in zip(
                around.points[here].tolist(), kinds, part.sample_ids, strict=True
            )
        ]
        chart = points(rows, x_axis(axes[0]), y_axis(axes[1]), levels("kind", colours))
        title = f"The samples, coloured by {name}"
        words = f"{title}: {len(rows)} samples on {' and '.join(axes)}."
        figures.append(Figure(f"samples-by-{file}", title, words, sized(chart), caption))
    return figures


def worst_table(result: Evaluation) -> list[Table]:
    """The samples with the largest errors."""
    complete, names = result.predictions.complete(), result.names
    if not len(complete.truth):
        return []
    known = {names.group: complete.groups, names.batch: complete.batch, "fold": complete.fold}
    columns = {name: values for name, values in known.items() if values is not None}
    labels, third = complete.labels, "absolute error"
    part = complete.at(worst_rows(complete))
    if labels:
        third = "probability of the true class"
        cells = [
            [labels[true], labels[int(shares.argmax())], number(float(shares[true]))]
            for true, shares in zip(part.truth.tolist(), part.predicted, strict=True)
        ]
    else:
        numbers = np.stack([part.truth, part.predicted, part.errors], axis=1)
        cells = [[number(value) for value in row] for row in numbers.tolist()]
    rows = worst_rows(complete).tolist()
    body = tuple(
        (name, *of, *(str(values[at]) for values in columns.values()))
        for name, of, at in zip(part.sample_ids, cells, rows, strict=True)
    )
    header = ("sample-id", f"true {names.target}", f"predicted {names.target}", third, *columns)
    return [Table(f"The {len(body)} samples predicted worst", header, body, "worst")]
