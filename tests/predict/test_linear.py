"""Linear models: primal and dual agree, and agree with scikit-learn; unseen ASVs are read by their
sequences.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import Ridge

from aam.data.tokens import encode
from aam.evaluate.metrics import auroc
from aam.predict import linear
from aam.predict.features import Inputs, Product, kmer_sketch
from aam.predict.learner import subsample
from aam.predict.linear import Linear, fit_dual, inner_products, scale_of, solve_shifted
from tests.predict.samples import features_of, inputs_of

ONE = ["one"] * 300
KERNEL = {"presence": 1.0, "kmers": 1.0, "covariates": 0.5}


@pytest.mark.parametrize(
    ("classes", "covariates", "terms"),
    [(0, 0, KERNEL), (2, 3, KERNEL), (3, 2, {"presence": 1.0, "covariates": 0.5})],
)
def test_weights_of_features_predict_as_the_kernel_does(classes, covariates, terms):
    rng = np.random.default_rng(0)
    X = inputs_of(features_of(rng, covariates=covariates))
    learn, new = np.arange(50), np.arange(50, 80)
    y = rng.normal(size=50) if not classes else rng.integers(0, classes, 50).astype(float)
    learner = Linear(classes, terms=terms).fit(X[learn], y, groups=ONE[:50])
    gram = np.zeros((80, 80))
    for name, weight in terms.items():
        # The scale of each term is that of the training samples.
        products = inner_products(X.read(name))
        gram += scale_of(products[:50, :50], weight) * products
    indicators = (
        np.eye(classes)[y.astype(int)]
        if classes
        else (y[:, None] <= learner.thresholds_).astype(float)
    )
    dual = fit_dual(gram[:50, :50].copy(), indicators, np.ones(50), np.array([learner.alpha_]))
    if classes == 2:
        dual = dataclasses.replace(dual, mean=np.full(2, 0.5))
    expected = dual.predict(gram[50:, :50])[0]
    np.testing.assert_allclose(learner.indicators(X[new]), expected, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(learner.out_of_fold_, np.full((50, classes or 1), np.nan))


def test_the_dual_is_ridge_regression():
    rng = np.random.default_rng(1)
    x, y, weights = rng.normal(size=(40, 7)), rng.normal(size=(40, 3)), rng.random(40) + 0.2
    weights /= weights.mean()
    new = rng.normal(size=(5, 7))
    penalties = np.array([0.1, 3.0, 100.0])
    together = fit_dual(x @ x.T, y, weights, penalties).predict(new @ x.T)
    for penalty, one_of_several in zip(penalties, together, strict=True):
        expected = Ridge(alpha=penalty).fit(x, y, weights).predict(new)
        np.testing.assert_allclose(one_of_several, expected, atol=1e-9)
        alone = fit_dual(x @ x.T, y, weights, np.array([penalty])).predict(new @ x.T)[0]
        np.testing.assert_allclose(alone, expected, atol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 40])
def test_shifted_systems_are_solved_as_one_by_one(n):
    rng = np.random.default_rng(0)
    features = rng.random((n, max(n - 3, 1)))
    matrix, target, shifts = features @ features.T, rng.random((n, 3)), np.array([0.03, 1.0, 300.0])
    expected = [np.linalg.solve(matrix + shift * np.eye(n), target) for shift in shifts]
    np.testing.assert_allclose(solve_shifted(matrix, target, shifts), expected, rtol=1e-9)


def test_each_term_of_the_kernel_has_its_share_and_constant_features_have_none():
    X = inputs_of(features_of(np.random.default_rng(2), covariates=2))
    for name, share in KERNEL.items():
        gram = inner_products(X.read(name))
        centred = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
        assert scale_of(gram, share) * np.diag(centred).mean() == pytest.approx(share)
    assert scale_of(np.ones((4, 4)), 1.0) == 0
    assert scale_of(np.zeros((4, 4)), 1.0) == 0


def test_it_is_an_estimator_of_scikit_learn():
    rng = np.random.default_rng(4)
    X, y = inputs_of(features_of(rng)), rng.integers(0, 3, 80).astype(float)
    learner = clone(Linear(3)).set_params(random_state=1)
    assert learner.get_params() == {"n_classes": 3, "random_state": 1, "terms": Linear().terms}
    learner.fit(X, y)
    probabilities = learner.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(learner.predict(X), probabilities.argmax(axis=1))
    assert Linear().fit(X, y).predict(X).shape == (80,)


@pytest.mark.parametrize("classes", [0, 3])
def test_a_fold_is_predicted_without_its_labels(monkeypatch, classes):
    """With one penalty to choose from, labels of the samples that a fold predicts change no
    prediction of them.
    """
    monkeypatch.setattr(linear, "PENALTIES", np.array([3.0]))
    learn, predict = np.arange(60), np.arange(60, 80)
    monkeypatch.setattr("aam.predict.learner.inner_folds", lambda *_: [(learn, predict)])
    rng = np.random.default_rng(4)
    X = inputs_of(features_of(rng))
    y = rng.integers(0, 3, 80).astype(float) if classes else rng.normal(size=80)
    before = Linear(classes).fit(X, y).out_of_fold_
    y[predict] = rng.permutation(y[predict])
    np.testing.assert_array_equal(before, Linear(classes).fit(X, y).out_of_fold_)


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
    present = sparse.csr_matrix(here.astype(float))
    smoothed = Product(present, kmer_sketch(encode(sequences)))
    X = inputs_of({"presence": present[:, :60], "kmers": smoothed, "covariates": np.zeros((80, 0))})
    accuracy = {}
    for name, learner in {"kernel": Linear(2, terms=KERNEL), "presence": Linear(2)}.items():
        learner.fit(X[np.arange(40)], label[:40].astype(float))
        accuracy[name] = (learner.predict(X[np.arange(40, 80)]) == label[40:]).mean()
    assert accuracy["kernel"] > 0.9
    assert accuracy["presence"] < 0.7


def test_the_median_follows_a_skewed_target():
    """What minimizes absolute errors is below the mean where a few values are very large."""
    rng = np.random.default_rng(6)
    X, y = inputs_of(features_of(rng, samples=300)), np.exp(rng.normal(0, 1.5, 300))
    held_out = Linear(terms=KERNEL).fit(X, y).out_of_fold_
    assert abs(np.median(held_out) - np.median(y)) < 0.4 < y.mean() - np.median(y)


def test_a_large_study_is_learned_in_random_parts(monkeypatch):
    monkeypatch.setattr(linear, "MAX_SAMPLES", 30)
    rng = np.random.default_rng(9)
    X, y = inputs_of(*(features_of(rng) for _ in range(3))), rng.integers(0, 3, 80).astype(float)
    learner = Linear(3, terms=KERNEL).fit(X, y)
    parts = [subsample(80, number, linear.MAX_SAMPLES) for number in range(3)]
    assert [len(part) for part in parts] == [30] * 3
    assert len(set(np.concatenate(parts).tolist())) > 45
    learned = np.flatnonzero(np.isfinite(learner.out_of_fold_[:, 0]))
    np.testing.assert_array_equal(learned, np.unique(np.concatenate(parts)))
    monkeypatch.setattr(linear, "UNTRIED_PENALTY", np.array([learner.alpha_]))
    alone = [
        Linear(3, terms=KERNEL).fit(X.rarefaction(number)[part], y[part], groups=ONE[:30])
        for number, part in enumerate(parts)
    ]
    for name, weights in learner.coef_.items():
        np.testing.assert_allclose(
            weights, np.mean([one.coef_[name] for one in alone], axis=0), atol=1e-12
        )


@pytest.mark.parametrize("classes", [0, 2])
def test_kernels_of_many_samples_are_in_single_precision_which_moves_predictions_by_little(
    monkeypatch, classes
):
    rng = np.random.default_rng(11)
    X = inputs_of(*(features_of(rng) for _ in range(2)))
    y = rng.normal(size=80) if not classes else rng.integers(0, classes, 80).astype(float)
    double = Linear(classes, terms=KERNEL).fit(X, y)
    monkeypatch.setattr(linear, "MAX_SAMPLES", 80)
    single = Linear(classes, terms=KERNEL).fit(X, y)
    assert single.alpha_ == double.alpha_
    assert (single.coef_["kmers"] != double.coef_["kmers"]).any(), (
        "the kernels were not in single precision"
    )
    np.testing.assert_allclose(single.indicators(X), double.indicators(X), rtol=0, atol=1e-5)
    np.testing.assert_allclose(single.out_of_fold_, double.out_of_fold_, rtol=0, atol=1e-4)


def test_probabilities_of_an_uncommon_class_keep_its_base_rate():
    """Scores of two classes are learned as if both were equally common; what is published is
    not.
    """
    X = inputs_of(features_of(np.random.default_rng(3), samples=200))
    learner = Linear(2, terms=KERNEL).fit(X, (np.arange(200) % 10 == 0).astype(float))
    assert learner.predict_proba(X)[:, 1].mean() == pytest.approx(0.1, abs=0.06)
    assert learner.out_of_fold_[:, 1].mean() == pytest.approx(0.1, abs=0.06)


def of_studies(
    rng: np.random.Generator, sizes=(20, 25, 35), shift: float = 0.0
) -> tuple[Inputs, np.ndarray, np.ndarray]:
    """Return features of several studies, each around a mean of its own, labels that they share,
    and the studies.
    """
    studies = np.repeat([f"study {number}" for number in range(len(sizes))], sizes)
    y = rng.integers(0, 2, len(studies)).astype(float)
    signal = rng.normal(size=12)
    means = {study: rng.normal(size=12) for study in np.unique(studies)}
    values = (
        rng.normal(size=(len(y), 12))
        + y[:, None] * signal
        + np.array([means[study] for study in studies])
    )
    values[studies == studies[-1]] += shift
    return inputs_of({"presence": values, "covariates": np.zeros((len(y), 0))}), y, studies


def test_centring_by_study_is_ridge_regression_of_what_differs_within_studies():
    rng = np.random.default_rng(11)
    X, _, studies = of_studies(rng)
    x, weights, y = X.read("presence"), rng.random(80) + 0.2, rng.normal(size=(80, 2))
    weights /= weights.mean()

    def within(values: np.ndarray) -> np.ndarray:
        means = {
            one: np.average(values[studies == one], 0, weights[studies == one])
            for one in np.unique(studies)
        }
        return values - np.array([means[study] for study in studies])

    dual, new = fit_dual(x @ x.T, y, weights, np.array([3.0]), studies), rng.normal(size=(30, 12))
    expected = Ridge(alpha=3.0, fit_intercept=False).fit(within(x), within(y), weights)
    mean = np.average(y, 0, weights)
    predicted = dual.predict(new @ x.T)[0]
    origin = np.average(x, 0, weights)
    np.testing.assert_allclose(predicted, expected.predict(new - origin) + mean, atol=1e-9)
    predicted = dual.predict(new @ x.T, np.repeat(["new", "small"], [25, 5]))[0]
    np.testing.assert_allclose(
        predicted[:25], expected.predict(new[:25] - new[:25].mean(axis=0)) + mean, atol=1e-9
    )
    np.testing.assert_allclose(
        predicted[25:], expected.predict(new[25:] - origin) + mean, atol=1e-9
    )


def test_a_new_study_is_read_relative_to_its_own_mean():
    """However far its samples lie from those of training, and as its inner folds are; base rates
    are unknown there.
    """
    X, y, studies = of_studies(np.random.default_rng(12))
    moved, _, _ = of_studies(np.random.default_rng(12), shift=50.0)
    learn, new = np.arange(45), np.arange(45, 80)
    learner = Linear(2).fit(X[learn], y[learn], studies=studies[learn])
    plain, centred = learner.outputs(X[new]), learner.centred_on(X[new]).outputs(X[new])
    np.testing.assert_allclose(
        learner.centred_on(moved[new]).outputs(moved[new]), centred, atol=1e-9
    )
    assert auroc(y[new] == 1, centred[:, 1]) == auroc(y[new] == 1, plain[:, 1]) > 0.8
    assert learner.centred_on(X[new]).indicators(X[new]).mean(axis=0) == pytest.approx([0.5, 0.5])
    far = learner.outputs(moved[new])
    assert np.ptp(far[:, 1]) < np.ptp(centred[:, 1])
    without = Linear(2).fit(X[learn], y[learn])
    np.testing.assert_array_equal(
        without.centred_on(X[new]).outputs(X[new]), without.outputs(X[new])
    )


def test_studies_are_predicted_out_of_their_folds_without_their_labels():
    X, y, studies = of_studies(np.random.default_rng(13))
    first = studies == studies[0]
    swapped = np.where(first, 1 - y, y)
    pair = [Linear(2).fit(X, one, studies=studies).out_of_fold_ for one in (y, swapped)]
    np.testing.assert_array_equal(pair[0][first], pair[1][first])
    assert np.isfinite(pair[0]).all()
    assert not np.array_equal(pair[0][~first], pair[1][~first])


@pytest.mark.parametrize("own", [0.0, 30.0])
def test_numbers_are_relative_to_their_study_only_where_other_studies_say_so(own):
    """Levels that come with the studies as nature made them are kept; levels that each study adds
    are taken off.
    """
    rng = np.random.default_rng(14)
    studies = np.repeat([f"study {number}" for number in range(5)], 30)
    level = np.repeat(np.arange(5.0) * 4, 30)
    x = np.stack([rng.normal(size=150) + (0 if own else level), rng.normal(size=150)], axis=1)
    noise = np.repeat(rng.normal(size=5), 30) * own
    y = x[:, 0] + noise + rng.normal(size=150) * 0.1
    learner = Linear(0).fit(
        inputs_of({"presence": x, "covariates": np.zeros((150, 0))}), y, studies=studies
    )
    assert hasattr(learner, "centre_") == bool(own)
