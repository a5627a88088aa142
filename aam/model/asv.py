"""The ASV encoder: nucleotides to one vector per ASV."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.config import ModelConfig
from aam.data.tokens import PAD
from aam.model.layers import AttentionPool, Stack, standardize
from aam.runtime.shapes import Bool, Float, UInt8

N_TOKENS = 7
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
        self.max_bp = config.max_bp
        n_patches = -(-config.max_bp // self.patch)
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
        return self.end(self.begin(tokens, padded, 0), tokens, padded, 0)

    def begin(self, tokens: UInt8[Tensor, "U L"], padded: bool, blocks: int) -> Float[Tensor, "U P D"]:
        """Return hidden states ``[U, P, D]`` after the stem and the first `blocks`."""
        patches, keep = self._patches(tokens, padded)
        one_hot = F.one_hot(patches.long(), N_TOKENS).to(self.stem.weight.dtype)
        x = self.stem(one_hot.flatten(2)) + self.position[: patches.shape[1]]
        mask = None if keep is None else keep[:, None, None, :]
        return self.stack(x, mask, 0, blocks) if blocks else x  # type: ignore[no-any-return]

    def end(
        self, x: Float[Tensor, "U P D"], tokens: UInt8[Tensor, "U L"], padded: bool, blocks: int
    ) -> tuple[Float[Tensor, "U P D"], Float[Tensor, "U D"]]:
        """Return the result of `forward`, from the hidden states after the first `blocks`."""
        keep = self._patches(tokens, padded)[1]
        x = self.stack(x, None if keep is None else keep[:, None, None, :], blocks)
        return x, self.pool(x, keep) + self._in_place(x, keep)

    def _patches(
        self, tokens: UInt8[Tensor, "U L"], padded: bool
    ) -> tuple[UInt8[Tensor, "U P patch"], Bool[Tensor, "U P"] | None]:
        """Return patches ``[U, P, patch]`` of bases, and which of them hold a base where some do not."""
        patches = F.pad(tokens, (0, -tokens.shape[1] % self.patch), value=PAD).unflatten(1, (-1, self.patch))
        return patches, (patches != PAD).sum(dim=2) > 0 if padded else None

    def _in_place(self, x: Float[Tensor, "U P D"], keep: Bool[Tensor, "U P"] | None) -> Float[Tensor, "U D"]:
        """Return ASV vectors ``[U, D]`` of patch vectors ``[U, P, D]``, each position with weights of its own."""
        if keep is not None:
            x = x * keep.unsqueeze(-1)
        return F.linear(x.flatten(1), self.in_place.weight[:, : x[0].numel()], self.in_place.bias)

    @torch.no_grad()
    def standardize(self, tokens: UInt8[Tensor, "U L"], padded: bool) -> None:
        """Center and scale both parts of the ASV vectors of a first batch."""
        x, vectors = self(tokens, padded)
        in_place = self._in_place(x, self._patches(tokens, padded)[1])
        standardize(self.pool.out, vectors - in_place, 0.5)
        standardize(self.in_place, in_place)

    def nucleotide_logits(self, patches: Float[Tensor, "U P D"], length: int) -> Float[Tensor, "U L 4"]:
        """Return scores of A, C, G, T at each position, ``[U, L, 4]``, from patch vectors ``[U, P, D]``."""
        scores: Tensor = self.nucleotide_head(patches)
        by_base: Tensor = scores.unflatten(2, (self.patch, N_BASES)).flatten(1, 2)
        return by_base[:, :length]
