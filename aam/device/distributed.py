"""The ranks of a run: their collective operations, their start on this node, how they meet and
end.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter, deque
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


class _Begin(torch.autograd.Function):
    """Send rows [n, ...] to all ranks; backward waits for the sum of the gradients that `_Arrive`
    has begun.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: tuple[int, ...], way: _Way) -> Tensor:
        ctx.way = way
        # gloo gathers tensors of equal length.
        padded = nn.functional.pad(
            rows, (0, 0) * (rows.ndim - 1) + (0, max(sizes) - len(rows))
        ).contiguous()
        way.parts = [torch.empty_like(padded) for _ in sizes]
        way.work = dist.all_gather(way.parts, padded, async_op=True)
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.way.work.wait()
        return gradients[0], None, None


class _Arrive(torch.autograd.Function):
    """Wait for the rows of all ranks; the gradient of the rows of a rank is the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: tuple[int, ...], rank: int, way: _Way) -> Tensor:
        ctx.sizes, ctx.rank, ctx.way = sizes, rank, way
        way.work.wait()
        return torch.cat([part[:size] for part, size in zip(way.parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        summed = gradients[0].contiguous()
        ctx.way.work = dist.all_reduce(summed, async_op=True)
        start = sum(ctx.sizes[: ctx.rank])
        return summed[start : start + ctx.sizes[ctx.rank]], None, None, None


class _Way:
    """What is under way between ranks: the operation, and the rows that it brings."""

    work: Any
    parts: list[Tensor]


@dataclass(frozen=True)
class World:
    """The ranks of a run, and the place of this process among them; with one rank, collectives cost
    nothing.

    Attributes
    ----------
    rank, size, local_rank : int
        Rank, number of ranks, rank on this node.
    bytes_sent : Counter
        Bytes that this rank sent since the last `communication_metrics`, by kind.
    bytes_per_step : Counter
        Bytes that each step sends, by kind.
    work : list of int
        Arithmetic of this rank in each batch since the last `communication_metrics`.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    bytes_sent: Counter[str] = field(default_factory=Counter, compare=False)
    bytes_per_step: Counter[str] = field(default_factory=Counter, compare=False)
    work: list[int] = field(default_factory=list, compare=False)

    @property
    def is_main(self) -> bool:
        """Return whether this is the rank that writes and logs."""
        return self.rank == 0

    def gather_rows(self, rows: Tensor, sizes: tuple[int, ...]) -> Callable[[], Tensor]:
        """Begin to gather the rows ``[n, ...]`` of all ranks, `sizes` of each, with gradient; what
        is returned waits.

        What a rank computes before it calls that hides the exchange, in backward too. With one size
        it is `rows`.
        """
        if len(sizes) < 2:
            return lambda: rows
        self.bytes_sent["vectors"] += rows.nbytes * (2 if rows.requires_grad else 1)
        way = _Way()
        sent = _Begin.apply(rows, sizes, way)  # type: ignore[no-untyped-call]
        return lambda: _Arrive.apply(sent, sizes, self.rank, way)  # type: ignore[no-untyped-call]

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

    def all_gather_arrays(
        self, array: npt.NDArray[Any], kind: str = "other"
    ) -> list[npt.NDArray[Any]]:
        """Gather the arrays ``[n, ...]`` of all ranks, which differ in n only; `kind` names them in
        `bytes_sent`.
        """
        if self.size == 1:
            return [array]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(array)]))
        padded = np.zeros((max(int(size) for size in sizes), *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        parts = self.gather_alike(padded, kind)()
        return [part[: int(size)] for part, size in zip(parts, sizes, strict=True)]

    def gather_alike(
        self, array: npt.NDArray[Any], kind: str
    ) -> Callable[[], list[npt.NDArray[Any]]]:
        """Begin to gather the arrays of all ranks, of one shape; what is returned waits. `kind` as
        above.
        """
        parts = [torch.from_numpy(np.empty_like(array)) for _ in range(self.size)]
        work = dist.all_gather(parts, torch.from_numpy(array), async_op=True)
        self.bytes_sent[kind] += array.nbytes

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
        content = (
            np.frombuffer(data, np.uint8).copy()
            if self.is_main
            else np.zeros(int(length), np.uint8)
        )
        message = torch.from_numpy(content)
        dist.broadcast(message, 0)
        return message.numpy().tobytes()

    def communication_metrics(self) -> dict[str, float]:
        """Return what was sent since the last call, and how unequally the ranks were loaded.

        Returns
        -------
        dict
            ``sent_KIND``, the bytes per batch that this rank sent (``sent_gradients`` per step),
            and ``imbalance``, the largest arithmetic of a rank over the mean, averaged over
            batches, as ranks wait for each other in each.
        """
        work, sent = np.array(self.work, np.float64), dict(self.bytes_sent)
        self.work.clear()
        if self.size == 1 or not len(work):
            return {}
        work_of_ranks = np.stack(self.all_gather_arrays(work))
        self.bytes_sent.clear()
        metrics = {f"sent_{kind}": count / len(work) for kind, count in sent.items()}
        metrics |= {f"sent_{kind}": float(count) for kind, count in self.bytes_per_step.items()}
        return {
            **metrics,
            "imbalance": float((work_of_ranks.max(axis=0) / work_of_ranks.mean(axis=0)).mean()),
        }

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.any(False)


SINGLE = World()


@dataclass(eq=False)
class Link:
    """Sends tensors to the other of two ranks and receives its own, in order and asynchronously."""

    world: World
    sent: deque[tuple[Any, Tensor]] = field(default_factory=deque)
    expected: deque[tuple[Any, Tensor]] = field(default_factory=deque)

    def send(self, value: Tensor, kind: str = "hidden states") -> None:
        """Start to send `value` to the other rank, which must expect one of its shape; `kind` names
        it in metrics.
        """
        value = value.contiguous()
        self.sent.append((dist.isend(value, 1 - self.world.rank), value))
        self.world.bytes_sent[kind] += value.nbytes

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


# Seconds that the other ranks have to end after one has failed.
FAILURE_SECONDS = 60.0

# Seconds that a rank that is killed has to end.
END_SECONDS = 5.0

# Longest time that ranks wait for one that works alone, as when it reports on a fold.
TIMEOUT = datetime.timedelta(hours=2)

# Seconds between two checks whether another rank failed.
POLL_SECONDS = 2.0

# Seconds that the main thread has to end by itself when another rank failed.
GRACE_SECONDS = 15.0

# Environment variable with the process that started the ranks of a node: they end with it.
LAUNCHER = "AAM_LAUNCHER"

# The groups of several ranks that this process has joined, kept to its end: to free one joins its
# threads while Python is locked, and a thread that frees the tensors of a finished all-reduce waits
# for that lock, so both wait for ever.
_groups: list[Any] = []


def process_count(config: ProcessConfig) -> int:
    """Return how many processes ``--data-parallel`` starts: one per visible GPU, or on CPU one per
    `threads` cores.
    """
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

    Signals that warn are passed on to the ranks. When one rank fails, the others have a minute to
    end; after a second signal all have seconds.
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
    """Wait until all ranks have ended, or for a limited time after one failed or a second signal
    came.
    """
    deadline = math.inf
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.1)
        if deadline == math.inf and any(
            rank.poll() not in (None, FINISHED, CALL_AGAIN) for rank in ranks
        ):
            deadline = time.monotonic() + FAILURE_SECONDS
        if len(signal_times) > 1:
            deadline = min(deadline, signal_times[1] + GRACE_SECONDS)


def _combined_status(statuses: Sequence[int | None]) -> int:
    """Return the exit status of all ranks: that of a failure before that of a rank that wants to be
    called again.
    """
    for rank, status in enumerate(statuses):
        if status is None or status < 0:
            end = (
                "did not end by itself"
                if status is None
                else f"was ended by {signal.Signals(-status).name}"
            )
            log.error("aam: the process of rank %d %s", rank, end)
    failed = (
        FAILED if status is None or status < 0 else status
        for status in statuses
        if status != FINISHED
    )
    return min(failed, default=FINISHED)


# --- the process group -------------------------------------------------------------------------


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
            f"{options}: no rank stands in the environment (RANK or SLURM_PROCID); {advice}"
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

    Where a rank fails, the others end within a minute and name the cause: those in an exchange
    because it breaks, those elsewhere because a thread watches.

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
    if torch.cuda.is_available() and config.device != "cpu":
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
    logging.getLogger("aam").setLevel(logging.INFO if world.is_main else logging.ERROR)
    store = _connect_store(
        world, world.is_main and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    )
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend, store=store, rank=world.rank, world_size=world.size, timeout=TIMEOUT
    )
    _groups.append(dist.group.WORLD)
    finished = threading.Event()
    watch = threading.Thread(target=_watch_other_ranks, args=(world, finished), daemon=True)
    watch.start()
    try:
        yield world
        world.barrier()
    except Exception as error:
        raise _resolve_failure(world, store, error) from error
    finally:
        finished.set()
        # A thread that the interpreter's end meets within the store aborts the process (SIGABRT,
        # status 134).
        watch.join(GRACE_SECONDS)
        # A rank that fails leaves its group as it is: to destroy it would wait for the others.
        if sys.exc_info()[0] is None:
            dist.destroy_process_group()


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


