"""Inputs of `aam train`: encoders that saw held-out labels, sizes that contradict an encoder, and
label shares.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from aam.cli import main
from aam.io.metadata import read_metadata

SIZES = "--embedding-dim 16 --attention-layers 1 --attention-heads 2"
SMALL = "--epochs 1 --batch-size 16 --rarefy-depth 300 --threads 1 --device cpu"


@pytest.fixture(scope="module")
def study(simulate_study) -> Path:
    return simulate_study(samples=120)


def train(study: Path, output: Path, words: str) -> int:
    inputs = f"--table {study}/table.biom --metadata {study}/metadata.tsv --output-dir {output}"
    return main(f"train {inputs} {SMALL} {words}".split())


@pytest.fixture(scope="module")
def encoder(study, tmp_path_factory) -> Path:
    """The run of an encoder that was pretrained without labels."""
    folder = tmp_path_factory.mktemp("encoders") / "pretrained"
    inputs = f"--table {study}/table.biom --tree {study}/tree.nwk --output-dir {folder}"
    assert main(f"pretrain {inputs} {SMALL} {SIZES}".split()) == 0
    return folder


# --- labels of held-out samples (issue 15, point 1) --------------------------------------------


@pytest.mark.slow
def test_an_encoder_that_saw_held_out_labels_is_refused(study, tmp_path, capsys, refused):
    words = f"--metadata-column null --members deep --test-size 0 {SIZES}"
    assert train(study, tmp_path / "labelled", words) == 0
    capsys.readouterr()
    words = f"--metadata-column null --pretrained-encoder {tmp_path}/labelled --test-size 0.3"
    words += " --seed 5"
    message = refused(train, study, tmp_path / "run", words)
    assert f"--pretrained-encoder {tmp_path}/labelled/model learned " in message
    assert "null" in message
    assert "of the held-out samples" in message
    assert "take an encoder of `aam pretrain`" in message
    assert not (tmp_path / "run" / "run.json").exists()


# --- sizes of the encoder (issue 15, point 8) --------------------------------------------------


@pytest.mark.slow
def test_sizes_that_contradict_the_encoder_are_refused_together(study, encoder, tmp_path, capsys):
    sizes = ["--embedding-dim 32", "--dropout 0.2", "--attention-layers 3"]
    words = f"--metadata-column ph --pretrained-encoder {encoder} {' '.join(sizes)}"
    assert train(study, tmp_path / "run", words) == 2
    message = " ".join(capsys.readouterr().err.split())
    for each in sizes:
        assert f"{each} contradicts --pretrained-encoder" in message
    assert message.count("leave it out, or pretrain with it") == 3


@pytest.mark.parametrize("metric", ["auroc", "val_loss"])
def test_names_and_validation_subsets_that_cannot_be_used(
    simulate_study, tmp_path, refused, metric
):
    """Two columns of predictions of one name, and a validation subset of one class, whose AUROC is
    not defined.
    """
    study = simulate_study(samples=40, asvs=50, depth=900)
    ids = read_metadata(study / "metadata.tsv").ids
    lines = [f"{name}\t{'ab'[at % 2]}\t{at}" for at, name in enumerate(ids)]
    (tmp_path / "m.tsv").write_text("\n".join(["sample-id\tsite\tsite=a", *lines]) + "\n")
    subsets = [("validation" if at < 20 else "test") if at % 2 else "train" for at in range(40)]
    subsets[-1] = subsets[-3] = "train"
    rows = [f"{name}\t{subset}\t" for name, subset in zip(ids, subsets, strict=True)]
    (tmp_path / "split.tsv").write_text("\n".join(["sample-id\tside\tfold", *rows]) + "\n")
    words = f"train --table {study}/table.biom --metadata {tmp_path}/m.tsv --split "
    words += f"{tmp_path}/split.tsv --metadata-column site site=a --best-metric {metric} "
    words += f"--rarefy-depth 200 --threads 1 --members deep --output-dir {tmp_path}/run"
    message = refused(main, words.split())
    assert "two columns of predictions would be called 'site=a'" in message
    undefined = "--best-metric auroc: the validation subset holds one value of 'site' only"
    assert (undefined in message) == (metric == "auroc")
    assert not (tmp_path / "run").exists()


# --- few samples ---------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [9, 12])
def test_three_classes_of_few_samples_are_learned_from(samples, tmp_path):
    rng = np.random.default_rng(samples)
    ids = [f"s{row}" for row in range(samples)]
    names = [f"OTU{column}" for column in range(30)]
    counts = pd.DataFrame(rng.poisson(40, (samples, 30)), ids, names)
    counts.T.to_csv(tmp_path / "table.tsv", sep="\t", index_label="#OTU ID")
    kinds = ["a"] * (samples - 6) + ["b"] * 3 + ["c"] * 3
    metadata = pd.DataFrame({"kind": kinds}, ids)
    metadata.to_csv(tmp_path / "metadata.tsv", sep="\t", index_label="sample-id")
    inputs = f"--table {tmp_path}/table.tsv --metadata {tmp_path}/metadata.tsv"
    words = f"{inputs} --metadata-column kind --output-dir {tmp_path}/run --dry-run"
    assert main(["train", *words.split()]) == 0
