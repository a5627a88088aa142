"""What each comparison of speed runs: `aam` and another program in one process, in turn where they
are processes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from aam.config import DataConfig, ModelConfig, PretrainConfig, TrainConfig
from aam.options import RunConfig, RuntimeConfig
from benchmarks.config import SpeedConfig
from benchmarks.harness import Measurements, Work, run_cases, time_training
from benchmarks.plain import PlainTask
from benchmarks.ranks import time_ranks
from benchmarks.report import time_report

# A network that reads single bases, as large as the public predecessor's.
BASES = ModelConfig(patch_size=1, embedding_dim=128, attention_heads=4, attention_layers=4)

# The batch of which the public predecessor needed 10 s and 5.9 GB a step.
PREDECESSOR_BATCH = 8


def time_plain(config: PretrainConfig, plain: PretrainConfig, repeats: int) -> Measurements:
    """Return the speed of training steps, that of the ``plain`` implementation, and how often
    faster ours is.
    """
    ours, theirs = time_training(config, repeats), time_training(plain, repeats, PlainTask)
    ratio = ours["samples_per_s"] / theirs["samples_per_s"]
    return {**ours, "plain": theirs, "ratio": ratio}


def _unifrac(table: Path, tree: Path, runtime: RuntimeConfig) -> Measurements:
    from benchmarks.unifrac import compare_unifrac

    return compare_unifrac(table, tree, runtime)


def speed_cases(config: SpeedConfig, table: Path, tree: Path | None) -> dict[str, Work]:
    """The function of each case, or why it cannot run."""
    runtime = RuntimeConfig(device=config.device, threads=config.threads)
    few = max(config.repeats // 3, 1)
    data = DataConfig(table=table, tree=tree, missing_tips="drop")
    run = RunConfig(device=config.device, threads=config.threads)
    usual = PretrainConfig(data=data, train=TrainConfig(), runtime=run)
    chunks = replace(run, asv_chunk_size=64, gradient_checkpointing=True)
    bases = replace(usual, model=BASES, runtime=chunks)
    small = replace(bases, runtime=run, train=TrainConfig(batch_size=PREDECESSOR_BATCH))
    cases: dict[str, Work] = {
        "dense": partial(time_plain, usual, usual, few),
        "dense-nucleotide": partial(time_plain, bases, small, few),
        "unifrac": "needs --tree" if tree is None else partial(_unifrac, table, tree, runtime),
        "processes": "needs --tree" if tree is None else partial(time_ranks, table, tree, few),
        "report": partial(time_report, runtime),
        "unlabelled": "needs AAM_BENCH_DATA, the folder that holds unlabelled/table.biom",
    }
    if os.environ.get("AAM_BENCH_DATA"):
        large = Path(os.environ["AAM_BENCH_DATA"]) / "unlabelled" / "table.biom"
        cases["unlabelled"] = partial(
            time_training, replace(usual, data=DataConfig(table=large)), few
        )
    return cases


def describe_case(measurements: Measurements) -> str:
    """Return a line about a case, for people."""
    if "ways" in measurements:
        speed = measurements["ways"]["one"]["samples_per_s"]["p50"]
        ratios = {way: value["ratio"] for way, value in measurements["ways"].items()}
        notes = [
            f"{way} {ratio['p50']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})"
            for way, ratio in ratios.items()
            if way != "one"
        ]
        return f"{speed:.1f} samples/s in one process of one thread; {', '.join(notes)}"
    if "classes" in measurements:
        slowest = max(kind["seconds"] for kind in measurements["classes"].values())
        about = f"{measurements['samples']} samples, {measurements['baselines']} baselines"
        return f"{slowest:.1f} s for {about}"
    if "metrics" in measurements:
        against = [
            f"{metric} {value:.0f}x {engine.removesuffix('_ratio')}"
            for metric, seconds in measurements["metrics"].items()
            for engine, value in seconds.items()
            if engine.endswith("_ratio")
        ]
        seconds = measurements["metrics"]["unifrac"]["seconds"]
        return f"{seconds:.2f} s unweighted; scikit-bio extrapolated: {', '.join(against)}"
    speed = (
        f"{measurements['samples_per_s']:.1f} samples/s at B={measurements['batch_size']}, "
        f"{measurements['peak_bytes'] / 1e9:.2f} GB"
    )
    ratio = measurements.get("ratio")
    return speed if ratio is None else f"{speed}; {ratio:.1f} times the plain implementation's"


def compare_speed(config: SpeedConfig) -> None:
    """Run the comparisons, print their measurements and write them as JSON; raises as
    `run_cases`.
    """
    run_cases(config, speed_cases, describe_case)
