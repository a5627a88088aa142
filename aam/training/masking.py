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

# Share of the ASVs of a batch of which a masked copy is read: the UniFrac loss reads whole
# sequences.
MASKED_ASVS = 0.25
# Share of the ASVs of a sample whose count is withheld and predicted.
MASKED_COUNTS = 0.15


def uniform(keys: Int64[Tensor, "*shape"]) -> Float32[Tensor, "*shape"]:
    """Return uniform random numbers in [0, 1), each a function of its key."""
    return ((splitmix64(keys) >> 40) & 0xFFFFFF).to(torch.float32) / 2**24


def _text_keys(texts: Sequence[str], device: torch.device) -> Int64[Tensor, " texts"]:
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return torch.tensor(
        [int.from_bytes(digest, "little", signed=True) for digest in digests], device=device
    )


def _masked_positions(
    keys: Int64[Tensor, " M"], tokens: UInt8[Tensor, "M L"], ratio: float
) -> Bool[Tensor, "M L"]:
    """Return the masked bases of `tokens`, chosen at random."""
    index = torch.arange(tokens.shape[1], device=tokens.device)
    where: Tensor = uniform(keys[:, None] + (index + 1) * GOLDEN) < ratio
    return where & (tokens > PAD) & (tokens <= N_BASES)


def make_masks(batch: Batch, config: TrainConfig, seed: int, step: int) -> Masks | None:
    """Return the masks of one step, which do not depend on the layout of the batch, rank or worker.

    Parameters
    ----------
    batch : Batch
        Without sequences it is not masked.
    config : TrainConfig
        A loss whose penalty is 0 needs no mask.
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
        hidden = (random < MASKED_COUNTS) & (batch.counts > 0)
    if not mask_nucleotides:
        empty = batch.tokens[:0, :0]
        return Masks(torch.zeros(0, dtype=torch.int64, device=device), empty, empty.bool(), hidden)
    keys = keys[batch.ranks.own_asvs]
    rows = (uniform(keys) < MASKED_ASVS).nonzero().squeeze(1)
    tokens = batch.tokens[rows]
    where = _masked_positions(keys[rows], tokens, config.nuc_mask_ratio)
    return Masks(rows, tokens.masked_fill(where, MASK), where, hidden)
