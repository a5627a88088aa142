"""Presence on a reference tree: the branches and 8-mers that a sample has, and UniFrac predicted
from them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from aam.data.placement import ReferenceTree
from aam.data.tokens import count_sketch
from aam.device.precision import full_precision_product
from aam.device.shapes import Float, Int64

# Length of branch that each 8-mer counts as, in substitutions per site (docs/decisions.md has
# others).
WORD_LENGTH = 0.002

# Width to which presence is sketched before it is read into the sample vectors.
SKETCH = 4096

# Standard deviation of what presence adds to the sample vectors, where that of the composition is
# 1.
READ = 1.0


class BranchPresence(nn.Module):
    """Which branches of a reference tree lie above the ASVs of a sample, and which 8-mers these
    hold.

    A sample has a branch or word or not, however many of its ASVs show it, as UniFrac asks of a
    branch. Nothing is learned of them: branches weigh their length, words `WORD_LENGTH`.
    """

    root_weight: Tensor
    place: Tensor
    sign: Tensor

    def __init__(self, width: int, reference: ReferenceTree) -> None:
        super().__init__()
        branches, features = torch.from_numpy(reference.length), reference.features
        words = torch.full((features - len(branches),), WORD_LENGTH)
        self.readout = nn.Linear(SKETCH, width)
        # It centers the sample vectors and is not learned, as in the sample encoder.
        self.readout.bias.requires_grad_(False)
        place, sign = count_sketch(features, SKETCH)
        self.register_buffer("root_weight", torch.cat([branches, words]).sqrt(), persistent=False)
        self.register_buffer("place", place, persistent=False)
        self.register_buffer("sign", sign, persistent=False)

    def forward(
        self, features: Int64[Tensor, "U P"], asv: Int64[Tensor, "B S"], sizes: tuple[int, ...]
    ) -> Float[Tensor, "B W"]:
        """Return the presence of each branch and word in each sample, times the root of its weight.

        Parameters
        ----------
        features : int64 [U, P]
            Those of the distinct ASVs (`ReferenceTree.place`).
        asv : int64 [B, S]
            The ASVs of each sample.
        sizes : tuple of int
            How many they are; the other slots are padding.
        """
        width = len(self.root_weight)
        present = torch.zeros(
            len(asv), width + 1, dtype=self.root_weight.dtype, device=features.device
        )
        for row, size in enumerate(sizes):
            present[row, features[asv[row, :size]].flatten()] = 1.0
        return present[:, :-1] * self.root_weight

    def _sketch(self, present: Float[Tensor, "B W"]) -> Float[Tensor, "B H"]:
        return present.new_zeros(len(present), SKETCH).index_add(1, self.place, present * self.sign)

    def read(self, present: Float[Tensor, "B W"]) -> Float[Tensor, "B D"]:
        """Return what presence adds to the sample vectors."""
        return self.readout(self._sketch(present))  # type: ignore[no-any-return]

    @torch.no_grad()
    def standardize(self, present: Float[Tensor, "B W"]) -> None:
        """Read the principal components of a first batch, scaled so that the sample vectors vary by
        `READ`.
        """
        sketch, width = self._sketch(present).double(), len(self.readout.bias)
        mean = sketch.mean(dim=0)
        axes = torch.linalg.svd(sketch - mean, full_matrices=False)[2][:width]
        spread = ((sketch - mean) @ axes.T).var(dim=0).sum().div(width).sqrt().clamp_min(
            1e-6
        ) / READ
        self.readout.weight.zero_()
        self.readout.weight[: len(axes)] = (axes / spread).to(self.readout.weight)
        self.readout.bias.copy_(-(self.readout.weight @ mean.to(self.readout.weight)))


class BranchDistanceHead(nn.Module):
    """Predicted UniFrac from presence on a reference tree and sample vectors: a map of their
    Tanimoto distance.

    UniFrac is one minus the length of the shared branches over that of all branches. The Tanimoto
    distance ``1 - <u, v> / (|u|^2 + |v|^2 - <u, v>)`` (Tanimoto 1958) of presence times the root of
    the length is just that on the reference tree, with 8-mers as further branches. With t that
    distance, a power p > 0 and a shift b that are learned, the prediction is ``sigmoid(p logit(t) +
    b)``, at first t itself, for metrics that end at 1, and ``softplus(p logit(t) + b)`` for others.
    """

    def __init__(self, width: int, bounded: bool) -> None:
        super().__init__()
        self.bounded = bounded
        self.project = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.project.weight, std=0.01 / math.sqrt(width))
        self.log_power = nn.Parameter(torch.zeros(1))
        self.shift = nn.Parameter(torch.zeros(1))

    def vectors(
        self, samples: Float[Tensor, "B D"], present: Float[Tensor, "B W"] | None
    ) -> Float[Tensor, "B C"]:
        """Return the vectors whose Tanimoto distances are predicted: presence and, beside it,
        projected samples.
        """
        if present is None:
            raise ValueError("nothing is known of the branches of the samples")
        return torch.cat([present, self.project(samples).to(present.dtype)], dim=1)

    @staticmethod
    def _tanimoto(
        rows: Float[Tensor, "R C"], columns: Float[Tensor, "all_R C"]
    ) -> Float[Tensor, "R all_R"]:
        # In full precision: near samples differ in few of their branches.
        shared = full_precision_product(rows, columns)
        rows, columns = rows.to(shared.dtype), columns.to(shared.dtype)
        total = rows.square().sum(dim=1)[:, None] + columns.square().sum(dim=1)
        return ((total - 2 * shared) / (total - shared).clamp_min(1e-6)).clamp(1e-4, 1 - 1e-4)

    @torch.no_grad()
    def standardize(self, vectors: Float[Tensor, "B C"], mean: float) -> None:
        """Shift the map of a metric without a bound so that predictions center on `mean`; others
        start with t.
        """
        if not self.bounded:
            wanted = math.log(math.expm1(max(mean, 0.01)))
            self.shift.copy_(wanted - self._tanimoto(vectors, vectors).logit().median())

    def forward(
        self, rows: Float[Tensor, "R C"], columns: Float[Tensor, "all_R C"]
    ) -> Float[Tensor, "R all_R"]:
        """Return distances ``[R, C]`` between vectors of `vectors`."""
        x = self.log_power.exp() * self._tanimoto(rows, columns).logit() + self.shift
        return x.sigmoid() if self.bounded else softplus(x)
