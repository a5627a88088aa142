"""`aam doctor`: what is wrong with this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

import aam
from aam.api.machine_report import is_report, read_baseline, write_report
from aam.config import DataConfig, DoctorConfig, ModelConfig, PretrainConfig
from aam.data.simulate import simulate
from aam.device import environment, measure
from aam.device.attention import Checks, best_backend, check_backends, fault, is_wrong
from aam.device.distributed import examine_ranks, process_group, record_transport
from aam.device.environment import CUDA_HINT, HIP_HINT, describe_change, first_tensor
from aam.device.platform import (
    Facts,
    Platform,
    choose_device,
    device_name,
    platform_of,
    prepare_device,
    read_facts,
)
from aam.device.precision import resolve_precision
from aam.engine.logger import flatten
from aam.errors import FAILED, FINISHED, InputError
from aam.files.output_folder import check_output_file, check_replaced_file
from aam.options import RunConfig, RuntimeConfig, command_line, files_read
from aam.training.decisions import CHECKS, make_steps, probe_run

log = logging.getLogger("aam")

REPORT_FORMAT = 5

# Steps of the short training, and the largest relative difference of its losses from the CPU's.
STEPS, LOSS_TOLERANCE = 10, 1e-3

DEVICES = "the devices bound into the container (/dev/kfd, /dev/dri; --nv)"
NO_GPU = f"check the driver, {DEVICES} and torch's build"


class Finding(NamedTuple):
    """An error, a repair or a note about this machine, with the remedy."""

    level: Literal["wrong", "mended", "note"]
    what: str
    mend: str


def collect_findings(platform: Platform, facts: Facts, report: Facts) -> Iterator[Finding]:
    """Yield errors, repairs and notes about a machine.

    `facts` are those of `aam.device.platform.read_facts`; `report` was measured on the machine.
    """
    hip = facts["torch"].get("hip")
    needed = environment.required_changes(facts["environment"], [platform.architecture], hip)
    changes = (change for change in facts["mended"] if change.name not in environment.CACHES)
    for change in (*needed, *changes):
        mend = f"aam has it {describe_change(change)}; leave it out of your scripts"
        yield Finding("mended", f"{change.name}: {change.reason}", mend)
    if report["first_tensor"]:
        problem = f"the first tensor on the GPU {report['first_tensor']}"
        yield Finding("wrong", problem, HIP_HINT if platform.vendor == "AMD" else CUDA_HINT)
    yield from _wrong_attention(**report["attention"])
    if (difference := report["training"].get("difference", 0.0)) > LOSS_TOLERANCE:
        problem = f"{STEPS} steps of training differ from the CPU's by {difference:.2g} of the loss"
        yield Finding("wrong", problem, "train with --device cpu, and report the file of --output")
    for name, outcome in report["probe"].items():
        if not outcome["ok"]:
            problem = f"{name} does not work here: {outcome['reason']}"
            yield Finding("note", problem, CHECKS[name])
    if report["unseen"]:
        yield Finding("wrong", "a GPU is present or requested, and torch sees none", NO_GPU)


def _wrong_attention(results: Checks, chosen: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each back end that is wrong."""
    for kind, checks in results.items():
        for name, check in checks.items():
            if is_wrong(kind, check):
                mend = f"aam takes {chosen.get(kind, 'none')}; upgrade PyTorch"
                yield Finding("wrong", f"attention {name}, {kind}: {fault(kind, check)}", mend)


def judge_attention(results: Checks, timed: bool) -> Facts:
    """Return the checks of the back ends, and the best for each kind of call where any is right."""
    best = {kind: best_backend(kind, checks, timed) for kind, checks in results.items()}
    return {"results": results, "chosen": {kind: name for kind, name in best.items() if name}}


def measure_attention(device: torch.device, dtypes: Sequence[torch.dtype]) -> Facts:
    """Return the checks of all back ends, made now, and which are chosen."""
    checks = check_backends(device, dtypes, ModelConfig().attention_shapes, refresh=True)
    return judge_attention(checks, device.type == "cuda")


