"""Options of `aam train`, each shown by its effect on predictions of a small model that was saved
and loaded.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from aam.cli import main
from aam.evaluate.predictions import read_predictions
from aam.io.metadata import read_metadata

pytestmark = pytest.mark.slow


SMALL = (
    "--embedding-dim 16 --attention-layers 1 --attention-heads 2 --batch-size 16 "
    "--rarefy-depth 300 --threads 1"
)


@pytest.fixture(scope="module")
def study(simulate_study) -> Path:
    """60 samples; `shifted` is pH, 100 higher in every biome but the first; `told` is known from
    season and `null`.
    """
    folder = simulate_study()
    metadata = read_metadata(folder / "metadata.tsv")
    biomes = sorted(set(metadata.columns["biome"]))
    columns = [metadata.columns[name] for name in ("ph", "biome", "season", "null")]
    seasons = sorted(set(columns[2]))
    lines = ["sample-id\tph\tshifted\tbiome\tseason\tnull\ttold"]
    for name, ph, biome, season, null in zip(metadata.ids, *columns, strict=True):
        seasonal = 10 * seasons.index(season) + 5 * float(null)
        shifted = float(ph) + 100 * (biome != biomes[0])
        lines.append(f"{name}\t{ph}\t{shifted}\t{biome}\t{season}\t{null}\t{seasonal}")
    (folder / "shifted.tsv").write_text("\n".join(lines) + "\n")
    return folder


def predicted(study: Path, output: Path, words: str, more: str = "") -> tuple[Path, object]:
    """The model's folder and what it predicts for the study."""
    inputs = f"--table {study}/table.biom --metadata {study}/shifted.tsv"
    train = (
        f"train {inputs} {SMALL} --members deep --epochs 12 --lr 3e-3 --patience 0 "
        "--validation-size 0"
    )
    train += f" --test-size 0 --output-dir {output}"
    assert main([*train.split(), *words.split()]) == 0
    written = output.parent / f"{output.name}.tsv"
    predict = f"predict --model {output}/model --table {study}/table.biom --output {written} {more}"
    assert main(predict.split()) == 0
    return output / "model", read_predictions(written)


def test_weights_of_classes_move_predictions(study, tmp_path):
    shares = {}
    for weights in ("1 1 1 1", "1 1 1 60"):
        _, predictions = predicted(
            study,
            tmp_path / weights[-2:].strip(),
            f"--metadata-column biome --class-weights {weights}",
        )
        shares[weights] = predictions.predicted("biome").mean(axis=0)
    assert shares["1 1 1 60"][3] > shares["1 1 1 1"][3] + 0.1


# --- targets -----------------------------------------------------------------------------------


def weights_of(model: Path) -> dict[str, np.ndarray]:
    return load_file(model / "weights.safetensors")


@pytest.fixture(scope="module")
def usual(study, tmp_path_factory):
    """The model of pH with every option at its default, and what it predicts."""
    return predicted(study, tmp_path_factory.mktemp("usual") / "run", "--metadata-column ph")


@pytest.mark.parametrize(
    ("words", "shapes"),
    [
        ("--loss-type mae", {}),
        ("--target-transform log-zscore", {}),
        ("--dropout 0.5", {}),
        ("--count-penalty 0.5", {"count.linear.weight": (1, 16)}),
    ],
)
def test_options_change_what_is_learned(study, tmp_path, usual, words, shapes):
    model, predictions = predicted(study, tmp_path / "run", f"--metadata-column ph {words}")
    truth = read_metadata(study / "shifted.tsv").numbers("ph", predictions.sample_ids)
    assert np.abs(predictions.predicted("ph") - truth).mean() < 1.2
    assert np.abs(predictions.predicted("ph") - usual[1].predicted("ph")).max() > 1e-4
    weights = weights_of(model)
    assert {name: weights[name].shape for name in shapes} == shapes
    assert ("count.linear.weight" in weights) == ("count" in words)
    journal = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert ("train_count" in journal) == ("count" in words)


