"""Figures against scikit-learn and SciPy, intervals and paired tests against closed forms."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from aam.evaluation import bootstrap, conformal, metrics
from aam.evaluation.bootstrap import Predictions
from aam.evaluation.metrics import regression_metrics


def numeric(seed: int, samples: int = 200) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    truth = np.round(draw.normal(5, 2, samples), 1)
    return truth, np.round(truth + draw.normal(0.3, 1, samples), 1)


def classes(seed: int, samples: int = 200, number: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Labels and informative probabilities with many ties."""
    draw = np.random.default_rng(seed)
    truth = draw.integers(number, size=samples)
    weight = draw.integers(1, 6, size=(samples, number)) + 3.0 * np.eye(number)[truth]
    return truth, weight / weight.sum(axis=1, keepdims=True)


# --- figures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_numeric_figures_equal_the_reference(seed: int):
    truth, predicted = numeric(seed)
    expected = {
        "mae": sklearn.metrics.mean_absolute_error(truth, predicted),
        "rmse": sklearn.metrics.root_mean_squared_error(truth, predicted),
        "r2": sklearn.metrics.r2_score(truth, predicted),
        "pearson": scipy.stats.pearsonr(truth, predicted).statistic,
        "spearman": scipy.stats.spearmanr(truth, predicted).statistic,
        "nrmse": sklearn.metrics.root_mean_squared_error(truth, predicted) / (truth.max() - truth.min()),
    }
    assert regression_metrics(truth, predicted) == pytest.approx(expected, abs=1e-12)


def naive_ece(truth: np.ndarray, probabilities: np.ndarray) -> float:
    """Guo et al. 2017, sample by sample."""
    bins: dict[int, list[tuple[float, bool]]] = {}
    for label, row in zip(truth, probabilities, strict=True):
        bins.setdefault(min(int(10 * max(row)), 9), []).append((max(row), np.argmax(row) == label))
    gaps = [abs(sum(sure for sure, _ in found) - sum(right for _, right in found)) for found in bins.values()]
    return sum(gaps) / len(truth)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("number", [2, 3, 6])
def test_class_figures_equal_the_reference(seed: int, number: int):
    truth, probabilities = classes(seed, number=number)
    predicted = probabilities.argmax(axis=1)
    scored = [1] if number == 2 else range(number)
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(truth, predicted),
        "balanced_accuracy": sklearn.metrics.balanced_accuracy_score(truth, predicted),
        "macro_f1": sklearn.metrics.f1_score(truth, predicted, average="macro"),
        "auroc": np.mean([sklearn.metrics.roc_auc_score(truth == k, probabilities[:, k]) for k in scored]),
        "auprc": np.mean([sklearn.metrics.average_precision_score(truth == k, probabilities[:, k]) for k in scored]),
        "ece": naive_ece(truth, probabilities),
    }
    assert metrics.classification_metrics(truth, probabilities) == pytest.approx(expected, abs=1e-12)
    if number > 2:
        multi = sklearn.metrics.roc_auc_score(truth, probabilities, multi_class="ovr", average="macro")
        assert expected["auroc"] == pytest.approx(multi)


def test_the_table_of_classes_equals_the_reference():
    truth, probabilities = classes(1)
    predicted = probabilities.argmax(axis=1)
    found = metrics.per_class(truth, probabilities, ["a", "b", "c", "d"])
    reference = np.array(sklearn.metrics.precision_recall_fscore_support(truth, predicted))
    rows = [(row["precision"], row["recall"], row["f1"], samples) for samples, row in found.values()]
    np.testing.assert_allclose(np.array(rows).T, reference)
    assert list(found) == ["a", "b", "c", "d"]
    assert np.mean([row["auroc"] for _, row in found.values()]) == pytest.approx(
        metrics.classification_metrics(truth, probabilities)["auroc"]
    )


