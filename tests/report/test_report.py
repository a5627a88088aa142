"""The report: its tiles, complete, the same every time, and safe whatever the metadata hold."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from aam.evaluate.comparison import MEDIAN, Baseline
from aam.evaluate.evaluation import Evaluation, Names, evaluate_target
from aam.evaluate.intervals import limits_text, number, with_limits
from aam.evaluate.predictions import TargetPredictions
from aam.report.charts import Table
from aam.report.figures import target_figures
from aam.report.files import summary_lines, write_results
from aam.report.page import TERMS, ReportData, page_data, with_terms
from aam.report.record import judged_samples, record_of, unit_of
from aam.report.record import tiles as tiles_of
from tests.evaluate import simulated
from tests.evaluate.simulated import majority, median, predictions_of, two_classes
from tests.report.test_figures import classes, report_html

HOSTILE = "<script src='https://example.org/x.js'>\"&\x1b[31m</script>"
EMPTY_TAGS = {"meta", "img"}
SITES = ("skin", "gut", "soil")


def judge(given: TargetPredictions, *rivals: Baseline, repeats: int = 20, **about) -> Evaluation:
    """Judge predictions of age compared with the median and other baselines."""
    name = "case" if given.labels else "age"
    constant = majority(given) if given.labels else median(given)
    return evaluate_target(Names(name), given, (constant, *rivals), repeats=repeats, **about)


def of_subset(given: TargetPredictions, subset: str) -> TargetPredictions:
    return replace(given, subset=np.full(len(given.truth), subset, object))


def tiles(result: Evaluation) -> list[dict[str, str]]:
    return tiles_of(record_of(result))


# --- tiles -------------------------------------------------------------------------------------


def test_the_tiles_hold_the_metric_the_best_baseline_and_the_verdict():
    given = simulated.numeric(0.5, groups=np.arange(200) // 5)
    result = judge(given)
    metric, baseline, verdict = tiles(result)
    mae = result.metrics["mae"]
    assert (metric["answer"], metric["limits"]) == (number(mae.value), limits_text(mae))
    assert f"miss age by {metric['answer']} on average" in metric["sentence"]
    assert baseline["sentence"] == "The training median (guessing), the only one of all samples."
    # Nothing but guessing was beaten.
    assert (verdict["answer"], verdict["sign"]) == ("Better than guessing", "open")
    trivial = Baseline("richness", np.random.default_rng(1).permutation(given.truth))
    beaten = tiles(judge(given, trivial))[2]
    assert (beaten["answer"], beaten["sign"]) == ("Beats trivial baselines", "better")
    assert judged_samples(record_of(result)) == "200 held-out samples of 40 group."


def test_the_best_is_of_the_baselines_that_predict_all_samples():
    """The best of two was named, where the better one predicts half of the samples."""
    given = simulated.numeric(0.5)
    half = Baseline("the subject's median", np.where(np.arange(200) % 2, given.truth, math.nan))
    assert "The training median (guessing)" in tiles(judge(given, half))[1]["sentence"]
    _, baseline, verdict = tiles(judge(given, Baseline("forest", given.truth, trivial=False)))
    assert baseline["sentence"] == "Forest, the best of the baselines (1) and guessing."
    assert (verdict["answer"], verdict["sign"]) == ("Worse than baseline", "worse")
    start = "Better than guessing (the training median). The MAE of the model minus that of forest"
    assert verdict["sentence"].startswith(start)
    off = given.truth + 3 * np.where(np.arange(200) % 2, 1, -1)
    worse = tiles(judge(given, Baseline("forest", off, trivial=False)))
    assert worse[2]["answer"] == "Beats best baseline"


def test_verdicts_of_samples_that_were_not_held_out_or_not_compared():
    given = simulated.numeric(0.5)
    assert tiles(judge(of_subset(given, "train")))[2]["answer"] == "Seen in training"
    chosen = judge(of_subset(given, "validation")).verdict.cautions[0]
    assert chosen.startswith("Training made choices on these samples")
    assert chosen.endswith("new samples will do worse; --test-size or --cv holds samples out.")
    alone = tiles(evaluate_target(Names("age"), given, repeats=20))
    assert [tile["answer"] for tile in alone[1:]] == ["none", "No baseline given"]
    assert tiles(judge(given.at(np.arange(4))))[2]["answer"] == "Cannot be tested"
    assert tiles(judge(two_classes(3.0).at(two_classes(3.0).truth == 1))) == []


UNITS = {"month": " months", "age_years": " years", "age (weeks)": " weeks", "Height.cm": " cm"}


@pytest.mark.parametrize(
    ("column", "unit"), [*UNITS.items(), *((name, "") for name in ("ph", "monthly", "7"))]
)
def test_an_error_has_the_unit_that_the_column_names(column, unit):
    assert unit_of(column) == unit
    result = evaluate_target(Names(column), simulated.numeric(0.5), repeats=20)
    error = number(result.metrics["mae"].value)
    assert f"miss {column} by {error}{unit} on average" in tiles(result)[0]["sentence"]


def test_limits_of_a_difference_of_shares_stay_within_minus_one_and_one():
    given = replace(two_classes(3.0), groups=np.arange(200) % 8)
    worst = Baseline("opposite", given.predicted[:, ::-1], trivial=False)
    for one in judge(given, worst, repeats=200).comparisons:
        assert -1 <= one.tested_difference.low <= one.tested_difference.high <= 1


def printed(results: ReportData) -> list[str]:
    """What a terminal shows of a report."""
    return summary_lines(results, page_data(results))


# --- the page ----------------------------------------------------------------------------------


@functools.cache
def numeric(name: str = "age", batches: int = 3) -> Evaluation:
    batch = np.array([f"run {i % batches}" for i in range(40)])
    columns = {"fold": np.arange(40) % 4, "groups": np.arange(40) // 2, "batch": batch}
    given = simulated.numeric(0.2, samples=40, **columns)
    return evaluate_target(Names(name, "run", "subject"), given, [median(given)], repeats=20)


AGREEMENT = pd.DataFrame({"": ["model", "8-mer Jaccard"], "Mantel": ["0.95", "0.958"]})


def data(*targets: Evaluation) -> ReportData:
    return ReportData(
        title="aam train",
        task={"targets": "age, case"},
        data={"samples": 40},
        split={"folds": "column fold"},
        targets=targets or (numeric(), classes(SITES)),
        tables=(Table("UniFrac", AGREEMENT),),
        warnings=("a third of the ASVs were not seen in training",),
        dropped={"case": {"skin": (12, 10), "gut": (10, 10)}},
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


SHOWN = """aam train; age, case; column fold; a third of the ASVs; 8-mer Jaccard; fold 0;
run run 2; the training median; the majority class; balanced accuracy; AUROC;
Held-out metrics, with 95 % intervals over 20 values of subject; over 60 samples;
Each class against all others; Samples left out, by class; True and predicted class;
Words of this page; Click a column header to sort."""


def test_the_page_shows_everything():
    results = data()
    html = report_html(results)
    page = Page(html).text
    for expected in map(str.strip, SHOWN.split(";")):
        assert expected in page, expected
    for result in results.targets:
        assert all(part in page for part in (result.verdict.sentence, *result.verdict.cautions))
    assert "conformal" not in page, "there are no intervals"
    assert '<tr><th scope="row">skin</th><td>12</td><td>10</td><td>2</td></tr>' in html
    assert html.count(">run 2</text>") == 1, "in the legend"
    assert ">run 2</text>" not in target_figures(numeric(batches=20))[0].svg
    assert report_html(data()) == html


def test_a_terminal_shows_results_baseline_verdict_and_warnings_on_one_screen():
    lines = printed(data())
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    text, result = " ".join(line.strip() for line in lines), numeric()
    assert f"age: MAE {with_limits(result.metrics['mae'])}; 40 held-out samples" in text
    assert "best baseline: the training median, " in text
    assert f"verdict: {result.verdict.words}." in text
    assert "warning: a third of the ASVs" in text
    assert printed(replace(data(), targets=()))[-1] == "8-mer Jaccard   0.958"


def bounded() -> TargetPredictions:
    """Forty subjects of two samples; intervals miss one subject, the oldest."""
    truth = np.repeat(np.arange(40.0), 2)
    predicted = np.where(truth == 39, 30.0, truth + 0.5)
    limits = np.stack([predicted - 1, predicted + 2], axis=1)
    return predictions_of(truth, predicted, groups=np.arange(80) // 2, limits=limits)


def test_coverage_is_shown_and_said_where_it_is_too_low():
    result = judge(bounded(), repeats=50)
    held = result.coverage["coverage"]
    assert held.value == 78 / 80
    assert 0.85 < held.low < 0.9 < 0.99 < held.high < 1, "39 of 40 groups"
    assert result.coverage["width"].value == 3
    assert "intervals" not in " ".join(result.verdict.cautions), "they hold enough"
    assert "coverage" in Page(report_html(data(result))).text
    narrow = replace(bounded(), limits=np.asarray(bounded().limits) + 0.9)
    few = " ".join(judge(narrow, repeats=50).verdict.cautions)
    assert "intervals of predictions hold only 0.0" in few


@pytest.mark.parametrize("subset", ["validation", "train", "seen-group"])
def test_only_held_out_samples_are_called_so(subset: str):
    given = replace(numeric().predictions, predicted=numeric().predictions.truth + 0.1)
    text = "\n".join(printed(data(judge(of_subset(given, subset)))))
    assert "0 held-out samples" not in text
    assert ("Better than guessing" in text) == (subset != "train")


def test_a_target_without_any_known_sample_is_reported():
    nothing = predictions_of(np.full(2, math.nan), np.zeros(2))
    result = evaluate_target(Names("age"), nothing, [Baseline(MEDIAN, np.zeros(2))], repeats=5)
    assert result.comparisons == ()
    assert "<svg" not in report_html(data(result))
    unlabelled = predictions_of(np.array([-1]), np.array([[0.5, 0.5]]), ("no", "yes"))
    assert Page(report_html(data(evaluate_target(Names("case"), unlabelled, repeats=5)))).text


def test_several_targets_are_said_not_to_be_corrected_for():
    assert "of each target only" not in report_html(data(numeric()))
    assert "2 targets are tested, and p is corrected for" in report_html(data())


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        (data(), ""),
        (replace(data(), targets=()), "The encoder learned without labels"),
        (ReportData("t", {}, {}, {}), "No sample was held out, so nothing is judged: --test-size"),
        (ReportData("t", {}, {}, {}, unjudged="Too <few> & 'odd'"), "Too <few> & 'odd'."),
    ],
    ids=["targets", "encoder", "nothing held out", "reason"],
)
def test_the_lead_of_a_report_without_targets(results, expected):
    found = report_html(results)
    assert expected in Page(found).text
    assert ('class="lead"' in found) == bool(expected)


# --- safety ------------------------------------------------------------------------------------


def hostile() -> ReportData:
    results, found = data(classes((HOSTILE, *SITES[1:])), numeric(HOSTILE)), (HOSTILE,)
    about = {"names": Names(*found * 4)}
    return replace(
        results,
        title=HOSTILE,
        task={HOSTILE: HOSTILE},
        tables=(Table(HOSTILE, pd.DataFrame({HOSTILE: [HOSTILE]})),),
        targets=tuple(replace(one, **about) for one in results.targets),
        warnings=found,
    )


def scripts_of(page: str) -> list[str]:
    assert page.count("<script") == page.count("<script>")
    return re.findall("<script>(.*?)</script>", page, re.DOTALL)


def test_nothing_in_the_data_becomes_markup():
    html = report_html(hostile())
    page = Page(html)
    assert "script" not in {tag for tag, _, _ in page.attributes}, "the own script has no attribute"
    assert scripts_of(html) == scripts_of(report_html(data()))
    assert HOSTILE in page.text
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        inside = re.fullmatch(r"#[a-z]+(-[a-z]+)*(-\d+)?", str(value))
        assert name not in ("src", "href") or inside, "links stay inside"
    assert all(line.isprintable() for line in printed(hostile()))


def test_the_page_forbids_outside_resources():
    html = report_html(data())
    policies = [value for tag, name, value in Page(html).attributes if (tag, name) == META]
    (script,) = scripts_of(html)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src "
    assert policies == [f"{policy}'sha256-{digest}'", "width=device-width, initial-scale=1"]
    assert not re.search(r"https?:|@import|url\(", html)


META = ("meta", "content")


def test_known_words_say_what_they_mean_and_options_are_not_broken():
    assert with_terms("MAE & more") == f'<abbr data-tip="{TERMS["MAE"]}">MAE</abbr> &amp; more'
    assert with_terms("balanced accuracy").count("<abbr") == 1
    assert "<abbr" not in with_terms("MAEs, pre-recall <q>")[:10]
    option = '<span class="option">--rarefy-depth</span> 5 &lt;is&gt; low; pre--trained'
    assert with_terms("--rarefy-depth 5 <is> low; pre--trained") == option
    page = report_html(replace(data(), explain_command="aam --x"))
    assert '<pre>aam <span class="option">--x</span></pre>' in page
    assert re.search(r"\.option \{[^}]*white-space: nowrap", page)


def test_what_is_not_finite_is_null_in_metrics_json(tmp_path):
    few = evaluate_target(Names("age"), simulated.numeric(0.5).at(np.arange(4)), repeats=20)
    write_results(tmp_path, ReportData("aam train", {}, {}, {}, (few,)))
    text = (tmp_path / "metrics.json").read_text(encoding="utf-8")
    target = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert target["targets"]["age"]["metrics"]["mae"]["low"] is None
    assert target["targets"]["age"]["metrics"]["mae"]["value"] == few.metrics["mae"].value