def test_numbers_may_be_classes_and_the_best_epoch_is_by_the_figure_asked_for(study, tmp_path):
    rows = (study / "shifted.tsv").read_text().splitlines()
    lines = [f"{row}\t{'plate' if not n else n % 2}" for n, row in enumerate(rows)]
    (tmp_path / "plates.tsv").write_text("\n".join(lines) + "\n")
    inputs = (
        f"--table {study}/table.biom --metadata {tmp_path}/plates.tsv {SMALL} --epochs 6 "
        "--lr 3e-3 --patience 0"
    )
    words = (
        f"train {inputs} --metadata-column plate --classifier --best-metric f1 --output-dir "
        f"{tmp_path}/run"
    )
    words += " --members deep"
    assert main(words.split()) == 0
    assert "plate=0\tplate=1" in (tmp_path / "run" / "predictions.tsv").read_text().splitlines()[0]
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    epochs = [record for record in records if record["event"] == "epoch"]
    best = max(record["epoch"] for record in epochs if record["best"])
    scores = [record["val_f1"] for record in epochs]
    assert scores.index(max(scores)) == best


# --- covariates --------------------------------------------------------------------------------


def error(predictions, study: Path, metadata: Path | None = None) -> float:
    truth = read_metadata(metadata or study / "shifted.tsv").numbers("told", predictions.sample_ids)
    return float(np.abs(predictions.predicted("told") - truth).mean())


@pytest.mark.parametrize(
    ("words", "shapes"),
    [
        (
            "--categorical-fusion concat --categorical-embed-dim 5",
            {"covariates.categories.0.weight": (5, 5), "target.linear.weight": (1, 26)},
        ),
        ("--categorical-fusion add", {"covariates.project.weight": (16, 32)}),
    ],
    ids=lambda one: one.split()[1] if isinstance(one, str) else "",
)
def test_covariates_are_read(study, tmp_path, capsys, words, shapes):
    """What only season and `null` tell is predicted with them; new categories are unknown."""
    words = f"{words} --epochs 24"
    both = f"--metadata-column told --categorical-columns season --numeric-columns null {words}"
    model, predictions = predicted(
        study, tmp_path / "with", both, f"--metadata {study}/shifted.tsv"
    )
    truth = read_metadata(study / "shifted.tsv").numbers("told", predictions.sample_ids)
    trivial = float(np.abs(truth - np.median(truth)).mean())
    assert error(predictions, study) < 0.5 * trivial
    weights = weights_of(model)
    assert {name: weights[name].shape for name in shapes} == shapes
    text = (study / "shifted.tsv").read_text()
    new = tmp_path / "new.tsv"
    new.write_text(text.replace("winter", "monsoon"))
    predict = (
        f"predict --model {model} --table {study}/table.biom --output {tmp_path}/new-predicted.tsv"
    )
    capsys.readouterr()
    assert main([*predict.split(), "--metadata", str(new)]) == 0
    unknown = "have no value or a category that no training sample has ('monsoon'); read as unknown"
    assert unknown in capsys.readouterr().err
    again = read_predictions(tmp_path / "new-predicted.tsv")
    winter = np.array(
        [cell == "winter" for cell in read_metadata(study / "shifted.tsv").columns["season"]]
    )
    apart = np.abs(again.predicted("told") - predictions.predicted("told"))
    assert apart[~winter].max() < 1e-5
    assert apart[winter].min() > 0.01