def _connect_store(world: World, serve: bool) -> Any:
    """Connect to the store where ranks meet and leave failure messages; one rank serves it."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(  # type: ignore[attr-defined]
        host, port, None, serve, timeout=datetime.timedelta(minutes=5), wait_for_workers=False
    )


def _failure_key(rank: int) -> str:
    return f"aam/failed/{rank}"


def _read_failure(world: World, store: Any) -> Exception | SystemExit | None:
    """Return the error of another rank that failed by itself.

    It is a silent exit where rank 0 has shown bad input to the user.
    """
    for rank in range(world.size):
        if rank != world.rank and store.check([_failure_key(rank)]):
            status, _, message = store.get(_failure_key(rank)).decode().partition(" ")
            if int(status) == BAD_INPUT and rank == 0:
                return SystemExit(BAD_INPUT)
            return RunError(f"rank {rank} failed: {message}")
    return None


def _resolve_failure(world: World, store: Any, error: Exception) -> BaseException:
    """Return the error of another rank that caused `error`, or announce `error` to the others and
    return it.
    """
    is_connection_error, is_bad_input = (
        isinstance(error, RuntimeError),
        isinstance(error, InputError),
    )
    for _ in range(5 if is_connection_error or (is_bad_input and not world.is_main) else 0):
        with contextlib.suppress(RuntimeError):
            if (failure := _read_failure(world, store)) is not None:
                return failure
        time.sleep(1)
    if is_connection_error and "onnection" in str(error):
        log.debug("%s", error)
        return RunError(
            "a rank was lost; --resume-from auto goes on from the last whole checkpoint, if "
            "there is one"
        )
    with contextlib.suppress(RuntimeError):
        store.set(_failure_key(world.rank), f"{BAD_INPUT if is_bad_input else FAILED} {error}")
        # The store ends with rank 0: the others need time to read it.
        time.sleep(2 * POLL_SECONDS if world.is_main else 0)
    return error


def _watch_other_ranks(world: World, finished: threading.Event) -> None:
    """End this process when another rank failed and the main thread does not notice, as in a
    collective on a GPU.
    """
    store, launcher = _connect_store(world, False), os.environ.get(LAUNCHER)
    failure: BaseException | None = None
    try:
        while failure is None and not finished.wait(POLL_SECONDS):
            failure = _read_failure(world, store)
            if launcher not in (None, str(os.getppid())):
                failure = RunError("the process that started the ranks is gone")
    except RuntimeError as error:
        failure = RunError(f"rank 0 is gone ({error})")
    if failure is not None and not finished.wait(GRACE_SECONDS):
        log.error("aam: rank %d ends: %s", world.rank, failure)
        os._exit(FAILED)
