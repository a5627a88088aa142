"""The samples of a report: an ordination, and what is said of those predicted worst."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from aam.data.table import SampleTable, make_table
from aam.evaluate.target_predictions import TargetPredictions
from aam.report import samples
from aam.report.report import Names, ReportData, TargetResult, target_result
from aam.report.report_html import TERMS, report_html, with_terms
from aam.report.samples import error_tables, sample_figures, surroundings, worse_levels
from tests.evaluate.simulated import predictions_of

SAMPLES, ASVS = 90, 30


def study() -> tuple[SampleTable, TargetResult]:
    """Three sites with ASVs of their own; sample 0 is of another site than its label says, sample 1
    has few reads.
    """
    draw = np.random.default_rng(0)
    site = np.arange(SAMPLES) % 3
    own = np.where(np.arange(ASVS) % 3 == site[:, None], 20.0, 1.0)
    counts = draw.poisson(own).astype(np.uint32)
    counts[1] = np.eye(ASVS, dtype=np.uint32)[1] * 3
    ids = tuple(f"s{at}" for at in range(SAMPLES))
    table = make_table(csr_array(counts), ids, [f"asv{at:02}" for at in range(ASVS)])
    truth = site.copy()
    truth[0] = 1
    predicted = 0.8 * np.eye(3)[site] + 0.2 / 3
    predicted[1] = [0.5, 0.4, 0.1]
    given = TargetPredictions(
        ids, truth, predicted, ("gut", "skin", "soil"), batch=np.where(site == 0, "b", "a")
    )
    return table, target_result(Names("site", "run"), given, repeats=5)


def test_samples_of_one_site_lie_together():
    table, result = study()
    around = surroundings(table, [result.predictions])
    distances = np.linalg.norm(around.points[:, None] - around.points[None], axis=2)
    site = np.arange(SAMPLES) % 3
    same = (site[:, None] == site)[2:, 2:]
    assert distances[2:, 2:][same].max() < distances[2:, 2:][~same].min()
    figures = sample_figures(result, around)
    assert [figure.name for figure in figures] == [
        "samples-by-truth",
        "samples-by-error",
        "samples-by-group",
    ]
    for figure in figures:
        assert figure.svg.count("data-tip=") == SAMPLES
    assert 'data-tip="s0: skin"' in figures[0].svg
    assert 'data-tip="s0: b"' in figures[2].svg
    assert sample_figures(result, None) == []


def test_fifths_of_values_that_are_nearly_alike_have_names_of_their_own():
    names, colours = samples._fifths(1 + np.arange(1, 7) / 10_000)
    assert len(set(names)) == len(colours) == len(set(colours.values())) == 5
    _, colours = samples._fifths(np.arange(11.0))
    assert [*colours] == [
        "0.00 to below 2.00",
        "2.00 to below 4.00",
        "4.00 to below 6.00",
        "6.00 to below 8.00",
        "8.00 to 10.0",
    ]


def test_the_worst_samples_say_what_may_be_odd():
    table, result = study()
    worst = error_tables(result, surroundings(table, [result.predictions]))[0]
    assert worst.header[-1] == "what may be odd"
    reasons = {row[0]: row[-1] for row in worst.rows}
    assert reasons["s0"] == "5 of its 5 nearest samples are gut"
    assert "few reads (3)" in reasons["s1"]
    assert "few ASVs (1)" in reasons["s1"]
    assert "unlike all others" in reasons["s1"]
    assert "-" in reasons.values(), "most are not odd"
    page = report_html(
        ReportData(
            "aam train", {}, {}, {}, (result,), around=surroundings(table, [result.predictions])
        )
    )
    assert "The samples, coloured by site" in page
    assert "what may be odd" in page


def test_numbers_beside_their_neighbours():
    table, _ = study()
    truth = (np.arange(SAMPLES) % 3) * 10.0 + np.arange(SAMPLES) / 100
    truth[0] = 25
    given = TargetPredictions(table.sample_ids, truth, (np.arange(SAMPLES) % 3) * 10.0)
    result = target_result(Names("age"), given, repeats=5)
    around = surroundings(table, [given])
    row = error_tables(result, around)[0].rows[0]
    assert row[0] == "s0"
    assert row[-1].startswith("at the edge of the true values; its 5 nearest samples have 0.")
    by_truth = sample_figures(result, around)[0]
    assert len(set(re.findall(r'data-tip="s\d+: ([^"]+)"', by_truth.svg))) == 5


def test_the_ordination_is_bounded_and_keeps_the_worst(monkeypatch):
    table, result = study()
    monkeypatch.setattr(samples, "MOST_SAMPLES", 30)
    around = surroundings(table, [result.predictions])
    assert len(around.sample_ids) == 30
    assert around.total == SAMPLES
    assert {row[0] for row in error_tables(result)[0].rows} <= set(around.sample_ids)
    why = (
        "Drawn are 30 of 90 samples: those predicted worst and a random part of the others, "
        "since distances"
    )
    assert why in sample_figures(result, around)[0].caption
    assert surroundings(table, [result.predictions.at(np.arange(5))]) is None


def test_known_words_say_what_they_mean_and_others_do_not():
    assert with_terms("MAE & more") == f'<abbr data-tip="{TERMS["MAE"]}">MAE</abbr> &amp; more'
    assert with_terms("balanced accuracy").count("<abbr") == 1
    assert "<abbr" not in with_terms("MAEs, pre-recall <q>")[:10]
    assert with_terms("<script>") == "&lt;script&gt;"


def test_levels_of_the_metadata_where_a_class_is_missed_are_found_and_chance_is_not():
    """Gut samples of winter are called skin; twenty columns of noise, an id, and a copy of season
    say nothing more.
    """
    random = np.random.default_rng(1)
    count = 240
    truth, season = (
        np.arange(count) % 2,
        np.array(["winter", "spring", "fall"])[np.arange(count) // 2 % 3],
    )
    missed = (truth == 0) & (season == "winter")
    right = np.clip(random.normal(0.8, 0.1, count), 0.55, 1)
    probability = np.where(missed, 0.3, right)
    predicted = np.where(
        np.arange(2) == truth[:, None], probability[:, None], 1 - probability[:, None]
    )
    given = predictions_of(truth, predicted, ("gut", "skin"), groups=np.arange(count) // 4)
    noise = {f"noise{at}": random.integers(4, size=count).astype(str) for at in range(20)}
    levels = {"season": season, "same": np.char.upper(season), **noise}
    result = target_result(Names("site"), given, parts=levels, repeats=5)
    tested, (worst, *others) = worse_levels(result)
    assert tested == 2 * (3 + 20 * 4)
    assert (worst.label, worst.column, worst.level) == ("gut", "season", "winter")
    assert (worst.samples, worst.right, worst.others, worst.others_right) == (40, 0, 80, 80)
    assert worst.error == pytest.approx(0.7)
    assert sum(one.stands_out for one in others) <= 2, "about 5 % of what stands out is chance"
    table = error_tables(result)[-1]
    assert table.rows[0][:3] == ("gut, season: winter", "0 of 40", "80 of 80")
    page = report_html(ReportData("aam train", {}, {}, {}, (result,)))
    assert "Errors are larger for gut, season: winter (0 of 40 right, elsewhere 80 of 80)" in page
    good = replace(
        given,
        predicted=np.where(np.arange(2) == truth[:, None], right[:, None], 1 - right[:, None]),
    )
    even = target_result(Names("site"), good, parts=noise, repeats=5)
    assert not [one for one in worse_levels(even)[1] if one.stands_out]
    assert "160 tested" in error_tables(even)[-1].title
    alike = replace(given, fold=np.unique(season, return_inverse=True)[1])
    assert worse_levels(
        target_result(Names("site"), alike, parts={"season": season}, repeats=5)
    ) == (0, [])
