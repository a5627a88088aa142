"""Importance over groups: intervals, tests and their correction, sums over taxa, and the
rows of files.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from scipy import sparse, stats

from aam.data.targets import TargetSpec
from aam.explain.effects import FALSE_DISCOVERIES, TargetEffects, importance_of, one_sided_test
from aam.explain.results import (
    Asvs,
    explanation_of,
    folder_names,
    membership,
    opening,
    taxa,
    write_explanation,
)
from aam.io.taxonomy import parse_lineage
from tests.explain.simulated_effects import ASVS, GROUPS, LINEAGES, make_asvs, make_effects

UNNAMED = Asvs(tuple("abcdef"), tuple("abcdef"))


def test_what_matters_stands_out_with_its_sign():
    effects = make_effects()
    table = importance_of(effects, GROUPS)
    assert sorted(table.index[:2]) == [0, 1]
    table = table.sort_index()
    assert (table["q"] <= FALSE_DISCOVERIES).tolist() == [True, True, False, False, False, False]
    assert table["raises"][:2].tolist() == ["higher", "lower"]
    np.testing.assert_allclose(table["importance"], effects.losses.toarray().mean(axis=0))
    assert (table["importance.low"] < table["importance"]).all()
    assert (table["importance"] < table["importance.high"]).all()
    expected = effects.effects[0].toarray().sum(axis=0) / effects.carriers.toarray().sum(axis=0)
    np.testing.assert_allclose(table["effect"], expected)


def test_few_groups_have_neither_intervals_nor_tests():
    table = importance_of(make_effects(), np.array(["g0", "g1", "g2"] * 20, object))
    assert table[["p", "q", "importance.low", "importance.high"]].isna().all(axis=None)


def test_without_a_truth_there_are_effects_and_no_importance():
    table = importance_of(make_effects(truth=False), GROUPS)
    assert table[["importance", "q"]].isna().all(axis=None)
    assert sorted(table.index[:2]) == [0, 1]


@pytest.mark.parametrize("outputs", [1, 3])
def test_an_asv_that_changes_no_prediction_raises_nothing(outputs):
    """It was said to make numbers lower, or the first class more probable."""
    effects = make_effects(outputs)
    nothing = tuple(matrix * 0.0 for matrix in effects.effects)
    effects = dataclasses.replace(effects, effects=nothing, losses=effects.losses * 0.0)
    assert importance_of(effects, GROUPS)["raises"][0] == ""


def test_groups_without_a_truth_are_no_evidence():
    """The truth of three groups of fifteen is known; the others have no loss, and made the test
    surer of itself.
    """
    effects = make_effects()
    known = np.isin(GROUPS, ["g0", "g1", "g2"])
    losses = sparse.csr_matrix(effects.losses.toarray() * known[:, None])
    truth = np.where(known, effects.truth, math.nan)
    part = dataclasses.replace(effects, truth=truth, losses=losses)
    table = importance_of(part, GROUPS).sort_index()
    assert table[["p", "importance.low"]].isna().all(axis=None)
    np.testing.assert_allclose(table["importance"], losses.toarray()[known].mean(axis=0))
    words = opening(explanation_of(part, UNNAMED, GROUPS, "child", "held-out"))
    assert "nothing is tested in 60 held-out samples (12 with a truth)" in words


def test_nothing_is_tested_on_samples_that_the_model_has_learned_from():
    """Of a target of noise, 45 of 160 ASVs had a p below .05 in the training samples of a
    forest.
    """
    explanation = explanation_of(make_effects(), UNNAMED, GROUPS, "child", "training")
    assert not (explanation.features["q"] <= FALSE_DISCOVERIES).any()
    assert "nothing is tested" in opening(explanation)
    assert explanation.features["importance"].max() > 0.2


def test_the_test_of_groups_is_a_t_test_where_groups_are_equal():
    sums = np.random.default_rng(0).normal(0.3, 1, (20, 4))
    expected = stats.ttest_1samp(sums, 0, alternative="greater").pvalue
    np.testing.assert_allclose(one_sided_test(sums, np.full(20, 3.0))[0], expected, rtol=1e-9)


def test_nothing_stands_out_more_often_than_stated_where_nothing_matters():
    """Skewed losses in groups of uneven size: of 200 studies, at most 5 % and its sampling error
    have a discovery.
    """
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 12, 30).astype(float)
    false = 0
    for _ in range(200):
        sums = rng.normal(size=(30, 200)) * np.sqrt(sizes)[:, None] * rng.gamma(1.0, size=(30, 200))
        false += int(stats.false_discovery_control(one_sided_test(sums, sizes)[0]).min() <= 0.05)
    assert false / 200 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 200)


def test_corrected_limits_hold_0_exactly_where_nothing_stands_out():
    """The figure drew 95 % intervals of each ASV alone: off 0, beside the words that no ASV stands
    out.
    """
    rng = np.random.default_rng(3)
    outcomes, alone = set(), 0
    for signal in (0.0, 0.25, 0.6):
        losses = sparse.csr_matrix(rng.normal(rng.random(200) ** 4 * signal, 1, (160, 200)))
        ids, ones = tuple(map(str, range(160))), np.ones(160)
        carriers = sparse.csr_matrix(np.ones((160, 200)))
        numeric = TargetSpec("age", "numeric")
        parts = (carriers, losses, (losses,), carriers)
        effects = TargetEffects(numeric, ids, ones, ones[:, None], *parts)
        groups = np.array([f"g{row // 4}" for row in range(160)], object)
        table = importance_of(effects, groups, kinds=["a"] * 50 + ["b"] * 150)
        stands_out = table["q"] <= FALSE_DISCOVERIES
        assert (stands_out == (table["corrected.low"] > 0)).all()
        assert (table["corrected.low"] < table["importance"]).all()
        assert (table["importance"] < table["corrected.high"]).all()
        outcomes |= {int(stands_out.sum())}
        alone += int(((table["importance.low"] > 0) & ~stands_out).sum())
    assert min(outcomes) == 0
    assert max(outcomes) > 3
    assert alone > 3, "intervals of single ASVs would have said otherwise"


def test_taxa_are_sums_of_their_asvs():
    effects = make_effects()
    taxon_sets = taxa(LINEAGES, np.arange(ASVS))
    genera = taxon_sets[taxon_sets["rank"] == "genus"]
    assert dict(zip(genera["taxon"], genera["columns"], strict=True)) == {
        "unassigned": [4],
        "k__A; genus unknown": [3],
        "k__B; p__F; genus unknown": [2],
        "k__B; p__F; g__X": [0, 1],
        "k__B; p__G; genus unknown": [5],
    }
    for _, of_kind in taxon_sets.groupby("rank"):
        of_rank = effects.summed(membership(of_kind, ASVS))
        assert of_rank.losses.sum() == pytest.approx(effects.losses.sum())
        assert of_rank.effects[0].sum() == pytest.approx(effects.effects[0].sum())
        assert of_rank.carriers.max() <= 1


@pytest.mark.parametrize("outputs", [1, 3])
def test_files_hold_every_asv_once(tmp_path, outputs):
    effects = make_effects(outputs)
    asvs = make_asvs()
    explanation = explanation_of(effects, asvs, GROUPS, "child", "held-out")
    write_explanation(tmp_path / "out", explanation, ASVS)
    rows, pairs = (
        pd.read_csv(tmp_path / "out" / f"{name}.tsv", sep="\t") for name in ("features", "effects")
    )
    rows = rows.set_index("feature-id")
    assert sorted(rows.index) == sorted(asvs.feature_ids)
    assert rows["raises"]["id0"] == ("higher" if outputs == 1 else "a")
    assert rows["taxon"].iloc[0] == "; ".join(LINEAGES[asvs.feature_ids.index(rows.index[0])])
    assert len(pairs) == effects.carriers.nnz
    total = pairs["effect" if outputs == 1 else "effect=a"].sum()
    assert total == pytest.approx(effects.effects[0].sum(), rel=1e-3)
    assert (tmp_path / "out" / "taxa.tsv").exists()


def test_the_rows_say_what_is_not_known():
    effects = make_effects()
    nowhere = effects.carriers.toarray()
    nowhere[:, 5] = 0
    effects = dataclasses.replace(effects, carriers=sparse.csr_matrix(nowhere))
    table = explanation_of(effects, UNNAMED, GROUPS, "child", "held-out").features
    assert len(table) == ASVS - 1
    assert "sequence" not in table


def test_folders_of_targets_are_safe_and_differ():
    assert folder_names(["pH", "ph", "../x y", "."]) == ["pH", "ph-2", "_x_y", "target"]


def test_placeholders_of_different_parents_are_different_taxa():
    """SILVA calls a genus of many families "uncultured"."""
    names = [f"d__B; f__{family}; g__uncultured; s__uncultured_bacterium" for family in "FFG"]
    assert "genus" not in set(taxa([parse_lineage(name) for name in names], np.arange(3))["rank"])
    names.append("d__B; f__G; g__Known")
    sets = taxa([parse_lineage(name) for name in names], np.arange(4))
    genera = sets[sets["rank"] == "genus"]
    assert dict(zip(genera["label"], genera["columns"], strict=True)) == {
        "F, genus unknown (2 ASVs)": [0, 1],
        "G, genus unknown": [2],
        "Known": [3],
    }
