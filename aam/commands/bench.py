"""`aam bench`: speed and memory of the main job on this device."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import aam
from aam.commands.bench_cases import Measurements, time_prediction, time_training, time_unifrac
from aam.commands.bench_ranks import time_two_processes
from aam.config import DataConfig, FineTuneConfig, ModelConfig, TrainConfig
from aam.config_commands import BenchConfig, SimulateConfig
from aam.contradictions import check_command
from aam.data.simulate import simulate
from aam.device.device import device_name, prepare_device, slug
from aam.device.files import write_text
from aam.device.output_folder import check_output_file
from aam.engine.options import RunConfig
from aam.errors import InputError, Problems
from aam.options import files_read
from aam.training.steps import STAGES

# Sizes of the public predecessor, and the batch of which it needed 10 s and 5.9 GB a step.
PREDECESSOR = ModelConfig(asv_stem="nucleotide", embedding_dim=128, attention_heads=4, attention_layers=4)

PREDECESSOR_BATCH = 8

# Cases that only --all and --cases run.
LONG_CASES = ("processes", "unlabelled")

# About as large, as sparse and as deep as a batch of `oral-age`.
SIMULATED = SimulateConfig(samples=640, asvs=3000, length=100, depth=1500)


def _alone(name: str, work: Callable[[], Measurements]) -> Measurements:
    """The result of `work` in a fresh process, so that its peak memory is its own."""
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(work).result()
    except BrokenProcessPool:
        raise InputError(
            f"{name}: its process was killed, most likely for want of memory; leave it out with --cases"
        ) from None


@contextlib.contextmanager
def _inputs(config: BenchConfig) -> Iterator[tuple[Path, Path | None]]:
    """Table and tree: as asked for, else `oral-age` of the benchmark data, else a simulated study."""
    if config.table is not None:
        yield config.table, config.tree
    elif os.environ.get("AAM_BENCH_DATA"):
        folder = Path(os.environ["AAM_BENCH_DATA"]) / "oral-age"
        yield folder / "table.biom", folder / "tree.nwk"
    else:
        print(
            "No real data: AAM_BENCH_DATA is unset (the folder that holds oral-age) and --table and --tree "
            "are not given. A simulated study is measured instead: its measurements are not those of real samples",
            flush=True,
        )
        with tempfile.TemporaryDirectory() as temporary:
            study = Path(temporary) / "study"
            simulate(replace(SIMULATED, output_dir=study))
            yield study / "table.biom", study / "tree.nwk"


def _work(config: BenchConfig, table: Path, tree: Path | None) -> dict[str, Callable[[], Measurements] | str]:
    """What each case runs, or why it cannot."""
    runtime = RunConfig(device=config.device, threads=config.threads)
    usual = FineTuneConfig(
        data=DataConfig(table=table, tree=tree, missing_tips="drop"), train=TrainConfig(), runtime=runtime
    )
    bases = replace(usual, model=PREDECESSOR, runtime=replace(runtime, asv_chunk_size=64, gradient_checkpointing=True))
    small = replace(usual, model=PREDECESSOR, train=TrainConfig(batch_size=PREDECESSOR_BATCH))
    few = max(config.repeats // 3, 1)
    work: dict[str, Callable[[], Measurements] | str] = {
        "pretrain": partial(time_training, usual, config.repeats),
        "dense": partial(time_training, usual, few, True),
        "nucleotide": partial(time_training, bases, config.repeats),
        "dense-nucleotide": partial(time_training, small, few, True),
        "predict": partial(time_prediction, table, runtime, few),
        "unifrac": "needs --tree" if tree is None else partial(time_unifrac, table, tree, runtime),
        "processes": "needs --tree" if tree is None else partial(time_two_processes, table, tree, few),
        "unlabelled": "needs AAM_BENCH_DATA, the folder that holds unlabelled/table.biom",
    }
    if os.environ.get("AAM_BENCH_DATA"):
        large = Path(os.environ["AAM_BENCH_DATA"]) / "unlabelled" / "table.biom"
        work["unlabelled"] = partial(time_training, replace(usual, data=DataConfig(table=large)), few)
    return work


def _speed(measurements: Measurements) -> tuple[str, str]:
    """Speed and memory of one case for people."""
    memory = f"{measurements['peak_bytes'] / 1e9:.2f} GB" if "peak_bytes" in measurements else ""
    if "ways" in measurements:
        speed = measurements["ways"]["one"]["samples_per_s"]["p50"]
        return f"{speed:.1f} samples/s in one process of one thread", memory
    if "metrics" in measurements:
        return f"{measurements['metrics']['unifrac']['seconds']:.2f} s unweighted", memory
    if "seconds" in measurements:
        return f"{measurements['seconds']['p50']:.1f} s for {measurements['samples']} samples", memory
    return f"{measurements['samples_per_s']['p50']:.1f} samples/s at B={measurements['batch_size']}", memory


def rate_notes(measurements: Measurements, results: dict[str, Measurements], case: str) -> str:
    """Arithmetic rate, and how the plain implementation compares."""
    if "share" in measurements:
        rate, product = measurements["rate"]["executed"] / 1e9, measurements["product_rate"] / 1e9
        executed, needed = measurements["share"]["executed"], measurements["share"]["needed"]
        again = "" if needed == executed else f" ({needed:.0%} without what is recomputed)"
        return f"{rate:.0f} GFLOP/s, {executed:.0%} of the product's {product:.0f}{again}"
    baseline = {"dense": "pretrain", "dense-nucleotide": "nucleotide"}.get(case)
    if baseline in results:
        ratio = results[baseline]["samples_per_s"]["p50"] / measurements["samples_per_s"]["p50"]
        return f"{baseline} is {ratio:.1f} times as fast"
    if "ways" in measurements:
        to_one = {way: value["ratio"] for way, value in measurements["ways"].items() if way != "one"}
        return "two processes: " + ", ".join(
            f"{way} {ratio['p50']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})" for way, ratio in to_one.items()
        )
    if "metrics" in measurements:
        ratios = [
            f"{metric} {value:.0f}x {engine.removesuffix('_ratio')}"
            for metric, seconds in measurements["metrics"].items()
            for engine, value in seconds.items()
            if engine.endswith("_ratio")
        ]
        return "scikit-bio extrapolated: " + ", ".join(ratios)
    return f"{measurements['distinct_asvs']:.0f} distinct ASVs"


def _show(results: dict[str, Measurements], title: str) -> None:
    console = Console()
    table = Table("case", "speed", "peak memory", "notes", title=title)
    for case, measurements in results.items():
        table.add_row(case, *_speed(measurements), rate_notes(measurements, results, case))
    console.print(table)
    timed = {case: measurements for case, measurements in results.items() if "stages" in measurements}
    if timed:
        table = Table("stage of a step, ms", *timed)
        for stage in STAGES:
            table.add_row(stage, *(f"{1000 * measurements['stages'][stage]:.1f}" for measurements in timed.values()))
        table.add_row("of the wall time", *(f"{measurements['accounted']:.1%}" for measurements in timed.values()))
        console.print(table)


def bench(config: BenchConfig) -> None:
    """Run the cases, print their measurements and write them as JSON.

    Raises
    ------
    InputError
        Bad options or inputs, or a case whose process was killed.
    """
    check_command(config)
    device = prepare_device(RunConfig(device=config.device, threads=config.threads))
    name = device_name(device)
    output = config.output or Path("docs") / "benchmarks" / f"{slug(name)}.json"
    check_output_file(output, True, files_read(config).values())
    if output.is_dir():
        raise InputError(f"--output: {output} is a folder, expected a JSON file")
    results: dict[str, Measurements] = {}
    skipped = Problems()
    with _inputs(config) as (table, tree):
        for case, work in _work(config, table, tree).items():
            if case not in config.cases and not (config.all and case in LONG_CASES):
                continue
            if isinstance(work, str):
                print(f"{case}: skipped, {work}", flush=True)
                skipped.add(f"--cases {case}: {work}")
                continue
            results[case] = _alone(case, work)
            facts = [*_speed(results[case]), rate_notes(results[case], results, case)]
            print(f"{case}: {'; '.join(filter(None, facts))}", flush=True)
    if not results:
        skipped.raise_if_any()
    _show(results, name)
    about = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    about |= {"aam": aam.__version__, "date": time.strftime("%Y-%m-%d"), "table": table.parent.name}
    write_text(output, json.dumps({**about, "repeats": config.repeats, "cases": results}, indent=1) + "\n")
    print(output)
