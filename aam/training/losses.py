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
from aam.engine.losses import Terms
from aam.errors import InputError
from aam.model.aam import Masks, Outputs

ClassWeights = tuple[Tensor | None, ...]

Array = npt.NDArray[np.int64]


def _pairs(distance: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of the pairs in ``[B, B]``, or in the rows of it from `first` on, each pair once."""
    rows, columns = torch.triu_indices(len(distance), distance.shape[1], 1 + first, device=distance.device)
    return rows, columns


def unifrac_loss(predicted: Tensor, distance: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
    """Squared error over the pairs of samples, those of rows from `first` on; counts finite pairs."""
    pairs = _pairs(distance, first)
    return target_loss(predicted[pairs], distance[pairs], "mse")


def _full(logits: Tensor) -> Tensor:
    """In float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _masked_sum(values: Tensor, keep: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    kept = torch.where(keep, values, torch.zeros_like(values))
    return (kept.sum(), keep.sum()) if weight is None else ((kept * weight).sum(), (keep * weight).sum())


def target_loss(
    predicted: Tensor, target: Tensor, kind: str, over: float = 1.0, under: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Error of numeric targets ``[B, T]`` in transformed units; missing ones (NaN) do not count.

    ``asymmetric`` is ``over * relu(predicted - target) + under * relu(target - predicted)``.
    """
    return _masked_sum(_errors(predicted, target, kind, over, under), torch.isfinite(target))


def _errors(predicted: Tensor, target: Tensor, kind: str, over: float, under: float) -> Tensor:
    """Each error, 0 where the target is missing: a NaN under torch.where would still reach the gradient."""
    truth = torch.where(torch.isfinite(target), target, predicted.detach())
    if kind == "huber":
        return F.huber_loss(predicted, truth, reduction="none")
    if kind == "asymmetric":
        return over * F.relu(predicted - truth) + under * F.relu(truth - predicted)
    return (predicted - truth).abs() if kind == "mae" else (predicted - truth).square()


def quantile_errors(predicted: Tensor, target: Tensor, levels: Sequence[float]) -> Tensor:
    """Pinball error of each target ``[B]``, the mean over its quantiles ``[B, Q]`` (Koenker and Bassett 1978)."""
    truth = torch.where(torch.isfinite(target)[:, None], target[:, None], predicted.detach())
    level, error = torch.tensor(levels, device=target.device), truth - predicted
    return torch.maximum(level * error, (level - 1) * error).mean(dim=1)


def _column_errors(outputs: Outputs, target: Tensor, config: TargetConfig, losses: Sequence[str]) -> Tensor:
    """Errors ``[B, T]``, each column by its own loss."""
    if outputs.target is None:
        raise ValueError("the model has no numeric targets")
    columns = []
    for column, kind in enumerate(losses or [config.loss_type] * target.shape[1]):
        truth, ratio = target[:, column], (config.over_penalty, config.under_penalty)
        if kind == "quantile" and outputs.quantiles is not None:
            columns.append(quantile_errors(outputs.quantiles[:, :, column], truth, config.quantiles))
        else:
            columns.append(_errors(outputs.target[:, column], truth, kind, *ratio))
    return torch.stack(columns, dim=1)


def _count_loss(log_share: Tensor, batch: Batch, hidden: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    truth = torch.log(batch.counts.clamp_min(1) / depth).to(log_share)
    return _masked_sum(F.huber_loss(log_share, truth, reduction="none"), hidden)


def class_weights(asked: Sequence[str], labels: Array, sizes: Sequence[int]) -> ClassWeights:
    """Weights ``[K]`` of the classes of each class column, none where all count alike.

    Parameters
    ----------
    asked : sequence of str
        Nothing; ``balanced``, which is samples / (classes * samples of the class); or a number for each class.
    labels : int64 [n, columns]
        Those of the training samples, -1 where missing.
    sizes : sequence of int
        Classes of each column.

    Raises
    ------
    InputError
        Numbers that are not one for each class, above 0 and finite.
    """
    if not asked:
        return (None,) * len(sizes)
    if tuple(asked) == ("balanced",):
        counts = [np.bincount(column[column >= 0], minlength=k) for column, k in zip(labels.T, sizes, strict=True)]
        return tuple(torch.from_numpy(c.sum() / (len(c) * np.maximum(c, 1))).float() for c in counts)
    try:
        weights = [float(word) for word in asked]
    except ValueError:
        weights = []
    if not (list(sizes) == [len(weights)] and all(0 < weight < np.inf for weight in weights)):
        expected = f"balanced, or {' and '.join(map(str, sizes)) or 'no'} numbers above 0 for one column of classes"
        raise InputError(f"--class-weights is {' '.join(asked)}, expected {expected}")
    return (torch.tensor(weights),)


def _known_weights(label: Tensor, weight: Tensor | None, sample: Tensor | None) -> Tensor:
    """The weight of each sample whose label is known, by its class and its own; 0 of others."""
    known = (label >= 0).float() if sample is None else (label >= 0) * sample
    return known if weight is None else known * weight.to(label.device)[label.clamp_min(0)]


def _sample_weights(batch: Batch) -> Tensor | None:
    return None if batch.weight is None else batch.weight[:, None]


def nucleotide_loss(logits: Tensor, batch: Batch, masks: Masks) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of masked bases from `logits` ``[masked, 4]``; counts masked bases."""
    truth = batch.tokens[masks.rows][masks.where].long() - 1
    return F.cross_entropy(_full(logits), truth, reduction="sum"), masks.where.sum()


def loss_terms(
    outputs: Outputs,
    batch: Batch,
    masks: Masks | None,
    targets: TargetConfig,
    depth: int,
    weights: ClassWeights = (),
    losses: Sequence[str] = (),
) -> Terms:
    """Every loss that `outputs` and `batch` allow, as ``name -> (sum, count)``.

    `weights` are those of the classes, `losses` those of the numeric columns (unset: ``targets.loss_type`` of all).

    The UniFrac loss is in units of the distance's variance, `outputs.spread` squared, so that it weighs alike for
    every metric: 1 is what a constant prediction reaches.
    """
    terms: Terms = {}
    if outputs.distance is not None and batch.distance is not None:
        error, pairs = unifrac_loss(outputs.distance, batch.distance.to(outputs.distance.dtype), batch.first)
        terms["unifrac"] = error / outputs.spread**2, pairs
    if outputs.faith_pd is not None and batch.faith_pd is not None:
        error, samples = target_loss(outputs.faith_pd, batch.faith_pd, "mse")
        terms["unifrac"] = error / outputs.spread**2, samples
    # Even where no ASV was masked: all ranks of a step have the same losses.
    if masks is not None and outputs.nucleotides is not None:
        terms["nucleotide"] = nucleotide_loss(outputs.nucleotides, batch, masks)
    if masks is not None and masks.counts is not None and outputs.counts is not None:
        terms["count"] = _count_loss(outputs.counts, batch, masks.counts, depth)
    if outputs.target is not None and batch.target is not None:
        errors = _column_errors(outputs, batch.target, targets, losses)
        terms["target"] = _masked_sum(errors, torch.isfinite(batch.target), _sample_weights(batch))
    if batch.label is not None:
        for column, logits in enumerate(outputs.labels):
            label = batch.label[:, column]
            counted = _known_weights(label, weights[column] if weights else None, batch.weight)
            error = F.cross_entropy(_full(logits), label, ignore_index=-1, reduction="none")
            terms[f"label{column}"] = (error * counted).sum(), counted.sum()
    return terms


def penalties(train: TrainConfig, targets: TargetConfig, columns: int) -> dict[str, float]:
    """Return the weight of each loss, with so many class columns."""
    return {
        "unifrac": train.penalty,
        "nucleotide": train.nuc_penalty,
        "count": train.count_penalty,
        "target": targets.target_penalty,
        **{f"label{column}": targets.target_penalty for column in range(columns)},
    }


def loss_names(columns: int) -> tuple[str, ...]:
    """Every loss that there may be with so many class columns."""
    return "unifrac", "nucleotide", "count", "target", *(f"label{at}" for at in range(columns))


def loss_counts(batch: Batch, masks: Masks | None, weights: ClassWeights = ()) -> dict[str, Tensor]:
    """The counts of `loss_terms` for a batch, known before the network has run; terms that have none are missing."""
    found: dict[str, Tensor] = {}
    if batch.distance is not None:
        found["unifrac"] = torch.isfinite(batch.distance[_pairs(batch.distance, batch.first)]).sum()
    elif batch.faith_pd is not None:
        found["unifrac"] = torch.isfinite(batch.faith_pd).sum()
    if masks is not None:
        found["nucleotide"] = masks.where.sum()
        found |= {} if masks.counts is None else {"count": masks.counts.sum()}
    if batch.target is not None:
        found["target"] = _masked_sum(batch.target, torch.isfinite(batch.target), _sample_weights(batch))[1]
    if batch.label is not None:
        for column, labels in enumerate(batch.label.T):
            found[f"label{column}"] = _known_weights(labels, weights[column] if weights else None, batch.weight).sum()
    return found
