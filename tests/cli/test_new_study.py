"""Models that are to hold in a study never seen: `aam train --study-column`, `aam predict
--new-study`.
"""

from __future__ import annotations

import re
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

TRAIN = "train --rarefy-depth 300 --threads 1 --missing drop "
TRAIN += "--metadata-column status ph --study-column study"
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
    words = f"{TRAIN} --table {study}/table.biom --metadata {study}/studies.tsv --output-dir "
    words += f"{study.parent}/run"
    assert main(words.split()) == 0
    return study.parent / "run"


def test_every_study_is_held_out_whole_and_the_model_learns_from_all(
    run: Path, metadata: pd.DataFrame
) -> None:
    reported = read_predictions(run / "predictions.tsv")
    folds = dict(zip(reported.sample_ids, reported.texts("fold"), strict=True))
    assert folds == metadata.study.to_dict()
    whole = "Each of 3 values of study was held out whole"
    assert whole in (run / "report.html").read_text()
    for model, studies in (
        (run / "model", {"first", "second", "third"}),
        (run / "fold-first/model", {"second", "third"}),
    ):
        saved = load_model(model, torch.device("cpu"))
        parts = saved.blend.members["presence"].estimators
        assert [hasattr(part, "centre_") for part in parts] == [False, True]
        assert set(metadata.study[list(saved.notes.labelled_samples)]) == studies


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("first", "centred on the mean of its 25 samples"),
        ("third", "10 samples are too few for the mean of their study"),
    ],
)
def test_a_new_table_is_predicted_as_the_fold_was(
    study: Path, run: Path, metadata: pd.DataFrame, tmp_path: Path, capsys, name: str, said: str
) -> None:
    """Relative to its own mean where it has the samples, and saying which."""
    ids = [*metadata.index[metadata.study == name]]
    table = table_of(study, tmp_path / "new.biom", ids)
    model = run / f"fold-{name}" / "model"
    words = f"predict --model {model} --table {table} --threads 1 --output {tmp_path}"
    assert main(f"{words}/new.tsv --new-study".split()) == 0
    assert said in capsys.readouterr().err
    reported = read_predictions(run / "predictions.tsv").with_rows(ids, {})
    predicted = read_predictions(tmp_path / "new.tsv")
    for target, atol in (("status", 1e-6), ("ph", 1e-5)):
        found, expected = predicted.predicted(target), reported.predicted(target)
        np.testing.assert_allclose(found, expected, atol=atol)
    assert main(f"{words}/plain.tsv".split()) == 0
    assert "if these samples are of a new one, pass --new-study" in capsys.readouterr().err
    plain = read_predictions(tmp_path / "plain.tsv")
    assert np.allclose(plain.predicted("status"), predicted.predicted("status")) == (
        name == "third"
    )
    of_api = aam.load(model).predict(table, new_study=True, threads=1)
    np.testing.assert_allclose(of_api["ph"], predicted.predicted("ph"), atol=1e-5)


def test_what_cannot_be_learned_of_studies_is_refused(
    study: Path, run: Path, metadata, tmp_path: Path, refused
) -> None:
    words, table = f"{TRAIN} --output-dir {tmp_path}/run", f"--table {study}/table.biom"
    for values, dropping, message in (
        ("only", "drop", "all samples are of 'only', expected two studies or more"),
        (metadata.study.where(metadata.study != "first"), "error", "study"),
    ):
        metadata.assign(study=values).to_csv(tmp_path / "wrong.tsv", sep="\t")
        more = f"{table} --metadata {tmp_path}/wrong.tsv --missing {dropping}"
        assert message in refused(main, f"{words} {more}".split())
    words = TRAIN.replace(" --study-column study", " --test-size 0.2")
    words += f" {table} --metadata {study}/studies.tsv --output-dir {tmp_path}/plain"
    assert main(words.split()) == 0
    words = f"predict --new-study {table} --model {tmp_path}/plain --output {tmp_path}/p.tsv"
    assert "train it with --study-column" in refused(main, words.split())
    assert not (tmp_path / "p.tsv").exists()
    assert not (tmp_path / "run").exists()


def test_of_two_studies_each_is_learned_from_alone(
    study: Path, metadata: pd.DataFrame, tmp_path: Path
) -> None:
    metadata[metadata.study != "third"].to_csv(tmp_path / "two.tsv", sep="\t")
    words = f"{TRAIN} --table {study}/table.biom --metadata {tmp_path}/two.tsv --output-dir "
    words += f"{tmp_path}/run"
    assert main(words.split()) == 0
    reported = read_predictions(tmp_path / "run" / "predictions.tsv")
    assert set(reported.texts("fold")) == {"first", "second"}


def test_samples_of_training_are_no_new_study(
    study: Path, run: Path, tmp_path: Path, capsys
) -> None:
    words = f"predict --model {run} --table {study}/table.biom --threads 1 --output "
    words += f"{tmp_path}/p.tsv --new-study"
    assert main(words.split()) == 0
    assert "60 samples belong to a study of the training table" in capsys.readouterr().err


def test_numbers_of_subjects_that_studies_share_are_subjects_of_each(
    study: Path, metadata: pd.DataFrame, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the audit recommended, the training refused."""
    metadata["number"] = [str(row % 5) for row in range(len(metadata))]
    metadata.to_csv(study / "numbers.tsv", sep="\t")
    words = f"--table {study}/table.biom --metadata {study}/numbers.tsv --metadata-column ph "
    words += "--study-column study --group-column number"
    assert main(f"{TRAIN} {words} --dry-run --output-dir {study}/none".split()) == 0
    text = "".join(capfd.readouterr())
    assert "5 values of 'number' occur in several values of 'study'; each is a group" in text
    assert re.search(r"predicts \d+ \([1-5]\)", text)
