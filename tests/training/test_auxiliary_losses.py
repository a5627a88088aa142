"""Losses of further targets, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aam.config import TargetConfig, TrainConfig
from aam.data.batch import Batch
from aam.data.collate import Collation, rarefied_batch
from aam.engine.task import Terms
from aam.model.aam import Aam, Outputs
from aam.model.heads import AuxiliaryConfig, HeadConfig, TaxaHead
from aam.training.fit import auxiliary_config
from aam.training.losses import loss_counts, loss_terms, penalties, taxonomy_loss
from tests.data.labels import with_auxiliary_targets


def losses_of(outputs: Outputs, batch: Batch, network: Aam) -> Terms:
    return loss_terms(outputs, batch, None, TargetConfig(), 40, auxiliary=network.further)


NAMES = ("bray-curtis", "jaccard", "faith-pd", "taxonomy")


def test_taxa_are_in_units_of_entropy_and_unknown_ones_are_left_out():
    head = TaxaHead(
        4, AuxiliaryConfig(("taxonomy",), ((0.0, 1.0),), ("p", "c"), (("a", "b"), ("x", "y", "z")), (0.5, 2.0))
    )
    logits = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    taxa = torch.tensor([[1, -1], [0, 2], [-1, -1]])
    total, count = taxonomy_loss(logits, taxa, head)
    phyla, classes = logits[:, :2].log_softmax(1), logits[:, 2:].log_softmax(1)
    expected = -(phyla[0, 1] + phyla[1, 0]) / 0.5 - classes[1, 2] / 2.0
    assert (total.item(), int(count)) == (pytest.approx(expected.item(), rel=1e-12), 3)
    total.backward()
    assert torch.isfinite(logits.grad).all()
    assert not logits.grad[2].any()
    assert not logits.grad[0, 2:].any()


def test_constant_predictions_have_a_loss_of_one_and_counts_are_known_beforehand(study_of, tiny, model_of):
    study = study_of(**tiny(samples=9), depth=40)
    lineages = tuple(("k", sequence[0]) if at % 3 else () for at, sequence in enumerate(study.table.sequences))
    study = with_auxiliary_targets(study, lineages, NAMES)
    batch = rarefied_batch(study, np.arange(9), 0, Collation(distances=False))
    config = auxiliary_config(study, batch.auxiliary)
    network = model_of(HeadConfig(further=config))
    means = {
        name: torch.full_like(batch.auxiliary[name], scale[0])
        for name, scale in zip(NAMES[:3], config.scales, strict=False)
    }
    outputs = network(batch)
    terms = losses_of(replace(outputs, auxiliary=means), batch, network)
    for total, count in terms.values():
        assert total.item() / int(count) == pytest.approx(1, rel=0.2), "up to the degrees of freedom"
    counts = loss_counts(batch, None)
    for name, (total, count) in losses_of(outputs, batch, network).items():
        assert int(count) == int(counts[name])
        assert torch.isfinite(total)
    assert int(counts["taxonomy"]) == sum(bool(lineages[column]) for column in batch.column.tolist())


def test_each_weighs_as_asked():
    weights = penalties(TrainConfig(targets_penalty=0.3), TargetConfig(), 1, NAMES)
    assert [weights[name] for name in NAMES] == [0.3] * 4
    assert weights["unifrac"] == 1
