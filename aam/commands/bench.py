"""`aam bench`: speed and memory of training steps, prediction and UniFrac on this device."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import aam
from aam.config import DataConfig, ModelConfig, PretrainConfig, TrainConfig, UnifracMetric
from aam.config_commands import BenchConfig
from aam.data.region import RegionProfile
from aam.data.simulate import simulate
from aam.data.study import load_study
from aam.data.table import read_table
from aam.data.targets import Targets, TargetSpec
from aam.device.memory import peak_memory, reset_peak
from aam.device.options import RuntimeConfig
from aam.device.platform import device_name, prepare_device, slug
from aam.device.precision import resolve_precision
from aam.device.timing import count_operations, product_rate, seconds
from aam.diversity.tables import unifrac_matrix
from aam.diversity.unifrac import UnifracOptions
from aam.engine.options import RunConfig
from aam.errors import InputError, Problems
from aam.files.atomic import write_text
from aam.files.output_folder import check_output_file
from aam.io.phylogeny import match_tips, read_tree
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.options import files_read
from aam.predict.saved_model import SavedModel, save_model
from aam.training.decisions import STAGES, batch_of_most_asvs, make_steps
from aam.training.task import AmpliconTask

Measurements = dict[str, Any]
# What a case runs, or why it cannot.
Work = Callable[[], Measurements] | str

WARM_UP = 2

# A network that reads single bases, as large as the public predecessor's.
NUCLEOTIDE = ModelConfig(patch_size=1, embedding_dim=128, attention_heads=4, attention_layers=4)

# About as large, as sparse and as deep as a batch of `oral-age`.
SIMULATED = {"samples": 640, "asvs": 3000, "length": 100, "depth": 1500}


def time_training(
    config: PretrainConfig, repeats: int, task_class: type[AmpliconTask] = AmpliconTask
) -> Measurements:
    """Return speed, memory, arithmetic rate and stages of pretraining steps; of another task speed
    and memory.

    Returns
    -------
    dict
        ``samples_per_s`` and ``step_s`` (p50 and p95 over `repeats` steps, no timer inside),
        ``peak_bytes`` (after those steps and one on the epoch's largest batch), ``losses`` of every
        step, ``operations`` of the step at the p50, ``rate`` and ``share`` of the product's rate
        (measured before and after): of the operations executed, and of those needed, without what
        is recomputed. The product is in the precision of the training.
    """
    steps = make_steps(config, task_class)
    # On a CPU float32, as a product in fp16 takes minutes there.
    precision = resolve_precision(
        config.runtime, steps.device, steps.task.config.model.trains_in_bf16
    )
    precision = torch.float32 if steps.device.type == "cpu" else precision
    product = product_rate(steps.device, dtype=precision)
    reset_peak(steps.device)
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
    if task_class is not AmpliconTask:
        return {**measurements, "peak_bytes": peak_memory(steps.device)}
    steps.step(batch_of_most_asvs(steps.loader))
    measurements |= {
        "peak_bytes": peak_memory(steps.device),
        **steps.stages(max(repeats // 2, 1), 2),
    }
    product = (product + product_rate(steps.device, dtype=precision)) / 2
    middle = int(np.argsort(taken)[(repeats - 1) // 2])
    executed = count_operations(lambda: steps.step(batches[middle]))
    steps.model.bound_memory(config.runtime.asv_chunk_size, False)
    needed = count_operations(lambda: steps.step(batches[middle]))
    rates = {"executed": executed / taken[middle], "needed": needed / taken[middle]}
    shares = {name: rate / product for name, rate in rates.items()}
    return {
        **measurements,
        "operations": needed,
        "rate": rates,
        "product_rate": product,
        "share": shares,
    }


def time_prediction(table: Path, runtime: RuntimeConfig, repeats: int) -> Measurements:
    """Return seconds from the start of the process `aam predict` to its written file, with a
    default model.
    """
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
        words = [
            sys.executable,
            "-m",
            "aam",
            "predict",
            "--model",
            f"{folder}/model",
            "--table",
            str(table),
        ]
        words += ["--device", runtime.device]
        words += [] if runtime.threads is None else ["--threads", str(runtime.threads)]
        for number in range(repeats):
            start = time.perf_counter()
            subprocess.run(
                [*words, "--output", f"{folder}/{number}.tsv"], check=True, capture_output=True
            )
            taken.append(time.perf_counter() - start)
    p50, p95 = np.percentile(taken, [50, 95]).tolist()
    samples, asvs = len(study.selection.of_file), len(study.table.sequences)
    return {"seconds": {"p50": p50, "p95": p95}, "samples": samples, "distinct_asvs": asvs}


def time_unifrac(
    table_path: Path, tree_path: Path, runtime: RuntimeConfig, repeats: int = 3
) -> Measurements:
    """Return the ``seconds`` of every metric on the whole table, the fastest of `repeats`, and the
    ``peak_bytes``.

    Features without a tip are left out.
    """
    device = prepare_device(runtime)
    table, tree = read_table(table_path, need_sequences=False), read_tree(tree_path)
    tips = match_tips(tree, table.feature_ids, "drop")

    def compute(metric: UnifracMetric) -> None:
        unifrac_matrix(tree, tips, table.counts, UnifracOptions(metric), torch.get_num_threads())

    metrics = {
        metric: {"seconds": min(seconds(partial(compute, metric), device) for _ in range(repeats))}
        for metric in get_args(UnifracMetric)
    }
    return {
        "samples": len(table.sample_ids),
        "peak_bytes": peak_memory(torch.device("cpu")),
        "metrics": metrics,
    }


def _alone(name: str, work: Callable[[], Measurements]) -> Measurements:
    """Return the result of `work` in a fresh process, so that its peak memory is its own."""
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(work).result()
    except BrokenProcessPool:
        raise InputError(
            f"{name}: its process was killed, most likely for want of memory; leave it out with "
            "--cases"
        ) from None


@contextlib.contextmanager
def _inputs(config: BenchConfig) -> Iterator[tuple[Path, Path | None]]:
    """Table and tree: as asked for, else `oral-age` of the benchmark data, else a simulated
    study.
    """
    if config.table is not None:
        yield config.table, config.tree
    elif os.environ.get("AAM_BENCH_DATA"):
        folder = Path(os.environ["AAM_BENCH_DATA"]) / "oral-age"
        yield folder / "table.biom", folder / "tree.nwk"
    else:
        print(
            "No real data: AAM_BENCH_DATA is unset (the folder that holds oral-age) and --table "
            "and --tree "
            "are not given. A simulated study is measured instead: its measurements are not "
            "those of real samples",
            flush=True,
        )
        with tempfile.TemporaryDirectory() as temporary:
            study = Path(temporary) / "study"
            simulate(study, **SIMULATED)
            yield study / "table.biom", study / "tree.nwk"


def training_cases(
    config: BenchConfig, table: Path, tree: Path | None
) -> dict[str, PretrainConfig]:
    """Return what training steps are measured with: the default network, and one that reads single
    bases.
    """
    runtime = RunConfig(device=config.device, threads=config.threads)
    data = DataConfig(table=table, tree=tree, missing_tips="drop")
    usual = PretrainConfig(data=data, train=TrainConfig(), runtime=runtime)
    small = replace(runtime, asv_chunk_size=64, gradient_checkpointing=True)
    return {"pretrain": usual, "nucleotide": replace(usual, model=NUCLEOTIDE, runtime=small)}


def device_cases(config: BenchConfig, table: Path, tree: Path | None) -> dict[str, Work]:
    """Return what each case of `aam bench` runs."""
    runtime = RuntimeConfig(device=config.device, threads=config.threads)
    training = training_cases(config, table, tree)
    return {
        **{
            name: partial(time_training, options, config.repeats)
            for name, options in training.items()
        },
        "predict": partial(time_prediction, table, runtime, max(config.repeats // 3, 1)),
        "unifrac": "needs --tree" if tree is None else partial(time_unifrac, table, tree, runtime),
    }


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


def describe_case(measurements: Measurements) -> tuple[str, str, str]:
    """Return speed, memory and what else is to be known of a case, for people."""
    memory = f"{measurements['peak_bytes'] / 1e9:.2f} GB" if "peak_bytes" in measurements else ""
    if "metrics" in measurements:
        return f"{measurements['metrics']['unifrac']['seconds']:.2f} s unweighted", memory, ""
    if "seconds" in measurements:
        notes = f"{measurements['distinct_asvs']:.0f} distinct ASVs"
        return (
            f"{measurements['seconds']['p50']:.1f} s for {measurements['samples']} samples",
            memory,
            notes,
        )
    notes = ""
    if "share" in measurements:
        rate, product = measurements["rate"]["executed"] / 1e9, measurements["product_rate"] / 1e9
        executed, needed = measurements["share"]["executed"], measurements["share"]["needed"]
        again = "" if needed == executed else f" ({_percent(needed)} without what is recomputed)"
        notes = f"{rate:.0f} GFLOP/s, {_percent(executed)} of the product's {product:.0f}{again}"
    return (
        f"{measurements['samples_per_s']['p50']:.1f} samples/s at B={measurements['batch_size']}",
        memory,
        notes,
    )


def _show(results: Mapping[str, Measurements], title: str) -> None:
    console = Console()
    timed = {
        case: measurements for case, measurements in results.items() if "stages" in measurements
    }
    if timed:
        table = Table("stage of a step, ms", *timed, title=title)
        for stage in STAGES:
            table.add_row(
                stage,
                *(f"{1000 * measurements['stages'][stage]:.1f}" for measurements in timed.values()),
            )
        table.add_row(
            "of the wall time",
            *(f"{measurements['accounted']:.1%}" for measurements in timed.values()),
        )
        console.print(table)


def bench(
    config: BenchConfig,
    cases: Callable[[Any, Path, Path | None], dict[str, Work]] = device_cases,
    describe: Callable[[Measurements], tuple[str, str, str]] = describe_case,
) -> None:
    """Run the cases of this device, or other `cases`, print their measurements and write them as
    JSON.

    Raises
    ------
    InputError
        Bad options or inputs, or a case whose process was killed.
    """
    name = device_name(prepare_device(RunConfig(device=config.device, threads=config.threads)))
    output = config.output or Path("docs") / "benchmarks" / f"{slug(name)}.json"
    check_output_file(output, True, files_read(config).values())
    results: dict[str, Measurements] = {}
    skipped = Problems()
    with _inputs(config) as (table, tree):
        for case, work in cases(config, table, tree).items():
            if case not in config.cases:
                continue
            if isinstance(work, str):
                print(f"{case}: skipped, {work}", flush=True)
                skipped.add(f"--cases {case}: {work}")
                continue
            results[case] = _alone(case, work)
            print(f"{case}: {'; '.join(filter(None, describe(results[case])))}", flush=True)
    if not results:
        skipped.raise_if_any()
    _show(results, name)
    about = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    about |= {"aam": aam.__version__, "date": time.strftime("%Y-%m-%d"), "table": table.parent.name}
    write_text(
        output, json.dumps({**about, "repeats": config.repeats, "cases": results}, indent=1) + "\n"
    )
    print(output)
