"""Figures and page of an explanation: well-formed, self-contained, and saying what they show."""

from __future__ import annotations

import functools
import html
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from aam.api.explanation import explain_model
from aam.config import ExplainConfig
from aam.errors import InputError
from aam.evaluate.evaluation import Names
from aam.evaluate.intervals import number
from aam.explain.effects import FALSE_DISCOVERIES
from aam.explain.results import (
    Asvs,
    Explanation,
    asv_table,
    explanation_figures,
    explanation_html,
    explanation_of,
    importances,
    opening,
    taxa_tables,
    write_explanation,
)
from aam.report.charts import Figure
from aam.report.page import ReportData, page_data, page_html, read_page
from tests.explain.simulated_effects import ASVS, GROUPS, LINEAGES, make_asvs, make_effects
from tests.report.test_figures import classes

HOSTILE = "<script>alert(1)</script>"


@functools.cache
def explained(
    outputs: int = 1, truth: bool = True, groups=tuple(GROUPS), lineages=LINEAGES
) -> Explanation:
    effects = make_effects(outputs, truth=truth)
    subjects = np.array(groups, object)
    return explanation_of(effects, make_asvs(lineages), subjects, "child", "held-out")


def _figure(explanation: Explanation, name: str) -> Figure:
    return next(figure for figure in explanation_figures(explanation, ASVS) if figure.name == name)


def _drawn(explanation: Explanation, name: str) -> list[dict]:
    """The rows of a chart of intervals."""
    chart = _figure(explanation, name).chart.to_dict()
    return chart["datasets"][chart["data"]["name"]]


@pytest.mark.parametrize(("outputs", "truth"), [(1, True), (3, True), (1, False)])
def test_figures_are_well_formed_and_described(tmp_path, outputs, truth):
    explanation = explained(outputs, truth)
    names = {"importance", "taxa"} if truth else {"effects"}
    figures = explanation_figures(explanation, 4)
    assert all(figure.chart.to_dict(validate=True) for figure in figures)
    assert {figure.name for figure in figures} == names
    write_explanation(tmp_path, explanation, 4)
    assert len(list((tmp_path / "figures").glob("*.png"))) == len(names)
    for path in (tmp_path / "figures").glob("*.svg"):
        assert len(ElementTree.parse(path).findtext("{*}desc")) > 30, path
        assert "nan" not in path.read_text().lower()


def test_the_page_needs_nothing_else_and_obeys_no_name():
    lineages = ((f"k__{HOSTILE}",), *LINEAGES[1:])
    page = explanation_html([explained(lineages=lineages), explained(3)], [f"a note {HOSTILE}"], 4)
    assert HOSTILE not in page
    assert "default-src 'none'" in html.unescape(page)
    assert not re.search(r"""(src|href)=["'](?!#)""", page)
    assert page.count("<script>") == 1
    assert len(page) < 500_000
    assert "2 of 6 tested ASVs stand out in 60 held-out samples" in page


def test_the_words_say_when_nothing_can_be_said():
    few = explained(groups=("g0", "g1", "g2") * 20)
    assert "nothing is tested in 60 held-out samples" in opening(few)
    assert "nothing is tested" in opening(explained(truth=False))


