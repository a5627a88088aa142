"""`aam explain`, through the command line: of held-out samples only, of every fold, and its
messages.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import aam
from aam.cli import main
from aam.data.splits import read_split
from aam.data.table import read_table

pytestmark = pytest.mark.slow

SMALL = "--embedding-dim 16 --attention-layers 1 --attention-heads 2 --batch-size 32 --threads 1 "
SMALL += "--epochs 1"


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file, dialect="excel-tab"))


@pytest.fixture(scope="module")
def run(study: Path) -> Path:
    folder = study.parent / "run"
    words = f"train --table {study}/table.biom --metadata {study}/metadata.tsv --rarefy-depth "
    words += f"300 {SMALL} --cv 2"
    words += " --group-column subject --metadata-column ph biome --members deep presence "
    words += f"--output-dir {folder}"
    assert main(words.split()) == 0
    return folder


@pytest.fixture(scope="module")
def taxonomy(study: Path) -> Path:
    path = study.parent / "taxonomy.tsv"
    names = read_table(study / "table.biom").sequences
    lines = [f"{name}\tk__B; p__P{at % 3}; g__G{at % 7}" for at, name in enumerate(names[1:])]
    path.write_text("Feature ID\tTaxon\n" + "\n".join(lines) + "\n")
    return path


def explain(study: Path, model: Path, output: Path, more: str = "") -> int:
    words = f"explain --table {study}/table.biom --model {model} --output-dir {output} --threads "
    words += f"1 {more}"
    return main([*words.split(), "--prediction-passes", "1"])


def test_every_sample_is_explained_by_the_fold_that_has_not_seen_it(
    study, run, taxonomy, tmp_path, capfd
):
    more = f"--metadata {study}/metadata.tsv --taxonomy {taxonomy}"
    assert explain(study, run, tmp_path / "out", more) == 0
    printed = "".join(capfd.readouterr())
    expected = r"--taxonomy has no taxon for 1 of \d+ ASVs \(\d\.\d % of the reads\)"
    assert re.search(expected, printed)
    assert "The most important taxa (genus)" in (tmp_path / "out" / "explain.html").read_text()
    for target in ("ph", "biome"):
        folder = tmp_path / "out" / target
        rows = table_of(folder / "samples.tsv")
        assert len(rows) > 50
        assert {row["subset"] for row in rows} == {"held-out"}
        assert all(row["truth"] for row in rows)
        ranks = {row["rank"] for row in table_of(folder / "taxa.tsv")}
        # The taxonomy has no names between phylum and genus.
        assert ranks == {"kingdom", "phylum", "genus"}
        assert (folder / "figures" / "importance.svg").is_file()
        assert (folder / "figures" / "taxa.svg").is_file()
    reported = {row["sample-id"]: float(row["ph"]) for row in table_of(run / "predictions.tsv")}
    rows = table_of(tmp_path / "out/ph/samples.tsv")
    explained = {row["sample-id"]: float(row["prediction"]) for row in rows}
    # Of one rarefaction instead of four, by the same fold.
    assert max(abs(reported[name] - value) for name, value in explained.items()) < 1.5
    # Python explains the folds of the run too.
    effects = aam.load(run, threads=1).explain(
        study / "table.biom", study / "metadata.tsv", prediction_passes=1
    )
    written = pd.read_csv(tmp_path / "out/ph/features.tsv", sep="\t", index_col="feature-id")
    importance = effects.loc["ph", "importance"]
    np.testing.assert_allclose(importance, written.loc[importance.index, "importance"], atol=1e-4)


def test_a_model_of_one_fold_explains_what_it_has_not_seen_or_what_a_split_names(
    study, run, tmp_path, caplog
):
    model, metadata = run / "fold-0" / "model", f"--metadata {study}/metadata.tsv"
    split = read_split(run / "fold-0" / "split.tsv")
    assert explain(study, model, tmp_path / "one", metadata) == 0
    names = {row["sample-id"] for row in table_of(tmp_path / "one" / "ph" / "samples.tsv")}
    assert names <= set(split.ids("test"))
    words = f"{metadata} --split {run}/fold-1/split.tsv"
    assert explain(study, model, tmp_path / "other", words) == 0
    rows = table_of(tmp_path / "other" / "ph" / "samples.tsv")
    assert {row["subset"] for row in rows} == {"training"}


def test_samples_without_metadata_are_left_out(study, run, tmp_path):
    lines = (study / "metadata.tsv").read_text().splitlines()
    (tmp_path / "half.tsv").write_text("\n".join(lines[:31]) + "\n")
    assert explain(study, run, tmp_path / "out", f"--metadata {tmp_path}/half.tsv") == 0
    rows = table_of(tmp_path / "out" / "ph" / "samples.tsv")
    assert {row["sample-id"] for row in rows} <= {line.split("\t")[0] for line in lines[1:31]}
    other = lines[1].split("\t", 1)[1]
    (tmp_path / "none.tsv").write_text(f"{lines[0]}\nother\t{other}\n")
    assert explain(study, run, tmp_path / "nothing", f"--metadata {tmp_path}/none.tsv") == 2


@pytest.mark.parametrize(
    ("word", "other", "said"),
    [
        ("ph", "acid", "no column 'ph', which the model predicts; importances need it"),
        ("gut", "colon", "'biome' contains 'colon', which are not classes of the model"),
    ],
)
def test_targets_and_labels_that_do_not_fit_are_told(
    study, run, tmp_path, capsys, word, other, said
):
    text = (study / "metadata.tsv").read_text()
    (tmp_path / "metadata.tsv").write_text(text.replace(f"\t{word}\t", f"\t{other}\t"))
    assert explain(study, run, tmp_path / "out", f"--metadata {tmp_path}/metadata.tsv") == 0
    assert f"metadata.tsv: {said}" in capsys.readouterr().err


def test_bad_inputs_come_in_one_message(study, run, tmp_path, refused):
    for name in ("taxonomy.tsv", "split.tsv"):
        (tmp_path / name).write_text("nothing\n")
    more = f"--metadata {study}/metadata.tsv --taxonomy {tmp_path}/taxonomy.tsv --split "
    more += f"{tmp_path}/split.tsv"
    more += f" --group-column child --table {tmp_path}/taxonomy.tsv"
    message = refused(explain, study, run, tmp_path / "out", more)
    for part in (
        "taxonomy.tsv: begins with",
        "split.tsv: line 1",
        "no column 'child'",
        "4 problems",
    ):
        assert part in message
    assert not (tmp_path / "out").exists()


def test_without_an_output_the_report_of_the_run_shows_the_importances(
    study, run, tmp_path, refused
):
    words = f"explain --table {study}/table.biom --metadata {study}/metadata.tsv --threads 1 "
    words += "--prediction-passes 1"
    report = (run / "report.html").read_text()
    files = f"--table {study}/table.biom --metadata {study}/metadata.tsv"
    command = f"aam explain --model {run} {files}"
    assert command in re.sub("</?span[^>]*>", "", report)
    fold = f"{words} --model {run}/fold-0/model"
    assert "--output-dir: not given" in refused(main, fold.split())
    assert main([*words.split(), "--model", str(run)]) == 0
    shown = (run / "report.html").read_text()
    assert "when the ASV is permuted" in shown
    assert 'aam explain <span class="option">--model' not in shown
    assert len(table_of(run / "explanation" / "ph" / "samples.tsv")) > 50