@pytest.mark.parametrize("number", [0, 2, 5])
def test_weights_count_a_sample_as_often_as_it_is_drawn(number: int):
    """What makes the bootstrap fast: a row of weights gives the figures of the samples repeated."""
    truth, predicted = classes(3, 60, number) if number else numeric(3, 60)
    measure = metrics.classification_figures if number else metrics.regression_figures
    times = np.random.default_rng(0).poisson(1.0, (40, 60))
    times[0], times[1] = 0, np.arange(60) == 7
    times[2] = truth == truth[0]
    found = measure(truth, predicted, times.astype(float))
    for row, count in enumerate(times):
        at = np.repeat(np.arange(60), count)
        expected = metrics.measured(measure, truth[at], predicted[at])
        one = {name: values[row] for name, values in found.items()}
        assert one == pytest.approx(expected, abs=1e-12, nan_ok=True)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=12))
def test_auroc_is_the_share_of_ordered_pairs(samples: list[tuple[bool, int]]):
    positive = np.array([one for one, _ in samples])
    score = np.array([value for _, value in samples], dtype=float)
    pairs = [(a > b) + 0.5 * (a == b) for a, b in itertools.product(score[positive], score[~positive])]
    expected = np.mean(pairs) if pairs else math.nan
    assert metrics.auroc(positive, score) == pytest.approx(expected, nan_ok=True)


def test_constant_and_empty_inputs_are_nan():
    ones, ramp = np.ones(4), np.arange(4.0)
    flat = regression_metrics(ones, ramp)
    assert flat["mae"] == 1.0
    assert all(math.isnan(flat[name]) for name in ("r2", "pearson", "spearman", "nrmse"))
    assert math.isnan(regression_metrics(ramp, ones)["pearson"])
    assert math.isnan(metrics.pearson(np.array([0.0, 5e-324]), ramp[:2]))
    assert all(map(math.isnan, regression_metrics(ramp[:0], ramp[:0]).values()))
    single = metrics.classification_metrics(np.zeros(3, dtype=int), np.tile([0.9, 0.1], (3, 1)))
    assert single["accuracy"] == single["balanced_accuracy"] == single["macro_f1"] == 1.0
    assert math.isnan(single["auroc"])
    assert math.isnan(single["auprc"])
    empty = metrics.classification_metrics(np.zeros(0, dtype=int), np.zeros((0, 2)))
    assert all(map(math.isnan, empty.values()))


def test_a_class_without_samples_does_not_count():
    truth, probabilities = classes(0, number=3)
    wider = np.column_stack([probabilities, np.zeros(len(truth))])
    expected = metrics.classification_metrics(truth, probabilities)
    assert metrics.classification_metrics(truth, wider) == pytest.approx(expected)
    samples, row = metrics.per_class(truth, wider, ["a", "b", "c", "d"])["d"]
    assert samples == 0
    assert math.isnan(row["recall"])


# --- predictions -------------------------------------------------------------------------------------------


def test_samples_without_truth_or_prediction_are_left_out():
    truth = np.array([1.0, math.nan, 3.0, 4.0])
    predicted = np.array([1.0, 2.0, math.nan, 5.0])
    given_ = Predictions(("a", "b", "c", "d"), truth, predicted, fold=np.array([0, 0, 1, 1]))
    assert given_.known().sample_ids == ("a", "d")
    assert given_.known().fold.tolist() == [0, 1]
    assert bootstrap.figures(given_, seed=0, repeats=5)["mae"].value == 0.5
    probabilities = np.array([[0.2, 0.8], [0.6, 0.4], [math.nan, math.nan]])
    named = Predictions(("a", "b", "c"), np.array([1, -1, 0]), probabilities, labels=("no", "yes"))
    assert named.known().sample_ids == ("a",)


def test_predictions_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match=r"predicted has shape \(2,\), expected \(2, 2\)"):
        Predictions(("a", "b"), np.zeros(2, dtype=int), np.zeros(2), labels=("no", "yes"))
    with pytest.raises(ValueError, match="batch has shape"):
        Predictions(("a", "b"), np.zeros(2), np.zeros(2), batch=np.zeros(3))


