"""Planted mixtures and swaps in public studies, and how often a suspicion returns on a part of the
samples: `python -m benchmarks.sample_fit mixtures|swaps|stability [STUDY ...]`.

Reads the studies below `AAM_BENCH_DATA`. Each line is a study: the share of untouched samples that
are flagged, then for each planted share the recall, the other samples flagged beyond those that are
flagged untouched, and the recall of two other methods at the same false alarms. Of stability: how
many suspicions of each kind return in nine of ten parts that hold all of their samples.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import nnls

from aam.data.duplicates import Likeness, near_duplicates
from aam.data.rarefaction import LOWEST_DEPTH, rarefied_counts
from aam.data.table import read_table, select_samples
from aam.io.metadata import read_metadata
from aam.io.tables import AmpliconTable
from aam.predict.mixture import likeliest_sources
from aam.predict.subject_fit import fit_subjects, shifts
from aam.typing import Floats, Ints

# The column of subjects of each study, if one has several samples, and that of time.
STUDIES: dict[str, tuple[str | None, str | None]] = {
    "infant-age": ("host_subject_id", "month"),
    "ibd": ("host_subject_id", None),
    "qiime2-crc": ("subject", "visit"),
    "mackerel-type": ("fish", "season"),
    "braces": (None, None),
}
# Numbers of the times that are words.
WORDS = {"pre": 0, "post": 1, "winter": 0, "spring": 1, "summer": 2, "fall": 3}
SHARES, PLANTED, SEEDS = (0.005, 0.01, 0.03, 0.1), 40, 3
PARTS, PART, RETURNS = 10, 0.9, 0.9
LEAST_READS, DEPTH, MOST_SAMPLES, SWAPPED = 1000, 2000, 800, 0.02


def read_study(name: str) -> tuple[AmpliconTable, Ints, Floats | None]:
    """The samples of a study with metadata, the number of the subject of each, and their times."""
    folder = Path(os.environ["AAM_BENCH_DATA"]) / name
    path = folder / "table.biom"
    table = read_table(path if path.is_file() else folder / "table.qza", need_sequences=False)
    metadata, (column, time) = read_metadata(folder / "metadata.tsv"), STUDIES[name]
    deep = [
        i for i, reads in zip(table.sample_ids, table.depths, strict=True) if reads >= LEAST_READS
    ]
    ids = [i for i in deep if i in metadata]
    if len(ids) > MOST_SAMPLES:
        chosen = np.random.default_rng(0).choice(len(ids), MOST_SAMPLES, replace=False)
        ids = [ids[at] for at in np.sort(chosen)]
    subjects = ids if column is None else metadata.groups(column, ids)
    times = None
    if time is not None:
        cells = metadata.values(time, ids)
        times = np.array([WORDS.get(x, x) if x else np.nan for x in cells], np.float64)
    return select_samples(table, ids), np.unique(subjects, return_inverse=True)[1], times


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
    table, groups, _ = read_study(name)
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
    table, groups, times = read_study(name)
    kept = (table.depths >= DEPTH) & (np.bincount(groups)[groups] >= 2)
    table, groups = table[kept], np.unique(groups[kept], return_inverse=True)[1]
    times = None if times is None else times[kept]
    presence = sparse.csr_array(rarefied_counts(table, DEPTH, 0, 0).sign())
    known = members(stable_swaps(table, groups, times), len(groups))
    rows = []
    for seed in range(SEEDS):
        rng, labels = np.random.default_rng(seed), groups.copy()
        swapped = np.zeros(len(groups), bool)
        for row in rng.permutation(len(groups))[: round(SWAPPED * len(groups))].tolist():
            mate = rng.choice(np.flatnonzero((groups != groups[row]) & ~swapped))
            if not swapped[row]:
                labels[[row, mate]] = groups[[mate, row]]
                swapped[[row, mate]] = True
        margin = nearest_margin(presence, labels)
        fit = fit_subjects(presence, labels)
        stable = members(stable_swaps(table, labels, times), len(groups))
        for alarm in (fit.is_suspicious | (fit.partner >= 0), fit.partner >= 0, stable):
            rival = recall_at(margin, swapped, int(alarm[~swapped].sum()))
            beyond = (alarm & ~known)[~swapped].mean()
            rows.append([alarm[swapped].mean(), alarm[~swapped].mean(), beyond, rival])
    print(f"{name}: {swapped.sum()} swapped, {known.sum()} of {len(known)} flagged untouched")
    for at, kind in enumerate(("swaps and misfits", "swaps", "stable swaps")):
        recall, others, beyond, rival = np.mean(rows[at::3], axis=0)
        text = f"  {kind}: recall {recall:.2f}, others {others:.1%}, beyond {beyond:.1%}"
        print(f"{text}; Jaccard {rival:.2f}", flush=True)


def members(suspicions: set[frozenset[int]], n: int) -> npt.NDArray[np.bool_]:
    """Rows [N] that are in any of some suspicions."""
    rows = np.zeros(n, bool)
    rows[[row for found in suspicions for row in found]] = True
    return rows


def label_suspicions(
    table: AmpliconTable, groups: Ints, times: Floats | None, rows: Ints
) -> dict[str, set[frozenset[int]]]:
    """Swaps, misfits and shifts in some rows of a study, each as a set of its rows."""
    depth = max(LOWEST_DEPTH, int(np.quantile(table.depths[rows], 0.1)))
    rows = rows[table.depths[rows] >= depth]
    presence = sparse.csr_array(rarefied_counts(table[rows], depth, 0, 0).sign())
    labels = np.unique(groups[rows], return_inverse=True)[1]
    fit = fit_subjects(presence, labels, None if times is None else times[rows])
    if not fit.is_told_apart:
        return {"swaps": set(), "misfits": set(), "shifts": set()}
    runs = shifts(labels, fit, np.arange(len(rows)))
    swaps = [(row, fit.partner[row]) for row in np.flatnonzero(fit.partner >= 0)]
    return {
        "swaps": {frozenset(rows[[*pair]].tolist()) for pair in swaps},
        "misfits": {frozenset([row]) for row in rows[fit.is_suspicious].tolist()},
        "shifts": {frozenset(rows[run].tolist()) for run in runs},
    }


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
    whole: set[frozenset[int]], parts: list[tuple[Ints, set[frozenset[int]]]]
) -> tuple[set[frozenset[int]], float]:
    """Suspicions that return in `RETURNS` of the parts that hold all of their samples, and the mean
    share of such parts in which one returns.
    """
    share = {}
    for found in whole:
        again = [found in names for rows, names in parts if found <= set(rows.tolist())]
        share[found] = float(np.mean(again)) if again else 0.0
    return {x for x in whole if share[x] >= RETURNS}, float(np.mean([*share.values()] or [np.nan]))


def parts_of(n: int) -> list[Ints]:
    """Rows of the parts of a study, in the order of its sheet."""
    rng = np.random.default_rng(0)
    return [np.sort(rng.choice(n, round(PART * n), replace=False)) for _ in range(PARTS)]


def stable_swaps(table: AmpliconTable, groups: Ints, times: Floats | None) -> set[frozenset[int]]:
    """Swaps that return on the parts of a study, with and without time."""
    stable = []
    for time in (None, times) if times is not None else (None,):
        whole = label_suspicions(table, groups, time, np.arange(len(table)))["swaps"]
        parts = [
            (rows, label_suspicions(table, groups, time, rows)["swaps"])
            for rows in parts_of(len(table))
        ]
        stable.append(returning(whole, parts)[0])
    return set.intersection(*stable)


def stability(name: str) -> None:
    """Print how many suspicions of a study return on its parts."""
    table, groups, times = read_study(name)
    every, parts = np.arange(len(table)), parts_of(len(table))
    whole = read_suspicions(table, groups, every)
    again = [read_suspicions(table, groups, rows) for rows in parts]
    for kind, found in whole.items():
        stable, share = returning(
            found, [(rows, names[kind]) for rows, names in zip(parts, again, strict=True)]
        )
        print(f"{name} {kind}: {len(found)}, mean {share:.2f}, stable {len(stable)}", flush=True)
    if STUDIES[name][0] is None:
        return
    by_time: dict[str, list[Any]] = {}
    for label, time in {"no time": None, "time": times}.items():
        if label == "time" and time is None:
            continue
        whole = label_suspicions(table, groups, time, every)
        again = [label_suspicions(table, groups, time, rows) for rows in parts]
        for kind, found in whole.items():
            stable, share = returning(
                found, [(rows, names[kind]) for rows, names in zip(parts, again, strict=True)]
            )
            by_time.setdefault(kind, []).append((found, stable))
            text = f"{len(found)}, mean {share:.2f}, stable {len(stable)}"
            print(f"{name} {kind} ({label}): {text}", flush=True)
    for kind, results in by_time.items():
        found, stable = (set.intersection(*sets) for sets in zip(*results, strict=True))
        print(f"{name} {kind} (both): {len(found)}, stable {len(stable)}", flush=True)


MEASURES = {"mixtures": recall_of_mixtures, "swaps": recall_of_swaps, "stability": stability}

if __name__ == "__main__":
    words = sys.argv[1:]
    measures = [word for word in words if word in MEASURES] or [*MEASURES]
    for study in [word for word in words if word not in MEASURES] or STUDIES:
        for measure in measures:
            if measure != "swaps" or STUDIES[study][0] is not None:
                MEASURES[measure](study)
