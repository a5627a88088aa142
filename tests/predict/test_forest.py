"""Forests: arrays say what scikit-learn says, to the last digit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from aam.predict.forest import Forest, Trees, Walk, as_arrays, stacked, telling_columns
from aam.predict.learner import make_truth
from tests.predict.samples import features_of, inputs_of


def values_of(seed=0):
    features = features_of(np.random.default_rng(seed), samples=120, covariates=2)
    return stacked([features["presence"], features["covariates"]])


def walked(trees: Trees, values):
    """What each tree says of each sample, of all features."""
    walk = Walk.of(trees)
    return walk.value[walk.leaves(values[:, walk.features])]


@pytest.mark.parametrize("kind", ["extra", "random"])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_trees_of_a_number_say_what_scikit_learn_says(kind, as_sparse):
    values, truth = values_of(), make_truth(np.random.default_rng(1).normal(size=100), 0)
    learned = sparse.csr_matrix(values[:100]) if as_sparse else values[:100]
    forest = Forest(kind=kind).grow(learned, truth, 0.5, 20, 0)
    trees = as_arrays(forest.estimators_, (), 0)
    leaf_values = walked(trees, values[100:])[:, :, 0]
    expected = np.stack([tree.predict(values[100:]) for tree in forest.estimators_], axis=1)
    np.testing.assert_array_equal(leaf_values, expected)
    assert np.ptp(leaf_values) > 0


@pytest.mark.parametrize("labels", [(0, 1), (0, 1, 2), (0, 2)])
def test_trees_of_classes_say_what_scikit_learn_says(labels):
    values, number = values_of(), max(labels) + 1
    truth = make_truth(np.random.default_rng(1).choice(labels, 100).astype(float), number)
    forest = Forest(number).grow(values[:100], truth, "sqrt", 20, 0)
    trees = as_arrays(forest.estimators_, labels, number)
    by_tree = walked(trees, values[100:])
    np.testing.assert_array_equal(
        by_tree[:, 0, list(labels)], forest.estimators_[0].predict_proba(values[100:])
    )
    np.testing.assert_allclose(
        by_tree.mean(axis=1)[:, list(labels)], forest.predict_proba(values[100:]), atol=1e-15
    )


def test_a_prediction_is_the_median_or_mean_of_all_trees_in_all_rarefactions():
    rng = np.random.default_rng(1)
    rarefactions = [features_of(np.random.default_rng(seed), samples=120) for seed in range(3)]
    y = rarefactions[0]["presence"][:, 0].toarray()[:, 0] * 5 + rng.normal(size=120)
    X = inputs_of(*rarefactions)
    learner = Forest(n_estimators=20).fit(X, y)
    trees = Trees(**learner.trees_)
    assert len(trees.root) == 60
    sides = [stacked([one["presence"], one["covariates"]]) for one in rarefactions]
    of_trees = np.concatenate([walked(trees, values)[:, :, 0] for values in sides], axis=1)
    np.testing.assert_array_equal(learner.predict(X), np.median(of_trees, axis=1))
    np.testing.assert_allclose(
        learner.set_params(median=False).predict(X), of_trees.mean(axis=1), atol=1e-12
    )
    assert np.isfinite(learner.out_of_fold_).all()
    again = Forest(n_estimators=20, out_of_fold=False).fit(X, y)
    np.testing.assert_array_equal(again.trees_["threshold"], learner.trees_["threshold"])
    assert np.isnan(again.out_of_fold_).all()
    anew = again.fit(X, -y).predict(X)
    np.testing.assert_array_equal(
        anew, Forest(n_estimators=20, out_of_fold=False).fit(X, -y).predict(X)
    )


def test_forests_of_the_inner_folds_have_not_seen_what_they_predict(monkeypatch):
    learn, predict = np.arange(60), np.arange(60, 120)
    monkeypatch.setattr("aam.predict.learner.inner_folds", lambda *_: [(learn, predict)])
    rng = np.random.default_rng(2)
    X, y = inputs_of(features_of(rng, samples=120)), rng.normal(size=120)
    before = Forest().fit(X, y).out_of_fold_
    y[predict] = rng.permutation(y[predict])
    np.testing.assert_array_equal(before[predict], Forest().fit(X, y).out_of_fold_[predict])


def test_inner_folds_choose_how_many_features_a_split_looks_at():
    """One feature among many tells all: a tree that looks at all of them at each split finds it."""
    rng = np.random.default_rng(3)
    features = features_of(rng, samples=120, asvs=200)
    y = 10 * features["presence"][:, 3].toarray()[:, 0]
    learner = Forest(n_estimators=10, max_features=(0.01, 1.0)).fit(inputs_of(features), y)
    error = np.abs(learner.out_of_fold_[:, 0] - y).mean()
    assert error < 0.5
    assert (
        error
        < np.abs(
            Forest(n_estimators=10, max_features=(0.01,))
            .fit(inputs_of(features), y)
            .out_of_fold_[:, 0]
            - y
        ).mean()
    )


def test_trees_look_at_the_asvs_that_divide_samples_most_evenly_and_at_all_covariates(monkeypatch):
    monkeypatch.setattr("aam.predict.forest.MAX_FEATURES", 2)
    present = np.array([[1, 1, 0, 1, 0], [1, 1, 0, 0, 0], [1, 0, 0, 1, 1], [1, 0, 0, 1, 0]], float)
    presence, covariates = sparse.csr_matrix(np.repeat(present, 10, axis=0)), np.zeros((40, 3))
    assert telling_columns([presence, covariates]).tolist() == [1, 3, 5, 6, 7]
    y = presence[:, 1].toarray()[:, 0]
    X = inputs_of({"presence": presence, "covariates": covariates})
    trees = Trees(**Forest(n_estimators=5, out_of_fold=False).fit(X, y).trees_)
    assert set(trees.feature[trees.left != np.arange(len(trees.left))]) <= {1, 3}
    np.testing.assert_array_equal(Forest(n_estimators=5, out_of_fold=False).fit(X, y).predict(X), y)
