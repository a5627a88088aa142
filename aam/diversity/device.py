"""UniFrac of a batch on a device, by operations of constant shape that wait for no host.

Legend for shapes: B samples, T slots of features in all samples, F features, E branches.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from aam.diversity.unifrac import UnifracOptions
from aam.io.phylogeny import Ints, Phylogeny


class TreeOnDevice:
    """The branches above each feature of a study, for distances between samples of its batches.

    Parameters
    ----------
    phylogeny : Phylogeny
    tips : int64 [F]
        Tip of each feature; features at -1 are left out.
    options : UnifracOptions
        With `double` distances are computed in float64, else in float32.
    device : torch.device
    """

    def __init__(
        self, phylogeny: Phylogeny, tips: Ints, options: UnifracOptions, device: torch.device
    ) -> None:
        self.options, branches = options, len(phylogeny.parent)
        length = np.nan_to_num(np.append(phylogeny.length, 0.0))
        if options.root_length == "exclude":
            length[branches - 1] = 0.0
        node = np.where(tips >= 0, phylogeny.tip_nodes[np.maximum(tips, 0)], branches)
        parent = np.append(np.where(phylogeny.parent < 0, branches, phylogeny.parent), branches)
        above = []
        # The branch `branches` is above nothing, and is its own parent.
        while (node < branches).any():
            above.append(node)
            node = parent[node]
        self.above = torch.from_numpy(np.stack(above, axis=1)).to(device)
        real = torch.float64 if options.double else torch.float32
        self.length = torch.from_numpy(length).to(device, real)

    def distances(self, feature: Tensor, row: Tensor, counts: Tensor, samples: int) -> Tensor:
        """Return the distances ``[B, B]`` between samples.

        Parameters
        ----------
        feature, row : int64 [T]
            The feature of each slot, and the sample that it belongs to.
        counts : float [T]
            Rarefied reads; 0 is padding.
        samples : int
            Number of samples B.
        """
        branches = self.length.shape[0]
        place = (row[:, None] * branches + self.above[feature]).flatten()
        values = counts.to(self.length)[:, None].expand(-1, self.above.shape[1]).flatten()
        reads = self.length.new_zeros(samples * branches).index_add(0, place, values)
        reads = reads.view(samples, branches)
        reads = torch.cat([reads[:, :-1], torch.zeros_like(reads[:, :1])], dim=1)
        metric = self.options.metric
        if metric == "unifrac":
            apart, whole = self._unweighted((reads > 0).to(reads))
        else:
            # A row of the tree's root holds all reads of a sample.
            shares = reads / reads.amax(dim=1, keepdim=True).clamp_min(1)
            is_plain = metric != "generalized" or self.options.alpha == 1
            apart, whole = self._weighted(shares) if is_plain else self._generalized(shares)
        result = apart if metric == "weighted" else torch.where(whole > 0, apart / whole, 0.0)
        upper = result.clamp_min(0).triu(1)
        return upper + upper.T

    def _unweighted(self, present: Tensor) -> tuple[Tensor, Tensor]:
        height = present @ self.length
        shared = (present * self.length) @ present.T
        union = height[:, None] + height - shared
        return union - shared, union

    def _weighted(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        height = shares @ self.length
        apart = torch.stack([(shares - mine).abs() @ self.length for mine in shares])
        return apart, height[:, None] + height

    def _generalized(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        apart, whole = [], []
        for mine in shares:
            both = shares + mine
            weight = torch.where(both > 0, both, 1.0).pow(self.options.alpha)
            weight = torch.where(both > 0, weight, 0.0)
            apart.append((weight * (shares - mine).abs() / both.clamp_min(1e-30)) @ self.length)
            whole.append(weight @ self.length)
        return torch.stack(apart), torch.stack(whole)
