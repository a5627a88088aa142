"""Transformer layers, and the encoders made of them: nucleotides to ASV vectors, ASVs and counts to sample vectors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aam.config import ModelConfig
from aam.data.tokens import N_TOKENS, PAD
from aam.device.attention import masked_softmax, scaled_dot_product_attention
from aam.device.shapes import Bool, Float, Int64, UInt8


class Attention(nn.Module):
    """Multi-head self-attention over ``[batch, length, D]``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # A bias of the keys would change nothing but by rounding, which Adam scales up.
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: Float[Tensor, "batch length D"], mask: Bool[Tensor, "#batch 1 #length length"] | None
    ) -> Float[Tensor, "batch length D"]:
        """Attend; `mask` ``[batch, 1, 1, length]`` is true where a position may be seen.

        With ``length`` in place of the second 1 it says so for each position that looks.
        """
        batch, length, width = x.shape
        projected = self.project(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        attended = scaled_dot_product_attention(query, key, value, mask)
        return self.out(attended.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm transformer block: attention, then a feed-forward layer four times as wide."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_feed = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(
        self, x: Float[Tensor, "batch length D"], mask: Bool[Tensor, "#batch 1 #length length"] | None
    ) -> Float[Tensor, "batch length D"]:
        """Transform ``[batch, length, D]``."""
        x = x + self._drop(self.attention(self.norm_attention(x), mask))
        return x + self._drop(self.narrow(F.gelu(self.widen(self.norm_feed(x)), approximate="tanh")))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Stack(nn.Module):
    """A stack of blocks with a final norm.

    `recompute` (gradient checkpointing) is set from outside: it trades time for memory and changes
    no result.
    """

    def __init__(self, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.recompute = False

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Transform ``[batch, length, D]`` by all blocks, then normalize."""
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(block, x, mask, use_reentrant=False)
            else:
                x = block(x, mask)
        return self.norm(x)  # type: ignore[no-any-return]


class AttentionPool(nn.Module):
    """Weighted mean of a sequence, one learned weighting for each head's share of the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.score = nn.Linear(width, heads, bias=False)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: Float[Tensor, "batch length D"], mask: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch D"]:
        """Pool ``[batch, length, D]`` to ``[batch, D]``; `mask` ``[batch, length]`` is true where kept."""
        batch, length, width = x.shape
        weights = self.weights(x, mask)
        split = x.view(batch, length, self.heads, width // self.heads)
        return self.out((weights.unsqueeze(-1) * split).sum(dim=1).reshape(batch, width))  # type: ignore[no-any-return]

    def weights(
        self, x: Float[Tensor, "batch length D"], mask: Bool[Tensor, "batch length"] | None = None
    ) -> Float[Tensor, "batch length heads"]:
        """Return the weights of each head ``[batch, length, heads]``, whose sum over the length is 1."""
        return masked_softmax(self.score(x), None if mask is None else mask.unsqueeze(-1), dim=1)


@torch.no_grad()
def standardize(layer: nn.Linear, outputs: Tensor, scale: float = 1.0) -> None:
    """Change `layer` so that these of its outputs ``[n, D]`` have mean 0 and standard deviation `scale`."""
    spread = outputs.var(dim=0).mean().sqrt().clamp_min(1e-6) / scale
    layer.bias.sub_(outputs.mean(dim=0)).div_(spread)
    layer.weight.div_(spread)


# --- ASVs ------------------------------------------------------------------------------------------------------------

N_BASES = 4


class AsvEncoder(nn.Module):
    """Embeds uint8 tokens ``[U, L]``, attends along the sequence and pools to ``[U, D]``.

    The stem makes one token of `patch` consecutive bases (a convolution whose kernel equals its
    stride); the nucleotide stem is the patch of one base. The tail patch is padded; patches that
    hold no base are masked.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.embedding_dim
        self.patch = config.patch
        self.max_bp = config.positions
        n_patches = self.patches(config.positions)
        self.stem = nn.Linear(self.patch * N_TOKENS, width, bias=False)
        self.position = nn.Parameter(0.02 * torch.randn(n_patches, width))
        self.stack = Stack(width, config.attention_heads, config.attention_layers, config.dropout)
        self.pool = AttentionPool(width, config.attention_heads)
        self.in_place = nn.Linear(n_patches * width, width)
        self.nucleotide_head = nn.Linear(width, self.patch * N_BASES)

    def forward(
        self, tokens: UInt8[Tensor, "U L"], padded: bool
    ) -> tuple[Float[Tensor, "U P D"], Float[Tensor, "U D"]]:
        """Return patch vectors ``[U, P, D]`` and ASV vectors ``[U, D]`` of `tokens`.

        `padded` says whether any row is shorter than L; without padding no mask is needed.
        """
        patches, keep = self.split_patches(tokens, padded)
        one_hot = F.one_hot(patches.long(), N_TOKENS).to(self.stem.weight.dtype)
        x = self.stem(one_hot.flatten(2)) + self.position[: patches.shape[1]]
        x = self.stack(x, None if keep is None else keep[:, None, None, :])
        return x, self.pool(x, keep) + self._in_place(x, keep)

    def patches(self, length: int) -> int:
        """Return the patches of a sequence of `length` bases."""
        return -(-length // self.patch)

    def split_patches(
        self, tokens: UInt8[Tensor, "U L"], padded: bool
    ) -> tuple[UInt8[Tensor, "U P patch"], Bool[Tensor, "U P"] | None]:
        """Return patches ``[U, P, patch]`` of bases, and which of them hold a base where some do not."""
        patches = F.pad(tokens, (0, -tokens.shape[1] % self.patch), value=PAD).unflatten(1, (-1, self.patch))
        return patches, (patches != PAD).sum(dim=2) > 0 if padded else None

    def _in_place(self, x: Float[Tensor, "U P D"], keep: Bool[Tensor, "U P"] | None) -> Float[Tensor, "U D"]:
        """Return ASV vectors ``[U, D]`` of patch vectors ``[U, P, D]``, each position with weights of its own."""
        if keep is not None:
            x = x * keep.unsqueeze(-1)
        return F.linear(x.flatten(1), self.in_place.weight[:, : x.shape[1:].numel()], self.in_place.bias)

    @torch.no_grad()
    def standardize(self, chunks: Sequence[UInt8[Tensor, "_ L"]], padded: bool) -> None:
        """Center and scale both parts of the ASV vectors of a first batch, whose tokens come in chunks."""
        pooled, in_place = [], []
        for tokens in chunks:
            x, vectors = self(tokens, padded)
            in_place.append(self._in_place(x, self.split_patches(tokens, padded)[1]))
            pooled.append(vectors - in_place[-1])
        standardize(self.pool.out, torch.cat(pooled), 0.5)
        standardize(self.in_place, torch.cat(in_place))

    def nucleotide_logits(self, patches: Float[Tensor, "U P D"], length: int) -> Float[Tensor, "U L 4"]:
        """Return scores of A, C, G, T at each position, ``[U, L, 4]``, from patch vectors ``[U, P, D]``."""
        scores: Tensor = self.nucleotide_head(patches)
        by_base: Tensor = scores.unflatten(2, (self.patch, N_BASES)).flatten(1, 2)
        return by_base[:, :length]


# --- samples ---------------------------------------------------------------------------------------------------------

# Features whose presence is read, per width; how steep and how rare they are at the start.
FEATURES = 4
STEEP = 4.0
RARE = -6.0

# Standard deviations of what attention and presence add, where that of the composition is 1.
ATTENDED = 0.2
PRESENT = 0.5


class CountEmbedding(nn.Module):
    """Embeds reads and relative abundance and joins them to the ASV vector.

    A masked count (true in `hidden`) is replaced by a learned vector, so that the count head cannot
    read its own answer.
    """

    def __init__(self, width: int, depth: int, method: str) -> None:
        super().__init__()
        self.method, self.depth = method, depth
        out = 2 * width if method == "film" else width
        self.widen = nn.Linear(3, width)
        self.narrow = nn.Linear(width, out)
        self.hidden = nn.Parameter(0.02 * torch.randn(width))
        self.join = nn.Linear(2 * width, width) if method == "concat" else None

    def forward(
        self, vectors: Float[Tensor, "B S D"], counts: Float[Tensor, "B S"], hidden: Bool[Tensor, "B S"] | None
    ) -> Float[Tensor, "B S D"]:
        """Join `counts` ``[B, S]`` to `vectors` ``[B, S, D]``."""
        share = counts / self.depth
        log_count = torch.log1p(counts) / torch.log1p(counts.new_tensor(float(self.depth)))
        features = torch.stack([share, share.sqrt(), log_count], dim=-1).to(vectors.dtype)
        inner = F.gelu(self.widen(features))
        if hidden is not None:
            inner = torch.where(hidden.unsqueeze(-1), self.hidden.to(inner.dtype), inner)
        embedded: Tensor = self.narrow(inner)
        if self.method == "film":
            scale, shift = embedded.chunk(2, dim=-1)
            return vectors * (1 + scale) + shift
        if self.join is not None:
            return self.join(torch.cat([vectors, embedded], dim=-1))  # type: ignore[no-any-return]
        return vectors + embedded


class CompositionAndPresence(nn.Module):
    """The part of a sample vector without attention: composition, and which features the sample has at all.

    The composition is the sum of its ASV vectors, weighted by the root of relative abundance: even at random
    initialization a linear model of it is a good baseline. Presence is what UniFrac asks of branches: an ASV v
    shows feature k at the rate r = softplus(w_k v + b_k), and the sample has it to the extent 1 - exp(-sum of r
    over its ASVs), once however many show it (docs/decisions.md has the numbers of both).
    """

    def __init__(self, width: int, abundances: bool) -> None:
        super().__init__()
        self.abundances = abundances
        self.composition = nn.Linear(width, width)
        self.features = nn.Linear(width, FEATURES * width)
        self.presence = nn.Linear(FEATURES * width, width)
        with torch.no_grad():
            self.features.weight.mul_(STEEP)
            self.features.bias.fill_(RARE)

    def _sums(
        self, asvs: Float[Tensor, "U D"], asv: Int64[Tensor, "B S"], counts: Float[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B F"]]:
        """Return the composition of each sample, and the extent to which it has each of F features."""
        keep = counts > 0
        weights = (counts if self.abundances else keep.to(counts)).sqrt()
        weights = weights / weights.square().sum(dim=1, keepdim=True).sqrt()
        # Sizes by shape, not by len(), which would fix them in an exported program.
        spread = torch.zeros(2, asv.shape[0], asvs.shape[0], dtype=asvs.dtype, device=asvs.device)
        spread[0].scatter_add_(1, asv, weights.to(asvs.dtype))
        spread[1].scatter_add_(1, asv, keep.to(asvs.dtype))
        return spread[0] @ asvs, -torch.expm1(-(spread[1] @ F.softplus(self.features(asvs))))

    @torch.no_grad()
    def standardize(self, asvs: Float[Tensor, "U D"], asv: Int64[Tensor, "B S"], counts: Float[Tensor, "B S"]) -> None:
        """Center and scale both parts on a first batch; the composition is the larger one."""
        composition, presence = self._sums(asvs, asv, counts)
        standardize(self.composition, self.composition(composition))
        standardize(self.presence, self.presence(presence), PRESENT)

    def forward(
        self, asvs: Float[Tensor, "U D"], asv: Int64[Tensor, "B S"], counts: Float[Tensor, "B S"]
    ) -> Float[Tensor, "B D"]:
        """Return sample vectors ``[B, D]`` from the vectors of distinct ASVs ``[U, D]``, `asv` and `counts`."""
        composition, presence = self._sums(asvs, asv, counts)
        return self.composition(composition) + self.presence(presence)  # type: ignore[no-any-return]


class SampleEncoder(nn.Module):
    """Attends over a sample's ASVs and pools them to ``[B, D]``, a correction of its `contents`."""

    def __init__(self, config: ModelConfig, depth: int) -> None:
        super().__init__()
        width = config.embedding_dim
        self.count = CountEmbedding(width, depth, config.count_embedding_method) if config.count_embedding else None
        self.stack = Stack(width, config.attention_heads, config.attention_layers, config.dropout)
        self.pool = AttentionPool(width, config.attention_heads)
        self.contents = CompositionAndPresence(width, config.count_embedding)
        # They center the sample vectors and are not learned: distances do not see them, targets have a bias of their
        # own, and what rounding leaves of their gradient Adam would scale up.
        for layer in (self.pool.out, self.contents.composition, self.contents.presence):
            layer.bias.requires_grad_(False)

    @torch.no_grad()
    def standardize(self, asvs: Float[Tensor, "U D"], asv: Int64[Tensor, "B S"], counts: Float[Tensor, "B S"]) -> None:
        """Center and scale the parts of the sample vectors of a first batch; the contents are the larger one."""
        self.contents.standardize(asvs, asv, counts)
        standardize(self.pool.out, self(asvs[asv], counts)[1], ATTENDED)

    def forward(
        self, vectors: Float[Tensor, "B S D"], counts: Float[Tensor, "B S"], hidden: Bool[Tensor, "B S"] | None = None
    ) -> tuple[Float[Tensor, "B S D"], Float[Tensor, "B D"]]:
        """Return ASVs in context ``[B, S, D]`` and what attention adds to the sample vectors, ``[B, D]``.

        Parameters
        ----------
        vectors : float [B, S, D]
            ASV vectors, gathered per sample.
        counts : float32 [B, S]
            Rarefied reads; 0 is padding.
        hidden : bool [B, S], optional
            Slots whose count is withheld.
        """
        keep = counts > 0
        x = vectors if self.count is None else self.count(vectors, counts, hidden)
        x = self.stack(x, keep[:, None, None, :])
        return x, self.pool(x, keep)

    def attention(self, vectors: Float[Tensor, "B S D"], counts: Float[Tensor, "B S"]) -> Float[Tensor, "B S"]:
        """Return how much of the pooled vector each ASV gets, ``[B, S]``: weights of the heads, averaged, of sum 1."""
        context, _ = self(vectors, counts)
        return self.pool.weights(context, counts > 0).mean(dim=-1)
