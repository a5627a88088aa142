"""`aam doctor`: is this machine right and fast, what is wrong, and what mends it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Literal, NamedTuple

import torch

import aam
from aam.api.profile import compare_reports, read_baseline
from aam.config import DataConfig, DoctorConfig, ModelConfig, PretrainConfig
from aam.data.simulate import simulate
from aam.device.allocation import CUDA_HINT, HIP_HINT, first_tensor
from aam.device.attention import Checks, check_backends, choose_backends, is_wrong
from aam.device.distributed import describe_ranks, examine_ranks, process_group, record_transport
from aam.device.environment import (
    CACHES,
    container,
    describe_change,
    may_have_gpu,
    numa_nodes,
    required_changes,
    watched_variables,
)
from aam.device.measure import product_rate
from aam.device.options import ProcessConfig, RuntimeConfig
from aam.device.platform import (
    Facts,
    Platform,
    choose_device,
    platform_of,
    prepare_device,
    read_facts,
)
from aam.device.precision import resolve_precision
from aam.engine.options import RunConfig
from aam.errors import FAILED, FINISHED, InputError
from aam.files.atomic import read_json, write_text
from aam.files.output_folder import check_output_file
from aam.options import files_read
from aam.training.decisions import compile_verdict, make_steps

log = logging.getLogger("aam")

FORMAT = 3

# Steps of the short training, and the largest relative difference of its losses from the CPU's.
STEPS, LOSS_TOLERANCE = 10, 1e-3

# --- findings -----------------------------------------------------------------------------------

Level = Literal["wrong", "mended", "note"]

# The releases of PyTorch that the tests ran with: the oldest, and that of containers/lock/cpu.txt.
TESTED = ("2.7.1", "2.13")


class Finding(NamedTuple):
    """An error, a repair or a note about this machine, with the remedy."""

    level: Level
    what: str
    mend: str


def _known_findings(platform: Platform, facts: Facts, report: Facts) -> list[Finding]:
    """Known problems of this kind of machine: its environment, its torch, its devices."""
    findings = []
    changes = required_changes(
        facts["environment"], [platform.architecture], facts["torch"].get("hip")
    )
    for change in [*changes, *(done for done in facts["mended"] if done.name not in CACHES)]:
        what = f"{change.name}: {change.reason}"
        mend = f"aam has it {describe_change(change)}; leave it out of your scripts"
        findings.append(Finding("mended", what, mend))
    release = [int(part) for part in facts["torch"]["torch"].split(".")[:2]]
    if release > [int(part) for part in TESTED[1].split(".")]:
        tested = " to ".join(TESTED)
        what = f"PyTorch {facts['torch']['torch']} is newer than the tested releases, {tested}"
        mend = f"pip install torch=={TESTED[1]}.0 if something fails"
        findings.append(Finding("note", what, mend))
    misplaced = [
        f"device {device} lies at NUMA node {node}"
        for device, node in enumerate(report["numa"])
        if node not in (-1, device)
    ]
    if platform.unified and misplaced:
        mend = "let the CPU sets of the site profile (cpu_sets) follow the NUMA nodes"
        findings.append(Finding("note", ", ".join(misplaced), mend))
    return findings


def _measured_findings(platform: Platform, report: Facts) -> list[Finding]:
    """Problems that were measured on this machine."""
    findings = []
    if report["first_tensor"]:
        what = f"the first tensor on the GPU {report['first_tensor']}"
        findings.append(Finding("wrong", what, HIP_HINT if platform.vendor == "AMD" else CUDA_HINT))
    chosen = report["attention"]["chosen"]
    for kind, results in report["attention"]["results"].items():
        for name, result in results.items():
            if result.get("wrong"):
                error = max(result["forward"], result["backward"])
                what = f"attention {name}, {kind}: off by {error:.3g} against float64"
                mend = f"aam takes {chosen.get(kind, 'none')}; upgrade PyTorch"
                findings.append(Finding("wrong", what, mend))
    difference = report["training"].get("difference", 0.0)
    if difference > LOSS_TOLERANCE:
        what = f"{STEPS} steps of training differ from the CPU's by {difference:.2g} of the loss"
        mend = "train with --device cpu, and report the file of --output"
        findings.append(Finding("wrong", what, mend))
    for name, message in report["compile"].get("tried", {}).items():
        if message != "right":
            mend = f"--compile-model takes {report['compile'].get('backend')}"
            findings.append(Finding("note", f"torch.compile with {name}: {message}", mend))
    if report["unseen"]:
        mend = (
            "check the driver, the devices bound into the container (/dev/kfd, /dev/dri; "
            "--nv) and torch's build"
        )
        findings.append(
            Finding("wrong", ("a GPU is present or requested, and torch sees none"), mend)
        )
    return findings


def collect_findings(platform: Platform, facts: Facts, report: Facts) -> list[Finding]:
    """Findings: errors, repairs and notes.

    Parameters
    ----------
    platform : Platform
    facts : dict
        Of `aam.device.platform.read_facts`.
    report : dict
        What was measured on the machine.
    """
    return [*_known_findings(platform, facts, report), *_measured_findings(platform, report)]


# --- what is printed ----------------------------------------------------------------------------


def describe_machine(report: Facts) -> list[str]:
    """Return a line for each fact of a machine, and for each back end of attention."""
    platform, training = report["platform"], report["training"]
    facts = {
        **platform,
        "memory": f"{platform['memory'] / 1e9:.1f} GB",
        **platform["versions"],
        "devices": report["devices"],
        "NUMA nodes": report["numa"],
        **{name: f"{rate / 1e9:.3g} GFLOP/s" for name, rate in report["rates"].items()},
        **report["environment"],
        "container": report["container"]["path"],
        "compile": report["compile"]["backend"],
        "training": f"{training['samples_per_s']:.3g} samples/s, a short run",
    }
    del facts["versions"]
    lines = [f"{name:<26} {value}" for name, value in facts.items() if value not in (None, [], "")]
    for kind, results in report["attention"]["results"].items():
        taken = report["attention"]["chosen"].get(kind)
        for name, result in results.items():
            words = "refused"
            if "refused" not in result:
                errors = f"error {result['forward']:.2g}, backward {result['backward']:.2g}"
                verdict = "wrong" if result["wrong"] else "taken" if name == taken else ""
                words = f"{errors}, {1e3 * result['seconds']:.3g} ms {verdict}"
            lines.append(f"attention {kind:<18} {name:<14} {words}")
    return lines


def print_report(report: Facts) -> None:
    """Print the report on one screen."""
    print(f"aam doctor: {report['platform']['name']}")
    print("\n".join(describe_machine(report)))
    for finding in report["findings"]:
        print(f"{finding['level']}: {finding['what']}\n    {finding['mend']}")
    if not any(finding["level"] == "wrong" for finding in report["findings"]):
        print("Nothing is wrong.")


# --- what is examined --------------------------------------------------------------------------


def judge_attention(results: Checks, timed: bool) -> Facts:
    """Return the checks of the back ends, which of them are wrong, and which are chosen."""
    judged = {
        kind: {
            name: {**result, "wrong": is_wrong(kind, result)} for name, result in by_name.items()
        }
        for kind, by_name in results.items()
    }
    try:
        chosen = choose_backends(results, "auto", timed)
    except InputError as error:
        # Nothing is right: the findings say it, one by one.
        log.warning("%s", error)
        chosen = {}
    return {"results": judged, "chosen": chosen}


def short_training(device: str, threads: int | None) -> Facts:
    """Return speed and losses of a few steps of pretraining on a simulated study; on a GPU the
    CPU's losses too.
    """
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "study"
        simulate(study, samples=64, asvs=400, depth=1500)
        data = DataConfig(table=study / "table.biom", tree=study / "tree.nwk")

        def losses_on(name: str) -> tuple[list[float], float]:
            runtime = RunConfig(device=name, threads=threads)
            steps = make_steps(PretrainConfig(data=data, runtime=runtime))
            seconds, batches = steps.take(STEPS, 0)
            speed = sum(len(batch.sample_ids) for batch in batches[2:]) / sum(seconds[2:])
            return [float(loss) for loss in steps.losses], speed

        losses, speed = losses_on(device)
        training: Facts = {"losses": losses, "samples_per_s": speed}
        if choose_device(device).type != "cpu":
            training["cpu_losses"], _ = losses_on("cpu")
            training["difference"] = max(
                abs(loss - exact) / exact
                for loss, exact in zip(losses, training["cpu_losses"], strict=True)
            )
    return training


def examine(config: DoctorConfig) -> tuple[Facts, Facts]:
    """Return the facts of this machine and what was measured on it."""
    name, device = config.device, choose_device(config.device)
    failure = first_tensor(str(device)) if device.type == "cuda" else ""
    if failure:
        # This process would die of it too: the rest is examined on the CPU.
        name = "cpu"
    runtime = RuntimeConfig(device=name, threads=config.threads)
    device = prepare_device(runtime)
    facts, gpu, model = read_facts(device), device.type == "cuda", ModelConfig()
    dtypes = tuple(dict.fromkeys((torch.float32, resolve_precision(runtime, device))))
    rates = {
        f"product, {str(dtype).removeprefix('torch.')}": product_rate(device, 3, dtype)
        for dtype in dtypes
    }
    log.info("doctor: attention")
    checks = check_backends(device, dtypes, model.attention_shapes, refresh=True)
    log.info("doctor: compilation, up to four minutes for each compiler")
    compiled = compile_verdict(model, runtime, device, anew=True)
    log.info("doctor: a few training steps on a simulated study")
    return facts, {
        "first_tensor": failure,
        "devices": torch.cuda.device_count(),
        "unseen": config.device == "auto" and device.type == "cpu" and may_have_gpu(),
        "numa": numa_nodes(),
        "attention": judge_attention(checks, gpu),
        "rates": rates,
        "compile": compiled,
        "training": short_training(name, config.threads),
    }


def _examine_ranks(config: DoctorConfig, baseline: Facts | None) -> int:
    """Measure what joins the ranks, and let the first of them print and write it."""
    runtime = ProcessConfig(device=config.device, threads=config.threads, distributed=True)
    with tempfile.TemporaryDirectory(prefix="aam-ranks-") as folder:
        record_transport(Path(folder) / "nccl.log")
        with process_group(runtime) as world:
            if world.size == 1:
                raise InputError(
                    "--ranks: there is a single rank; start several with srun or torchrun"
                )
            report = {"format": FORMAT, **examine_ranks(world, prepare_device(runtime))}
            if world.is_main:
                print("\n".join(describe_ranks(report)), flush=True)
                _finish(config, report, baseline)
    return FINISHED


def _check_output(config: DoctorConfig) -> None:
    """Refuse an output in whose place lies anything but an earlier report."""
    if config.output is None:
        return
    check_output_file(config.output, True, files_read(config).values())
    earlier: object = None
    with contextlib.suppress(InputError):
        earlier = read_json(config.output)
    if config.output.exists() and not (isinstance(earlier, dict) and "format" in earlier):
        raise InputError(
            f"--output: {config.output} exists and is no report of `aam doctor`; choose another"
        )


def _finish(config: DoctorConfig, report: Facts, baseline: Facts | None) -> None:
    """Print the differences from a baseline, and write the report."""
    if baseline is not None:
        print("\n".join(compare_reports(report, baseline)))
    if config.output is not None:
        write_text(config.output, json.dumps(report, indent=1) + "\n")
        print(config.output, flush=True)


def doctor(config: DoctorConfig) -> int:
    """Examine this machine; exit status 1 where something is wrong.

    Raises
    ------
    InputError
        Options out of range, a device that is not there, or no attention that is right.
    """
    baseline = None if config.baseline is None else read_baseline(config.baseline)
    _check_output(config)
    if config.ranks:
        return _examine_ranks(config, baseline)
    facts, measured = examine(config)
    platform = platform_of(facts)
    report = {
        "format": FORMAT,
        "aam": aam.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "platform": dataclasses.asdict(platform),
        **measured,
        "environment": watched_variables(facts["environment"]),
        "container": container(),
        "findings": [finding._asdict() for finding in collect_findings(platform, facts, measured)],
    }
    wrong = any(finding["level"] == "wrong" for finding in report["findings"])
    report["status"] = FAILED if wrong else FINISHED
    print_report(report)
    _finish(config, report, baseline)
    return int(report["status"])
