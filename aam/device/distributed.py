"""The ranks of a run: their collective operations, their start on this node, how they meet and
end.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import functools
import json
import logging
import math
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn

from aam.device.environment import available_cores, process_options, rank_of
from aam.device.measure import seconds
from aam.device.platform import Facts
from aam.errors import BAD_INPUT, CALL_AGAIN, FAILED, FINISHED, WARNINGS, InputError, RunError
from aam.options import RunConfig

log = logging.getLogger("aam")


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@dataclass(frozen=True)
class World:
    """The ranks of a run, and the place of this process among them; with one rank, collectives cost
    nothing.

    Attributes
    ----------
    rank, size, local_rank : int
        Rank, number of ranks, rank on this node.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes and logs."""
        return self.rank == 0

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum over ranks of tensors of one shape."""
        if self.size > 1:
            values = values.clone()
            self.add_up(values)
        return values

    def add_up(self, values: Tensor) -> None:
        """Replace values by their sum over ranks."""
        dist.all_reduce(values)

    def gather_into(self, every: Tensor, values: Tensor) -> None:
        """Write the values ``[n]`` of all ranks into `every` ``[size, n]``."""
        dist.all_gather([*every.unbind()], values)

    def from_main(self, values: Tensor) -> None:
        """Replace values by those of rank 0."""
        dist.broadcast(values, 0)

    def largest_values(self, values: Tensor) -> Tensor:
        """Return the largest of the ranks' tensors of one shape, element by element, without
        gradient.
        """
        values = values.detach().clone()
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def all_reduce_max(self, number: int) -> int:
        """Return the largest of the ranks' numbers."""
        return int(self.largest_values(torch.tensor(number)))

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any rank."""
        return bool(self.all_reduce_max(int(flag)))

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.any(False)

    def all_gather(self, tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Return the tensors of each rank, by name; the ranks may have other names and shapes."""
        if self.size == 1:
            return [tensors]
        message = _as_tensor(safetensors.torch.save(tensors))
        number = torch.zeros(self.size, dtype=torch.int64)
        number[self.rank] = len(message)
        sizes = self.all_reduce_sum(number).tolist()
        # gloo gathers tensors of equal length.
        padded = nn.functional.pad(message, (0, max(sizes) - len(message)))
        every = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(every, padded)
        pairs = zip(every, sizes, strict=True)
        return [safetensors.torch.load(part[:size].numpy().tobytes()) for part, size in pairs]

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Return the `data` of rank 0 on every rank."""
        if self.size == 1:
            return data
        size = self.all_reduce_max(len(data) if self.is_main else 0)
        message = _as_tensor(data if self.is_main else bytes(size))
        dist.broadcast(message, 0)
        return message.numpy().tobytes()

    def broadcast(self, facts: Any) -> Any:
        """Return the facts of rank 0 on every rank, as JSON holds them."""
        return json.loads(self.broadcast_bytes(json.dumps(facts).encode()))

    def gather_facts(self, facts: Facts) -> list[Facts]:
        """Return the facts of each rank, as JSON holds them."""
        ranks = self.all_gather({"facts": _as_tensor(json.dumps(facts).encode())})
        return [json.loads(rank["facts"].numpy().tobytes()) for rank in ranks]


SINGLE = World()


# --- the launcher of --data-parallel, which starts the ranks of this node ------------------------

# Seconds that the other ranks have to end after one has failed, or after a second signal.
FAILURE_SECONDS, SIGNAL_SECONDS = 60.0, 15.0

# Seconds that a rank that is killed has to end.
END_SECONDS = 5.0

# Environment variable with the process that started the ranks of a node: they end with it.
LAUNCHER = "AAM_LAUNCHER"


def process_count(config: RunConfig) -> int:
    """Number of processes that ``--data-parallel`` starts: one per visible GPU, or on CPU one per
    `threads` cores.
    """
    if torch.cuda.is_available() and config.device != "cpu":
        return torch.cuda.device_count()
    return max(available_cores() // config.threads, 1) if config.threads else 1


def free_port() -> int:
    """Return a port of this node that is free now."""
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def rank_environment(size: int) -> dict[str, str]:
    """Return the environment that all of `size` ranks of this node share."""
    port = str(free_port())
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    # DDP warns on each rank that every parameter was used, which is as it should be.
    quiet = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    return {**quiet, **os.environ, **shared, LAUNCHER: str(os.getpid())}


def start_ranks(
    size: int, words: Sequence[str], program: str, **options: Any
) -> list[subprocess.Popen[Any]]:
    """Start ``python -m program`` with the command line `words` as `size` ranks here, with
    `options` of `Popen`.
    """
    shared, command = rank_environment(size), [sys.executable, "-m", program, *words]
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
    return [subprocess.Popen(command, env=shared | place, **options) for place in places]


def launch(size: int, words: Sequence[str], program: str = "aam") -> int:
    """Run ``python -m program`` with the command line `words` as `size` processes here; return
    their exit status.

    Signals that warn are passed on. When one rank fails, the others have a minute to end; after a
    second signal all have seconds.
    """
    ranks = start_ranks(size, words, program)
    deadline, signals = math.inf, 0

    def pass_on(number: int, frame: object) -> None:
        nonlocal deadline, signals
        signals += 1
        if signals > 1:
            deadline = min(deadline, time.monotonic() + SIGNAL_SECONDS)
        for rank in ranks:
            rank.send_signal(number)

    handlers = {number: signal.signal(number, pass_on) for number in WARNINGS}
    try:
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
            time.sleep(0.1)
            if any(rank.poll() not in (None, FINISHED, CALL_AGAIN) for rank in ranks):
                deadline = min(deadline, time.monotonic() + FAILURE_SECONDS)
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


def _combined_status(statuses: Sequence[int | None]) -> int:
    """Return the exit status of all ranks: that of bad input, which ends the other ranks too, then
    that of a failure, then that of a rank that wants to be called again.
    """
    for rank, status in enumerate(statuses):
        if status is None or status < 0:
            killer = f"was ended by {signal.Signals(-status).name}" if status else ""
            log.error("aam: the process of rank %d %s", rank, killer or "did not end by itself")
    if BAD_INPUT in statuses:
        return BAD_INPUT
    failed = (FAILED if status is None or status < 0 else status for status in statuses)
    return min((status for status in failed if status != FINISHED), default=FINISHED)


# --- the process group -------------------------------------------------------------------------

# Longest time that ranks wait for one that works alone, as when it reports on a fold.
TIMEOUT = datetime.timedelta(hours=2)

# Longest time that a rank with bad input waits to learn whether rank 0 has shown the same.
MESSAGE_DELAY = datetime.timedelta(seconds=3)

# What a rank says whose exchange breaks.
LOST = "a rank was lost"

# Option of Linux's prctl: the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1

# The groups of several ranks that this process has joined, kept to its end: to free one joins its
# threads while Python is locked, and a thread that frees the tensors of a finished all-reduce waits
# for that lock, so both wait for ever.
_groups: list[Any] = []


def _check_world(config: RunConfig) -> World:
    """Return the place of this process among the ranks; `InputError` where options and environment
    disagree.
    """
    place, options = rank_of(os.environ), " ".join(process_options(config))
    if not options:
        return SINGLE
    if place is None:
        problem = f"{options}: no rank is set in the environment (RANK or SLURM_PROCID)"
        advice = "start one process per device by srun or torchrun, or pass --data-parallel"
        raise InputError(f"{problem}; {advice}")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if place.size > 1 and missing:
        unset = " and ".join(missing)
        raise InputError(f"--distributed: {unset} not set; they name where the ranks meet")
    return World(*place)


def check_devices(world: World) -> None:
    """Refuse ranks that would share a GPU, on all of them: NCCL does, with an error of its own."""
    count = torch.cuda.device_count()
    if world.any(world.local_rank >= count):
        problem = f"a node has more ranks than GPUs ({count} on that of rank {world.rank})"
        raise InputError(f"--distributed: {problem}; start one for each, or pass --device cpu")


@contextlib.contextmanager
def process_group(config: RunConfig) -> Iterator[World]:
    """Join the process group of this run while the context lasts.

    Where a rank fails, the exchange breaks for the others. The launcher, or srun, ends those that
    do not notice it.

    Raises
    ------
    InputError
        Options and environment do not fit each other.
    RunError
        Another rank failed.
    """
    world = _check_world(config)
    if world.size == 1:
        yield world
        return
    _end_with_launcher()
    if torch.cuda.is_available() and config.device != "cpu":
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
    logging.getLogger("aam").setLevel(logging.INFO if world.is_main else logging.ERROR)
    serves = world.is_main and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, None, serves, wait_for_workers=False)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    rank, size = world.rank, world.size
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    _groups.append(dist.group.WORLD)
    # A failed rank does not destroy its group, because that would wait for the others.
    try:
        if torch.cuda.is_available() and config.device != "cpu":
            check_devices(world)
        yield world
        world.barrier()
    except InputError as error:
        raise _shown_once(world, store, error) from error
    except RuntimeError as error:
        if "onnection" not in str(error):
            raise
        log.debug("%s", error)
        advice = "--resume-from auto continues from the last complete checkpoint, if any"
        raise RunError(f"{LOST} (its own message may say why); {advice}") from error
    dist.destroy_process_group()


# Seconds that a step of several ranks may take, with all that compiles in the first one, and
# between two looks at it.
STEP_SECONDS, LOOK_SECONDS = 20 * 60.0, 5.0


class StepWatch(threading.Thread):
    """Ends this process where a step of several ranks takes too long, and shows where and when each
    rank was seen: who waits in an exchange cannot be interrupted.

    A context manager around each step. Ranks publish in the store of the group how many steps they
    have begun, and when they looked.
    """

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self.world, self.steps, self.since = world, 0, math.inf
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # One of its own: a client that waits cannot be shared.
        self.store = dist.TCPStore(host, port, None, False, wait_for_workers=False)  # type: ignore[attr-defined]
        self.start()

    def __enter__(self) -> None:
        self.steps += 1
        self.since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.since = math.inf

    def run(self) -> None:
        """Publish the state of this rank, and look at its step, until the process ends."""
        names = [f"rank {rank}" for rank in range(self.world.size)]
        states = "rank 0, which keeps the store of the ranks, is gone"
        with contextlib.suppress(RuntimeError):
            while time.monotonic() - self.since <= STEP_SECONDS:
                state = f"in step {self.steps} at {time.strftime('%H:%M:%S')}"
                self.store.set(names[self.world.rank], state)
                time.sleep(LOOK_SECONDS)
            seen = (name for name in names if self.store.check([name]))
            states = ", ".join(f"{name} {self.store.get(name).decode()}" for name in seen)
        # Without a store the exchange says that rank 0 is gone, or waits for ever.
        while time.monotonic() - self.since <= STEP_SECONDS:
            time.sleep(LOOK_SECONDS)
        text = "aam: a step is not done after %g minutes: %s"
        log.error(text, STEP_SECONDS / 60, states)
        logging.shutdown()
        os._exit(FAILED)


@functools.cache
def step_watch(world: World) -> AbstractContextManager[object]:
    """Return the watch of this process, whose context is a step; nothing watches a single rank."""
    return contextlib.nullcontext() if world.size == 1 else StepWatch(world)


def _end_with_launcher() -> None:
    """Let the system warn this process by SIGTERM when the launcher ends; only Linux can."""
    launcher = os.environ.get(LAUNCHER)
    if launcher is not None:
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if launcher != str(os.getppid()):
            raise RunError("the process that started the ranks is gone")


def _shown_once(world: World, store: Any, error: InputError) -> BaseException:
    """Return the error, or a silent exit where rank 0 shows the same: ranks read the same
    inputs.
    """
    try:
        if world.is_main:
            store.set(InputError.__name__, "")
            # The store ends with this rank.
            time.sleep(MESSAGE_DELAY.total_seconds())
            return error
        store.wait([InputError.__name__], MESSAGE_DELAY)
        return SystemExit(BAD_INPUT)
    except RuntimeError:
        return error


def end_rank(status: int) -> None:
    """End this process with `status` where it was one of several ranks; else return.

    It ends without the interpreter's teardown: threads of the group that wait for the interpreter
    when it is gone abort the process (SIGABRT), under load in one of hundreds of ends, and hide the
    status. An error that is being handled is shown with its traceback; what cannot be printed to
    its end makes a status of 0 that of a failure.
    """
    if not _groups:
        return
    if sys.exc_info()[0] not in (None, SystemExit):
        traceback.print_exc()
    for child in multiprocessing.active_children():
        child.kill()
    logging.shutdown()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = status or FAILED
    os._exit(status)


# --- what joins the ranks (`aam doctor --ranks`) ------------------------------------------------

# As large as the gradients of a large network.
ALL_REDUCE_BYTES, WARM_UP_CALLS, REDUCE_REPEATS = 2**26, 2, 5


def record_transport(file: Path) -> None:
    """Let NCCL or RCCL, which start with the process group, write their choices to `file`, unless
    they log already.
    """
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET")
    os.environ.setdefault("NCCL_DEBUG_FILE", str(file))


def transport_of(backend: str) -> str:
    """Transport of tensors between nodes: TCP for gloo; for NCCL and RCCL what their log says, such
    as Socket.
    """
    if backend != "nccl":
        return "TCP"
    path = Path(os.environ.get("NCCL_DEBUG_FILE", ""))
    text = path.read_text(errors="replace") if path.is_file() else ""
    lines = re.findall(r"Using network (.+)", text)
    return lines[-1].strip() if lines else "unknown: NCCL's log names no network"


def examine_ranks(world: World, device: torch.device, size: int = ALL_REDUCE_BYTES) -> Facts:
    """Number of ranks and nodes, their transport, and the bandwidth of an all-reduce.

    An all-reduce of `size` bytes among n ranks moves 2 (n - 1) / n times as many over the slowest
    link of a ring (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md).
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    values, times = torch.ones(size // 4, device=device), []
    for _ in range(WARM_UP_CALLS + REDUCE_REPEATS):
        world.barrier()
        times.append(seconds(lambda: dist.all_reduce(values), device))
        values.fill_(1)
    mean = sum(times[WARM_UP_CALLS:]) / REDUCE_REPEATS
    means = world.all_gather({socket.gethostname(): torch.tensor(mean)})
    slowest = max(float(value) for part in means for value in part.values())
    nodes = len({host for part in means for host in part})
    rate = 2 * (world.size - 1) / world.size * size / slowest
    joined = {"ranks": world.size, "nodes": nodes, "backend": backend}
    return {**joined, "transport": transport_of(backend), "bytes": size, "all_reduce": rate}
