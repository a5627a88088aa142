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


SMALL = "--embedding-dim 16 --attention-layers 1 --attention-heads 2 --batch-size 16"
SMALL += " --rarefy-depth 300 --threads 1"


@pytest.fixture(scope="module")
def study(simulate_study) -> Path:
    """60 samples; `shifted` is pH, 100 higher in every biome but the first; `told` is known from
    season and `null`.
    """
    folder = simulate_study()
    metadata = read_metadata(folder / "metadata.tsv")
    biomes = sorted(set(metadata.values("biome", metadata.ids)))
    columns = [metadata.values(name, metadata.ids) for name in ("ph", "biome", "season", "null")]
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
    train = f"train --table {study}/table.biom --metadata {study}/shifted.tsv {SMALL} --test-size 0"
    train += f" --members deep --epochs 12 --lr 3e-3 --patience 0 --validation-size 0 {words}"
    assert main([*train.split(), "--output-dir", str(output)]) == 0
    written = output.parent / f"{output.name}.tsv"
    predict = f"predict --model {output}/model --table {study}/table.biom --output {written} {more}"
    assert main(predict.split()) == 0
    return output / "model", read_predictions(written)


def test_weights_of_classes_move_predictions(study, tmp_path):
    shares = []
    for number, weights in enumerate(("1 1 1 1", "1 1 1 60")):
        words = f"--metadata-column biome --class-weights {weights}"
        _, predictions = predicted(study, tmp_path / str(number), words)
        shares.append(predictions.predicted("biome").mean(axis=0)[3])
    assert shares[1] > shares[0] + 0.1


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
        ("--loss-type mae --count-penalty 0.5", {"count.linear.weight": (1, 16)}),
        ("--target-transform log-zscore --dropout 0.5", {}),
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
    words = f"train --table {study}/table.biom --metadata {tmp_path}/plates.tsv {SMALL} --lr 3e-3"
    words += " --epochs 6 --patience 0 --metadata-column plate --classifier --best-metric f1"
    words += f" --members deep --output-dir {tmp_path}/run"
    assert main(words.split()) == 0
    assert "plate=0\tplate=1" in (tmp_path / "run" / "predictions.tsv").read_text().splitlines()[0]
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    epochs = [record for record in records if record["event"] == "epoch"]
    best = max(record["epoch"] for record in epochs if record["best"])
    scores = [record["val_f1"] for record in epochs]
    assert scores.index(max(scores)) == best


# --- covariates --------------------------------------------------------------------------------


CONCAT = "--categorical-fusion concat --categorical-embed-dim 5"


@pytest.mark.parametrize(
    ("words", "shapes"),
    [
        (CONCAT, {"covariates.categories.0.weight": (5, 5), "target.linear.weight": (1, 26)}),
        ("--categorical-fusion add", {"covariates.project.weight": (16, 32)}),
    ],
    ids=["concat", "add"],
)
def test_covariates_are_read(study, tmp_path, capsys, words, shapes):
    """What only season and `null` tell is predicted with them; new categories are unknown."""
    columns = "--metadata-column told --categorical-columns season --numeric-columns null"
    shifted, new = study / "shifted.tsv", tmp_path / "new.tsv"
    words, more = f"{columns} {words} --epochs 24", f"--metadata {shifted}"
    model, predictions = predicted(study, tmp_path / "with", words, more)
    truth = read_metadata(shifted).numbers("told", predictions.sample_ids)
    error = np.abs(predictions.predicted("told") - truth).mean()
    assert error < 0.5 * np.abs(truth - np.median(truth)).mean()
    weights = weights_of(model)
    assert {name: weights[name].shape for name in shapes} == shapes
    new.write_text(shifted.read_text().replace("winter", "monsoon"))
    capsys.readouterr()
    predict = f"predict --model {model} --table {study}/table.biom --metadata {new} --output"
    assert main([*predict.split(), str(tmp_path / "new-predicted.tsv")]) == 0
    unknown = "have no value or a category that no training sample has ('monsoon'); read as unknown"
    assert unknown in capsys.readouterr().err
    again = read_predictions(tmp_path / "new-predicted.tsv")
    shifted_metadata = read_metadata(shifted)
    seasons = shifted_metadata.values("season", shifted_metadata.ids)
    winter = np.array([cell == "winter" for cell in seasons])
    apart = np.abs(again.predicted("told") - predictions.predicted("told"))
    assert apart[~winter].max() < 1e-5
    assert apart[winter].min() > 0.01


