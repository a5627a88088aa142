"""The processes of a run: what they exchange, and the wrappers put around a model."""

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

    `bytes_sent` counts the bytes that this rank gave to others, by what they were, and `bytes_per_step` those that
    any step takes; `work` is its arithmetic of each batch.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    bytes_sent: Counter[str] = field(default_factory=Counter, compare=False)
    bytes_per_step: Counter[str] = field(default_factory=Counter, compare=False)
    work: list[int] = field(default_factory=list, compare=False)

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes and logs."""
        return self.rank == 0

    def all_gather_rows(self, own: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Rows ``[n, ...]`` of all ranks, `sizes` of each, with gradient; one's own where all have the same."""
        if len(sizes) < 2:
            return own
        self.bytes_sent["vectors"] += own.nbytes * (2 if own.requires_grad else 1)
        return _Gather.apply(own, sizes, self.rank)  # type: ignore[no-any-return, no-untyped-call]

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The sum over ranks of tensors of one shape."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def all_reduce_max(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        if self.size == 1:
            return number
        largest = torch.tensor(number)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        return bool(self.all_reduce_max(int(flag)))

    def all_gather_arrays(self, own: npt.NDArray[Any], what: str = "other") -> list[npt.NDArray[Any]]:
        """The arrays ``[n, ...]`` of all ranks, alike but for n."""
        if self.size == 1:
            return [own]
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([len(own)]))
        padded = np.zeros((max(int(size) for size in sizes), *own.shape[1:]), own.dtype)
        padded[: len(own)] = own
        parts = [torch.from_numpy(np.zeros_like(padded)) for _ in sizes]
        dist.all_gather(parts, torch.from_numpy(padded))
        self.bytes_sent[what] += padded.nbytes
        return [part.numpy()[: int(size)] for part, size in zip(parts, sizes, strict=True)]

    def broadcast(self, data: bytes) -> bytes:
        """What the leading rank says."""
        if self.size == 1:
            return data
        length = torch.tensor([len(data)])
        dist.broadcast(length, 0)
        said = torch.from_numpy(
            np.frombuffer(data, np.uint8).copy() if self.is_main else np.zeros(int(length), np.uint8)
        )
        dist.broadcast(said, 0)
        return said.numpy().tobytes()

    def communication_metrics(self) -> dict[str, float]:
        """Since the last time: bytes that this rank sent per batch, by kind, and the ranks' arithmetic, most over mean.

        The latter is the mean over batches, as ranks wait for each other in each; ``gradients`` are bytes per step.
        """
        done, sent = np.array(self.work, np.float64), dict(self.bytes_sent)
        self.work.clear()
        if self.size == 1 or not len(done):
            return {}
        every = np.stack(self.all_gather_arrays(done))
        self.bytes_sent.clear()
        found = {f"sent_{kind}": count / len(done) for kind, count in sent.items()}
        found |= {f"sent_{kind}": float(count) for kind, count in self.bytes_per_step.items()}
        return {**found, "imbalance": float((every.max(axis=0) / every.mean(axis=0)).mean())}

    def barrier(self) -> None:
        """Until all ranks are here."""
        self.any(False)


SINGLE = World()


def parallelize(model: nn.Module, config: ProcessConfig, world: World) -> nn.Module:
    """What trains `model` on all ranks: itself alone, sharded in place (FSDP2), or DDP around it.

    Both average gradients over ranks; the weights are those of the leading rank.
    """
    if world.size == 1:
        return model
    for value in model.state_dict().values():
        dist.broadcast(value, 0)
    learned = sum(p.nbytes for p in model.parameters() if p.requires_grad) * (world.size - 1) / world.size
    # A ring sums gradients in two turns; with shards, weights are gathered twice and gradients shared out.
    world.bytes_per_step["gradients"] = round((3 if config.fsdp else 2) * learned)
    if not config.fsdp:
        # That which looks for unused parameters also keeps its buckets as they are: rebuilt after the first step,
        # they would be summed in another order, and a run that goes on would differ in its last bits.
        return DistributedDataParallel(model, find_unused_parameters=True)
    # As one unit: a block would be gathered each time it is called, and ranks call theirs as often as their samples
    # and ASVs ask for.
    fully_shard(model)
    return model


@contextlib.contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Leave gradients unexchanged in the backward passes inside; only the last batch of a step exchanges them."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
    with model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext():
        yield
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(True)


def full_tensor(value: Tensor) -> Tensor:
    """All of a tensor that may be sharded; every rank must ask."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def local_shards(values: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """This rank's parts of sharded tensors; the others go with the leading rank's."""
    parts = {n: value.to_local() if isinstance(value, DTensor) else value for n, value in values.items()}
    return {n: part for n, part in parts.items() if world.is_main or isinstance(values[n], DTensor)}


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor that every rank has, sharded as `like` is, on its device."""
    value = value.to(like.device)
    if not isinstance(like, DTensor):
        return value
    step = -(-len(value) // like.device_mesh.size())
    own = value[step * like.device_mesh.get_local_rank() :][:step].clone()
    return DTensor.from_local(
        own, like.device_mesh, like.placements, run_check=False, shape=value.shape, stride=value.stride()
    )
