"""Members beside the network, through the command line: fitted, weighted, saved and applied."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from aam.api.training import load_folds, run_training, supervise
from aam.cli import main, parse
from aam.config import FineTuneConfig
from aam.evaluate.predictions import read_predictions
from aam.io.metadata import read_metadata
from aam.model.asv import AsvEncoder
from aam.predict.blend import columns_of
from aam.predict.estimator import Samples
from aam.predict.saved_model import load_model
from tests.cli.test_overwrite import unlisted

pytestmark = pytest.mark.slow


CPU = torch.device("cpu")
SMALL = "--embedding-dim 16 --attention-layers 1 --attention-heads 2 --batch-size 32 --threads 1 "
SMALL += "--epochs 1"
ALL = "deep presence forest"


def train(
    study: Path, output: Path, more: str, members: str = ALL, metadata: Path | None = None
) -> int:
    words = f"train --table {study}/table.biom --rarefy-depth 300 {SMALL} --output-dir {output}"
    words += f" {more} --metadata {metadata or study / 'metadata.tsv'} --members {members}"
    return main(words.split())


def with_other_values(study: Path, run: Path, path: Path) -> Path:
    """Write the metadata with another pH for the samples that a run reported, and return its
    path.
    """
    held_out = set(read_predictions(run / "predictions.tsv").sample_ids)
    metadata = read_metadata(study / "metadata.tsv")
    ids = [line.split("\t")[0] for line in (study / "metadata.tsv").read_text().splitlines()[1:]]
    assert 0 < len(held_out) < len(ids)
    values = np.where(np.isin(ids, [*held_out]), 9.9, metadata.numbers("ph", ids))
    rows = [f"{name}\t{value}" for name, value in zip(ids, values, strict=True)]
    path.write_text("\n".join(["sample-id\tph", *rows]) + "\n")
    return path


def test_no_label_that_is_held_out_reaches_a_member(study: Path, tmp_path: Path) -> None:
    """Other values for the reported samples, and every array of the members and every weight stay
    as they are.
    """
    first, second = tmp_path / "first", tmp_path / "second"
    more, members = "--metadata-column ph --test-size 0.3", "presence forest"
    assert train(study, first, more, members) == 0
    other = with_other_values(study, first, tmp_path / "metadata.tsv")
    # Other labels would be divided otherwise.
    more = f"--metadata-column ph --split {first}/split.tsv"
    assert train(study, second, more, members, other) == 0
    name = "members.safetensors"
    assert (first / "model" / name).read_bytes() == (second / "model" / name).read_bytes()


@pytest.mark.parametrize(
    ("members", "is_listed"), [("deep presence", True), ("deep", False), ("presence", False)]
)
def test_the_report_shows_the_error_of_each_member_and_the_chosen_epoch(
    study: Path, tmp_path: Path, strong_baselines, members: str, is_listed: bool
) -> None:
    """Alone a network is the model itself, which is no baseline."""
    run = tmp_path / "run"
    more = "--metadata-column biome --test-size 0.2 --validation-size 0.3 --lr 3e-3 --epochs 12"
    assert train(study, run, more, members) == 0
    target = json.loads((run / "metrics.json").read_text())["targets"]["biome"]
    assert ("network" in target["baselines"]) == is_listed
    epochs = "chosen epochs of the network" in (run / "report.html").read_text()
    assert epochs == ("deep" in members)
    if is_listed:
        mean = read_predictions(run / "predictions.tsv").predicted("biome")
        (name, value), *_ = target["baselines"]["network"].items()
        assert np.isfinite(value), name
        assert np.isfinite(mean).all()
        saved = load_model(run / "model", CPU)
        assert (saved.members, saved.network is None) == (("presence",), False)
        assert (
            "the network joins the mean: with it the error on the 14 validation"
            in (run / "report.html").read_text()
        )


def test_a_network_that_has_no_part_encodes_no_asv(
    study: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(AsvEncoder, "forward", None)
    assert train(study, tmp_path / "run", "--metadata-column ph --test-size 0.3", "presence") == 0


def test_by_default_folds_judge_learners_and_the_model_learns_from_all(
    study, tmp_path: Path, refused, strong_baselines
) -> None:
    """Every sample is reported once by a model that has not seen it; model/ predicts, and the folds
    explain.
    """
    run, metadata = tmp_path / "run", f"--metadata {study}/metadata.tsv"
    words = f"train --table {study}/table.biom {metadata} --metadata-column ph --rarefy-depth "
    words += f"300 --output-dir {run}"
    assert main([*words.split(), "--threads", "1"]) == 0
    assert unlisted(run) == set()
    reported = read_predictions(run / "predictions.tsv")
    assert set(reported.texts("fold")) == set("01234")
    assert set(reported.texts("subset")) == {"test"}
    folds = [load_model(run / f"fold-{fold}" / "model", CPU) for fold in range(5)]
    saved = load_model(run / "model", CPU)
    assert saved.network is None
    assert set(saved.notes.labelled_samples) == set(reported.sample_ids)
    assert saved.notes.intervals == folds[0].notes.intervals
    assert "extra trees on presence" in (run / "report.html").read_text()
    applied = f"--table {study}/table.biom --threads 1 --model {run}"
    assert main(f"predict {applied} --output {tmp_path}/all.tsv".split()) == 0
    assert set(read_predictions(tmp_path / "all.tsv").texts("subset")) == {"train"}
    assert main(f"explain {applied} {metadata} --prediction-passes 1".split()) == 0
    assert "left out" not in (run / "report.html").read_text()
    assert main([*words.split(), "--threads", "1", "--resume-from", "auto"]) == 0
    for words in (
        f"embed {applied} --output-dir {tmp_path}/v",
        f"export --model {run} --format torch --output {tmp_path}/encoder",
    ):
        assert "pretrain one by `aam pretrain`, or train with deep among --members" in refused(
            main, words.split()
        )


@pytest.mark.parametrize("decay", [0.0, 0.8])
def test_what_is_saved_predicts_the_validation_samples_as_the_log_says(
    study: Path, tmp_path: Path, decay: float
) -> None:
    """All figures of the best epoch, of a number and of classes, to 1e-6."""
    run = tmp_path / "run"
    words = f"--table {study}/table.biom --metadata {study}/metadata.tsv --rarefy-depth 300 {SMALL}"
    words += " --metadata-column ph biome --test-size 0.2 --validation-size 0.3 --members deep "
    words += f"--epochs 40 --lr 2e-2 --output-dir {run}"
    config = parse("train", FineTuneConfig(), words.split())
    config = replace(config, train=replace(config.train, ema_decay=decay))
    assert run_training(config, report=False) == 0
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    records = [line for line in lines if line["event"] == "epoch"]
    saved = load_model(run / "model", CPU)
    logged = next(x for x in records if x["epoch"] == saved.notes.best_epoch)
    assert 0 < logged["epoch"] < records[-1]["epoch"], "neither the start nor the last weights"
    folds = load_folds(config)
    (split,) = folds.splits
    learned, *_ = supervise(folds, split.ids("train"))
    rows = learned.rows(split.ids("validation"))
    network = saved.estimator.prepared(learned, rows, folds.config.runtime)
    number, shares = network.outputs(Samples.of_study(learned, rows))
    truth, codes = columns_of(learned, rows)
    errors = np.abs(number[:, 0] - truth)
    likelihoods = np.log(shares[np.arange(len(codes)), codes])
    expected = {
        "val_mae": errors.mean(),
        "val_r2": 1 - (errors**2).mean() / truth.var(),
        "val_target": np.where(errors < 1, errors**2 / 2, errors - 0.5).mean(),
        "val_label0": -likelihoods.mean(),
        "val_accuracy": (shares.argmax(axis=1) == codes).mean(),
    }
    assert {name: logged[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_a_network_that_training_does_not_better_is_left_out(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model predicts to the byte what the other members do; `last/` keeps the network."""
    run, more = tmp_path / "run", "--metadata-column biome --test-size 0.3"
    assert train(study, run, f"{more} --lr 1e-12", "deep presence") == 0
    sentence = "the network is left out of the mean: its best epoch is the start"
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert sentence in (run / "report.html").read_text()
    saved = load_model(run / "model", CPU)
    assert (saved.network, saved.members) == (None, ("presence",))
    assert sentence in saved.notes.network
    assert load_model(run / "last", CPU).network is not None
    plain = f"--metadata-column biome --split {run}/split.tsv"
    assert train(study, tmp_path / "plain", plain, "presence") == 0
    for name in ("model/members.safetensors", "predictions.tsv"):
        assert (run / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()


def test_a_network_alone_stays_with_a_warning(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "--metadata-column ph --test-size 0.3 --lr 1e-12"
    assert train(study, tmp_path / "run", more, "deep") == 0
    warning = "the network predicts alone, although its best epoch is the start"
    assert warning in " ".join(capsys.readouterr().err.split())
    assert load_model(tmp_path / "run" / "model", CPU).network is not None
