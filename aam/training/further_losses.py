"""The losses of further pretraining targets, each a sum and a count."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from aam.data.batch import Batch
from aam.device.shapes import Float, Int64
from aam.engine.task import Terms
from aam.model.further import FurtherHeads, TaxaHead
from aam.model.heads import DiversityHead
from aam.training.losses import Term, pairs_of_samples, target_loss, unifrac_loss


def taxonomy_loss(logits: Float[Tensor, "U classes"], taxa: Int64[Tensor, "U R"], head: TaxaHead) -> Term:
    """Return the cross-entropy of taxa at all ranks, each in units of the entropy of its classes.

    Counts ASVs at each rank; those of unknown taxon (-1) are left out.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    errors = [
        F.cross_entropy(of_rank, classes, ignore_index=-1, reduction="sum") / entropy
        for of_rank, classes, entropy in zip(head.by_rank(logits), taxa.T, head.entropies, strict=True)
    ]
    return torch.stack(errors).sum(), (taxa >= 0).sum()


def further_terms(predicted: Mapping[str, Tensor], batch: Batch, heads: FurtherHeads) -> Terms:
    """Return the losses of the targets in `predicted`, as ``name -> (sum, count)``.

    Each is in its own unit, the variance or entropy in the training samples: 1 is what a constant prediction reaches.
    """
    terms: Terms = {}
    for name, values in predicted.items():
        head, truth = heads[name], batch.auxiliary[name]
        if isinstance(head, TaxaHead):
            terms[name] = taxonomy_loss(values, truth, head)
            continue
        truth = truth.to(values.dtype)
        if isinstance(head, DiversityHead):
            error, count = target_loss(values, truth, "mse")
        else:
            error, count = unifrac_loss(values, truth, batch.ranks.first)
        terms[name] = error / heads.scales[name][1] ** 2, count
    return terms


def further_counts(batch: Batch) -> dict[str, Tensor]:
    """Return the counts of `further_terms` for a batch before the network has run."""
    counts: dict[str, Tensor] = {}
    for name, truth in batch.auxiliary.items():
        if not truth.is_floating_point():
            counts[name] = (truth >= 0).sum()
        else:
            known = truth[pairs_of_samples(truth, batch.ranks.first)] if truth.ndim > 1 else truth
            counts[name] = torch.isfinite(known).sum()
    return counts
