"""Evaluation of whole studies: truth, folds, baselines and conformal intervals."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import sklearn.metrics
import torch

from aam.config import DataConfig, TargetConfig
from aam.data.splits import Split, make_splits
from aam.data.study import MetadataColumns
from aam.data.targets import TargetSpec, fit_targets
from aam.evaluate.comparison import MAJORITY, MEDIAN
from aam.evaluate.conformal import with_conformal_intervals
from aam.evaluate.evaluation import Evaluation, Names, evaluate, evaluate_target
from aam.evaluate.intervals import number
from aam.evaluate.predictions import PredictionTable, TargetPredictions, make_predictions
from aam.io.metadata import Metadata
from aam.predict.baselines import baselines_by_target, baselines_of
from aam.report.page import ReportData
from aam.report.record import record_of, tiles
from aam.report.training import dropped_by_class
from tests.data.studies import load_study, samples_in, typed_metadata
from tests.evaluate.simulated import scored
from tests.report.test_figures import report_html

CPU = torch.device("cpu")


def split_of(test: list[int], validation: list[int], samples: int = 9, fold: str = "") -> Split:
    ids = tuple(f"s{row}" for row in range(samples))
    subsets = tuple(
        "test" if row in test else "validation" if row in validation else "train"
        for row in range(samples)
    )
    return Split(ids, subsets, (fold,) * samples)


# --- targets -----------------------------------------------------------------------------------

AGES = ("1", "2", "", "4", "5", "6", "7", "8", "9")
DIETS = ("milk", "milk", "food", "food", "milk", "", "food", "milk", "food")
COLUMNS = {"age": AGES, "diet": DIETS, "child": tuple("aabbccdde"), "plate": tuple("xxxyyyzzz")}
KINDS = {"age": "numeric", "diet": "categorical", "child": "categorical", "plate": "categorical"}
METADATA = typed_metadata(tuple(f"s{row}" for row in range(9)), COLUMNS, KINDS)
SPECS = (TargetSpec("age", "numeric"), TargetSpec("diet", "class", ("food", "milk")))
SPLITS = (split_of([0, 1, 2, 3], [8], fold="0"), split_of([4, 5, 6, 7, 8], [0, 1], fold="1"))


def predictions() -> PredictionTable:
    """All nine samples, the rows of the second fold first."""
    ids = [f"s{row}" for row in (4, 5, 6, 7, 8, 0, 1, 2, 3)]
    values = np.array([5.0, 7, 7, 8, 9, 1, 2, 3, 4])
    second = np.array([0.9, 0.5, 0.2, 0.4, 0.1, 0.8, 0.7, 0.3, 0.6])
    predicted = {"age": values, "diet": np.stack([1 - second, second], axis=1)}
    return make_predictions(ids, SPECS, predicted, fold=("1",) * 5 + ("0",) * 4)


def test_targets_are_compared_with_their_metadata(study_of, tiny):
    study = study_of(**tiny())
    study = dataclasses.replace(
        study, metadata=METADATA, samples=samples_in(kept=METADATA.ids, few_reads=["lost"])
    )
    more = {name: (*COLUMNS[name], "milk" if name == "diet" else "9") for name in COLUMNS}
    metadata = typed_metadata((*METADATA.ids, "lost"), more, KINDS)
    data = DataConfig(group_column="child", batch_column="plate")
    # What a learner of the model predicts alone, in another order.
    alone = predictions().with_rows([f"s{row}" for row in range(9)], {})
    study = dataclasses.replace(study, metadata=metadata, config=data)
    members = {"linear model of presence": alone}
    baselines = baselines_by_target(predictions(), study, SPLITS, in_blend=members)
    age, diet = evaluate(predictions(), metadata, data, baselines)
    assert age.metrics["mae"].value == pytest.approx(1 / 8)
    for target in (age, diet):
        (baseline,) = (one for one in target.comparisons if one.name == "linear model of presence")
        expected = {name: metric.value for name, metric in target.metrics.items()}
        found = {name: metric.value for name, metric in baseline.metrics.items()}
        assert found == pytest.approx({name: expected[name] for name in found}, nan_ok=True)
    assert {fold: count for fold, (count, _) in age.folds.items()} == {"0": 3, "1": 5}
    assert {batch: count for batch, (count, _) in age.batches.items()} == {"x": 2, "y": 3, "z": 3}
    of_diet = {"food": (4, 4), "milk": (5, 4)}
    assert dropped_by_class(study, (age, diet)) == {"age": {}, "diet": of_diet}
    truth = np.array([value == "milk" for value in DIETS])[[4, 6, 7, 8, 0, 1, 2, 3]]
    score = [0.9, 0.2, 0.4, 0.1, 0.8, 0.7, 0.3, 0.6]
    areas = [sklearn.metrics.roc_auc_score(truth[at], score[at]) for at in (slice(4), slice(4, 8))]
    assert diet.metrics["auroc"].value == pytest.approx(np.mean(areas))
    medians = {one.name: one for one in age.comparisons}
    ages = np.array([float(value or math.nan) for value in AGES])
    error = [abs(ages[row] - np.nanmedian(ages[4:])) for row in (0, 1, 3)]
    error += [abs(ages[row] - np.nanmedian(ages[:4])) for row in (4, 5, 6, 7, 8)]
    assert medians[MEDIAN].metrics["mae"].value == pytest.approx(np.mean(error))
    assert "the child's median" not in medians, "no child stands on both sides"
    assert medians["the plate's median"].samples == 3, "plate y alone stands on both sides"
    assert MAJORITY in {one.name for one in diet.comparisons}


def test_samples_below_the_depth_and_without_metadata_stand_in_no_baseline(study_of, tiny):
    study = dataclasses.replace(
        study_of(**tiny()), samples=samples_in(kept=METADATA.ids, few_reads=["lost"])
    )
    kept = [row for row, name in enumerate(METADATA.ids) if name != "s7"]
    columns = {name: (*(cells[row] for row in kept), "7") for name, cells in COLUMNS.items()}
    metadata = typed_metadata((*(f"s{row}" for row in kept), "lost"), columns, KINDS)
    table = dataclasses.replace(predictions(), specs=SPECS[:1]).with_columns({"fold": ""})
    table = table.with_rows(("s1", "lost", "s0"), {"lost": "3 reads"})
    study = dataclasses.replace(study, metadata=metadata)
    baselines = baselines_by_target(table, study, [split_of([0, 1], [2])])
    (age,) = evaluate(table, metadata, DataConfig(), baselines)
    median = np.median([4, 5, 6, 7, 9])
    assert age.comparisons[0].samples == 2
    assert age.comparisons[0].metrics["mae"].value == pytest.approx(
        np.mean([median - 1, median - 2])
    )


# --- real studies ------------------------------------------------------------------------------


def said_of(folder: Path, target: str, like: str, **columns: str) -> str:
    """What the report says of a model that predicts what the baseline `like` does."""
    files = {"table": folder / "table.biom", "metadata": folder / "metadata.tsv"}
    data = DataConfig(**files, rarefy_depth=1000, cv="fold", **columns)
    study = load_study(data, 200, MetadataColumns([target, "fold"]))
    splits = make_splits(study, data, 0)
    config = TargetConfig(metadata_column=(target,), target_transform="none")
    (spec,) = fit_targets(study.sample_metadata, config).specs
    ids, baselines = study.table.sample_ids, baselines_of(study, splits, spec)
    predicted = next(one.predicted for one in baselines if one.name == like)
    fold = {name: split.test_fold for split in splits for name in split.held_out}
    folds = [fold[name] for name in ids]
    table = make_predictions(ids, (spec,), {target: predicted}, fold=folds)
    found = baselines_by_target(table, study, splits)
    (result,) = evaluate(table, study.metadata, data, found)
    return " ".join(result.verdict.sentences)


def test_the_report_of_oral_age_says_that_the_median_of_the_study_ties(bench_data: Path) -> None:
    sentences = said_of(bench_data / "oral-age", "age", "the study's median", batch_column="study")
    assert "of the model minus that of the study's median: " in sentences
    assert "Within a study, the R2 against each study's own mean is " in sentences
    assert "--cv study holds each out whole" in sentences


def test_the_report_of_ibd_says_that_depth_separates_the_classes(bench_data: Path) -> None:
    sentences = said_of(bench_data / "ibd", "ibd", "richness alone", group_column="host_subject_id")
    assert 'The baseline "depth alone" has AUROC 0.98' in sentences
    assert "may have learned this instead of biology" in sentences


# --- intervals of whole batches ----------------------------------------------------------------


def of_batches(batches: int, seed: int) -> tuple[PredictionTable, Metadata, np.ndarray]:
    """Ages whose errors are alike within a batch, each batch held out whole; five subjects in each,
    ten samples.
    """
    random = np.random.default_rng(seed)
    batch, subject = np.repeat(np.arange(batches), 10), np.repeat(np.arange(batches * 5), 2)
    truth = random.normal(size=len(batch)) + random.normal(size=batches)[batch]
    columns = {"age": truth, "study": batch, "subject": subject}
    texts = {name: tuple(map(str, values)) for name, values in columns.items()}
    ids = tuple(f"s{row}" for row in range(len(batch)))
    kinds = {"age": "numeric", "study": "categorical", "subject": "categorical"}
    table = make_predictions(ids, SPECS[:1], {"age": truth * 0}, fold=texts["study"])
    return table, typed_metadata(ids, texts, kinds), truth


BY_STUDY = DataConfig(group_column="subject", batch_column="study")


def test_intervals_for_new_batches_are_of_whole_batches(caplog):
    held = []
    for seed in range(15):
        table, metadata, _ = of_batches(25, seed)
        table, _ = with_conformal_intervals(table, metadata, BY_STUDY, 0)
        limits, (_, _, of_new) = table.limits("age"), of_batches(25, seed + 1000)
        held += [(limits[:, 0] <= of_new) & (of_new <= limits[:, 1])]
    assert np.mean(held) == pytest.approx(0.9, abs=0.03)
    table, metadata, _ = of_batches(12, 0)
    assert with_conformal_intervals(table, metadata, BY_STUDY, 0)[1] == {}
    assert "age: no 90 % intervals, too few values of study (12): 20 are needed" in caplog.text
    assert with_conformal_intervals(
        table, metadata, dataclasses.replace(BY_STUDY, batch_column=None), 0
    )[1].keys() == {"age"}


def test_limits_are_not_below_zero_where_no_value_is(caplog):
    """Months of age had lower limits of -3; where limits are cut, they hold the same values as
    before.
    """
    draw = np.random.default_rng(0)
    truth = np.abs(draw.normal(size=200))
    ids = tuple(f"s{row}" for row in range(200))
    predicted = truth + draw.normal(size=200)

    def limits(shift: float, lowest: float) -> np.ndarray:
        cells = tuple(str(value - shift) for value in truth)
        metadata = typed_metadata(ids, {"age": cells}, {"age": "numeric"})
        spec = TargetSpec("age", "numeric", bounds=(lowest, 9.0))
        table = make_predictions(ids, (spec,), {"age": predicted - shift})
        made, fitted = with_conformal_intervals(table, metadata, DataConfig(), 0)
        assert fitted["age"].floor == (None if shift or lowest < 0 else 0.0)
        return np.asarray(made.limits("age")) + shift

    cut, free = limits(0, 0.5), limits(0, -0.5)
    assert free.min() < 0
    # One that lies below 0 whole stays, or it would have no width.
    assert np.array_equal(cut, np.where(free[:, 1:] > 0, np.maximum(free, 0), free))
    inside = [(low <= truth) & (truth <= high) for low, high in (cut.T, free.T)]
    assert np.array_equal(*inside)
    assert np.allclose(limits(9, -9.0), free), "values that may be negative have limits that may"


def test_the_only_negative_value_decides_nothing_of_its_own_interval():
    draw = np.random.default_rng(0)
    truth = np.abs(draw.normal(size=200))
    truth[0] = -1.0
    ids = tuple(f"s{row}" for row in range(200))
    metadata = typed_metadata(ids, {"age": tuple(map(str, truth))}, {"age": "numeric"})
    folds = tuple(str(row % 5) for row in range(200))
    # The bounds of joined folds are those of all samples.
    spec = TargetSpec("age", "numeric", bounds=(-1.0, 9.0))
    predicted = truth + draw.normal(size=200)
    table = make_predictions(ids, (spec,), {"age": predicted}, fold=folds)
    made, _ = with_conformal_intervals(table, metadata, DataConfig(), 0)
    low, high = made.limits("age").T
    in_fold = np.array(folds) == folds[0]
    assert low[in_fold & (high > 0)].min() >= 0
    assert low[~in_fold].min() < 0


# --- studies held out whole ---------------------------------------------------------------------


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


def page_of(*targets: Evaluation) -> ReportData:
    return ReportData("aam evaluate", {}, {}, {}, targets)


def judged(given: TargetPredictions) -> Evaluation:
    return evaluate_target(Names("status", "study", "study"), given, repeats=50)


def test_each_study_has_an_interval_of_its_own_samples():
    result = judged(studies())
    found = [values["auroc"] for _, values in result.batches.values()]
    assert math.isnan(found.pop().value), "one class has no AUROC"
    assert all(0 < one.low < one.value < one.high <= 1 for one in found)
    assert result.in_new_batches == sorted(one.value for one in found)
    numbers = {"truth": studies().predicted[:, 1] * 3, "predicted": studies().predicted[:, 0]}
    assert len(judged(dataclasses.replace(studies(), **numbers, labels=())).in_new_batches) == 4


@pytest.mark.parametrize(
    "given",
    [
        studies(by_study=False),
        dataclasses.replace(studies(), batch=None),
        # The only other study is of one class.
        studies(sizes=(60, 10)),
    ],
)
def test_without_several_studies_held_out_whole_there_is_no_mean_over_them(given):
    result = judged(given)
    assert result.in_new_batches == []
    assert tiles(record_of(result))[0]["question"] == "AUROC"
    cautions = " ".join(result.verdict.cautions)
    assert "values of study was held out whole" not in cautions


def test_samples_without_a_study_are_no_study_held_out_whole():
    given = studies()
    batch = np.where(given.batch == "study 0", "", given.batch)
    result = judged(dataclasses.replace(given, batch=batch, fold=batch))
    assert len(result.in_new_batches) == 2
    cautions = " ".join(result.verdict.cautions)
    assert "Each of 2 values of study was held out whole" in cautions


def test_a_report_leads_with_studies_never_seen():
    result = judged(studies())
    mean = number(np.mean(result.in_new_batches))
    text = f"Each of 3 values of study was held out whole: AUROC {mean} on average, "
    assert text in " ".join(result.verdict.cautions)
    tile = tiles(record_of(result))[0]
    assert (tile["question"], tile["answer"]) == ("AUROC in a new study", mean)
    start = "Mean over 3 values of study, each held out whole, with equal weights ("
    assert tile["sentence"].startswith(start)
    assert "; each study has intervals over its own groups or samples" in report_html(
        page_of(result)
    )
