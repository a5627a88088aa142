"""Losses as sums over counts, by name, so that they add up exactly over batches and ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from aam.config import TargetConfig, TrainConfig
from aam.data.batch import Batch
from aam.model.aam import Masks, Outputs

Terms = dict[str, tuple[Tensor, Tensor]]


def unifrac_loss(predicted: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Squared error over the pairs of samples above the diagonal; counts finite pairs."""
    rows, columns = torch.triu_indices(len(distance), len(distance), 1, device=distance.device)
    return target_loss(predicted[rows, columns], distance[rows, columns], "mse")


def _masked_sum(values: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(keep, values, torch.zeros_like(values)).sum(), keep.sum()


def target_loss(predicted: Tensor, target: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Error of numeric targets ``[B, T]`` in transformed units; missing ones (NaN) do not count."""
    keep = torch.isfinite(target)
    # A NaN under torch.where would still reach the gradient.
    truth = torch.where(keep, target, predicted.detach())
    if kind == "huber":
        error = F.huber_loss(predicted, truth, reduction="none")
    else:
        error = (predicted - truth).abs() if kind == "mae" else (predicted - truth).square()
    return _masked_sum(error, keep)


def _count_loss(log_share: Tensor, batch: Batch, hidden: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    truth = torch.log(batch.counts.clamp_min(1) / depth)
    return _masked_sum(F.huber_loss(log_share, truth, reduction="none"), hidden)


def loss_terms(
    outputs: Outputs, batch: Batch, masks: Masks | None, targets: TargetConfig, depth: int, spread: float
) -> Terms:
    """Every loss that `outputs` and `batch` allow, as ``name -> (sum, count)``.

    The UniFrac loss is in units of the distance's variance, `spread` squared, so that it weighs alike for
    every metric: 1 is what a constant prediction reaches.
    """
    terms: Terms = {}
    if outputs.distance is not None and batch.distance is not None:
        error, pairs = unifrac_loss(outputs.distance, batch.distance.to(outputs.distance.dtype))
        terms["unifrac"] = error / spread**2, pairs
    if outputs.faith_pd is not None and batch.faith_pd is not None:
        error, samples = target_loss(outputs.faith_pd, batch.faith_pd, "mse")
        terms["unifrac"] = error / spread**2, samples
    # Masks without counts are there for the nucleotides: even when none was drawn, the step needs a loss.
    if masks is not None and outputs.nucleotides is not None and (len(masks.rows) or masks.counts is None):
        truth = batch.tokens[masks.rows][masks.where].long() - 1
        error = F.cross_entropy(outputs.nucleotides.float(), truth, reduction="sum")
        terms["nucleotide"] = error, masks.where.sum()
    if masks is not None and masks.counts is not None and outputs.counts is not None:
        terms["count"] = _count_loss(outputs.counts, batch, masks.counts, depth)
    if outputs.target is not None and batch.target is not None:
        terms["target"] = target_loss(outputs.target, batch.target, targets.loss_type)
    if batch.label is not None:
        for column, logits in enumerate(outputs.labels):
            label = batch.label[:, column]
            error = F.cross_entropy(logits.float(), label, ignore_index=-1, reduction="sum")
            terms[f"label{column}"] = error, (label >= 0).sum()
    return terms


def penalties(train: TrainConfig, targets: TargetConfig) -> dict[str, float]:
    """Weight of each loss by the first letters of its name."""
    return {
        "unifrac": train.penalty,
        "nucleotide": train.nuc_penalty,
        "count": train.count_penalty,
        "target": targets.target_penalty,
        "label": targets.target_penalty,
    }


def total_loss(terms: Terms, weights: dict[str, float]) -> Tensor:
    """Weighted sum of the mean losses; a term that counts nothing adds nothing."""
    means = [
        weights[name.rstrip("0123456789")] * total / count.clamp_min(1)
        for name, (total, count) in terms.items()
    ]
    return torch.stack(means).sum()
