"""Ranks of a run, their collective operations, and a link between two ranks that each do a part of the work."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn


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


class _SumOfRanks(torch.autograd.Function):
    """Sum over ranks that compute the same from it, so that the gradient of each rank's part is that of the sum."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


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

    def sum_parts(self, part: Tensor) -> Tensor:
        """Return the sum of the ranks' parts, with gradient, where all ranks compute the same from the sum."""
        return part if self.size == 1 else _SumOfRanks.apply(part)  # type: ignore[no-untyped-call]

    def largest_values(self, values: Tensor) -> Tensor:
        """Return the largest of the ranks' tensors of one shape, element by element, without gradient."""
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


@dataclass(eq=False)
class Link:
    """Sends tensors to the other of two ranks and receives its own, in order and asynchronously."""

    world: World
    sent: deque[tuple[Any, Tensor]] = field(default_factory=deque)
    expected: deque[tuple[Any, Tensor]] = field(default_factory=deque)

    def send(self, value: Tensor, kind: str = "hidden states") -> None:
        """Start to send `value` to the other rank, which must expect one of its shape; `kind` names it in metrics."""
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
        """Wait until the other rank has received everything that was sent but the last `ahead` tensors."""
        while len(self.sent) > ahead:
            work, _ = self.sent.popleft()
            work.wait()
