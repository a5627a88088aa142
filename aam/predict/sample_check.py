"""Check the samples of a table: those that contain another one, near duplicates, and those that fit
another subject.
"""

from __future__ import annotations

import logging
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import sparse

from aam.data.rarefaction import LOWEST_DEPTH, rarefied_counts
from aam.engine.logger import ProgressBar
from aam.io.tables import AmpliconTable
from aam.predict.mixture import (
    LEAST_SAMPLES,
    Likeness,
    Mixture,
    Sources,
    likeliest_sources,
    near_duplicates,
)
from aam.predict.subject_fit import SubjectFit, fit_subjects, shifts
from aam.typing import Floats, Ints

log = logging.getLogger("aam")

SAMPLE_COLUMNS = (
    *("source", "share", "evidence", "mixed"),
    *("subject", "fits", "margin", "misfit"),
)
MIXTURES = ("sample", "source", "share", "evidence", "feature", "reads", "feature_evidence")
DUPLICATES = ("first", "second")
SWAP_COLUMNS = ("first", "second", "first_subject", "second_subject", "margin")

# Features of a suspicion that are listed, and seconds after which the time left is told.
LISTED, LONG = 20, 30.0


@dataclass(frozen=True, eq=False)
class SampleCheck:
    """Samples that do not fit: suspicions, not proofs; nothing is removed.

    Attributes
    ----------
    samples : DataFrame
        By sample id: ``source`` (likeliest other sample in it), ``share`` of its reads that come
        from there, ``evidence`` (natural log of the likelihood ratio), ``mixed`` (whether it is a
        suspicion; at most 1 in 20 of these is expected by chance), ``subject``, ``fits`` (the best
        other subject), ``margin`` (fit to that less fit to the own), ``misfit`` (whether it is a
        suspicion; a study without a swap has any with a chance of 5 %).
    mixtures : DataFrame
        The features that carry each suspicion of a mixture, the strongest first.
    duplicates : DataFrame
        Pairs that resemble each other like two draws of one sample, with ``first`` and ``second``.
    swaps : DataFrame
        Pairs of samples that each fit the subject of the other.
    shifts : list of tuple of str
        Neighbours in the sheet that each fit the subject of the next row, or of the row before.
    own : Series
        Fit of each sample to its own subject; the best other fit is own + margin.
    share_own : float
        Share of the samples that fit their own subject best; nan if there are no subjects.
    limits : list of str
        What could not be judged, and why: "few samples", "no subjects", "needs subjects", "subjects
        not told apart".
    """

    samples: pd.DataFrame
    mixtures: pd.DataFrame
    duplicates: pd.DataFrame
    swaps: pd.DataFrame
    own: pd.Series
    shifts: list[tuple[str, ...]] = field(default_factory=list)
    share_own: float = float("nan")
    limits: list[str] = field(default_factory=list)


class _Clock:
    """Progress of a check, which tells once how long it takes."""

    def __init__(self, bar: ProgressBar, samples: int):
        self.bar, self.samples, self.start = bar, samples, clock.perf_counter()
        self.is_told = False

    def __call__(self, done: int) -> None:
        self.bar.update(done)
        spent = clock.perf_counter() - self.start
        if not self.is_told and done >= 20 and spent > 1:
            self.is_told = True
            left = spent / done * self.samples
            if left > LONG:
                text = "checking %d samples takes about %.0f minutes"
                log.info(text, self.samples, max(1, round(left / 60)))


def check_table(
    table: AmpliconTable,
    groups: Sequence[str] | None = None,
    time: Floats | None = None,
    order: Ints | None = None,
) -> SampleCheck:
    """Check the samples of a table.

    Parameters
    ----------
    table : AmpliconTable
    groups : sequence of str, optional
        Subject of each sample.
    time : float64 [N], optional
        Time of each sample, nan where it is missing.
    order : int64 [N], optional
        Rows of the table in the order of the sample sheet; unset: that of the table.
    """
    n = len(table)
    order = np.arange(n) if order is None else order
    labels = table.sample_ids if groups is None else groups
    codes, names = pd.factorize(np.array(labels, dtype=object))
    has_subjects = groups is not None and len(names) < n
    samples = pd.DataFrame(index=pd.Index(table.sample_ids, name="sample-id"))
    rows = np.flatnonzero(table.depths > 0)
    counts = sparse.csr_array(table.counts[rows]).astype(np.int64)
    kept, limits = _groups_of(codes[rows]), list[str]()
    with ProgressBar("Samples", n, "samples") as bar:
        likeness = Likeness(counts) if len(rows) else None
        sources, pairs = None, np.zeros((0, 2), np.int64)
        if likeness is not None:
            pairs = near_duplicates(counts, likeness)
        if len(rows) < LEAST_SAMPLES:
            limits.append("few samples")
        elif likeness is not None and not has_subjects and likeness.has_relatives:
            limits.append("needs subjects")
        elif likeness is not None:
            sources = likeliest_sources(counts, kept, likeness, pairs, _Clock(bar, len(rows)))
        mixtures = _add_sources(samples, table, rows, sources, (counts, kept))
        fit, deep = None, np.zeros(0, np.int64)
        if has_subjects and len(rows) >= LEAST_SAMPLES:
            fit, deep = _subjects(table, codes, time, bar)
    twins = np.array(table.sample_ids, dtype=object)[rows[pairs]].reshape(-1, 2)
    duplicates = pd.DataFrame(twins, columns=[*DUPLICATES])
    if fit is None:
        limits += ["no subjects"] * (not has_subjects)
        empty = pd.Series(np.nan, samples.index)
        samples = samples.assign(subject="", fits="", margin=np.nan, misfit=False)
        if groups is not None:
            samples["subject"] = [str(name) for name in groups]
        swaps = pd.DataFrame(columns=[*SWAP_COLUMNS])
        return SampleCheck(samples, mixtures, duplicates, swaps, empty, limits=limits)
    limits += ["subjects not told apart"] * (not fit.is_told_apart)
    own, swaps = _add_fit(samples, fit, deep, codes, names)
    moved = _shifts(fit, deep, codes, order) if fit.is_told_apart else []
    runs = [tuple(table.sample_ids[row] for row in run) for run in moved]
    parts = samples[[*SAMPLE_COLUMNS]], mixtures, duplicates, swaps, own
    return SampleCheck(*parts, runs, fit.share_own, limits)


