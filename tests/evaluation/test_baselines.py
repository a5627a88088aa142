"""Baselines against closed forms and known figures, and what is said of the model beside them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics

from aam.data.table import read_table, select_samples
from aam.evaluation import baselines, bootstrap, metrics
from aam.evaluation.baselines import DEPTH, DEPTH_AND_RICHNESS, MAJORITY, MEDIAN, Baseline, Fold, Task
from aam.evaluation.bootstrap import Predictions
from aam.evaluation.verdict import compare_with_baselines, held_out_whole, number, outcome, verdict


def folds_of(fold: np.ndarray) -> tuple[Fold, ...]:
    return tuple(Fold(fold != one, fold == one) for one in np.unique(fold))


def numeric_task(samples: int = 60, seed: int = 0) -> Task:
    draw = np.random.default_rng(seed)
    return Task(
        truth=draw.normal(size=samples),
        labels=(),
        folds=folds_of(np.arange(samples) % 3),
        depth=draw.integers(1000, 9000, samples),
        richness=draw.integers(20, 90, samples),
        levels={"site": np.repeat(["a", "b", "c"], samples // 3)},
    )


def class_task(samples: int = 60, number: int = 3, seed: int = 0) -> Task:
    task = numeric_task(samples, seed)
    draw = np.random.default_rng(seed)
    return replace(task, truth=draw.integers(number, size=samples), labels=tuple("abcdef"[:number]))


def named(found: tuple[Baseline, ...]) -> dict[str, np.ndarray]:
    return {one.name: one.predicted for one in found}


def test_the_median_is_that_of_the_training_side():
    task = numeric_task()
    found = named(baselines.trivial_baselines(task))
    for fold in task.folds:
        assert set(found[baselines.MEDIAN][fold.test]) == {np.median(task.truth[fold.train])}
        for site in "abc":
            here = task.levels["site"] == site
            expected = np.median(task.truth[fold.train & here])
            assert set(found["the site's median"][fold.test & here]) == {expected}


def test_classes_are_those_of_the_training_side():
    task = class_task()
    found = named(baselines.trivial_baselines(task))
    for fold in task.folds:
        most = np.bincount(task.truth[fold.train]).argmax()
        assert (found[baselines.MAJORITY][fold.test] == np.eye(3)[most]).all()
        here = task.levels["site"] == "b"
        shares = np.bincount(task.truth[fold.train & here], minlength=3) / (fold.train & here).sum()
        expected = np.broadcast_to(shares, (int((fold.test & here).sum()), 3))
        np.testing.assert_allclose(found["the site's classes"][fold.test & here], expected)
    for predicted in found.values():
        np.testing.assert_allclose(predicted.sum(axis=1), 1)


@pytest.mark.parametrize("task", [numeric_task(), class_task(), class_task(number=2)], ids=["numeric", "3", "2"])
def test_no_baseline_sees_the_truth_of_what_it_predicts(task: Task):
    """Other truths on the held-out side change none of its predictions."""
    fold = task.folds[0]
    one = replace(task, folds=(fold,))
    other = task.truth.copy()
    other[fold.test] = other[fold.test][::-1] if task.labels else 99.0
    first, second = (named(baselines.trivial_baselines(given)) for given in (one, replace(one, truth=other)))
    assert first.keys() == second.keys()
    for name, predicted in first.items():
        np.testing.assert_array_equal(predicted, second[name])
        assert np.isnan(predicted[~fold.test]).all()
        assert np.isfinite(predicted[fold.test]).all()


def test_a_level_never_trained_on_has_no_baseline():
    task = numeric_task()
    site = task.levels["site"].copy()
    site[0] = "only here"
    found = named(baselines.trivial_baselines(replace(task, levels={"site": site})))
    assert np.flatnonzero(np.isnan(found["the site's median"])).tolist() == [0]
    whole = replace(task, folds=folds_of(task.levels["site"]))
    assert "the site's median" not in named(baselines.trivial_baselines(whole))


def test_missing_truth_is_not_learned_from():
    task = numeric_task()
    holes = task.truth.copy()
    holes[::2] = np.nan
    found = named(baselines.trivial_baselines(replace(task, truth=holes)))
    fold = task.folds[0]
    assert found[baselines.MEDIAN][fold.test][0] == np.nanmedian(holes[fold.train])
    classes = class_task()
    holes = np.where(np.arange(60) % 2, classes.truth, -1)
    found = named(baselines.trivial_baselines(replace(classes, truth=holes)))
    assert all(np.isfinite(predicted).all() for predicted in found.values())
    nothing = replace(task, truth=np.full(60, np.nan))
    assert np.isnan(named(baselines.trivial_baselines(nothing))[baselines.MEDIAN]).all()


def test_one_depth_for_all_is_no_baseline():
    found = named(baselines.trivial_baselines(replace(numeric_task(), depth=np.full(60, 1000))))
    assert list(found) == [baselines.MEDIAN, baselines.RICHNESS, "the site's median"]


@pytest.mark.parametrize("direction", [1, -1])
def test_depth_that_separates_two_classes_is_found(direction: int):
    """Pooled over folds the AUROC is that of the depth itself, whichever side is deeper."""
    task = class_task(number=2)
    depth = np.exp(8 + direction * task.truth + np.random.default_rng(1).normal(0, 0.4, 60)).astype(int)
    found = named(baselines.trivial_baselines(replace(task, depth=depth)))
    expected = sklearn.metrics.roc_auc_score(task.truth, direction * depth)
    assert expected > 0.9
    assert sklearn.metrics.roc_auc_score(task.truth, found[baselines.DEPTH][:, 1]) == pytest.approx(expected)
    right = (found[baselines.DEPTH_AND_RICHNESS].argmax(axis=1) == task.truth).mean()
    assert right > 0.85


def test_depth_and_richness_find_what_depends_on_them():
    task = numeric_task(samples=150)
    task = replace(task, truth=np.log(task.richness) + np.random.default_rng(0).normal(0, 0.05, 150))
    found = named(baselines.trivial_baselines(task))
    for name, least in {baselines.DEPTH_AND_RICHNESS: 0.8, baselines.RICHNESS: 0.8}.items():
        assert sklearn.metrics.r2_score(task.truth, found[name]) > least
    assert sklearn.metrics.r2_score(task.truth, found[baselines.DEPTH]) < 0.1


# --- the model beside baselines ---------------------------------------------------------------------------


def numeric(error: float, seed: int = 0, samples: int = 200, **columns: np.ndarray) -> Predictions:
    """Truth of unit spread and predictions off by `error`."""
    draw = np.random.default_rng(0)
    truth = draw.normal(size=samples)
    predicted = truth + error * np.random.default_rng(seed + 1).normal(size=samples)
    return Predictions(tuple(map(str, range(samples))), truth, predicted, **columns)


def two_classes(strength: float, samples: int = 200) -> Predictions:
    draw = np.random.default_rng(0)
    truth = draw.integers(2, size=samples)
    second = 1 / (1 + np.exp(-strength * (2 * truth - 1) - draw.normal(size=samples)))
    labels = ("control", "case")
    return Predictions(tuple(map(str, range(samples))), truth, np.stack([1 - second, second], axis=1), labels)


def median(predictions: Predictions) -> Baseline:
    return Baseline(MEDIAN, np.full(len(predictions.truth), np.median(predictions.truth)))


def majority(predictions: Predictions) -> Baseline:
    return Baseline(MAJORITY, np.tile([1.0, 0.0], (len(predictions.truth), 1)))


def outcomes(predictions: Predictions, *baselines: Baseline, key: str = "mae") -> list[str]:
    first, *others = compare_with_baselines(predictions, baselines, seed=0, repeats=200)
    return [outcome(one, first, key) for one in (first, *others)]


# --- comparing ---------------------------------------------------------------------------------------------


def test_a_comparison_holds_what_the_bootstrap_says():
    given = numeric(0.5, groups=np.arange(200) // 4)
    other = Baseline("other", numeric(0.7, seed=7).predicted)
    found = compare_with_baselines(given, [other], seed=5, repeats=50)[0]
    model, rival = (
        bootstrap.resampled(metrics.regression_figures, given.truth, predicted, given.groups, 5, 50)
        for predicted in (given.predicted, other.predicted)
    )
    assert found.figures == {name: bootstrap.interval(values) for name, values in rival.items()}
    apart = {name: bootstrap.interval(model[name] - rival[name], paired=True) for name in model}
    assert found.difference == apart
    assert found.model == metrics.regression_metrics(given.truth, given.predicted)
    assert found.samples == 200


def test_baselines_are_compared_on_the_samples_that_both_predict():
    given = numeric(0.5)
    half = given.predicted.copy()
    half[:150] = math.nan
    found = compare_with_baselines(
        given, [Baseline("half", half), Baseline("none", np.full(200, math.nan))], seed=0, repeats=20
    )
    assert [one.name for one in found] == ["half"]
    assert found[0].samples == 50
    assert found[0].difference["mae"].value == 0
    assert found[0].model == metrics.regression_metrics(given.truth[150:], half[150:])


def test_a_constant_ranks_nothing_though_folds_differ_in_majority():
    given = two_classes(1.0)
    fold = np.arange(200) % 2
    truth = np.where(np.random.default_rng(0).random(200) < 0.3, 1 - fold, fold)
    flipped = np.eye(2)[1 - fold]
    given = Predictions(given.sample_ids, truth, given.predicted, given.labels, fold)
    found = compare_with_baselines(given, [Baseline(MAJORITY, flipped)], seed=0, repeats=20)[0]
    assert sklearn.metrics.roc_auc_score(truth, flipped[:, 1]) < 0.4
    assert found.figures["auroc"] == bootstrap.Interval(0.5, 0.5, 0.5)
    assert found.figures["auprc"].value == pytest.approx(truth.mean())
    assert found.figures["accuracy"].value == (truth != fold).mean()


def test_outcomes():
    given = numeric(0.5)
    assert outcomes(given, median(given)) == ["beats"]
    assert outcomes(numeric(1.0), median(given), Baseline("twin", numeric(1.0, seed=5).predicted))[1] == "ties"
    assert outcomes(given, median(given), Baseline("better", numeric(0.1, seed=5).predicted))[1] == "loses"
    assert outcomes(given, median(given), Baseline("worse", numeric(0.9, seed=5).predicted))[1] == "beats"
    # Always a hundredth further off: the interval excludes 0, and still it has nearly all of the gain.
    close = given.truth + (given.predicted - given.truth) * 1.02
    assert outcomes(given, median(given), Baseline("close", close)) == ["beats", "nearly ties"]
    assert outcomes(given, median(given), Baseline("trees", close, trivial=False)) == ["beats", "beats"]
    one_group = numeric(0.5, groups=np.zeros(200))
    assert outcomes(one_group, median(given)) == ["untested"]


# --- sentences ---------------------------------------------------------------------------------------------


def said(predictions: Predictions, *baselines: Baseline, batch: str = "batch") -> tuple[str, ...]:
    return verdict(predictions, compare_with_baselines(predictions, baselines, seed=0, repeats=200), batch)


def test_a_model_without_signal_is_said_to_tie_the_median():
    given = numeric(0.5)
    shuffled = np.random.default_rng(1).permutation(given.truth) * 0.05
    empty = Predictions(given.sample_ids, given.truth, shuffled)
    (only,) = said(empty, median(empty))
    assert only.startswith("The training median ties the model (MAE 0.")
    assert only.endswith("includes 0): what it learned cannot be told from chance.")


def test_a_model_that_is_better_is_said_to_be():
    given = numeric(0.3)
    (only,) = said(given, median(given), Baseline(DEPTH, numeric(0.9, seed=4).predicted))
    assert only.startswith("The model (MAE 0.")
    assert " does better than the training median (0." in only
    assert " and depth alone (0." in only


def test_the_median_of_the_study_that_ties_is_named():
    draw = np.random.default_rng(0)
    study = np.repeat(["a", "b", "c", "d"], 60)
    centre = np.repeat([10.0, 30.0, 50.0, 70.0], 60)
    truth = centre + draw.normal(0, 3, 240)
    medians = np.repeat([np.median(truth[study == one]) for one in "abcd"], 60)
    fold = np.arange(240) % 4
    given = Predictions(tuple(map(str, range(240))), truth, medians + draw.normal(0, 0.2, 240), fold=fold, batch=study)
    found = said(given, median(given), Baseline("the study's median", medians), batch="study")
    text = "\n".join(found)
    assert "The study's median ties the model (MAE 2." in text
    assert "The study's median explains most of the target (R2 0.9" in text
    assert "Within a study, against each study's own mean, R2 is" in text
    assert "Inside a study the model hardly does better than that study's mean." in text
    assert "Samples of one study stand on both sides" in text
    whole = Predictions(given.sample_ids, truth, given.predicted, fold=study, batch=study)
    text = "\n".join(said(whole, median(whole), batch="study"))
    assert "Every study was held out whole: the figures are those for a study never seen." in text


def test_depth_that_separates_the_classes_is_named():
    weak, strong = two_classes(0.3), two_classes(3.0)
    both = Baseline(DEPTH_AND_RICHNESS, strong.predicted)
    text = said(weak, majority(weak), Baseline(DEPTH, strong.predicted), both)
    assert any(one.startswith("Depth alone predicts better than the model (AUROC 1.00 against 0.") for one in text)
    assert any(one.startswith("Depth and richness alone predict better than the model") for one in text)
    separating = [one for one in text if "the classes (AUROC" in one]
    assert len(separating) == 1
    assert separating[0].startswith("Depth alone separates the classes (AUROC 1.00): a model of this table may")
    richer = said(weak, majority(weak), both)
    assert any(one.startswith("Depth and richness alone separate the classes") for one in richer)
    assert not any("separate" in one for one in said(strong, majority(strong), Baseline(DEPTH, weak.predicted)))


def test_a_tie_in_all_but_the_interval_is_said_to_be_one():
    given = numeric(0.3)
    close = given.truth + (given.predicted - given.truth) * 1.02
    text = said(given, median(given), Baseline(DEPTH_AND_RICHNESS, close))
    assert text[1].startswith("Depth and richness alone practically tie the model (MAE 0.")
    assert text[1].endswith("% of the model's gain over the training median.")


def test_few_groups_and_part_of_the_samples_are_said():
    given = numeric(0.5, groups=np.arange(200) % 5)
    part = numeric(0.5, seed=5).predicted
    part[:50] = math.nan
    text = said(given, median(given), Baseline("the subject's median", part))
    assert any(" on 150 of 200 samples" in one for one in text)
    assert text[-1] == "Intervals and tests rest on 5 groups only: read them as rough."
    single = said(numeric(0.5, groups=np.zeros(200)), median(given))
    assert single[0].startswith("Whether the model beats the training median cannot be tested")


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.794, "2.79"), (3.9, "3.90"), (0.98599, "0.986"), (-0.00168, "-0.00168"), (123456.7, "123457"), (0.0, "0.00")],
)
def test_numbers_read_well(value: float, text: str):
    assert number(value) == text


def test_what_is_unknown_is_a_dash():
    assert number(math.nan) == "-"


def test_whether_batches_were_held_out_whole():
    def held_out(fold: list[int], batch: list[str]) -> bool:
        values = np.zeros(len(fold))
        given_ = Predictions(tuple(batch), values, values, fold=np.array(fold), batch=np.array(batch))
        return held_out_whole(given_)

    assert held_out([0, 0, 1, 1], ["a", "b", "c", "c"])
    assert not held_out([0, 0, 1, 1], ["a", "b", "b", "c"])
    assert not held_out([0, 0, 0, 0], ["a", "b", "b", "c"])
    assert not held_out_whole(Predictions(("a",), np.zeros(1), np.zeros(1)))


# --- real studies ------------------------------------------------------------------------------------------


def study(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "metadata.tsv", sep="\t", dtype=str).set_index("sample-id")


def test_the_median_of_the_study_is_the_trap_of_oral_age(bench_data: Path):
    metadata = study(bench_data / "oral-age")
    age = metadata.age.to_numpy(dtype=np.float64)
    flat = np.ones(len(age))
    levels = {"study": metadata.study.to_numpy(dtype=str)}
    task = Task(age, (), folds_of(metadata.fold.to_numpy(dtype=str)), flat, flat, levels)
    found = named(baselines.trivial_baselines(task))
    assert np.abs(found["the study's median"] - age).mean() == pytest.approx(4.877, abs=0.001)
    assert np.abs(found[baselines.MEDIAN] - age).mean() > 8


def test_depth_alone_is_the_trap_of_ibd(bench_data: Path):
    metadata = study(bench_data / "ibd")
    table = read_table(bench_data / "ibd" / "table.biom")
    table = select_samples(table, [name for name in table.sample_ids if name in metadata.index])
    metadata = metadata.loc[list(table.sample_ids)]
    labels, truth = np.unique(metadata.ibd.to_numpy(dtype=str), return_inverse=True)
    richness = np.diff(table.counts.indptr)
    folds = folds_of(metadata.fold.to_numpy(dtype=str))
    task = Task(truth, tuple(map(str, labels)), folds, table.depths, richness)
    found = named(baselines.trivial_baselines(task))
    score = sklearn.metrics.roc_auc_score(truth, found[baselines.DEPTH][:, 1])
    assert score == pytest.approx(0.986, abs=0.001)
