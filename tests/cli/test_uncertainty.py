"""Ensembles, conformal intervals and what early stopping may see, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import biom
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from aam.cli import main
from aam.evaluate.conformal import Conformal
from aam.evaluate.predictions import TargetPredictions, read_predictions
from aam.io.metadata import read_metadata
from aam.predict.saved_model import load_model

pytestmark = pytest.mark.slow


CPU = torch.device("cpu")
SMALL = "--embedding-dim 16 --attention-layers 1 --attention-heads 2 --batch-size 32 --threads 1 "
SMALL += "--epochs 1"


def train(study: Path, output: Path, more: str) -> list[str]:
    words = f"train --table {study}/table.biom --rarefy-depth 300 {SMALL} --output-dir {output}"
    return f"{words} --metadata {study}/metadata.tsv {more}".split()


@pytest.fixture(scope="module")
def run(study: Path) -> Path:
    """Three folds of two targets; every sample is a group of its own."""
    folder = study.parent / "run"
    assert main(train(study, folder, "--metadata-column ph biome --cv 3")) == 0
    return folder


# --- several models ----------------------------------------------------------------------------


def test_models_of_other_seeds_predict_together_and_of_other_depths_not(
    study, tmp_path, capsys, predict_study
) -> None:
    for name, more in (("a", "--seed 1"), ("b", "--seed 2"), ("c", "--rarefy-depth 400")):
        assert main(train(study, tmp_path / name, f"--metadata-column ph {more}")) == 0
    alone = [predict_study(study, tmp_path / f"{x}.tsv", tmp_path / x / "model") for x in "ab"]
    both = predict_study(study, tmp_path / "ab.tsv", *(tmp_path / x / "model" for x in "ab"))
    expected = np.mean([model.predicted("ph") for model in alone], 0)
    np.testing.assert_allclose(both.predicted("ph"), expected, rtol=1e-5)
    words = ["predict", "--table", str(study / "table.biom"), "--output", str(tmp_path / "x.tsv")]
    assert main([*words, "--model", *(str(tmp_path / x / "model") for x in "ac")]) == 2
    assert "differ in '--rarefy-depth'" in capsys.readouterr().err


# --- intervals ---------------------------------------------------------------------------------


def test_intervals_of_a_fold_come_from_the_other_folds(
    study: Path, run: Path, tmp_path: Path
) -> None:
    table = read_predictions(run / "predictions.tsv")
    limits, predicted = table.limits("ph"), table.predicted("ph")
    truth = read_metadata(study / "metadata.tsv").numbers("ph", table.sample_ids)
    folds = np.array(table.texts("fold"))
    np.testing.assert_allclose(limits.mean(axis=1), predicted, rtol=1e-5)
    for fold in "012":
        here = folds == fold
        residual, other = np.abs(truth - predicted)[~here], predicted[~here]
        ids = tuple(name for name, kept in zip(table.sample_ids, ~here, strict=True) if kept)
        fit = Conformal.fit(TargetPredictions(ids, truth[~here], other))
        width, expected = limits[here, 1] - limits[here, 0], 2 * fit.half_width(predicted[here])
        np.testing.assert_allclose(width, expected, rtol=1e-3)
        assert fit.quantile * max(fit.scales) >= np.quantile(residual, 0.5)
    interval_metrics = json.loads((run / "metrics.json").read_text())["targets"]["ph"]["intervals"]
    inside = (limits[:, 0] <= truth) & (truth <= limits[:, 1])
    assert interval_metrics["coverage"]["value"] == pytest.approx(inside.mean())
    width = (limits[:, 1] - limits[:, 0]).mean()
    assert interval_metrics["width"]["value"] == pytest.approx(width, rel=1e-5)
    page = (run / "report.html").read_text()
    for title in ("coverage", "fold 0", "Reliability"):
        assert title in page


def test_the_models_hold_the_intervals_and_evaluate_reports_them(
    study, run: Path, tmp_path, predict_study
) -> None:
    fitted = load_model(run / "fold-1" / "model", CPU).notes.intervals["ph"]
    assert len(fitted.knots) == 5
    assert not load_model(run / "fold-1" / "last", CPU).notes.intervals
    table = predict_study(study, tmp_path / "p.tsv", run / "model")
    assert (table.limits("ph")[:, 0] < table.predicted("ph")).all()
    assert (table.predicted("ph") < table.limits("ph")[:, 1]).all()
    words = f"evaluate --model {run}/model --table {study}/table.biom"
    words += f" --metadata {study}/metadata.tsv --group-column subject --batch-column biome --output-dir {tmp_path}/e"
    assert main(words.split()) == 0
    target = json.loads((tmp_path / "e" / "metrics.json").read_text())["targets"]["ph"]
    assert target["intervals"] == {}, "these samples fitted the intervals"
    assert target["subset"] == "training"
    assert set(target["parts"]) == {"biome"}
    assert sum(part["samples"] for part in target["parts"]["biome"].values()) == 60
    page = (tmp_path / "e" / "report.html").read_text()
    assert "samples seen in training" in page
    assert "no interval is scored on 60 of 60 samples" in page


def test_too_few_groups_make_no_intervals(study: Path, tmp_path: Path, capsys) -> None:
    more = "--metadata-column ph --test-size 0.5 --group-column subject"
    assert main(train(study, tmp_path / "few", more)) == 0
    assert "ph: no 90 % intervals, too few held-out groups (6)" in capsys.readouterr().err
    table = read_predictions(tmp_path / "few" / "predictions.tsv")
    assert table.limits("ph") is None
    assert not load_model(tmp_path / "few" / "model", CPU).notes.intervals


# --- what a run may see ------------------------------------------------------------------------


def test_one_test_side_makes_intervals_and_changes_no_weight(study: Path, tmp_path: Path) -> None:
    """Other truths on the test side: the same weights, the same best epoch, other intervals."""
    metadata = read_metadata(study / "metadata.tsv")
    more = "--metadata-column ph --members deep --epochs 4 --lr 1e-2 --patience 2"
    more += " --best-metric mae"
    assert main(train(study, tmp_path / "a", f"{more} --test-size 0.5")) == 0
    test = set(read_predictions(tmp_path / "a" / "predictions.tsv").sample_ids)
    assert len(test) == 30
    rows = zip(metadata.ids, metadata.values("ph", metadata.ids), strict=True)
    other = [f"{name}\t{float(ph) + 50 * (name in test)}" for name, ph in rows]
    (tmp_path / "other.tsv").write_text("\n".join(["sample-id\tph", *other]) + "\n")
    # Other truths would be divided otherwise.
    more += f" --split {tmp_path}/a/split.tsv --metadata {tmp_path}/other.tsv"
    assert main(train(study, tmp_path / "b", more)) == 0
    for part in ("model", "last"):
        one, two = (load_file(tmp_path / name / part / "weights.safetensors") for name in "ab")
        assert all(np.array_equal(one[name], two[name]) for name in one)
    one, two = (load_model(tmp_path / name / "model", CPU).notes for name in "ab")
    assert one.best_epoch == two.best_epoch
    assert two.intervals["ph"].quantile * max(two.intervals["ph"].scales) > 20
    assert len(one.interval_samples) == 30
    limits = [read_predictions(tmp_path / name / "predictions.tsv").limits("ph") for name in "ab"]
    width, other = ((high - low).mean() for low, high in (part.T for part in limits))
    assert other > 10 * width


def test_a_table_unlike_training_gets_no_interval_and_the_note_says_why(
    run: Path, tmp_path: Path, simulate_study, predict_study, capsys
) -> None:
    """The other study has other ASVs."""
    other = simulate_study(samples=40, asvs=60, depth=1500, seed=9)
    metadata = (other / "metadata.tsv").read_text().replace("\nsample-", "\nnew-")
    (other / "metadata.tsv").write_text(metadata)
    renamed = biom.load_table(str(other / "table.biom"))
    renamed.update_ids({name: name.replace("sample", "new") for name in renamed.ids()})
    with biom.util.biom_open(str(other / "table.biom"), "w") as file:
        renamed.to_hdf5(file, "test")
    model = run / "fold-0" / "model"
    table = predict_study(other, tmp_path / "p.tsv", model, more="--predict-unlike")
    assert "40 of them have no interval; the column note says why" in capsys.readouterr().err
    assert np.isfinite(table.predicted("ph")).all()
    assert np.isnan(table.limits("ph")).all()
    assert all("no interval: the table is unlike" in note for note in table.texts("note"))
    words = f"evaluate --model {run}/fold-0/model --table {other}/table.biom --metadata "
    words += f"{other}/metadata.tsv --output-dir {tmp_path}/e"
    assert main(words.split()) == 0
    report = (tmp_path / "e" / "report.html").read_text()
    assert "no interval is scored on 40 of 40 samples, which fitted the intervals, " in report
    evaluated = read_predictions(tmp_path / "e" / "predictions.tsv")
    assert np.isnan(evaluated.limits("ph")).all()
    assert all("no interval: the table is unlike" in note for note in evaluated.texts("note"))
