"""`aam doctor`: is this machine right and fast, what is wrong, and what mends it."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import socket
import tempfile
import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

import aam
from aam.config import ModelConfig
from aam.config_commands import DoctorConfig
from aam.device.allocation import CUDA_HINT, HIP_HINT, first_tensor
from aam.device.attention import Checks, check_backends, choose_backends, is_wrong
from aam.device.distributed import World, process_group
from aam.device.environment import (
    AOTRITON,
    CACHES,
    container_and_job,
    describe_change,
    may_have_gpu,
    required_changes,
    watched_variables,
)
from aam.device.options import ProcessConfig, RuntimeConfig
from aam.device.platform import (
    RECORDED,
    Facts,
    Platform,
    choose_device,
    platform_of,
    prepare_device,
    read_facts,
    recorded_platform,
)
from aam.device.precision import resolve_precision
from aam.device.timing import copy_rate, product_rate, seconds
from aam.errors import FAILED, FINISHED, InputError
from aam.files.atomic import write_text
from aam.files.output_folder import check_output_file
from aam.model.reference import activations
from aam.options import files_read
from aam.training.decisions import compile_verdict

log = logging.getLogger("aam")

# As large as the gradients of a large network.
ALL_REDUCE_BYTES = 2**26

# --- findings -----------------------------------------------------------------------------------

Level = Literal["wrong", "mended", "note"]

# The releases of PyTorch that the tests ran with: the oldest, and that of containers/lock/cpu.txt.
TESTED = ("2.7.1", "2.13")


class Finding(NamedTuple):
    """What is wrong, was mended or is worth a note, and what mends it."""

    level: Level
    what: str
    mend: str


def _environment_findings(platform: Platform, facts: Facts) -> list[Finding]:
    changes = required_changes(
        facts["environment"], [platform.architecture], facts["torch"].get("hip")
    )
    changes += [change for change in facts.get("mended", []) if change.name not in CACHES]
    return [
        Finding(
            "mended",
            f"{change.name}: {change.reason}",
            f"aam has it {describe_change(change)}; leave it out of your scripts",
        )
        for change in changes
    ]


def _attention_findings(attention: Facts) -> list[Finding]:
    findings = []
    for kind, results in attention["results"].items():
        for name, result in results.items():
            if result.get("wrong"):
                error = max(result["forward"], result["backward"])
                message = f"attention {name}, {kind}: off by {error:.3g} against float64"
                instead = attention["chosen"].get(kind, "none")
                mend = f"aam takes {instead}; upgrade PyTorch (2.7 or newer on ROCm)"
                findings.append(Finding("wrong", message, mend))
    return findings


def _version_findings(torch: Facts) -> list[Finding]:
    release, newest = (
        [int(part) for part in one.split(".")[:2]] for one in (torch["torch"], TESTED[1])
    )
    if release <= newest:
        return []
    what = (
        f"PyTorch {torch['torch']} is newer than those that aam was tested with, "
        f"{' to '.join(TESTED)}"
    )
    return [Finding("note", what, f"pip install torch=={TESTED[1]}.0 where something fails")]


def _device_findings(platform: Platform, report: Facts) -> list[Finding]:
    """Return what is known to fail on this kind of device: the first tensor, parts of an APU, its
    free memory.
    """
    findings = []
    if report.get("first_tensor"):
        mend = HIP_HINT if platform.vendor == "AMD" else CUDA_HINT
        findings.append(
            Finding("wrong", f"the first tensor on the GPU {report['first_tensor']}", mend)
        )
    if platform.partition not in ("", "SPX"):
        message = f"each device is a part of an accelerator (mode {platform.partition})"
        findings.append(
            Finding(
                "note", message, "start one rank for each device; SPX gives one rank all the memory"
            )
        )
    free = report["memory"].get("free")
    if platform.unified and free is not None and not 0 < free <= platform.memory:
        message = f"free memory is reported as {free:,} bytes of {platform.memory:,}"
        mend = (
            "APUs report it wrong (pytorch #145693); aam sizes batches by what a step takes, "
            "never by this"
        )
        findings.append(Finding("note", message, mend))
    return findings


def collect_findings(platform: Platform, facts: Facts, report: Facts) -> list[Finding]:
    """Return what is wrong, was mended or is worth a note.

    Parameters
    ----------
    platform : Platform
    facts : dict
        Of `aam.device.platform.read_facts`, or of a recorded machine.
    report : dict
        What was measured on the machine.
    """
    findings = _environment_findings(platform, facts)
    findings += _version_findings(facts["torch"])
    findings += _device_findings(platform, report)
    findings += _attention_findings(report["attention"])
    findings += [
        Finding(
            "note",
            f"torch.compile with {name}: {message}",
            f"--compile-model takes {report['compile']['backend']}",
        )
        for name, message in report["compile"].get("tried", {}).items()
        if message != "right"
    ]
    if (
        platform.vendor == "AMD"
        and platform.architecture.startswith("gfx11")
        and AOTRITON not in facts["environment"]
    ):
        mend = (
            f"{AOTRITON}=1 offers flash and memory-efficient attention; aam checks them "
            "before it uses them"
        )
        findings.append(Finding("note", f"{AOTRITON} is unset", mend))
    if report["unseen"]:
        mend = (
            "check the driver, the devices bound into the container (/dev/kfd, /dev/dri; "
            "--nv) and torch's build"
        )
        findings.append(Finding("wrong", "a GPU is there or asked for, and torch sees none", mend))
    return findings


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _rate(name: str, rate: float) -> str:
    return f"{rate / 1e9:.3g} {'GFLOP' if name.startswith('product') else 'GB'}/s"


def _facts_table(report: Facts) -> Table:
    platform = report["platform"]
    memory = {name: value and f"{value / 1e9:.1f} GB" for name, value in report["memory"].items()}
    table = Table(title=f"aam doctor: {platform['name']}", show_header=False, title_justify="left")
    rows = {
        **{name: value for name, value in platform.items() if name != "versions"},
        "memory": platform["memory"] and f"{platform['memory'] / 1e9:.1f} GB",
        **platform["versions"],
        "tested with": (
            f"torch {' to '.join(TESTED)} on CPU, 2.11 on NVIDIA H100 and H200; not yet on AMD"
        ),
        "devices": report["devices"],
        **memory,
        **{name: _rate(name, rate) for name, rate in report["rates"].items()},
        **report["environment"],
        **report["caches"],
        **report["slurm"],
        "container": report["container"]["path"],
        "compile": report["compile"].get("backend", "not tried"),
    }
    for name, value in rows.items():
        if value not in (None, [], ()):
            table.add_row(name, _format(value))
    return table


def _attention_table(attention: Facts) -> Table:
    table = Table(
        "attention", "back end", "error", "backward", "ms", "", title="attention against float64"
    )
    for column in table.columns:
        column.no_wrap = True
    for kind, results in attention["results"].items():
        for name, result in results.items():
            if "refused" in result:
                table.add_row(kind, name, "", "", "", "refused")
                continue
            status = (
                "wrong"
                if result["wrong"]
                else "taken"
                if attention["chosen"].get(kind) == name
                else ""
            )
            errors = [f"{result['forward']:.2g}", f"{result['backward']:.2g}"]
            milliseconds = f"{1e3 * result['seconds']:.3g}" if result["seconds"] else ""
            table.add_row(kind, name, *errors, milliseconds, status)
    return table


def print_report(report: Facts) -> None:
    """Print the report on one screen."""
    console = Console()
    console.print(_facts_table(report))
    console.print(_attention_table(report["attention"]))
    for finding in report["findings"]:
        console.print(
            f"{finding['level']}: {finding['what']}\n    {finding['mend']}",
            markup=False,
            highlight=False,
        )
    if not any(finding["level"] == "wrong" for finding in report["findings"]):
        console.print("Nothing is wrong.")


# --- what is examined --------------------------------------------------------------------------


def _attention(results: Checks, timed: bool) -> Facts:
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


def _examined(config: DoctorConfig) -> tuple[Facts, Facts]:
    """The facts of this machine and what was measured on it."""
    runtime = RuntimeConfig(device=config.device, threads=config.threads)
    device = choose_device(config.device)
    failure = first_tensor(str(device)) if device.type == "cuda" else ""
    if failure:
        # This process would die of it too: the rest is examined on the CPU.
        runtime = RuntimeConfig(device="cpu", threads=config.threads)
    device = prepare_device(runtime)
    facts, gpu = read_facts(device), device.type == "cuda"
    model = ModelConfig(embedding_dim=config.embedding_dim, attention_heads=config.attention_heads)
    dtypes = tuple(dict.fromkeys((torch.float32, resolve_precision(runtime, device))))
    rates = {
        f"product, {str(dtype).removeprefix('torch.')}": product_rate(device, 3, dtype)
        for dtype in dtypes
    }
    rates["copy"] = copy_rate(device, device)
    return facts, {
        "first_tensor": failure,
        "devices": torch.cuda.device_count(),
        "unseen": config.device == "auto" and device.type == "cpu" and may_have_gpu(),
        "attention": _attention(
            check_backends(device, dtypes, model.head_width, refresh=True), gpu
        ),
        "rates": {**rates, "to device": copy_rate(torch.device("cpu"), device)} if gpu else rates,
        "memory": {"free": torch.cuda.mem_get_info(device)[0] if gpu else None},
        "compile": compile_verdict(model, runtime, device, anew=True)
        if config.compile_model
        else {},
        "activations": activations(device) if config.activations else {},
    }


def _recorded(facts: Facts) -> Facts:
    """What was measured on a recorded machine, and what follows there."""
    unmeasured: Facts = {
        "first_tensor": "",
        "devices": 0,
        "unseen": False,
        "rates": {},
        "memory": {},
        "compile": {},
    }
    measured = {name: facts.get(name, value) for name, value in unmeasured.items()}
    timed = platform_of(facts).vendor in ("AMD", "NVIDIA")
    measured |= {"attention": _attention(facts["gates"], timed)}
    return {**measured, "activations": {}}


# --- what joins the ranks ----------------------------------------------------------------------

# Variables that name the interfaces of each back end; gloo takes the first of its list.
INTERFACES = {"nccl": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}
NETWORK = Path("/sys/class/net")
# Below this share of the line rate something else than the network limits the ranks.
EXPECTED_SHARE = 0.5
WARM_UP_CALLS = 2


def record_transport(file: Path) -> None:
    """Let NCCL or RCCL, which start with the process group, write their choices to `file`, unless
    they log already.
    """
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET")
    os.environ.setdefault("NCCL_DEBUG_FILE", str(file))


def transport_of(backend: str) -> str:
    """Return what carries tensors between nodes: of gloo TCP; of NCCL and RCCL what their log says,
    such as Socket.
    """
    if backend != "nccl":
        return "TCP"
    path = Path(os.environ.get("NCCL_DEBUG_FILE", ""))
    lines = (
        re.findall(r"Using network (.+)", path.read_text(errors="replace"))
        if path.is_file()
        else []
    )
    return lines[-1].strip() if lines else "unknown: NCCL's log names no network"


def line_rates(backend: str) -> dict[str, float]:
    """Return the bytes per second of each interface that the back end is told to use, where the
    system says them.
    """
    names = [
        name.lstrip("=") for name in os.environ.get(INTERFACES[backend], "").split(",") if name
    ]
    rates: dict[str, float] = {}
    for name in names[:1] if backend == "gloo" else names:
        path = NETWORK / name / "speed"
        # A link that is down has the speed -1, or cannot be read.
        try:
            megabits = int(path.read_text())
        except (OSError, ValueError):
            continue
        rates |= {name: megabits * 1e6 / 8} if megabits > 0 else {}
    return rates


def bus_bandwidth(world: World, device: torch.device, size: int, repeats: int) -> float:
    """Return the bytes per second that each rank sends and receives in an all-reduce, as nccl-tests
    report it.

    An all-reduce of `size` bytes among n ranks moves 2 (n - 1) / n times as many over the slowest
    link of a ring (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md).
    """
    values = torch.ones(size // 4, device=device)
    taken = []
    for _ in range(WARM_UP_CALLS + repeats):
        world.barrier()
        taken.append(seconds(lambda: dist.all_reduce(values), device))
        values.fill_(1)
    mean = torch.tensor([sum(taken[WARM_UP_CALLS:]) / repeats], dtype=torch.float64)
    slowest = float(world.largest_values(mean))
    return 2 * (world.size - 1) / world.size * values.nbytes / slowest


def examine_ranks(
    world: World, device: torch.device, size: int, repeats: int = 5
) -> dict[str, Any]:
    """Return how many ranks and nodes there are, what joins them, and the bandwidth of an
    all-reduce.

    `expected` is the sum of the line rates of the interfaces that are used, which no all-reduce
    between nodes exceeds; None on one node, and where no variable names the interfaces.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    hosts: list[Any] = [None] * world.size
    dist.all_gather_object(hosts, socket.gethostname())
    nodes = len(set(hosts))
    measured = bus_bandwidth(world, device, size, repeats)
    rates = line_rates(backend)
    return {
        "ranks": world.size,
        "nodes": nodes,
        "backend": backend,
        "transport": transport_of(backend),
        "interfaces": rates,
        "bytes": size,
        "all_reduce": measured,
        "expected": sum(rates.values()) if rates and nodes > 1 else None,
    }


