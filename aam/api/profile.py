"""`aam profile`: where the time and the memory of a training step go."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import torch

from aam.api.apply import output_of, written
from aam.api.machine_report import compare_reports, read_baseline
from aam.config import PretrainConfig, ProfileConfig
from aam.device.measure import memory_limit, peak_memory, reset_peak
from aam.device.platform import Facts, choose_device, device_name
from aam.files.atomic import write_text
from aam.options import RunConfig
from aam.training.decisions import (
    PretrainingSteps,
    batch_of_most_asvs,
    largest_fitting_batch,
    make_steps,
)

log = logging.getLogger("aam")

UNTIMED_STEPS, TIMED_STEPS = 2, 20


def measure_steps(steps: PretrainingSteps, repeats: int = TIMED_STEPS) -> Facts:
    """Return speed, memory and stages of training steps.

    ``samples_per_s`` is the median over `repeats` steps without timers, ``accounted`` the share of
    the wall time in ``stages`` (mean seconds); ``peak_bytes`` includes the epoch's largest batch.
    """
    reset_peak(steps.device)
    steps.take(UNTIMED_STEPS, 0)
    times, batches = steps.take(repeats, 1)
    speeds = [len(batch.sample_ids) / took for batch, took in zip(batches, times, strict=True)]
    losses = [float(loss) for loss in steps.losses]
    steps.step(batch_of_most_asvs(steps.loader))
    peak = peak_memory(steps.device)
    half, most = np.percentile(times, [50, 95]).tolist()
    return {
        "samples_per_s": float(np.median(speeds)),
        "step_s": {"p50": half, "p95": most},
        "steps": repeats,
        "batch_size": steps.loader.batch_size,
        "rows": float(np.mean([len(batch.tokens) for batch in batches])),
        "peak_bytes": peak,
        "losses": losses,
        **steps.stages(max(repeats // 2, 1), 2),
    }


def measure_largest_batch(steps: PretrainingSteps) -> Facts:
    """Return the peak memory of each batch size that was tried, and the largest that fits."""
    limit = memory_limit(steps.device)
    fits = largest_fitting_batch(steps, limit)
    return {"limit_bytes": limit, "peak_bytes_of": fits, "largest_batch": max(fits)}


def _print_steps(measured: Facts) -> None:
    total = sum(measured["stages"].values())
    for name, seconds in measured["stages"].items():
        print(f"{name:<15} {1e3 * seconds:8.1f} ms {seconds / total:6.1%}")
    print(
        f"{measured['accounted']:.1%} of the wall time; {measured['samples_per_s']:.1f} samples/s"
    )
    print(f"{measured['peak_bytes'] / 1e9:.2f} GB of memory at most")
    if "largest_batch" in measured:
        largest, limit = measured["largest_batch"], measured["limit_bytes"] / 1e9
        held = measured["peak_bytes_of"][largest] / 1e9
        print(f"largest batch: {largest} samples, {held:.2f} of {limit:.2f} GB")


def profile(config: ProfileConfig) -> None:
    """Run `aam profile`: print what was measured and write profile.json to ``--output-dir``."""
    baseline, output = (
        read_baseline(config.baseline),
        output_of("profile", config, ["profile.json"]),
    )
    runtime, train, fits = RunConfig(**vars(config.runtime)), config.train, Facts()
    if train.batch_size == "auto":
        train = replace(train, batch_size=ProfileConfig().train.batch_size)
        training = PretrainConfig(config.data, config.model, train, runtime)
        fits = measure_largest_batch(make_steps(training))
        train = replace(train, batch_size=fits["largest_batch"])
    steps = make_steps(PretrainConfig(config.data, config.model, train, runtime))
    device = device_name(choose_device(runtime.device))
    report: Facts = {"device": device, "torch": torch.__version__, **measure_steps(steps), **fits}
    _print_steps(report)
    if baseline is not None:
        print("\n".join(compare_reports(report, baseline)))
    with written(output, config) as new:
        write_text(new / "profile.json", json.dumps(report, indent=1) + "\n")
    print(output.folder / "profile.json")
