"""The ASV encoder: nucleotides to one vector per ASV."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aam.config import ModelConfig
from aam.data.tokens import N_TOKENS, PAD
from aam.device.shapes import Bool, Float, UInt8
from aam.model.layers import AttentionPool, Stack, standardize

N_BASES = 4


class AsvEncoder(nn.Module):
    """Embeds uint8 tokens ``[U, L]``, attends along the sequence and pools to ``[U, D]``.

    The stem makes one token of `patch` consecutive bases (a convolution whose kernel equals its
    stride). The tail patch is padded; patches that hold no base are masked.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.embedding_dim
        self.patch = config.patch_size
        self.max_bp = config.positions
        n_patches = self.patches(config.positions)
        self.stem = nn.Linear(self.patch * N_TOKENS, width, bias=False)
        self.position = nn.Parameter(0.02 * torch.randn(n_patches, width))
        self.stack = Stack(width, config.attention_heads, config.attention_layers, config.dropout)
        self.pool = AttentionPool(width, config.attention_heads)
        self.in_place = nn.Linear(n_patches * width, width)
        self.nucleotide_head = nn.Linear(width, self.patch * N_BASES)

    def forward(
        self, tokens: UInt8[Tensor, "U L"], has_short_asvs: bool
    ) -> tuple[Float[Tensor, "U P D"], Float[Tensor, "U D"]]:
        """Return patch vectors ``[U, P, D]`` and ASV vectors ``[U, D]`` of `tokens`.

        `has_short_asvs` says whether any row is shorter than L; without padding no mask is needed.
        """
        x = self.contextual(tokens, has_short_asvs)
        return x, self.vectors(x, tokens, has_short_asvs)

    def contextual(
        self, tokens: UInt8[Tensor, "U L"], has_short_asvs: bool
    ) -> Float[Tensor, "U P D"]:
        """Return patch vectors ``[U, P, D]`` of `tokens`."""
        patches, keep = self.split_patches(tokens, has_short_asvs)
        # The product with one-hot bases, without these: a row of the weight for each base.
        rows = patches.long() + N_TOKENS * torch.arange(self.patch, device=tokens.device)
        x = F.embedding(rows, self.stem.weight.t()).sum(dim=2) + self.position[: patches.shape[1]]
        return self.stack(x, None if keep is None else keep[:, None, None, :])  # type: ignore[no-any-return]

    def vectors(
        self, x: Float[Tensor, "U P D"], tokens: UInt8[Tensor, "U L"], has_short_asvs: bool
    ) -> Float[Tensor, "U D"]:
        """Return ASV vectors ``[U, D]`` of patch vectors ``[U, P, D]``."""
        keep = self.split_patches(tokens, has_short_asvs)[1]
        return self.pool(x, keep) + self._in_place(x, keep)  # type: ignore[no-any-return]

    def patches(self, length: int) -> int:
        """Number of patches of a sequence of `length` bases."""
        return -(-length // self.patch)

    def split_patches(
        self, tokens: UInt8[Tensor, "U L"], has_short_asvs: bool
    ) -> tuple[UInt8[Tensor, "U P patch"], Bool[Tensor, "U P"] | None]:
        """Return patches ``[U, P, patch]`` of bases, and which of them hold a base where some do
        not.
        """
        patches = F.pad(tokens, (0, -tokens.shape[1] % self.patch), value=PAD).unflatten(
            1, (-1, self.patch)
        )
        return patches, (patches != PAD).sum(dim=2) > 0 if has_short_asvs else None

    def _in_place(
        self, x: Float[Tensor, "U P D"], keep: Bool[Tensor, "U P"] | None
    ) -> Float[Tensor, "U D"]:
        """Return ASV vectors ``[U, D]`` of patch vectors ``[U, P, D]``, each position with weights
        of its own.
        """
        if keep is not None:
            x = x * keep.unsqueeze(-1)
        return F.linear(
            x.flatten(1), self.in_place.weight[:, : x.shape[1:].numel()], self.in_place.bias
        )

    @torch.no_grad()
    def standardize(self, chunks: Sequence[UInt8[Tensor, "_ L"]], has_short_asvs: bool) -> None:
        """Center and scale both parts of the ASV vectors of a first batch, whose tokens come in
        chunks.
        """
        pooled, in_place = [], []
        for tokens in chunks:
            x, vectors = self(tokens, has_short_asvs)
            in_place.append(self._in_place(x, self.split_patches(tokens, has_short_asvs)[1]))
            pooled.append(vectors - in_place[-1])
        standardize(self.pool.out, torch.cat(pooled), 0.5)
        standardize(self.in_place, torch.cat(in_place))

    def nucleotide_logits(
        self, patches: Float[Tensor, "U P D"], length: int
    ) -> Float[Tensor, "U L 4"]:
        """Return scores of A, C, G, T at each position, ``[U, L, 4]``, from patch vectors ``[U, P,
        D]``.
        """
        scores: Tensor = self.nucleotide_head(patches)
        by_base: Tensor = scores.unflatten(2, (self.patch, N_BASES)).flatten(1, 2)
        return by_base[:, :length]
