"""Options of `aam train`, each shown by its effect on predictions of a small model that was saved and loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aam.cli.main import main
from aam.data.metadata import read_metadata
from aam.training.inference import read_predictions

SMALL = "--embedding-dim 16 --attention-layers 1 --attention-heads 2 --batch-size 16 --rarefy-depth 300 --threads 1"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 samples; `shifted` is pH, 100 higher in every biome but the first."""
    folder = tmp_path_factory.mktemp("simulated") / "study"
    assert main(f"simulate --output-dir {folder} --samples 60 --asvs 80 --length 50 --depth 1500".split()) == 0
    metadata = read_metadata(folder / "metadata.tsv")
    biomes = sorted(set(metadata.columns["biome"]))
    rows = zip(metadata.ids, metadata.columns["ph"], metadata.columns["biome"], strict=True)
    lines = [f"{name}\t{ph}\t{float(ph) + 100 * (biome != biomes[0])}\t{biome}" for name, ph, biome in rows]
    (folder / "shifted.tsv").write_text("\n".join(["sample-id\tph\tshifted\tbiome", *lines]) + "\n")
    return folder


def predicted(study: Path, output: Path, words: str, more: str = "") -> tuple[Path, object]:
    """The model's folder and what it predicts for the study."""
    inputs = f"--table {study}/table.biom --metadata {study}/shifted.tsv"
    train = f"train {inputs} {SMALL} --epochs 12 --lr 3e-3 --patience 0 --validation-size 0 --output-dir {output}"
    assert main([*train.split(), *words.split()]) == 0
    written = output.parent / f"{output.name}.tsv"
    predict = f"predict --model {output}/model --table {study}/table.biom --output {written} {more}"
    assert main(predict.split()) == 0
    return output / "model", read_predictions(written)


def test_categories_have_scales_of_their_own(study, tmp_path, capsys):
    words = "--metadata-column shifted --target-transform zscore-category --normalize-by biome"
    model, found = predicted(study, tmp_path / "by", words, f"--metadata {study}/shifted.tsv")
    truth = read_metadata(study / "shifted.tsv").numbers("shifted", found.sample_ids)
    assert np.abs(found.values["shifted"] - truth).max() < 6, "each sample is near 7 or near 107, as its biome is"
    capsys.readouterr()
    words = f"predict --model {model} --table {study}/table.biom --output {tmp_path}/p.tsv"
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert "biome" in said
    assert "--metadata" in said
    words = f"train --table {study}/table.biom --metadata {study}/shifted.tsv --metadata-column ph {SMALL}"
    for wrong in ("--normalize-by biome", "--target-transform zscore-category"):
        assert main([*words.split(), *wrong.split(), "--output-dir", str(tmp_path / "wrong")]) == 2
        assert "--target-transform zscore-category and --normalize-by COLUMN need each other" in capsys.readouterr().err
        assert not (tmp_path / "wrong").exists()


def test_the_asymmetric_loss_leans_to_the_cheaper_side(study, tmp_path):
    means = {}
    for over, under in ((20, 1), (1, 20)):
        words = f"--metadata-column ph --loss-type asymmetric --over-penalty {over} --under-penalty {under}"
        _, found = predicted(study, tmp_path / f"over-{over}", words)
        means[over] = found.values["ph"].mean()
    assert means[20] < means[1] - 0.3


def test_weights_of_classes_move_predictions(study, tmp_path, capsys):
    shares = {}
    for weights in ("1 1 1 1", "1 1 1 60"):
        _, found = predicted(
            study, tmp_path / weights[-2:].strip(), f"--metadata-column biome --class-weights {weights}"
        )
        shares[weights] = found.probabilities["biome"].mean(axis=0)
    assert shares["1 1 1 60"][3] > shares["1 1 1 1"][3] + 0.1
    inputs = f"--table {study}/table.biom --metadata {study}/shifted.tsv --metadata-column biome {SMALL}"
    capsys.readouterr()
    assert main(f"train {inputs} --class-weights 1 2 --output-dir {tmp_path}/wrong".split()) == 2
    assert "--class-weights is 1 2, expected balanced, or 4 numbers above 0" in capsys.readouterr().err
    assert not (tmp_path / "wrong").exists()
