"""The samples of a report: an ordination of them, those predicted worst, and why one of these may
be odd.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import sparse

from aam.data.table import SampleTable
from aam.diversity.batch import bray_curtis
from aam.evaluate.intervals import number
from aam.evaluate.larger_errors import LARGER, WorseLevel, larger_errors
from aam.evaluate.metrics import Array, sorted_levels
from aam.evaluate.target_predictions import TargetPredictions
from aam.io.metadata import is_number
from aam.report.charts import LIGHT, RAMP, Figure
from aam.report.report import TargetResult
from aam.report.tables import Table
from aam.report.training_figures import ordination_figure, pcoa

# Distances are taken between at most so many samples, of fewer where they have many ASVs: samples
# times ASVs at once.
MOST_SAMPLES, LEAST_SAMPLES, MOST_ENTRIES = 500, 200, 6_000_000

# So many samples are listed as the worst.
WORST_SAMPLES = 15

# Fewer samples are no picture.
FEWEST = 10

NEIGHBOURS = 5

# The share of the samples that counts as an edge: fewest reads, most ASVs, furthest from all
# others, extreme truth.
EDGE = 0.05

# A class is rare where it has no more of the samples than this.
RARE_CLASS = 0.05


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
    reads, richness : int64 [N]
        Reads and ASVs of each sample.
    nearest : float64 [N]
        The distance to the nearest other sample.
    neighbours : int64 [N, 5]
        The nearest other samples.
    total : int
        The samples of which these are a part.
    """

    sample_ids: tuple[str, ...]
    points: Array
    shares: Array
    reads: Array
    richness: Array
    nearest: Array
    neighbours: Array
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
    table: SampleTable, predictions: Sequence[TargetPredictions]
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
    counts = sparse.csr_matrix(table.counts[rows])
    distances = bray_curtis(counts)
    points, shares = pcoa(distances)
    np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1, kind="stable")[:, :NEIGHBOURS]
    return Surroundings(
        sample_ids=tuple(table.sample_ids[row] for row in rows),
        points=points,
        shares=shares,
        reads=np.asarray(counts.sum(axis=1)).ravel(),
        richness=np.diff(counts.indptr),
        nearest=distances[np.arange(len(rows)), order[:, 0]],
        neighbours=order,
        total=len(known),
    )


def _chosen(table: SampleTable, names: Sequence[str], kept: Collection[str]) -> Array:
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


def column_figure(
    distances: Array,
    sample_ids: Sequence[str],
    column: str,
    values: Sequence[str | None],
    name: str,
    total: int,
) -> Figure:
    """Return the ordination of samples by their distances [N, N], in the colours of a metadata
    column.

    Numbers are shown as fifths, of classes the most frequent; `total` is how many samples there
    are.
    """
    known = [value for value in values if value is not None]
    if len(set(known)) > len(LIGHT) and all(map(is_number, known)):
        names, colours = _fifths(np.array([float(value) for value in known]))
        fifth = iter(names)
        kinds = ["missing" if value is None else next(fifth) for value in values]
    else:
        common = [level for level, _ in Counter(known).most_common(len(LIGHT) - 1)]
        if len(set(known)) > len(common):
            common = common[:-1]
        kinds = [
            "missing" if value is None else value if value in common else "other"
            for value in values
        ]
        colours = {level: at for at, level in enumerate(sorted(common))}
        if "other" in kinds:
            colours["other"] = len(colours)
    if "missing" in kinds:
        colours["missing"] = len(LIGHT) - 1
    tips = [f"{sample}: {kind}" for sample, kind in zip(sample_ids, kinds, strict=True)]
    of = "" if len(kinds) == total else f" {len(kinds)} of {total} samples are drawn."
    caption = f"Principal coordinates of predicted distances ({name}).{of}"
    title = f"The samples by {name}, coloured by {column}"
    return ordination_figure(f"pcoa-{name}", title, pcoa(distances), kinds, colours, tips, caption)


