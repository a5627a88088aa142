"""Predictions in own units, averaged over draws, written as a table and read back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aam.data.rarefaction import EVALUATION
from aam.data.region import RegionProfile
from aam.data.targets import Targets, TargetSpec
from aam.evaluate.predictions import TEXT_COLUMNS, combined, joined
from aam.model.aam import HeadConfig
from aam.options import RuntimeConfig
from aam.predict.prediction import predict_rows
from aam.predict.saved_model import SavedModel
from aam.training.inference import run_model
from tests.evaluate.conftest import AGE, READS, SITE, assert_same, table
from tests.predict.samples import saved_model

CPU, PLAIN = torch.device("cpu"), RuntimeConfig()


@pytest.fixture
def saved(model_of, study) -> SavedModel:
    heads = HeadConfig(n_targets=2, n_classes=(3,))
    profile = RegionProfile.fit(study.table.sequences)
    return saved_model(model_of(heads), heads, Targets((AGE, SITE, READS)), profile=profile)


def test_predictions_are_in_own_units(saved, study):
    """Failure 1 of the predecessor: they stayed in transformed units and were not rarefied."""
    predictions = predict_rows(saved, study, ["s4", "s0", "s7"], PLAIN, 1, "2")
    expected = run_model(saved.network, study, np.array([4, 0, 7]), CPU, PLAIN, EVALUATION - 1)
    assert predictions.sample_ids == ("s4", "s0", "s7")
    assert predictions.specs == (AGE, SITE, READS)
    np.testing.assert_allclose(predictions.predicted("age"), expected.target[:, 0] * 15 + 40)
    reads = np.expm1(expected.target[:, 1] * 0.5 + 2)
    np.testing.assert_allclose(predictions.predicted("reads"), reads)
    np.testing.assert_array_equal(predictions.predicted("site"), expected.probabilities[0])
    assert "age.rarefaction-sd" not in predictions.frame
    assert (predictions.texts("fold"), predictions.texts("note")) == (("2",) * 3, ("",) * 3)


def test_passes_are_averaged_in_own_units(saved, study):
    names = ["s4", "s0", "s7"]
    predictions = predict_rows(saved, study, names, PLAIN, 3)
    of = saved.network, study, study.rows(names), CPU, PLAIN
    rarefactions = [run_model(*of, -2 - number) for number in range(3)]
    reads = np.expm1(np.stack([draw.target[:, 1] for draw in rarefactions]) * 0.5 + 2)
    assert reads.std(axis=0).max() > 1e-3
    np.testing.assert_allclose(predictions.predicted("reads"), reads.mean(axis=0))
    np.testing.assert_allclose(predictions.frame["reads.rarefaction-sd"], reads.std(axis=0))
    expected = np.mean([draw.probabilities[0] for draw in rarefactions], axis=0)
    np.testing.assert_allclose(predictions.predicted("site"), expected)
    np.testing.assert_allclose(predictions.predicted("site").sum(axis=1), 1, atol=1e-6)
    assert_same(predict_rows(saved, study, names, PLAIN, 3), predictions, 0)


def test_rows_without_a_prediction_say_why():
    full = table()
    predictions = full.with_rows(["007", "shallow", "a"], {"shallow": "12 reads, fewer than 1000"})
    assert predictions.sample_ids == ("007", "shallow", "a")
    assert predictions.texts("note") == ("", "12 reads, fewer than 1000", "")
    assert predictions.texts("fold") == ("", "", "")
    numbers = full.frame.drop(columns=[*TEXT_COLUMNS])
    laid_out = predictions.frame[numbers.columns]
    np.testing.assert_array_equal(laid_out.iloc[[2, 0]], numbers)
    assert laid_out.iloc[1].isna().all()


def test_folds_are_joined_and_an_unseen_label_has_probability_0():
    first = table(("a", "b"), folds=("0", "0"))
    specs = AGE, TargetSpec("site", "class", ("air", "gut", "skin"))
    second = table(("c",), notes=("x",), folds=("1",), specs=specs)
    predictions = joined([first, second])
    assert predictions.sample_ids == ("a", "b", "c")
    assert predictions.texts("fold") == ("0", "0", "1")
    assert predictions.texts("note") == ("", "", "x")
    assert predictions.specs[1].labels == ("air", "gut", "oral", "skin")
    ages = np.r_[first.predicted("age"), second.predicted("age")]
    np.testing.assert_array_equal(predictions.predicted("age"), ages)
    one, other = first.predicted("site"), second.predicted("site")
    site = np.r_[np.c_[[0, 0], one], np.insert(other, 2, 0, axis=1)]
    np.testing.assert_array_equal(predictions.predicted("site"), site)
    assert_same(joined([first]), first, 0)


def test_members_are_averaged_over_the_labels_of_all():
    first = table()
    other = table(specs=(AGE, replace(SITE, labels=("gut", "air", "skin"))))
    predictions = combined([first, other])
    assert predictions.specs[1].labels == ("air", "gut", "oral", "skin")
    one, two = first.predicted("site"), other.predicted("site")
    sums = [two[:, 1], one[:, 0] + two[:, 0], one[:, 1], one[:, 2] + two[:, 2]]
    np.testing.assert_allclose(predictions.predicted("site"), np.stack(sums, axis=1) / 2)
    assert combined([first]) is first
    spread = first.frame["age.rarefaction-sd"]
    shifted = first.with_columns(
        {"age": first.predicted("age") + 4, "age.rarefaction-sd": 2 * spread}
    )
    both = combined([first, shifted])
    np.testing.assert_allclose(both.predicted("age"), first.predicted("age") + 2)
    np.testing.assert_allclose(both.frame["age.member-sd"], 2)
    np.testing.assert_allclose(both.frame["age.rarefaction-sd"], np.sqrt(2.5) * spread)
