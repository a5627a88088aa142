"""How the processes of a run are started, meet, learn of each other's failure, and end."""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from aam.errors import BAD_INPUT, CALL_AGAIN, FAILED, FINISHED, WARNINGS, InputError, RunError
from aam.runtime.distributed import SINGLE, World
from aam.runtime.options import ProcessConfig

log = logging.getLogger("aam")


# The longest that ranks wait for one that works alone, as when it reports on a fold.
TIMEOUT = datetime.timedelta(hours=2)

# Seconds between two looks at whether another rank failed, and how long one then waits for the main thread.
POLL_SECONDS, GRACE_SECONDS = 2.0, 15.0

# Who started the ranks of a node: they end with it.
LAUNCHER = "AAM_LAUNCHER"


def _place(environment: Mapping[str, str]) -> World | None:
    """Rank, number and rank on the node, as torchrun or SLURM say them; none where neither started this process."""
    for names in (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")):
        if all(environment.get(name, "").isdigit() for name in names):
            rank, size, local_rank = (int(environment[name]) for name in names)
            return World(rank, size, local_rank)
    return None


def is_launched(environment: Mapping[str, str]) -> bool:
    """Whether this process is one that torchrun, SLURM or `launched` started."""
    return _place(environment) is not None


def wants_processes(config: ProcessConfig) -> bool:
    """Whether the options ask for several processes."""
    many = config.distributed, config.data_parallel, config.fsdp, config.fsdp_sharded_checkpoint, config.pipeline
    return any(many)


@contextlib.contextmanager
def process_group(config: ProcessConfig) -> Iterator[World]:
    """The world of this run while it lasts.

    Where a rank fails, the others end within a minute and say why: those in an exchange because it breaks, those
    elsewhere because a thread looks.

    Raises
    ------
    InputError
        Options and environment do not fit each other.
    RunError
        Another rank failed.
    """
    place = _place(os.environ) if wants_processes(config) else SINGLE
    if place is None:
        names = ("distributed", "fsdp", "fsdp_sharded_checkpoint", "pipeline")
        given = " ".join(f"--{name.replace('_', '-')}" for name in names if getattr(config, name))
        advice = "start one process per device by srun or torchrun, or pass --data-parallel"
        raise InputError(f"{given}: no rank stands in the environment (RANK or SLURM_PROCID); {advice}")
    if place.size == 1:
        yield place
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise InputError(f"--distributed: {' and '.join(missing)} not set; they name where the ranks meet")
    if torch.cuda.is_available() and config.device != "cpu":
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
    logging.getLogger("aam").setLevel(logging.INFO if place.is_main else logging.ERROR)
    store = _store(place, place.is_main and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=TIMEOUT)
    over = threading.Event()
    threading.Thread(target=_look, args=(place, over), daemon=True).start()
    try:
        yield place
        place.barrier()
    except Exception as error:
        raise _end(place, store, error) from error
    finally:
        over.set()
        # A rank that fails leaves its group as it is: to destroy it would wait for the others.
        if sys.exc_info()[0] is None:
            dist.destroy_process_group()


def _store(place: World, master: bool) -> Any:
    """Where ranks meet and leave word."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, None, master, timeout=datetime.timedelta(minutes=5), wait_for_workers=False)  # type: ignore[attr-defined]


def _word(rank: int) -> str:
    return f"aam/failed/{rank}"


def _heard(place: World, store: Any) -> Exception | SystemExit | None:
    """What another rank that failed by itself left word of; silence where the leading rank has told the user."""
    for rank in range(place.size):
        if rank != place.rank and store.check([_word(rank)]):
            status, _, said = store.get(_word(rank)).decode().partition(" ")
            bad = int(status) == BAD_INPUT
            return SystemExit(BAD_INPUT) if bad and rank == 0 else RunError(f"rank {rank} failed: {said}")
    return None


def _end(place: World, store: Any, error: Exception) -> BaseException:
    """Leave word of an error, or learn whose it is; the error to raise here."""
    lost, bad = isinstance(error, RuntimeError), isinstance(error, InputError)
    for _ in range(5 if lost or (bad and not place.is_main) else 0):
        with contextlib.suppress(RuntimeError):
            if (heard := _heard(place, store)) is not None:
                return heard
        time.sleep(1)
    if lost and "onnection" in str(error):
        log.debug("%s", error)
        return RunError("a rank was lost; --resume-from auto goes on from the last whole checkpoint, if there is one")
    with contextlib.suppress(RuntimeError):
        store.set(_word(place.rank), f"{BAD_INPUT if bad else FAILED} {error}")
        # The store goes with the leading rank: others need time to read it.
        time.sleep(2 * POLL_SECONDS if place.is_main else 0)
    return error


def _look(place: World, over: threading.Event) -> None:
    """End this process where another failed and the main thread does not see it, as in an exchange on the device."""
    store, heard, launcher = _store(place, False), None, os.environ.get(LAUNCHER)
    try:
        while heard is None and not over.wait(POLL_SECONDS):
            heard = _heard(place, store)
            if launcher not in (None, str(os.getppid())):
                heard = RunError("the process that started the ranks is gone")
    except RuntimeError as error:
        heard = RunError(f"the leading rank is gone ({error})")
    if heard is not None and not over.wait(GRACE_SECONDS):
        log.error("aam: rank %d ends: %s", place.rank, heard)
        os._exit(FAILED)


def process_count(config: ProcessConfig) -> int:
    """Processes that ``--data-parallel`` starts: one per visible GPU, or on CPU one per `threads` cores.

    With ``--pipeline`` two.
    """
    if config.pipeline:
        return 2
    if torch.cuda.is_available() and config.device != "cpu":
        return torch.cuda.device_count()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(cores // config.threads, 1) if config.threads else 1


def launch(size: int, words: Sequence[str]) -> int:
    """Run ``aam`` with `words` as `size` processes on this node; the exit status of all.

    Warnings are passed on; when one process fails, the others have a minute to end, and after a second warning seconds.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared[LAUNCHER] = str(os.getpid())
    command = [sys.executable, "-m", "aam", *words]
    ranks = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(size)
    ]

    warned: list[float] = []

    def pass_on(number: int, frame: object) -> None:
        warned.append(time.monotonic())
        for rank in ranks:
            rank.send_signal(number)

    before = {one: signal.signal(one, pass_on) for one in WARNINGS}
    try:
        return _waited(ranks, warned)
    finally:
        for rank in ranks:
            rank.kill()
        for one, handler in before.items():
            signal.signal(one, handler)


def _waited(ranks: Sequence[subprocess.Popen[bytes]], warned: Sequence[float]) -> int:
    """The status that most says what happened, once all processes ended, or one failed, or were warned twice."""
    end = math.inf
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
        time.sleep(0.1)
        if end == math.inf and any(rank.poll() not in (None, FINISHED, CALL_AGAIN) for rank in ranks):
            end = time.monotonic() + 60
        if len(warned) > 1:
            end = min(end, warned[1] + GRACE_SECONDS)
    found = [rank.poll() for rank in ranks]
    for rank, status in enumerate(found):
        if status is None or status < 0:
            said = "did not end by itself" if status is None else f"was ended by {signal.Signals(-status).name}"
            log.error("aam: the process of rank %d %s", rank, said)
    wrong = (FAILED if status is None or status < 0 else status for status in found if status != FINISHED)
    return min(wrong, default=FINISHED)
