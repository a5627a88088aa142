"""UniFrac beside scikit-bio on the same samples, and beside ssu as whole processes."""

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
import torch
from skbio import TreeNode
from skbio.diversity import beta_diversity

from aam.config import UnifracMetric
from aam.data.table import read_table
from aam.device.memory import peak_memory
from aam.device.options import RuntimeConfig
from aam.device.platform import prepare_device
from aam.device.timing import seconds
from aam.diversity.tables import unifrac_matrix
from aam.diversity.unifrac import UnifracOptions
from aam.io.phylogeny import match_tips, read_tree
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

    with_tip = np.flatnonzero(tips >= 0)
    counts = table.counts[chosen][:, with_tip].toarray().astype(np.int64)
    common = {
        "taxa": [table.feature_ids[column] for column in with_tip.tolist()],
        "ids": [str(row) for row in chosen],
    }
    common["tree"] = TreeNode.read(str(tree_path), convert_underscores=False)
    for (metric, arguments), engine in itertools.product(
        SCIKIT_BIO_METRICS.items(), _engines(beta_diversity)
    ):
        options = {**arguments, **common, **({} if engine == "default" else {"engine": engine})}
        beta_diversity(counts=counts[:4], **{**options, "ids": common["ids"][:4]})
        start = time.perf_counter()
        expected = np.asarray(beta_diversity(counts=counts, **options).data)
        taken = time.perf_counter() - start
        measured = metrics[metric]
        measured[f"{engine}_seconds"] = taken
        measured[f"{engine}_whole_seconds"] = taken * (total / len(chosen)) ** 2
        measured[f"{engine}_ratio"] = measured[f"{engine}_whole_seconds"] / measured["seconds"]
        measured["difference"] = float(np.abs(parts[metric] - expected).max())
    return {**measurements, "metrics": metrics}
