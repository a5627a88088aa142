"""Several processes as one: how they meet and end, what they exchange, and the wrappers put around a model."""

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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from aam.config import RunConfig
from aam.errors import BAD_INPUT, CALL_AGAIN, FAILED, FINISHED, WARNINGS, InputError, RunError

log = logging.getLogger("aam")

# The longest that ranks wait for one that works alone, as when it reports on a fold.
PATIENCE = datetime.timedelta(hours=2)
# Seconds between two looks at whether another rank failed, and how long one then waits for the main thread.
LOOK, GRACE = 2.0, 15.0
# Who started the ranks of a node: they end with it.
LAUNCHER = "AAM_LAUNCHER"


class _Gather(torch.autograd.Function):
    """Rows of all ranks one below the other; the gradient of a rank's own is the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, sizes: tuple[int, ...], rank: int) -> Tensor:
        ctx.sizes, ctx.rank = sizes, rank
        # gloo wants equal lengths.
        padded = nn.functional.pad(own, (0, 0) * (own.ndim - 1) + (0, max(sizes) - len(own))).contiguous()
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        summed = gradients[0].contiguous()
        dist.all_reduce(summed)
        start = sum(ctx.sizes[: ctx.rank])
        return summed[start : start + ctx.sizes[ctx.rank]], None, None


@dataclass(frozen=True)
class World:
    """The processes of a run, and this one's place among them; alone, all exchanges are free.

    `sent` counts the bytes that this rank gave to others, by what they were, and `each` those that any step takes;
    `work` is its arithmetic of each batch.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    sent: Counter[str] = field(default_factory=Counter, compare=False)
    each: Counter[str] = field(default_factory=Counter, compare=False)
    work: list[int] = field(default_factory=list, compare=False)

    @property
    def lead(self) -> bool:
        """Whether this is the rank that writes and logs."""
        return self.rank == 0

    def rows(self, own: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Rows ``[n, ...]`` of all ranks, `sizes` of each, with gradient; one's own where all have the same."""
        if len(sizes) < 2:
            return own
        self.sent["vectors"] += own.nbytes * (2 if own.requires_grad else 1)
        return _Gather.apply(own, sizes, self.rank)  # type: ignore[no-any-return, no-untyped-call]

    def summed(self, values: Tensor) -> Tensor:
        """The sum over ranks of tensors of one shape."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def most(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        if self.size == 1:
            return number
        largest = torch.tensor(number)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        return bool(self.most(int(flag)))

    def arrays(self, own: npt.NDArray[Any], what: str = "other") -> list[npt.NDArray[Any]]:
        """The arrays ``[n, ...]`` of all ranks, alike but for n."""
        if self.size == 1:
            return [own]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(own)]))
        padded = np.zeros((max(int(size) for size in sizes), *own.shape[1:]), own.dtype)
        padded[: len(own)] = own
        parts = [torch.from_numpy(np.zeros_like(padded)) for _ in sizes]
        dist.all_gather(parts, torch.from_numpy(padded))
        self.sent[what] += padded.nbytes
        return [part.numpy()[: int(size)] for part, size in zip(parts, sizes, strict=True)]

    def told(self, data: bytes) -> bytes:
        """What the leading rank says."""
        if self.size == 1:
            return data
        length = torch.tensor([len(data)])
        dist.broadcast(length, 0)
        said = torch.from_numpy(np.frombuffer(data, np.uint8).copy() if self.lead else np.zeros(int(length), np.uint8))
        dist.broadcast(said, 0)
        return said.numpy().tobytes()

    def figures(self) -> dict[str, float]:
        """Since the last time: bytes that this rank sent per batch, by kind, and the ranks' arithmetic, most over mean.

        The latter is the mean over batches, as ranks wait for each other in each; ``gradients`` are bytes per step.
        """
        done, sent = np.array(self.work, np.float64), dict(self.sent)
        self.work.clear()
        if self.size == 1 or not len(done):
            return {}
        every = np.stack(self.arrays(done))
        self.sent.clear()
        found = {f"sent_{kind}": count / len(done) for kind, count in sent.items()}
        found |= {f"sent_{kind}": float(count) for kind, count in self.each.items()}
        return {**found, "imbalance": float((every.max(axis=0) / every.mean(axis=0)).mean())}

    def wait(self) -> None:
        """Until all ranks are here."""
        self.any(False)


ALONE = World()


# --- meeting and ending --------------------------------------------------------------------------------------


def _place(environment: Mapping[str, str]) -> World | None:
    """Rank, number and rank on the node, as torchrun or SLURM say them; none where neither started this process."""
    for names in (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")):
        if all(environment.get(name, "").isdigit() for name in names):
            rank, size, local_rank = (int(environment[name]) for name in names)
            return World(rank, size, local_rank)
    return None


def started(environment: Mapping[str, str]) -> bool:
    """Whether this process is one that torchrun, SLURM or `launched` started."""
    return _place(environment) is not None


def wanted(config: RunConfig) -> bool:
    """Whether the options ask for several processes."""
    many = config.distributed, config.data_parallel, config.fsdp, config.fsdp_sharded_checkpoint, config.pipeline
    return any(many)


@contextlib.contextmanager
def world_of(config: RunConfig) -> Iterator[World]:
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
    place = _place(os.environ) if wanted(config) else ALONE
    if place is None:
        names = ("distributed", "fsdp", "fsdp_sharded_checkpoint", "pipeline")
        given = " ".join(f"--{name.replace('_', '-')}" for name in names if getattr(config, name))
        started = "start one process per device by srun or torchrun, or pass --data-parallel"
        raise InputError(f"{given}: no rank stands in the environment (RANK or SLURM_PROCID); {started}")
    if place.size == 1:
        yield place
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise InputError(f"--distributed: {' and '.join(missing)} not set; they name where the ranks meet")
    if torch.cuda.is_available() and config.device != "cpu":
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
    logging.getLogger("aam").setLevel(logging.INFO if place.lead else logging.ERROR)
    store = _store(place, place.lead and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.size, timeout=PATIENCE)
    over = threading.Event()
    threading.Thread(target=_look, args=(place, over), daemon=True).start()
    try:
        yield place
        place.wait()
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
    for _ in range(5 if lost or (bad and not place.lead) else 0):
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
        time.sleep(2 * LOOK if place.lead else 0)
    return error


def _look(place: World, over: threading.Event) -> None:
    """End this process where another failed and the main thread does not see it, as in an exchange on the device."""
    store, heard, launcher = _store(place, False), None, os.environ.get(LAUNCHER)
    try:
        while heard is None and not over.wait(LOOK):
            heard = _heard(place, store)
            if launcher not in (None, str(os.getppid())):
                heard = RunError("the process that started the ranks is gone")
    except RuntimeError as error:
        heard = RunError(f"the leading rank is gone ({error})")
    if heard is not None and not over.wait(GRACE):
        log.error("aam: rank %d ends: %s", place.rank, heard)
        os._exit(FAILED)


def devices(config: RunConfig) -> int:
    """Processes that ``--data-parallel`` starts: one per visible GPU, or on CPU one per `threads` cores.

    With ``--pipeline`` two.
    """
    if config.pipeline:
        return 2
    if torch.cuda.is_available() and config.device != "cpu":
        return torch.cuda.device_count()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(cores // config.threads, 1) if config.threads else 1


def launched(size: int, words: Sequence[str]) -> int:
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
            end = min(end, warned[1] + GRACE)
    found = [rank.poll() for rank in ranks]
    for rank, status in enumerate(found):
        if status is None or status < 0:
            said = "did not end by itself" if status is None else f"was ended by {signal.Signals(-status).name}"
            log.error("aam: the process of rank %d %s", rank, said)
    wrong = (FAILED if status is None or status < 0 else status for status in found if status != FINISHED)
    return min(wrong, default=FINISHED)


# --- around a model ------------------------------------------------------------------------------------------


def parallelize(model: nn.Module, config: RunConfig, world: World) -> nn.Module:
    """What trains `model` on all ranks: itself alone, sharded in place (FSDP2), or DDP around it.

    Both average gradients over ranks; the weights are those of the leading rank.
    """
    if world.size == 1:
        return model
    for value in model.state_dict().values():
        dist.broadcast(value, 0)
    learned = sum(p.nbytes for p in model.parameters() if p.requires_grad) * (world.size - 1) / world.size
    # A ring sums gradients in two turns; with shards, weights are gathered twice and gradients shared out.
    world.each["gradients"] = round((3 if config.fsdp else 2) * learned)
    if not config.fsdp:
        # That which looks for unused parameters also keeps its buckets as they are: rebuilt after the first step,
        # they would be summed in another order, and a run that goes on would differ in its last bits.
        return DistributedDataParallel(model, find_unused_parameters=True)
    # As one unit: a block would be gathered each time it is called, and ranks call theirs as often as their samples
    # and ASVs ask for.
    fully_shard(model)
    return model


@contextlib.contextmanager
def exchanging(model: nn.Module, last: bool) -> Iterator[None]:
    """Gradients are exchanged in the backward pass of the `last` batch of a step only."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    with model.no_sync() if isinstance(model, DistributedDataParallel) and not last else contextlib.nullcontext():
        yield


def whole(value: Tensor) -> Tensor:
    """All of a tensor that may be sharded; every rank must ask."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def own_parts(values: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """This rank's parts of sharded tensors; the others go with the leading rank's."""
    parts = {n: value.to_local() if isinstance(value, DTensor) else value for n, value in values.items()}
    return {n: part for n, part in parts.items() if world.lead or isinstance(values[n], DTensor)}


def placed(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor that every rank has, sharded as `like` is, on its device."""
    value = value.to(like.device)
    if not isinstance(like, DTensor):
        return value
    step = -(-len(value) // like.device_mesh.size())
    own = value[step * like.device_mesh.get_local_rank() :][:step].clone()
    return DTensor.from_local(
        own, like.device_mesh, like.placements, run_check=False, shape=value.shape, stride=value.stride()
    )
