"""Studies held out whole: the metric of each, and their mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aam.evaluate.evaluation import Names, evaluate_target, in_new_studies
from aam.evaluate.intervals import number
from aam.evaluate.predictions import TargetPredictions
from aam.report.page import result_tables, tiles
from tests.evaluate.simulated import scored


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


def test_a_report_leads_with_studies_never_seen():
    result = evaluate_target(Names("status", "study", "study"), studies(), repeats=50)
    assert result.new_studies is not None
    assert "In a new study the AUROC is " in " ".join(result.verdict.cautions)
    table = result_tables(result)[0]
    assert table.title == "Each study was held out whole"
    assert [row[0] for row in table.rows][:3] == ["study 0", "study 1", "study 2"]
    assert table.rows[3][:2] == ("mean over values of study", "120")
    tile = tiles(result)[0]
    assert (tile.question, tile.answer) == ("AUROC in a new study", number(result.new_studies.mean))
    assert tile.sentence.startswith(
        "Mean over 3 values of study, each held out whole, with equal weights ("
    )
    mixed = evaluate_target(Names("status", "study", "study"), studies(by_study=False), repeats=50)
    assert mixed.new_studies is None
    assert "held out whole" not in result_tables(mixed)[0].title
