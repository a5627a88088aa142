"""Job scripts of the examples, for the clusters that `slurm/generate` knows."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from aam.errors import CALL_AGAIN, InputError
from examples.config import SubmitConfig

ROOT = Path(__file__).parents[1]

# Seconds before the time limit at which a run is told to save its state.
WARNING = 300


def script(config: SubmitConfig, module: str, site: Any) -> str:
    """Return a script that runs a command of `module`, warns it before the end, and is queued again
    where it asks.
    """
    words = shlex.split(config.words or "")
    words += ["--resume-from", "auto", *(["--distributed"] if config.devices > 1 else [])]
    options = {
        "job-name": module,
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "gres": site.gres,
        "nodes": 1,
        "ntasks-per-node": config.devices,
        "cpus-per-task": site.cpus_per_device,
        "time": round(60 * (config.hours or site.hours)),
        "signal": f"B:USR2@{WARNING}",
        "open-mode": "append",
    }
    lines = ["#!/bin/bash", "#SBATCH --requeue"]
    lines += [f"#SBATCH --{name}={value}" for name, value in options.items() if value]
    lines += [f"{line} || exit 1" for line in site.setup]
    lines += [f"cd {shlex.quote(str(ROOT))} || exit 1"]
    lines += ["export MASTER_ADDR=$(hostname) MASTER_PORT=$((15000 + SLURM_JOB_ID % 5000))"]
    program = shlex.join([sys.executable, "-m", module, *words])
    lines += [f"srun --kill-on-bad-exit=0 {program} &", "step=$!", "trap 'kill -USR2 $step' USR2"]
    # A signal interrupts only `wait`.
    lines += [
        'wait "$step"; status=$?',
        'while kill -0 "$step" 2>/dev/null; do wait "$step"; status=$?; done',
    ]
    lines += [
        f'[ "$status" != {CALL_AGAIN} ] || scontrol requeue "$SLURM_JOB_ID"',
        'exit "$status"',
    ]
    return "\n".join(lines) + "\n"


def submit(config: SubmitConfig, module: str) -> None:
    """Print the script."""
    from containers.lib.errors import InputError as SiteError
    from slurm.jobs.site import load_site

    try:
        site = load_site(config.site, {}, os.environ)
    except SiteError as error:
        raise InputError(str(error)) from None
    print(script(config, module, site), end="")


def submit_eeg(config: SubmitConfig) -> None:
    """Print a job script of the EEG example."""
    submit(config, "examples.eeg")


def submit_htft(config: SubmitConfig) -> None:
    """Print a job script of HTFT."""
    submit(config, "examples.htft")
