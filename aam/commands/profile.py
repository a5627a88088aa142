"""`aam profile`: where the time of a step goes, its memory, the largest batch."""

from __future__ import annotations

import csv
import json
import shlex
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

from aam.commands.bench import WARM_UP, Measurements, describe_case, time_training
from aam.config import PretrainConfig
from aam.config_commands import ProfileConfig
from aam.device.memory import memory_limit, memory_profiled
from aam.device.platform import choose_device, device_name
from aam.engine.options import RunConfig
from aam.engine.run import describe
from aam.errors import InputError
from aam.files.atomic import atomic_file, write_text
from aam.files.output_folder import MEMORY, RUN, OutputFolder
from aam.options import files_read, given, to_dict
from aam.training.decisions import PretrainingSteps, largest_fitting_batch, make_steps


def _operations(steps: PretrainingSteps, folder: Path) -> Measurements:
    """The ten operations that take most time, and a trace for chrome://tracing or Perfetto."""
    gpu = steps.device.type == "cuda"
    kinds = [
        torch.profiler.ProfilerActivity.CPU,
        *([torch.profiler.ProfilerActivity.CUDA] if gpu else []),
    ]
    start, cpu = time.perf_counter(), time.process_time()
    with torch.profiler.profile(activities=kinds, acc_events=True) as profiler:
        batches = steps.take(3, 1)[1]
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    taken = {
        event.key: (event.self_device_time_total if gpu else event.self_cpu_time_total) / 1e6
        for event in profiler.key_averages()
    }
    with atomic_file(folder / "trace.json") as path:
        profiler.export_chrome_trace(str(path))
    moved = [
        value.nbytes
        for batch in batches
        for value in vars(batch).values()
        if isinstance(value, Tensor)
    ]
    return {
        "top": dict(sorted(taken.items(), key=lambda pair: -pair[1])[:10]),
        "utilisation": sum(taken.values()) / wall if gpu else cpu / wall / torch.get_num_threads(),
        "host_device_bytes": sum(moved) // len(batches) if gpu else 0,
    }


def read_rocprof(path: Path) -> dict[str, float]:
    """Seconds of each kernel in the kernel_stats.csv of rocprofv3, longest first."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = {
                row["Name"]: float(row["TotalDurationNs"]) / 1e9 for row in csv.DictReader(file)
            }
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, ValueError) as error:
        raise InputError(
            f"--rocprof: {path} cannot be read ({error}); expected Name and TotalDurationNs"
        ) from None
    return dict(sorted(rows.items(), key=lambda pair: -pair[1]))


def _profile_step(
    config: ProfileConfig, training_config: PretrainConfig, folder: Path
) -> Measurements:
    measurements = time_training(training_config, config.steps)
    steps = make_steps(training_config)
    steps.take(WARM_UP, 0)
    measurements |= _operations(steps, folder)
    total = sum(measurements["stages"].values())
    for name, taken in measurements["stages"].items():
        print(f"{name:<15} {1e3 * taken:8.1f} ms {taken / total:6.1%}")
    print(
        f"{measurements['accounted']:.1%} of the wall time; "
        f"{measurements['samples_per_s']['p50']:.1f} samples/s; "
        f"{describe_case(measurements)[2]}; {measurements['utilisation']:.0%} busy"
    )
    for name, taken in measurements["top"].items():
        print(f"{name:<60} {1e3 * taken / 3:8.1f} ms")
    if torch.version.hip is not None:
        words = " ".join(map(shlex.quote, sys.argv[1:]))
        print(
            f"kernels: rocprofv3 --kernel-trace --stats --output-format csv -d {folder} -- "
            f"python -m aam {words}"
        )
    if config.rocprof is not None:
        measurements["kernels"] = read_rocprof(config.rocprof)
    return measurements


def profile(config: ProfileConfig) -> None:
    """Run `aam profile`: print what was measured and write profile.json, and a trace, to
    ``--output-dir``.
    """
    folder = given(config.runtime.output_dir)
    files, outputs = files_read(config), [RUN, "profile.json", "trace.json", *MEMORY]
    output = OutputFolder(folder, "profile", outputs, [*files.values()], config.runtime.overwrite)
    output.check()
    about = describe("profile", to_dict(config), files, {})
    folder.mkdir(parents=True, exist_ok=True)
    output.begin(about)
    run = RunConfig(**vars(config.runtime))
    training_config = PretrainConfig(
        data=config.data, model=config.model, train=config.train, runtime=run
    )
    measurements: Measurements = {}
    if config.what == "memory":
        memory_profiled(lambda _: make_steps(training_config).take(config.steps, 0), config)
        return
    if config.what == "step":
        measurements = _profile_step(config, training_config, folder)
    else:
        steps = make_steps(training_config)
        limit = memory_limit(steps.device)
        fits = largest_fitting_batch(steps, limit)
        measurements = {"limit_bytes": limit, "peak_bytes_of": fits, "batch_size": max(fits)}
        print(
            f"largest batch: {max(fits)} samples, {fits[max(fits)] / 1e9:.2f} of "
            f"{limit / 1e9:.2f} GB"
        )
    device = device_name(choose_device(config.runtime.device))
    write_text(folder / "profile.json", json.dumps({"device": device, **measurements}, indent=1))
    print(folder / "profile.json")
