"""Starting the ranks of a run on this node, and waiting for them (why not torchrun: docs/decisions.md)."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from aam.device.options import ProcessConfig
from aam.device.process_group import GRACE_SECONDS, LAUNCHER
from aam.device.processors import available_cores
from aam.errors import CALL_AGAIN, FAILED, FINISHED, WARNINGS, RunError

log = logging.getLogger("aam")

# Seconds that the other ranks have to end after one has failed.
FAILURE_SECONDS = 60.0

# Seconds that a rank that is killed has to end.
END_SECONDS = 5.0


def process_count(config: ProcessConfig) -> int:
    """Return how many processes ``--data-parallel`` starts: one per visible GPU, or on CPU one per `threads` cores."""
    if torch.cuda.is_available() and config.device != "cpu":
        return torch.cuda.device_count()
    return max(available_cores() // config.threads, 1) if config.threads else 1


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def rank_environment(size: int) -> dict[str, str]:
    """Return the environment that all of `size` ranks of this node share."""
    return {
        # DDP warns on each rank that every parameter was used, which is as it should be.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **os.environ,
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        LAUNCHER: str(os.getpid()),
    }


def start_ranks(size: int, words: Sequence[str], program: str, **options: Any) -> list[subprocess.Popen[Any]]:
    """Start ``python -m program`` with the command line `words` as `size` ranks here, with `options` of `Popen`."""
    shared = rank_environment(size)
    command = [sys.executable, "-m", program, *words]
    return [
        subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **options)
        for rank in range(size)
    ]


def run_ranks(size: int, words: Sequence[str], program: str) -> list[str]:
    """Run ``python -m program`` with the command line `words` as `size` ranks here; return what each has printed.

    Raises
    ------
    RunError
        A rank ended with another exit status than 0.
    """
    ranks = start_ranks(size, words, program, stdout=subprocess.PIPE, text=True)
    outputs = [rank.communicate()[0] for rank in ranks]
    if failed := [number for number, rank in enumerate(ranks) if rank.returncode]:
        command = shlex.join([program, *words])
        raise RunError(f"{command}: rank {failed[0]} ended with exit status {ranks[failed[0]].returncode}")
    return outputs


def launch(size: int, words: Sequence[str], program: str = "aam") -> int:
    """Run ``python -m program`` with the command line `words` as `size` processes here; return their exit status.

    Signals that warn are passed on to the ranks. When one rank fails, the others have a minute to end; after a second
    signal all have seconds.
    """
    ranks = start_ranks(size, words, program)
    signal_times: list[float] = []

    def pass_on(number: int, frame: object) -> None:
        signal_times.append(time.monotonic())
        for rank in ranks:
            rank.send_signal(number)

    handlers = {number: signal.signal(number, pass_on) for number in WARNINGS}
    try:
        _wait_for(ranks, signal_times)
        return _combined_status([rank.poll() for rank in ranks])
    finally:
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            # One that waits for a lost file system cannot be killed.
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.wait(END_SECONDS)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _wait_for(ranks: Sequence[subprocess.Popen[Any]], signal_times: Sequence[float]) -> None:
    """Wait until all ranks have ended, or for a limited time after one failed or a second signal came."""
    deadline = math.inf
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.1)
        if deadline == math.inf and any(rank.poll() not in (None, FINISHED, CALL_AGAIN) for rank in ranks):
            deadline = time.monotonic() + FAILURE_SECONDS
        if len(signal_times) > 1:
            deadline = min(deadline, signal_times[1] + GRACE_SECONDS)


def _combined_status(statuses: Sequence[int | None]) -> int:
    """Return the exit status of all ranks: that of a failure before that of a rank that wants to be called again."""
    for rank, status in enumerate(statuses):
        if status is None or status < 0:
            end = "did not end by itself" if status is None else f"was ended by {signal.Signals(-status).name}"
            log.error("aam: the process of rank %d %s", rank, end)
    failed = (FAILED if status is None or status < 0 else status for status in statuses if status != FINISHED)
    return min(failed, default=FINISHED)