def _groups_of(codes: Ints) -> Ints:
    """Codes from 0 without gaps, [N]."""
    return np.asarray(np.unique(codes, return_inverse=True)[1], np.int64)


def _add_sources(
    samples: pd.DataFrame,
    table: AmpliconTable,
    rows: Ints,
    sources: Sources | None,
    study: tuple[sparse.csr_array, Ints],
) -> pd.DataFrame:
    """Add the columns of mixtures to the frame of samples; return the features that carry them."""
    n, ids = len(table), np.array([*table.sample_ids, ""], dtype=object)
    source, share, evidence = np.full(n, n), np.full(n, np.nan), np.full(n, np.nan)
    mixed, carried = np.zeros(n, bool), []
    if sources is not None:
        has = sources.source >= 0
        source[rows[has]] = rows[sources.source[has]]
        share[rows[has]], evidence[rows] = sources.share[has], sources.evidence[:, 0]
        mixed[rows] = sources.is_suspicious
        mixture = Mixture(*study)
        for row in np.flatnonzero(sources.is_suspicious).tolist():
            features, terms = mixture.carriers(row, sources.source[row], sources.share[row])
            about = ids[rows[row]], ids[source[rows[row]]], share[rows[row]], evidence[rows[row]]
            for feature, term in zip(features[:LISTED], terms, strict=False):
                reads = int(study[0][row, feature])
                carried.append((*about, table.feature_ids[feature], reads, term))
    samples["source"], samples["share"] = ids[source], share
    samples["evidence"], samples["mixed"] = evidence, mixed
    mixtures = pd.DataFrame(carried, columns=[*MIXTURES])
    order = np.lexsort((np.arange(len(mixtures)), -mixtures["evidence"].to_numpy(np.float64)))
    return mixtures.iloc[order].reset_index(drop=True)


def _subjects(
    table: AmpliconTable, codes: Ints, time: Floats | None, bar: ProgressBar
) -> tuple[SubjectFit | None, Ints]:
    """Fit of the samples deep enough to subjects, and their rows; all are rarefied to one depth."""
    depth = max(LOWEST_DEPTH, int(np.quantile(table.depths, 0.1)))
    deep = np.flatnonzero(table.depths >= depth)
    if len(deep) < LEAST_SAMPLES or len(np.unique(codes[deep])) < 2:
        return None, deep
    presence = sparse.csr_array(rarefied_counts(table[deep], depth, 0, 0).sign())
    times = None if time is None else time[deep]
    if times is not None and not np.isfinite(times).any():
        times = None
    return fit_subjects(presence, _groups_of(codes[deep]), times, bar.update), deep


def _add_fit(
    samples: pd.DataFrame, fit: SubjectFit, deep: Ints, codes: Ints, names: Sequence[str]
) -> tuple[pd.Series, pd.DataFrame]:
    """Add the columns of subjects to the frame of samples; return the own fits and the swaps."""
    n, subjects = len(samples), np.array([*map(str, names), ""], dtype=object)
    of_fit = np.unique(codes[deep])
    other, margin, own = np.full(n, len(names)), np.full(n, np.nan), np.full(n, np.nan)
    other[deep] = of_fit[fit.subject]
    margin[deep], own[deep] = fit.margin, fit.own
    misfit = np.zeros(n, bool)
    misfit[deep] = fit.is_suspicious
    samples["subject"], samples["fits"] = subjects[codes], subjects[other]
    samples["margin"], samples["misfit"] = margin, misfit
    found, ids = [], samples.index[deep]
    for row in np.flatnonzero(fit.partner >= 0).tolist() if fit.is_told_apart else ():
        mate = int(fit.partner[row])
        if row < mate:
            of_pair = subjects[codes[deep[[row, mate]]]]
            total = float(fit.margin[row] + fit.margin[mate])
            found.append((ids[row], ids[mate], *of_pair, total))
    swaps = pd.DataFrame(found, columns=[*SWAP_COLUMNS]).sort_values("margin", ascending=False)
    return pd.Series(own, samples.index), swaps.reset_index(drop=True)


def _shifts(fit: SubjectFit, deep: Ints, codes: Ints, order: Ints) -> list[Ints]:
    """Runs of rows of the table that fit the subject of a neighbour in the sheet."""
    place = np.full(len(codes), -1)
    place[deep] = np.arange(len(deep))
    within = place[order]
    groups = _groups_of(codes[deep])
    return [deep[run] for run in shifts(groups, fit, within[within >= 0])]
