"""Learned baselines: the truth they may not see, tuning by groups, their file, and `aam rf-baseline`."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.ensemble import RandomForestRegressor

from aam.data.collate import rarefied_batch
from aam.data.rarefaction import EVALUATION, rarefied_richness, rarefied_table
from aam.data.study import StudyPart
from aam.predict.baselines import FOREST, LEARNED, LINEAR, NEIGHBOURS, Columns, Neighbours, baselines_of
from tests.evaluate.small_study import AGE, DIET, FEW, IDS, SPLITS, learned, metadata
from tests.predict.samples import inputs_of

# The first rarefaction of a prediction.
FIRST = EVALUATION - 1


@pytest.fixture
def study(study_of, tiny):
    given = tiny(samples=24, asvs=30)
    given["counts"][2:, 7] = 0
    return study_of(**given)


def test_richness_is_that_of_the_rarefied_table(study):
    rows = np.array([3, 0, 11])
    assert rarefied_richness(study, rows).tolist() == np.diff(rarefied_table(study).indptr)[rows].tolist()


# --- learning ----------------------------------------------------------------------------------------------


def test_no_learned_baseline_sees_the_truth_of_what_it_predicts(study):
    ages = metadata().columns["age"]
    other = [age if row % 3 else "999" for row, age in enumerate(ages)]
    first, second = learned(study), learned(study, ages=other)
    assert set(first) == set(LEARNED)
    for name, predicted in first.items():
        np.testing.assert_array_equal(predicted[::3], second[name][::3])
        assert np.isfinite(predicted[[0, 1, 3, 4]]).all()
        assert np.isnan(predicted[2::3]).all(), "in no fold held out"
        assert (predicted[1::3] != second[name][1::3]).any(), "learned from in the other fold"


def test_forests_read_the_shares_of_common_asvs_in_the_table_that_is_evaluated(study):
    predicted = learned(study, config=replace(FEW, max_features="0.5"))[FOREST]
    shares = (rarefied_table(study, FIRST) / study.depth).toarray().astype(np.float32)
    assert shares.sum(axis=1) == pytest.approx(1)
    batch = rarefied_batch(study, np.arange(24), FIRST)
    drawn = batch.counts[batch.sample_ids.index("s5")].numpy()
    np.testing.assert_allclose(np.sort(shares[5][shares[5] > 0]), np.sort(drawn[drawn > 0]) / 40)
    train, test = (np.array([side == one for side in SPLITS[0].subsets]) for one in ("train", "test"))
    common = (shares[train] > 0).sum(axis=0) >= 3
    assert not common.all()
    trees = RandomForestRegressor(6, max_features=0.5, random_state=0)
    trees.fit(shares[train][:, common], 1.5 * np.flatnonzero(train))
    assert predicted[test] == pytest.approx(trees.predict(shares[test][:, common]))


def test_neighbours_are_those_on_unifrac(study, monkeypatch):
    monkeypatch.setattr(Neighbours.__init__, "__defaults__", (0, 0, "unifrac", (2,)))
    batch = rarefied_batch(study, np.arange(24), FIRST)
    place = [batch.sample_ids.index(name) for name in IDS]
    distance = batch.distance.numpy()[np.ix_(place, place)]
    train, test = (np.array([side == one for side in SPLITS[0].subsets]) for one in ("train", "test"))
    expected = []
    for row in np.flatnonzero(test):
        near = np.argsort(distance[row][train])[:2]
        expected.append(np.average(1.5 * np.flatnonzero(train)[near], weights=1 / distance[row][train][near]))
    assert learned(study)[NEIGHBOURS][test] == pytest.approx(np.array(expected), rel=1e-4)


def test_neighbours_are_chosen_on_groups_that_they_have_not_seen():
    """Ten twins per child: their own twin tells all, other children nothing but their mean."""
    rng = np.random.default_rng(0)
    child, age = np.repeat(np.arange(9), 10), np.repeat(rng.normal(50, 10, 9), 10)
    apart = np.where(child[:, None] == child, 0.01, 1 + rng.random((90, 90)))
    X = inputs_of({"presence": csr_matrix((90, 0)), "unifrac": apart})
    learner = Neighbours(n_neighbors=(1, 40))
    assert learner.fit(X, age).chosen_ == 1
    assert learner.fit(X, age, groups=[str(one) for one in child]).chosen_ == 40
    few = X[np.arange(4)]
    assert learner.fit(few, age[:4]).chosen_ == 1, "others need more samples than each fold leaves"


def test_classes_are_probabilities_and_one_that_training_lacks_gets_0(study):
    predicted_by_name = learned(study, replace(DIET, labels=("air", "food", "milk")))
    for name in LEARNED:
        held_out = predicted_by_name[name][::3]
        np.testing.assert_allclose(held_out.sum(axis=1), 1)
        assert held_out[:, 0].max() <= (1e-3 if name == LINEAR else 0)


def test_without_a_tree_there_are_no_neighbours(study, caplog):
    with caplog.at_level(logging.INFO, "aam"):
        predicted_by_name = learned(replace(study, parts=(StudyPart(),)))
    assert set(predicted_by_name) == set(LEARNED) - {NEIGHBOURS}
    assert any("as they need --tree" in message for message in caplog.messages)


def test_point_2_learned_baselines_read_the_covariates_too(study):
    """The target is a covariate: forests and neighbours that read it are nearly right."""
    columns = Columns("child", numeric=("age",))
    ids, predicted_by_name = baselines_of(
        study, SPLITS, AGE, metadata(), columns, replace(FEW, n_estimators=10, max_features="1.0")
    )
    blind = learned(study, config=replace(FEW, n_estimators=10, max_features="1.0"))
    truth = 1.5 * np.arange(24)
    held_out = np.arange(24) % 3 < 2
    for baseline in predicted_by_name:
        if not baseline.trivial:
            error = np.abs(baseline.predicted - truth)[held_out].mean()
            assert error < 0.7 * np.abs(blind[baseline.name] - truth)[held_out].mean(), baseline.name
    assert "covariates alone" in {baseline.name for baseline in predicted_by_name}
    assert ids == IDS
