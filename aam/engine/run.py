"""A command that trains: its processes, its device, its directory, and the files that end it."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from aam.device.launch import launch, process_count
from aam.device.platform import prepare_device
from aam.device.process_group import is_launched, process_group
from aam.engine.options import RunConfig
from aam.engine.run_directory import RunDirectory
from aam.engine.run_record import describe, training_outputs
from aam.engine.signals import Signals
from aam.errors import FINISHED
from aam.files.atomic import write_text
from aam.files.output_folder import LIST, RUN
from aam.options import to_dict

log = logging.getLogger("aam")

RESULTS = "metrics.json"


class Command(NamedTuple):
    """A command that trains: the module that ``python -m`` runs, its name, its options and the files that it reads.

    `splits_batches` says whether its ranks share the samples of a batch; `outputs` are names that it writes beside
    run.json, metrics.json, and what training writes; `processes` how many ``--data-parallel`` starts; unset: as many as
    this machine has room for.
    """

    module: str
    name: str
    config: Any
    runtime: RunConfig
    files: Mapping[str, Path]
    splits_batches: bool = True
    outputs: tuple[str, ...] = ()
    processes: int | None = None


def run_command(command: Command, work: Callable[[RunDirectory, torch.device], dict[str, Any]]) -> int:
    """Run `work` in the run directory of a command, and write what it returns to metrics.json; return the exit status.

    With ``--data-parallel`` the processes of this node are started first. A run that is finished is left as it is.
    """
    runtime = command.runtime
    if runtime.data_parallel and not is_launched(os.environ):
        return launch(command.processes or process_count(runtime), sys.argv[1:], command.module)
    with Signals() as signals, process_group(runtime) as world:
        device = prepare_device(runtime)
        facts: dict[str, Any] = {"device": str(device), "ranks": world.size if command.splits_batches else 1}
        facts[LIST] = [RUN, RESULTS, *training_outputs(), *command.outputs]
        about = describe(f"{command.module} {command.name}", to_dict(command.config), command.files, facts)
        with RunDirectory.open(about, runtime, signals, world) as run:
            if run.finished:
                log.info("%s: finished already", run.path)
                return FINISHED
            results = work(run, device)
            if world.is_main:
                write_text(run.path / RESULTS, json.dumps(results, indent=1) + "\n")
    return FINISHED
