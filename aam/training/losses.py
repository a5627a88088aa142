"""The losses of the microbiome task, each a sum and a count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from aam.config import TargetConfig, TrainConfig
from aam.data.batch import Batch
from aam.device.shapes import Bool, Float, Int64
from aam.engine.task import Terms
from aam.errors import InputError
from aam.model.aam import Masks, Outputs
from aam.model.heads import AuxiliaryHeads, TaxaHead
from aam.options import given

# Weights [classes] of each class column, None where all classes weigh alike.
ClassWeights = tuple[Tensor | None, ...]
# A loss as sum and count, both on the device.
Term = tuple[Tensor, Tensor]


def _each_pair(matrix: Float[Tensor, "B all_B"], first: int) -> Float[Tensor, " pairs"]:
    """Return the values of the pairs of samples, each pair once.

    The rows of `matrix` are the samples of this rank, which start at its column `first`.
    """
    rows, columns = torch.triu_indices(
        len(matrix), matrix.shape[1], 1 + first, device=matrix.device
    )
    return matrix[rows, columns]


def unifrac_loss(
    predicted: Float[Tensor, "*shape"], truth: Float[Tensor, "*shape"], first: int = 0
) -> Term:
    """Return the squared error over pairs of samples, or over samples; counts the finite values of
    `truth`.

    Parameters
    ----------
    predicted, truth : float [B, all_B] or [B]
        Distances of the samples of this rank to those of all ranks, or diversities of the samples
        of this rank.
    first : int
        Column of the first sample of this rank.
    """
    if truth.ndim > 1:
        predicted, truth = _each_pair(predicted, first), _each_pair(truth, first)
    return _masked_sum(_errors(predicted, truth, "mse"), torch.isfinite(truth))


def _masked_sum(
    values: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    weight: Float[Tensor, " B"] | None = None,
) -> Term:
    """Return the sum of the values where `mask` is set, times the weights of their samples, and
    that of the weights.
    """
    masked = torch.where(mask, values, torch.zeros_like(values))
    if weight is None:
        return masked.sum(), mask.sum()
    return (masked * weight[:, None]).sum(), (mask * weight[:, None]).sum()


def _errors(
    predicted: Float[Tensor, "*shape"],
    target: Float[Tensor, "*shape"],
    kind: str,
    over: float = 1.0,
    under: float = 1.0,
) -> Float[Tensor, "*shape"]:
    """Return each error, 0 where the target is missing: a NaN under torch.where would still reach
    the gradient.

    `kind` is ``mse``, ``mae``, ``huber`` or ``asymmetric``, which is
    ``over * relu(predicted - target) + under * relu(target - predicted)``.
    """
    truth = torch.where(torch.isfinite(target), target, predicted.detach())
    if kind == "huber":
        return F.huber_loss(predicted, truth, reduction="none")
    if kind == "asymmetric":
        return over * F.relu(predicted - truth) + under * F.relu(truth - predicted)
    return (predicted - truth).abs() if kind == "mae" else (predicted - truth).square()


def quantile_errors(
    predicted: Float[Tensor, "B Q"], target: Float[Tensor, " B"], levels: Sequence[float]
) -> Float[Tensor, " B"]:
    """Return the pinball error of each target, the mean over its quantiles (Koenker and Bassett
    1978).
    """
    truth = torch.where(torch.isfinite(target)[:, None], target[:, None], predicted.detach())
    level, error = torch.tensor(levels, device=target.device), truth - predicted
    return torch.maximum(level * error, (level - 1) * error).mean(dim=1)


def _column_errors(
    outputs: Outputs, target: Float[Tensor, "B T"], config: TargetConfig, losses: Sequence[str]
) -> Float[Tensor, "B T"]:
    """Return the errors of numeric targets, each column by its own loss."""
    if outputs.target is None:
        raise ValueError("the model has no numeric targets")
    columns = []
    for column, kind in enumerate(losses or [config.loss_type] * target.shape[1]):
        truth = target[:, column]
        if kind == "quantile" and outputs.quantiles is not None:
            columns.append(
                quantile_errors(outputs.quantiles[:, :, column], truth, config.quantiles)
            )
        else:
            errors = _errors(
                outputs.target[:, column], truth, kind, config.over_penalty, config.under_penalty
            )
            columns.append(errors)
    return torch.stack(columns, dim=1)


def _count_loss(
    log_share: Float[Tensor, "B S"], batch: Batch, hidden: Bool[Tensor, "B S"], depth: int
) -> Term:
    """Return the Huber error of the logarithms of withheld counts' shares of `depth` reads; counts
    withheld counts.
    """
    truth = torch.log(batch.counts.clamp_min(1) / depth).to(log_share)
    return _masked_sum(F.huber_loss(log_share, truth, reduction="none"), hidden)


def class_weights(
    setting: Sequence[str], labels: npt.NDArray[np.int64], sizes: Sequence[int]
) -> ClassWeights:
    """Return the weights ``[classes]`` of each class column, None where all classes weigh alike.

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
        counts = [
            np.bincount(column[column >= 0], minlength=size)
            for column, size in zip(labels.T, sizes, strict=True)
        ]
        return tuple(
            torch.from_numpy(c.sum() / (len(c) * np.maximum(c, 1))).float() for c in counts
        )
    try:
        weights = [float(word) for word in setting]
    except ValueError:
        weights = []
    if not (list(sizes) == [len(weights)] and all(0 < weight < np.inf for weight in weights)):
        expected = (
            f"balanced, or {' and '.join(map(str, sizes)) or 'no'} numbers above 0 for "
            "one column of classes"
        )
        raise InputError(f"--class-weights is {' '.join(setting)}, expected {expected}")
    return (torch.tensor(weights),)


