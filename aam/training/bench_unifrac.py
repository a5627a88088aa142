"""UniFrac of a whole table timed against scikit-bio on the same machine, in the same run."""

from __future__ import annotations

import importlib.util
import inspect
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from skbio import TreeNode
from skbio.diversity import beta_diversity

from aam.data.phylogeny import match_tips, read_tree
from aam.data.table import read_table
from aam.data.unifrac import Metric, UnifracOptions, unifrac_matrix

Matrix = npt.NDArray[np.floating[Any]]

RIVALS: dict[Metric, dict[str, Any]] = {
    "unifrac": {"metric": "unweighted_unifrac"},
    "weighted": {"metric": "weighted_unifrac"},
    "weighted-normalized": {"metric": "weighted_unifrac", "normalized": True},
}


def _timed(work: Callable[[], Matrix], repeats: int = 1) -> tuple[float, Matrix]:
    """Seconds of the fastest run and its result."""
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - start)
    return best, result


def _rival(settings: dict[str, Any], counts: npt.NDArray[np.int64]) -> Matrix:
    ids = [str(row) for row in range(len(counts))]
    return np.asarray(beta_diversity(counts=counts, ids=ids, **settings).data)


def _peak_memory() -> int:
    """Most bytes that this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _engines() -> list[str]:
    """Engines of the installed scikit-bio: its default, and numba where both know it."""
    known = "engine" in inspect.signature(beta_diversity).parameters
    return ["default", *(["numba"] if known and importlib.util.find_spec("numba") else [])]


def benchmark_unifrac(folder: Path, samples: int = 300, repeats: int = 3, seed: int = 0) -> dict[str, Any]:
    """Time every metric on the whole table, and scikit-bio on some of its samples.

    Parameters
    ----------
    folder : Path
        Holds ``table.biom`` and ``tree.nwk``; features without a tip are left out on both sides.
    samples : int
        Samples that scikit-bio gets; its time for all of them is extrapolated with the square.
    repeats : int
        Runs of `aam`, the fastest counts.
    seed : int
        Which samples.

    Returns
    -------
    dict
        ``metrics`` holds per metric the ``seconds`` of the whole table, and for the ones that scikit-bio has
        ``<engine>_seconds`` measured, ``<engine>_whole_seconds`` extrapolated, ``<engine>_ratio`` (how often
        faster `aam` is) and ``difference``, the largest between the two. Numba compiles before it is timed.
        ``peak_bytes`` is that of the whole process before scikit-bio runs.
    """
    table = read_table(folder / "table.biom", need_sequences=False)
    tree = read_tree(folder / "tree.nwk")
    tips = match_tips(tree, table.feature_ids, "drop")
    total = len(table.sample_ids)
    chosen = np.sort(np.random.default_rng(seed).permutation(total)[:samples])
    metrics: dict[str, dict[str, float]] = {}
    parts = {}
    for metric in (*RIVALS, "generalized"):
        work = partial(unifrac_matrix, tree, tips, table.counts, UnifracOptions(metric))
        seconds, whole = _timed(work, repeats)
        metrics[metric] = {"seconds": seconds}
        parts[metric] = whole[np.ix_(chosen, chosen)]
    report = {"table": folder.name, "samples": total, "compared": len(chosen), "peak_bytes": _peak_memory()}

    known = np.flatnonzero(tips >= 0)
    taxa = [table.feature_ids[column] for column in known]
    counts = table.counts[chosen][:, known].toarray().astype(np.int64)
    common = {"taxa": taxa, "tree": TreeNode.read(str(folder / "tree.nwk"), convert_underscores=False)}
    for metric, arguments in RIVALS.items():
        found = metrics[metric]
        for engine in _engines():
            settings = {**arguments, **common, **({} if engine == "default" else {"engine": engine})}
            _rival(settings, counts[:4])
            seconds, expected = _timed(partial(_rival, settings, counts))
            found[f"{engine}_seconds"] = seconds
            found[f"{engine}_whole_seconds"] = seconds * (total / len(chosen)) ** 2
            found[f"{engine}_ratio"] = found[f"{engine}_whole_seconds"] / found["seconds"]
            found["difference"] = float(np.abs(parts[metric] - expected).max())
    return {**report, "metrics": metrics}
