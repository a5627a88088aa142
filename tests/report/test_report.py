"""The report: complete, the same every time, and safe whatever the metadata hold."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from aam.evaluate.comparison import MEDIAN, Baseline
from aam.evaluate.intervals import limits_text, number
from aam.evaluate.metrics import regression_metrics
from aam.evaluate.target_predictions import TargetPredictions
from aam.report.report import Names, ReportData, Table, TargetResult, summary_lines, target_result
from aam.report.report_html import READING, report_html
from tests.evaluate import simulated
from tests.report.test_browser import pages
from tests.report.test_figures import classes

HOSTILE = "<script src='https://example.org/x.js'>\"&\x1b[31m</script>"
EMPTY_TAGS = {"meta", "img"}


@functools.cache
def numeric(name: str = "age", batches: int = 3) -> TargetResult:
    batch = np.array([f"run {i % batches}" for i in range(40)])
    given = simulated.numeric(
        0.2, samples=40, fold=np.arange(40) % 4, groups=np.arange(40) // 2, batch=batch
    )
    return target_result(
        Names(name, "run", "subject"), given, [simulated.median(given)], repeats=20
    )


SITES = ("skin", "gut", "soil")


def data(*targets: TargetResult) -> ReportData:
    return ReportData(
        title="aam train",
        task={"targets": "age, case"},
        data={"samples": 40},
        split={"folds": "column fold"},
        targets=targets or (numeric(), classes(SITES)),
        tables=(Table("UniFrac", ("", "Mantel"), (("model", "0.95"), ("8-mer Jaccard", "0.958"))),),
        warnings=("a third of the ASVs were not seen in training",),
        configuration={"lr": 0.001, "table": Path("table.biom")},
    )


class Page(HTMLParser):
    """Tags, attributes and text of a page; fails when tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in EMPTY_TAGS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.text += "" if tag in ("span", "abbr") else "\n"

    def handle_data(self, text: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += text


# --- content -----------------------------------------------------------------------------------


def test_the_page_shows_everything():
    results = data()
    page = Page(report_html(results)).text
    for expected in (
        *(
            "aam train",
            "age, case",
            "column fold",
            "a third of the ASVs",
            "8-mer Jaccard",
            "table.biom",
        ),
        *(
            "fold 0",
            "run run 2",
            "the training median",
            "the majority class",
            "balanced accuracy",
            "AUROC",
        ),
        *("Held-out metrics, with 95 % intervals over 20 values of subject", "over 60 samples"),
        *(
            "Each class against all others",
            "Samples dropped below the depth",
            "True and predicted class",
        ),
        *(sentence for result in results.targets for sentence in result.sentences),
    ):
        assert expected in page, expected
    assert all(result.sentences for result in results.targets)
    assert "conformal" not in page, "there are no intervals"
    assert '<tr><th scope="row">skin</th><td>12</td><td>10</td><td>2</td></tr>' in report_html(
        results
    )


def test_figures_are_those_of_the_predictions():
    result = numeric()
    predictions = result.predictions
    expected = regression_metrics(predictions.truth, predictions.predicted)
    whole = {name: result.metrics[name].value for name in ("mae", "rmse", "r2", "nrmse")}
    assert whole == {name: expected[name] for name in whole}
    assert result.metrics["pearson_pooled"].value == expected["pearson"]
    rows = predictions.fold == 2
    assert result.folds["2"][1]["mae"].value == pytest.approx(
        np.abs(predictions.truth[rows] - predictions.predicted[rows]).mean()
    )
    assert [count for count, _ in result.batches.values()] == [14, 13, 13]
    line = next(
        line for line in summary_lines(data(result)) if line.startswith("  all held-out samples")
    )
    assert f" {number(expected['mae'])} (" in line
    model, median = result.comparisons[0].model["mae"], result.comparisons[0].metrics["mae"].value
    line = next(line for line in summary_lines(data(result)) if line.startswith("  the training "))
    assert f" {number(model - median)} (" in line


def bounded() -> TargetResult:
    """Forty subjects of two samples; intervals miss one subject, which is also the tenth of the
    oldest.
    """
    truth = np.repeat(np.arange(40.0), 2)
    predicted = np.where(truth == 39, 30.0, truth + 0.5)
    limits = np.stack([predicted - 1, predicted + 2], axis=1)
    ids = tuple(f"s{i}" for i in range(80))
    subject, batch = np.arange(80) // 2, np.array(["x", "y"] * 40)
    given = TargetPredictions(
        ids, truth, predicted, (), 3 - np.arange(80) % 4, subject, batch, limits
    )
    return target_result(
        Names("age", "run", "subject"), given, parts={"subject": subject.astype(str)}, repeats=50
    )


def test_coverage_is_shown_over_all_and_by_tenth_fold_batch_and_group():
    result = bounded()
    assert result.coverage["coverage"].value == 78 / 80
    limits = result.coverage["coverage"]
    assert 0.85 < limits.low < 0.9 < 0.99 < limits.high < 1, "39 of 40 groups"
    assert result.coverage["width"].value == 3
    assert result.sentences[-1].startswith("The 90 % intervals of predictions hold 0.975 (")
    assert result.sentences[-1].endswith(
        "by tenth of these from 0.750 to 1.00; they are 3.00 wide on average."
    )
    page = Page(report_html(data(result)))
    assert "90 % conformal intervals" in page.text
    assert "Intervals by tenth of the target" in page.text
    assert "Intervals by run" in page.text
    rows = page.text[page.text.index("Intervals by fold") :]
    assert re.findall(r"(?m)^([0-3])\n20\n", rows) == ["0", "1", "2", "3"], (
        "in the order of the folds"
    )
    assert "36.0 to 39.0\n8\n0.750\n3.00" in page.text
    assert "By subject" not in page.text, "two samples say nothing of a subject"
    assert "Intervals by subject" not in page.text
    assert result.parts["subject"]["39"][1]["mae"].value == 9


def test_point_3_quantiles_are_measured_like_conformal_intervals():
    """Quantiles 0.05 to 0.95 that hold 59 % of the values are said to be too narrow."""
    draw = np.random.default_rng(0)
    truth = draw.normal(size=400)
    quantiles = np.tile([-0.8, 0.0, 0.8], (400, 1))
    given = simulated.predictions_of(
        truth, np.zeros(400), quantiles=quantiles, levels=(0.05, 0.5, 0.95)
    )
    result = target_result(Names("age"), given, repeats=50)
    held = np.mean(np.abs(truth) <= 0.8)
    assert result.quantiles["coverage"].value == pytest.approx(held)
    assert result.quantiles["below 0.05"].value == pytest.approx(np.mean(truth <= -0.8))
    assert result.quantiles["coverage"].low < held < result.quantiles["coverage"].high
    assert "They are too narrow" in result.sentences[-1]
    assert "Coverage of the predicted quantiles" in Page(report_html(data(result))).text
    exact = replace(given, quantiles=np.tile([-1.645, 0.0, 1.645], (400, 1)))
    assert "too" not in target_result(Names("age"), exact, repeats=50).sentences[-1]
    # There is no conformal interval to use instead; ten samples show nothing; one quantile holds
    # nothing.
    assert "instead" not in result.sentences[-1]
    few = given.at(
        np.flatnonzero(np.abs(truth) > 0.8)[:1].tolist()
        + np.flatnonzero(np.abs(truth) < 0.8)[:5].tolist()
    )
    few_sentence = target_result(Names("age"), few, repeats=50).sentences[-1]
    assert few_sentence.endswith("They may be too narrow; these samples do not tell.")
    alone = replace(given, quantiles=quantiles[:, 1:2], levels=(0.5,))
    assert not any(
        "quantiles" in one for one in target_result(Names("age"), alone, repeats=50).sentences
    )


@pytest.mark.parametrize("subset", ["validation", "training", "unknown"])
def test_points_10_and_11_only_held_out_samples_are_called_so(subset: str):
    truth = numeric().predictions.truth
    given = replace(numeric().predictions, predicted=truth + 0.1)
    baselines = [Baseline(MEDIAN, np.full(40, np.median(truth)))]
    result = target_result(Names("age"), given, baselines, subset=subset, repeats=20)
    text = "\n".join(summary_lines(data(result)))
    assert "Held-out" not in text
    assert "all held-out samples" not in text
    assert ("does better" in text) == (subset != "training")


def test_the_digest_names_the_configuration():
    page = report_html(data())
    shown = '{\n "lr": 0.001,\n "table": "table.biom"\n}'
    assert hashlib.sha256(shown.encode()).hexdigest()[:32] in page
    other = replace(data(), configuration={"lr": 0.002})
    assert hashlib.sha256(shown.encode()).hexdigest()[:32] not in report_html(other)


def test_plain_lines_are_few_and_their_columns_stand_below_each_other():
    lines = summary_lines(data())
    assert len(lines) <= 30
    start = lines.index("The model beside baselines") + 1
    header, model, median = lines[start : start + 3]
    assert header.split()[:2] == ["samples", "MAE"]
    assert header.split()[-1] == "p"
    assert len(header) == len(median)
    assert "RMSE" not in header
    assert model.index(")") == median.index(")")
    assert not any("subject" in line and line.startswith("  run ") for line in lines)


def test_a_target_without_any_known_sample_is_reported():
    nothing = TargetPredictions(("a", "b"), np.full(2, math.nan), np.zeros(2))
    result = target_result(Names("age"), nothing, [Baseline(MEDIAN, np.zeros(2))], repeats=5)
    assert result.comparisons == ()
    assert "<svg" not in report_html(data(result))
    unlabelled = TargetPredictions(("a",), np.array([-1]), np.array([[0.5, 0.5]]), ("no", "yes"))
    assert Page(report_html(data(target_result(Names("case"), unlabelled, repeats=5)))).text


def test_a_report_of_pretraining_has_no_target():
    page = Page(report_html(replace(data(), targets=()))).text
    assert "Mantel" in page
    assert summary_lines(replace(data(), targets=()))[-1] == "  8-mer Jaccard   0.958"


# --- pictures ----------------------------------------------------------------------------------


def pictures_of(page: Page) -> list[str]:
    """What is said of each picture to a reader who does not see it."""
    return [
        value or "" for tag, name, value in page.attributes if (tag, name) == ("svg", "aria-label")
    ]


def test_the_scatter_is_a_picture_inside_the_page():
    result = numeric()
    page = report_html(data(result))
    assert any(
        sentence.startswith("Scatter of 40 samples. True values run from")
        for sentence in pictures_of(Page(page))
    )
    predictions = result.predictions
    for sample, truth, predicted in zip(
        predictions.sample_ids, predictions.truth, predictions.predicted, strict=True
    ):
        assert (
            page.count(
                f'data-tip="{sample}: true {number(truth)}, predicted {number(predicted)}, subject '
            )
            == 1
        )


def test_batches_have_a_colour_each_while_there_are_enough():
    assert report_html(data(numeric(batches=3))).count(">run 2</text>") == 2, (
        "in the legend and in the errors by run"
    )
    assert report_html(data(numeric(batches=20))).count(">run 2</text>") == 1, (
        "among runs held out whole, no colour"
    )


# --- safety ------------------------------------------------------------------------------------


def hostile() -> ReportData:
    results = data(classes((HOSTILE, *SITES[1:])), numeric(HOSTILE))
    names = Names(HOSTILE, HOSTILE, HOSTILE)
    return replace(
        results,
        title=HOSTILE,
        task={HOSTILE: HOSTILE},
        tables=(Table(HOSTILE, (HOSTILE,), ((HOSTILE,),)),),
        targets=tuple(replace(one, names=names, sentences=(HOSTILE,)) for one in results.targets),
        warnings=(HOSTILE,),
        configuration={HOSTILE: [HOSTILE]},
    )


def scripts_of(page: str) -> list[str]:
    assert page.count("<script") == page.count("<script>")
    return re.findall("<script>(.*?)</script>", page, re.DOTALL)


def test_nothing_in_the_data_becomes_markup():
    page = Page(report_html(hostile()))
    assert "script" not in {tag for tag, _, _ in page.attributes}, "the own script has no attribute"
    assert scripts_of(report_html(hostile())) == scripts_of(report_html(data()))
    assert HOSTILE in page.text
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in ("src", "href") or re.fullmatch(r"#[a-z]+(-[a-z]+)*(-\d+)?", value), (
            "links stay inside"
        )


def test_the_page_forbids_outside_resources():
    page = Page(report_html(data()))
    policies = [value for tag, name, value in page.attributes if (tag, name) == ("meta", "content")]
    assert policies.pop() == "width=device-width, initial-scale=1"
    (script,) = scripts_of(report_html(data()))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'"
    assert policies == [f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; {allowed}"]
    assert not re.search(r"https?:|@import|url\(", report_html(data()))


def test_plain_lines_hold_nothing_that_a_terminal_obeys():
    assert all(line.isprintable() for line in summary_lines(hostile()))


def test_the_page_of_a_large_study_is_small():
    """3,000 samples of 1,500 subjects, two targets."""
    draw = np.random.default_rng(0)
    truth, ids = draw.normal(size=3000), tuple(f"10249.C{at:06d}.SS" for at in range(3000))
    subject = np.array([f"subject {at // 2}" for at in range(3000)])
    given = TargetPredictions(
        ids,
        truth,
        truth + draw.normal(size=3000),
        groups=subject,
        limits=np.stack([truth - 1, truth + 1], axis=1),
    )
    result = target_result(Names("age", "run", "subject"), given, repeats=2)
    levels = {f"plate {at}": (6, result.metrics) for at in range(1500)}
    results = data(*[replace(result, parts={"plate": levels}, batches={}) for _ in range(2)])
    page = report_html(results)
    assert limits_text(result.metrics["mae"]) in page.split("By plate")[-1], (
        "levels have intervals as all samples have"
    )
    assert "By plate (the first 500 of 1500; metrics.json has all)" in page
    assert len(page.encode()) < 2_000_000


# --- file --------------------------------------------------------------------------------------


def test_the_same_results_give_the_same_bytes():
    assert report_html(data()) == report_html(data())


def test_importing_does_not_load_the_plotting_library(plain_python: Callable[[str], str]):
    assert (
        plain_python("import sys, aam.report.report; print('altair' in sys.modules)") == "False\n"
    )


def test_several_targets_are_said_not_to_be_corrected_for():
    assert "of each target alone" not in report_html(data(numeric()))
    assert "2 targets are tested, and p is corrected for" in report_html(data())


def test_options_are_not_broken_between_lines():
    page = report_html(
        replace(
            data(),
            warnings=("--rarefy-depth 5 <is> low; pre--trained, --lr",),
            explain_command="aam --x",
        )
    )
    assert (
        '<span class="option">--rarefy-depth</span> 5 &lt;is&gt; low; pre--trained, <span '
        'class="option">--lr</span>'
    ) in page
    assert '<pre>aam <span class="option">--x</span></pre>' in page
    assert re.search(r"\.option \{[^}]*white-space: nowrap", page)


# --- how to read it ----------------------------------------------------------------------------

READING_PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "reading-the-report.md"


def test_the_docs_say_of_figures_and_tables_what_the_page_says():
    page = READING_PAGE.read_text()
    for title, text in READING.values():
        assert f"| {title} | {text} |" in page


@pytest.mark.parametrize("name", ["regression", "classification", "pretraining", "explanation"])
def test_every_figure_and_table_has_a_link_to_how_to_read_it(name):
    page = pages()[name]
    linked = re.findall(r'<div class="titled"><h3>.*?</h3>(.*?)</div>', page)
    assert len(linked) == page.count("<figure>") + page.count('<div class="wide"')
    targets = [re.search(r'href="#(how-[a-z-]+)"', link)[1] for link in linked]
    ids = re.findall(r'id="(how-[a-z-]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(targets) == set(ids), "nothing is explained that is not there"