def _precisions(runtime: RuntimeConfig, device: torch.device) -> tuple[torch.dtype, ...]:
    """The number formats in which a network computes on a device."""
    return tuple(dict.fromkeys((torch.float32, resolve_precision(runtime, device))))


@contextlib.contextmanager
def simulated_training(device: str, threads: int | None) -> Iterator[PretrainConfig]:
    """Give the options of a pretraining on a simulated study, which lasts as long as the
    context.
    """
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "study"
        simulate(study, samples=64, asvs=400, depth=1500)
        data = DataConfig(table=study / "table.biom", tree=study / "tree.nwk")
        yield PretrainConfig(data=data, runtime=RunConfig(device=device, threads=threads))


def short_training(config: PretrainConfig) -> Facts:
    """Return speed and losses of a few steps of pretraining; on a GPU the CPU's losses too."""

    def train_on(name: str) -> Facts:
        runtime = dataclasses.replace(config.runtime, device=name)
        steps = make_steps(dataclasses.replace(config, runtime=runtime))
        seconds, batches = steps.take(STEPS, 0)
        speed = sum(len(batch.sample_ids) for batch in batches[2:]) / sum(seconds[2:])
        return {"losses": [float(loss) for loss in steps.losses], "samples_per_s": speed}

    device = config.runtime.device
    measured = train_on(device)
    if choose_device(device).type == "cpu":
        return measured
    exact = train_on("cpu")["losses"]
    difference = float(np.max(np.abs(np.array(measured["losses"]) / exact - 1)))
    return {**measured, "cpu_losses": exact, "difference": difference}


def _examine_ranks(config: DoctorConfig) -> Facts | None:
    """Measure what joins the ranks; only the first of them has a report."""
    runtime = RunConfig(device=config.device, threads=config.threads, distributed=True)
    with tempfile.TemporaryDirectory(prefix="aam-ranks-") as folder:
        record_transport(Path(folder) / "nccl.log")
        with process_group(runtime) as world:
            if world.size == 1:
                advice = "start several with srun or torchrun"
                raise InputError(f"--ranks: there is a single rank; {advice}")
            measured = examine_ranks(world, prepare_device(runtime))
            if not world.is_main:
                return None
            ranks = f"{measured['ranks']} ranks on {measured['nodes']} nodes, {measured['backend']}"
            rate = f"{measured['bytes'] / 1e6:.0f} MB: {measured['all_reduce'] / 1e9:.3g} GB/s"
            print(
                f"{ranks}, between nodes {measured['transport']}\nall-reduce of {rate}", flush=True
            )
            return {"format": REPORT_FORMAT, **measured}


def _examine_attention(config: DoctorConfig) -> Facts:
    """Check the attention kernels alone."""
    runtime = RuntimeConfig(device=config.device, threads=config.threads)
    device = prepare_device(runtime)
    attention = measure_attention(device, _precisions(runtime, device))
    title, findings = f"attention on {device_name(device)}", [*_wrong_attention(**attention)]
    return _shown(title, findings, {"attention": attention})