def test_the_report_of_a_run_takes_the_importances_again_and_again(tmp_path):
    command = {"explain_command": "aam explain --model run"}
    result = replace(classes(), names=Names(explained(3).effects.spec.name))
    data = page_data(ReportData("aam train", {}, {}, {}, (result,), **command))
    (tmp_path / "report.json").write_text(json.dumps(data))
    page = read_page(tmp_path / "report.json")
    report = page_html(page)
    assert report == page_html(data)
    assert '<pre>aam explain <span class="option">--model</span> run</pre>' in report
    assert "Not computed yet. This command adds it here" in report
    explanation = importances([explained(3)], [f"a note {HOSTILE}"], 4)
    once = page_html(page, explanation)
    assert "Not computed yet" not in once
    # Next to the first figures, and not again below.
    assert len(re.findall("Importance by genus[^<]*</h3>", once)) == 1
    order = ("Importance by genus", "Reliability of the probabilities", 'id="importances"')
    assert sorted(order, key=once.index) == [*order]
    assert "2 of 6 tested ASVs stand out in 60 held-out samples" in once
    assert once.count('id="importances"') == 1
    assert "</span> run</pre>" not in once
    assert HOSTILE not in once
    assert page_html(page, explanation) == once


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": 0}',
        '{"format": 1',
        "\u0000",
        '{"format": 1}',
        '{"format": 1, "targets": 3}',
    ],
)
def test_a_page_that_is_damaged_or_of_another_version_is_refused(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(InputError, match=r"report\.json: is .*; train again, or use --output-dir"):
        read_page(tmp_path / "report.json")


def test_a_folder_without_a_report_is_named_before_any_work(tmp_path):
    config = ExplainConfig(model=(tmp_path,), table=tmp_path / "no table")
    with pytest.raises(InputError, match=r"expected one run of `aam train`"):
        explain_model(config)
    assert [*tmp_path.iterdir()] == []


LONG = ("k__B", "p__F", "f__Peptostreptococcaceae")


def test_bars_hold_0_exactly_where_the_words_say_that_nothing_stands_out():
    explanation = explained(1)
    rows = _drawn(explanation, "importance")
    features = explanation.features
    expected = dict(zip(features["label"], features["q"] <= FALSE_DISCOVERIES, strict=True))
    assert {row["name"]: row["low"] > 0 for row in rows} == expected
    q = explanation.features["q"].iloc[0]
    assert rows[0]["text"].endswith(f"q {number(q)}")
    assert "corrected for all tested rows (6)" in _figure(explanation, "importance").caption
    assert "corrected for all tested rows (1)" in _figure(explanation, "taxa").caption
    # A genus of one ASV was tested as that ASV, among more of them.
    taxa = explanation.taxa
    assert taxa is not None
    assert (taxa["q"].notna() == (taxa["ASVs"] > 1)).all()


def test_importances_that_are_not_tested_have_95_percent_intervals():
    few = explanation_of(make_effects(), make_asvs(LINEAGES), GROUPS, "child", "training")
    assert "corrected" not in _figure(few, "importance").caption
    assert " to " in _drawn(few, "importance")[0]["text"]
    assert "taxa" not in opening(few)


def test_taxa_that_stand_out_are_named_in_words():
    explanation = explained(lineages=(LONG, LONG, *LINEAGES[2:]))
    words = (
        "1 of 1 tested taxa (family), sums over ASVs, stand out: Peptostreptococcaceae (family). "
    )
    assert words in opening(explanation)
    assert words.strip() in explanation_html([explanation], [], 4)
    labels = {row["name"] for row in _drawn(explained(1), "taxa")}
    assert labels == {"X", "F, genus unknown", "A, genus unknown", "G, genus unknown", "unassigned"}


def test_a_taxon_is_shown_with_its_most_important_asv():
    explanation = explained(lineages=(LONG,) * ASVS)
    family = next(table for table in taxa_tables(explanation) if "family" in table.title)
    assert family.rows[0][-1] == explanation.asvs.short_ids[explanation.features.index[0]]


def test_names_of_asvs_are_whole_in_every_figure():
    explanation = explained(lineages=(LONG,) * ASVS)
    svg = _figure(explanation, "importance").svg
    for column in range(ASVS):
        assert f">{explanation.asvs.label(column)}</text>" in svg


def test_ids_say_what_they_are_and_how_to_get_names():
    words = "beginning of the MD5 of the sequence"
    assert words in _figure(explained(lineages=()), "importance").caption
    assert words not in _figure(explained(), "importance").caption


def test_a_label_is_the_taxon_and_the_id():
    asvs = Asvs(("id",), ("ACGT",), (("k__Bacteria", "f__Peptostreptococcaceae"),))
    assert asvs.label(0) == f"Peptostreptococcaceae, genus unknown {asvs.short_ids[0]}"


def test_the_table_of_asvs_names_direction_and_attention():
    explanation = explained()
    table = asv_table(explanation, 4)
    assert table.header[-3:] == ("direction", "mean effect", "attention, mean share")
    rows = {row[0]: row[table.header.index("direction")] for row in table.rows}
    names = [explanation.asvs.label(column) for column in (0, 1)]
    assert (rows[names[0]], rows[names[1]]) == ("higher", "lower")