def test_a_model_that_reads_covariates_needs_them(study, tmp_path, capsys, refused):
    words = "--metadata-column told --categorical-columns season --numeric-columns null"
    model, predictions = predicted(
        study, tmp_path / "run", words, f"--metadata {study}/shifted.tsv"
    )
    plain = f"--model {model} --table {study}/table.biom"
    capsys.readouterr()
    assert main(f"predict {plain} --output {tmp_path}/p.tsv".split()) == 2
    assert (
        "--metadata: not given, but columns 'season', 'null' are asked for"
        in capsys.readouterr().err
    )
    rows = (study / "shifted.tsv").read_text().splitlines()
    fewer, bare = tmp_path / "fewer.tsv", tmp_path / "bare.tsv"
    fewer.write_text("\n".join(rows[:-3]) + "\n")
    bare.write_text("\n".join(row.rpartition("\t")[0].rpartition("\t")[0] for row in rows) + "\n")
    assert "no column 'null'" in refused(
        main, f"predict {plain} --output {tmp_path}/p.tsv --metadata {bare}".split()
    )
    assert main(f"predict {plain} --output {tmp_path}/p.tsv --metadata {fewer}".split()) == 2
    assert "3 of 60 samples of the table have no row" in capsys.readouterr().err
    assert (
        main(f"predict {plain} --output {tmp_path}/p.tsv --metadata {fewer} --missing drop".split())
        == 0
    )
    some = read_predictions(tmp_path / "p.tsv")
    assert some.sample_ids == predictions.sample_ids
    assert sum(note != "" for note in some.texts("note")) == 3
    is_predicted = np.array([note == "" for note in some.texts("note")])
    np.testing.assert_allclose(
        some.predicted("told")[is_predicted], predictions.predicted("told")[is_predicted], rtol=1e-5
    )
    assert np.isnan(some.predicted("told")[~is_predicted]).all()
    evaluate = f"evaluate {plain} --metadata {study}/shifted.tsv --output-dir {tmp_path}/evaluation"
    assert main(evaluate.split()) == 0
    judged = read_predictions(tmp_path / "evaluation" / "predictions.tsv")
    np.testing.assert_allclose(judged.predicted("told"), predictions.predicted("told"), rtol=1e-5)
    assert main(f"embed {plain} --output-dir {tmp_path}/vectors".split()) == 0, (
        "vectors are of the ASVs alone"
    )


def test_an_encoder_is_taken_over_with_a_report(study, tmp_path, capsys, refused):
    """Pretrained without covariates, then trained with some, then with others."""
    pretrain = f"pretrain --table {study}/table.biom --tree {study}/tree.nwk {SMALL} --epochs 1"
    assert main([*pretrain.split(), "--output-dir", str(tmp_path / "pre")]) == 0
    capsys.readouterr()
    words = "--metadata-column told --freeze-base --categorical-columns"
    metadata = f"--metadata {study}/shifted.tsv"
    encoder_option = f"--pretrained-encoder {tmp_path}/pre"
    first, _ = predicted(study, tmp_path / "first", f"{words} season {encoder_option}", metadata)
    stderr = capsys.readouterr().err
    assert "tensors loaded (asv, sample)" in stderr
    assert "tensors new (covariates, target)" in stderr
    assert "tensors ignored (count, distance)" in stderr
    second, _ = predicted(
        study, tmp_path / "second", f"{words} biome --pretrained-encoder {first}", metadata
    )
    stderr = capsys.readouterr().err
    assert "tensors loaded (asv, sample)" in stderr
    assert "tensors ignored (covariates, target)" in stderr
    pre, one, two = weights_of(tmp_path / "pre" / "model"), weights_of(first), weights_of(second)
    for name in pre:
        if name.startswith(("asv", "sample")):
            assert np.array_equal(pre[name], one[name])
            assert np.array_equal(pre[name], two[name])
    predicted(study, tmp_path / "third", f"{words} season --pretrained-encoder {first}", metadata)
    assert "tensors loaded (asv, covariates, sample, target)" in capsys.readouterr().err
    for suffix in ("pt", "ckpt"):
        old = tmp_path / f"best.{suffix}"
        old.write_bytes(b"PK")
        train = (
            f"train --table {study}/table.biom --metadata {study}/shifted.tsv {SMALL} "
            f"--output-dir {tmp_path}/no"
        )
        stderr = refused(main, f"{train} --metadata-column ph --pretrained-encoder {old}".split())
        assert "retrain with `aam pretrain --table" in " ".join(stderr.split())
        assert not (tmp_path / "no").exists()
        predict = f"predict --model {old} --table {study}/table.biom --output {tmp_path}/p.tsv"
        assert "retrain with `aam pretrain --table" in refused(main, predict.split())
