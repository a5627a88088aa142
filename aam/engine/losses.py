"""Losses as sums over counts, which add up over batches and ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aam.runtime.distributed import World

Terms = dict[str, tuple[Tensor, Tensor]]

# Smallest count that a mean is divided by: weights of classes may add up to less than 1.
LEAST = 1e-6


def sum_terms(parts: Sequence[Terms]) -> Terms:
    """The terms of several batches as those of one, detached."""
    names = dict.fromkeys(name for part in parts for name in part)
    every = {name: [part[name] for part in parts if name in part] for name in names}
    return {
        name: (torch.stack([total.detach() for total, _ in pairs]).sum(), torch.stack([c for _, c in pairs]).sum())
        for name, pairs in every.items()
    }


def total_loss(terms: Terms, weights: dict[str, float], counts: dict[str, Tensor] | None = None) -> Tensor:
    """Weighted sum of the mean losses; a term that counts nothing adds nothing.

    With `counts`, those of all batches of a step, it is this batch's share: the shares add up to the loss of the
    batches as one.
    """
    means = []
    for name, (total, own) in terms.items():
        count = own if counts is None else counts.get(name, own)
        means.append(weights[name.rstrip("0123456789")] * total / count.clamp_min(LEAST))
    return torch.stack(means).sum()


class RunningMeans:
    """Running means of loss terms, kept on the device until they are read."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}

    def add(self, terms: Terms, broken: Tensor | None = None) -> None:
        """Take the terms of one batch, unless it is `broken`."""
        for name, (total, count) in terms.items():
            if broken is not None:
                total, count = total.masked_fill(broken, 0), count.masked_fill(broken, 0)
            self.sums[name] = self.sums.get(name, 0) + total.double()
            self.counts[name] = self.counts.get(name, 0) + count

    def tensors(self) -> dict[str, Tensor]:
        """All that it holds, by name."""
        pairs = {"sum": self.sums, "count": self.counts}
        return {f"{kind}.{name}": value for kind, values in pairs.items() for name, value in values.items()}

    @classmethod
    def of(cls, tensors: dict[str, Tensor], device: torch.device) -> RunningMeans:
        """Those that gave `tensors`."""
        means = cls()
        for name, value in tensors.items():
            kind, _, term = name.partition(".")
            (means.sums if kind == "sum" else means.counts)[term] = value.to(device)
        return means

    def summed(self, names: Sequence[str], world: World) -> RunningMeans:
        """Those of all ranks together, of losses called `names`; every rank must ask."""
        if world.size == 1:
            return self
        pairs = [(self.sums.get(name, 0.0), self.counts.get(name, 0.0)) for name in names]
        values = world.all_reduce_sum(torch.tensor(pairs, dtype=torch.float64))
        means = RunningMeans()
        means.sums, means.counts = (
            {name: value for name, value, count in zip(names, column, values[:, 1], strict=True) if count > 0}
            for column in values.T
        )
        return means

    def read(self, weights: dict[str, float]) -> dict[str, float]:
        """Mean of each term and, as ``loss``, their weighted sum."""
        counted = [name for name in sorted(self.sums) if self.counts[name] > 0]
        means = {name: float(self.sums[name] / self.counts[name].clamp_min(LEAST)) for name in counted}
        loss = sum((weights[name.rstrip("0123456789")] * value for name, value in means.items()), 0.0)
        return {"loss": loss, **means}
