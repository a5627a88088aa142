"""The losses of the microbiome task, each a sum and a count, and the masks of a step."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from aam.config import Loss, TrainConfig
from aam.data.batch import IGNORED, Batch, Masks, PaddedBatch
from aam.data.tokens import MASK, PAD
from aam.device.rng import GOLDEN, mix_bits
from aam.device.shapes import Bool, Float, Int64
from aam.engine.task import Terms
from aam.errors import InputError
from aam.model.aam import Outputs
from aam.model.asv import N_BASES
from aam.options import not_none
from aam.typing import Hashes, Ints, Reals

# Weights [classes] of each class column; None for equal weights.
ClassWeights = tuple[Tensor | None, ...]
# A loss as sum and count, both on the device.
Term = tuple[Tensor, Tensor]


def _pairs(truth: Float[Tensor, "B B"]) -> Bool[Tensor, "B B"]:
    """Pairs of samples that have a distance, each pair once."""
    return torch.ones_like(truth, dtype=torch.bool).triu(1) & torch.isfinite(truth)


def unifrac_loss(predicted: Float[Tensor, "B B"], truth: Float[Tensor, "B B"]) -> Term:
    """Return the squared error over pairs of samples; counts the finite values of `truth`."""
    return _masked_sum(_errors(predicted, truth, "mse"), _pairs(truth))


def half_unifrac_loss(
    predicted: Float[Tensor, "B all_B"], truth: Float[Tensor, "B all_B"], first: int
) -> Term:
    """Return half the squared error over pairs of a sample of this rank and another one, where each
    rank compares its samples with those of all; counts half of these pairs.

    Each pair of two ranks stands on both, and each pair of one rank twice: the sum over ranks
    counts each pair once.

    Parameters
    ----------
    predicted, truth : float [B, all_B]
        Distances of the samples of this rank to those of all ranks.
    first : int
        Column of the first sample of this rank.
    """
    is_pair = torch.isfinite(truth)
    is_pair.diagonal(first).fill_(False)
    error, count = _masked_sum(_errors(predicted, truth, "mse"), is_pair)
    return error / 2, count / 2


def _masked_sum(values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"]) -> Term:
    """The sum of the values where `mask` is set, and their number."""
    return values.masked_fill(~mask, 0).sum(), mask.sum()


def _errors(
    predicted: Float[Tensor, "*shape"], target: Float[Tensor, "*shape"], kind: str
) -> Float[Tensor, "*shape"]:
    """Return each error by ``mse``, ``mae`` or ``huber``, 0 where the target is missing.

    A NaN under torch.where would still reach the gradient.
    """
    truth = torch.where(torch.isfinite(target), target, predicted.detach())
    if kind == "huber":
        return F.huber_loss(predicted, truth, reduction="none")
    return (predicted - truth).abs() if kind == "mae" else (predicted - truth).square()


def _count_loss(log_share: Float[Tensor, " T"], batch: PaddedBatch, depth: int) -> Term:
    """Return the Huber error of the logarithms of withheld counts' shares of `depth` reads; counts
    withheld counts.
    """
    truth = torch.log(batch.counts.clamp_min(1) / depth).to(log_share)
    return _masked_sum(F.huber_loss(log_share, truth, reduction="none"), not_none(batch.hidden))


def class_weights(setting: Sequence[str], labels: Ints, sizes: Sequence[int]) -> ClassWeights:
    """Return the weights ``[classes]`` of each class column; None for equal weights.

    Parameters
    ----------
    setting : sequence of str
        Empty; ``balanced``, which is samples / (classes * samples of the class); or a number for
        each class.
    labels : int64 [n, columns]
        Those of the training samples, -1 where missing.
    sizes : sequence of int
        Classes of each column.

    Raises
    ------
    InputError
        Numbers that are not one for each class, above 0 and finite.
    """
    if not setting:
        return (None,) * len(sizes)
    if tuple(setting) == ("balanced",):
        balanced = []
        for column, size in zip(labels.T, sizes, strict=True):
            counts = np.bincount(column[column >= 0], minlength=size)
            inverse = counts.sum() / (size * np.maximum(counts, 1))
            balanced.append(torch.from_numpy(inverse).float())
        return tuple(balanced)
    try:
        weights = [float(word) for word in setting]
    except ValueError:
        weights = []
    if not (list(sizes) == [len(weights)] and all(0 < weight < np.inf for weight in weights)):
        numbers = " and ".join(map(str, sizes)) or "no"
        raise InputError(
            f"--class-weights is {' '.join(setting)}, expected balanced, or {numbers} numbers "
            "above 0 for one column of classes"
        )
    return (torch.tensor(weights),)


def _label_weights(
    label: Int64[Tensor, " B"], class_weight: Float[Tensor, " classes"] | None
) -> Float[Tensor, " B"]:
    """The weight of each sample by its class; 0 where the label is missing."""
    has_label = (label >= 0).float()
    if class_weight is None:
        return has_label
    return has_label * class_weight[label.clamp_min(0)]


def nucleotide_loss(logits: Float[Tensor, "M L 4"], bases: Int64[Tensor, "M L"]) -> Term:
    """Return the cross-entropy of masked bases; counts masked bases."""
    truth = bases.flatten()
    errors = F.cross_entropy(logits.flatten(0, 1), truth, ignore_index=IGNORED, reduction="sum")
    return errors, (truth != IGNORED).sum()


def loss_terms(outputs: Outputs, batch: PaddedBatch, depth: int) -> Terms:
    """Return the losses of pretraining that `outputs` and `batch` allow, as ``name -> (sum,
    count)``.

    Parameters
    ----------
    outputs : Outputs
    batch : PaddedBatch
    depth : int
        Reads of a sample after rarefaction.

    Notes
    -----
    The loss of UniFrac is in units of its variance in the training samples, so that all metrics
    have the same weight: 1 is what a constant prediction reaches.
    """
    terms: Terms = {}
    if outputs.distance is not None and batch.distance is not None:
        truth, ranks = batch.distance.to(outputs.distance.dtype), batch.ranks
        if ranks.asvs:
            error, count = half_unifrac_loss(outputs.distance, truth, ranks.rank * len(truth))
        else:
            error, count = unifrac_loss(outputs.distance, truth)
        terms["unifrac"] = error / outputs.spread**2, count
    # Even where no ASV was masked: all ranks of a step have the same losses.
    if batch.bases is not None and outputs.nucleotides is not None:
        terms["nucleotide"] = nucleotide_loss(outputs.nucleotides, batch.bases)
    if batch.hidden is not None and outputs.counts is not None:
        terms["count"] = _count_loss(outputs.counts, batch, depth)
    return terms


def target_terms(
    outputs: Outputs, batch: PaddedBatch, loss_type: Loss, weights: ClassWeights = ()
) -> Terms:
    """Return the losses of targets and classes, as ``name -> (sum, count)``.

    Parameters
    ----------
    outputs : Outputs
    batch : PaddedBatch
    loss_type : str
        Loss of numeric targets.
    weights : ClassWeights
        Weights of the classes of each class column.
    """
    terms: Terms = {}
    if outputs.target is not None and batch.target is not None:
        errors = _errors(outputs.target, batch.target, loss_type)
        terms["target"] = _masked_sum(errors, torch.isfinite(batch.target))
    if batch.label is not None:
        for column, logits in enumerate(outputs.labels):
            label = batch.label[:, column]
            class_weight = weights[column] if weights else None
            sample_weights = _label_weights(label, class_weight)
            error = F.cross_entropy(logits, label, ignore_index=-1, reduction="none")
            terms[f"label{column}"] = (error * sample_weights).sum(), sample_weights.sum()
    return terms


def penalties(train: TrainConfig, columns: int) -> dict[str, float]:
    """Return the weight of each loss, with this number of class columns."""
    weights = {"unifrac": train.penalty, "nucleotide": train.nuc_penalty}
    weights |= {"count": train.count_penalty, "target": 1.0}
    return weights | {f"label{column}": 1.0 for column in range(columns)}


def loss_counts(batch: PaddedBatch, weights: ClassWeights = ()) -> dict[str, Tensor]:
    """Return the counts of the losses of a batch by name, before the network has run."""
    counts: dict[str, Tensor] = {}
    if batch.pairs is not None:
        counts["unifrac"] = batch.pairs.squeeze(0)
    elif batch.distance is not None:
        counts["unifrac"] = _pairs(batch.distance).sum()
    if batch.bases is not None:
        counts["nucleotide"] = (batch.bases != IGNORED).sum()
    if batch.hidden is not None:
        counts["count"] = batch.hidden.sum()
    if batch.target is not None:
        counts["target"] = torch.isfinite(batch.target).sum()
    if batch.label is not None:
        for column, labels in enumerate(batch.label.T):
            class_weight = weights[column] if weights else None
            counts[f"label{column}"] = _label_weights(labels, class_weight).sum()
    return counts


# --- masks ----------------------------------------------------------------------------------------

# Share of the ASVs of a batch that are read a second time, masked: the UniFrac loss reads whole
# sequences.
MASKED_ASVS = 0.25
# Share of the ASVs of a sample whose count is withheld and predicted.
MASKED_COUNTS = 0.15


def uniform(keys: Hashes) -> Reals:
    """Return uniform random numbers in [0, 1), each a function of its key."""
    high = (mix_bits(keys) >> np.uint64(40)) & np.uint64(0xFFFFFF)
    return high.astype(np.float32) / np.float32(2**24)


def _text_keys(texts: Sequence[str]) -> Hashes:
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
    """
    mask_nucleotides, mask_counts = config.nuc_penalty > 0, config.count_penalty > 0
    if not (mask_nucleotides or mask_counts) or not batch.tokens.shape[1]:
        return None
    step_key = _text_keys([f"{seed}/{step}"])
    keys = not_none(batch.key).numpy().view(np.uint64) + step_key
    hidden = None
    if mask_counts:
        slot_keys = mix_bits(keys)[batch.asv.numpy()] + _text_keys(batch.sample_ids)[:, None]
        is_hidden = (uniform(slot_keys) < MASKED_COUNTS) & (batch.counts.numpy() > 0)
        hidden = torch.from_numpy(is_hidden)
    tokens, ranks = batch.tokens.numpy(), batch.ranks
    is_copied = (uniform(keys) < MASKED_ASVS) & mask_nucleotides
    numbers = np.split(is_copied, np.cumsum(ranks.asvs[:-1], dtype=np.int64))
    keys, rows = keys[ranks.rank_asvs], np.flatnonzero(is_copied[ranks.rank_asvs])
    copies = tokens[rows] if mask_nucleotides else tokens[:0, :0]
    index = np.arange(1, copies.shape[1] + 1, dtype=np.uint64) * np.uint64(GOLDEN & (2**64 - 1))
    where = uniform(keys[rows][:, None] + index) < config.nuc_mask_ratio
    where &= (copies > PAD) & (copies <= N_BASES)
    masked = np.where(where, np.uint8(MASK), copies)
    indices, copied, places = map(torch.from_numpy, (rows, masked, where))
    return Masks(indices, copied, places, hidden, tuple(int(n.sum()) for n in numbers))
