"""What each comparison runs: `aam` and its rival in one process, in turn where they are
processes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from aam.commands.bench import (
    Measurements,
    Work,
    bench,
    describe_case,
    time_training,
    training_cases,
)
from aam.config import DataConfig, PretrainConfig, TrainConfig
from aam.device.options import RuntimeConfig
from aam.errors import import_extra
from aam.training.task import AmpliconTask
from benchmarks.config import RivalsConfig
from benchmarks.plain import PlainTask
from benchmarks.ranks import time_ranks
from benchmarks.report import time_report

# The batch of which the public predecessor needed 10 s and 5.9 GB a step.
PREDECESSOR_BATCH = 8


def time_plain(config: PretrainConfig, plain: PretrainConfig, repeats: int) -> Measurements:
    """Return the speed of training steps, that of the ``plain`` implementation, and how often
    faster ours is.
    """
    ours, theirs = time_training(config, repeats), time_training(plain, repeats, PlainTask)
    ratio = ours["samples_per_s"]["p50"] / theirs["samples_per_s"]["p50"]
    return {**ours, "plain": theirs, "ratio": ratio}


def _unifrac(table: Path, tree: Path, runtime: RuntimeConfig) -> Measurements:
    import_extra("skbio", "bench", "the case unifrac")
    from benchmarks.unifrac import compare_unifrac

    return compare_unifrac(table, tree, runtime)


def rival_cases(config: RivalsConfig, table: Path, tree: Path | None) -> dict[str, Work]:
    """Return what each case runs, or why it cannot."""
    runtime = RuntimeConfig(device=config.device, threads=config.threads)
    training, few = training_cases(config, table, tree), max(config.repeats // 3, 1)
    usual, bases = training["pretrain"], training["nucleotide"]
    small = replace(bases, runtime=usual.runtime, train=TrainConfig(batch_size=PREDECESSOR_BATCH))
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
            time_training, replace(usual, data=DataConfig(table=large)), few, AmpliconTask
        )
    return cases


def describe_rival(measurements: Measurements) -> tuple[str, str, str]:
    """Return speed, memory and the comparison of a case, for people."""
    if "ways" in measurements:
        speed = measurements["ways"]["one"]["samples_per_s"]["p50"]
        to_one = {
            way: value["ratio"] for way, value in measurements["ways"].items() if way != "one"
        }
        notes = ", ".join(
            f"{way} {ratio['p50']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})"
            for way, ratio in to_one.items()
        )
        return f"{speed:.1f} samples/s in one process of one thread", "", notes
    if "classes" in measurements:
        slowest = max(kind["seconds"] for kind in measurements["classes"].values())
        return (
            f"{slowest:.1f} s for {measurements['samples']} samples",
            "",
            f"{measurements['baselines']} baselines",
        )
    speed, memory, notes = describe_case(measurements)
    if "ratio" in measurements:
        notes = f"{measurements['ratio']:.1f} times as fast as the plain implementation"
    elif "metrics" in measurements:
        ratios = [
            f"{metric} {value:.0f}x {engine.removesuffix('_ratio')}"
            for metric, seconds in measurements["metrics"].items()
            for engine, value in seconds.items()
            if engine.endswith("_ratio")
        ]
        notes = "scikit-bio extrapolated: " + ", ".join(ratios)
    return speed, memory, notes


def compare_with_rivals(config: RivalsConfig) -> None:
    """Run the comparisons, print their measurements and write them as JSON; raises as `bench`."""
    bench(config, rival_cases, describe_rival)
