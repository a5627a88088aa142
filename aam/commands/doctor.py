"""`aam doctor`: is this machine right and fast."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import tempfile
import time
from pathlib import Path

import torch

import aam
from aam.config import ModelConfig
from aam.config_commands import DoctorConfig
from aam.device.allocation import first_tensor
from aam.device.attention import Checks, check_backends, choose_backends, is_wrong
from aam.device.distributed import process_group
from aam.device.doctor import collect_findings, print_report
from aam.device.environment import container_and_job, watched_variables
from aam.device.interconnect import describe_ranks, examine_ranks, record_transport
from aam.device.options import ProcessConfig, RuntimeConfig
from aam.device.platform import (
    OPERATIONS,
    RECORDED,
    Facts,
    choose_device,
    platform_of,
    prepare_device,
    probe_operation,
    read_facts,
    recorded_platform,
    routed_operations,
)
from aam.device.precision import resolve_precision
from aam.device.timing import copy_rate, product_rate
from aam.errors import FAILED, FINISHED, InputError
from aam.files.atomic import write_text
from aam.files.output_folder import check_output_file
from aam.model.reference import activations
from aam.options import files_read
from aam.training.decisions import compile_verdict

log = logging.getLogger("aam")

# As large as the gradients of a large network.
ALL_REDUCE_BYTES = 2**26


def _attention(results: Checks, timed: bool) -> Facts:
    judged = {
        kind: {name: {**result, "wrong": is_wrong(kind, result)} for name, result in by_name.items()}
        for kind, by_name in results.items()
    }
    try:
        chosen = choose_backends(results, "auto", False, timed)
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
    there = Path("/dev/kfd").exists() or Path("/dev/nvidiactl").exists()
    rates = {"product": product_rate(device, 3), "copy": copy_rate(device, device)}
    return facts, {
        "first_tensor": failure,
        "devices": torch.cuda.device_count(),
        "unseen": config.device == "auto" and device.type == "cpu" and there,
        "attention": _attention(check_backends(device, dtypes, model.head_width, refresh=True), gpu),
        "rates": {**rates, "to device": copy_rate(torch.device("cpu"), device)} if gpu else rates,
        "memory": {"free": torch.cuda.mem_get_info(device)[0] if gpu else None},
        "operations": {name: probe_operation(name, device) for name in OPERATIONS},
        "cpu_operations": routed_operations(device),
        "compile": compile_verdict(model, runtime, device, anew=True) if config.compile_model else {},
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
        "operations": {},
        "compile": {},
    }
    measured = {name: facts.get(name, value) for name, value in unmeasured.items()}
    timed = platform_of(facts).vendor in ("AMD", "NVIDIA")
    on_cpu = routed_operations(torch.device("cpu"))
    measured |= {"attention": _attention(facts["gates"], timed), "cpu_operations": on_cpu}
    return {**measured, "activations": {}}


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
    """Examine this machine, or the recorded one that ``AAM_PLATFORM`` names; exit status 1 where something is wrong.

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
    report["status"] = FAILED if any(each["level"] == "wrong" for each in report["findings"]) else FINISHED
    print_report(report)
    if config.output is not None:
        write_text(config.output, json.dumps(report, indent=1) + "\n")
        print(config.output)
    return int(report["status"])
