"""The samples of a report: an ordination, and those predicted worst."""

from __future__ import annotations

import numpy as np
import skbio
from scipy.sparse import csr_array

from aam.data.table import make_table
from aam.evaluate.evaluation import Evaluation, Names, evaluate_target
from aam.evaluate.predictions import TargetPredictions
from aam.io.tables import AmpliconTable
from aam.report import samples
from aam.report.report_html import TERMS, with_terms
from aam.report.samples import sample_figures, surroundings, worst_table

SAMPLES, ASVS = 90, 30


def study() -> tuple[AmpliconTable, Evaluation]:
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
    return table, evaluate_target(Names("site", "run"), given, repeats=5)


def test_samples_of_one_site_lie_together():
    table, result = study()
    around = surroundings(table, [result.predictions])
    distances = np.linalg.norm(around.points[:, None] - around.points[None], axis=2)
    site = np.arange(SAMPLES) % 3
    same = (site[:, None] == site)[2:, 2:]
    assert distances[2:, 2:][same].max() < distances[2:, 2:][~same].min()
    figures = sample_figures(result, around)
    assert [figure.name for figure in figures] == ["samples-by-truth", "samples-by-group"]
    for figure in figures:
        assert figure.svg.count("data-tip=") == SAMPLES
    assert 'data-tip="s0: skin"' in figures[0].svg
    assert 'data-tip="s0: b"' in figures[1].svg
    assert sample_figures(result, None) == []


def test_pcoa_is_that_of_scikit_bio():
    points = np.random.default_rng(0).normal(size=(30, 5)) * [3, 2, 1, 0.5, 0.2]
    truth = np.linalg.norm(points[:, None] - points[None], axis=2)
    places, shares = samples.pcoa(truth)
    expected = skbio.stats.ordination.pcoa(skbio.DistanceMatrix(truth), dimensions=29)
    theirs = expected.samples.iloc[:, :2].to_numpy()
    assert np.allclose(np.abs(places), np.abs(theirs))
    assert np.allclose(shares, expected.proportion_explained.iloc[:2])


def test_fifths_of_values_that_are_nearly_identical_have_names_of_their_own():
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


def test_the_ordination_is_bounded_and_keeps_the_worst(monkeypatch):
    table, result = study()
    monkeypatch.setattr(samples, "MOST_SAMPLES", 30)
    around = surroundings(table, [result.predictions])
    assert len(around.sample_ids) == 30
    assert around.total == SAMPLES
    assert {row[0] for row in worst_table(result)[0].rows} <= set(around.sample_ids)
    why = "30 of 90 samples are drawn: those predicted worst and a random part of the others."
    assert why in sample_figures(result, around)[0].caption
    assert surroundings(table, [result.predictions.at(np.arange(5))]) is None


def test_known_words_say_what_they_mean_and_others_do_not():
    assert with_terms("MAE & more") == f'<abbr data-tip="{TERMS["MAE"]}">MAE</abbr> &amp; more'
    assert with_terms("balanced accuracy").count("<abbr") == 1
    assert "<abbr" not in with_terms("MAEs, pre-recall <q>")[:10]
    assert with_terms("<script>") == "&lt;script&gt;"