def test_figures_by_level_are_those_of_its_samples():
    truth, predicted = numeric(0)
    level = np.array(["10", "9", "x", "-1.5"])[np.arange(len(truth)) % 4]
    given_ = Predictions(tuple(map(str, range(len(truth)))), truth, predicted)
    found = bootstrap.figures_by(given_, level, seed=0, repeats=5)
    assert list(found) == ["-1.5", "9", "10", "x"]
    for name, (samples, figures) in found.items():
        rows = level == name
        assert samples == rows.sum()
        expected = regression_metrics(truth[rows], predicted[rows])
        assert {key: one.value for key, one in figures.items()} == expected


# --- intervals and tests -----------------------------------------------------------------------------------


def mean_only(truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    return {"mean": weights @ (predicted - truth) / weights.sum(axis=1)}


def resampled_intervals(measure, truth, predicted, groups, seed=0, repeats=1000) -> dict[str, bootstrap.Interval]:
    drawn = bootstrap.resampled(measure, truth, predicted, groups, seed, repeats)
    return {name: bootstrap.interval(values) for name, values in drawn.items()}


def paired(measure, truth, pair, groups, seed=0, repeats=1000) -> dict[str, bootstrap.Interval]:
    first, second = (bootstrap.resampled(measure, truth, one, groups, seed, repeats) for one in pair)
    return {name: bootstrap.interval(first[name] - second[name], paired=True) for name in first}


def test_the_interval_of_a_mean_is_that_of_the_normal():
    draw = np.random.default_rng(0)
    error = draw.normal(size=400)
    found = resampled_intervals(mean_only, np.zeros(400), error, np.arange(400), seed=0, repeats=4000)
    half = 1.96 * error.std() / 20
    assert found["mean"].value == pytest.approx(error.mean())
    assert found["mean"].low == pytest.approx(error.mean() - half, abs=0.01)
    assert found["mean"].high == pytest.approx(error.mean() + half, abs=0.01)


def test_intervals_resample_groups():
    """Repeating each sample nine times says nothing new; resampling samples would make it seem so."""
    draw = np.random.default_rng(0)
    error = draw.normal(size=60)
    many = np.repeat(error, 9)
    groups = np.repeat(np.arange(60).astype(str), 9)

    def width(values: np.ndarray, by: np.ndarray) -> float:
        found = resampled_intervals(mean_only, np.zeros(len(values)), values, by, seed=1)["mean"]
        return found.high - found.low

    single = width(error, np.arange(60))
    assert width(many, groups) == pytest.approx(single, rel=0.05)
    assert width(many, np.arange(540)) == pytest.approx(single / 3, rel=0.15)


def test_the_bootstrap_repeats_and_ignores_the_order_of_groups():
    truth, predicted = numeric(0)
    groups = np.arange(len(truth)) // 5
    first = resampled_intervals(metrics.regression_figures, truth, predicted, groups, seed=3, repeats=50)
    again = resampled_intervals(metrics.regression_figures, truth, predicted, groups, seed=3, repeats=50)
    other = resampled_intervals(metrics.regression_figures, truth, predicted, groups, seed=4, repeats=50)
    shuffled = np.random.default_rng(0).permutation(len(truth))
    moved = resampled_intervals(
        metrics.regression_figures, truth[shuffled], predicted[shuffled], groups[shuffled], seed=3, repeats=50
    )
    assert first == again
    assert first != other
    assert moved["mae"].low == pytest.approx(first["mae"].low, abs=1e-12)


def test_one_group_has_no_interval():
    truth, predicted = numeric(0, samples=10)
    one = resampled_intervals(metrics.regression_figures, truth, predicted, np.zeros(10), seed=0)["mae"]
    assert math.isfinite(one.value)
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    pair = (predicted, truth)
    test = paired(metrics.regression_figures, truth, pair, np.zeros(10), seed=0)["mae"]
    assert math.isnan(test.p)


def test_a_figure_missing_from_most_resamples_has_no_interval():
    truth = np.array([1] + [0] * 9)
    probabilities = np.full((10, 2), 0.5)
    found = resampled_intervals(
        metrics.classification_figures, truth, probabilities, np.arange(10) // 5, seed=0, repeats=200
    )
    assert found["auroc"].value == 0.5
    assert math.isfinite(found["accuracy"].low)
    rare = bootstrap.interval(np.array([1.0, math.nan, math.nan, 1.0]))
    assert rare.value == 1.0
    assert math.isnan(rare.low)
    assert math.isnan(rare.high)


def test_paired_differences_see_what_separate_intervals_hide():
    """Two predictions share a large error; one is better by a tenth of it, always."""
    draw = np.random.default_rng(0)
    error = np.abs(draw.normal(0, 5, 200)) + 1
    truth = np.zeros(200)
    pair = (error, error + draw.uniform(0.3, 0.5, 200))
    found = paired(metrics.regression_figures, truth, pair, np.arange(200), seed=0)["mae"]
    assert found.value == pytest.approx(np.mean(pair[0] - pair[1]))
    assert found.high < 0
    assert found.p == pytest.approx(2 / 1001)
    separate = [
        resampled_intervals(metrics.regression_figures, truth, one, np.arange(200), seed=0)["mae"] for one in pair
    ]
    assert separate[0].high > separate[1].low


def test_draws_do_not_depend_on_how_many_are_held_at_once(monkeypatch: pytest.MonkeyPatch):
    truth, predicted = numeric(0)
    whole = bootstrap.resampled(metrics.regression_figures, truth, predicted, np.arange(200), 0, 30)
    monkeypatch.setattr(bootstrap, "WEIGHTS_AT_ONCE", 7 * 200)
    parts = bootstrap.resampled(metrics.regression_figures, truth, predicted, np.arange(200), 0, 30)
    for name, values in whole.items():
        np.testing.assert_allclose(parts[name], values, rtol=1e-12)


def test_equal_predictions_do_not_differ():
    truth, predicted = numeric(0)
    pair = (predicted, predicted.copy())
    found = paired(metrics.regression_figures, truth, pair, np.arange(200), seed=0, repeats=20)
    assert found["mae"] == bootstrap.Interval(0.0, 0.0, 0.0, 1.0)


def test_the_paired_test_keeps_its_level():
    """Among pairs that differ by chance only, about one in twenty is called different."""
    draw = np.random.default_rng(0)
    called = 0
    for seed in range(200):
        pair = (draw.normal(size=40), draw.normal(size=40))
        found = paired(mean_only, np.zeros(40), pair, np.arange(40), seed, 199)
        called += found["mean"].p < 0.05
    assert 2 <= called <= 22


# --- batches -----------------------------------------------------------------------------------------------


def test_a_prediction_of_the_batch_alone_is_worth_nothing_within_it():
    draw = np.random.default_rng(0)
    batch = np.repeat(["a", "b", "c"], 50)
    centre = np.repeat([0.0, 30.0, 60.0], 50)
    truth = centre + draw.normal(size=150)
    means = np.repeat([truth[batch == one].mean() for one in "abc"], 50)
    ids = tuple(map(str, range(150)))
    found = bootstrap.within_batches(Predictions(ids, truth, means, batch=batch))
    assert sklearn.metrics.r2_score(truth, means) > 0.99
    assert found["r2"] == pytest.approx(0, abs=1e-12)
    half = Predictions(ids, truth, means + (truth - means) / 2, batch=batch)
    assert bootstrap.within_batches(half)["r2"] == pytest.approx(0.75)
    shifted = Predictions(ids, truth, truth + centre, batch=batch)
    assert bootstrap.within_batches(shifted)["pearson"] == pytest.approx(1.0)
    assert bootstrap.within_batches(shifted)["r2"] < 0


@pytest.mark.parametrize("number", [2, 3])
def test_auroc_within_batches_counts_pairs_of_one_batch(number: int):
    draw = np.random.default_rng(0)
    truth, weight = draw.integers(number, size=60), draw.integers(1, 6, size=(60, number))
    probabilities = weight / weight.sum(axis=1, keepdims=True)
    batch = np.arange(60) % 4
    labels = tuple("abc"[:number])
    given_ = Predictions(tuple(map(str, range(60))), truth, probabilities, labels=labels, batch=batch)
    expected = []
    for k in [1] if number == 2 else range(number):
        pairs = [
            (probabilities[i, k] > probabilities[j, k]) + 0.5 * (probabilities[i, k] == probabilities[j, k])
            for i, j in itertools.product(range(60), range(60))
            if truth[i] == k != truth[j] and batch[i] == batch[j]
        ]
        expected.append(np.mean(pairs))
    assert bootstrap.within_batches(given_)["auroc"] == pytest.approx(np.mean(expected))


# --- conformal intervals -----------------------------------------------------------------------------------


def spreading(seed: int, samples: int = 600) -> Predictions:
    """Errors that grow with the prediction, three samples of a group."""
    draw = np.random.default_rng(seed)
    predicted = draw.uniform(1, 10, samples)
    ids = tuple(f"s{row}" for row in range(samples))
    truth = predicted + draw.normal(0, 0.3 * predicted)
    return Predictions(ids, truth, predicted, groups=np.arange(samples) // 3)


def test_one_width_for_all_is_the_quantile_of_the_residuals():
    given_ = spreading(0, 99)
    found = conformal.Conformal.fit(given_, scales=1)
    assert (found.samples, found.groups) == (99, 33)
    residual = np.sort(np.abs(given_.truth - given_.predicted))
    np.testing.assert_allclose(found.half_width(np.array([-5.0, 3.0])), residual[89], rtol=1e-12)
    np.testing.assert_allclose(found.limits(np.array([3.0])), [[3 - residual[89], 3 + residual[89]]])


def test_scaled_intervals_cover_every_part_of_the_predictions_and_are_narrower():
    fitted, new = spreading(0), spreading(1, 3000)
    scaled, same = conformal.Conformal.fit(fitted), conformal.Conformal.fit(fitted, scales=1)
    low, high = new.predicted < 3, new.predicted > 8
    figures = {name: metrics.interval_figures(new.truth, one.limits(new.predicted), np.stack([low, high, low | True]))
               for name, one in (("scaled", scaled), ("same", same))}  # fmt: skip
    assert figures["scaled"]["coverage"] == pytest.approx([0.9, 0.9, 0.9], abs=0.05)
    assert figures["same"]["coverage"][0] > 0.99
    assert figures["same"]["coverage"][1] < 0.85
    assert figures["scaled"]["width"][2] < 0.95 * figures["same"]["width"][2]
    again = conformal.Conformal.from_json(json.loads(json.dumps(dataclasses.asdict(scaled))))
    assert again == scaled


def test_few_groups_and_perfect_predictions():
    assert conformal.Conformal.fit(spreading(0, 57)) is None
    assert conformal.Conformal.fit(spreading(0, 60)) is not None
    perfect = dataclasses.replace(spreading(0, 60), truth=spreading(0, 60).predicted)
    assert conformal.Conformal.fit(perfect).half_width(np.array([1.0, 20.0])).tolist() == [0.0, 0.0]


def test_reliability_is_that_of_each_tenth():
    truth = np.array([0, 0, 1, 1, 1])
    second = np.array([0.05, 0.45, 0.42, 0.91, 1.0])
    found = metrics.reliability(truth, np.stack([1 - second, second], axis=1))
    assert list(found) == ["0.5 to 0.6", "0.9 to 1.0"]
    assert found["0.5 to 0.6"] == (2, pytest.approx({"confidence": 0.565, "accuracy": 0.5}))
    assert found["0.9 to 1.0"] == (3, pytest.approx({"confidence": (0.95 + 0.91 + 1) / 3, "accuracy": 1.0}))
