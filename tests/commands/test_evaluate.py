"""`aam baselines` and `aam evaluate`, from the command line to the files that they write."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from aam.cli.main import main
from aam.data.split_file import read_split
from aam.evaluation.learned_baselines import FOREST, LEARNED, TREES
from aam.evaluation.prediction_file import read_predictions


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "study"
    words = f"simulate --output-dir {folder} --samples 40 --asvs 60 --length 50 --depth 900"
    assert main(words.split()) == 0
    return folder


def words(folder: Path, output: Path, more: str = "") -> list[str]:
    text = f"rf-baseline --table {folder}/table.biom --metadata {folder}/metadata.tsv --metadata-column ph biome "
    return f"{text} --rarefy-depth 200 --n-estimators 5 --n-jobs 1 --output {output} {more}".split()


def test_its_file_is_compared_with_a_model_of_the_same_folds(simulated, tmp_path, capsys):
    more = f"--tree {simulated}/tree.nwk --cv 2 --group-column subject --random-seed 3 --max-features sqrt"
    assert main(words(simulated, tmp_path / "rf.tsv", more)) == 0
    found = read_predictions(tmp_path / "rf.tsv")
    names = {spec.name for spec in found.specs}
    assert {f"{target}: {name}" for target in ("ph", "biome") for name in LEARNED} < names
    assert "ph: the training median" in names
    assert len(found.sample_ids) == 40
    assert set(found.folds) == set("01")
    figures = json.loads((tmp_path / "rf.json").read_text())["baselines"]
    truth = dict(row[:2] for row in columns(simulated / "metadata.tsv", "sample-id", "ph"))
    error = [abs(v - float(truth[n])) for n, v in zip(found.sample_ids, found.values[f"ph: {TREES}"], strict=True)]
    assert figures["ph"][TREES]["mae"]["value"] == pytest.approx(np.mean(error), rel=1e-5)
    assert main(words(simulated, tmp_path / "rf.tsv", more)) == 2
    assert "exists already" in capsys.readouterr().err
    # As a model, the forest itself: it ties with itself and stands beside the others.
    rows = [["sample-id", "ph", "fold", "note"]]
    rows += [[n, str(v), f, ""] for n, v, f in zip(found.sample_ids, found.values[f"ph: {FOREST}"], found.folds,
                                                  strict=True)]  # fmt: skip
    (tmp_path / "p.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    evaluate = f"evaluate --predictions {tmp_path}/p.tsv --metadata {simulated}/metadata.tsv --group-column subject"
    evaluate += f" --baselines {tmp_path}/rf.tsv --output-dir"
    assert main([*evaluate.split(), str(tmp_path / "e")]) == 0
    result = json.loads((tmp_path / "e" / "metrics.json").read_text())["targets"]["ph"]
    assert set(LEARNED) < set(result["baselines"])
    assert result["baselines"][FOREST]["mae"] == pytest.approx(result["metrics"]["mae"]["value"], rel=1e-5)
    assert any(said.startswith("Random forest ties the model") for said in result["verdict"])
    moved = (tmp_path / "p.tsv").read_text().replace("\t0\t\n", "\t9\t\n")
    (tmp_path / "p.tsv").write_text(moved)
    assert main([*evaluate.split(), str(tmp_path / "f")]) == 2
    assert "were held out in another fold" in capsys.readouterr().err


def columns(path: Path, *names: str) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [[row[name] for name in names] for row in csv.DictReader(file, dialect="excel-tab")]


def test_files_of_sample_ids_divide_too(simulated, tmp_path, capsys):
    ids = [name for (name,) in columns(simulated / "metadata.tsv", "sample-id")]
    (tmp_path / "train.txt").write_text("\n".join([*ids[:25], "elsewhere"]) + "\n")
    (tmp_path / "val.txt").write_text("\r\n".join(ids[25:35]))
    more = f"--train-samples {tmp_path}/train.txt --val-samples {tmp_path}/val.txt"
    assert main(words(simulated, tmp_path / "rf.tsv", more)) == 0
    assert sorted(read_predictions(tmp_path / "rf.tsv").sample_ids) == sorted(ids[25:35])
    assert "1 of 36 samples named are not in the table" in capsys.readouterr().err
    (tmp_path / "val.txt").write_text(ids[3])
    assert main(words(simulated, tmp_path / "other.tsv", more)) == 2
    assert f"1 samples are in both, expected none: '{ids[3]}'" in capsys.readouterr().err


def test_a_split_of_a_run_is_used_as_it_is(simulated, tmp_path):
    rows = [[name, "test" if at % 4 == 0 else "validation" if at % 4 == 1 else "train", ""]
            for at, (name,) in enumerate(columns(simulated / "metadata.tsv", "sample-id"))]  # fmt: skip
    (tmp_path / "split.tsv").write_text("".join("\t".join(r) + "\n" for r in [["sample-id", "side", "fold"], *rows]))
    assert main(words(simulated, tmp_path / "rf.tsv", f"--split {tmp_path}/split.tsv")) == 0
    found = read_predictions(tmp_path / "rf.tsv")
    assert sorted(found.sample_ids) == sorted(read_split(tmp_path / "split.tsv").ids("test"))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("--max-features 7 --n-estimators 0", ["--max-features is 7", "--n-estimators is 0"]),
        ("--train-samples a --cv fold", ["--train-samples and --val-samples need each other", "leave out --split"]),
        ("--cv 1 --split-column fold", ["--cv is 1", "need each other"]),
        ("--test-size 0 --validation-size 0", ["no sample is held out"]),
        ("--metadata-column nothing", ["no column 'nothing'"]),
        ("--cv fold --group-column biome", ["groups lie in several folds"]),
        ("--group-column same --cv 2", ["no column 'same'"]),
    ],
)
def test_wrong_options(simulated, tmp_path, capsys, more, named):
    assert main(words(simulated, tmp_path / "rf.tsv", more)) == 2
    said = capsys.readouterr().err
    assert all(one in said for one in named), said
    assert list(tmp_path.iterdir()) == []


def predictions_of(simulated: Path, path: Path, subset: str = "") -> Path:
    """A file of predictions that are right to within 0.1, with its column `subset` where there is one."""
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph")
    more = "\tsubset" if subset else ""
    lines = [f"{name}\t{float(ph) + 0.1}" + (f"\t{subset}" if subset else "") + "\t" for name, ph in rows]
    path.write_text("\n".join([f"sample-id\tph{more}\tnote", *lines]) + "\n")
    return path


def evaluate(simulated: Path, predictions: Path, output: Path, more: str = "") -> int:
    text = f"evaluate --predictions {predictions} --metadata {simulated}/metadata.tsv --output-dir {output} {more}"
    return main(text.split())


@pytest.mark.parametrize(
    ("subset", "kind", "title"),
    [
        ("train", "training", "Metrics of samples that training has seen"),
        ("validation", "validation", "Validation metrics"),
        ("test", "held-out", "Held-out metrics"),
        ("", "unknown", "whether the samples were held out is not known"),
    ],
)
def test_point_11_the_title_says_what_the_samples_were(simulated, tmp_path, subset, kind, title):
    predictions = predictions_of(simulated, tmp_path / "p.tsv", subset)
    assert evaluate(simulated, predictions, tmp_path / "e") == 0
    result = json.loads((tmp_path / "e" / "metrics.json").read_text())["targets"]["ph"]
    assert result["subset"] == kind
    page = (tmp_path / "e" / "report.html").read_text()
    assert title in page
    assert ("Held-out metrics" in page) == (kind == "held-out")


def test_point_11_intervals_are_not_scored_on_samples_that_fitted_them(simulated, tmp_path):
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph")
    lines = [
        f"{name}\t{ph}\t{float(ph) - 1}\t{float(ph) + 1}\t{'calibration' if at < 30 else ''}\t"
        for at, (name, ph) in enumerate(rows)
    ]
    path = tmp_path / "p.tsv"
    path.write_text("\n".join(["sample-id\tph\tph.low\tph.high\tsubset\tnote", *lines]) + "\n")
    assert evaluate(simulated, path, tmp_path / "e") == 0
    page = (tmp_path / "e" / "report.html").read_text()
    assert "no interval is scored on 30 of 40 samples" in page
    assert "<td>all</td><td>10</td><td>1.00" in page


def test_point_5_samples_without_a_group_are_refused(simulated, tmp_path, capsys):
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph", "subject")
    lines = ["\t".join([name, ph, subject if at > 2 else ""]) for at, (name, ph, subject) in enumerate(rows)]
    (tmp_path / "m.tsv").write_text("\n".join(["sample-id\tph\tsubject", *lines]) + "\n")
    predictions = predictions_of(simulated, tmp_path / "p.tsv")
    text = f"evaluate --predictions {predictions} --metadata {tmp_path}/m.tsv --group-column subject"
    assert main([*text.split(), "--output-dir", str(tmp_path / "e")]) == 2
    assert "3 of 40 samples have no value in --group-column" in capsys.readouterr().err
    assert not (tmp_path / "e").exists()


def test_point_5_files_of_sample_ids_may_not_part_a_group(simulated, tmp_path, capsys):
    ids = [name for (name,) in columns(simulated / "metadata.tsv", "sample-id")]
    (tmp_path / "train.txt").write_text("\n".join(ids[::2]))
    (tmp_path / "val.txt").write_text("\n".join(ids[1::2]))
    more = f"--train-samples {tmp_path}/train.txt --val-samples {tmp_path}/val.txt --group-column subject"
    assert main(words(simulated, tmp_path / "rf.tsv", more)) == 2
    assert "make the split with this --group-column" in capsys.readouterr().err


def test_point_14_baselines_of_another_split_are_refused(simulated, tmp_path, capsys):
    ids = [name for (name,) in columns(simulated / "metadata.tsv", "sample-id")]
    for name, first in (("a", 0), ("b", 1)):
        rows = [[one, "test" if at % 4 == first else "train", ""] for at, one in enumerate(ids)]
        text = "".join("\t".join(row) + "\n" for row in [["sample-id", "side", "fold"], *rows])
        (tmp_path / f"{name}.tsv").write_text(text)
    assert main(words(simulated, tmp_path / "rf.tsv", f"--split {tmp_path}/a.tsv")) == 0
    predictions = predictions_of(simulated, tmp_path / "p.tsv")
    baselines = f"--baselines {tmp_path}/rf.tsv"
    assert evaluate(simulated, predictions, tmp_path / "e", f"{baselines} --split {tmp_path}/a.tsv") == 0
    assert evaluate(simulated, predictions, tmp_path / "f", f"{baselines} --split {tmp_path}/b.tsv") == 2
    assert "another --split" in capsys.readouterr().err


def test_point_15_evaluate_keeps_a_target_named_like_a_derived_column(simulated, tmp_path):
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph")
    lines = [f"{name}\t{ph}\t{ph}" for name, ph in rows]
    (tmp_path / "m.tsv").write_text("\n".join(["sample-id\tbmi\tbmi_q4", *lines]) + "\n")
    (tmp_path / "p.tsv").write_text("\n".join(["sample-id\tbmi\tbmi_q4", *lines]) + "\n")
    text = f"evaluate --predictions {tmp_path}/p.tsv --metadata {tmp_path}/m.tsv --output-dir {tmp_path}/e"
    assert main(text.split()) == 0
    assert set(json.loads((tmp_path / "e" / "metrics.json").read_text())["targets"]) == {"bmi", "bmi_q4"}
