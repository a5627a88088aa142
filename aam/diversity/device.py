"""UniFrac of a batch on a GPU, by operations of constant shape that wait for no host.

Legend for shapes: B samples, T slots of features in all samples, F features, E branches, H the most
branches above a feature.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from aam.diversity.branches import branches_above, make_layout
from aam.diversity.unifrac import UnifracOptions
from aam.io.phylogeny import Ints, Phylogeny

# Most numbers that the branches above all features, and the reads of a batch below all branches,
# may take: 0.5 GB. The loader computes the distances of larger trees.
MOST_NUMBERS = 1 << 26


class TreeOnDevice:
    """The branches above each feature of a study, for distances between samples of its batches.

    Distances are computed in float64: reads add up without rounding, in any order.

    Parameters
    ----------
    phylogeny : Phylogeny
    tips : int64 [F]
        Tip of each feature; features at -1 are left out.
    options : UnifracOptions
    device : torch.device
    """

    def __init__(
        self, phylogeny: Phylogeny, tips: Ints, options: UnifracOptions, device: torch.device
    ) -> None:
        self.options = options
        on_tree = tips >= 0
        present = np.unique(tips[on_tree])
        branches = branches_above(phylogeny, present, options.root_length)
        number = len(branches.length)
        of_tip = make_layout(branches, np.zeros(number, bool)).rare.tocsr()
        depth = np.diff(of_tip.indptr)
        slot = np.arange(of_tip.nnz) - np.repeat(of_tip.indptr[:-1], depth)
        # The branch `number` has no length and stands above nothing.
        above_tip = np.full((len(present) + 1, int(depth.max(initial=1))), number)
        above_tip[np.repeat(np.arange(len(present)), depth), slot] = of_tip.indices
        above = above_tip[np.where(on_tree, np.searchsorted(present, tips), len(present))]
        self.above = torch.from_numpy(above).to(device)
        self.on_tree = torch.from_numpy(on_tree.astype(np.float64)).to(device)
        self.length = torch.from_numpy(np.append(branches.length, 0.0)).to(device)

    def fits(self, samples: int) -> bool:
        """Whether batches of this number of samples need little memory."""
        return max(self.above.numel(), samples * len(self.length)) <= MOST_NUMBERS

    @torch.no_grad()
    def distances(self, feature: Tensor, row: Tensor, counts: Tensor, samples: int) -> Tensor:
        """Return the distances ``[B, B]`` between samples, as `batch_unifrac` does.

        Parameters
        ----------
        feature, row : int64 [T]
            The feature of each slot, and the sample that it belongs to.
        counts : float [T]
            Rarefied reads; 0 is padding.
        samples : int
            Number of samples B.
        """
        branches, reads = len(self.length), counts.to(self.length)
        place = (row[:, None] * branches + self.above[feature]).flatten()
        values = reads[:, None].expand(-1, self.above.shape[1]).flatten()
        below = self.length.new_zeros(samples * branches).index_add(0, place, values)
        below = below.view(samples, branches)
        metric = self.options.metric
        if metric == "unifrac":
            apart, whole = self._unweighted((below > 0).to(below))
        else:
            total = self.length.new_zeros(samples)
            total = total.index_add(0, row, reads * self.on_tree[feature])
            shares = below / total.clamp_min(1)[:, None]
            is_plain = metric != "generalized" or self.options.alpha == 1
            apart, whole = self._weighted(shares) if is_plain else self._generalized(shares)
        result = apart if metric == "weighted" else torch.where(whole > 0, apart / whole, 0.0)
        return result.clamp_min(0)

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
