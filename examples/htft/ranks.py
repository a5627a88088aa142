"""The rows of a stage that ranks share, and the sums of what their rows give."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from aam.device.distributed import World


class _SumOfRanks(torch.autograd.Function):
    """Sum over ranks that compute the same from it, so that the gradient of each rank's part is
    that of the sum.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, world: World) -> Tensor:
        return world.all_reduce_sum(part)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def sum_parts(part: Tensor, world: World) -> Tensor:
    """Return the sum of the ranks' parts, with gradient, where all ranks compute the same from the
    sum.
    """
    return part if world.size == 1 else _SumOfRanks.apply(part, world)  # type: ignore[no-untyped-call]


def shard_rows(model: nn.Module, world: World) -> None:
    """Give each rank a share of the rows of every parameter and buffer of `model`, from the weights
    of rank 0.

    The model computes with ``to_local`` what its rows contribute, and `sum_parts` adds the
    contributions up. The engine leaves such a model as it is. Values without rows stay whole.
    """
    if world.size == 1:
        return
    mesh = init_device_mesh(next(model.parameters()).device.type, (world.size,))
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            sharded = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)]))
            module.register_parameter(name, sharded)
        for name, buffer in list(module.named_buffers(recurse=False)):
            module.register_buffer(
                name, distribute_tensor(buffer, mesh, [Shard(0)]) if buffer.ndim else buffer
            )


def local_rows(value: Tensor) -> Tensor:
    """Return the rows of a tensor that this rank holds, with gradient."""
    return value.to_local() if isinstance(value, DTensor) else value


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
