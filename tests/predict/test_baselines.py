"""Baselines that do not look at which ASVs a sample has, against closed forms and known values."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics
from sklearn.ensemble import RandomForestRegressor

from aam.config import CovariateConfig
from aam.data.loader import rarefied_batch
from aam.data.rarefaction import EVALUATION
from aam.data.study import MetadataColumns, StudyPart
from aam.evaluate import comparison
from aam.evaluate.comparison import Baseline
from aam.evaluate.predictions import make_predictions
from aam.predict import baselines
from aam.predict.baselines import (
    BOOSTING,
    FIELD_DEFAULT,
    NEIGHBOURS,
    TargetData,
    baselines_by_target,
    baselines_of,
    make_baselines,
)
from aam.predict.out_of_fold import Fold
from tests.evaluate.small_study import AGE, BY_CHILD, DIET, IDS, SPLITS, learned, metadata

LEARNED = {*make_baselines(False, 1, 1, 0), FIELD_DEFAULT, BOOSTING, NEIGHBOURS}


def folds_of(fold: np.ndarray) -> tuple[Fold, ...]:
    return tuple(Fold(*map(np.flatnonzero, (fold != one, fold == one))) for one in np.unique(fold))


def numeric_task(samples: int = 60, seed: int = 0) -> TargetData:
    draw = np.random.default_rng(seed)
    return TargetData(
        truth=draw.normal(size=samples),
        labels=(),
        folds=folds_of(np.arange(samples) % 3),
        depth=draw.integers(1000, 9000, samples),
        richness=draw.integers(20, 90, samples),
        levels={"site": np.repeat(["a", "b", "c"], samples // 3)},
    )


def class_task(samples: int = 60, number: int = 3, seed: int = 0) -> TargetData:
    task = numeric_task(samples, seed)
    draw = np.random.default_rng(seed)
    return replace(task, truth=draw.integers(number, size=samples), labels=tuple("abcdef"[:number]))


def flat(task: TargetData) -> TargetData:
    """A task whose samples have one depth and richness, of which no forest is made."""
    return replace(task, depth=np.full(60, 1000), richness=np.full(60, 50))


def named(all_baselines: tuple[Baseline, ...]) -> dict[str, np.ndarray]:
    return {one.name: one.predicted for one in all_baselines}


def test_guesses_are_those_of_the_training_side():
    """The median or the most frequent class; the median or the class shares of a level."""
    for task in (flat(numeric_task()), class_task()):
        predictions = named(baselines.trivial_baselines(task))
        guess, level = comparison.MEDIAN, "the site's median"
        if task.labels:
            guess, level = comparison.MAJORITY, "the site's classes"
        for fold in task.folds:
            truth, site = task.truth[fold.train], task.levels["site"]
            of_level = truth[site[fold.train] == "b"]
            expected, inside = np.median(truth), np.median(of_level)
            if task.labels:
                expected = np.eye(3)[np.bincount(truth).argmax()]
                inside = np.bincount(of_level, minlength=3) / len(of_level)
            assert (predictions[guess][fold.test] == expected).all()
            here = fold.test[site[fold.test] == "b"]
            np.testing.assert_allclose(predictions[level][here] - inside, 0, atol=1e-9)


@pytest.mark.parametrize(
    "task", [numeric_task(), class_task(), class_task(number=2)], ids=["numeric", "3", "2"]
)
def test_no_baseline_sees_the_truth_of_what_it_predicts(task: TargetData):
    """Other truths on the held-out side change none of its predictions."""
    fold = task.folds[0]
    one = replace(task, folds=(fold,))
    other = task.truth.copy()
    other[fold.test] = other[fold.test][::-1] if task.labels else 99.0
    first, second = (
        named(baselines.trivial_baselines(given)) for given in (one, replace(one, truth=other))
    )
    assert first.keys() == second.keys()
    for name, predicted in first.items():
        np.testing.assert_array_equal(predicted, second[name])
        assert np.isnan(predicted[fold.train]).all()
        assert np.isfinite(predicted[fold.test]).all()


def test_a_level_never_trained_on_has_no_baseline():
    task = flat(numeric_task())
    site = task.levels["site"].copy()
    site[0] = "only here"
    predictions = named(baselines.trivial_baselines(replace(task, levels={"site": site})))
    assert np.flatnonzero(np.isnan(predictions["the site's median"])).tolist() == [0]
    whole = replace(task, folds=folds_of(task.levels["site"]))
    assert "the site's median" not in named(baselines.trivial_baselines(whole))


def test_missing_truth_is_not_learned_from():
    task, classes = flat(numeric_task()), class_task()
    holes = np.where(np.arange(60) % 2, task.truth, np.nan)
    predictions = named(baselines.trivial_baselines(replace(task, truth=holes)))
    fold = task.folds[0]
    assert predictions[comparison.MEDIAN][fold.test][0] == np.nanmedian(holes[fold.train])
    holes = np.where(np.arange(60) % 2, classes.truth, -1)
    predictions = named(baselines.trivial_baselines(replace(classes, truth=holes)))
    assert all(np.isfinite(predicted).all() for predicted in predictions.values())


@pytest.mark.parametrize("direction", [1, -1])
def test_depth_that_separates_two_classes_is_found(direction: int):
    """In each fold the AUROC is that of the depth itself, whichever side is deeper."""
    task, noise = class_task(number=2), np.random.default_rng(1).normal(0, 0.4, 60)
    depth = np.exp(8 + direction * task.truth + noise).astype(int)
    predictions = named(baselines.trivial_baselines(replace(task, depth=depth)))
    alone = predictions[comparison.DEPTH_ALONE][:, 1]
    for _, test in task.folds:
        expected = sklearn.metrics.roc_auc_score(task.truth[test], direction * depth[test])
        found = sklearn.metrics.roc_auc_score(task.truth[test], alone[test])
        assert found == pytest.approx(expected)
    right = (predictions[comparison.DEPTH_AND_RICHNESS].argmax(axis=1) == task.truth).mean()
    assert right > 0.85


def test_point_2_covariates_alone_are_a_baseline():
    """A noise target with its own quintile as covariate: the quintile alone is nearly right."""
    task = numeric_task(samples=150)
    quintile = np.searchsorted(np.quantile(task.truth, [0.2, 0.4, 0.6, 0.8]), task.truth)
    block = (quintile[:, None] == np.arange(5)) / 2
    predictions = named(baselines.trivial_baselines(replace(task, covariates=block)))
    assert sklearn.metrics.r2_score(task.truth, predictions[comparison.COVARIATES]) > 0.75
    assert comparison.COVARIATES not in named(baselines.trivial_baselines(flat(numeric_task())))


@pytest.fixture(scope="module")
def study(study_of, tiny):
    given = tiny(samples=24, asvs=30)
    given["counts"][2:, 7] = 0
    return study_of(**given)


@pytest.fixture(scope="module")
def of_age(study):
    """What the learned baselines predict of age."""
    return learned(study)


# --- learning ----------------------------------------------------------------------------------


def test_no_learned_baseline_sees_the_truth_of_what_it_predicts(study, of_age):
    ages = [str(1.5 * row) for row in range(24)]
    other = [age if row % 3 else "999" for row, age in enumerate(ages)]
    first, second = of_age, learned(study, ages=other)
    assert set(first) == set(LEARNED)
    for name, predicted in first.items():
        np.testing.assert_array_equal(predicted[::3], second[name][::3])
        assert np.isfinite(predicted[[0, 1, 3, 4]]).all()
        assert np.isnan(predicted[2::3]).all(), "in no fold held out"
        assert (predicted[1::3] != second[name][1::3]).any(), "learned from in the other fold"


def test_neighbours_are_those_on_unifrac(study, monkeypatch):
    monkeypatch.setattr(baselines, "NEIGHBOUR_COUNT", 2)
    batch = rarefied_batch(study, np.arange(24), EVALUATION - 1)
    place = [batch.sample_ids.index(name) for name in IDS]
    distance = batch.distance.numpy()[np.ix_(place, place)]
    sides, expected = np.array(SPLITS[0].subsets), []
    train, test = np.flatnonzero(sides == "train"), np.flatnonzero(sides == "test")
    for row in test:
        near = train[np.argsort(distance[row][train])[:2]]
        expected.append(np.average(1.5 * near, weights=1 / distance[row][near]))
    assert learned(study)[NEIGHBOURS][test] == pytest.approx(np.array(expected), rel=1e-4)


def test_classes_are_probabilities_and_one_that_training_lacks_gets_0(study):
    predicted_by_name = learned(study, replace(DIET, labels=("air", "food", "milk")))
    for name in LEARNED:
        held_out = predicted_by_name[name][::3]
        np.testing.assert_allclose(held_out.sum(axis=1), 1)
        assert held_out[:, 0].max() == 0


def test_without_a_tree_there_are_no_neighbours(study, caplog):
    study = replace(study, parts=(StudyPart(),), metadata=metadata(), config=BY_CHILD)
    values = {"age": np.ones(24), "diet": np.full((24, 2), 0.5)}
    table = make_predictions(IDS, (AGE, DIET), values)
    with caplog.at_level(logging.INFO, "aam"):
        learned_by_target = baselines_by_target(table, study, SPLITS, True)
    for name, learned_baselines in learned_by_target.items():
        strong = {one.name for one in learned_baselines if not one.trivial}
        assert strong == LEARNED - {NEIGHBOURS}
        assert f"baseline {FIELD_DEFAULT} of {name}: " in caplog.text
    assert caplog.text.count("it needs --tree") == 1


def test_estimators_and_neighbours_read_the_covariates_too(study, of_age):
    """The target is a covariate: what reads it errs less."""
    columns = MetadataColumns(covariates=CovariateConfig(numeric_columns=("age",)))
    study = replace(study, metadata=metadata(), config=BY_CHILD, columns=columns)
    predicted = baselines_of(study, SPLITS, AGE, True, passes=1)
    truth = 1.5 * np.arange(24)
    held_out = np.arange(24) % 3 < 2
    for one in predicted:
        # Leaves of boosting have 20 samples; q2-sample-classifier reads the table only.
        if not one.trivial and one.name not in (BOOSTING, FIELD_DEFAULT):
            error = np.abs(one.predicted - truth)[held_out].mean()
            assert error < 0.9 * np.abs(of_age[one.name] - truth)[held_out].mean(), one.name
    assert "covariates alone" in {one.name for one in predicted}


def test_the_default_of_the_field_is_a_forest_on_counts_as_they_are(study, of_age):
    counts, truth = study.table.counts.toarray(), 1.5 * np.arange(24)
    predicted = of_age[FIELD_DEFAULT]
    for split in SPLITS:
        train, test = (study.rows(ids) for ids in (split.not_held_out, split.held_out))
        forest = RandomForestRegressor(random_state=study.seed).fit(counts[train], truth[train])
        np.testing.assert_allclose(predicted[test], forest.predict(counts[test]))
