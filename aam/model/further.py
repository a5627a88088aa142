"""Heads of further pretraining targets: distances between samples, Faith PD, taxa of ASVs."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from aam.data.batch import Batch
from aam.device.shapes import Float
from aam.model.heads import DistanceHead, DiversityHead, FurtherConfig, Readout

Gather = Callable[[Tensor, tuple[int, ...]], Tensor]

DIVERSITY, TAXONOMY = "faith-pd", "taxonomy"


class TaxaHead(Readout):
    """Taxa of ASVs from their vectors: logits of the classes of each rank."""

    def __init__(self, width: int, config: FurtherConfig) -> None:
        sizes = tuple(map(len, config.taxa))
        super().__init__(width, sum(sizes))
        self.sizes, self.entropies = sizes, config.entropies

    def by_rank(self, logits: Float[Tensor, "U classes"]) -> tuple[Float[Tensor, "U _"], ...]:
        """Return the logits ``[U, classes]`` of all ranks as those of each."""
        return torch.split(logits, list(self.sizes), dim=1)

    def probabilities(self, asvs: Float[Tensor, "U D"]) -> list[Float[Tensor, "U _"]]:
        """Return the probability of each class of each rank, from the vectors ``[U, D]`` of ASVs."""
        return [torch.softmax(logits.float(), dim=1) for logits in self.by_rank(self(asvs))]


class FurtherHeads(nn.ModuleDict):
    """The heads of further targets by name.

    Distances are maps like that of UniFrac: all read the same sample vectors, each through a linear map of its own.
    """

    def __init__(self, width: int, config: FurtherConfig) -> None:
        super().__init__()
        self.scales = dict(zip(config.names, config.scales, strict=True))
        for name, scale in self.scales.items():
            if name == DIVERSITY:
                self[name] = DiversityHead(width, scale)
            elif name == TAXONOMY:
                self[name] = TaxaHead(width, config)
            else:
                self[name] = DistanceHead(width, bounded=True)
            if isinstance(head := self[name], Readout):
                # From the mean, or from classes that are alike: sample vectors are long, and so were its first errors.
                nn.init.zeros_(head.linear.weight)

    @property
    def reads_samples(self) -> bool:
        """Whether any of them reads sample vectors."""
        return any(name != TAXONOMY for name in self)

    @torch.no_grad()
    def standardize(self, samples: Float[Tensor, "B D"], names: Collection[str]) -> None:
        """Scale the maps of the distances among `names` so that predictions of these samples center on the mean."""
        for name, head in self.items():
            if isinstance(head, DistanceHead) and name in names:
                head.standardize(samples, self.scales[name][0])

    def forward(
        self, samples: Float[Tensor, "B D"], asvs: Float[Tensor, "all_U D"], batch: Batch, gather: Gather
    ) -> dict[str, Tensor]:
        """Return what is predicted of the targets that the batch has.

        Parameters
        ----------
        samples : float [B, D]
        asvs : float [all_U, D]
            Vectors of the distinct ASVs of all ranks.
        batch : Batch
        gather : callable
            Puts the rows of other ranks beside those of this one.

        Returns
        -------
        dict of str to tensor
            Distances [B, all_B], Faith PD [B], logits of taxa [U, classes] for the ASVs that this rank encodes.
        """
        predicted: dict[str, Tensor] = {}
        for name, head in self.items():
            if name not in batch.auxiliary:
                continue
            if isinstance(head, DistanceHead):
                vectors = head.vectors(samples)
                predicted[name] = head(vectors, gather(vectors, batch.ranks.samples))
            else:
                predicted[name] = head(asvs[batch.ranks.own_asvs] if isinstance(head, TaxaHead) else samples)
        return predicted
