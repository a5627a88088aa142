"""The ranks of a run: their collective operations, their start on this node, how they meet and
end.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import logging
import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from aam.device.environment import available_cores, process_options, rank_of
from aam.device.options import ProcessConfig
from aam.errors import BAD_INPUT, CALL_AGAIN, FAILED, FINISHED, WARNINGS, InputError, RunError

log = logging.getLogger("aam")


class _GatherRows(torch.autograd.Function):
    """Gather rows [n, ...] of all ranks; the gradient of the rows of a rank is the sum over
    ranks.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: tuple[int, ...], rank: int) -> Tensor:
        ctx.own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        # gloo gathers tensors of equal length.
        padding = (0, 0) * (rows.ndim - 1) + (0, max(sizes) - len(rows))
        padded = nn.functional.pad(rows, padding).contiguous()
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        summed = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed)
        return summed[ctx.own], None, None


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

    def gather_rows(self, rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Return the rows ``[n, ...]`` of all ranks, `sizes` of each, with gradient; with one size
        `rows`.
        """
        if len(sizes) < 2:
            return rows
        return _GatherRows.apply(rows, sizes, self.rank)  # type: ignore[no-any-return, no-untyped-call]

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum over ranks of tensors of one shape."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def largest_values(self, values: Tensor) -> Tensor:
        """Return the largest of the ranks' tensors of one shape, element by element, without
        gradient.
        """
        values = values.detach().clone()
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def broadcast_tensor(self, value: Tensor, source: int) -> None:
        """Replace `value` on every rank by that of the rank `source`."""
        if self.size > 1:
            dist.broadcast(value.detach(), source)

    def all_reduce_max(self, number: int) -> int:
        """Return the largest of the ranks' numbers."""
        return int(self.largest_values(torch.tensor(number)))

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any rank."""
        return bool(self.all_reduce_max(int(flag)))

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.any(False)

    def all_gather_arrays(self, array: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Gather the arrays ``[n, ...]`` of all ranks, which differ in n only."""
        if self.size == 1:
            return [array]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(array)]))
        padded = np.zeros((max(int(size) for size in sizes), *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        parts = self.gather_same_shape(padded)()
        return [part[: int(size)] for part, size in zip(parts, sizes, strict=True)]

    def gather_same_shape(self, array: npt.NDArray[Any]) -> Callable[[], list[npt.NDArray[Any]]]:
        """Begin to gather the arrays of all ranks, of one shape; what is returned waits."""
        parts = [torch.from_numpy(np.empty_like(array)) for _ in range(self.size)]
        work = dist.all_gather(parts, torch.from_numpy(array), async_op=True)

        def arrived() -> list[npt.NDArray[Any]]:
            work.wait()
            return [part.numpy() for part in parts]

        return arrived

    def broadcast(self, data: bytes) -> bytes:
        """Return the `data` of rank 0 on every rank."""
        if self.size == 1:
            return data
        length = torch.tensor([len(data)])
        dist.broadcast(length, 0)
        message = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_main:
            message = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else message
        dist.broadcast(message, 0)
        return message.numpy().tobytes()


SINGLE = World()


@dataclass(eq=False)
class Link:
    """Sends tensors to the other of two ranks and receives its own, in order and asynchronously."""

    world: World
    sent: deque[tuple[Any, Tensor]] = field(default_factory=deque)
    expected: deque[tuple[Any, Tensor]] = field(default_factory=deque)

    def send(self, value: Tensor) -> None:
        """Start to send `value` to the other rank, which must expect one of its shape."""
        value = value.contiguous()
        self.sent.append((dist.isend(value, 1 - self.world.rank), value))

    def expect(self, value: Tensor) -> None:
        """Start to receive the next tensor into the memory of `value`."""
        self.expected.append((dist.irecv(value, 1 - self.world.rank), value))

    def receive(self) -> Tensor:
        """Wait for the next tensor that was expected, and return it."""
        work, value = self.expected.popleft()
        work.wait()
        return value

    def wait_sent(self, ahead: int = 0) -> None:
        """Wait until the other rank has received everything that was sent but the last `ahead`
        tensors.
        """
        while len(self.sent) > ahead:
            work, _ = self.sent.popleft()
            work.wait()


# --- the launcher of --data-parallel, which starts the ranks of this node ------------------------

# Seconds that the other ranks have to end after one has failed, or after a second signal.
FAILURE_SECONDS, SIGNAL_SECONDS = 60.0, 15.0

# Seconds that a rank that is killed has to end.
END_SECONDS = 5.0

# Environment variable with the process that started the ranks of a node: they end with it.
LAUNCHER = "AAM_LAUNCHER"


def process_count(config: ProcessConfig) -> int:
    """Number of processes that ``--data-parallel`` starts: one per visible GPU, or on CPU one per
    `threads` cores.
    """
    if torch.cuda.is_available() and config.device != "cpu":
        return torch.cuda.device_count()
    return max(available_cores() // config.threads, 1) if config.threads else 1


def rank_environment(size: int) -> dict[str, str]:
    """Return the environment that all of `size` ranks of this node share."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
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
    shared = rank_environment(size)
    command = [sys.executable, "-m", program, *words]
    return [
        subprocess.Popen(
            command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **options
        )
        for rank in range(size)
    ]


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
            failed = any(rank.poll() not in (None, FINISHED, CALL_AGAIN) for rank in ranks)
            if failed and deadline == math.inf:
                deadline = time.monotonic() + FAILURE_SECONDS
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
    """Return the exit status of all ranks: that of a failure before that of a rank that wants to be
    called again.
    """
    for rank, status in enumerate(statuses):
        if status is None:
            log.error("aam: the process of rank %d did not end by itself", rank)
        elif status < 0:
            name = signal.Signals(-status).name
            log.error("aam: the process of rank %d was ended by %s", rank, name)
    failed = (FAILED if status is None or status < 0 else status for status in statuses)
    return min((status for status in failed if status != FINISHED), default=FINISHED)


# --- the process group -------------------------------------------------------------------------

# Longest time that ranks wait for one that works alone, as when it reports on a fold.
TIMEOUT = datetime.timedelta(hours=2)

# Longest time that a rank with bad input waits to learn whether rank 0 has shown the same.
SHOWN = datetime.timedelta(seconds=3)

# Option of Linux's prctl: the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1

# The groups of several ranks that this process has joined, kept to its end: to free one joins its
# threads while Python is locked, and a thread that frees the tensors of a finished all-reduce waits
# for that lock, so both wait for ever.
_groups: list[Any] = []


def _check_world(config: ProcessConfig) -> World:
    """Return the place of this process among the ranks; `InputError` where options and environment
    disagree.
    """
    place = rank_of(os.environ)
    options = " ".join(process_options(config))
    if not options:
        return SINGLE
    if place is None:
        advice = "start one process per device by srun or torchrun, or pass --data-parallel"
        raise InputError(
            f"{options}: no rank is set in the environment (RANK or SLURM_PROCID); {advice}"
        )
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if place.size > 1 and missing:
        raise InputError(
            f"--distributed: {' and '.join(missing)} not set; they name where the ranks meet"
        )
    return World(*place)


@contextlib.contextmanager
def process_group(config: ProcessConfig) -> Iterator[World]:
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
    dist.init_process_group(
        backend, store=store, rank=world.rank, world_size=world.size, timeout=TIMEOUT
    )
    _groups.append(dist.group.WORLD)
    # A failed rank does not destroy its group, because that would wait for the others.
    try:
        yield world
        world.barrier()
    except InputError as error:
        raise _shown_once(world, store, error) from error
    except RuntimeError as error:
        if "onnection" not in str(error):
            raise
        log.debug("%s", error)
        raise RunError(
            "a rank was lost (its own message may say why); --resume-from auto continues from the "
            "last complete checkpoint, if any"
        ) from error
    dist.destroy_process_group()


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
            time.sleep(SHOWN.total_seconds())
            return error
        store.wait([InputError.__name__], SHOWN)
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
        child.terminate()
    logging.shutdown()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = status or FAILED
    os._exit(status)
