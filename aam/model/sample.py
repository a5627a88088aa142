"""The sample encoder: a set of ASVs and their counts to one vector per sample."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.config import ModelConfig
from aam.device.shapes import Bool, Float, Int64
from aam.model.layers import AttentionPool, SequenceBins, Stack, standardize

# Features whose presence is read, per width; how steep and how rare they are at the start.
FEATURES = 4
STEEP = 4.0
RARE_BIAS = -6.0

# Standard deviations of what attention and presence add, where that of the composition is 1.
ATTENDED = 0.2
PRESENT = 0.5


class Slots(NamedTuple):
    """The ASVs of samples in one flat buffer of T slots.

    Attributes
    ----------
    asv, row : int64 [T]
        Which of the distinct ASVs each slot is, and which of the samples it belongs to.
    counts : float32 [T]
        Rarefied reads; 0 is padding.
    bins : SequenceBins
    """

    asv: Int64[Tensor, " T"]
    row: Int64[Tensor, " T"]
    counts: Float[Tensor, " T"]
    bins: SequenceBins


class CountEmbedding(nn.Module):
    """Embeds reads and relative abundance and adds them to the ASV vector.

    A masked count (true in `hidden`) is replaced by a learned vector, so that the count head cannot
    read its own answer.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.depth = depth
        # A number of the host: a tensor would be copied to the device in each step.
        self.log_depth = float(torch.log1p(torch.tensor(float(depth), device="cpu")))
        self.widen = nn.Linear(3, width)
        self.narrow = nn.Linear(width, width)
        self.hidden = nn.Parameter(0.02 * torch.randn(width))

    def forward(
        self,
        vectors: Float[Tensor, "*slots D"],
        counts: Float[Tensor, "*slots"],
        hidden: Bool[Tensor, "*slots"] | None,
    ) -> Float[Tensor, "*slots D"]:
        """Add the embedded `counts` ``[T]`` to `vectors` ``[T, D]``."""
        share = counts / self.depth
        log_count = torch.log1p(counts) / self.log_depth
        features = torch.stack([share, share.sqrt(), log_count], dim=-1).to(vectors.dtype)
        inner = F.gelu(self.widen(features))
        if hidden is not None:
            inner = torch.where(hidden.unsqueeze(-1), self.hidden.to(inner.dtype), inner)
        return vectors + self.narrow(inner)  # type: ignore[no-any-return]


class CompositionAndPresence(nn.Module):
    """The part of a sample vector without attention: composition, and which features the sample has
    at all.

    The composition is the sum of its ASV vectors, weighted by the root of relative abundance: even
    at random initialization a linear model of it is a good baseline. Presence is what UniFrac asks
    of branches: an ASV v shows feature k at the rate r = softplus(w_k v + b_k), and the sample has
    it to the extent 1 - exp(-sum of r over its ASVs), once however many show it.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.composition = nn.Linear(width, width)
        self.features = nn.Linear(width, FEATURES * width)
        self.presence = nn.Linear(FEATURES * width, width)
        with torch.no_grad():
            self.features.weight.mul_(STEEP)
            self.features.bias.fill_(RARE_BIAS)

    def _sums(
        self, asvs: Float[Tensor, "U D"], slots: Slots
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B F"]]:
        """Return the composition of each sample, and the extent to which it has each of F
        features.
        """
        keep, counts = slots.bins.keep, slots.counts
        weights = counts.sqrt()
        total = torch.cat([view.square().sum(dim=1) for view in slots.bins.views(weights)]).sqrt()
        # Sizes by shape, not by len(), which would fix them in an exported program.
        samples, number = total.shape[0], asvs.shape[0]
        spread = torch.zeros(2 * samples * number, dtype=asvs.dtype, device=asvs.device)
        place = slots.row * number + slots.asv
        values = torch.cat([weights / total[slots.row], keep.to(weights.dtype)]).to(asvs.dtype)
        spread = spread.index_add(0, torch.cat([place, place + samples * number]), values)
        spread = spread.view(2, samples, number)
        return spread[0] @ asvs, -torch.expm1(-(spread[1] @ F.softplus(self.features(asvs))))

    @torch.no_grad()
    def standardize(self, asvs: Float[Tensor, "U D"], slots: Slots) -> None:
        """Center and scale both parts on a first batch; the composition is the larger one."""
        composition, presence = self._sums(asvs, slots)
        standardize(self.composition, self.composition(composition))
        standardize(self.presence, self.presence(presence), PRESENT)

    def forward(self, asvs: Float[Tensor, "U D"], slots: Slots) -> Float[Tensor, "B D"]:
        """Return sample vectors ``[B, D]`` from the vectors of distinct ASVs ``[U, D]``."""
        composition, presence = self._sums(asvs, slots)
        return self.composition(composition) + self.presence(presence)  # type: ignore[no-any-return]


class SampleEncoder(nn.Module):
    """Attends over a sample's ASVs and pools them to ``[B, D]``, a correction of its `contents`."""

    def __init__(self, config: ModelConfig, depth: int) -> None:
        super().__init__()
        width = config.embedding_dim
        self.count = CountEmbedding(width, depth)
        self.stack = Stack(width, config.attention_heads, config.attention_layers, config.dropout)
        self.pool = AttentionPool(width, config.attention_heads)
        self.contents = CompositionAndPresence(width)
        # They center the sample vectors and are not learned: distances do not see them, targets
        # have a bias of their own, and what rounding leaves of their gradient Adam would scale up.
        for layer in (self.pool.out, self.contents.composition, self.contents.presence):
            layer.bias.requires_grad_(False)

    @torch.no_grad()
    def standardize(self, asvs: Float[Tensor, "U D"], slots: Slots) -> None:
        """Center and scale the parts of the sample vectors of a first batch; the contents are the
        larger one.
        """
        self.contents.standardize(asvs, slots)
        standardize(self.pool.out, self(asvs, slots)[1], ATTENDED)

    def forward(
        self, asvs: Float[Tensor, "U D"], slots: Slots, hidden: Bool[Tensor, " T"] | None = None
    ) -> tuple[Float[Tensor, "T D"], Float[Tensor, "B D"]]:
        """Return ASVs in context ``[T, D]`` and what attention adds to the sample vectors, ``[B,
        D]``.

        Parameters
        ----------
        asvs : float [U, D]
            Vectors of the distinct ASVs.
        slots : Slots
        hidden : bool [T], optional
            Slots whose count is withheld.
        """
        x = self.count(F.embedding(slots.asv, asvs), slots.counts, hidden)
        x = self.stack(x, slots.bins)
        return x, self.pool(x, slots.bins)

    def attention(self, asvs: Float[Tensor, "U D"], slots: Slots) -> list[Float[Tensor, "B S"]]:
        """Return the share of each slot in the pooled vector, bin by bin: the mean weights of
        the heads, of sum 1.
        """
        context, _ = self(asvs, slots)
        parts = zip(slots.bins.views(context), slots.bins.views(slots.bins.keep), strict=True)
        return [self.pool.weights(view, keep).mean(dim=-1) for view, keep in parts]