def _colourings(
    result: TargetResult, complete: TargetPredictions
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
def sample_figures(result: TargetResult, around: Surroundings | None) -> list[Figure]:
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


def _edge_of(values: Array, at: int) -> int:
    """Return -1 or 1 where a value is among the lowest or highest `EDGE` of all, 0 elsewhere."""
    low, high = np.quantile(values, [EDGE, 1 - EDGE])
    return int(values[at] > high) - int(values[at] < low)


def _neighbours_say(complete: TargetPredictions, row: int, neighbours: Array) -> list[str]:
    """Return what the truth of the nearest samples is, where it is not that of the sample at
    `row`.
    """
    if len(neighbours) < NEIGHBOURS:
        return []
    labels, truth = complete.labels, complete.truth[neighbours]
    if labels:
        frequent = int(np.bincount(truth).argmax())
        same = int((truth == frequent).sum())
        if frequent == complete.truth[row] or 2 * same <= NEIGHBOURS:
            return []
        return [f"{same} of its {NEIGHBOURS} nearest samples are {labels[frequent]}"]
    low, high = float(truth.min()), float(truth.max())
    if low <= complete.truth[row] <= high:
        return []
    return [f"its {NEIGHBOURS} nearest samples have {number(low)} to {number(high)}"]


def why_odd(result: TargetResult, around: Surroundings, rows: Sequence[int]) -> list[str]:
    """Return what is unusual of the samples with truth and prediction at `rows`; a dash where
    nothing is.
    """
    complete = result.predictions.complete()
    here, there = around.at(complete)
    row_of = dict(zip(here.tolist(), there.tolist(), strict=True))
    place = {row: at for at, row in row_of.items()}
    counts = (
        np.bincount(complete.truth, minlength=len(complete.labels)) if complete.labels else None
    )
    texts = []
    for row in rows:
        reasons, at = [], place.get(row)
        if counts is not None and counts[complete.truth[row]] <= RARE_CLASS * len(complete.truth):
            reasons.append(f"a rare class ({counts[complete.truth[row]]} samples)")
        if counts is None and _edge_of(complete.truth, row):
            reasons.append("at the edge of the true values")
        if at is not None:
            near = np.array(
                [row_of[one] for one in around.neighbours[at].tolist() if one in row_of], np.int64
            )
            reasons += _neighbours_say(complete, row, near)
            if _edge_of(around.reads, at) < 0:
                reasons.append(f"few reads ({around.reads[at]})")
            if side := _edge_of(around.richness, at):
                reasons.append(f"{'many' if side > 0 else 'few'} ASVs ({around.richness[at]})")
            if _edge_of(around.nearest, at) > 0:
                own, usual = (
                    number(float(value))
                    for value in (around.nearest[at], np.median(around.nearest))
                )
                reasons.append(
                    f"unlike all others (Bray-Curtis distance to the nearest {own}, median of "
                    f"all {usual})"
                )
        texts.append("; ".join(reasons) or "-")
    return texts


@lru_cache(maxsize=8)
def worse_levels(result: TargetResult) -> tuple[int, list[WorseLevel]]:
    """Return the `larger_errors` of a target, computed once."""
    return larger_errors(result.predictions, result.levels)


def _worse_table(result: TargetResult) -> list[Table]:
    """Return the table of the `worse_levels`, with one row that says so where there are none;
    nothing untested.
    """
    tested, worse = worse_levels(result)
    if not tested:
        return []
    labels = bool(result.predictions.labels)
    error = "1 - probability of the true class" if labels else "absolute error"
    right = ("right", "right elsewhere") if labels else ("samples",)
    header = ("metadata", *right, f"mean {error}", "elsewhere", "q")

    def cells(one: WorseLevel) -> tuple[str, ...]:
        where = (
            f"{one.label}, {one.column}: {one.level}" if labels else f"{one.column}: {one.level}"
        )
        counts = (
            (f"{one.right} of {one.samples}", f"{one.others_right} of {one.others}")
            if labels
            else (one.samples,)
        )
        return (
            where,
            *map(str, counts),
            number(one.error),
            number(one.others_error),
            number(one.q),
        )

    rows = [cells(one) for one in worse] or [("none", *["-"] * (len(header) - 1))]
    of = "classes at levels" if labels else "levels"
    title = (
        f"Where errors are larger: {of} of the metadata, of {tested} tested those with p up "
        f"to {LARGER:g}"
    )
    return [Table(title, header, tuple(rows), "worse")]


def error_tables(result: TargetResult, around: Surroundings | None = None) -> list[Table]:
    """Return the samples with the largest errors, what is unusual of them, and where errors are
    larger.
    """
    complete, names, has_both = (
        result.predictions.complete(),
        result.names,
        result.predictions.has_both,
    )
    if not len(complete.truth):
        return []
    known = {
        names.group: complete.groups,
        names.batch: complete.batch,
        "fold of this run": complete.fold,
    }
    known |= {name: result.levels[name][has_both] for name in result.parts if name in result.levels}
    columns = {name: values for name, values in known.items() if values is not None}
    errors, rows = complete.errors, worst_rows(complete, WORST_SAMPLES)
    labels = complete.labels

    def value(at: int) -> tuple[str, str, str]:
        if labels:
            true, probabilities = int(complete.truth[at]), complete.predicted[at]
            return (
                labels[true],
                labels[int(np.argmax(probabilities))],
                number(float(probabilities[true])),
            )
        return (
            number(float(complete.truth[at])),
            number(float(complete.predicted[at])),
            number(float(errors[at])),
        )

    odd = {} if around is None else {"what may be odd": why_odd(result, around, rows.tolist())}
    third = "probability of the true one" if labels else f"absolute error of {names.target}"
    of = names.target
    header = ("sample-id", f"true {of}", f"predicted {of}", third, *columns, *odd)
    body = [
        (
            complete.sample_ids[at],
            *value(at),
            *(str(v[at]) for v in columns.values()),
            *(v[row] for v in odd.values()),
        )
        for row, at in enumerate(rows.tolist())
    ]
    tables = [Table(f"The {len(body)} samples predicted worst", header, tuple(body), "worst")]
    return [*tables, *_worse_table(result)]
