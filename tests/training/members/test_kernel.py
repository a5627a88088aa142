"""The kernel member: primal and dual agree, and agree with scikit-learn; unseen ASVs are read by their sequences."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import Ridge

from aam.data.tokens import encode
from aam.predict import kernel
from aam.predict.kernel import PENALTIES, _grams, fit_dual, fit_kernel, gram_of
from aam.predict.presence import Features, kmer_sketch
from aam.predict.truth import inner_folds, make_truth

NAMES = [f"s{number}" for number in range(80)]


def features_of(rng, samples=80, asvs=60, covariates=0, clades=4) -> Features:
    """Presence of ASVs of a few clades, of which the first half is known by name."""
    parents = [rng.choice(list("ACGT"), 120) for _ in range(clades)]
    sequences = []
    for number in range(asvs):
        child = parents[number % clades].copy()
        child[rng.choice(120, 4, replace=False)] = "A"
        sequences.append("".join(child))
    everything = sparse.csr_matrix((rng.random((samples, asvs)) < 0.3).astype(float))
    return Features(
        everything, everything[:, : asvs // 2], kmer_sketch(encode(sequences)), rng.normal(size=(samples, covariates))
    )


@pytest.mark.parametrize(("classes", "covariates", "sequences"), [(0, 0, True), (2, 3, True), (3, 2, False)])
def test_the_primal_predicts_as_the_dual(classes, covariates, sequences):
    rng = np.random.default_rng(0)
    features = features_of(rng, covariates=covariates)
    learn, new = np.arange(50), np.arange(50, 80)
    values = rng.normal(size=50) if not classes else rng.integers(0, classes, 50).astype(float)
    truth = make_truth(values, classes)
    member, _ = fit_kernel([features.rows(learn)], truth, [], sequences)
    # The scale of each term is that of the training samples.
    inside = _grams(features.rows(learn), sequences)
    scaled = [
        part._replace(scale=scaled_part.scale)
        for part, scaled_part in zip(_grams(features, sequences), inside, strict=True)
    ]
    gram = gram_of(scaled)
    indicators = truth.indicators if classes else member.thresholds.indicators(values)
    dual = fit_dual(gram[:50, :50], indicators, truth.sample_weights)
    if classes == 2:
        dual = dataclasses.replace(dual, mean=np.full(2, 0.5))
    expected = dual.predict(gram[:50, :50], gram[50:, :50], [member.penalty])[0]
    np.testing.assert_allclose(member.raw(features.rows(new)), expected, rtol=0, atol=1e-9)


def test_the_dual_is_ridge_regression():
    rng = np.random.default_rng(1)
    x, y, weights = rng.normal(size=(40, 7)), rng.normal(size=(40, 3)), rng.random(40) + 0.2
    weights /= weights.mean()
    new = rng.normal(size=(5, 7))
    dual = fit_dual(x @ x.T, y, weights)
    for penalty in (0.1, 3.0, 100.0):
        expected = Ridge(alpha=penalty).fit(x, y, weights).predict(new)
        np.testing.assert_allclose(dual.predict(x @ x.T, new @ x.T, [penalty])[0], expected, atol=1e-9)


def test_each_term_of_the_kernel_has_the_same_share():
    features = features_of(np.random.default_rng(2), covariates=2)
    for part, share in zip(_grams(features, True), (1, 1, 0.5), strict=True):
        centred = part.gram - part.gram.mean(axis=0) - part.gram.mean(axis=1)[:, None] + part.gram.mean()
        assert part.scale * np.diag(centred).mean() == pytest.approx(share)


def test_constant_features_have_no_share():
    features = features_of(np.random.default_rng(3), covariates=0)
    assert _grams(features, False)[1].scale == 0
    assert _grams(features, True)[2].scale == 0


def test_out_of_fold_predictions_are_those_of_members_that_saw_other_groups():
    rng = np.random.default_rng(4)
    features = features_of(rng)
    values = 3 * features.known_asvs[:, :10].sum(axis=1).A1 + rng.normal(size=80)
    truth = make_truth(values, 0)
    folds = inner_folds(truth, NAMES, [f"g{number // 4}" for number in range(80)], 0)
    member, held_out = fit_kernel([features], truth, folds)
    assert np.corrcoef(held_out[:, 0], values)[0, 1] > 0.4
    assert member.penalty in PENALTIES


def test_a_fold_is_predicted_without_its_labels(monkeypatch):
    """With one penalty to choose from, labels of the samples that a fold predicts change no prediction of them."""
    monkeypatch.setattr(kernel, "PENALTIES", np.array([3.0]))
    rng = np.random.default_rng(4)
    features = features_of(rng)
    label = rng.integers(0, 3, 80).astype(float)
    number = rng.normal(size=80)
    learn, predict = np.arange(60), np.arange(60, 80)
    for values, classes in ((label, 3), (number, 0)):
        _, before = fit_kernel([features], make_truth(values, classes), [(learn, predict)])
        mixed = values.copy()
        mixed[predict] = rng.permutation(values[predict])
        _, after = fit_kernel([features], make_truth(mixed, classes), [(learn, predict)])
        np.testing.assert_array_equal(before[predict], after[predict])


def test_unseen_asvs_are_read_by_their_sequences():
    """Two clades decide the class; new samples hold other ASVs of the same clades."""
    rng = np.random.default_rng(5)
    parents = [rng.choice(list("ACGT"), 120) for _ in range(2)]

    def asv(clade: int) -> str:
        child = parents[clade].copy()
        child[rng.choice(120, 5, replace=False)] = rng.choice(list("ACGT"), 5)
        return "".join(child)

    sequences = [asv(number % 2) for number in range(120)]
    label = rng.integers(0, 2, 80)
    here = rng.random((80, 120)) < np.where((np.arange(120) % 2)[None] == label[:, None], 0.3, 0.1)
    here[:40, 60:], here[40:, :60] = False, False
    everything = sparse.csr_matrix(here.astype(float))
    features = Features(everything, everything[:, :60], kmer_sketch(encode(sequences)), np.zeros((80, 0)))
    truth = make_truth(label[:40].astype(float), 2)
    folds = inner_folds(truth, NAMES[:40], NAMES[:40], 0)
    accuracy = {}
    for sequences_too in (True, False):
        member, _ = fit_kernel([features.rows(np.arange(40))], truth, folds, sequences_too)
        predicted = member.finish([member.raw(features.rows(np.arange(40, 80)))])
        accuracy[sequences_too] = (predicted.argmax(axis=1) == label[40:]).mean()
    assert accuracy[True] > 0.9
    assert accuracy[False] < 0.7


def test_the_median_follows_a_skewed_target():
    """What minimizes absolute errors is below the mean where a few values are very large."""
    rng = np.random.default_rng(6)
    features = features_of(rng, samples=300)
    values = np.exp(rng.normal(0, 1.5, 300))
    truth = make_truth(values, 0)
    names = [f"s{number}" for number in range(300)]
    _, held_out = fit_kernel([features], truth, inner_folds(truth, names, names, 0))
    assert abs(np.median(held_out) - np.median(values)) < 0.4 < values.mean() - np.median(values)


def test_quantiles_hold_their_share():
    rng = np.random.default_rng(7)
    features = features_of(rng, samples=300)
    values = rng.normal(size=300)
    truth = make_truth(values, 0)
    names = [f"s{number}" for number in range(300)]
    member, _ = fit_kernel([features], truth, inner_folds(truth, names, names, 0))
    raw = [member.raw(features)]
    low, high = (member.quantile(raw, level) for level in (0.1, 0.9))
    assert (low <= high).all()
    assert 0.7 < ((values >= low) & (values <= high)).mean() < 0.99
    with pytest.raises(ValueError, match="no quantiles"):
        fit_kernel([features], make_truth((values > 0).astype(float), 2), [])[0].quantile(raw, 0.5)


def test_a_large_study_is_learned_in_random_parts(monkeypatch):
    monkeypatch.setattr(kernel, "MAX_SAMPLES", 30)
    rng = np.random.default_rng(9)
    rarefactions = [features_of(rng) for _ in range(3)]
    values = rng.integers(0, 3, 80).astype(float)
    truth = make_truth(values, 3)
    member, held_out = fit_kernel(rarefactions, truth, inner_folds(truth, NAMES, NAMES, 0))
    parts = [kernel.learned_places(80, number, kernel.MAX_SAMPLES) for number in range(3)]
    assert [len(part) for part in parts] == [30] * 3
    assert len(set(np.concatenate(parts).tolist())) > 45
    np.testing.assert_array_equal(np.flatnonzero(np.isfinite(held_out[:, 0])), np.unique(np.concatenate(parts)))
    monkeypatch.setattr(kernel, "UNTRIED_PENALTY", member.penalty)
    alone = [
        fit_kernel([features.rows(part)], make_truth(values[part], 3), [])[0]
        for part, features in zip(parts, rarefactions, strict=True)
    ]
    for name in ("asvs", "kmers", "bias"):
        expected = np.mean([getattr(one, name) for one in alone], axis=0)
        np.testing.assert_allclose(getattr(member, name), expected, atol=1e-12)


def test_probabilities_of_an_uncommon_class_keep_its_base_rate():
    """Scores of two classes are learned as if both were equally common; what is published is not."""
    rng = np.random.default_rng(3)
    rarefactions = [features_of(rng, samples=200)]
    label = (np.arange(200) % 10 == 0).astype(np.int64)
    truth = make_truth(label.astype(float), 2)
    names = [f"s{number}" for number in range(200)]
    member, held_out = fit_kernel(rarefactions, truth, inner_folds(truth, names, names, 0))
    published = member.finish([member.raw(rarefactions[0])])
    assert published[:, 1].mean() == pytest.approx(0.1, abs=0.06)
    assert held_out[:, 1].mean() == pytest.approx(0.1, abs=0.06)
