"""Planted mixtures and shifts in public studies, and how often a suspicion returns on a part of the
samples: `python -m benchmarks.sample_fit [mixtures|shifts|stability] [STUDY ...]`.

Reads the studies below `AAM_BENCH_DATA`. Each line is a study: the share of untouched samples that
are flagged, then for each planted share the recall, the other samples flagged beyond those that are
flagged untouched, and the recall of two other methods at the same false alarms. Of stability: how
many suspicions of each kind return in nine of ten parts that hold all of their samples.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import nnls

from aam.data.duplicates import Likeness, near_duplicates
from aam.data.table import read_table, select_samples
from aam.io.metadata import read_metadata
from aam.io.tables import AmpliconTable
from aam.predict.mixture import likeliest_sources
from aam.predict.shifts import most_similar, possible_runs, shifted_rows
from aam.typing import Ints

# The column of subjects of each study, if one has several samples.
STUDIES = {
    "infant-age": "host_subject_id",
    "ibd": "host_subject_id",
    "qiime2-crc": "subject",
    "mackerel-type": "fish",
    "braces": None,
}
SHARES, PLANTED, SEEDS = (0.005, 0.01, 0.03, 0.1), 40, 3
SHIFTED, SHIFTS = (10, 20), 20
PARTS, PART, RETURNS = 10, 0.9, 0.9
LEAST_READS, MOST_SAMPLES = 1000, 800


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


def nearest_rows(table: AmpliconTable, rows: Ints) -> Ints:
    """The rows of a study that some rows resemble most among them, -1 for the others, [N, K]."""
    nearest = Likeness(sparse.csr_array(table.counts[rows]).astype(np.int64)).nearest
    placed = np.full((len(table), nearest.shape[1]), -1)
    placed[rows] = np.where(nearest >= 0, rows[nearest], -1)
    return placed


def recall_of_shifts(name: str) -> None:
    """Print how many shifts by one row are named, and in which share of the parts of the study the
    test finds each of them again.
    """
    table, groups = read_study(name)
    every, *parts = (
        nearest_rows(table, rows) for rows in (np.arange(len(table)), *parts_of(len(table)))
    )
    alarms = [len(shifted_rows(nearest, groups)) for nearest in (every, *parts)]
    print(f"{name}: shifts untouched, and on parts: {alarms}", flush=True)
    for length in SHIFTED:
        named, others, returns = 0, 0, list[float]()
        for seed in range(SHIFTS):
            first = int(np.random.default_rng(seed).integers(0, len(groups) - length))
            labels, planted = groups.copy(), np.arange(first, first + length)
            labels[planted] = groups[planted + 1]
            for run, step in shifted_rows(every, labels):
                if not np.isin(run, planted).any():
                    others += 1
                    continue
                named += 1
                again = [returning_run(part, labels, run, step) for part in parts]
                returns.append(float(np.mean(again)))
        text = f"  {length} rows: {named} of {SHIFTS} named, each is found again on "
        print(f"{text}{np.mean(returns or [0.0]):.2f} of the parts, {others} others", flush=True)


def returning_run(nearest: Ints, labels: Ints, run: Ints, step: int) -> bool:
    """Whether the test finds rows of a run on a part of the samples."""
    runs = possible_runs(most_similar(nearest, np.ones(len(labels), bool)), labels)
    return any(way == step and np.isin(run, rows).any() for rows, way in runs)


def read_suspicions(
    table: AmpliconTable, groups: Ints, rows: Ints
) -> dict[str, set[frozenset[int]]]:
    """Mixtures and near duplicates in some rows of a study, each as a set of its rows."""
    counts = sparse.csr_array(table.counts[rows]).astype(np.int64)
    likeness = Likeness(counts)
    pairs = near_duplicates(likeness)
    found = likeliest_sources(counts, groups[rows], likeness, pairs)
    mixed = np.flatnonzero(found.is_suspicious)
    mixtures = rows[np.stack([mixed, found.source[mixed]], axis=1)].tolist()
    return {
        "mixtures": {frozenset(pair) for pair in mixtures},
        "duplicates": {frozenset(pair) for pair in rows[pairs].tolist()},
    }


def returning(
    suspicions: set[frozenset[int]], parts: list[tuple[Ints, set[frozenset[int]]]]
) -> tuple[set[frozenset[int]], float]:
    """Suspicions that return in `RETURNS` of the parts that hold all of their samples, and the mean
    share of such parts in which one returns.
    """
    share = {}
    for found in suspicions:
        again = [found in names for rows, names in parts if found <= set(rows.tolist())]
        share[found] = float(np.mean(again)) if again else 0.0
    return {x for x in suspicions if share[x] >= RETURNS}, float(
        np.mean([*share.values()] or [np.nan])
    )


def parts_of(n: int) -> list[Ints]:
    """Rows of the parts of a study, in the order of its sheet."""
    rng = np.random.default_rng(0)
    return [np.sort(rng.choice(n, round(PART * n), replace=False)) for _ in range(PARTS)]


def stability(name: str) -> None:
    """Print how many suspicions of a study return on its parts."""
    table, groups = read_study(name)
    every, parts = np.arange(len(table)), parts_of(len(table))
    whole = read_suspicions(table, groups, every)
    again = [read_suspicions(table, groups, rows) for rows in parts]
    for kind, found in whole.items():
        stable, share = returning(
            found, [(rows, names[kind]) for rows, names in zip(parts, again, strict=True)]
        )
        print(f"{name} {kind}: {len(found)}, mean {share:.2f}, stable {len(stable)}", flush=True)


MEASURES = {"mixtures": recall_of_mixtures, "shifts": recall_of_shifts, "stability": stability}

if __name__ == "__main__":
    words = sys.argv[1:]
    measures = [word for word in words if word in MEASURES] or [*MEASURES]
    for study in [word for word in words if word not in MEASURES] or STUDIES:
        for measure in measures:
            if measure != "shifts" or STUDIES[study] is not None:
                MEASURES[measure](study)
