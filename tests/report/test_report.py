"""The report: complete, the same every time, and safe whatever the metadata hold."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from aam.evaluate.comparison import MEDIAN, Baseline
from aam.evaluate.evaluation import Evaluation, Names, evaluate_target
from aam.evaluate.intervals import with_limits
from aam.evaluate.predictions import TargetPredictions
from aam.evaluate.verdict import Verdict
from aam.report.figures import target_figures
from aam.report.page import TERMS, ReportData, introduction, report_html, summary_lines, with_terms
from aam.report.tables import Table
from tests.evaluate import simulated
from tests.report.test_figures import classes

HOSTILE = "<script src='https://example.org/x.js'>\"&\x1b[31m</script>"
EMPTY_TAGS = {"meta", "img"}


@functools.cache
def numeric(name: str = "age", batches: int = 3) -> Evaluation:
    batch = np.array([f"run {i % batches}" for i in range(40)])
    given = simulated.numeric(
        0.2, samples=40, fold=np.arange(40) % 4, groups=np.arange(40) // 2, batch=batch
    )
    return evaluate_target(
        Names(name, "run", "subject"), given, [simulated.median(given)], repeats=20
    )


SITES = ("skin", "gut", "soil")


def data(*targets: Evaluation) -> ReportData:
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
        *(result.verdict.sentence for result in results.targets),
        *(caution for result in results.targets for caution in result.verdict.cautions),
    ):
        assert expected in page, expected
    assert "conformal" not in page, "there are no intervals"
    assert '<tr><th scope="row">skin</th><td>12</td><td>10</td><td>2</td></tr>' in report_html(
        results
    )


def test_a_terminal_shows_results_baseline_verdict_and_warnings_on_one_screen():
    lines = summary_lines(data())
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    text = " ".join(line.strip() for line in lines)
    result = numeric()
    assert f"age: MAE {with_limits(result.metrics['mae'])}; 40 held-out samples" in text
    assert "best baseline: the training median, " in text
    assert f"verdict: {result.verdict.words}." in text
    assert "warning: a third of the ASVs" in text


def bounded() -> Evaluation:
    """Forty subjects of two samples; intervals miss one subject, the oldest."""
    truth = np.repeat(np.arange(40.0), 2)
    predicted = np.where(truth == 39, 30.0, truth + 0.5)
    limits = np.stack([predicted - 1, predicted + 2], axis=1)
    ids = tuple(f"s{i}" for i in range(80))
    subject, batch = np.arange(80) // 2, np.array(["x", "y"] * 40)
    given = TargetPredictions(
        ids, truth, predicted, (), 3 - np.arange(80) % 4, subject, batch, limits
    )
    return evaluate_target(Names("age", "run", "subject"), given, repeats=50)


def test_coverage_is_shown_and_said_where_it_is_too_low():
    result = bounded()
    assert result.coverage["coverage"].value == 78 / 80
    limits = result.coverage["coverage"]
    assert 0.85 < limits.low < 0.9 < 0.99 < limits.high < 1, "39 of 40 groups"
    assert result.coverage["width"].value == 3
    assert not any("intervals" in one for one in result.verdict.cautions), "they hold enough"
    narrow = replace(result.predictions, limits=np.asarray(result.predictions.limits) + 0.9)
    few = evaluate_target(Names("age"), narrow, repeats=50).verdict.cautions
    assert any("intervals of predictions hold only 0.0" in one for one in few)
    assert "coverage" in Page(report_html(data(result))).text


def test_intervals_of_samples_unlike_training_are_scored_and_said_to_be_withheld():
    given = bounded().predictions
    unlike = dict.fromkeys(given.sample_ids[40:], "the table is unlike the training table")
    result = evaluate_target(Names("age", "run", "subject"), given, repeats=20, unlike=unlike)
    text = " ".join(result.verdict.cautions)
    assert "40 of 80 samples get no interval, for example because the table is unlike" in text
    assert "would have held 0.950 of their true values" in text
    assert "and those of the others hold 1.00." in text


@pytest.mark.parametrize("subset", ["validation", "training", "unknown"])
def test_points_10_and_11_only_held_out_samples_are_called_so(subset: str):
    truth = numeric().predictions.truth
    given = replace(numeric().predictions, predicted=truth + 0.1)
    baselines = [Baseline(MEDIAN, np.full(40, np.median(truth)))]
    result = evaluate_target(Names("age"), given, baselines, subset=subset, repeats=20)
    text = "\n".join(summary_lines(data(result)))
    assert "0 held-out samples" not in text
    assert ("Better than guessing" in text) == (subset != "training")


def test_the_digest_names_the_configuration():
    page = report_html(data())
    shown = '{\n "lr": 0.001,\n "table": "table.biom"\n}'
    assert hashlib.sha256(shown.encode()).hexdigest()[:32] in page
    other = replace(data(), configuration={"lr": 0.002})
    assert hashlib.sha256(shown.encode()).hexdigest()[:32] not in report_html(other)


def test_a_target_without_any_known_sample_is_reported():
    nothing = TargetPredictions(("a", "b"), np.full(2, math.nan), np.zeros(2))
    result = evaluate_target(Names("age"), nothing, [Baseline(MEDIAN, np.zeros(2))], repeats=5)
    assert result.comparisons == ()
    assert "<svg" not in report_html(data(result))
    unlabelled = TargetPredictions(("a",), np.array([-1]), np.array([[0.5, 0.5]]), ("no", "yes"))
    assert Page(report_html(data(evaluate_target(Names("case"), unlabelled, repeats=5)))).text


def test_a_report_of_pretraining_has_no_target():
    page = Page(report_html(replace(data(), targets=()))).text
    assert "Mantel" in page
    assert summary_lines(replace(data(), targets=()))[-1] == "8-mer Jaccard   0.958"


def test_batches_have_a_colour_each_while_there_are_enough():
    assert report_html(data(numeric(batches=3))).count(">run 2</text>") == 1, "in the legend"
    twenty = numeric(batches=20)
    assert ">run 2</text>" not in target_figures(twenty)[0].svg


# --- safety ------------------------------------------------------------------------------------


def hostile() -> ReportData:
    results = data(classes((HOSTILE, *SITES[1:])), numeric(HOSTILE))
    names = Names(HOSTILE, HOSTILE, HOSTILE)
    return replace(
        results,
        title=HOSTILE,
        task={HOSTILE: HOSTILE},
        tables=(Table(HOSTILE, (HOSTILE,), ((HOSTILE,),)),),
        targets=tuple(
            replace(one, names=names, verdict=Verdict(HOSTILE, HOSTILE, cautions=(HOSTILE,)))
            for one in results.targets
        ),
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


# --- file --------------------------------------------------------------------------------------


def test_the_same_results_give_the_same_bytes():
    assert report_html(data()) == report_html(data())


def test_several_targets_are_said_not_to_be_corrected_for():
    assert "of each target only" not in report_html(data(numeric()))
    assert "2 targets are tested, and p is corrected for" in report_html(data())


def test_the_lead_of_a_report_without_targets():
    assert introduction(data()) == ""
    assert introduction(replace(data(), targets=())).startswith(
        "The encoder learned without labels"
    )
    assert introduction(ReportData("t", {}, {}, {})) == (
        "No sample was held out, so nothing is judged: --test-size or --cv holds samples out."
    )


def test_known_words_say_what_they_mean_and_others_do_not():
    assert with_terms("MAE & more") == f'<abbr data-tip="{TERMS["MAE"]}">MAE</abbr> &amp; more'
    assert with_terms("balanced accuracy").count("<abbr") == 1
    assert "<abbr" not in with_terms("MAEs, pre-recall <q>")[:10]
    assert with_terms("<script>") == "&lt;script&gt;"


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
