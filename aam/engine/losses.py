"""Losses as sums and counts, which add up over batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from aam.device.distributed import World

Terms = dict[str, tuple[Tensor, Tensor]]

# Smallest count that a mean is divided by: weights of classes may add up to less than 1.
MIN_COUNT = 1e-6


def sum_terms(parts: Sequence[Terms]) -> Terms:
    """Return the terms of several batches as those of one, detached."""
    names = dict.fromkeys(name for part in parts for name in part)
    by_name = {name: [part[name] for part in parts if name in part] for name in names}
    return {
        name: (torch.stack([total.detach() for total, _ in pairs]).sum(), torch.stack([c for _, c in pairs]).sum())
        for name, pairs in by_name.items()
    }


def total_loss(terms: Terms, weights: Mapping[str, float], counts: Mapping[str, Tensor] | None = None) -> Tensor:
    """Return the weighted sum of the mean losses; a term that counts nothing adds nothing.

    With `counts`, those of all batches of a step, it is this batch's share: the shares add up to the loss of the
    batches as one.
    """
    means = []
    for name, (total, count) in terms.items():
        divisor = count if counts is None else counts.get(name, count)
        means.append(weights.get(name, 1.0) * total / divisor.clamp_min(MIN_COUNT))
    return torch.stack(means).sum()


class RunningMeans:
    """Running means of loss terms, kept on the device until they are read."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}

    def add(self, terms: Terms, nonfinite: Tensor | None = None) -> None:
        """Add the terms of one batch, unless it is `nonfinite`."""
        for name, (total, count) in terms.items():
            if nonfinite is not None:
                total, count = total.masked_fill(nonfinite, 0), count.masked_fill(nonfinite, 0)
            self.sums[name] = self.sums.get(name, 0) + total.double()
            self.counts[name] = self.counts.get(name, 0) + count

    def tensors(self) -> dict[str, Tensor]:
        """Return all sums and counts by name, for a checkpoint."""
        pairs = {"sum": self.sums, "count": self.counts}
        return {f"{kind}.{name}": value for kind, values in pairs.items() for name, value in values.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> RunningMeans:
        """Return the means that `tensors` were taken from."""
        means = cls()
        for name, value in tensors.items():
            kind, _, term = name.partition(".")
            (means.sums if kind == "sum" else means.counts)[term] = value.to(device)
        return means

    def all_reduce(self, names: Sequence[str], world: World) -> RunningMeans:
        """Return the means of all ranks together, of losses called `names`; every rank must call it."""
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

    def read(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the mean of each term and, as ``loss``, their weighted sum."""
        names = [name for name in sorted(self.sums) if self.counts[name] > 0]
        means = {name: float(self.sums[name] / self.counts[name].clamp_min(MIN_COUNT)) for name in names}
        return {"loss": sum((weights.get(name, 1.0) * value for name, value in means.items()), 0.0), **means}