def describe_ranks(report: dict[str, Any]) -> list[str]:
    """Return the lines that `aam doctor --ranks` prints."""
    expected = report["expected"]
    names = ", ".join(
        f"{name} {rate / 1e9:.3g} GB/s" for name, rate in report["interfaces"].items()
    )
    joined = f"{report['ranks']} ranks on {report['nodes']} nodes, {report['backend']}"
    lines = [f"{joined}, between nodes {report['transport']}"]
    beside = (
        f"expected at most {expected / 1e9:.3g} ({names})" if expected else "nothing to expect: "
    )
    if not expected:
        unset = f"{INTERFACES[report['backend']]} names no interface with a known speed"
        beside += "one node uses no network" if report["nodes"] == 1 else unset
    lines += [
        (
            f"all-reduce of {report['bytes'] / 1e6:.0f} MB: {report['all_reduce'] / 1e9:.3g} GB/s; "
            f"{beside}"
        )
    ]
    if expected and report["all_reduce"] < EXPECTED_SHARE * expected:
        share = f"note: less than {EXPECTED_SHARE:.0%} of the line rate"
        lines += [f"{share}; docs/rocm.md says how to bind the host's libfabric and its plugin"]
    return lines


def _doctor_of_ranks(config: DoctorConfig) -> int:
    """Measure what joins the ranks, and let the first of them print and write it."""
    runtime = ProcessConfig(device=config.device, threads=config.threads, distributed=True)
    with tempfile.TemporaryDirectory(prefix="aam-ranks-") as folder:
        record_transport(Path(folder) / "nccl.log")
        with process_group(runtime) as world:
            if world.size == 1:
                raise InputError("--ranks: there is one rank; start several, by srun or torchrun")
            report = examine_ranks(world, prepare_device(runtime), ALL_REDUCE_BYTES)
            if world.is_main:
                print("\n".join(describe_ranks(report)), flush=True)
                if config.output is not None:
                    write_text(config.output, json.dumps({"format": 1, **report}, indent=1) + "\n")
                    print(config.output, flush=True)
    return FINISHED


def doctor(config: DoctorConfig) -> int:
    """Examine this machine, or the recorded one that ``AAM_PLATFORM`` names; exit status 1 where
    something is wrong.

    Raises
    ------
    InputError
        Options out of range, a device that is not there, or no attention that is right.
    """
    if config.output is not None:
        check_output_file(config.output, True, files_read(config).values())
    if config.ranks:
        return _doctor_of_ranks(config)
    facts = recorded_platform()
    if facts is None:
        facts, measured = _examined(config)
    else:
        measured = _recorded(facts)
    platform = platform_of(facts)
    report = {
        "format": 1,
        "aam": aam.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "recorded": os.environ.get(RECORDED),
        "platform": dataclasses.asdict(platform),
        **measured,
        "environment": watched_variables(facts["environment"]),
        **container_and_job(),
        "findings": [finding._asdict() for finding in collect_findings(platform, facts, measured)],
    }
    report["status"] = (
        FAILED if any(each["level"] == "wrong" for each in report["findings"]) else FINISHED
    )
    print_report(report)
    if config.output is not None:
        write_text(config.output, json.dumps(report, indent=1) + "\n")
        print(config.output)
    return int(report["status"])
