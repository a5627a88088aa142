"""Figures of a report: what they say is what the numbers are, and they are well-formed SVG that
loads nothing.
"""

from __future__ import annotations

import functools
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics

from aam.evaluate.comparison import DEPTH_ALONE, Baseline
from aam.evaluate.evaluation import Evaluation, Names, evaluate_target
from aam.evaluate.intervals import Interval, number
from aam.report.charts import (
    MOST_POINTS,
    Figure,
    IntervalRow,
    Table,
    interval_chart,
    middle_cut,
    plain_lines,
)
from aam.report.encoder_quality import distances_figure
from aam.report.figures import (
    confusion_figure,
    differences_figure,
    interval_band,
    learning_curve_figure,
    loss_figures,
    read_epochs,
    reliability_figure,
    scatter_figure,
    target_figures,
)
from aam.report.files import write_figures
from aam.report.page import ReportData, page_data, page_html
from aam.report.tables import worst_table
from tests.evaluate.simulated import majority, median, predictions_of
from tests.predict.test_learning_curve import curve


def report_html(results: ReportData) -> str:
    """The page of a report."""
    return page_html(page_data(results))


@functools.cache
def regression(samples: int = 60) -> Evaluation:
    """Subject 0 is predicted badly, batch b holds it."""
    draw, groups = np.random.default_rng(3), np.arange(samples) // 5
    truth = draw.normal(50, 10, samples)
    predicted = truth + draw.normal(0, 1, samples) + 30 * (groups == 0)
    limits = np.stack([predicted - 3, predicted + 3], axis=1)
    columns = {"groups": groups.astype(str), "batch": np.where(groups < 2, "b", "a")}
    given = predictions_of(truth, predicted, limits=limits, **columns)
    baselines = [median(given), Baseline(DEPTH_ALONE, truth + draw.normal(0, 20, samples))]
    return evaluate_target(Names("age", "run", "subject"), given, baselines, repeats=50)


@functools.cache
def classes(labels: tuple[str, ...] = ("no", "yes")) -> Evaluation:
    draw, truth = np.random.default_rng(1), np.arange(60) % len(labels)
    shares = draw.dirichlet(np.ones(len(labels)), 60) + 0.6 * np.eye(len(labels))[truth]
    given = predictions_of(truth, shares / 1.6, labels)
    return evaluate_target(Names("case"), given, (majority(given, len(labels)),), repeats=20)


def parsed(figure: Figure) -> ElementTree.Element:
    return ElementTree.fromstring(figure.svg)


def distances(samples: int = 30) -> np.ndarray:
    points = np.random.default_rng(0).normal(size=(samples, 5)) * [3, 2, 1, 0.5, 0.2]
    truth = np.linalg.norm(points[:, None] - points[None], axis=2)
    return truth / truth.max()


# --- every figure ------------------------------------------------------------------------------


def every_figure() -> list[Figure]:
    truth = distances()
    results = (regression(), classes(), classes(("skin & bone", "<gut>", "soil")))
    record = {"event": "epoch", "best": 1}
    epochs = [{**record, "epoch": e, "train_loss": 3 / e, "val_loss": 4 / e} for e in (1, 2, 3)]
    return [
        *(figure for result in results for figure in target_figures(result)),
        distances_figure(truth, truth**2, "unifrac"),
        learning_curve_figure(curve(40), "child"),
        *loss_figures({"": epochs}),
    ]


def test_figures_are_well_formed_and_described():
    drawn = every_figure()
    assert len(drawn) == 14
    for figure in drawn:
        figure.chart.to_dict(validate=True)
        root = parsed(figure)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(figure.caption) > 20, figure.name
        assert not re.search(
            r"nan\b|undefined|url\(|href|<script|<image", figure.svg, re.IGNORECASE
        ), figure.name
        assert "xmlns" not in figure.inline
        box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', figure.svg)
        width, height = map(float, box.groups())
        marks = r'data-tip="[^"]*" transform="translate\(([-\d.]+),([-\d.]+)\)"'
        for x, y in re.findall(marks, figure.svg):
            assert 0 <= float(x) <= width, figure.name
            assert 0 <= float(y) <= height, figure.name


