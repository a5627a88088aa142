"""Check the samples of a table: those that contain another one, near duplicates, and subjects that
may have been shifted in the sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import sparse

from aam.data.duplicates import Likeness, near_duplicates
from aam.engine.logger import ProgressBar
from aam.io.tables import AmpliconTable
from aam.predict.mixture import LEAST_TABLE_SAMPLES, Sources, likeliest_sources
from aam.predict.shifts import shifted_rows
from aam.typing import Array, Ints

MIXTURE_COLUMNS = ("sample", "source", "share", "evidence", "feature", "reads", "feature_evidence")
PAIR_COLUMNS = ("first", "first_subject", "first_time", "second", "second_subject", "second_time")
SHIFT_COLUMNS = ("shift", "sample", "subject", "time", "resembles")

# Features of a suspicion that are listed.
LISTED_SAMPLES = 20


@dataclass(frozen=True, eq=False)
class SampleCheck:
    """Samples that do not fit: suspicions, not proofs; nothing is removed.

    Attributes
    ----------
    samples : DataFrame
        By sample id: ``subject``, ``time``, ``reads``, ``source`` (likeliest other sample in it),
        ``source_subject``, ``source_time``, ``source_reads``, ``share`` of its reads that come from
        there, ``evidence`` (natural log of the likelihood ratio), ``mixed`` (whether it is a
        suspicion; about 1 in 20 of these is expected by chance).
    mixtures : DataFrame
        The features that carry each suspicion of a mixture, the strongest first.
    duplicates : DataFrame
        Pairs that resemble each other like two draws of one sample, those of two subjects first:
        ``first`` and ``second``, with their subjects and times.
    shifts : DataFrame
        Neighbours in the sheet that resemble the subject of the next row, or of the row before:
        the number of the ``shift``, ``sample``, its ``subject`` and ``time``, and the subject that
        it ``resembles``.
    limits : list of str
        What could not be judged, and why: "few samples", "no subjects", "needs subjects".
    """

    samples: pd.DataFrame
    mixtures: pd.DataFrame
    duplicates: pd.DataFrame
    shifts: pd.DataFrame
    limits: list[str]


def check_table(
    table: AmpliconTable, sheet: pd.Series | None = None, time: pd.Series | None = None
) -> SampleCheck:
    """Check the samples of a table.

    Parameters
    ----------
    table : AmpliconTable
    sheet : Series by sample id, optional
        Subject of each sample, in the order of the sample sheet; None where it is missing.
    time : Series by sample id, optional
        Time of each sample as text, which is shown next to it.
    """
    n, ids = len(table), np.array(table.sample_ids, dtype=object)
    sheet = pd.Series(dtype=object) if sheet is None else sheet.dropna()
    labels = sheet.reindex(ids)
    samples = pd.DataFrame(index=pd.Index(ids, name="sample-id"))
    times = pd.Series("", ids) if time is None else time.reindex(ids)
    for name, values in {"subject": labels, "time": times}.items():
        samples[name] = values.where(values.notna(), "")
    samples["reads"] = table.depths
    # A sample without a subject is the only one of its own.
    codes, names = pd.factorize(labels)
    codes = np.where(codes < 0, len(names) + np.arange(n), codes)
    has_subjects = len(names) < labels.notna().sum()
    limits = [] if has_subjects else ["no subjects"]
    rows = np.flatnonzero(table.depths > 0)
    counts = sparse.csr_array(table.counts[rows]).astype(np.int64)
    groups, likeness = np.unique(codes[rows], return_inverse=True)[1], Likeness(counts)
    pairs, sources = near_duplicates(likeness), None
    if len(rows) < LEAST_TABLE_SAMPLES:
        limits.append("few samples")
    else:
        with ProgressBar("Samples", len(rows), "samples") as bar:
            sources = likeliest_sources(counts, groups, likeness, pairs, bar.update)
        if not has_subjects and sources.has_relatives:
            sources = None
            limits.append("needs subjects")
    _add_sources(samples, rows, sources)
    mixtures = _mixtures(table, rows, sources)
    shifts = pd.DataFrame(columns=[*SHIFT_COLUMNS])
    if has_subjects and len(rows) >= LEAST_TABLE_SAMPLES:
        shifts = _shifts(samples, sheet, ids[rows], likeness.nearest)
    return SampleCheck(samples, mixtures, _pairs(samples, ids[rows[pairs]]), shifts, limits)


def _add_sources(samples: pd.DataFrame, rows: Ints, sources: Sources | None) -> None:
    """Add the columns of mixtures to the frame of samples."""
    source = np.full(len(samples), -1)
    samples[["share", "evidence", "mixed"]] = np.nan, np.nan, False
    if sources is not None:
        has_source = sources.source >= 0
        source[rows] = np.where(has_source, rows[sources.source], -1)
        at = samples.index[rows]
        samples.loc[at, "share"] = np.where(has_source, sources.share, np.nan)
        samples.loc[at, "evidence"] = sources.evidence
        samples.loc[at, "mixed"] = sources.is_suspicious
    names = samples.index.to_numpy()
    columns = {"source": names, **{f"source_{x}": samples[x] for x in ("subject", "time", "reads")}}
    for place, (name, values) in enumerate(columns.items()):
        found = np.where(source >= 0, np.asarray(values, dtype=object)[source], "")
        samples.insert(3 + place, name, found)


def _mixtures(table: AmpliconTable, rows: Ints, sources: Sources | None) -> pd.DataFrame:
    """The features that carry each suspicion of a mixture, of the clearest sample first."""
    carriers, ids = [], table.sample_ids
    if sources is not None:
        mixture = sources.mixture
        suspicious = np.flatnonzero(sources.is_suspicious)
        order = np.argsort(-sources.evidence[suspicious], kind="stable")
        for row in suspicious[order].tolist():
            source, share = int(sources.source[row]), float(sources.share[row])
            pair = ids[rows[row]], ids[rows[source]], share, sources.evidence[row]
            features, terms = mixture.carriers(row, source, share)
            for feature, term in zip(features[:LISTED_SAMPLES].tolist(), terms, strict=False):
                name, reads = table.feature_ids[feature], int(mixture.counts[row, feature])
                carriers.append((*pair, name, reads, term))
    return pd.DataFrame(carriers, columns=[*MIXTURE_COLUMNS])


def _pairs(samples: pd.DataFrame, pairs: Array) -> pd.DataFrame:
    """Pairs of ids [n, 2] with the subjects and times of both, those of two subjects first."""
    columns = []
    for names in pairs.T:
        columns += [names, *samples.loc[names, ["subject", "time"]].to_numpy().T]
    frame = pd.DataFrame(dict(zip(PAIR_COLUMNS, columns, strict=True)))
    is_same = are_of_one_subject(frame)
    return frame.loc[np.argsort(is_same, kind="stable")].reset_index(drop=True)


def are_of_one_subject(pairs: pd.DataFrame) -> pd.Series:
    """Whether both samples of a pair have the same subject."""
    return (pairs["first_subject"] == pairs["second_subject"]) & (pairs["first_subject"] != "")


def _shifts(samples: pd.DataFrame, sheet: pd.Series, ids: Array, nearest: Ints) -> pd.DataFrame:
    """Shifts among the rows of the sheet with a subject; `nearest` are rows of `ids`."""
    place = sheet.index.get_indexer(ids)
    is_labelled, rows = place >= 0, np.full((len(sheet), nearest.shape[1]), -1)
    rows[place[is_labelled]] = place[nearest[is_labelled]]
    found = []
    for number, (run, step) in enumerate(shifted_rows(rows, pd.factorize(sheet)[0]), start=1):
        for name, resembles in zip(sheet.index[run], sheet.iloc[run + step], strict=True):
            found.append((number, name, *samples.loc[name, ["subject", "time"]], resembles))
    return pd.DataFrame(found, columns=[*SHIFT_COLUMNS])
