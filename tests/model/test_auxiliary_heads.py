"""Heads of further targets: they answer what the batch asks, and change no weight of the other parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aam.config import ModelConfig
from aam.data.collate import rarefied_batch
from aam.model.aam import Aam
from aam.model.heads import AuxiliaryConfig, HeadConfig
from tests.data.labels import with_auxiliary_targets

ALL = AuxiliaryConfig(
    ("bray-curtis", "jaccard", "faith-pd", "taxonomy"), ((0.7, 0.1), (0.8, 0.1), (5.0, 2.0), (0.0, 1.0)),
    ("phylum", "class"), (("a", "b"), ("x", "y", "z")), (0.5, 1.0),
)  # fmt: skip


@pytest.fixture
def study(study_of, tiny):
    study = study_of(**tiny(), depth=40)
    lineages = tuple(("k", sequence[0], sequence[:2]) for sequence in study.table.sequences)
    return with_auxiliary_targets(study, lineages, ALL.names)


def test_all_other_weights_start_as_without_them():
    made = []
    for further in (AuxiliaryConfig(), ALL):
        torch.manual_seed(0)
        heads = HeadConfig("unifrac", counts=True, n_targets=1, n_classes=(2,), further=further)
        made.append(Aam(ModelConfig(embedding_dim=16, attention_heads=2, max_bp=30), 40, heads).state_dict())
    without, beside = made
    assert {name for name in beside if not name.startswith("further.")} == without.keys()
    assert all(torch.equal(value, beside[name]) for name, value in without.items())


def test_only_what_the_batch_asks_for_is_answered(study, model_of):
    network = model_of(HeadConfig("unifrac", further=ALL))
    batch = rarefied_batch(study, np.arange(4), 0)
    predicted = network(batch).auxiliary
    assert {name: tuple(value.shape) for name, value in predicted.items()} == {
        "bray-curtis": (4, 4), "jaccard": (4, 4), "faith-pd": (4,), "taxonomy": (len(batch.tokens), 5),
    }  # fmt: skip
    jaccard = predicted["jaccard"]
    assert torch.equal(jaccard, jaccard.T)
    assert ((jaccard >= 0) & (jaccard <= 1)).all()
    asked = replace(batch, auxiliary={"jaccard": batch.auxiliary["jaccard"]})
    alone = network(asked).auxiliary
    assert alone.keys() == {"jaccard"}
    assert torch.equal(alone["jaccard"], jaccard)
    assert network(replace(batch, auxiliary={})).auxiliary == {}


def test_distances_start_at_their_mean_and_the_others_know_nothing(study):
    torch.manual_seed(0)
    network = Aam(ModelConfig(embedding_dim=16, attention_heads=2, max_bp=30), 40, HeadConfig(further=ALL))
    batch = rarefied_batch(study, np.arange(9), 0)
    network.standardize(batch)
    with torch.no_grad():
        predicted = network(batch).auxiliary
    rows, columns = torch.triu_indices(9, 9, 1)
    for name, (mean, _) in zip(ALL.names[:2], ALL.scales, strict=False):
        assert float(predicted[name][rows, columns].median()) == pytest.approx(mean, abs=0.05)
    torch.testing.assert_close(predicted["faith-pd"], torch.full((9,), 5.0))
    assert not predicted["taxonomy"].any()
    phyla, classes = network.further["taxonomy"].by_rank(predicted["taxonomy"])
    assert (phyla.shape[1], classes.shape[1]) == (2, 3)


def test_taxa_alone_read_whole_asvs(study, model_of):
    further = AuxiliaryConfig(("taxonomy",), ((0.0, 1.0),), ALL.ranks, ALL.taxa, ALL.entropies)
    network = model_of(HeadConfig(further=further))
    assert not network.reads_samples
    batch = rarefied_batch(study, np.arange(4), 0)
    outputs = network(batch)
    assert len(outputs.asvs) == len(outputs.auxiliary["taxonomy"]) == len(batch.tokens)
