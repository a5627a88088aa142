"""When a network joins the mean of other members."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from aam.data.targets import Targets, TargetSpec
from aam.evaluate.predictions import PredictionTable, make_predictions
from aam.predict.membership import change_of_error, earns_place, figures_of, untrusted_because
from aam.predict.network import Network
from tests.data.studies import metadata_of


def simulated(change: float, spread: float, groups: int, seed: int = 0) -> tuple:
    """Errors of 8 samples of each group with a relative change that differs between groups."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), 8)
    old = random.uniform(1, 2, len(group))
    of_group = change + spread * random.standard_normal(groups)
    return (old + of_group[group] * old.mean())[:, None], old[:, None], group


def test_the_change_is_relative_and_its_error_is_that_of_groups():
    """The spread of the estimates over many studies is the standard error of each."""
    estimates, errors = zip(
        *(change_of_error(*simulated(-0.1, 0.2, 12, seed)) for seed in range(400)), strict=True
    )
    assert np.mean(estimates) == pytest.approx(-0.1, abs=0.01)
    assert np.std(estimates) == pytest.approx(0.2 / np.sqrt(12), rel=0.1)
    assert np.mean(errors) == pytest.approx(np.std(estimates), rel=0.1)


def test_units_of_targets_do_not_matter_and_missing_values_are_left_out():
    new, old, group = simulated(-0.1, 0.2, 6)
    expected = change_of_error(new, old, group)
    both = [np.concatenate([part, 1000 * part], axis=1) for part in (new, old)]
    assert change_of_error(*both, group) == pytest.approx(expected)
    lacking = [np.concatenate([part, np.full_like(part, np.nan)]) for part in (new, old)]
    more = np.concatenate([group, group + 100])
    assert change_of_error(*lacking, more) == pytest.approx(expected)


def test_one_group_vouches_for_nothing():
    new, old, group = simulated(-0.5, 0.0, 1)
    change, error = change_of_error(new, old, group)
    assert change == pytest.approx(-0.5)
    assert not change < -error


def test_a_network_that_changes_nothing_has_no_place():
    _, old, group = simulated(0.0, 0.0, 5)
    assert change_of_error(old, old, group) == (0.0, 0.0)
    perfect = np.zeros_like(old)
    assert change_of_error(perfect, perfect, group) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "error", "accuracy", "joins"),
    [
        (-0.12, 0.05, 0.91, True),
        (-0.05, 0.05, 0.91, False),
        (-0.12, 0.05, 0.90, False),
        (-0.12, 0.05, 0.88, False),
        (-0.12, np.inf, 0.91, False),
    ],
)
def test_a_network_joins_if_error_and_headline_metric_improve(change, error, accuracy, joins):
    of_diet = {"accuracy of diet": 0.9}
    assert earns_place(change, error, of_diet, {"accuracy of diet": accuracy}) is joins
    assert earns_place(change, error, {}, {}) is (change < -error)


NUMBER = TargetSpec("age", "numeric", bounds=(1.0, 9.0))
CLASS = TargetSpec("diet", "class", labels=("milk", "solid"))


def reason_of(study, specs, ids, best_epoch=3, group_column="child", **columns) -> str:
    """Why samples of a study with these columns cannot vouch for a network, or ''."""
    usual = {
        "age": [1, 2, 3, 4, 5, 6, 7, 8, 9],
        "diet": ["milk", "milk", "milk", "", "milk", "solid", "solid", "solid", "solid"],
        "child": ["a", "a", "b", "b", "c", "c", "d", "d", "d"],
    }
    config = replace(study.config, group_column=group_column)
    study = replace(study, metadata=metadata_of(**{**usual, **columns}), config=config)
    network = Network(targets=Targets(specs))
    network.fitted_ = SimpleNamespace(best_epoch=best_epoch)
    return untrusted_because(network, study, ids)


ENDING = "; a larger --validation-size lets it be judged"


@pytest.mark.parametrize(
    ("specs", "ids", "expected"),
    [
        ((CLASS,), [], "no validation sample chose its epoch"),
        ((CLASS,), ["s0", "s2", "s4"], "the 3 validation samples hold one value of 'diet'"),
        # A missing class is no second class, and a number is one class too if it is constant.
        ((CLASS,), ["s0", "s2", "s3"], "the 3 validation samples hold one value of 'diet'"),
        ((NUMBER,), ["s4"], "the 1 validation samples hold one value of 'age'"),
        ((CLASS,), ["s3"], "the 1 validation samples hold one value of 'diet'"),
        ((CLASS,), ["s4", "s5"], "the 2 validation samples are of one child"),
        ((NUMBER,), ["s6", "s7", "s8"], "the 3 validation samples are of one child"),
    ],
)
def test_validation_samples_of_one_class_or_group_or_none_vouch_for_no_network(
    study, specs, ids, expected
):
    assert reason_of(study, specs, ids) == expected + ENDING


def test_samples_of_two_classes_and_two_groups_vouch_for_a_network(study):
    assert reason_of(study, (CLASS,), ["s0", "s5"]) == ""
    # One target of two that varies is enough.
    assert reason_of(study, (CLASS, NUMBER), ["s0", "s2"]) == ""
    # Without groups each sample is one.
    assert reason_of(study, (CLASS,), ["s4", "s5"], group_column=None) == ""
    assert "its best epoch is the start" in reason_of(study, (CLASS,), ["s0", "s5"], best_epoch=0)


def test_surer_probabilities_lower_the_error_and_not_the_headline_metric(study):
    """In mackerel a mean with a network had 8 % less squared error and more samples wrong."""
    ids = [f"s{row}" for row in range(9)]
    study = replace(study, metadata=metadata_of(diet=["milk"] * 3 + ["solid"] * 3 + ["fish"] * 3))
    spec = TargetSpec("diet", "class", labels=("fish", "milk", "solid"))
    truth = np.repeat([1, 2, 0], 3)

    def table(confidence: float, wrong: int) -> PredictionTable:
        chosen = np.where(np.arange(9) < wrong, 0, truth)
        probabilities = np.where(np.eye(3)[chosen] > 0, confidence, (1 - confidence) / 2)
        return make_predictions(ids, [spec], {"diet": probabilities})

    (hesitant, headline), (sure, of_sure) = (
        figures_of(part, [spec], study) for part in (table(0.5, 0), table(0.9, 1))
    )
    assert hesitant.shape == (9, 1)
    assert sure.mean() < hesitant.mean()
    assert headline == {"accuracy of diet": 1.0}
    assert of_sure == {"accuracy of diet": pytest.approx(8 / 9)}