def _label_weights(
    label: Int64[Tensor, " B"],
    class_weight: Float[Tensor, " classes"] | None,
    sample_weight: Float[Tensor, " B"] | None,
) -> Float[Tensor, " B"]:
    """Return the weight of each sample by its class and its own weight; 0 where the label is
    missing.
    """
    weights = (label >= 0).float() if sample_weight is None else (label >= 0) * sample_weight
    return (
        weights
        if class_weight is None
        else weights * class_weight.to(label.device)[label.clamp_min(0)]
    )


def taxonomy_loss(
    logits: Float[Tensor, "U classes"], taxa: Int64[Tensor, "U R"], head: TaxaHead
) -> Term:
    """Return the cross-entropy of taxa at all ranks, each in units of the entropy of its classes.

    Counts ASVs at each rank; those of unknown taxon (-1) are left out.
    """
    errors = [
        F.cross_entropy(of_rank, classes, ignore_index=-1, reduction="sum") / entropy
        for of_rank, classes, entropy in zip(
            head.by_rank(logits), taxa.T, head.entropies, strict=True
        )
    ]
    return torch.stack(errors).sum(), (taxa >= 0).sum()


def nucleotide_loss(logits: Float[Tensor, "masked 4"], batch: Batch, masks: Masks) -> Term:
    """Return the cross-entropy of masked bases; counts masked bases."""
    truth = batch.tokens[masks.rows][masks.where].long() - 1
    return F.cross_entropy(logits, truth, reduction="sum"), masks.where.sum()


def _diversity(batch: Batch) -> Tensor | None:
    """Return the UniFrac between the samples of a batch ``[B, all_B]``, or their Faith PD ``[B]``,
    if it has either.
    """
    return batch.faith_pd if batch.distance is None else batch.distance


