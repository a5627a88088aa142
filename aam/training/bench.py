"""`aam bench`, `aam profile` and `aam compare`: speed and memory of the main job on this device."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
import os
import platform
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

import aam
from aam.config import DataConfig, FineTuneConfig, ModelConfig, RunConfig, TrainConfig
from aam.config_commands import BenchConfig, CompareConfig, ProfileConfig, SimulateConfig
from aam.config_file import out_of_range
from aam.data.simulate import simulate
from aam.errors import FAILED, FINISHED, InputError
from aam.runtime.device import prepare
from aam.runtime.files import check_writable, read_json, whole_file, write_text
from aam.runtime.timing import device_name, memory_limit, slug
from aam.training.bench_cases import (
    STAGES,
    WARM_UP,
    Figures,
    Steps,
    make_steps,
    restored,
    time_prediction,
    time_training,
    time_unifrac,
)
from aam.training.memory import largest_batch, memory_profiled
from aam.training.record import compare_runs, flat

# Sizes of the public predecessor, and the batch of which it needed 10 s and 5.9 GB a step.
PREDECESSOR = ModelConfig(asv_stem="nucleotide", embedding_dim=128, attention_heads=4, attention_layers=4)
PREDECESSOR_BATCH = 8
# About as large, as sparse and as deep as a batch of `oral-age`.
SIMULATED = SimulateConfig(samples=640, asvs=3000, length=100, depth=1500)


def _alone(name: str, work: Callable[[], Figures]) -> Figures:
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
    elif config.tree is not None:
        raise InputError(f"--tree is {config.tree} but --table is not given; name the table it belongs to")
    elif os.environ.get("AAM_BENCH_DATA"):
        folder = Path(os.environ["AAM_BENCH_DATA"]) / "oral-age"
        yield folder / "table.biom", folder / "tree.nwk"
    else:
        print(
            "No real data: AAM_BENCH_DATA is unset (the folder that holds oral-age) and --table and --tree "
            "are not given. A simulated study is measured instead: its figures are not those of real samples",
            flush=True,
        )
        with tempfile.TemporaryDirectory() as temporary:
            study = Path(temporary) / "study"
            simulate(replace(SIMULATED, output_dir=study))
            yield study / "table.biom", study / "tree.nwk"


def _work(config: BenchConfig, table: Path, tree: Path | None) -> dict[str, Callable[[], Figures] | str]:
    """What each case runs, or why it cannot."""
    runtime = RunConfig(device=config.device, threads=config.threads)
    usual = FineTuneConfig(
        data=DataConfig(table=table, tree=tree, missing_tips="drop"), train=TrainConfig(), runtime=runtime
    )
    bases = replace(usual, model=PREDECESSOR, runtime=replace(runtime, asv_chunk_size=64, gradient_checkpointing=True))
    small = replace(usual, model=PREDECESSOR, train=TrainConfig(batch_size=PREDECESSOR_BATCH))
    few = max(config.repeats // 3, 1)
    work: dict[str, Callable[[], Figures] | str] = {
        "pretrain": partial(time_training, usual, config.repeats),
        "dense": partial(time_training, usual, few, True),
        "nucleotide": partial(time_training, bases, config.repeats),
        "dense-nucleotide": partial(time_training, small, few, True),
        "predict": partial(time_prediction, table, runtime, few),
        "unifrac": "needs --tree" if tree is None else partial(time_unifrac, table, tree, runtime),
        "unlabelled": "needs AAM_BENCH_DATA, the folder that holds unlabelled/table.biom",
    }
    if os.environ.get("AAM_BENCH_DATA"):
        large = Path(os.environ["AAM_BENCH_DATA"]) / "unlabelled" / "table.biom"
        work["unlabelled"] = partial(time_training, replace(usual, data=DataConfig(table=large)), few)
    return work


def _speed(figures: Figures) -> tuple[str, str]:
    """Speed and memory of one case for people."""
    memory = f"{figures['peak_bytes'] / 1e9:.2f} GB" if "peak_bytes" in figures else ""
    if "metrics" in figures:
        return f"{figures['metrics']['unifrac']['seconds']:.2f} s unweighted", memory
    if "seconds" in figures:
        return f"{figures['seconds']['p50']:.1f} s for {figures['samples']} samples", memory
    return f"{figures['samples_per_s']['p50']:.1f} samples/s at B={figures['batch_size']}", memory


def _notes(figures: Figures, results: dict[str, Figures], case: str) -> str:
    """Arithmetic rate, and how the rivals compare."""
    if "share" in figures:
        rate, product = figures["rate"]["executed"] / 1e9, figures["product_rate"] / 1e9
        executed, needed = figures["share"]["executed"], figures["share"]["needed"]
        again = "" if needed == executed else f" ({needed:.0%} without what is recomputed)"
        return f"{rate:.0f} GFLOP/s, {executed:.0%} of the product's {product:.0f}{again}"
    rival = {"dense": "pretrain", "dense-nucleotide": "nucleotide"}.get(case)
    if rival in results:
        ratio = results[rival]["samples_per_s"]["p50"] / figures["samples_per_s"]["p50"]
        return f"{rival} is {ratio:.1f} times as fast"
    if "metrics" in figures:
        ratios = [
            f"{metric} {value:.0f}x {engine.removesuffix('_ratio')}"
            for metric, found in figures["metrics"].items()
            for engine, value in found.items()
            if engine.endswith("_ratio")
        ]
        return "scikit-bio extrapolated: " + ", ".join(ratios)
    return f"{figures['distinct_asvs']:.0f} distinct ASVs"


def _show(results: dict[str, Figures], title: str) -> None:
    console = Console()
    table = Table("case", "speed", "peak memory", "notes", title=title)
    for case, figures in results.items():
        table.add_row(case, *_speed(figures), _notes(figures, results, case))
    console.print(table)
    timed = {case: figures for case, figures in results.items() if "stages" in figures}
    if timed:
        table = Table("stage of a step, ms", *timed)
        for stage in STAGES:
            table.add_row(stage, *(f"{1000 * figures['stages'][stage]:.1f}" for figures in timed.values()))
        table.add_row("of the wall time", *(f"{figures['accounted']:.1%}" for figures in timed.values()))
        console.print(table)


# --- comparing -------------------------------------------------------------------------------------------------

# Figures of which more is better or worse, by how their dotted names end; and those that must be alike.
MORE = re.compile(r"(samples_per_s\.p50|rates?\.[\w ]+|product_rate)$")
LESS = re.compile(r"(step_s\.p50|seconds(\.p50)?|peak_bytes|\.error)$")
ALIKE = re.compile(r"(losses|activations\..*\.(mean|std|largest))$")
# Errors below this are rounding; losses and layers that are this much apart, as a share, are not alike.
ROUNDING, APART = 1e-4, 1e-2


def _worse(name: str, one: Any, other: Any, tolerance: float) -> bool:
    """Whether the second figure is worse than the first by more than `tolerance`, or wrong where it was not."""
    if name.endswith(".wrong"):
        return bool(other) and not one
    if not (isinstance(one, (int, float)) and isinstance(other, (int, float))):
        return False
    if ALIKE.search(name):
        return abs(other - one) > APART * max(abs(one), ROUNDING)
    less, more = other < one / (1 + tolerance), other > max(one * (1 + tolerance), ROUNDING)
    return bool((less and MORE.search(name)) or (more and LESS.search(name)))


def _report(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict) or not ({"cases", "platform", "stages"} & found.keys()):
        raise InputError(f"{path}: expected the JSON of aam doctor, aam bench or aam profile step")
    lists = {k: v for k, v in flat(found).items() if isinstance(v, list) and all(isinstance(x, float) for x in v)}
    return {**flat(found), **{f"{k}.{at}.losses": x for k, v in lists.items() for at, x in enumerate(v)}}


def compare(config: CompareConfig) -> int:
    """Compare two runs or, where both are files, two reports; the exit status is 1 where the second is worse.

    Raises
    ------
    InputError
        Nothing to compare, or a file that is no report.
    """
    if problems := out_of_range(config):
        raise InputError(*problems)
    first, second = config.first, config.second
    if first is None or second is None or not (first.is_file() and second.is_file()):
        return compare_runs(config)
    one, other = _report(first), _report(second)
    table, worse = Table("", escape(str(first)), escape(str(second)), ""), 0
    for name in {**one, **other}:
        a, b = one.get(name), other.get(name)
        bad = _worse(name, a, b, config.tolerance)
        worse += bad
        if bad or (repr(a) != repr(b) and not isinstance(a, (float, list)) and name not in ("date", "device")):
            table.add_row(*map(escape, (name, str(a), str(b))), "worse" if bad else "")
    Console().print(table)
    print(f"{worse} figures are worse by more than {config.tolerance:.0%}, or apart" if worse else "Nothing is worse.")
    return FAILED if worse else FINISHED


def bench(config: BenchConfig) -> None:
    """Run the cases, print their figures and write them as JSON.

    Raises
    ------
    InputError
        Bad options or inputs, or a case whose process was killed.
    """
    if problems := out_of_range(config):
        raise InputError(*problems)
    device = prepare(RunConfig(device=config.device, threads=config.threads))
    name = device_name(device)
    output = config.output or Path("docs") / "benchmarks" / f"{slug(name)}.json"
    check_writable(output, overwrite=True)
    results: dict[str, Figures] = {}
    with _inputs(config) as (table, tree):
        for case, work in _work(config, table, tree).items():
            if case not in config.cases and not (config.all and case == "unlabelled"):
                continue
            if isinstance(work, str):
                print(f"{case}: skipped, {work}", flush=True)
                continue
            results[case] = _alone(case, work)
            facts = [*_speed(results[case]), _notes(results[case], results, case)]
            print(f"{case}: {'; '.join(filter(None, facts))}", flush=True)
    _show(results, name)
    about = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    about |= {"aam": aam.__version__, "date": time.strftime("%Y-%m-%d"), "table": table.parent.name}
    write_text(output, json.dumps({**about, "repeats": config.repeats, "cases": results}, indent=1) + "\n")
    print(output)


# --- profiles ------------------------------------------------------------------------------------------------


def learning_rates(steps: Steps, number: int) -> list[tuple[float, float]]:
    """Learning rate and smoothed loss of `number` steps from 1e-6 to 1, until the loss is four times the lowest.

    The range test of Smith (2017), "Cyclical learning rates for training neural networks".
    """
    found: list[tuple[float, float]] = []
    batches = itertools.chain.from_iterable(map(steps.loader.epoch, itertools.count()))
    with restored(steps):
        mean = 0.0
        for at, rate in enumerate(np.geomspace(1e-6, 1.0, number)):
            for group in steps.optimizer.param_groups:
                group["lr"] = float(rate)
            steps.step(next(batches), at)
            loss = float(steps.losses[-1])
            mean = 0.9 * mean + 0.1 * loss
            smooth = mean / (1 - 0.9 ** (at + 1))
            if not math.isfinite(loss) or (found and smooth > 4 * min(each for _, each in found)):
                break
            found.append((float(rate), smooth))
    return found


def suggested(found: Sequence[tuple[float, float]]) -> float:
    """A third of the learning rate at which the loss is lowest."""
    return min(found, key=lambda pair: pair[1])[0] / 3


def _operations(steps: Steps, folder: Path) -> Figures:
    """The ten operations that take most time, and a trace for chrome://tracing or Perfetto."""
    gpu = steps.device.type == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if gpu else [])]
    start, cpu = time.perf_counter(), time.process_time()
    with torch.profiler.profile(activities=kinds) as profiler:
        batches = steps.take(3, 1)[1]
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    taken = {one.key: (one.self_device_time_total if gpu else one.self_cpu_time_total) / 1e6 for one in
             profiler.key_averages()}  # fmt: skip
    with whole_file(folder / "trace.json") as path:
        profiler.export_chrome_trace(str(path))
    moved = [value.nbytes for batch in batches for value in vars(batch).values() if isinstance(value, Tensor)]
    return {
        "top": dict(sorted(taken.items(), key=lambda pair: -pair[1])[:10]),
        "utilisation": sum(taken.values()) / wall if gpu else cpu / wall / torch.get_num_threads(),
        "host_device_bytes": sum(moved) // len(batches) if gpu else 0,
    }


