"""Reports of whole studies: truth, folds and baselines laid side by side; encoders against naive loops."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from scipy.spatial.distance import cdist, pdist, squareform
from sklearn.linear_model import LinearRegression

from aam.config import DataConfig, ModelConfig, TrainConfig
from aam.data.draw import draw_batch
from aam.data.metadata import Metadata
from aam.data.region import RegionProfile
from aam.data.split import Split
from aam.data.study import EVALUATION
from aam.data.study_inputs import load_study
from aam.data.study_splits import make_splits
from aam.data.targets import Targets, TargetSpec, fit_targets
from aam.data.tokens import PAD, N
from aam.evaluation import distances
from aam.evaluation.baselines import MAJORITY, MEDIAN
from aam.evaluation.distances import mantel
from aam.evaluation.predictions import PredictionTable
from aam.evaluation.report import ReportData
from aam.evaluation.results import BaselineSource, evaluate_targets, write_results
from aam.evaluation.study_baselines import Columns, baselines_of
from aam.model.heads import HeadConfig
from aam.runtime.options import RuntimeConfig
from aam.training import encoder_quality
from aam.training.encoder_quality import evaluate_encoder, masked_bases
from aam.training.saved_model import SavedModel

CPU = torch.device("cpu")


def split_of(test: list[int], validation: list[int], samples: int = 9, fold: str = "") -> Split:
    ids = tuple(f"s{row}" for row in range(samples))
    sides = tuple("test" if row in test else "validation" if row in validation else "train" for row in range(samples))
    return Split(ids, sides, (fold,) * samples)


# --- targets -----------------------------------------------------------------------------------------------

AGES = ("1", "2", "", "4", "5", "6", "7", "8", "9")
DIETS = ("milk", "milk", "food", "food", "milk", "", "food", "milk", "food")
METADATA = Metadata(
    ids=tuple(f"s{row}" for row in range(9)),
    columns={"age": AGES, "diet": DIETS, "child": tuple("aabbccdde"), "plate": tuple("xxxyyyzzz")},
    kinds={"age": "numeric", "diet": "categorical", "child": "categorical", "plate": "categorical"},
)
SPECS = (TargetSpec("age", "numeric"), TargetSpec("diet", "class", ("food", "milk")))
SPLITS = (split_of([0, 1, 2, 3], [8], fold="0"), split_of([4, 5, 6, 7, 8], [0, 1], fold="1"))


def predictions() -> PredictionTable:
    """All nine samples, the rows of the second fold first."""
    ids = [f"s{row}" for row in (4, 5, 6, 7, 8, 0, 1, 2, 3)]
    values = np.array([5.0, 7, 7, 8, 9, 1, 2, 3, 4])
    second = np.array([0.9, 0.5, 0.2, 0.4, 0.1, 0.8, 0.7, 0.3, 0.6])
    return PredictionTable(
        tuple(ids),
        SPECS,
        {"age": values},
        {},
        {"diet": np.stack([1 - second, second], axis=1)},
        ("",) * 9,
        ("1",) * 5 + ("0",) * 4,
    )


def test_targets_are_compared_with_their_metadata(study_of, tiny):
    study = study_of(**tiny())
    study = dataclasses.replace(study, metadata=METADATA, dropped={"lost": 3})
    metadata = dataclasses.replace(
        METADATA,
        ids=(*METADATA.ids, "lost"),
        columns={name: (*values, "milk" if name == "diet" else "9") for name, values in METADATA.columns.items()},
    )
    columns = Columns("child", "plate")
    age, diet = evaluate_targets(predictions(), metadata, columns, BaselineSource(study, SPLITS))
    assert age.pooled["mae"].value == pytest.approx(1 / 8)
    assert {fold: count for fold, (count, _) in age.folds.items()} == {"0": 3, "1": 5}
    assert {batch: count for batch, (count, _) in age.batches.items()} == {"x": 2, "y": 3, "z": 3}
    assert age.losses == {}
    assert diet.losses == {"food": (4, 4), "milk": (5, 4)}
    truth = np.array([value == "milk" for value in DIETS])[[4, 6, 7, 8, 0, 1, 2, 3]]
    score = [0.9, 0.2, 0.4, 0.1, 0.8, 0.7, 0.3, 0.6]
    assert diet.pooled["auroc"].value == pytest.approx(sklearn.metrics.roc_auc_score(truth, score))
    medians = {one.name: one for one in age.comparisons}
    ages = np.array([float(value or math.nan) for value in AGES])
    error = [abs(ages[row] - np.nanmedian(ages[4:])) for row in (0, 1, 3)]
    error += [abs(ages[row] - np.nanmedian(ages[:4])) for row in (4, 5, 6, 7, 8)]
    assert medians[MEDIAN].figures["mae"].value == pytest.approx(np.mean(error))
    assert "the child's median" not in medians, "no child stands on both sides"
    assert medians["the plate's median"].samples == 3, "plate y alone stands on both sides"
    assert MAJORITY in {one.name for one in diet.comparisons}


def test_samples_below_the_depth_and_without_metadata_stand_in_no_baseline(study_of, tiny):
    study = dataclasses.replace(study_of(**tiny()), dropped={"lost": 3})
    kept = [row for row, name in enumerate(METADATA.ids) if name != "s7"]
    columns = {name: (*(cells[row] for row in kept), "7") for name, cells in METADATA.columns.items()}
    metadata = dataclasses.replace(METADATA, ids=(*(f"s{row}" for row in kept), "lost"), columns=columns)
    table = dataclasses.replace(predictions(), specs=SPECS[:1], folds=("",) * 9)
    table = table.with_rows(("s1", "lost", "s0"), {"lost": "3 reads"})
    (age,) = evaluate_targets(table, metadata, Columns(), BaselineSource(study, [split_of([0, 1], [2])]))
    median = np.median([4, 5, 6, 7, 9])
    assert age.comparisons[0].samples == 2
    assert age.comparisons[0].figures["mae"].value == pytest.approx(np.mean([median - 1, median - 2]))


def test_without_a_study_there_are_figures_and_no_baselines():
    age, diet = evaluate_targets(predictions(), METADATA, Columns())
    assert age.pooled["mae"].value == pytest.approx(1 / 8)
    assert age.comparisons == diet.comparisons == ()
    assert age.batches == {}
    assert age.sentences[-1].startswith("Intervals and tests rest on 8 groups only")


def test_validation_is_held_out_where_there_is_no_test_side():
    for test, learned, held_out in (([], ("s0", "s3"), ("s1", "s2")), ([3], ("s0", "s1", "s2"), ("s3",))):
        split = split_of(test, [1, 2], 4)
        assert (tuple(sorted(split.not_held_out)), split.held_out) == (learned, held_out)


def test_what_is_written_is_json_and_the_log_is_short(tmp_path, caplog):
    results = ReportData("aam evaluate", {}, {}, {}, evaluate_targets(predictions(), METADATA, Columns()))
    with caplog.at_level(logging.INFO, "aam"):
        write_results(tmp_path, results)
    written = json.loads(
        (tmp_path / "metrics.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )
    assert written["targets"]["age"]["pooled"]["mae"]["value"] == pytest.approx(1 / 8)
    assert set(written["targets"]["diet"]["folds"]) == {"0", "1"}
    assert any("all held-out samples" in message for message in caplog.messages)
    assert len(caplog.messages) < 25


# --- real studies ------------------------------------------------------------------------------------------


def said_of(folder: Path, target: str, columns: Columns, like: str) -> str:
    """What the report says of a model that predicts what the baseline `like` does."""
    data = DataConfig(table=folder / "table.biom", metadata=folder / "metadata.tsv", rarefy_depth=1000, cv="fold")
    study = load_study(data, 200, 0, [target, "fold"])
    splits = make_splits(study, data, 0)
    (spec,) = fit_targets(study.metadata, [target], study.table.sample_ids, transform="none").specs
    ids, found = baselines_of(study, splits, spec, study.metadata, columns)
    predicted = next(one.predicted for one in found if one.name == like)
    values = {target: predicted} if not spec.labels else {}
    shares = {} if not spec.labels else {target: predicted}
    fold = {name: split.test_fold for split in splits for name in split.held_out}
    table = PredictionTable(ids, (spec,), values, {}, shares, ("",) * len(ids), tuple(fold[name] for name in ids))
    (result,) = evaluate_targets(table, study.metadata, columns, BaselineSource(study, splits))
    return " ".join(result.sentences)


def test_the_report_of_oral_age_says_that_the_median_of_the_study_ties(bench_data: Path) -> None:
    said = said_of(bench_data / "oral-age", "age", Columns(batch="study"), "the study's median")
    assert "The study's median ties the model (MAE 4.88 against 4.88; paired 95 % interval" in said
    assert "Inside a study the model hardly does better than that study's mean." in said
    assert "--cv study would tell" in said


def test_the_report_of_ibd_says_that_depth_separates_the_classes(bench_data: Path) -> None:
    said = said_of(bench_data / "ibd", "ibd", Columns(group="host_subject_id"), "richness alone")
    assert "Depth alone separates the classes (AUROC 0.98" in said
    assert "may have learned that and nothing of the biology" in said


# --- encoder -----------------------------------------------------------------------------------------------


def random_distances(seed: int, samples: int = 30) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(samples, 3))
    return cdist(points, points)


def test_mantel_is_the_correlation_of_all_pairs():
    first, second = random_distances(0), random_distances(1) + random_distances(0)
    rows = np.array(list(itertools.combinations(range(30), 2)))
    expected = scipy.stats.pearsonr(first[tuple(rows.T)], second[tuple(rows.T)]).statistic
    assert distances.mantel(first, second) == pytest.approx(expected)
    assert distances.mantel(first, 2 * first + 1) == pytest.approx(1.0)
    assert math.isnan(distances.mantel(first, np.ones_like(first)))


def test_partial_mantel_with_one_matrix_is_the_closed_form():
    first, second, other = (
        random_distances(0) + random_distances(2),
        random_distances(1) + random_distances(2),
        random_distances(2),
    )
    ab, ac, bc = distances.mantel(first, second), distances.mantel(first, other), distances.mantel(second, other)
    expected = (ab - ac * bc) / math.sqrt((1 - ac**2) * (1 - bc**2))
    assert distances.partial_mantel(first, second, [other]) == pytest.approx(expected)
    assert distances.partial_mantel(first, second, []) == pytest.approx(ab)


def test_partial_mantel_with_two_matrices_is_that_of_the_residuals():
    given_ = [random_distances(2), random_distances(3)]
    first, second = random_distances(0) + given_[0], random_distances(1) + given_[1]
    upper = np.triu_indices(30, 1)
    known = np.column_stack([one[upper] for one in given_])
    rest = [one[upper] - LinearRegression().fit(known, one[upper]).predict(known) for one in (first, second)]
    assert distances.partial_mantel(first, second, given_) == pytest.approx(np.corrcoef(*rest)[0, 1])
    assert math.isnan(distances.partial_mantel(given_[0], second, given_))


def test_neighbours_recovered():
    truth = random_distances(0, samples=200)
    assert distances.neighbours_recovered(truth, truth) == 1.0
    assert distances.neighbours_recovered(truth**2, truth) == 1.0
    chance = distances.neighbours_recovered(random_distances(1, samples=200), truth)
    assert chance == pytest.approx(10 / 199, abs=0.02)
    assert math.isnan(distances.neighbours_recovered(truth[:5, :5], truth[:5, :5]))


def test_neighbours_recovered_counts_true_ties_and_never_the_sample_itself():
    tied = 1 - np.eye(5)
    assert distances.neighbours_recovered(random_distances(0, samples=5), tied, k=2) == 1.0
    line = np.abs(np.subtract.outer([0.0, 1.0, 3.0], [0.0, 1.0, 3.0]))
    other = np.abs(np.subtract.outer([0.0, 2.0, 3.0], [0.0, 2.0, 3.0]))
    assert distances.neighbours_recovered(other, line, k=1) == pytest.approx(2 / 3)


def test_jaccard_equals_the_reference():
    draw = np.random.default_rng(0)
    presence = (draw.random((12, 30)) < 0.4).astype(np.float32)
    expected = squareform(pdist(presence.astype(bool), "jaccard"))
    np.testing.assert_allclose(distances.jaccard(presence), expected, atol=1e-6)
    one = 1 - sklearn.metrics.jaccard_score(presence[0], presence[1])
    assert distances.jaccard(presence)[0, 1] == pytest.approx(one)


def test_words_are_those_of_a_naive_loop():
    tokens = np.random.default_rng(0).integers(1, 6, (7, 25)).astype(np.uint8)
    tokens[3, 12:] = PAD
    expected = [
        {bytes(row[at : at + 8]) for at in range(18) if all(0 < base < N for base in row[at : at + 8])}
        for row in tokens
    ]
    found = distances.word_counts(tokens)
    assert [int((found[[row]] > 0).sum()) for row in range(7)] == list(map(len, expected))
    shared = ((found > 0).astype(int) @ (found > 0).astype(int).T).toarray()
    assert shared.tolist() == [[len(one & other) for other in expected] for one in expected]


def naive_nearest(tokens: np.ndarray, where: np.ndarray, known: np.ndarray) -> np.ndarray:
    rows = []
    for row, hidden in zip(tokens, where, strict=True):
        agree = [
            sum(1 for a, b, h in zip(row, other, hidden, strict=True) if not h and a == b and 0 < a < N)
            for other in known
        ]
        rows.append(int(np.argmax(agree)))
    return known[rows]


def test_the_nearest_asv_is_that_of_a_naive_loop(monkeypatch):
    draw = np.random.default_rng(0)
    tokens, known = draw.integers(0, 6, (9, 15)), draw.integers(0, 6, (50, 15))
    nothing = np.zeros(tokens.shape, bool)
    for at_once in (7, 256):
        monkeypatch.setattr(encoder_quality, "KNOWN_AT_ONCE", at_once)
        found = known[encoder_quality._nearest(torch.from_numpy(tokens), torch.from_numpy(known)).numpy()]
        np.testing.assert_array_equal(found, naive_nearest(tokens, nothing, known))


def test_an_encoder_is_compared_with_what_needs_no_model(study_of, tiny, model_of):
    made = tiny(samples=9, asvs=40, lengths=(20, 17))
    made["counts"][:5, 20:] = 0
    study = study_of(**made, seed=3)
    network, heads = model_of(HeadConfig("unifrac")), HeadConfig("unifrac")
    profile = RegionProfile.fit(study.table.sequences)
    saved = SavedModel(network, study.config, ModelConfig(), heads, study.depth, study.seed, Targets(()), profile, {})
    split = split_of([5, 6, 7, 8], [3, 4], fold="2")
    distances, bases = evaluate_encoder(saved, study, split, RuntimeConfig(), CPU)

    batch = draw_batch(study, np.arange(5, 9), EVALUATION)
    with torch.no_grad():
        expected = network(batch).distance.double().numpy()
    found = {row[0]: row[1:] for row in distances.rows}
    assert distances.title == "Fold 2: Agreement with unifrac on 4 held-out samples"
    assert float(found["the model"][0]) == pytest.approx(mantel(expected, batch.distance.double().numpy()), abs=2e-4)
    present = np.zeros((4, len(batch.tokens)), bool)
    for row in range(4):
        present[row, batch.asv[row, batch.counts[row] > 0]] = True
    rival = mantel(squareform(pdist(present, "jaccard")), batch.distance.double().numpy())
    assert float(found["ASVs, Jaccard"][0]) == pytest.approx(rival, abs=1e-4)

    counts = study.table.counts.toarray()
    seen, met = (np.flatnonzero(part.sum(axis=0)) for part in (counts[:5], counts[5:]))
    new = np.setdiff1d(met, seen)
    assert bases.title == f"Fold 2: Masked bases of {len(new)} ASVs absent from training"
    tokens, known = study.tokens[new], study.tokens[seen].numpy()
    where, guess = masked_bases(network, tokens, CPU, TrainConfig().nuc_mask_ratio, study.seed)
    assert 0 < where.float().mean() < 0.4
    assert not where[(tokens == PAD) | (tokens == N)].any()
    consensus = [
        int(np.argmax([(known[:, place] == base).sum() for base in range(1, 5)])) + 1
        for place in range(tokens.shape[1])
    ]
    tokens, where = tokens.numpy(), where.numpy()
    rows = {
        "the model": guess.numpy(),
        "nearest seen ASV": naive_nearest(tokens, where, known),
        "consensus": np.broadcast_to(consensus, tokens.shape),
    }
    expected = [(name, f"{(one == tokens)[where].mean():.4f}") for name, one in rows.items()]
    assert list(bases.rows) == expected
