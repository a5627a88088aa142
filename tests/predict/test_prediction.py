"""Predictions in own units, averaged over draws, written as a table and read back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.stats import multivariate_normal
from sklearn.linear_model import Ridge

from aam.data.rarefaction import EVALUATION
from aam.data.region import RegionProfile
from aam.data.targets import Targets, TargetSpec
from aam.device.options import RuntimeConfig
from aam.evaluate.metrics import auroc
from aam.evaluate.predictions import combined, joined
from aam.model.heads import HeadConfig
from aam.predict import prediction
from aam.predict.features import Samples
from aam.predict.network import run_model
from aam.predict.prediction import adapt, predict_rows, study_kernel
from aam.predict.saved_model import SavedModel
from tests.evaluate.conftest import AGE, READS, SITE, assert_same, table
from tests.predict.samples import saved_model

CPU, PLAIN = torch.device("cpu"), RuntimeConfig()


@pytest.fixture
def saved(model_of, study) -> SavedModel:
    heads, profile = (
        HeadConfig(n_targets=2, n_classes=(3,)),
        RegionProfile.fit(study.table.sequences),
    )
    return saved_model(model_of(heads), heads, Targets((AGE, SITE, READS)), profile=profile)


def test_predictions_are_in_own_units(saved, study):
    """Failure 1 of the predecessor: they stayed in transformed units and were not rarefied."""
    predictions = predict_rows(saved, study, ["s4", "s0", "s7"], PLAIN, 1, "2")
    expected = run_model(saved.network, study, np.array([4, 0, 7]), CPU, PLAIN, EVALUATION - 1)
    assert predictions.sample_ids == ("s4", "s0", "s7")
    assert predictions.specs == (AGE, SITE, READS)
    np.testing.assert_allclose(predictions.values["age"], expected.target[:, 0] * 15 + 40)
    np.testing.assert_allclose(
        predictions.values["reads"], np.expm1(expected.target[:, 1] * 0.5 + 2)
    )
    np.testing.assert_array_equal(predictions.probabilities["site"], expected.probabilities[0])
    assert predictions.deviations == {}
    assert (predictions.folds, predictions.notes) == (("2",) * 3, ("",) * 3)


def test_passes_are_averaged_in_own_units(saved, study):
    names = ["s4", "s0", "s7"]
    predictions = predict_rows(saved, study, names, PLAIN, 3)
    rarefactions = [
        run_model(saved.network, study, study.rows(names), CPU, PLAIN, -2 - each)
        for each in range(3)
    ]
    reads = np.expm1(np.stack([draw.target[:, 1] for draw in rarefactions]) * 0.5 + 2)
    assert reads.std(axis=0).max() > 1e-3
    np.testing.assert_allclose(predictions.values["reads"], reads.mean(axis=0))
    np.testing.assert_allclose(predictions.deviations["reads"], reads.std(axis=0))
    expected = np.mean([draw.probabilities[0] for draw in rarefactions], axis=0)
    np.testing.assert_allclose(predictions.probabilities["site"], expected)
    np.testing.assert_allclose(predictions.probabilities["site"].sum(axis=1), 1, atol=1e-6)
    assert_same(predict_rows(saved, study, names, PLAIN, 3), predictions, 0)


def test_rows_without_a_prediction_say_why():
    full = table()
    predictions = full.with_rows(["007", "shallow", "a"], {"shallow": "12 reads, fewer than 1000"})
    assert predictions.sample_ids == ("007", "shallow", "a")
    assert predictions.notes == ("", "12 reads, fewer than 1000", "")
    assert predictions.folds == ("", "", "")
    for column in ("values", "deviations", "probabilities"):
        for name, values in getattr(full, column).items():
            laid_out = getattr(predictions, column)[name]
            np.testing.assert_array_equal(laid_out[[2, 0]], values)
            assert np.isnan(laid_out[1]).all()


def test_folds_are_joined_and_an_unseen_label_has_probability_0():
    first = table(("a", "b"), folds=("0", "0"))
    second = table(
        ("c",),
        notes=("x",),
        folds=("1",),
        specs=(AGE, TargetSpec("site", "class", ("air", "gut", "skin"))),
    )
    predictions = joined([first, second])
    assert predictions.sample_ids == ("a", "b", "c")
    assert predictions.folds == ("0", "0", "1")
    assert predictions.notes == ("", "", "x")
    assert predictions.specs[1].labels == ("air", "gut", "oral", "skin")
    np.testing.assert_array_equal(
        predictions.values["age"], np.r_[first.values["age"], second.values["age"]]
    )
    one, other = first.probabilities["site"], second.probabilities["site"]
    np.testing.assert_array_equal(predictions.probabilities["site"][:2], np.c_[[0, 0], one])
    np.testing.assert_array_equal(
        predictions.probabilities["site"][2], [other[0, 0], other[0, 1], 0, other[0, 2]]
    )
    assert_same(joined([first]), first, 0)


def test_members_are_averaged_over_the_labels_of_all():
    first = table()
    other = table(specs=(AGE, replace(SITE, labels=("gut", "air", "skin"))))
    predictions = combined([first, other])
    assert predictions.specs[1].labels == ("air", "gut", "oral", "skin")
    one, two = first.probabilities["site"], other.probabilities["site"]
    expected = (
        np.stack([two[:, 1], one[:, 0] + two[:, 0], one[:, 1], one[:, 2] + two[:, 2]], axis=1) / 2
    )
    np.testing.assert_allclose(predictions.probabilities["site"], expected)
    assert combined([first]) is first
    shifted = replace(
        first,
        values={"age": first.values["age"] + 4},
        deviations={"age": 2 * first.deviations["age"]},
    )
    both = combined([first, shifted])
    np.testing.assert_allclose(both.values["age"], first.values["age"] + 2)
    np.testing.assert_allclose(both.derived["age.member-sd"], 2)
    np.testing.assert_allclose(both.deviations["age"], np.sqrt(2.5) * first.deviations["age"])


def balanced(classes: np.ndarray) -> np.ndarray:
    return len(classes) / 2 / np.bincount(classes)[classes]


def centred(values: np.ndarray) -> np.ndarray:
    values = values - values.mean(axis=0)
    return values / np.sqrt(np.square(values).sum(axis=1).mean())


def study_of(seed: int, n: int = 120, strength: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Return features, one of which is of the class, and classes."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 2, n)
    x = rng.normal(size=(n, 10))
    x[:, 0] += strength * classes
    return centred(x), classes


def test_the_kernel_is_that_of_presence_and_of_logs_relative_to_the_mean():
    rng = np.random.default_rng(0)
    counts = [rng.poisson(0.8, (12, 30)).astype(float) for _ in range(3)]
    samples = Samples(None, np.arange(12), np.arange(30), tuple(map(sparse.csr_matrix, counts)))
    expected = np.zeros((12, 12))
    for read in (np.sign, np.log1p):
        values = [read(one) - read(one).mean(axis=0) for one in counts]
        gram = np.mean([one @ one.T for one in values], axis=0)
        expected += gram / np.diag(gram).mean() / 2
    places = np.array([7, 2, 3])
    np.testing.assert_allclose(study_kernel(samples, places), expected[:, places], atol=1e-12)


def test_a_candidate_is_ridge_regression_of_what_the_prediction_leaves(monkeypatch):
    x, classes = study_of(1)
    places, probability = np.arange(0, 120, 8), np.random.default_rng(2).random(120) * 0.2 + 0.4
    base = (probability - probability.mean()) / probability.std()
    scores, evidence = [], []
    for slope, share in ((0.2, 0.3), (0.5, 0.3)):
        left, weights = 2 * classes[places] - 1 - slope * base[places], balanced(classes[places])
        ridge = Ridge((1 - share) / share, fit_intercept=False).fit(x[places], left, weights)
        scores.append(slope * base + ridge.predict(x))
        covariance = share * x[places] @ x[places].T + np.diag((1 - share) / weights)
        density = multivariate_normal.logpdf(left, cov=covariance * (1 - slope**2))
        evidence.append(density - (prediction.PENALTY if slope == 0.2 else 0))
    weights = np.exp(np.array(evidence) - max(evidence))
    expected = (1 + np.tanh(weights @ np.stack(scores) / weights.sum())) / 2
    monkeypatch.setattr(prediction, "SLOPES", (0.2, 0.5))
    monkeypatch.setattr(prediction, "SHARES", (0.3,))
    np.testing.assert_allclose(
        adapt(x @ x[places].T, probability, places, classes[places]), expected, atol=1e-9
    )


@pytest.mark.parametrize("number", [6, 20])
def test_labels_decide_where_the_prediction_says_nothing_and_not_where_it_says_all(number):
    gain, loss = [], []
    for seed in range(10):
        x, classes = study_of(seed)
        rng = np.random.default_rng(seed)
        places = np.concatenate(
            [np.flatnonzero(classes == value)[: number // 2] for value in (0, 1)]
        )
        others = np.setdiff1d(np.arange(120), places)
        kernel = x @ x[places].T
        for truth, base, differences in (
            (classes, rng.random(120), gain),
            (hidden := rng.permutation(classes), 0.3 + 0.4 * hidden + 0.1 * rng.random(120), loss),
        ):
            both = (truth[places] == 0).any() and (truth[places] == 1).any()
            adapted = adapt(kernel, base, places, truth[places]) if both else base
            assert ((adapted > 0) & (adapted < 1)).all()
            before, after = (auroc(truth[others] == 1, one[others]) for one in (base, adapted))
            differences.append(after - before)
    assert np.mean(gain) > (0.05 if number == 6 else 0.25)
    assert np.mean(loss) > -0.01


def test_labels_of_nothing_leave_chance():
    areas = []
    for seed in range(40):
        x, classes = study_of(seed)
        permuted = np.random.default_rng(seed).permutation(classes)
        places = np.arange(20)
        adapted = adapt(
            x @ x[places].T, np.random.default_rng(seed + 1).random(120), places, permuted[places]
        )
        areas.append(auroc(permuted[20:] == 1, adapted[20:]))
    assert np.mean(areas) == pytest.approx(0.5, abs=0.02)
