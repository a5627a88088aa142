"""The link between two ranks that each do a part of the work: tensors sent in order, asynchronously."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import torch.distributed as dist
from torch import Tensor

from aam.device.distributed import World


@dataclasses.dataclass(eq=False)
class Link:
    """Sends tensors to the other of two ranks and receives its own, in order and asynchronously."""

    world: World
    sent: deque[tuple[Any, Tensor]] = dataclasses.field(default_factory=deque)
    expected: deque[tuple[Any, Tensor]] = dataclasses.field(default_factory=deque)

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
