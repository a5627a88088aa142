"""Models that are to hold in a study never seen: `aam train --study-column`, `aam predict
--new-study --labels`.
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
from aam.cli.main import main
from aam.data.placement import shipped_reference
from aam.data.tokens import encode
from aam.evaluate.metrics import auroc
from aam.evaluate.predictions import read_predictions
from aam.predict.saved_model import load_model

pytestmark = pytest.mark.slow

TRAIN = (
    "train --no-rf-baseline --rarefy-depth 300 --threads 1 --missing drop "
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
    assert dict(zip(reported.sample_ids, reported.folds, strict=True)) == metadata.study.to_dict()
    assert "for a study never seen" in (run / "report.html").read_text()
    for model, studies in (
        (run / "model", {"first", "second", "third"}),
        (run / "fold-first/model", {"second", "third"}),
    ):
        saved = load_model(model, torch.device("cpu"))
        assert saved.blend.is_relative
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
        "relative to the mean of its 25 samples"
        if centred
        else "10 samples are too few to know the mean"
    )
    assert said in capsys.readouterr().err
    reported = read_predictions(run / "predictions.tsv").with_rows(ids, {})
    predicted = read_predictions(tmp_path / "new.tsv")
    np.testing.assert_allclose(
        predicted.probabilities["status"], reported.probabilities["status"], atol=1e-6
    )
    np.testing.assert_allclose(predicted.values["ph"], reported.values["ph"], atol=1e-5)
    assert main(f"{words}/plain.tsv".split()) == 0
    assert "for one it has not seen: --new-study" in capsys.readouterr().err
    plain = read_predictions(tmp_path / "plain.tsv")
    assert np.allclose(plain.probabilities["status"], predicted.probabilities["status"]) != centred
    of_api = aam.load(run / f"fold-{name}" / "model").predict(table, new_study=True, threads=1)
    np.testing.assert_allclose(of_api["ph"], predicted.values["ph"], atol=1e-5)


def labels_of(metadata: pd.DataFrame, path: Path, number: int = 4) -> pd.DataFrame:
    """Write the labels of some samples of each class of the first study."""
    of_study = metadata[metadata.study == "first"]
    few = of_study.groupby("status").head(number)[["status"]]
    few.to_csv(path, sep="\t")
    return few


def test_a_few_labels_adapt_a_new_study(
    study: Path, run: Path, metadata, tmp_path: Path, capsys
) -> None:
    table = table_of(
        study, tmp_path / "new.biom", ids := [*metadata.index[metadata.study == "first"]]
    )
    few, model = labels_of(metadata, tmp_path / "few.tsv"), run / "fold-first/model"
    words = f"predict --model {model} --table {table} --threads 1 --new-study --output {tmp_path}"
    assert main(f"{words}/without.tsv".split()) == 0
    assert main(f"{words}/with.tsv --labels {tmp_path}/few.tsv".split()) == 0
    said = capsys.readouterr().err
    assert "'status' adapted to 8 labels (" in said
    assert "of the other 17 samples have another most probable class" in said
    without, adapted = (read_predictions(tmp_path / f"{name}.tsv") for name in ("without", "with"))
    marked = {
        name
        for name, subset in zip(adapted.sample_ids, adapted.subsets, strict=True)
        if subset == "train"
    }
    assert marked == {*few.index}
    assert set(adapted.subsets) == {"train", ""}
    assert list(adapted.sample_ids) == ids
    assert not np.allclose(adapted.probabilities["status"], without.probabilities["status"])
    np.testing.assert_allclose(adapted.probabilities["status"].sum(axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(adapted.values["ph"], without.values["ph"])
    of_api = aam.load(model).predict(table, labels=few, new_study=True, threads=1)
    np.testing.assert_allclose(
        of_api["status=case"], adapted.probabilities["status"][:, 0], atol=1e-6
    )


def test_bad_labels_are_refused_in_one_message(
    study: Path, run: Path, metadata, tmp_path: Path, capsys
) -> None:
    table = table_of(study, tmp_path / "new.biom", [*metadata.index[metadata.study == "first"]])
    path = tmp_path / "few.tsv"
    words = (
        f"predict --model {run}/fold-first/model --table {table} --threads 1 --output "
        f"{tmp_path}/p.tsv"
    )

    def message(few: pd.DataFrame, option: str = "--new-study") -> str:
        few.to_csv(path, sep="\t")
        assert main(f"{words} --labels {path} {option}".split()) == 2
        return capsys.readouterr().err

    few = labels_of(metadata, path)
    several = few.copy()
    several.iloc[:2, 0] = ["", "sick"]
    several.loc["nobody"] = "case"
    said = message(several)
    assert "1 of 9 samples are not in the table: 'nobody'" in said
    assert "'status': 1 samples have no value" in said
    assert "'sick': no class of training, which had 'case', 'control'" in said
    assert "4 labels of samples that reach the model's depth, 5 are needed" in message(few[:4])
    one = metadata[(metadata.study == "first") & (metadata.status == "case")][["status"]]
    assert "all labels are 'case', both classes are needed" in message(one)
    assert "no column of a target of two classes; the model has 'status'" in message(
        few.rename(columns={"status": "x"})
    )
    assert "pass --new-study too" in message(few, "")
    small = table_of(study, tmp_path / "small.biom", [*metadata.index[metadata.study == "third"]])
    words = words.replace(str(table), str(small))
    assert "10 samples in the table, 20 are needed" in message(
        metadata[metadata.study == "third"][["status"]]
    )
    assert not (tmp_path / "p.tsv").exists()


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
    assert set(read_predictions(tmp_path / "run" / "predictions.tsv").folds) == {"first", "second"}


def test_samples_of_training_are_no_new_study(
    study: Path, run: Path, tmp_path: Path, capsys
) -> None:
    words = (
        f"predict --model {run} --table {study}/table.biom --threads 1 --output "
        f"{tmp_path}/p.tsv --new-study"
    )
    assert main(words.split()) == 0
    assert "60 samples are of a study of training" in capsys.readouterr().err


def test_columns_of_different_studies_are_learned_together(
    study: Path, metadata, tmp_path: Path, capsys, refused
):
    """Two diseases: one in two studies, of which one is left when the other is held out, one in the
    third study too.
    """
    values, disease = metadata[["study"]].copy(), np.arange(len(metadata)) % 2 == 0
    values["flu"] = metadata.status.where(disease & (metadata.study != "third"), "")
    values["cold"] = metadata.status.where(~disease | (metadata.study == "third"), "")
    values.to_csv(tmp_path / "columns.tsv", sep="\t")
    words = TRAIN.replace("status ph", "flu cold").replace(" --missing drop", "")
    words = (
        f"{words} --table {study}/table.biom --metadata {tmp_path}/columns.tsv --output-dir "
        f"{tmp_path}/run"
    )
    assert main(words.split()) == 0
    said = capsys.readouterr().err
    assert f"{len(values)} samples have a value in some of 'flu', 'cold' only" in said
    for number in ((values.cold != "") & (values.study != name) for name in ("first", "second")):
        assert (
            f"flu: one study in training; {number.sum()} samples of 'cold' count too, a study by "
            "0.3"
        ) in said
    assert said.count("one study in training") == 2
    reported = read_predictions(tmp_path / "run" / "predictions.tsv")
    assert list(reported.sample_ids) == [*values.index]
    assert np.isfinite(reported.probabilities["flu"]).all()
    few = values.replace("", None).drop(columns="cold")
    few["cold"] = None
    few.to_csv(tmp_path / "columns.tsv", sep="\t")
    assert "samples have no value in any of 'flu', 'cold'" in refused(
        main, words.replace("/run", "/none").split()
    )


def test_a_table_of_another_region_is_predicted_through_the_reference_tree(
    tmp_path: Path, capsys, refused
) -> None:
    """Cases of every study have more ASVs of one clade; training reads one part of their 16S, the
    new study another.
    """
    reference, rng = shipped_reference(), np.random.default_rng(0)
    letters = dict(zip(encode(["ACGT"])[0].tolist(), "ACGT", strict=True))
    tips = (
        "".join(letters[token] for token in row if token in letters)
        for row in reference.tokens.tolist()
    )
    whole = [tip for tip in tips if len(tip) > 1200]
    # Tips stand in the order of the tree: near ones are kin.
    clades = whole[:20], whole[-20:]
    rows = [
        (f"{study}{place}", study, "case" if place % 2 else "control")
        for study in "abcd"
        for place in range(24)
    ]
    metadata = pd.DataFrame(rows, columns=["sample-id", "study", "status"]).set_index("sample-id")
    metadata.to_csv(tmp_path / "metadata.tsv", sep="\t")
    of_clade = np.where(metadata.status == "case", 15, 7)
    present = [
        np.r_[rng.permutation(20) < number, rng.permutation(20) < 22 - number]
        for number in of_clade
    ]
    counts = np.stack([rng.multinomial(500, one / one.sum()) for one in present]).T

    def written(name: str, part: slice, ids: list[str]) -> Path:
        asvs = [sequence[part] for clade in clades for sequence in clade]
        merged = pd.DataFrame(counts, asvs, metadata.index)[ids].groupby(level=0).sum()
        table = biom.Table(merged.to_numpy(), merged.index, merged.columns)
        with h5py.File(tmp_path / name, "w") as file:
            table.to_hdf5(file, "test")
        return tmp_path / name

    training = written("training.biom", slice(300, 420), [*metadata.index[metadata.study != "d"]])
    new = written("new.biom", slice(700, 820), ids := [*metadata.index[metadata.study == "d"]])
    words = f"train --table {training} --metadata {tmp_path}/metadata.tsv --metadata-column status"
    assert (
        main(
            (
                f"{words} --study-column study --rarefy-depth 400 --threads 1 --output-dir "
                f"{tmp_path}/run"
            ).split()
        )
        == 0
    )
    capsys.readouterr()
    words = (
        f"predict --model {tmp_path}/run --table {new} --new-study --threads 1 --output "
        f"{tmp_path}/new.tsv"
    )
    assert main(words.split()) == 0
    assert (
        "had the ASVs of 0 % of the reads (median of samples): predicted by where reads stand"
        in capsys.readouterr().err
    )
    predicted = (
        read_predictions(tmp_path / "new.tsv").with_rows(ids, {}).probabilities["status"][:, 0]
    )
    assert auroc((metadata.status[ids] == "case").to_numpy(), predicted) > 0.95
    # What is no 16S stands nowhere on the tree.
    clades = tuple(["".join(rng.choice([*"ACGT"], 1300)) for _ in range(20)] for _ in range(2))
    strange = written("strange.biom", slice(700, 820), ids)
    words = (
        f"predict --model {tmp_path}/run --table {strange} --new-study --threads 1 --output "
        f"{tmp_path}/strange.tsv"
    )
    assert "--table: 100% of the ASVs are no 16S of bacteria or archaea" in refused(
        main, words.split()
    )
    assert not (tmp_path / "strange.tsv").exists()
