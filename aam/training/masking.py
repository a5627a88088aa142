"""Masks of a step: nucleotides and counts that are withheld from the network."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from aam.config import TrainConfig
from aam.data.batch import Batch
from aam.data.tokens import MASK, PAD
from aam.model.aam import Masks
from aam.model.asv import N_BASES
from aam.runtime.rng import GOLDEN, splitmix64

SPAN = 6


def uniform(x: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) named by the int64 `x`."""
    return ((splitmix64(x) >> 40) & 0xFFFFFF).to(torch.float32) / 2**24


def _text_keys(texts: Sequence[str], device: torch.device) -> Tensor:
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return torch.tensor([int.from_bytes(d, "little", signed=True) for d in digests], device=device)


def _positions(keys: Tensor, tokens: Tensor, config: TrainConfig, patch: int) -> Tensor:
    """Masked positions ``bool [M, L]`` of `tokens`: random bases, spans, or whole patches."""
    index = torch.arange(tokens.shape[1], device=tokens.device)
    if config.nuc_mask_strategy == "patch":
        index = index // patch
    draw = uniform(keys[:, None] + (index + 1) * GOLDEN)
    if config.nuc_mask_strategy == "span":
        start = draw < 1 - (1 - config.nuc_mask_ratio) ** (1 / SPAN)
        reach = start.cumsum(dim=1)
        before = torch.nn.functional.pad(reach, (SPAN, 0))[:, : tokens.shape[1]]
        where: Tensor = reach > before
    else:
        where = draw < config.nuc_mask_ratio
    return where & (tokens > PAD) & (tokens <= N_BASES)


def draw_masks(batch: Batch, config: TrainConfig, patch: int, seed: int, step: int) -> Masks | None:
    """The masks of one step, the same whatever the batch's layout, rank or worker.

    Parameters
    ----------
    batch : Batch
        One without sequences is not masked.
    config : TrainConfig
        Ratios and strategy; a loss whose penalty is 0 needs no mask.
    patch : int
        Bases per token of the model's stem.
    seed, step : int
        Name of the draw; validation uses one fixed step.
    """
    nucleotides, counts = config.nuc_penalty > 0, config.count_penalty > 0
    if not (nucleotides or counts) or not batch.tokens.shape[1]:
        return None
    device = batch.tokens.device
    if batch.key is None:
        raise ValueError("the batch does not name its ASVs")
    keys = batch.key + _text_keys([f"{seed}/{step}"], device)
    hidden = None
    if counts:
        samples = _text_keys(batch.sample_ids, device)
        draw = uniform(splitmix64(keys)[batch.asv] + samples[:, None])
        hidden = (draw < config.count_mask_ratio) & (batch.counts > 0)
    if not nucleotides:
        none = batch.tokens[:0, :0]
        return Masks(torch.zeros(0, dtype=torch.int64, device=device), none, none.bool(), hidden)
    keys = keys[batch.asvs_of_rank]
    rows = (uniform(keys) < config.nuc_mask_asvs).nonzero().squeeze(1)
    tokens = batch.tokens[rows]
    where = _positions(keys[rows], tokens, config, patch)
    return Masks(rows, tokens.masked_fill(where, MASK), where, hidden)