def test_files_have_one_place_for_each_figure(tmp_path):
    results = ReportData("t", {}, {}, {}, (regression(), classes()))
    write_figures(tmp_path / "figures", results)
    names = {str(path.relative_to(tmp_path / "figures")) for path in tmp_path.rglob("*.svg")}
    of_classes = ("roc", "reliability", "confusion", "differences")
    expected = {f"2-case/{name}.svg" for name in of_classes}
    of_numbers = ("predicted", "residuals", "differences")
    assert names == expected | {f"1-age/{name}.svg" for name in of_numbers}
    write_figures(tmp_path / "one", ReportData("t", {}, {}, {}, (classes(),)))
    assert (tmp_path / "one" / "roc.svg").is_file()
    assert (tmp_path / "one" / "roc.png").read_bytes().startswith(b"\x89PNG")


# --- regression --------------------------------------------------------------------------------


def test_a_scatter_draws_some_of_many_samples_and_a_band_where_there_are_intervals():
    truth = np.random.default_rng(0).normal(size=5000)
    figure = scatter_figure(evaluate_target(Names("ph"), predictions_of(truth, truth), repeats=2))
    assert figure.svg.count("data-tip=") == MOST_POINTS
    assert f"A random {MOST_POINTS} of 5000 samples are drawn." in figure.caption
    assert len(figure.svg) < 600_000
    assert 'opacity="0.18"' not in figure.svg
    figure = scatter_figure(regression())
    assert figure.svg.count('opacity="0.18"') == 1
    assert "The band is the 90 % conformal interval" in figure.caption


def test_a_band_has_the_mean_limits_of_parts_of_the_predictions():
    predicted = np.arange(100.0)
    limits = np.stack([predicted - 3, predicted + 5], axis=1)
    limits[:50] = math.nan
    given = predictions_of(predicted, predicted, limits=limits)
    band = interval_band(given)
    assert len(band) == 20
    for row in band:
        assert row["low"] + 3 == pytest.approx(row["y"]) == pytest.approx(row["high"] - 5)
    assert min(row["y"] for row in band) > 50
    for bare in (replace(given, limits=None), given.at(np.arange(50)), given.at(np.arange(50, 51))):
        assert interval_band(bare) == []


# --- classes -----------------------------------------------------------------------------------


def test_curves_are_those_of_scikit_learn():
    complete = classes().predictions.complete()
    positive, score = complete.truth == 1, complete.predicted[:, 1]
    roc = target_figures(classes())[0]
    assert f">yes: {number(sklearn.metrics.roc_auc_score(positive, score))}</text>" in roc.svg
    assert roc.caption.startswith("The class is yes, the second of two. ")


def test_classes_whose_names_differ_in_the_middle_have_curves_of_their_own():
    one, other = (
        f"colorectal cancer of a stage {stage} that was found early before any surgery"
        for stage in "AB"
    )
    labels = (one, other, "healthy")
    truth = np.repeat(np.arange(3), 8)
    given = predictions_of(truth, np.eye(3)[truth], labels)
    roc = target_figures(evaluate_target(Names("status"), given, repeats=20))[0]
    assert len(set(re.findall("colo[^<]*: 1[^<]*</text>", roc.svg))) == 2


def test_reliability_and_confusion_name_their_numbers():
    complete = classes().predictions.complete()
    chosen = complete.predicted.argmax(axis=1)
    pairs = re.findall(r": ([\d.]+) of (\d+)", reliability_figure(complete).svg)
    shares, sizes = np.array(pairs, float).T
    assert sizes.sum() == 60
    assert shares @ sizes == pytest.approx((chosen == complete.truth).sum(), abs=0.1)
    figure = confusion_figure(complete)
    expected = sklearn.metrics.confusion_matrix(complete.truth, chosen)
    cells = re.findall(r'data-tip="\w+ called \w+: (\d+) of (\d+), (\d+) %"', figure.svg)
    counts, totals, percents = np.array(cells, int).T.tolist()
    assert counts == expected.ravel().tolist()
    assert totals == np.repeat(expected.sum(axis=1), 2).tolist()
    text = [str(node.text) for node in parsed(figure).iter("{http://www.w3.org/2000/svg}tspan")]
    pairs = zip(counts, percents, strict=True)
    assert text == [part for count, percent in pairs for part in (str(count), f"{percent} %")]
    many = confusion_figure(classes(tuple("abcdefghij")).predictions.complete())
    # A legend says what shades mean.
    assert re.findall(r">(\d+%)</text>", many.svg) == ["10%", "50%", "100%"]
    assert many.svg.count("data-tip=") == 100


# --- comparison --------------------------------------------------------------------------------


