"""How well further targets were learned, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aam.data.tokens import encode
from aam.model.heads import AuxiliaryConfig, HeadConfig
from aam.report.further_quality import diversity_table, taxa_table, taxon_probabilities

CPU = torch.device("cpu")
FURTHER = AuxiliaryConfig(
    ("taxonomy",), ((0.0, 1.0),), ("phylum", "class"), (("k; a", "k; b"), ("k; a; x", "k; b; y")), (0.6, 0.6)
)


def test_accuracy_is_of_known_taxa_beside_rules(model_of):
    network = model_of(HeadConfig(further=FURTHER))
    unseen = torch.from_numpy(encode(["ACGTACGT", "TTTTACGT", "GGGGGGGG", "CCCCCCCC"]))
    lineages = [("k", "a", "x"), ("k", "b"), (), ("k", "c", "z")]
    seen = (
        torch.from_numpy(encode(["ACGTACGA", "ACGTACGC", "TTTTACGA"])),
        [("k", "a"), ("k", "a", "x"), ("k", "b", "y")],
    )

    def nearest(wanted: torch.Tensor, among: torch.Tensor) -> torch.Tensor:
        return (wanted[:, None] == among).sum(dim=2).argmax(dim=1)

    table = taxa_table(network, FURTHER, (unseen, lineages), seen, nearest, CPU)
    assert table.title == "Taxa of 4 ASVs absent from training"
    of_rank = {row[0]: row[1:] for row in table.rows}
    best = [shares.argmax(dim=1).tolist() for shares in taxon_probabilities(network, unseen, CPU)]
    phyla = [FURTHER.taxa[0][place] for place in best[0]]
    right = (phyla[0] == "k; a") + (phyla[1] == "k; b")
    assert of_rank["phylum"] == (f"{right / 3:.4f}", "0.6667", "0.3333", "3"), "a new phylum is an error of all"
    assert of_rank["class"][1:] == ("0.5000", "0.5000", "2")


def test_probabilities_of_a_rank_add_up_to_one_in_parts_or_not(model_of, monkeypatch):
    network = model_of(HeadConfig(further=FURTHER))
    tokens = torch.from_numpy(encode(["ACGTACGT", "TTTTACGT", "GGGGGGGG"]))
    together = taxon_probabilities(network, tokens, CPU)
    monkeypatch.setattr("aam.report.further_quality.ASVS_AT_ONCE", 2)
    for shares, in_parts in zip(together, taxon_probabilities(network, tokens, CPU), strict=True):
        torch.testing.assert_close(shares.sum(dim=1), torch.ones(3))
        torch.testing.assert_close(shares, in_parts)


def test_faith_pd_is_judged_where_it_is_known():
    richness = np.array([10.0, 20, 40, 30])
    truth = np.array([1.0, 2, 3, np.nan])
    table = diversity_table(np.array([1.0, 2, 4, 9]), truth, richness)
    assert table.title == "Agreement with Faith PD on 3 held-out samples"
    assert [float(row[1]) for row in table.rows] == [pytest.approx(0.5), pytest.approx(1)]
