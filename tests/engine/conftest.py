"""A task of ten lines that knows no microbes, on which the engine is tested."""

from __future__ import annotations

import torch

from aam.engine.task import Metrics, Task, Terms
from aam.options import TrainingOptions


class Doubling(Task):
    """A two-layer model learns to double random numbers."""

    def __init__(self, seed: int = 0, size: int = 16) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        )
        self.batches_per_epoch, self.loss_names, self.size = 5, ("error",), size

    def batches(self, epoch: int, skip: int):
        for number in range(skip, self.batches_per_epoch):
            seed = torch.Generator().manual_seed(100 * epoch + number)
            yield torch.randn(self.size, 3, generator=seed)

    def losses(self, network: torch.nn.Module, batch: torch.Tensor) -> Terms:
        return {"error": ((network(batch) - 2 * batch).square().sum(), torch.tensor(batch.numel()))}

    def validate(self, network: torch.nn.Module) -> Metrics:
        batch, *_ = self.batches(999, 0)
        return {"val_loss": float(self.losses(network, batch)["error"][0])}


def options(**changes) -> TrainingOptions:
    return TrainingOptions(**{"epochs": 6, "lr": 0.02, "patience": 0, **changes})


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