def test_the_forest_plot_shows_every_baseline_with_its_paired_interval():
    result = regression()
    (figure,) = differences_figure(result)
    for one in result.comparisons:
        assert one.name in figure.svg
        low = number(one.tested_difference.low)
        assert f"{number(one.difference.value)} ({low} to " in figure.svg
    assert figure.caption.startswith("Left of the line the model is better; if a bar includes it")
    assert differences_figure(replace(result, comparisons=())) == []


def interval_svg(*rows: IntervalRow) -> str:
    return Figure("f", "t", interval_chart(rows, "MAE")).svg


def test_a_row_without_interval_has_a_point_only():
    svg = interval_svg(IntervalRow("a", Interval(1.0)), IntervalRow("b", Interval(2.0, 1.5, 2.5)))
    assert len(re.findall(r'<line [^>]*stroke-width="2"', svg)) == 1
    assert len(re.findall(r'<path [^>]*fill="#4477aa"', svg)) == 2


def test_a_name_stands_in_a_line_above_its_value_and_keeps_its_end():
    name = "Christensenellaceae, genus unknown 5d62137a2d"
    svg = interval_svg(IntervalRow(name, Interval(0.000799, 0.00024, 0.00149)))
    texts = re.findall(r"translate\([-\d.]+,([-\d.]+)\)[^>]*>([^<]+)</text>", svg)
    height = {text: float(y) for y, text in texts}
    assert height["0.000799 (0.000240 to 0.00149)"] - height[name] >= 13
    svg = interval_svg(IntervalRow(f"k__Bacteria; p__Firm; {'x' * 40} 5e99c84d99", Interval(1.0)))
    assert re.search(r"<text[^>]*>k__Bacteria; p__Fir[^<]*…5e99c84d99</text>", svg)
    assert middle_cut("Ruminococcaceae (family) 5e99c84d99", 20) == "Ruminococ…5e99c84d99"


# --- where the model errs ----------------------------------------------------------------------


def test_the_worst_samples():
    complete, (worst,) = regression().complete, worst_table(regression())
    assert np.allclose(complete.errors, np.abs(complete.predicted - complete.truth))
    assert {row[0] for row in worst.rows[:5]} == set("01234")
    titles = ("sample-id", "true age", "predicted age", "absolute error", "subject", "run")
    assert worst.header == titles
    complete, (worst,) = classes().complete, worst_table(classes())
    picked = [complete.predicted[at, k] for at, k in enumerate(complete.truth)]
    assert np.allclose(complete.errors, 1 - np.array(picked))
    assert worst.header[3] == "probability of the true class"
    shown = [float(row[3]) for row in worst.rows]
    assert shown == sorted(shown)
    assert shown[0] == pytest.approx(min(picked), rel=0.01)


# --- training ----------------------------------------------------------------------------------


def written(folder: Path, *records: object) -> Path:
    """Write lines of metrics.jsonl, the last of them unfinished."""
    lines = [*map(json.dumps, records), '{"event": "epoch", "unfin']
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    return folder


def test_loss_curves_are_those_of_the_records(tmp_path: Path):
    record = {"event": "epoch"}
    losses = [{"epoch": e, "train_loss": 5 - e, "val_loss": 6 - e} for e in (1, 2, 3)]
    records = [{**record, **loss, "best": int(loss["epoch"] < 3)} for loss in losses]
    assert read_epochs(written(tmp_path, {"event": "step", "step": 1}, *records)) == records
    assert read_epochs(tmp_path / "none") == []
    (drawn,) = loss_figures({"fold 0": records, "fold 1": records[:2]})
    assert drawn.svg.count('data-tip="fold 0 best epoch 2"') == 1
    assert loss_figures({"": records[:1]}) == []


def test_training_and_validation_losses_are_the_same_sum(tmp_path: Path):
    """The training loss held UniFrac and masked bases, the validation loss the targets only."""
    record = {"event": "epoch", "epoch": 1, "train_loss": 9.0, "val_loss": 3.0}
    record |= {"train_unifrac": 6.0, "train_target": 1.0, "train_label0": 0.5}
    (read,) = read_epochs(written(tmp_path, {**record, "val_target": 2.0, "val_label0": 1.0}))
    assert (read["train_loss"], read["val_loss"]) == (1.5, 3.0)


def test_the_columns_of_a_plain_table_stand_below_each_other():
    lines = plain_lines(
        Table("T", pd.DataFrame({"": ["the model", "the median"], "MAE": [1.0, 12.0]}))
    )
    assert lines == ["T", "             MAE", "the model   1.00", "the median  12.0"]
