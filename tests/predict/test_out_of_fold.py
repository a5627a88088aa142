"""Out-of-fold predictions: what is learned from, and what each sample gets."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.neighbors import KNeighborsRegressor

from aam.predict.column_estimators import LevelMedian, LevelShares, ShrunkenLevelMean
from aam.predict.members import RidgePath
from aam.predict.out_of_fold import Fold, group_folds, out_of_fold

FOLDS = [Fold(*pair) for pair in KFold(4).split(np.zeros(20))]
RANDOM = np.random.default_rng(7)
INPUTS, NUMBERS = RANDOM.normal(size=(20, 3)), RANDOM.normal(size=20)
CODES = np.arange(20) % 3


def test_predictions_are_those_of_scikit_learn_where_folds_divide_all_samples():
    model = LogisticRegression()
    expected = cross_val_predict(model, INPUTS, CODES, cv=KFold(4), method="predict_proba")
    np.testing.assert_array_equal(out_of_fold(model, INPUTS, CODES, FOLDS, 3), expected)


def test_a_matrix_between_samples_is_divided_by_rows_and_columns():
    distances = np.abs(NUMBERS[:, None] - NUMBERS)
    model = KNeighborsRegressor(3, metric="precomputed")
    expected = cross_val_predict(model, distances, NUMBERS, cv=KFold(4))
    np.testing.assert_array_equal(out_of_fold(model, distances, NUMBERS, FOLDS), expected)


def test_samples_without_a_value_are_predicted_and_not_learned_from():
    numbers = np.where(np.arange(20) < 10, np.nan, NUMBERS)
    predicted = out_of_fold(
        DummyRegressor(), INPUTS, numbers, [Fold(np.arange(5, 20), FOLDS[0].test)]
    )
    np.testing.assert_allclose(predicted[:5], NUMBERS[10:].mean())
    assert np.isnan(predicted[5:]).all(), "in no fold"
    none = out_of_fold(DummyRegressor(), INPUTS, numbers, [Fold(np.arange(10), np.arange(10, 20))])
    assert np.isnan(none).all()


def test_classes_that_training_lacks_have_probability_0():
    codes = np.where(np.arange(20) < 5, 0, 1 + np.arange(20) % 2)
    predicted = out_of_fold(DummyClassifier(strategy="prior"), INPUTS, codes, FOLDS, 4)
    assert predicted.shape == (20, 4)
    assert (predicted[:5, 0] == 0).all()
    assert (predicted[:, 3] == 0).all()
    np.testing.assert_allclose(predicted.sum(axis=1), 1)


def test_a_new_level_has_no_prediction_or_that_of_all_samples():
    levels = np.array(["once", *["a", "b"] * 9, "a"])
    assert np.flatnonzero(
        np.isnan(out_of_fold(LevelMedian(), levels, NUMBERS, FOLDS))
    ).tolist() == [0]
    shares = out_of_fold(LevelShares(), levels, CODES, FOLDS, 3)
    assert np.flatnonzero(np.isnan(shares).all(axis=1)).tolist() == [0]
    assert np.isfinite(shares[1:]).all()
    means = out_of_fold(ShrunkenLevelMean(), levels, NUMBERS[:, None], FOLDS)
    assert means[0] == pytest.approx(NUMBERS[5:].mean())


class OfStudy(BaseEstimator):
    """Predicts the mean of the samples on which it was centred."""

    def fit(self, samples, numbers, studies):
        assert len(samples) == len(numbers) == len(studies)
        return self

    def centred_on(self, samples):
        self.mean_ = samples.mean()
        return self

    def predict(self, samples):
        return np.full(len(samples), self.mean_)


def test_each_study_is_predicted_relative_to_its_own_samples():
    studies = np.array(["x", "y"])[np.arange(20) % 2]
    predicted = out_of_fold(OfStudy(), NUMBERS, NUMBERS, FOLDS, studies=studies, groups=None)
    for _, test in FOLDS:
        for study in ("x", "y"):
            rows = test[studies[test] == study]
            np.testing.assert_allclose(predicted[rows], NUMBERS[rows].mean())


def test_an_estimator_may_predict_one_number_for_each_penalty():
    kernel, weights = INPUTS @ INPUTS.T, RANDOM.random(20) + 0.5
    path = RidgePath(np.array([0.1, 1e9]))
    predicted = out_of_fold(path, kernel, NUMBERS[:, None], FOLDS, sample_weight=weights)
    assert predicted.shape == (20, 2, 1)
    for train, test in FOLDS:
        mean = np.average(NUMBERS[train], weights=weights[train])
        np.testing.assert_allclose(predicted[test, 1, 0], mean, atol=1e-6)


def test_folds_hold_whole_groups_and_one_group_has_none():
    ids, groups = [f"s{row}" for row in range(20)], [f"g{row // 4}" for row in range(20)]
    folds = group_folds(ids, 9, groups, None, seed=1)
    assert len(folds) == 5
    assert sorted(np.concatenate([fold.test for fold in folds])) == list(range(20))
    for train, test in folds:
        assert not {groups[row] for row in train} & {groups[row] for row in test}
        assert len(train) + len(test) == 20
    assert group_folds(ids, 5, ["g"] * 20, None, seed=1) == []
