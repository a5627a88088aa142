"""UniFrac compared with scikit-bio on the same samples, and with ssu as whole processes."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from skbio import TreeNode
from skbio.diversity import beta_diversity

from aam.config import UnifracMetric
from aam.data.table import read_table
from aam.device.measure import peak_memory, seconds
from aam.device.platform import prepare_device
from aam.diversity.distances import unifrac_matrix
from aam.diversity.unifrac import UnifracOptions
from aam.io.phylogeny import match_tips, read_tree
from aam.options import RuntimeConfig
from benchmarks.processes import time_unifrac_processes

SCIKIT_BIO_METRICS: dict[UnifracMetric, dict[str, Any]] = {
    "unifrac": {"metric": "unweighted_unifrac"},
    "weighted": {"metric": "weighted_unifrac"},
    "weighted-normalized": {"metric": "weighted_unifrac", "normalized": True},
}

COMPARED_SAMPLES = 300


Measurements = dict[str, Any]


def _engines(function: Callable[..., Any]) -> list[str]:
    """Engines of the installed scikit-bio: its default, and numba where both know it."""
    has_engines = "engine" in inspect.signature(function).parameters
    return ["default", *(["numba"] if has_engines and importlib.util.find_spec("numba") else [])]


def time_scikit_bio(
    counts: npt.NDArray[np.int64], tree_path: Path, options: dict[str, Any]
) -> tuple[npt.NDArray[np.float64], float]:
    """Return the matrix of scikit-bio for `counts` [N, U], and its seconds after a first call."""
    options = {**options, "tree": TreeNode.read(str(tree_path), convert_underscores=False)}
    beta_diversity(counts=counts[:4], **options)
    start = time.perf_counter()
    matrix = np.asarray(beta_diversity(counts=counts, **options).data)
    return matrix, time.perf_counter() - start


def compare_unifrac(
    table_path: Path, tree_path: Path, runtime: RuntimeConfig, repeats: int = 3
) -> Measurements:
    """Return seconds of every metric on the whole table, and of scikit-bio on some of its samples.

    Features without a tip are left out on both sides.

    Returns
    -------
    dict
        Per metric the ``seconds`` of the whole table (fastest of `repeats`), and for the ones that
        scikit-bio has ``<engine>_seconds`` measured, ``<engine>_whole_seconds`` extrapolated with
        the square of the samples, ``<engine>_ratio`` (how often faster `aam` is) and
        ``difference``, the largest between the two. Numba compiles before it is timed.
        ``peak_bytes`` is taken before scikit-bio runs. ``processes`` is what
        `time_unifrac_processes` returns.
    """
    device = prepare_device(runtime)
    table = read_table(table_path, need_sequences=False)
    tree = read_tree(tree_path)
    tips = match_tips(tree, table.feature_ids, "drop")
    total = len(table.sample_ids)
    chosen = np.sort(np.random.default_rng(runtime.seed).permutation(total)[:COMPARED_SAMPLES])
    metrics: dict[str, dict[str, float]] = {}
    parts: dict[str, Any] = {}

    def ours(metric: UnifracMetric) -> None:
        matrix = unifrac_matrix(
            tree, tips, table.counts, UnifracOptions(metric), torch.get_num_threads()
        )
        parts[metric] = matrix[np.ix_(chosen, chosen)]

    for metric in (*SCIKIT_BIO_METRICS, "generalized"):
        metrics[metric] = {
            "seconds": min(seconds(partial(ours, metric), device) for _ in range(repeats))
        }
    measurements: Measurements = {"samples": total, "compared": len(chosen)}
    measurements["peak_bytes"] = peak_memory(torch.device("cpu"))
    measurements["processes"] = time_unifrac_processes(
        table_path, tree_path, torch.get_num_threads(), repeats
    )

    counts = table.counts[chosen][:, tips >= 0].toarray().astype(np.int64)
    taxa = [table.feature_ids[column] for column in np.flatnonzero(tips >= 0).tolist()]
    share = (total / len(chosen)) ** 2
    for (metric, arguments), engine in itertools.product(
        SCIKIT_BIO_METRICS.items(), _engines(beta_diversity)
    ):
        options = {**arguments, "taxa": taxa, **({} if engine == "default" else {"engine": engine})}
        expected, taken = time_scikit_bio(counts, tree_path, options)
        measured = metrics[metric]
        measured[f"{engine}_seconds"] = taken
        measured[f"{engine}_whole_seconds"] = taken * share
        measured[f"{engine}_ratio"] = measured[f"{engine}_whole_seconds"] / measured["seconds"]
        measured["difference"] = float(np.abs(parts[metric] - expected).max())
    return {**measurements, "metrics": metrics}
