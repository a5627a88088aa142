"""Ranks of a run: their collective operations, and models and tensors spread over them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
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

from aam.runtime.options import ProcessConfig


class _Gather(torch.autograd.Function):
    """Gather the rows of all ranks; the gradient of the rows of a rank is the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: tuple[int, ...], rank: int) -> Tensor:
        ctx.sizes, ctx.rank = sizes, rank
        # gloo gathers tensors of equal length.
        padded = nn.functional.pad(rows, (0, 0) * (rows.ndim - 1) + (0, max(sizes) - len(rows))).contiguous()
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
    """The ranks of a run, and the place of this process among them; with one rank, collectives cost nothing.

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

    def all_gather_rows(self, rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Gather the rows ``[n, ...]`` of all ranks, `sizes` of each, with gradient; with one size, return `rows`."""
        if len(sizes) < 2:
            return rows
        self.bytes_sent["vectors"] += rows.nbytes * (2 if rows.requires_grad else 1)
        return _Gather.apply(rows, sizes, self.rank)  # type: ignore[no-any-return, no-untyped-call]

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum over ranks of tensors of one shape."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def all_reduce_max(self, number: int) -> int:
        """Return the largest of the ranks' numbers."""
        if self.size == 1:
            return number
        largest = torch.tensor(number)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is true on any rank."""
        return bool(self.all_reduce_max(int(flag)))

    def all_gather_arrays(self, array: npt.NDArray[Any], kind: str = "other") -> list[npt.NDArray[Any]]:
        """Gather the arrays ``[n, ...]`` of all ranks, which differ in n only; `kind` names them in `bytes_sent`."""
        if self.size == 1:
            return [array]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(array)]))
        padded = np.zeros((max(int(size) for size in sizes), *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        parts = [torch.from_numpy(np.zeros_like(padded)) for _ in sizes]
        dist.all_gather(parts, torch.from_numpy(padded))
        self.bytes_sent[kind] += padded.nbytes
        return [part.numpy()[: int(size)] for part, size in zip(parts, sizes, strict=True)]

    def broadcast(self, data: bytes) -> bytes:
        """Return the `data` of rank 0 on every rank."""
        if self.size == 1:
            return data
        length = torch.tensor([len(data)])
        dist.broadcast(length, 0)
        content = np.frombuffer(data, np.uint8).copy() if self.is_main else np.zeros(int(length), np.uint8)
        message = torch.from_numpy(content)
        dist.broadcast(message, 0)
        return message.numpy().tobytes()

    def communication_metrics(self) -> dict[str, float]:
        """Return what was sent since the last call, and how unequally the ranks were loaded.

        Returns
        -------
        dict
            ``sent_KIND``, the bytes per batch that this rank sent (``sent_gradients`` per step), and ``imbalance``,
            the largest arithmetic of a rank over the mean, averaged over batches, as ranks wait for each other in each.
        """
        work, sent = np.array(self.work, np.float64), dict(self.bytes_sent)
        self.work.clear()
        if self.size == 1 or not len(work):
            return {}
        work_of_ranks = np.stack(self.all_gather_arrays(work))
        self.bytes_sent.clear()
        metrics = {f"sent_{kind}": count / len(work) for kind, count in sent.items()}
        metrics |= {f"sent_{kind}": float(count) for kind, count in self.bytes_per_step.items()}
        return {**metrics, "imbalance": float((work_of_ranks.max(axis=0) / work_of_ranks.mean(axis=0)).mean())}

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.any(False)


SINGLE = World()


def parallelize(model: nn.Module, config: ProcessConfig, world: World) -> nn.Module:
    """Return the module that trains `model` on all ranks: DDP around it, or with ``--fsdp`` itself, sharded (FSDP2).

    Both average gradients over ranks and start from the weights of rank 0. With one rank it is `model`.
    """
    if world.size == 1:
        return model
    for value in model.state_dict().values():
        dist.broadcast(value, 0)
    sent = sum(p.nbytes for p in model.parameters() if p.requires_grad) * (world.size - 1) / world.size
    # A ring sums gradients in two turns; with shards, weights are gathered twice and gradients scattered once.
    world.bytes_per_step["gradients"] = round((3 if config.fsdp else 2) * sent)
    if not config.fsdp:
        # With find_unused_parameters DDP does not rebuild its buckets after the first step: they would be summed in
        # another order, and a resumed run would differ in its last bits.
        return DistributedDataParallel(model, find_unused_parameters=True)
    # As one unit: a block would be gathered at each call, and ranks do not call theirs equally often.
    fully_shard(model)
    return model


@contextlib.contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Do not exchange gradients between ranks inside, as for all but the last batch of a step; afterwards do again."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
        return
    with model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext():
        yield


def full_tensor(value: Tensor) -> Tensor:
    """Return all of a tensor that may be sharded; every rank must call it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local_shards(values: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """Return the parts of sharded tensors that this rank holds; rank 0 returns tensors that are not sharded too."""
    parts = {name: value.to_local() if isinstance(value, DTensor) else value for name, value in values.items()}
    return {name: part for name, part in parts.items() if world.is_main or isinstance(values[name], DTensor)}


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """Return a tensor that every rank holds in full, sharded as `like` is and on its device."""
    value = value.to(like.device)
    if not isinstance(like, DTensor):
        return value
    size = -(-len(value) // like.device_mesh.size())
    shard = value[size * like.device_mesh.get_local_rank() :][:size].clone()
    return DTensor.from_local(
        shard, like.device_mesh, like.placements, run_check=False, shape=value.shape, stride=value.stride()
    )