def _examine_machine(config: DoctorConfig) -> Facts:
    """Examine this machine."""
    name, device = config.device, choose_device(config.device)
    failure = first_tensor(str(device)) if device.type == "cuda" else ""
    if failure:
        # This process would die of it too: the rest is examined on the CPU.
        name = "cpu"
    runtime = RuntimeConfig(device=name, threads=config.threads)
    device = prepare_device(runtime)
    facts, dtypes = read_facts(device), _precisions(runtime, device)
    names = {dtype: str(dtype).replace("torch.", "product, ") for dtype in dtypes}
    rates = {names[dtype]: measure.product_rate(device, 3, dtype) for dtype in dtypes}
    log.info("doctor: attention kernels, a few seconds for each")
    attention = measure_attention(device, dtypes)
    with simulated_training(name, config.threads) as training:
        log.info("doctor: %d training steps on a simulated study, up to a minute", STEPS)
        trained = short_training(training)
        # On a CPU a compiler takes minutes, and a run that asks for it tries it anyway.
        on_gpu = device.type == "cuda"
        if on_gpu:
            log.info("doctor: workers, graphs and compilers, up to ten minutes for each")
        asked = dataclasses.replace(training.runtime, compile_model=on_gpu)
        probed = probe_run(dataclasses.replace(training, runtime=asked), None, device)
    platform = platform_of(facts)
    about: Facts = {
        "date": time.strftime("%Y-%m-%d"),
        "platform": dataclasses.asdict(platform),
        "first_tensor": failure,
        "numa": environment.numa_nodes(),
        "devices": torch.cuda.device_count(),
        "unseen": config.device == "auto" and device.type == "cpu" and environment.may_have_gpu(),
        "attention": attention,
        "rates": rates,
        "probe": probed,
        "training": trained,
        "environment": facts["environment"],
        "container": environment.container(),
    }
    findings = [*collect_findings(platform, facts, about)]
    return _shown(f"aam doctor: {platform.name}", findings, about)


def _shown(title: str, findings: Sequence[Finding], about: Facts) -> Facts:
    """Print the verdict, the findings and what was measured; return all as the report."""
    wrong = any(finding.level == "wrong" for finding in findings)
    print(f"{title}: {'something' if wrong else 'nothing'} is wrong")
    for finding in findings:
        print(f"{finding.level}: {finding.what}\n    {finding.mend}")
    print("\n".join(_report_lines(about)))
    return {
        "format": REPORT_FORMAT,
        "aam": aam.__version__,
        **about,
        "findings": [finding._asdict() for finding in findings],
        "status": FAILED if wrong else FINISHED,
    }


def _report_lines(about: Facts) -> Iterator[str]:
    """A line for each fact of a machine, and for each back end of attention."""
    facts = Facts()
    if "platform" in about:
        speed, memory = about["training"]["samples_per_s"], about["platform"]["memory"]
        facts = {
            **about["platform"],
            "memory": f"{memory / 1e9:.1f} GB",
            "devices": about["devices"],
            "NUMA nodes": about["numa"],
            **{name: f"{rate / 1e9:.3g} GFLOP/s" for name, rate in about["rates"].items()},
            **about["environment"],
            "container": about["container"]["path"],
            **{name: outcome["reason"] for name, outcome in about["probe"].items()},
            "training": f"{speed:.3g} samples/s, a short run",
        }
    for kind, checks in about["attention"]["results"].items():
        for name, check in checks.items():
            taken = "taken" if name == about["attention"]["chosen"].get(kind) else ""
            # A CPU is not timed.
            speed = f"{1e3 * check['seconds']:.3g} ms" if check.get("seconds") else ""
            errors = fault(kind, check)
            if not errors:
                errors = f"error {check['forward']:.2g}, backward {check['backward']:.2g}"
            words = (errors, speed, taken)
            facts[f"attention {kind:<18} {name:<14}"] = ", ".join(word for word in words if word)
    for name, value in flatten(facts).items():
        if value not in (None, []):
            yield f"{name:<26} {value}"


def doctor(config: DoctorConfig) -> int:
    """Examine this machine; exit status 1 where something is wrong.

    Raises
    ------
    InputError
        Options out of range, a device that is not there, an output that is no earlier report, or no
        attention that is right.
    """
    baseline, output = read_baseline(config.baseline), config.output
    if output is not None:
        check_output_file(output, True, files_read(config).values())
        check_replaced_file(output, "doctor", is_report)
    part = _examine_attention if config.attention else _examine_machine
    report = _examine_ranks(config) if config.ranks else part(config)
    if report is None:
        return FINISHED
    write_report(report, baseline, output)
    status = int(report.get("status", FINISHED))
    files = {"table": "TABLE", "metadata": "METADATA"}
    command = command_line("audit", **files, metadata_column="COLUMN")
    again = "mend what is called wrong, then run aam doctor again"
    print(f"Next: {again if status else command}", flush=True)
    return status
