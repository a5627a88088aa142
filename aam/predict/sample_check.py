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

from aam.data.duplicates import Likeness, near_duplicates
from aam.data.rarefaction import LOWEST_DEPTH, rarefied_counts
from aam.engine.logger import ProgressBar
from aam.io.tables import AmpliconTable
from aam.predict.mixture import LEAST_TABLE_SAMPLES, Mixture, Sources, likeliest_sources
from aam.predict.subject_fit import SubjectFit, fit_subjects, shifts
from aam.typing import Array, Floats, Ints

log = logging.getLogger("aam")

MIXTURE_COLUMNS = ("sample", "source", "share", "evidence", "feature", "reads", "feature_evidence")
DUPLICATES = ("first", "second")
SWAP_COLUMNS = ("first", "second", "first_subject", "second_subject", "margin")

# Features of a suspicion that are listed, and seconds after which the time left is told.
LISTED_SAMPLES, LONG = 20, 30.0


@dataclass(frozen=True, eq=False)
class SampleCheck:
    """Samples that do not fit: suspicions, not proofs; nothing is removed.

    Attributes
    ----------
    samples : DataFrame
        By sample id: ``source`` (likeliest other sample in it), ``share`` of its reads that come
        from there, ``evidence`` (natural log of the likelihood ratio), ``mixed`` (whether it is a
        suspicion; about 1 in 20 of these is expected by chance), ``subject``, ``fits`` (the best
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
    """Progress of a check, which logs once how long it takes."""

    def __init__(self, bar: ProgressBar, samples: int, task: str) -> None:
        self.bar, self.samples, self.task = bar, samples, task
        self.start, self.has_logged = clock.perf_counter(), False

    def __call__(self, done: int) -> None:
        self.bar.update(done)
        seconds = clock.perf_counter() - self.start
        if self.has_logged or done < 20 or seconds < 1:
            return
        self.has_logged = True
        if (total := seconds / done * self.samples) > LONG:
            minutes = max(1, round(total / 60))
            log.info("%s of %d samples takes about %d minutes", self.task, self.samples, minutes)


def check_table(
    table: AmpliconTable,
    groups: Sequence[str | None] | None = None,
    time: Floats | None = None,
    order: Ints | None = None,
) -> SampleCheck:
    """Check the samples of a table.

    Parameters
    ----------
    table : AmpliconTable
    groups : sequence of str or None, optional
        Subject of each sample. One without a subject may be of any, so that it is not compared with
        them.
    time : float64 [N], optional
        Time of each sample, nan where it is missing.
    order : int64 [N], optional
        Rows of the table in the order of the sample sheet; unset: that of the table.
    """
    n, ids = len(table), np.array(table.sample_ids, dtype=object)
    codes, names = pd.factorize(np.array(ids if groups is None else groups, dtype=object))
    subjects, is_labelled = np.array([*map(str, names), ""], dtype=object), codes >= 0
    subject, labelled = subjects[codes], np.flatnonzero(is_labelled)
    # A sample without a subject is the only one of its own.
    codes = np.where(is_labelled, codes, len(names) + np.arange(n))
    has_subjects = groups is not None and len(names) < len(labelled)
    limits = [] if has_subjects else ["no subjects"]
    rows = np.flatnonzero(table.depths > 0)
    counts = sparse.csr_array(table.counts[rows]).astype(np.int64)
    row_groups, likeness = _groups_of(codes[rows]), Likeness(counts)
    pairs, sources, fit = near_duplicates(likeness), None, None
    deep = np.zeros(0, np.int64)
    with ProgressBar("Samples", n, "samples") as bar:
        if len(rows) < LEAST_TABLE_SAMPLES:
            limits.append("few samples")
        else:
            progress = _Clock(bar, len(rows), "the search for mixtures")
            sources = likeliest_sources(counts, row_groups, likeness, pairs, progress)
            if not has_subjects and sources.has_relatives:
                sources = None
                limits.append("needs subjects")
        if has_subjects and len(rows) >= LEAST_TABLE_SAMPLES:
            fit, deep = _subjects(table, labelled, codes, time, bar)
    samples = pd.DataFrame(index=pd.Index(ids, name="sample-id"))
    _add_sources(samples, rows, sources)
    mixtures = _mixtures(table, rows, sources, counts, row_groups)
    duplicates = pd.DataFrame(ids[rows[pairs]].reshape(-1, 2), columns=[*DUPLICATES])
    samples["subject"] = "" if groups is None else subject
    own, swaps = _add_fit(samples, fit, deep, codes, subjects)
    if fit is None:
        return SampleCheck(samples, mixtures, duplicates, swaps, own, limits=limits)
    runs = list[tuple[str, ...]]()
    if fit.is_told_apart:
        order = np.arange(n) if order is None else order
        runs = [tuple(ids[run]) for run in _shifts(fit, deep, codes, order)]
    else:
        limits.append("subjects not told apart")
    return SampleCheck(samples, mixtures, duplicates, swaps, own, runs, fit.share_own, limits)


def _groups_of(codes: Ints) -> Ints:
    """Codes from 0 without gaps, [N]."""
    return np.asarray(np.unique(codes, return_inverse=True)[1], np.int64)


def _in_table(values: Array, rows: Ints, n: int, empty: object) -> Array:
    """Values of some rows as those of all rows of a table, [N]; `empty` elsewhere."""
    column = np.full(n, empty, dtype=values.dtype)
    column[rows] = values
    return column


def _add_sources(samples: pd.DataFrame, rows: Ints, sources: Sources | None) -> None:
    """Add the columns of mixtures to the frame of samples."""
    n, ids = len(samples), np.array([*samples.index, ""], dtype=object)
    if sources is None:
        samples[["source", "share", "evidence", "mixed"]] = "", np.nan, np.nan, False
        return
    has_source = sources.source >= 0
    source = np.where(has_source, rows[sources.source], n)
    share = np.where(has_source, sources.share, np.nan)
    samples["source"] = ids[_in_table(source, rows, n, n)]
    samples["share"] = _in_table(share, rows, n, np.nan)
    samples["evidence"] = _in_table(sources.evidence, rows, n, np.nan)
    samples["mixed"] = _in_table(sources.is_suspicious, rows, n, False)


def _mixtures(
    table: AmpliconTable,
    rows: Ints,
    sources: Sources | None,
    counts: sparse.csr_array,
    groups: Ints,
) -> pd.DataFrame:
    """The features that carry each suspicion of a mixture, of the clearest sample first."""
    carriers, ids = [], table.sample_ids
    if sources is not None:
        mixture = Mixture(counts, groups)
        suspicious = np.flatnonzero(sources.is_suspicious)
        order = np.argsort(-sources.evidence[suspicious], kind="stable")
        for row in suspicious[order].tolist():
            source, share = int(sources.source[row]), float(sources.share[row])
            pair = ids[rows[row]], ids[rows[source]], share, sources.evidence[row]
            features, terms = mixture.carriers(row, source, share)
            for feature, term in zip(features[:LISTED_SAMPLES].tolist(), terms, strict=False):
                name, reads = table.feature_ids[feature], int(counts[row, feature])
                carriers.append((*pair, name, reads, term))
    return pd.DataFrame(carriers, columns=[*MIXTURE_COLUMNS])


def _subjects(
    table: AmpliconTable, labelled: Ints, codes: Ints, time: Floats | None, bar: ProgressBar
) -> tuple[SubjectFit | None, Ints]:
    """Fit of the `labelled` samples deep enough to subjects, and their rows; all are rarefied to
    one depth.
    """
    depth = max(LOWEST_DEPTH, int(np.quantile(table.depths[labelled], 0.1)))
    deep = labelled[table.depths[labelled] >= depth]
    if len(deep) < LEAST_TABLE_SAMPLES or len(np.unique(codes[deep])) < 2:
        return None, deep
    presence = sparse.csr_array(rarefied_counts(table[deep], depth, 0, 0).sign())
    times = None if time is None else time[deep]
    if times is not None and not np.isfinite(times).any():
        times = None
    progress = _Clock(bar, len(deep), "the comparison with subjects")
    return fit_subjects(presence, _groups_of(codes[deep]), times, progress), deep


def _add_fit(
    samples: pd.DataFrame, fit: SubjectFit | None, deep: Ints, codes: Ints, subjects: Array
) -> tuple[pd.Series, pd.DataFrame]:
    """Add the columns of subjects to the frame of samples; return the fits to the own subject and
    the swaps.
    """
    n, ids, swaps = len(samples), samples.index, []
    if fit is None:
        samples[["fits", "margin", "misfit"]] = "", np.nan, False
        return pd.Series(np.nan, ids), pd.DataFrame(columns=[*SWAP_COLUMNS])
    other = np.unique(codes[deep])[fit.subject]
    samples["fits"] = subjects[_in_table(other, deep, n, len(subjects) - 1)]
    samples["margin"] = _in_table(fit.margin, deep, n, np.nan)
    samples["misfit"] = _in_table(fit.is_suspicious, deep, n, False)
    for row in np.flatnonzero(fit.partner >= 0).tolist() if fit.is_told_apart else ():
        partner = int(fit.partner[row])
        if row < partner:
            first, second = deep[row], deep[partner]
            margin = float(fit.margin[row] + fit.margin[partner])
            labels = subjects[codes[first]], subjects[codes[second]]
            swaps.append((ids[first], ids[second], *labels, margin))
    frame = pd.DataFrame(swaps, columns=[*SWAP_COLUMNS]).sort_values("margin", ascending=False)
    own = pd.Series(_in_table(fit.own, deep, n, np.nan), ids)
    return own, frame.reset_index(drop=True)


def _shifts(fit: SubjectFit, deep: Ints, codes: Ints, order: Ints) -> list[Ints]:
    """Runs of rows of the table that fit the subject of a neighbour in the sheet."""
    place = _in_table(np.arange(len(deep)), deep, len(codes), -1)[order]
    runs = shifts(_groups_of(codes[deep]), fit, place[place >= 0])
    return [deep[run] for run in runs]
