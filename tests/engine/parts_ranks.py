"""One of several processes for test_parts.py: ``parts_ranks.py SIZE FILE``.

Each rank holds a share of the rows of a layer whose outputs are added up.
"""

from __future__ import annotations

import sys

import safetensors.torch
import torch
from conftest import Doubling, options
from torch import nn

from aam.device.distributed import SINGLE, World, end_rank, process_group
from aam.device.sharding import full_tensor, local_rows, shard_rows
from aam.engine.options import RunConfig
from aam.engine.trainer import Trainer


class Rows(nn.Module):
    """Three rows; the output is the sum of what each contributes, plus a bias that is not cut."""

    def __init__(self, world: World) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(0)
        self.read = nn.Parameter(torch.randn(5, 3, generator=random))
        self.write = nn.Parameter(0.1 * torch.randn(5, 3, generator=random))
        self.bias = nn.Parameter(torch.zeros(3))
        self.register_buffer("count", torch.zeros(5))
        self.world = world

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = (x @ local_rows(self.read).T).tanh() @ local_rows(self.write)
        return self.world.sum_parts(part) + full_tensor(self.bias)


class SharedRows(Doubling):
    """A layer whose rows the ranks share learns to double."""

    splits_batches = False

    def __init__(self, world: World) -> None:
        super().__init__()
        self.model = Rows(world)
        shard_rows(self.model, world)


def main(size: int, file: str) -> None:
    torch.set_num_threads(1)
    with process_group(RunConfig(distributed=size > 1)) as world:
        task = SharedRows(world if size > 1 else SINGLE)
        states = []

        def after_step(trainer: Trainer) -> None:
            if trainer.progress.step == 10:
                states.append({name: full_tensor(v).clone() for name, v in trainer.state().tensors.items()})

        runtime = RunConfig(distributed=size > 1)
        trainer = Trainer(task, options(ema_decay=0.5, max_grad_norm=0.3), runtime, world, after_step=after_step)
        trainer.fit()
        tensors = {f"state.{name}": value for name, value in states[0].items() if not name.startswith("random")}
        if world.is_main:
            last = {f"last.{n}": v for n, v in trainer.last_weights.items()}
            safetensors.torch.save_file({**tensors, **last}, file)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
    end_rank(0)
