"""The tiles that open a report: the metric that decides, the best baseline, the verdict."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from aam.evaluate.comparison import Baseline
from aam.evaluate.evaluation import Names, evaluate_target
from aam.evaluate.intervals import number
from aam.report.page import judged_samples, tiles, unit_of
from tests.evaluate.simulated import majority, median, numeric, two_classes


def test_without_an_auroc_nothing_is_said_of_baselines():
    given = two_classes(3.0)
    alone = given.at(given.truth == 1)
    result = evaluate_target(Names("case"), alone, (majority(alone),), repeats=20)
    assert tiles(result) == []
    assert "All samples are 'case': there is no AUROC" in " ".join(result.verdict.cautions)


def test_the_tiles_hold_the_metric_the_best_baseline_and_the_verdict():
    given = numeric(0.5, groups=np.arange(200) // 5)
    result = evaluate_target(Names("age"), given, (median(given),), repeats=20)
    metric, baseline, verdict = tiles(result)
    mae = result.metrics["mae"]
    assert (metric.answer, metric.limits) == (
        number(mae.value),
        f"{number(mae.low)} to {number(mae.high)}",
    )
    assert f"miss age by {metric.answer} on average" in metric.sentence
    assert baseline.sentence == "The training median (guessing), the only one of all samples."
    assert (verdict.answer, verdict.sign) == ("Better than guessing", "open"), (
        "nothing but guessing was beaten"
    )
    assert len(verdict.answer.split()) == 3
    trivial = Baseline("richness", np.random.default_rng(1).permutation(given.truth))
    beaten = evaluate_target(Names("age"), given, (median(given), trivial), repeats=20)
    assert (tiles(beaten)[2].answer, tiles(beaten)[2].sign) == ("Beats trivial baselines", "better")
    assert judged_samples(result) == "200 held-out samples of 40 group."


def test_the_best_is_of_the_baselines_that_predict_all_samples():
    """The best of two was named, where the better one predicts half of the samples."""
    given = numeric(0.5)
    half = np.where(np.arange(200) % 2, given.truth, math.nan)
    result = evaluate_target(
        Names("age"), given, (median(given), Baseline("the subject's median", half)), repeats=20
    )
    assert "The training median (guessing)" in tiles(result)[1].sentence
    forest = evaluate_target(
        Names("age"),
        given,
        (median(given), Baseline("forest", given.truth, trivial=False)),
        repeats=20,
    )
    assert "Forest, the best of 1 baseline and guessing." in tiles(forest)[1].sentence
    assert (tiles(forest)[2].answer, tiles(forest)[2].sign) == ("Worse than baseline", "worse")
    assert tiles(forest)[2].sentence.startswith(
        "Better than guessing (the training median). The MAE of the model minus that of forest: "
    )
    worse = Baseline("forest", given.truth + 3 * np.where(np.arange(200) % 2, 1, -1), trivial=False)
    beaten = evaluate_target(Names("age"), given, (median(given), worse), repeats=20)
    assert tiles(beaten)[2].answer == "Beats best baseline"
    both = replace(result, comparisons=result.comparisons[:1])
    assert tiles(both)[:2] == tiles(result)[:2]


def test_verdicts_of_samples_that_were_not_held_out():
    given = numeric(0.5)
    seen = evaluate_target(Names("age"), given, (median(given),), subset="training", repeats=20)
    assert tiles(seen)[2].answer == "Seen in training"
    chosen = evaluate_target(Names("age"), given, (median(given),), subset="validation", repeats=20)
    assert chosen.verdict.cautions[0].startswith("Training made choices on these samples")
    alone = evaluate_target(Names("age"), given, repeats=20)
    assert [tile.answer for tile in tiles(alone)[1:]] == ["none", "No baseline given"]
    few = given.at(np.arange(4))
    assert (
        tiles(evaluate_target(Names("age"), few, (median(few),), repeats=20))[2].answer
        == "Cannot be tested"
    )


def test_one_class_for_all_samples_is_said():
    given = two_classes(3.0)
    called = np.where(given.truth[:, None] == 0, [0.45, 0.55], [0.1, 0.9])
    result = evaluate_target(
        Names("case"), replace(given, predicted=called), (majority(given),), repeats=20
    )
    share = np.mean(given.truth == 1)
    said = f"100% of the samples are predicted as {given.labels[1]}, but {share:.0%} are."
    assert said in result.verdict.cautions
    right = evaluate_target(Names("case"), given, (majority(given),), repeats=20)
    assert not any("are predicted as" in caution for caution in right.verdict.cautions)


def test_a_difference_that_is_not_shown_is_explained_and_baselines_are_counted_without_guessing():
    given = numeric(0.5, groups=np.arange(200) // 5)
    others = [
        Baseline(name, 2 * given.truth - given.predicted, trivial=False)
        for name in ("forest", "trees")
    ]
    result = evaluate_target(Names("age"), given, (median(given), *others), repeats=200)
    _, baseline, verdict = tiles(result)
    assert baseline.sentence.endswith(", the best of 2 baselines and guessing.")
    assert verdict.answer == "Better than guessing"
    assert "corrected for 2 baselines (Holm)." in verdict.sentence


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("month", " months"),
        ("age_years", " years"),
        ("age (weeks)", " weeks"),
        ("Height.cm", " cm"),
        ("ph", ""),
        ("monthly", ""),
        ("7", ""),
    ],
)
def test_an_error_has_the_unit_that_the_column_names(column, unit):
    assert unit_of(column) == unit
    given = numeric(0.5)
    result = evaluate_target(Names(column), given, (median(given),), repeats=20)
    error = number(result.metrics["mae"].value)
    expected = f"miss {column} by {error}{unit} on average"
    assert expected in tiles(result)[0].sentence


def test_limits_of_a_difference_of_shares_stay_within_minus_one_and_one():
    given = replace(two_classes(3.0), groups=np.arange(200) % 8)
    worst = Baseline("opposite", given.predicted[:, ::-1], trivial=False)
    result = evaluate_target(Names("case"), given, (majority(given), worst), repeats=200)
    for one in result.comparisons:
        assert -1 <= one.tested_difference.low <= one.tested_difference.high <= 1
