"""Masks of a step: the nucleotides and counts that are withheld from the network."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from aam.config import TrainConfig
from aam.data.batch import Batch
from aam.data.tokens import MASK, PAD
from aam.device.rng import GOLDEN, splitmix64
from aam.device.shapes import Bool, Float32, Int64, UInt8
from aam.model.aam import Masks
from aam.model.asv import N_BASES

# Bases of a span.
SPAN = 6


def uniform(keys: Int64[Tensor, "*shape"]) -> Float32[Tensor, "*shape"]:
    """Return uniform random numbers in [0, 1), each a function of its key."""
    return ((splitmix64(keys) >> 40) & 0xFFFFFF).to(torch.float32) / 2**24


def _text_keys(texts: Sequence[str], device: torch.device) -> Int64[Tensor, " texts"]:
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return torch.tensor(
        [int.from_bytes(digest, "little", signed=True) for digest in digests], device=device
    )


def _masked_positions(
    keys: Int64[Tensor, " M"], tokens: UInt8[Tensor, "M L"], config: TrainConfig, patch: int
) -> Bool[Tensor, "M L"]:
    """Return the masked positions of `tokens`: random bases, spans, or all bases of random
    patches.
    """
    index = torch.arange(tokens.shape[1], device=tokens.device)
    if config.nuc_mask_strategy == "patch":
        index = index // patch
    random = uniform(keys[:, None] + (index + 1) * GOLDEN)
    if config.nuc_mask_strategy == "span":
        start = random < 1 - (1 - config.nuc_mask_ratio) ** (1 / SPAN)
        started = start.cumsum(dim=1)
        started_before = torch.nn.functional.pad(started, (SPAN, 0))[:, : tokens.shape[1]]
        where: Tensor = started > started_before
    else:
        where = random < config.nuc_mask_ratio
    return where & (tokens > PAD) & (tokens <= N_BASES)


def make_masks(batch: Batch, config: TrainConfig, patch: int, seed: int, step: int) -> Masks | None:
    """Return the masks of one step, which do not depend on the layout of the batch, rank or worker.

    Parameters
    ----------
    batch : Batch
        Without sequences it is not masked.
    config : TrainConfig
        Ratios and strategy; a loss whose penalty is 0 needs no mask.
    patch : int
        Bases per token of the model's stem.
    seed, step : int
        Seed of the random numbers; validation uses one fixed step.

    Returns
    -------
    Masks or None
        None where nothing is masked.

    Raises
    ------
    ValueError
        The batch has no keys of its ASVs.
    """
    mask_nucleotides = config.nuc_penalty > 0
    mask_counts = config.count_penalty > 0
    if not (mask_nucleotides or mask_counts) or not batch.tokens.shape[1]:
        return None
    device = batch.tokens.device
    if batch.key is None:
        raise ValueError("the batch has no keys of its ASVs")
    keys = batch.key + _text_keys([f"{seed}/{step}"], device)
    hidden = None
    if mask_counts:
        samples = _text_keys(batch.sample_ids, device)
        random = uniform(splitmix64(keys)[batch.asv] + samples[:, None])
        hidden = (random < config.count_mask_ratio) & (batch.counts > 0)
    if not mask_nucleotides:
        empty = batch.tokens[:0, :0]
        return Masks(torch.zeros(0, dtype=torch.int64, device=device), empty, empty.bool(), hidden)
    keys = keys[batch.ranks.own_asvs]
    rows = (uniform(keys) < config.nuc_mask_asvs).nonzero().squeeze(1)
    tokens = batch.tokens[rows]
    where = _masked_positions(keys[rows], tokens, config, patch)
    return Masks(rows, tokens.masked_fill(where, MASK), where, hidden)
