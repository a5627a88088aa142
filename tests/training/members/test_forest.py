"""The forest member: arrays say what scikit-learn says, to the last digit."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from aam.data.tokens import encode
from aam.predict.forest import fit_forest, forest_features, grow
from aam.predict.presence import Features, kmer_sketch
from aam.predict.truth import inner_folds, make_truth


def features_of(seed=0, samples=120, asvs=40) -> Features:
    rng = np.random.default_rng(seed)
    here = sparse.csr_matrix((rng.random((samples, asvs)) < 0.3).astype(float))
    sequences = ["".join(rng.choice(list("ACGT"), 30)) for _ in range(asvs)]
    return Features(here, here, kmer_sketch(encode(sequences)), rng.normal(size=(samples, 2)))


def drawn_features(features, as_sparse):
    values = forest_features(features)
    return sparse.csr_matrix(values) if as_sparse else values


@pytest.mark.parametrize("as_sparse", [False, True])
def test_trees_of_a_number_say_what_scikit_learn_says(as_sparse):
    features, rng = features_of(), np.random.default_rng(1)
    values = drawn_features(features, as_sparse)
    truth = make_truth(rng.normal(size=100), 0)
    forest, trees = grow(values[:100], truth, 20, 0)
    new = forest_features(features)[100:]
    leaf_values = trees.value[trees.leaves(new)][:, :, 0]
    expected = np.stack([tree.predict(new) for tree in forest.estimators_], axis=1)
    np.testing.assert_array_equal(leaf_values, expected)
    assert np.ptp(leaf_values) > 0


@pytest.mark.parametrize("labels", [(0, 1), (0, 1, 2), (0, 2)])
def test_trees_of_classes_say_what_scikit_learn_says(labels):
    features, rng = features_of(), np.random.default_rng(1)
    values = forest_features(features)
    truth = make_truth(rng.choice(labels, 100).astype(float), max(len(labels), 3) if 2 in labels else 2)
    forest, trees = grow(values[:100], truth, 20, 0)
    by_tree = trees.value[trees.leaves(values[100:])]
    np.testing.assert_array_equal(by_tree[:, 0, list(labels)], forest.estimators_[0].predict_proba(values[100:]))
    total = np.zeros((20, len(labels)))
    for tree in forest.estimators_:
        total += tree.predict_proba(values[100:])
    np.testing.assert_array_equal(total / 20, forest.predict_proba(values[100:]))
    np.testing.assert_allclose(by_tree.mean(axis=1)[:, list(labels)], forest.predict_proba(values[100:]), atol=1e-15)


def test_a_member_is_the_median_of_all_its_trees_in_all_draws():
    rarefactions, rng = [features_of(seed) for seed in range(3)], np.random.default_rng(1)
    truth = make_truth(rarefactions[0].known_asvs[:, 0].toarray()[:, 0] * 5 + rng.normal(size=120), 0)
    names = [f"s{number}" for number in range(120)]
    member, held_out = fit_forest(rarefactions, truth, inner_folds(truth, names, names, 0), 0)
    assert len(member.trees.root) == 150
    raw_values = [member.raw(one) for one in rarefactions]
    np.testing.assert_array_equal(
        member.finish(raw_values)[:, 0], np.median(np.concatenate(raw_values, axis=1), axis=1)
    )
    assert np.isfinite(held_out).all()
    again, _ = fit_forest(rarefactions, truth, [], 0)
    np.testing.assert_array_equal(again.trees.threshold, member.trees.threshold)


def test_forests_of_the_inner_folds_have_not_seen_what_they_predict():
    features, rng = features_of(), np.random.default_rng(2)
    values = rng.normal(size=120)
    learn, predict = np.arange(60), np.arange(60, 120)
    _, before = fit_forest([features], make_truth(values, 0), [(learn, predict)], 0)
    values[predict] = rng.permutation(values[predict])
    _, after = fit_forest([features], make_truth(values, 0), [(learn, predict)], 0)
    np.testing.assert_array_equal(before, after)
    assert np.isnan(before[:60]).all()
