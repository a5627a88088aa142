"""What `aam bench` measures: training steps beside a plain implementation, prediction, UniFrac."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aam.commands.bench_processes import time_unifrac_processes
from aam.config import DataConfig, FineTuneConfig, ModelConfig, UnifracMetric
from aam.data.region import RegionProfile
from aam.data.study import load_study
from aam.data.table import read_table
from aam.data.targets import Targets, TargetSpec
from aam.device.device import prepare_device
from aam.device.memory import peak_memory
from aam.device.options import RuntimeConfig
from aam.device.timing import count_operations, product_rate, seconds
from aam.diversity.tables import unifrac_matrix
from aam.diversity.unifrac import UnifracOptions
from aam.io.newick import read_tree
from aam.io.phylogeny import match_tips
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.predict.saved_model import SavedModel, save_model
from aam.training.steps import make_steps

log = logging.getLogger("aam")

Measurements = dict[str, Any]

WARM_UP = 2

SCIKIT_BIO_METRICS: dict[UnifracMetric, dict[str, Any]] = {
    "unifrac": {"metric": "unweighted_unifrac"},
    "weighted": {"metric": "weighted_unifrac"},
    "weighted-normalized": {"metric": "weighted_unifrac", "normalized": True},
}

COMPARED_SAMPLES = 300


def time_training(config: FineTuneConfig, repeats: int, plain: bool = False) -> Measurements:
    """Speed, memory, arithmetic rate and stages of pretraining steps; the plain implementation's speed and memory.

    Returns
    -------
    dict
        ``samples_per_s`` and ``step_s`` (p50 and p95 over `repeats` steps, no timer inside), ``peak_bytes``
        (after those steps and one on the epoch's largest batch), ``losses`` of every step, ``operations`` of the
        step at the p50, ``rate`` and ``share`` of the product's rate (measured before and after): of the operations
        executed, and of those needed, without what is recomputed.
    """
    steps = make_steps(config, plain)
    product = product_rate(steps.device)
    steps.take(WARM_UP, 0)
    taken, batches = steps.take(repeats, 1)
    speeds = [len(batch.counts) / second for second, batch in zip(taken, batches, strict=True)]
    p50, p5 = np.percentile(speeds, [50, 5])
    measurements: Measurements = {
        "samples_per_s": {"p50": float(p50), "p5": float(p5)},
        "step_s": dict(zip(("p50", "p95"), np.percentile(taken, [50, 95]).tolist(), strict=True)),
        "steps": repeats,
        "batch_size": config.train.batch_size,
        "asv_chunk_size": config.runtime.asv_chunk_size,
        "gradient_checkpointing": config.runtime.gradient_checkpointing,
        "distinct_asvs": float(np.mean([len(batch.tokens) for batch in batches])),
        "slots": float(np.mean([batch.asv.shape[1] for batch in batches])),
        "losses": [float(loss) for loss in steps.losses],
        "epoch_s": len(steps.loader.rows) / float(p50),
    }
    if plain:
        return {**measurements, "peak_bytes": peak_memory(steps.device)}
    order = steps.loader.order(0)
    # Expected to have the most ASVs; to draw all batches of a large study would take longer than the steps.
    largest = max(order, key=lambda rows: steps.loader.study.richness[rows].sum())
    steps.step(steps.loader.draw(largest, 0))
    measurements |= {"peak_bytes": peak_memory(steps.device), **steps.stages(max(repeats // 2, 1), 2)}
    product = (product + product_rate(steps.device)) / 2
    middle = int(np.argsort(taken)[(repeats - 1) // 2])
    executed = count_operations(lambda: steps.step(batches[middle]))
    steps.model.bound_memory(config.runtime.asv_chunk_size, False)
    needed = count_operations(lambda: steps.step(batches[middle]))
    rates = {"executed": executed / taken[middle], "needed": needed / taken[middle]}
    shares = {name: rate / product for name, rate in rates.items()}
    return {**measurements, "operations": needed, "rate": rates, "product_rate": product, "share": shares}


def time_prediction(table: Path, runtime: RuntimeConfig, repeats: int) -> Measurements:
    """Seconds from the start of the process `aam predict` to its written file, with a default model."""
    study = load_study(DataConfig(table=table), None, runtime.seed)
    model = ModelConfig(max_bp=study.longest)
    heads, spec = HeadConfig(n_targets=1), TargetSpec("value", "numeric", bounds=(0.0, 1.0))
    saved = SavedModel(
        network=Aam(model, study.depth, heads),
        data=DataConfig(),
        model=model,
        heads=heads,
        depth=study.depth,
        seed=runtime.seed,
        targets=Targets((spec,)),
        profile=RegionProfile.fit(study.table.sequences),
        notes={"seen_samples": []},
    )
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / "model", saved)
        words = [sys.executable, "-m", "aam", "predict", "--model", f"{folder}/model", "--table", str(table)]
        words += ["--device", runtime.device]
        words += [] if runtime.threads is None else ["--threads", str(runtime.threads)]
        for number in range(repeats):
            start = time.perf_counter()
            subprocess.run([*words, "--output", f"{folder}/{number}.tsv"], check=True, capture_output=True)
            taken.append(time.perf_counter() - start)
    p50, p95 = np.percentile(taken, [50, 95]).tolist()
    samples, asvs = len(study.all_sample_ids), len(study.table.sequences)
    return {"seconds": {"p50": p50, "p95": p95}, "samples": samples, "distinct_asvs": asvs}


def _engines(function: Callable[..., Any]) -> list[str]:
    """Engines of the installed scikit-bio: its default, and numba where both know it."""
    has_engines = "engine" in inspect.signature(function).parameters
    return ["default", *(["numba"] if has_engines and importlib.util.find_spec("numba") else [])]


def time_unifrac(table_path: Path, tree_path: Path, runtime: RuntimeConfig, repeats: int = 3) -> Measurements:
    """Seconds of every metric on the whole table, and of scikit-bio on some of its samples.

    Features without a tip are left out on both sides.

    Returns
    -------
    dict
        Per metric the ``seconds`` of the whole table (fastest of `repeats`), and for the ones that scikit-bio
        has ``<engine>_seconds`` measured, ``<engine>_whole_seconds`` extrapolated with the square of the
        samples, ``<engine>_ratio`` (how often faster `aam` is) and ``difference``, the largest between the
        two. Numba compiles before it is timed. ``peak_bytes`` is taken before scikit-bio runs. ``processes`` is what
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
        matrix = unifrac_matrix(tree, tips, table.counts, UnifracOptions(metric), torch.get_num_threads())
        parts[metric] = matrix[np.ix_(chosen, chosen)]

    for metric in (*SCIKIT_BIO_METRICS, "generalized"):
        metrics[metric] = {"seconds": min(seconds(partial(ours, metric), device) for _ in range(repeats))}
    measurements: Measurements = {"samples": total, "compared": len(chosen)}
    measurements["peak_bytes"] = peak_memory(torch.device("cpu"))
    measurements["processes"] = time_unifrac_processes(table_path, tree_path, torch.get_num_threads(), repeats)

    if importlib.util.find_spec("skbio") is None:
        log.warning("scikit-bio is not installed, so nothing is compared with it: pip install 'aam[bench]'")
        return {**measurements, "metrics": metrics}
    from skbio import TreeNode
    from skbio.diversity import beta_diversity

    with_tip = np.flatnonzero(tips >= 0)
    counts = table.counts[chosen][:, with_tip].toarray().astype(np.int64)
    common = {"taxa": [table.feature_ids[column] for column in with_tip.tolist()], "ids": [str(row) for row in chosen]}
    common["tree"] = TreeNode.read(str(tree_path), convert_underscores=False)
    for (metric, arguments), engine in itertools.product(SCIKIT_BIO_METRICS.items(), _engines(beta_diversity)):
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