def test_a_model_that_reads_covariates_needs_them(study, tmp_path, capsys, refused):
    words = "--metadata-column told --categorical-columns season --numeric-columns null"
    shifted, fewer, bare = (study / "shifted.tsv", tmp_path / "fewer.tsv", tmp_path / "bare.tsv")
    model, predictions = predicted(study, tmp_path / "run", words, f"--metadata {shifted}")
    rows = shifted.read_text().splitlines()
    fewer.write_text("\n".join(rows[:-3]) + "\n")
    bare.write_text("\n".join(row.rpartition("\t")[0].rpartition("\t")[0] for row in rows) + "\n")
    plain = f"--model {model} --table {study}/table.biom"
    predict = f"predict {plain} --output {tmp_path}/p.tsv"
    for more, message in (
        ("", "--metadata: not given, but columns 'season', 'null' are asked for"),
        (f"--metadata {bare}", "no column 'null'"),
        (f"--metadata {fewer}", "3 of 60 samples of the table have no row"),
    ):
        assert message in refused(main, f"{predict} {more}".split())
    assert main(f"{predict} --metadata {fewer} --missing drop".split()) == 0
    dropped = read_predictions(tmp_path / "p.tsv")
    assert dropped.sample_ids == predictions.sample_ids
    is_predicted = np.array([note == "" for note in dropped.texts("note")])
    assert (~is_predicted).sum() == 3
    expected, found = predictions.predicted("told"), dropped.predicted("told")
    np.testing.assert_allclose(found[is_predicted], expected[is_predicted], rtol=1e-5)
    assert np.isnan(found[~is_predicted]).all()
    evaluate = f"evaluate {plain} --metadata {shifted} --output-dir {tmp_path}/evaluation"
    assert main(evaluate.split()) == 0
    judged = read_predictions(tmp_path / "evaluation" / "predictions.tsv")
    np.testing.assert_allclose(judged.predicted("told"), expected, rtol=1e-5)
    vectors = f"embed {plain} --output-dir {tmp_path}/vectors"
    assert main(vectors.split()) == 0, "vectors are of the ASVs alone"


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
    encoder_option = f"--pretrained-encoder {first}"
    second, _ = predicted(study, tmp_path / "second", f"{words} biome {encoder_option}", metadata)
    stderr = capsys.readouterr().err
    assert "tensors loaded (asv, sample)" in stderr
    assert "tensors ignored (covariates, target)" in stderr
    pre, one, two = weights_of(tmp_path / "pre" / "model"), weights_of(first), weights_of(second)
    for name in pre:
        if name.startswith(("asv", "sample")):
            assert np.array_equal(pre[name], one[name])
            assert np.array_equal(pre[name], two[name])
    predicted(study, tmp_path / "third", f"{words} season {encoder_option}", metadata)
    assert "tensors loaded (asv, covariates, sample, target)" in capsys.readouterr().err
    old = tmp_path / "best.ckpt"
    old.write_bytes(b"PK")
    study_words = f"--table {study}/table.biom --metadata {study}/shifted.tsv"
    train = f"train {study_words} {SMALL} --output-dir {tmp_path}/no --metadata-column ph"
    predict = f"predict --model {old} --table {study}/table.biom --output {tmp_path}/p.tsv"
    for words in (f"{train} --pretrained-encoder {old}", predict):
        stderr = refused(main, words.split())
        assert "retrain with `aam pretrain` and `aam train`" in " ".join(stderr.split())
    assert not (tmp_path / "no").exists()
