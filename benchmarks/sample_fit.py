"""Planted mixtures and swaps in public studies: `python -m benchmarks.sample_fit [STUDY ...]`.

Reads the studies below `AAM_BENCH_DATA`. Each line is a study: the share of untouched samples that
are flagged, then for each planted share the recall, the other samples flagged beyond those that are
flagged untouched, and the recall of two other methods at the same false alarms.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import nnls

from aam.data.rarefaction import rarefied_counts
from aam.data.table import read_table, select_samples
from aam.io.metadata import read_metadata
from aam.io.tables import AmpliconTable
from aam.predict.likeness import Likeness, near_duplicates
from aam.predict.mixture import likeliest_sources
from aam.predict.subject_fit import fit_subjects

Ints = npt.NDArray[np.int64]

# The column of subjects of each study, if one has several samples.
STUDIES = {
    "infant-age": "host_subject_id",
    "ibd": "host_subject_id",
    "qiime2-crc": "subject",
    "braces": None,
}
SHARES, PLANTED, SEEDS = (0.005, 0.01, 0.03, 0.1), 40, 3
LEAST_READS, DEPTH, MOST_SAMPLES, SWAPPED = 1000, 2000, 800, 0.02


def read_study(name: str) -> tuple[AmpliconTable, Ints]:
    """The samples of a study with metadata, and the number of the subject of each."""
    folder = Path(os.environ["AAM_BENCH_DATA"]) / name
    path = folder / "table.biom"
    table = read_table(path if path.is_file() else folder / "table.qza", need_sequences=False)
    metadata, column = read_metadata(folder / "metadata.tsv"), STUDIES[name]
    deep = [
        i for i, reads in zip(table.sample_ids, table.depths, strict=True) if reads >= LEAST_READS
    ]
    ids = [i for i in deep if i in metadata]
    if len(ids) > MOST_SAMPLES:
        chosen = np.random.default_rng(0).choice(len(ids), MOST_SAMPLES, replace=False)
        ids = [ids[at] for at in np.sort(chosen)]
    subjects = ids if column is None else metadata.groups(column, ids)
    return select_samples(table, ids), np.unique(subjects, return_inverse=True)[1]


def planted(
    table: AmpliconTable, groups: Ints, share: float, seed: int
) -> tuple[sparse.csr_array, Ints]:
    """Counts in which some samples contain a share of a sample of another subject, and the source
    of each, -1 without.
    """
    rng, source = np.random.default_rng(seed), np.full(len(table), -1)
    counts = sparse.lil_array(table.counts.astype(np.int64))
    for row in rng.permutation(len(table))[:PLANTED].tolist():
        source[row] = rng.choice(np.flatnonzero(groups != groups[row]))
        own, other = (table.counts[[at]].toarray()[0].astype(np.int64) for at in (row, source[row]))
        reads = rng.binomial(own.sum(), share)
        kept = rng.multivariate_hypergeometric(own, own.sum() - reads, method="marginals")
        counts[[row]] = sparse.lil_array((kept + rng.multinomial(reads, other / other.sum()))[None])
    return sparse.csr_array(counts), source


def flagged(counts: sparse.csr_array, groups: Ints) -> tuple[npt.NDArray[np.bool_], Ints]:
    """The samples that are suspected to be mixtures, and the source of each."""
    likeness = Likeness(counts)
    found = likeliest_sources(counts, groups, likeness, near_duplicates(likeness))
    return found.is_suspicious, found.source


def recall_at(score: npt.NDArray[np.float64], hit: npt.NDArray[np.bool_], alarms: int) -> float:
    """Recall of a score where as many of the other samples exceed its cut."""
    others = np.sort(score[~hit])[::-1]
    return float((score[hit] > others[min(alarms, len(others) - 1)]).mean())


def other_methods(counts: sparse.csr_array, groups: Ints) -> npt.NDArray[np.float64]:
    """Scores [2, N] of samples: Jaccard similarity to the nearest sample of another subject, and
    the share that non-negative least squares gives the best of the 30 nearest.
    """
    present = sparse.csr_array(counts.sign())
    richness = np.asarray(present.sum(axis=1)).ravel()
    shares = sparse.csr_array(counts.multiply(1 / np.asarray(counts.sum(axis=1)).ravel()[:, None]))
    scores = np.zeros((2, len(groups)))
    for row in range(len(groups)):
        both = np.asarray((present @ present[[row]].T).todense()).ravel()
        likeness = both / (richness + richness[row] - both)
        likeness[row] = -1
        near = np.argsort(-likeness)[:30]
        features = np.unique(shares[[row, *near]].indices)
        dense = shares[[row, *near]][:, features].toarray()
        weights = nnls(dense[1:].T, dense[0])[0]
        is_other = groups[near] != groups[row]
        likeness[groups == groups[row]] = -1
        scores[:, row] = likeness.max(), (weights * is_other).max()
    return scores


def recall_of_mixtures(name: str) -> None:
    """Print the recall of planted mixtures in a study, and its false alarms."""
    table, groups = read_study(name)
    untouched, _ = flagged(sparse.csr_array(table.counts).astype(np.int64), groups)
    print(f"{name}: {len(table)} samples, {untouched.mean():.1%} flagged untouched", flush=True)
    for share in SHARES:
        rows = []
        for seed in range(1, SEEDS + 1):
            counts, source = planted(table, groups, share, seed)
            alarm, found = flagged(counts, groups)
            hit, beyond = source >= 0, (alarm & ~untouched)[source < 0].mean()
            right = (found == source)[hit & alarm].mean()
            scores = other_methods(counts, groups)
            alarms = alarm[~hit].sum()
            rivals = [recall_at(score, hit, alarms) for score in scores]
            rows.append([alarm[hit].mean(), alarm[~hit].mean(), beyond, right, *rivals])
        recall, others, beyond, right, jaccard, mixture = np.nanmean(rows, axis=0).tolist()
        text = f"  {share:.1%}: recall {recall:.2f}, others {others:.1%}, beyond {beyond:.1%}"
        print(f"{text}, source {right:.2f}; Jaccard {jaccard:.2f}, NNLS {mixture:.2f}", flush=True)


def nearest_margin(presence: sparse.csr_array, groups: Ints) -> npt.NDArray[np.float64]:
    """Jaccard similarity of each sample to the nearest sample of another subject less that to the
    nearest one of its own, [N].
    """
    richness, margin = np.asarray(presence.sum(axis=1)).ravel(), np.zeros(len(groups))
    for row in range(len(groups)):
        both = np.asarray((presence @ presence[[row]].T).todense()).ravel()
        likeness = both / (richness + richness[row] - both)
        likeness[row] = 0
        same = groups == groups[row]
        margin[row] = likeness[~same].max() - likeness[same].max()
    return margin


def recall_of_swaps(name: str) -> None:
    """Print the recall of swapped labels in a study, and its false alarms."""
    table, groups = read_study(name)
    kept = (table.depths >= DEPTH) & (np.bincount(groups)[groups] >= 2)
    groups = np.unique(groups[kept], return_inverse=True)[1]
    presence = sparse.csr_array(rarefied_counts(table[kept], DEPTH, 0, 0).sign())
    before = fit_subjects(presence, groups)
    known, rows = before.is_suspicious | (before.partner >= 0), []
    for seed in range(SEEDS):
        rng, labels = np.random.default_rng(seed), groups.copy()
        swapped = np.zeros(len(groups), bool)
        for row in rng.permutation(len(groups))[: round(SWAPPED * len(groups))].tolist():
            mate = rng.choice(np.flatnonzero((groups != groups[row]) & ~swapped))
            if not swapped[row]:
                labels[[row, mate]] = groups[[mate, row]]
                swapped[[row, mate]] = True
        fit = fit_subjects(presence, labels)
        alarm = fit.is_suspicious | (fit.partner >= 0)
        rival = recall_at(nearest_margin(presence, labels), swapped, alarm[~swapped].sum())
        beyond = (alarm & ~known)[~swapped].mean()
        rows.append([alarm[swapped].mean(), alarm[~swapped].mean(), beyond, rival])
    recall, others, beyond, rival = np.mean(rows, axis=0)
    text = f"{name}: {before.share_own:.0%} fit their own subject best, {known.mean():.1%} flagged"
    text = f"{text} untouched; swaps: recall {recall:.2f}, others {others:.1%}, beyond {beyond:.1%}"
    print(f"{text}; Jaccard {rival:.2f}", flush=True)


if __name__ == "__main__":
    for study in sys.argv[1:] or STUDIES:
        recall_of_mixtures(study)
        if STUDIES[study] is not None:
            recall_of_swaps(study)
