"""Commands that are given a prepared table write what they write for the table itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from aam.cli.main import main

SMALL = "--epochs 1 --embedding-dim 16 --attention-heads 2 --attention-layers 1 --threads 1"


def run(words: str) -> None:
    assert main(words.split()) == 0


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "study"
    run(f"simulate --output-dir {folder} --samples 60 --asvs 120 --length 60 --depth 1500")
    return folder


@pytest.fixture(scope="module")
def outputs(study) -> dict[str, Path]:
    """The outputs of all commands: for the table, for its prepared form, and for the table beside a prepared form."""
    folders = {}
    tree, metadata = study / "tree.nwk", study / "metadata.tsv"
    for kind in ("plain", "prepared", "beside"):
        out = folders[kind] = study / kind
        out.mkdir()
        table = study / "table.biom"
        if kind == "prepared":
            table = study / "elsewhere"
            run(f"prepare --table {study / 'table.biom'} --tree {tree} --output {table}")
        if kind == "beside":
            run(f"prepare --table {table} --tree {tree}")
        run(f"pretrain --table {table} --tree {tree} --output-dir {out / 'pre'} {SMALL}")
        run(
            f"train --table {table} --metadata {metadata} --metadata-column ph --pretrained-encoder {out / 'pre'} "
            f"--members deep kernel --output-dir {out / 'tune'} --epochs 1 --threads 1"
        )
        run(f"predict --model {out / 'tune/model'} --table {table} --output {out / 'predictions.tsv'} --threads 1")
        run(f"embed --model {out / 'pre/model'} --table {table} --output-dir {out / 'vectors'} --threads 1")
    return folders


@pytest.mark.parametrize("kind", ["prepared", "beside"])
def test_a_prepared_table_changes_no_bit(outputs, kind):
    names = ["predictions.tsv", "tune/predictions.tsv", "vectors/samples.tsv", "vectors/asvs.tsv"]
    weights = [path.relative_to(outputs["plain"]) for path in outputs["plain"].rglob("*.safetensors")]
    assert len(weights) >= 4
    for name in [*names, *weights]:
        assert (outputs[kind] / name).read_bytes() == (outputs["plain"] / name).read_bytes(), name


def test_vectors_are_written_in_parts_as_at_once(outputs, study, monkeypatch):
    """Parts of other sizes move samples between batches, which may change a last bit and no printed digit."""
    monkeypatch.setattr("aam.commands.embed.SAMPLES_OF_PART", 7)
    monkeypatch.setattr("aam.predict.prediction.SAMPLES_OF_PART", 7)
    plain, table = outputs["plain"], study / "table.biom"
    for form in ("tsv", "npy"):
        run(
            f"embed --model {plain / 'pre/model'} --table {table} --output-dir {plain / form} --threads 1 "
            f"--format {form}"
        )
    for name in ("samples", "asvs"):
        expected = pd.read_csv(plain / "vectors" / f"{name}.tsv", sep="\t", index_col=0)
        parts = pd.read_csv(plain / "tsv" / f"{name}.tsv", sep="\t", index_col=0)
        assert list(parts.index) == list(expected.index)
        np.testing.assert_allclose(parts, expected, rtol=0, atol=2e-5)
        assert (plain / "npy" / f"{name}.ids.txt").read_text().split() == list(expected.index)
        np.testing.assert_allclose(np.load(plain / "npy" / f"{name}.npy"), expected, rtol=0, atol=2e-5)
    run(f"predict --model {plain / 'tune/model'} --table {table} --output {plain / 'parts.tsv'} --threads 1")
    expected, parts = (pd.read_csv(plain / name, sep="\t", index_col=0) for name in ("predictions.tsv", "parts.tsv"))
    assert list(parts) == list(expected)
    np.testing.assert_allclose(parts["ph"], expected["ph"], rtol=0, atol=1e-4)
    assert list(parts["note"].fillna("")) == list(expected["note"].fillna(""))
