"""Both encoders and their blocks: nucleotides to one vector per ASV, a set of ASVs to one per sample."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aam.config import ModelConfig
from aam.data.batch import PAD
from aam.runtime.attention import attend, masked_softmax


class Attention(nn.Module):
    """Multi-head self-attention over ``[batch, length, D]``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # A bias of the keys would change nothing but by rounding, which Adam scales up.
        self.project = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Attend; `mask` ``[batch, 1, 1, length]`` is true where a position may be seen."""
        batch, length, width = x.shape
        projected = self.project(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        attended = attend(query, key, value, mask)
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

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
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

    def forward(self, x: Tensor, mask: Tensor | None = None, start: int = 0, stop: int | None = None) -> Tensor:
        """Transform ``[batch, length, D]`` by the blocks from `start` on; with `stop`, those before it and no norm."""
        for block in self.blocks[start:stop]:
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(block, x, mask, use_reentrant=False)
            else:
                x = block(x, mask)
        return self.norm(x) if stop is None else x


class AttentionPool(nn.Module):
    """Weighted mean of a sequence, one learned weighting for each head's share of the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.score = nn.Linear(width, heads, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool ``[batch, length, D]`` to ``[batch, D]``; `mask` ``[batch, length]`` is true where kept."""
        batch, length, width = x.shape
        weights = masked_softmax(self.score(x), None if mask is None else mask.unsqueeze(-1), dim=1)
        split = x.view(batch, length, self.heads, width // self.heads)
        return self.out((weights.unsqueeze(-1) * split).sum(dim=1).reshape(batch, width))  # type: ignore[no-any-return]


@torch.no_grad()
def standardize(layer: nn.Linear, outputs: Tensor, scale: float = 1.0) -> None:
    """Change `layer` so that these of its outputs ``[n, D]`` have mean 0 and standard deviation `scale`."""
    spread = outputs.var(dim=0).mean().sqrt().clamp_min(1e-6) / scale
    layer.bias.sub_(outputs.mean(dim=0)).div_(spread)
    layer.weight.div_(spread)


N_TOKENS, N_BASES = 7, 4


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
        self.max_bp = config.max_bp
        n_patches = -(-config.max_bp // self.patch)
        self.stem = nn.Linear(self.patch * N_TOKENS, width, bias=False)
        self.position = nn.Parameter(0.02 * torch.randn(n_patches, width))
        self.stack = Stack(width, config.attention_heads, config.attention_layers, config.dropout)
        self.pool = AttentionPool(width, config.attention_heads)
        self.in_place = nn.Linear(n_patches * width, width)
        self.nucleotide_head = nn.Linear(width, self.patch * N_BASES)

    def forward(self, tokens: Tensor, padded: bool) -> tuple[Tensor, Tensor]:
        """Patch vectors ``[U, P, D]`` and ASV vectors ``[U, D]`` of `tokens`.

        `padded` says whether any row is shorter than L; without padding no mask is needed.
        """
        return self.end(self.begin(tokens, padded, 0), tokens, padded, 0)

    def begin(self, tokens: Tensor, padded: bool, blocks: int) -> Tensor:
        """Hidden states ``[U, P, D]`` after the stem and the first `blocks`."""
        patches, keep = self._patches(tokens, padded)
        one_hot = F.one_hot(patches.long(), N_TOKENS).to(self.stem.weight.dtype)
        x = self.stem(one_hot.flatten(2)) + self.position[: patches.shape[1]]
        mask = None if keep is None else keep[:, None, None, :]
        return self.stack(x, mask, 0, blocks) if blocks else x  # type: ignore[no-any-return]

    def end(self, x: Tensor, tokens: Tensor, padded: bool, blocks: int) -> tuple[Tensor, Tensor]:
        """What `forward` gives, from the hidden states after the first `blocks`."""
        keep = self._patches(tokens, padded)[1]
        x = self.stack(x, None if keep is None else keep[:, None, None, :], blocks)
        return x, self.pool(x, keep) + self._in_place(x, keep)

    def _patches(self, tokens: Tensor, padded: bool) -> tuple[Tensor, Tensor | None]:
        """Patches ``[U, P, patch]`` of bases, and which of them hold one where some do not."""
        patches = F.pad(tokens, (0, -tokens.shape[1] % self.patch), value=PAD).unflatten(1, (-1, self.patch))
        return patches, (patches != PAD).sum(dim=2) > 0 if padded else None

    def _in_place(self, x: Tensor, keep: Tensor | None) -> Tensor:
        """ASV vectors ``[U, D]`` of patch vectors ``[U, P, D]``, each position with weights of its own."""
        if keep is not None:
            x = x * keep.unsqueeze(-1)
        return F.linear(x.flatten(1), self.in_place.weight[:, : x[0].numel()], self.in_place.bias)

    @torch.no_grad()
    def standardize(self, tokens: Tensor, padded: bool) -> None:
        """Center and scale both parts of the ASV vectors of a first batch."""
        x, vectors = self(tokens, padded)
        in_place = self._in_place(x, self._patches(tokens, padded)[1])
        standardize(self.pool.out, vectors - in_place, 0.5)
        standardize(self.in_place, in_place)

    def nucleotide_logits(self, patches: Tensor, length: int) -> Tensor:
        """Scores of A, C, G, T at each position, ``[U, L, 4]``, from patch vectors ``[U, P, D]``."""
        scores: Tensor = self.nucleotide_head(patches)
        by_base: Tensor = scores.unflatten(2, (self.patch, N_BASES)).flatten(1, 2)
        return by_base[:, :length]


# Features whose presence is read, per width; how steep and how rare they are at the start.
FEATURES, STEEP, RARE = 4, 4.0, -6.0
ATTENDED, PRESENT = 0.2, 0.5


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

    def forward(self, vectors: Tensor, counts: Tensor, hidden: Tensor | None) -> Tensor:
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


class Contents(nn.Module):
    """What a sample holds, without attention: its composition, and which features it has at all.

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

    def _sums(self, asvs: Tensor, asv: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        keep = counts > 0
        weights = (counts if self.abundances else keep.to(counts)).sqrt()
        weights = weights / weights.square().sum(dim=1, keepdim=True).sqrt()
        spread = torch.zeros(2, len(asv), len(asvs), dtype=asvs.dtype, device=asvs.device)
        spread[0].scatter_add_(1, asv, weights.to(asvs.dtype))
        spread[1].scatter_add_(1, asv, keep.to(asvs.dtype))
        return spread[0] @ asvs, -torch.expm1(-(spread[1] @ F.softplus(self.features(asvs))))

    @torch.no_grad()
    def standardize(self, asvs: Tensor, asv: Tensor, counts: Tensor) -> None:
        """Center and scale both parts on a first batch; composition leads."""
        composition, presence = self._sums(asvs, asv, counts)
        standardize(self.composition, self.composition(composition))
        standardize(self.presence, self.presence(presence), PRESENT)

    def forward(self, asvs: Tensor, asv: Tensor, counts: Tensor) -> Tensor:
        """Sample vectors ``[B, D]`` from the distinct ASVs' vectors ``[U, D]``, `asv` and `counts` ``[B, S]``."""
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
        self.contents = Contents(width, config.count_embedding)
        # They center the sample vectors and are not learned: distances do not see them, targets have a bias of their
        # own, and what rounding leaves of their gradient Adam would scale up.
        for layer in (self.pool.out, self.contents.composition, self.contents.presence):
            layer.bias.requires_grad_(False)

    @torch.no_grad()
    def standardize(self, asvs: Tensor, asv: Tensor, counts: Tensor) -> None:
        """Center and scale the parts of the sample vectors of a first batch; contents lead."""
        self.contents.standardize(asvs, asv, counts)
        standardize(self.pool.out, self(asvs[asv], counts)[1], ATTENDED)

    def forward(self, vectors: Tensor, counts: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """ASVs in context ``[B, S, D]`` and what attention adds to the sample vectors, ``[B, D]``.

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
