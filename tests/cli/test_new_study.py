"""Models that are to hold in a study never seen: `aam train --study-column`, `aam predict
--new-study`.
"""

from __future__ import annotations

from pathlib import Path

import biom
import h5py
import numpy as np
import pandas as pd
import pytest
import torch

import aam
from aam.cli import main
from aam.evaluate.predictions import read_predictions
from aam.predict.saved_model import load_model

pytestmark = pytest.mark.slow

TRAIN = (
    "train --rarefy-depth 300 --threads 1 --missing drop "
    "--metadata-column status ph --study-column study"
)
STUDIES = {"first": 25, "second": 25, "third": 10}


def table_of(study: Path, path: Path, ids: list[str]) -> Path:
    """Write the table of some samples."""
    table = biom.load_table(str(study / "table.biom")).filter(ids, inplace=False)
    with h5py.File(path, "w") as file:
        table.to_hdf5(file, "test")
    return path


@pytest.fixture(scope="module")
def metadata(study: Path) -> pd.DataFrame:
    """Return the metadata of three studies, one of them small, in which the biome decides the
    status.
    """
    values = pd.read_csv(study / "metadata.tsv", sep="\t", dtype=str).set_index("sample-id")
    values["study"] = np.repeat([*STUDIES], [*STUDIES.values()])
    values["status"] = np.where(values.biome == values.biome.mode()[0], "case", "control")
    values.to_csv(study / "studies.tsv", sep="\t")
    return values


@pytest.fixture(scope="module")
def run(study: Path, metadata: pd.DataFrame) -> Path:
    words = (
        f"{TRAIN} --table {study}/table.biom --metadata {study}/studies.tsv --output-dir "
        f"{study.parent}/run"
    )
    assert main(words.split()) == 0
    return study.parent / "run"


def test_every_study_is_held_out_whole_and_the_model_learns_from_all(
    run: Path, metadata: pd.DataFrame
) -> None:
    reported = read_predictions(run / "predictions.tsv")
    assert (
        dict(zip(reported.sample_ids, reported.texts("fold"), strict=True))
        == metadata.study.to_dict()
    )
    assert "for a study never seen" in (run / "report.html").read_text()
    for model, studies in (
        (run / "model", {"first", "second", "third"}),
        (run / "fold-first/model", {"second", "third"}),
    ):
        saved = load_model(model, torch.device("cpu"))
        assert [blend.is_centred for blend in saved.blends] == [False, True]
        assert set(metadata.study[list(saved.notes["labelled_samples"])]) == studies


@pytest.mark.parametrize(("name", "centred"), [("first", True), ("third", False)])
def test_a_new_table_is_predicted_as_the_fold_was(
    study: Path, run: Path, metadata: pd.DataFrame, tmp_path: Path, capsys, name: str, centred: bool
) -> None:
    """Relative to its own mean where it has the samples, and saying which."""
    ids = [*metadata.index[metadata.study == name]]
    table = table_of(study, tmp_path / "new.biom", ids)
    words = (
        f"predict --model {run}/fold-{name}/model --table {table} --threads 1 --output {tmp_path}"
    )
    assert main(f"{words}/new.tsv --new-study".split()) == 0
    said = (
        "centred on the mean of its 25 samples"
        if centred
        else "10 samples are too few for the mean of their study"
    )
    assert said in capsys.readouterr().err
    reported = read_predictions(run / "predictions.tsv").with_rows(ids, {})
    predicted = read_predictions(tmp_path / "new.tsv")
    np.testing.assert_allclose(
        predicted.predicted("status"), reported.predicted("status"), atol=1e-6
    )
    np.testing.assert_allclose(predicted.predicted("ph"), reported.predicted("ph"), atol=1e-5)
    assert main(f"{words}/plain.tsv".split()) == 0
    assert "if these samples are of a new one, pass --new-study" in capsys.readouterr().err
    plain = read_predictions(tmp_path / "plain.tsv")
    assert np.allclose(plain.predicted("status"), predicted.predicted("status")) != centred
    of_api = aam.load(run / f"fold-{name}" / "model").predict(table, new_study=True, threads=1)
    np.testing.assert_allclose(of_api["ph"], predicted.predicted("ph"), atol=1e-5)


def test_what_cannot_be_learned_of_studies_is_refused(
    study: Path, run: Path, metadata, tmp_path: Path, capsys
) -> None:
    table = f"--table {study}/table.biom"
    metadata.assign(study="only").to_csv(tmp_path / "one.tsv", sep="\t")
    assert (
        main(f"{TRAIN} {table} --metadata {tmp_path}/one.tsv --output-dir {tmp_path}/run".split())
        == 2
    )
    assert (
        "--study-column study: all samples are of 'only', expected two studies or more"
        in capsys.readouterr().err
    )
    metadata.assign(study=metadata.study.where(metadata.study != "first")).to_csv(
        tmp_path / "gaps.tsv", sep="\t"
    )
    words = TRAIN.replace(" --missing drop", "")
    assert (
        main(f"{words} {table} --metadata {tmp_path}/gaps.tsv --output-dir {tmp_path}/run".split())
        == 2
    )
    assert "study" in capsys.readouterr().err
    words = TRAIN.replace(" --study-column study", " --test-size 0.2")
    words += f" {table} --metadata {study}/studies.tsv --output-dir {tmp_path}/plain"
    assert main(words.split()) == 0
    assert (
        main(
            f"predict --new-study {table} --model {tmp_path}/plain --output {tmp_path}/p.tsv".split()
        )
        == 2
    )
    assert "train it with --study-column" in capsys.readouterr().err
    assert not (tmp_path / "p.tsv").exists()
    assert not (tmp_path / "run").exists()


def test_of_two_studies_each_is_learned_from_alone(
    study: Path, metadata: pd.DataFrame, tmp_path: Path
) -> None:
    metadata[metadata.study != "third"].to_csv(tmp_path / "two.tsv", sep="\t")
    words = (
        f"{TRAIN} --table {study}/table.biom --metadata {tmp_path}/two.tsv --output-dir "
        f"{tmp_path}/run"
    )
    assert main(words.split()) == 0
    assert set(read_predictions(tmp_path / "run" / "predictions.tsv").texts("fold")) == {
        "first",
        "second",
    }


def test_samples_of_training_are_no_new_study(
    study: Path, run: Path, tmp_path: Path, capsys
) -> None:
    words = (
        f"predict --model {run} --table {study}/table.biom --threads 1 --output "
        f"{tmp_path}/p.tsv --new-study"
    )
    assert main(words.split()) == 0
    assert "60 samples belong to a study of the training table" in capsys.readouterr().err
