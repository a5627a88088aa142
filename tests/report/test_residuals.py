"""Where a model is wrong: lines and parts follow errors that are put there."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from aam.evaluate.evaluation import Evaluation, Names, evaluate_target
from aam.evaluate.predictions import TargetPredictions
from aam.report.residuals import calibration, error_tables, parts_of_range, residual_figure
from aam.report.tables import metrics_table, worst_table
from tests.evaluate.simulated import predictions_of


def judged(given: TargetPredictions, **names) -> Evaluation:
    return evaluate_target(Names("day", **names), given, repeats=0)


def shrunk(samples: int = 300, slope: float = 0.6, **columns) -> TargetPredictions:
    """Truth from 0 to 10; predictions shrink towards 5, with the same shift for a whole group."""
    draw = np.random.default_rng(2)
    truth, group = draw.uniform(0, 10, samples), np.arange(samples) % 30
    predicted = 5 + slope * (truth - 5) + draw.normal(0, 0.3, 30)[group]
    return predictions_of(truth, predicted, **{"groups": group, **columns})


def drawn_means(given: TargetPredictions) -> pd.DataFrame:
    """The rows of the figure that are means of parts."""
    (figure,) = residual_figure(judged(given))
    return pd.DataFrame(figure.chart.layer[-1].data.values)


def test_the_figure_shows_the_mean_error_of_parts_with_intervals_over_groups():
    given = shrunk()
    means = drawn_means(given)
    expected = 0.4 * (5 - means["x"])
    assert len(means) == 5
    assert np.abs(means["y"] - expected).max() < 0.2
    assert ((means["low"] <= expected) & (expected <= means["high"])).mean() > 0.7
    assert means["tip"][0].startswith(f"{error_tables(judged(given))[0].rows[0][0]}: ")
    width = (means["high"] - means["low"]).mean()
    alone = drawn_means(replace(given, groups=None))
    assert width > 1.5 * (alone["high"] - alone["low"]).mean(), "samples of a group are alike"


def test_without_enough_groups_or_values_there_is_no_interval_or_figure():
    few = replace(shrunk(), groups=np.arange(300) % 4)
    assert drawn_means(few)["low"].isna().all()
    assert "95 %" not in residual_figure(judged(few))[0].caption
    assert residual_figure(judged(predictions_of(np.full(9, 2.0), np.arange(9.0)))) == []
    gap = np.r_[np.zeros(40), np.full(40, 1.0), 50 + np.arange(40.0)]
    noisy = gap + np.random.default_rng(0).normal(size=len(gap))
    figure = residual_figure(judged(predictions_of(gap, noisy)))[0]
    assert "over samples" in figure.caption
    assert "nan" not in figure.svg.lower()


def test_tables_hold_all_samples_by_part_and_the_worst_groups():
    given = shrunk(batch=np.repeat(["x", "y", ""], 100))
    parts, groups = error_tables(judged(given, batch="run", group="child"))
    sizes = [int(row[4]) for row in parts.rows]
    assert sizes[:5] == [60] * 5
    assert [row[0] for row in parts.rows[5:]] == ["run x", "run y"], "not the empty one"
    low = np.sort(given.truth)[:60].max()
    bias = (given.predicted - given.truth)[given.truth <= low].mean()
    assert float(parts.rows[0][1].split()[0]) == pytest.approx(bias, rel=0.01)
    errors = [float(row[1]) for row in groups.rows]
    assert errors == sorted(errors, reverse=True)
    titles = ("prediction minus truth", "absolute error", "coverage", "samples", "groups")
    assert groups.header == ("", "absolute error", "samples")
    assert parts.header == ("", *titles)
    assert error_tables(judged(given.at(np.arange(0)))) == []


def test_nothing_is_listed_twice_where_folds_batches_and_groups_are_one_column():
    study = np.repeat(["x", "y", "z"], 100)
    given = shrunk(batch=study, groups=study, fold=study)
    names = Names("age", "study", "study", "study")
    result = evaluate_target(names, given, repeats=0)
    rows = [row[0] for row in metrics_table(result).rows]
    assert rows == ["all held-out samples", "study x", "study y", "study z"]
    assert [table.name for table in error_tables(result)] == ["parts"]
    apart = evaluate_target(Names("age", "study", "child"), given, repeats=0)
    assert [row[0] for row in metrics_table(apart).rows][1:3] == ["fold x", "fold y"]
    assert [table.name for table in error_tables(apart)] == ["parts", "groups"]


def test_columns_called_batch_are_listed_where_no_batch_column_is_given():
    plate = np.repeat(["x", "y", "z"], 100)
    given = shrunk(groups=plate, fold=plate)
    result = evaluate_target(Names("age", "batch", "batch", "batch"), given, repeats=0)
    rows = [row[0] for row in metrics_table(result).rows]
    assert rows == ["all held-out samples", "fold x", "fold y", "fold z"]
    assert [table.name for table in error_tables(result)] == ["parts", "groups"]
    [worst] = worst_table(result)
    assert worst.header[-2:] == ("batch", "fold")
    assert {row[-2] for row in worst.rows} <= {*"xyz"}


def test_parts_of_a_range_with_ties_cover_each_sample_once():
    for truth in (np.repeat([0.0, 1.0, 7.0], 20), np.r_[np.zeros(50), np.arange(1.0, 11)]):
        parts = list(parts_of_range(predictions_of(truth, truth)))
        assert sum(len(part.predictions.truth) for part in parts) == len(truth)
        assert len({part.name for part in parts}) == len(parts) > 1
    near = 1 + np.arange(50) / 1e6
    assert len({part.name for part in parts_of_range(predictions_of(near, near))}) == 5
    assert list(parts_of_range(predictions_of(np.ones(9), np.ones(9)))) == []


def confident(groups: int) -> TargetPredictions:
    """Two hundred samples called with 0.95, of which the groups below 0.6 are right as a whole."""
    group = np.arange(200) % groups
    right = group < 0.6 * groups
    truth = np.arange(200) // groups % 2
    chosen = np.where(right, truth, 1 - truth)
    shares = np.where(np.arange(2) == chosen[:, None], 0.95, 0.05)
    return predictions_of(truth, shares, ("no", "yes"), groups=group)


def test_the_table_of_classes_has_the_worst_groups():
    """The accuracy by batch is in the table of metrics."""
    given = replace(confident(20), batch=np.where(np.arange(200) % 20 < 8, "a", "b"))
    (groups,) = error_tables(judged(given, batch="run", group="child"))
    assert groups.header == ("", "1 - probability of the true class", "samples")
    assert [row[1] for row in groups.rows[:9]] == ["0.950"] * 8 + ["0.0500"]


def test_calibration_counts_groups():
    (row,) = calibration(confident(20)).itertuples()
    assert (row.confidence, row.right.value, row.samples) == (pytest.approx(0.95), 0.6, 200)
    (finer,) = calibration(confident(100)).itertuples()
    width, finer_width = (one.right.high - one.right.low for one in (row, finer))
    assert width > 1.5 * finer_width
    (few,) = calibration(confident(5)).itertuples()
    assert math.isnan(few.right.low)
