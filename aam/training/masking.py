"""Masks of a step: the nucleotides and counts that are withheld from the network."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from aam.config import TrainConfig
from aam.data.batch import Batch, Masks
from aam.data.tokens import MASK, PAD
from aam.device.rng import GOLDEN, mixed
from aam.model.asv import N_BASES

# Share of the ASVs of a batch that are read a second time, masked: the UniFrac loss reads whole
# sequences.
MASKED_ASVS = 0.25
# Share of the ASVs of a sample whose count is withheld and predicted.
MASKED_COUNTS = 0.15

Keys = npt.NDArray[np.uint64]


def uniform(keys: Keys) -> npt.NDArray[np.float32]:
    """Return uniform random numbers in [0, 1), each a function of its key."""
    high = (mixed(keys) >> np.uint64(40)) & np.uint64(0xFFFFFF)
    return high.astype(np.float32) / np.float32(2**24)


def _text_keys(texts: Sequence[str]) -> Keys:
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return np.array([int.from_bytes(digest, "little") for digest in digests], np.uint64)


def make_masks(batch: Batch, config: TrainConfig, seed: int, step: int) -> Masks | None:
    """Return the masks of one step, which do not depend on the layout of the batch, rank or worker.

    Parameters
    ----------
    batch : Batch
        On the host; without sequences it is not masked.
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
    mask_nucleotides, mask_counts = config.nuc_penalty > 0, config.count_penalty > 0
    if not (mask_nucleotides or mask_counts) or not batch.tokens.shape[1]:
        return None
    if batch.key is None:
        raise ValueError("the batch has no keys of its ASVs")
    keys = batch.key.numpy().view(np.uint64) + _text_keys([f"{seed}/{step}"])
    hidden = None
    if mask_counts:
        of_slots = mixed(keys)[batch.asv.numpy()] + _text_keys(batch.sample_ids)[:, None]
        is_hidden = (uniform(of_slots) < MASKED_COUNTS) & (batch.counts.numpy() > 0)
        hidden = torch.from_numpy(is_hidden)
    tokens, own = batch.tokens.numpy(), keys[batch.ranks.own_asvs]
    rows = np.flatnonzero(uniform(own) < MASKED_ASVS) if mask_nucleotides else np.zeros(0, np.int64)
    copies = tokens[rows] if mask_nucleotides else tokens[:0, :0]
    index = np.arange(1, copies.shape[1] + 1, dtype=np.uint64) * np.uint64(GOLDEN & (2**64 - 1))
    where = uniform(own[rows][:, None] + index) < config.nuc_mask_ratio
    where &= (copies > PAD) & (copies <= N_BASES)
    masked = np.where(where, np.uint8(MASK), copies)
    return Masks(torch.from_numpy(rows), torch.from_numpy(masked), torch.from_numpy(where), hidden)
