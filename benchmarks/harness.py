"""Cases that run in processes of their own, and the file of their measurements."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aam
from aam.config import PretrainConfig
from aam.data.simulate import simulate
from aam.device.measure import peak_memory, reset_peak
from aam.device.platform import device_name, prepare_device
from aam.errors import InputError, Problems
from aam.files.atomic import write_text
from aam.files.output_folder import check_output_file
from aam.options import RunConfig, files_read
from aam.training.decisions import make_steps
from aam.training.pretrain import AmpliconTask
from benchmarks.config import SpeedConfig

Measurements = dict[str, Any]
# What a case runs, or why it cannot.
Work = Callable[[], Measurements] | str

WARM_UP = 2


def time_training(
    config: PretrainConfig, repeats: int, task_class: type[AmpliconTask] = AmpliconTask
) -> Measurements:
    """Return the median ``samples_per_s``, the ``losses`` and the ``peak_bytes`` of training
    steps.
    """
    steps = make_steps(config, task_class)
    reset_peak(steps.device)
    steps.take(WARM_UP, 0)
    taken, batches = steps.take(repeats, 1)
    speeds = [len(batch.sample_ids) / took for took, batch in zip(taken, batches, strict=True)]
    return {
        "samples_per_s": float(np.median(speeds)),
        "batch_size": config.train.samples_per_batch,
        "losses": [float(loss) for loss in steps.losses],
        "peak_bytes": peak_memory(steps.device),
    }


def _run_apart(name: str, work: Callable[[], Measurements]) -> Measurements:
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
def inputs(config: SpeedConfig) -> Iterator[tuple[Path, Path | None]]:
    """Table and tree: as asked for, else `oral-age` of the benchmark data, else a simulated
    study.
    """
    if config.table is not None:
        yield config.table, config.tree
    elif os.environ.get("AAM_BENCH_DATA"):
        folder = Path(os.environ["AAM_BENCH_DATA"]) / "oral-age"
        yield folder / "table.biom", folder / "tree.nwk"
    else:
        print("AAM_BENCH_DATA is unset and --table is not given: a simulated study is measured")
        with tempfile.TemporaryDirectory() as temporary:
            study = Path(temporary) / "study"
            simulate(study, samples=640, asvs=3000, length=100, depth=1500)
            yield study / "table.biom", study / "tree.nwk"


def run_cases(
    config: SpeedConfig,
    cases: Callable[[SpeedConfig, Path, Path | None], Mapping[str, Work]],
    describe: Callable[[Measurements], str],
) -> None:
    """Run the cases on this device, print their measurements and write them as JSON.

    Raises
    ------
    InputError
        Bad options or inputs, or a case whose process was killed.
    """
    name = device_name(prepare_device(RunConfig(device=config.device, threads=config.threads)))
    output = (
        config.output
        or Path("docs") / "benchmarks" / f"{'-'.join(re.findall('[a-z0-9]+', name.lower()))}.json"
    )
    check_output_file(output, True, files_read(config).values())
    results: dict[str, Measurements] = {}
    skipped = Problems()
    with inputs(config) as (table, tree):
        for case, work in cases(config, table, tree).items():
            if case not in config.cases:
                continue
            if isinstance(work, str):
                print(f"{case}: skipped, {work}", flush=True)
                skipped.add(f"--cases {case}: {work}")
                continue
            results[case] = _run_apart(case, work)
            print(f"{case}: {describe(results[case])}", flush=True)
    if not results:
        skipped.raise_if_any()
    about = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    about |= {"aam": aam.__version__, "date": time.strftime("%Y-%m-%d"), "table": table.parent.name}
    report = {**about, "repeats": config.repeats, "cases": results}
    write_text(output, json.dumps(report, indent=1) + "\n")
    print(output)
