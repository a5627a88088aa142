"""Targets, losses and weights of samples are joined to a study, fitted on its training samples."""

from __future__ import annotations

import dataclasses
import json

import pytest

from aam.config import CovariateConfig, TargetConfig
from aam.data.covariates import Covariates
from aam.data.supervision import sample_weights, supervised, weight_column
from aam.data.targets import Targets
from aam.errors import InputError
from aam.options import pairs
from tests.data.small_metadata import IDS, METADATA, TRAIN


def weights(*asked: str, column: str = "diet") -> list[float]:
    return sample_weights(METADATA, column, asked, TRAIN, IDS).tolist()


def test_weights_by_category():
    """Balanced: each category weighs alike in all, and the mean over training samples that have one is 1."""
    assert weights("milk=2", "bread=0.5", "rice=3") == [2, 2, 0.5, 0.5, 0.5, 1, 2, 3, 1]
    assert weights('{"milk": 2,', '"bread": 0.5}') == [2, 2, 0.5, 0.5, 0.5, 1, 2, 1, 1]
    balanced = weights("balanced")
    assert balanced == weights("auto")
    assert balanced == pytest.approx([1.25, 1.25, 5 / 6, 5 / 6, 5 / 6, 1, 1.25, 1, 1])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("milk=1", "has no weight for 'bread', which 'diet' has"),
        ("milk=1 bread=1 cake=2", "names 'cake', which 'diet' has not"),
        ("milk=1 bread=-1", "expected finite numbers of 0 or more"),
        ("milk=0 bread=0", "one of them above 0"),
        ("milk=0 bread=0 rice=1", "for a category of the training samples ('bread', 'milk')"),
        ("milk=1 bread=nan", "expected finite numbers of 0 or more"),
        ("milk=1 bread=inf", "expected finite numbers of 0 or more"),
        ("milk=1 bread=much", "expected finite numbers of 0 or more"),
        ("1 2", "expected NAME=VALUE, each name once"),
        ("milk=1 milk=2", "expected NAME=VALUE, each name once"),
        ('{"milk": 1', "not valid JSON"),
    ],
)
def test_weights_that_do_not_fit(asked, message):
    with pytest.raises(InputError, match="--categorical-loss-weights") as caught:
        weights(*asked.split())
    assert message in str(caught.value)


def test_the_column_of_weights():
    targets = TargetConfig(categorical_loss_weights=("balanced",))
    assert weight_column(targets, CovariateConfig(categorical_columns=("a", "b"))) == "a"
    named = dataclasses.replace(targets, categorical_loss_weight_column="c")
    assert weight_column(named, CovariateConfig(categorical_columns=("a", "b"))) == "c"
    assert weight_column(TargetConfig(), CovariateConfig(categorical_columns=("a",))) is None
    with pytest.raises(InputError, match="--categorical-loss-weight-column"):
        weight_column(targets, CovariateConfig())


@pytest.fixture
def study(study_of, tiny):
    return dataclasses.replace(study_of(**tiny()), metadata=METADATA)


def specs(study, *columns: str, activation: str = "none", **options):
    config = TargetConfig(metadata_column=columns, **options)
    return supervised(study, config, CovariateConfig(), activation, TRAIN)[1].specs


def test_losses_of_columns(study):
    column_specs = specs(
        study, "age", "site", "cold", loss_type="mse", loss_config=("cold=quantile",), quantiles=(0.1, 0.5)
    )
    assert [(spec.loss, spec.quantiles) for spec in column_specs] == [
        ("mse", ()),
        ("mse", ()),
        ("quantile", (0.1, 0.5)),
    ]
    for words in ((json.dumps({"age": "mae"}),), (json.dumps({"0": "mae"}),), ("0=mae",)):
        assert [spec.loss for spec in specs(study, "age", "cold", loss_config=words)] == ["mae", "huber"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss_config": ("site=mae",)}, r"--loss-config has 'site=mae', expected numeric columns \('age'\)"),
        ({"loss_config": ("age=lasso",)}, r"--loss-config has 'age=lasso'.*'quantile'"),
        ({"out_dim": 4}, "--out-dim is 4, expected 3 for these columns"),
    ],
)
def test_options_that_do_not_fit_the_columns(study, options, message):
    with pytest.raises(InputError, match=message):
        specs(study, "age", "site", **options)
    assert len(specs(study, "age", "site", out_dim=3)) == 2


def test_metrics_and_links_must_fit_the_columns(study):
    for metric, columns in (("auroc", ("age",)), ("f1", ("age",)), ("mae", ("site",)), ("r2", ("site",))):
        with pytest.raises(InputError, match=f"--best-metric {metric} is no metric of these columns"):
            specs(study, *columns, best_metric=metric)
        assert specs(study, "age", "site", best_metric=metric)
    with pytest.raises(InputError, match="--output-activation softplus gives no numbers below 0, but 'cold' has some"):
        specs(study, "age", "cold", activation="softplus")
    assert specs(study, "age", activation="softplus")


def test_all_that_is_taught(study):
    targets = TargetConfig(metadata_column=("age",), categorical_loss_weights=("balanced",))
    covariates = CovariateConfig(categorical_columns=("diet",), numeric_columns=("bmi",))
    taught, _, fitted_covariates = supervised(study, targets, covariates, "none", TRAIN)
    assert fitted_covariates.columns == ("diet", "bmi")
    assert taught.category.shape == taught.covariate.shape == (9, 1)
    assert taught.weight.tolist() == weights("balanced")
    assert supervised(study, TargetConfig(), CovariateConfig(), "none", TRAIN) == (
        study,
        taught_nothing(),
        Covariates(),
    )


def taught_nothing():

    return Targets(())


def test_pairs():
    assert pairs(("a=b=1", "c=2"), "--x") == {"a=b": "1", "c": "2"}
    assert pairs(('{"a":', "1.5}"), "--x") == {"a": "1.5"}
    assert pairs((), "--x") == {}
    for wrong in (("=1",), ("[1]",), ("{1}",)):
        with pytest.raises(InputError, match="--x is"):
            pairs(wrong, "--x")