def loss_terms(
    outputs: Outputs,
    batch: Batch,
    masks: Masks | None,
    targets: TargetConfig,
    depth: int,
    weights: ClassWeights = (),
    losses: Sequence[str] = (),
    auxiliary: AuxiliaryHeads | None = None,
) -> Terms:
    """Return every loss that `outputs` and `batch` allow, as ``name -> (sum, count)``.

    Parameters
    ----------
    outputs : Outputs
    batch : Batch
    masks : Masks or None
    targets : TargetConfig
    depth : int
        Reads of a sample after rarefaction.
    weights : ClassWeights
        Weights of the classes of each class column.
    losses : sequence of str
        Loss of each numeric column; empty: ``targets.loss_type`` for all.
    auxiliary : AuxiliaryHeads, optional
        The heads that gave `outputs.auxiliary`.

    Notes
    -----
    The losses of UniFrac and of auxiliary targets are in units of the variance (of taxa: the
    entropy) in the training samples, so that they weigh alike whatever the metric: 1 is what a
    constant prediction reaches.
    """
    terms: Terms = {}
    predicted = outputs.faith_pd if outputs.distance is None else outputs.distance
    diversities = {"unifrac": (predicted, _diversity(batch), outputs.spread)}
    for name, values in outputs.auxiliary.items():
        head, deviation = given(auxiliary)[name], given(auxiliary).scales[name][1]
        if isinstance(head, TaxaHead):
            terms[name] = taxonomy_loss(values, batch.auxiliary[name], head)
        else:
            diversities[name] = values, batch.auxiliary[name], deviation
    for name, (distances, truth, deviation) in diversities.items():
        if distances is not None and truth is not None:
            error, count = unifrac_loss(distances, truth.to(distances.dtype), batch.ranks.first)
            terms[name] = error / deviation**2, count
    # Even where no ASV was masked: all ranks of a step have the same losses.
    if masks is not None and outputs.nucleotides is not None:
        terms["nucleotide"] = nucleotide_loss(outputs.nucleotides, batch, masks)
    if masks is not None and masks.counts is not None and outputs.counts is not None:
        terms["count"] = _count_loss(outputs.counts, batch, masks.counts, depth)
    if outputs.target is not None and batch.target is not None:
        errors = _column_errors(outputs, batch.target, targets, losses)
        terms["target"] = _masked_sum(errors, torch.isfinite(batch.target), batch.weight)
    if batch.label is not None:
        for column, logits in enumerate(outputs.labels):
            label = batch.label[:, column]
            sample_weights = _label_weights(
                label, weights[column] if weights else None, batch.weight
            )
            error = F.cross_entropy(logits, label, ignore_index=-1, reduction="none")
            terms[f"label{column}"] = (error * sample_weights).sum(), sample_weights.sum()
    return terms


def penalties(
    train: TrainConfig, targets: TargetConfig, columns: int, auxiliary: Sequence[str] = ()
) -> dict[str, float]:
    """Return the weight of each loss, with so many class columns and these `auxiliary` targets."""
    return {
        "unifrac": train.penalty,
        "nucleotide": train.nuc_penalty,
        "count": train.count_penalty,
        "target": targets.target_penalty,
        **dict.fromkeys(auxiliary, train.targets_penalty),
        **{f"label{column}": targets.target_penalty for column in range(columns)},
    }


def loss_counts(batch: Batch, masks: Masks | None, weights: ClassWeights = ()) -> dict[str, Tensor]:
    """Return the counts of `loss_terms` for a batch before the network has run, by the name of the
    loss.
    """
    counts: dict[str, Tensor] = {}
    for name, truth in {"unifrac": _diversity(batch), **batch.auxiliary}.items():
        if truth is not None:
            known = (
                _each_pair(truth, batch.ranks.first)
                if name != "taxonomy" and truth.ndim > 1
                else truth
            )
            counts[name] = (
                torch.isfinite(known) if known.is_floating_point() else known >= 0
            ).sum()
    if masks is not None:
        counts["nucleotide"] = masks.where.sum()
        counts |= {} if masks.counts is None else {"count": masks.counts.sum()}
    if batch.target is not None:
        counts["target"] = _masked_sum(batch.target, torch.isfinite(batch.target), batch.weight)[1]
    if batch.label is not None:
        for column, labels in enumerate(batch.label.T):
            counts[f"label{column}"] = _label_weights(
                labels, weights[column] if weights else None, batch.weight
            ).sum()
    return counts
