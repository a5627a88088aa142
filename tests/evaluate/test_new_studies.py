"""Studies held out whole: random effects as statsmodels has them, and what is said of a further
study.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student
from statsmodels.stats.meta_analysis import combine_effects

from aam.evaluate.intervals import number
from aam.evaluate.new_studies import in_new_studies, new_study_sentence, random_effects
from aam.evaluate.target_predictions import TargetPredictions
from aam.report.answer import tiles
from aam.report.report import Names, result_tables, target_result
from aam.report.target_figures import target_figures
from tests.evaluate.simulated import scored


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_the_mean_over_studies_is_that_of_statsmodels(spread):
    rng = np.random.default_rng(0)
    variances = rng.uniform(0.001, 0.004, 7)
    values = 0.7 + rng.normal(size=7) * np.sqrt(variances + spread**2)
    mean, further, deviation, heterogeneity = random_effects(values, variances)
    expected = combine_effects(values, variances, method_re="dl")
    between = max(expected.tau2, 0)
    assert deviation == pytest.approx(np.sqrt(between))
    assert heterogeneity == pytest.approx(max(expected.i2, 0))
    if between:
        assert mean.value == pytest.approx(expected.mean_effect_re)
        plain, knapp = expected.sd_eff_w_re, expected.sd_eff_w_re_hksj
        half = student.ppf(0.975, 6) * max(plain, knapp)
        assert [mean.low, mean.high] == pytest.approx([mean.value - half, mean.value + half])
        wide = student.ppf(0.975, 5) * np.sqrt(max(plain, knapp) ** 2 + between)
        assert [further.low, further.high] == pytest.approx([mean.value - wide, mean.value + wide])
    else:
        assert mean.value == pytest.approx(expected.mean_effect_fe)
    assert further.low <= mean.low < mean.high <= further.high


def test_two_studies_have_no_interval():
    mean, further, _, _ = random_effects(np.array([0.6, 0.8]), np.array([0.001, 0.001]))
    assert mean.value == further.value == pytest.approx(0.7)
    assert np.isnan([mean.low, mean.high, further.low, further.high]).all()


def studies(sizes=(40, 30, 50, 8), by_study: bool = True) -> TargetPredictions:
    """Return predictions of two classes, the last study of one class, held out by study or in mixed
    folds.
    """
    rng = np.random.default_rng(1)
    batch = np.repeat([f"study {number}" for number in range(len(sizes))], sizes)
    truth = rng.integers(0, 2, len(batch))
    truth[batch == batch[-1]] = 0
    second = 1 / (1 + np.exp(-(truth + rng.normal(size=len(batch)))))
    fold = batch if by_study else np.array([str(number % 4) for number in range(len(batch))])
    return scored(truth, second, ("control", "case"), fold=fold, groups=batch, batch=batch)


def test_each_study_has_its_own_interval_and_weighs_alike_in_the_mean():
    result = in_new_studies(studies())
    assert result is not None
    assert list(result.studies) == ["study 0", "study 1", "study 2"], "one class has no AUROC"
    assert all(0 < one.low < one.value < one.high <= 1 for _, one in result.studies.values())
    assert result.mean == pytest.approx(np.mean([one.value for _, one in result.studies.values()]))
    assert (
        0
        <= result.further.low
        <= result.pooled.low
        < result.pooled.high
        <= result.further.high
        <= 1
    )
    assert in_new_studies(studies(by_study=False)) is None
    assert in_new_studies(replace(studies(), batch=None)) is None
    assert in_new_studies(studies(sizes=(60, 10))) is None, "the only other study is of one class"


def test_numbers_have_their_error_in_each_study():
    classes = studies()
    numbers = replace(
        classes, truth=classes.predicted[:, 1] * 3, predicted=classes.predicted[:, 0], labels=()
    )
    result = in_new_studies(numbers)
    assert result is not None
    assert result.metric == "mae"
    assert len(result.studies) == 4
    assert result.further.low >= 0


def test_a_report_leads_with_studies_never_seen():
    result = target_result(Names("status", "study", "study"), studies(), repeats=50)
    assert result.new_studies is not None
    first = new_study_sentence(result.new_studies, "study")
    assert result.sentences[0] == first
    assert "on average over 3, each alike" in first
    assert "a further one is expected between" in first
    table = result_tables(result)[0]
    assert table.title == "In a study never seen: each was held out whole"
    assert [row[0] for row in table.rows][:3] == ["study 0", "study 1", "study 2"]
    assert table.rows[3][:2] == ("mean, each study alike", "120")
    assert "new-studies" in [figure.name for figure in target_figures(result)]
    tile = tiles(result)[0]
    assert (tile.question, tile.answer) == (
        "AUROC in a study never seen",
        number(result.new_studies.mean),
    )
    assert tile.sentence.startswith(
        "Mean over 3 values of study, each held out whole and counted alike ("
    )
    mixed = target_result(Names("status", "study", "study"), studies(by_study=False), repeats=50)
    assert mixed.new_studies is None
    assert "never seen: each" not in result_tables(mixed)[0].title