def read_rocprof(path: Path) -> dict[str, float]:
    """Seconds of each kernel in the kernel_stats.csv of rocprofv3, longest first."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = {row["Name"]: float(row["TotalDurationNs"]) / 1e9 for row in csv.DictReader(file)}
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, ValueError) as error:
        raise InputError(f"--rocprof: {path} cannot be read ({error}); expected Name and TotalDurationNs") from None
    return dict(sorted(rows.items(), key=lambda pair: -pair[1]))


def _plot(path: Path, found: Sequence[tuple[float, float]], best: float) -> None:
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    axes.plot(*zip(*found, strict=True))
    axes.axvline(best, linestyle=":")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss, smoothed")
    with whole_file(path) as temporary:
        figure.savefig(temporary, format="png")


def _profile_step(config: ProfileConfig, whole: FineTuneConfig, folder: Path) -> Figures:
    figures = time_training(whole, config.steps)
    steps = make_steps(whole)
    steps.take(WARM_UP, 0)
    figures |= _operations(steps, folder)
    total = sum(figures["stages"].values())
    for name, taken in figures["stages"].items():
        print(f"{name:<15} {1e3 * taken:8.1f} ms {taken / total:6.1%}")
    print(
        f"{figures['accounted']:.1%} of the wall time; {figures['samples_per_s']['p50']:.1f} samples/s; "
        f"{_notes(figures, {}, 'step')}; {figures['utilisation']:.0%} busy"
    )
    for name, taken in figures["top"].items():
        print(f"{name:<60} {1e3 * taken / 3:8.1f} ms")
    if torch.version.hip is not None:
        words = " ".join(map(shlex.quote, sys.argv[1:]))
        print(f"kernels: rocprofv3 --kernel-trace --stats --output-format csv -d {folder} -- python -m aam {words}")
    if config.rocprof is not None:
        figures["kernels"] = read_rocprof(config.rocprof)
    return figures


def profile(config: ProfileConfig) -> None:
    """Run `aam profile`: prints what it found and writes profile.json, and a trace or a plot, to ``--output-dir``."""
    folder, problems = config.runtime.output_dir, out_of_range(config)
    if folder is None:
        problems.append("--output-dir: not given; name the folder of the profile")
    if problems or folder is None:
        raise InputError(*problems)
    check_writable(folder, config.runtime.overwrite)
    run = RunConfig(**vars(config.runtime))
    whole = FineTuneConfig(data=config.data, model=config.model, train=config.train, runtime=run)
    figures: Figures = {}
    if config.what == "memory":
        memory_profiled(lambda _: make_steps(whole).take(config.steps, 0), config)
        return
    if config.what == "step":
        figures = _profile_step(config, whole, folder)
    elif config.what == "batch-size":
        steps = make_steps(whole)
        limit = memory_limit(steps.device, config.train.max_memory_fraction)
        fits = largest_batch(steps, limit)
        figures = {"limit_bytes": limit, "peak_bytes_of": fits, "batch_size": max(fits)}
        print(f"largest batch: {max(fits)} samples, {fits[max(fits)] / 1e9:.2f} of {limit / 1e9:.2f} GB")
    else:
        found = learning_rates(make_steps(whole), 5 * config.steps)
        figures = {"suggested": suggested(found), "tried": found}
        _plot(folder / "lr.png", found, figures["suggested"])
        print(f"learning rate: {figures['suggested']:.2g} (lowest loss at {3 * figures['suggested']:.2g})")
    write_text(folder / "profile.json", json.dumps({"device": device_name(torch.device("cpu")), **figures}, indent=1))
    print(folder / "profile.json")
