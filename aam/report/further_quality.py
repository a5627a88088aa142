"""How well an encoder has learned its further targets, on samples and ASVs that it has not seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from aam.data.auxiliary_targets import SEPARATOR, taxon_at
from aam.data.tokens import PAD
from aam.evaluate.metrics import Array, pearson, regression_metrics
from aam.io.taxonomy import Lineage
from aam.model.aam import Aam
from aam.model.heads import AuxiliaryConfig, TaxaHead
from aam.report.tables import Table

ASVS_AT_ONCE = 1024

# Returns which row of the second tokens [S, L] is the most alike to each of the first [F, L].
Nearest = Callable[[Tensor, Tensor], Tensor]


def diversity_table(predicted: Array, truth: Array, richness: Array) -> Table:
    """Return the agreement with Faith PD of samples, beside that of their richness; all [N]."""
    known = np.isfinite(truth)
    predicted, truth, richness = predicted[known], truth[known], richness[known]
    rows = (
        ("the model", f"{regression_metrics(truth, predicted)['r2']:.4f}"),
        ("a line through log richness", f"{pearson(np.log(richness), truth) ** 2:.4f}"),
    )
    return Table(f"Agreement with Faith PD on {len(truth)} held-out samples", ("", "R2"), rows)


def taxon_probabilities(network: Aam, tokens: Tensor, device: torch.device) -> list[Tensor]:
    """Return the probability of each class of each rank, one [F, classes] for each, of ASVs given as tokens [F, L]."""
    head = network.further["taxonomy"]
    if not isinstance(head, TaxaHead):
        raise ValueError("the model has no head of taxa")
    parts = []
    with torch.inference_mode():
        for some in tokens.split(ASVS_AT_ONCE):
            _, vectors = network.encode_asvs(some.to(device), bool((some == PAD).any()))
            parts.append([shares.cpu() for shares in head.probabilities(vectors)])
    return [torch.cat(of_rank) for of_rank in zip(*parts, strict=True)]


def taxa_table(
    network: Aam,
    config: AuxiliaryConfig,
    unseen: tuple[Tensor, Sequence[Lineage]],
    seen: tuple[Tensor, Sequence[Lineage]],
    nearest: Nearest,
    device: torch.device,
) -> Table:
    """Return the accuracy of taxa of unseen ASVs by rank, beside rules that know seen ones.

    `unseen` and `seen` are tokens [F, L] and lineages of each. ASVs of unknown taxon are left out, rank by rank; a
    taxon that no training sample has is an error of all.
    """
    rows = []
    for rank, names, shares in zip(
        config.ranks, config.taxa, taxon_probabilities(network, unseen[0], device), strict=True
    ):
        level = names[0].count(SEPARATOR)
        truth, known = (np.array([taxon_at(one, level) or "" for one in part[1]], object) for part in (unseen, seen))
        asked, usable = truth != "", known != ""
        if not asked.any():
            continue
        like = nearest(unseen[0][torch.from_numpy(asked)], seen[0][torch.from_numpy(usable)]).numpy()
        by_name = {
            "the model": np.array(names, object)[shares.argmax(dim=1).numpy()[asked]],
            "nearest": known[usable][like],
            "frequent": Counter(known[usable].tolist()).most_common(1)[0][0],
        }
        scores = (f"{(guess == truth[asked]).mean():.4f}" for guess in by_name.values())
        rows.append((rank, *scores, str(asked.sum())))
    header = ("accuracy", "the model", "nearest seen ASV", "most frequent taxon", "ASVs of known taxon")
    return Table(f"Taxa of {len(unseen[1])} ASVs absent from training", header, tuple(rows))
