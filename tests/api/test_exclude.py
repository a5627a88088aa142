"""`--exclude`: samples that a file names are in no result; `aam predict` says why."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import aam
from aam.cli import main
from aam.data.table import excluded_ids
from aam.io.matrices import read_distances
from tests.refusals import refusal


@pytest.fixture(scope="module")
def trained(simulate_study, tmp_path_factory) -> tuple[Path, Path, list[str]]:
    """A study, a run of it without three samples, and these; the file has a header and blanks."""
    study, folder = simulate_study(samples=40, asvs=60), tmp_path_factory.mktemp("exclude")
    ids = pd.read_csv(study / "metadata.tsv", sep="\t", index_col=0, comment="#").index[[3, 20, 39]]
    (folder / "out.txt").write_text("sample-id\r\n" + "\r\n\r\n".join(ids) + "\r\n")
    words = f"train --table {study}/table.biom --metadata {study}/metadata.tsv --rarefy-depth 300 "
    words += f"--metadata-column ph --members presence --test-size 0.3 --exclude {folder}/out.txt "
    assert main([*words.split(), "--output-dir", str(folder / "run")]) == 0
    return study, folder, [*ids]


def test_training_leaves_the_samples_out_and_records_them(trained):
    _, folder, ids = trained
    record = json.loads((folder / "run/run.json").read_text())
    assert record["excluded_samples"] == ids
    split = pd.read_csv(folder / "run/split.tsv", sep="\t", dtype=str)
    assert len(split) == 36  # One has too few reads.
    assert not set(ids) & set(split.iloc[:, 0])


def test_rows_of_predictions_stay_empty_with_the_reason(trained):
    study, folder, ids = trained
    words = f"predict --table {study}/table.biom --model {folder}/run/model "
    words += f"--exclude {folder}/out.txt --output {folder}/p.tsv"
    assert main(words.split()) == 0
    table = pd.read_csv(folder / "p.tsv", sep="\t", index_col=0, comment="#")
    assert len(table) == 40
    assert table.index[3] == ids[0]
    assert set(table.loc[ids, "note"]) == {"left out by --exclude"}
    assert table.loc[ids, "ph"].isna().all()
    assert table["ph"].notna().sum() == 36
    words = f"evaluate --predictions {folder}/p.tsv --metadata {study}/metadata.tsv "
    words += f"--exclude {folder}/out.txt --output-dir {folder}/evaluated"
    assert main(words.split()) == 0
    assert len(pd.read_csv(folder / "evaluated/predictions.tsv", sep="\t", comment="#")) == 37


def test_vectors_distances_and_effects_have_no_row_of_them(trained, capsys):
    """In memory a list was read twice, and its ids were no samples the second time."""
    study, folder, _ = trained
    tree = f"--table {study}/table.biom --tree {study}/tree.nwk --exclude {folder}/out.txt"
    assert main(f"unifrac {tree} --output {folder}/u.h5".split()) == 0
    assert len(read_distances(folder / "u.h5").ids) == 37
    files = study / "table.biom", study / "tree.nwk"
    assert len(aam.unifrac(*files, exclude=folder / "out.txt").ids) == 37
    common = f"--model {folder}/run --table {study}/table.biom --exclude {folder}/out.txt"
    assert main(f"explain {common} --output-dir {folder}/explained".split()) == 0
    record = json.loads((folder / "explained/run.json").read_text())
    assert "out.txt" in json.dumps(record)
    capsys.readouterr()


def test_samples_that_are_not_there_are_named(trained, tmp_path):
    _, _, ids = trained
    whole = pd.DataFrame(1, ids, ["A", "B"])
    tree = "((A:1,B:1):1);"
    (tmp_path / "tree.nwk").write_text(tree)
    for text, said in {
        f"{ids[0]}\nnobody\n": "1 of 2 ids are no samples of the table: 'nobody'",
        ids[0].lower() + "x\n": "1 of 1 ids",
        "\n".join(ids): "names all 3 samples",
    }.items():
        (tmp_path / "ids.txt").write_text(text)
        options = {"tree": tmp_path / "tree.nwk", "exclude": tmp_path / "ids.txt"}
        assert said in refusal(aam.unifrac, whole, **options)


@pytest.mark.parametrize("text", ["", "\n \n", "sample-id\n", "# those of plate 2\n#s1\n"])
def test_files_without_ids_leave_nothing_out_and_say_so(text, tmp_path, caplog):
    (tmp_path / "ids.txt").write_text(text)
    assert excluded_ids(tmp_path / "ids.txt", ("s1", "s2", "#odd")) == ()
    assert "ids.txt contains no sample ids; no sample is left out" in caplog.text


def test_comments_are_no_ids_but_samples_of_such_names_are(tmp_path):
    (tmp_path / "ids.txt").write_text("#SampleID\n# swapped\n#odd\ns2\n")
    assert excluded_ids(tmp_path / "ids.txt", ("s1", "s2", "#odd")) == ("#odd", "s2")


@pytest.mark.parametrize("line", ["s2\tyes", '"s2","yes"', "s2;yes"])
def test_of_a_table_the_first_column_is_asked_for(tmp_path, line):
    (tmp_path / "samples.tsv").write_text(f"sample-id\tmixed\n{line}\n")
    message = refusal(excluded_ids, tmp_path / "samples.tsv", ("s1", "s2"))
    assert "each line contains a sample id and nothing else" in message
