"""`aam baselines` and `aam evaluate`, from the command line to the files that they write."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from aam.cli.main import main
from aam.commands.evaluate import _saw_unlabelled
from aam.data.splits import read_split
from aam.evaluate.comparison import MAJORITY, MEDIAN
from aam.evaluate.predictions import read_predictions
from aam.predict.baselines import FOREST, LEARNED, TREES
from aam.predict.saved_model import load_model


@pytest.fixture(scope="module")
def simulated(simulate_study) -> Path:
    return simulate_study(samples=40, asvs=60, depth=900)


def words(folder: Path, output: Path, more: str = "") -> list[str]:
    text = (
        f"rf-baseline --table {folder}/table.biom --metadata {folder}/metadata.tsv "
        "--metadata-column ph "
    )
    return f"{text} --rarefy-depth 200 --n-estimators 5 --n-jobs 1 --output {output} {more}".split()


def test_its_file_is_compared_with_a_model_of_the_same_folds(simulated, tmp_path, refused):
    more = (
        f"--tree {simulated}/tree.nwk --cv 2 --group-column subject --random-seed 3 "
        "--max-features sqrt"
    )
    more += " --metadata-column ph biome"
    assert main(words(simulated, tmp_path / "rf.tsv", more)) == 0
    table = read_predictions(tmp_path / "rf.tsv")
    names = {spec.name for spec in table.specs}
    assert {f"{target}: {name}" for target in ("ph", "biome") for name in LEARNED} < names
    assert "ph: the training median" in names
    assert len(table.sample_ids) == 40
    assert set(table.folds) == set("01")
    metrics = json.loads((tmp_path / "rf.json").read_text())["baselines"]
    truth = dict(row[:2] for row in columns(simulated / "metadata.tsv", "sample-id", "ph"))
    error = [
        abs(v - float(truth[n]))
        for n, v in zip(table.sample_ids, table.values[f"ph: {TREES}"], strict=True)
    ]
    assert metrics["ph"][TREES]["mae"]["value"] == pytest.approx(np.mean(error), rel=1e-5)
    assert "exists already" in refused(main, words(simulated, tmp_path / "rf.tsv", more))
    # As a model, the forest itself: it ties with itself and stands beside the others.
    of_forest = zip(table.sample_ids, table.values[f"ph: {FOREST}"], table.folds, strict=True)
    write_rows(tmp_path / "p.tsv", "sample-id ph fold note", ((*row, "") for row in of_forest))
    evaluate = (
        f"evaluate --predictions {tmp_path}/p.tsv --metadata {simulated}/metadata.tsv "
        "--group-column subject"
    )
    evaluate += f" --baselines {tmp_path}/rf.tsv --output-dir"
    assert main([*evaluate.split(), str(tmp_path / "e")]) == 0
    result = json.loads((tmp_path / "e" / "metrics.json").read_text())["targets"]["ph"]
    assert set(LEARNED) < set(result["baselines"])
    assert result["baselines"][FOREST]["mae"] == pytest.approx(
        result["metrics"]["mae"]["value"], rel=1e-5
    )
    tie = re.compile(
        r"not shown to do better than random forest|Learned baselines that the model .*not shown "
        r".*random forest \("
    )
    assert any(tie.search(sentence) for sentence in result["verdict"])
    moved = (tmp_path / "p.tsv").read_text().replace("\t0\t\n", "\t9\t\n")
    (tmp_path / "p.tsv").write_text(moved)
    assert "were held out in another fold" in refused(
        main, [*evaluate.split(), str(tmp_path / "f")]
    )


def write_rows(path: Path, header: str, rows: Iterable[Iterable[object]]) -> Path:
    """Write a table of tab-separated values; the names of its columns stand between spaces."""
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [header.split(), *rows]))
    return path


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
    subsets = ("test", "validation", "train", "train") * 10
    ids = columns(simulated / "metadata.tsv", "sample-id")
    rows = ((*name, subset, "") for name, subset in zip(ids, subsets, strict=True))
    write_rows(tmp_path / "split.tsv", "sample-id side fold", rows)
    assert main(words(simulated, tmp_path / "rf.tsv", f"--split {tmp_path}/split.tsv")) == 0
    table = read_predictions(tmp_path / "rf.tsv")
    assert sorted(table.sample_ids) == sorted(read_split(tmp_path / "split.tsv").ids("test"))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("--max-features 7 --n-estimators 0", ["--max-features is 7", "--n-estimators is 0"]),
        (
            "--train-samples a --cv fold",
            ["--train-samples and --val-samples need each other", "leave out --split"],
        ),
        ("--cv 1 --split-column fold", ["--cv is 1", "need each other"]),
        ("--test-size 0 --validation-size 0", ["no sample is held out"]),
        ("--cv 2 --numeric-columns ph", ["--metadata-column 'ph' is a covariate too"]),
        ("--metadata-column nothing", ["no column 'nothing'"]),
        ("--cv fold --group-column biome", ["groups lie in several folds"]),
        ("--group-column same --cv 2", ["no column 'same'"]),
    ],
)
def test_wrong_options(simulated, tmp_path, refused, more, named):
    stderr = refused(main, words(simulated, tmp_path / "rf.tsv", more))
    assert all(one in stderr for one in named), stderr
    assert list(tmp_path.iterdir()) == []


def predictions_of(simulated: Path, path: Path, subset: str = "") -> Path:
    """A file of predictions that are right to within 0.1, with its column `subset` where there is
    one.
    """
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph")
    header = "sample-id ph subset note" if subset else "sample-id ph note"
    return write_rows(
        path, header, ((name, float(ph) + 0.1, *filter(None, [subset]), "") for name, ph in rows)
    )


def evaluate(simulated: Path, predictions: Path, output: Path, more: str = "") -> int:
    text = (
        f"evaluate --predictions {predictions} --metadata {simulated}/metadata.tsv "
        f"--output-dir {output} {more}"
    )
    return main(text.split())


@pytest.mark.parametrize(
    ("subset", "kind", "title"),
    [("validation", "validation", "Validation metrics"), ("test", "held-out", "Held-out metrics")],
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
    subsets = ["calibration"] * 30 + [""] * 10
    cells = zip(columns(simulated / "metadata.tsv", "sample-id", "ph"), subsets, strict=True)
    rows = ((name, ph, float(ph) - 1, float(ph) + 1, subset, "") for (name, ph), subset in cells)
    path = write_rows(tmp_path / "p.tsv", "sample-id ph ph.low ph.high subset note", rows)
    assert evaluate(simulated, path, tmp_path / "e") == 0
    page = (tmp_path / "e" / "report.html").read_text()
    assert "no interval is scored on 30 of 40 samples" in page
    assert '<th scope="row">all</th><td>10</td><td>1.00' in page


def test_point_5_samples_without_a_group_are_refused(simulated, tmp_path, refused):
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph", "subject")
    rows = [(name, ph, subject if at > 2 else "") for at, (name, ph, subject) in enumerate(rows)]
    write_rows(tmp_path / "m.tsv", "sample-id ph subject", rows)
    predictions = predictions_of(simulated, tmp_path / "p.tsv")
    text = (
        f"evaluate --predictions {predictions} --metadata {tmp_path}/m.tsv --group-column subject"
    )
    message = refused(main, [*text.split(), "--output-dir", str(tmp_path / "e")])
    assert "3 of 40 samples have no value in --group-column" in message
    assert "--missing" not in message
    assert not (tmp_path / "e").exists()


def test_two_spellings_of_a_group_are_warned_of(simulated, tmp_path, capsys):
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph", "subject")
    rows[0][2], rows[1][2] = "P1", "p1"
    write_rows(tmp_path / "m.tsv", "sample-id ph subject", rows)
    predictions = predictions_of(simulated, tmp_path / "p.tsv")
    text = (
        f"evaluate --predictions {predictions} --metadata {tmp_path}/m.tsv --group-column subject"
    )
    assert main([*text.split(), "--output-dir", str(tmp_path / "e")]) == 0
    assert "in 'subject' are different groups; if they are one," in capsys.readouterr().err


@pytest.mark.parametrize("cell", ["", "nan"])
def test_a_file_without_a_prediction_is_refused(simulated, tmp_path, capsys, cell):
    rows = ((*name, cell, "") for name in columns(simulated / "metadata.tsv", "sample-id"))
    predictions = write_rows(tmp_path / "p.tsv", "sample-id ph note", rows)
    assert evaluate(simulated, predictions, tmp_path / "e") == 2
    message = (
        "--predictions: none of 40 samples with a value of 'ph' has a prediction: all are "
        "empty or nan"
    )
    assert message in capsys.readouterr().err
    assert not (tmp_path / "e").exists()


def test_point_5_files_of_sample_ids_may_not_part_a_group(simulated, tmp_path, refused):
    ids = [name for (name,) in columns(simulated / "metadata.tsv", "sample-id")]
    (tmp_path / "train.txt").write_text("\n".join(ids[::2]))
    (tmp_path / "val.txt").write_text("\n".join(ids[1::2]))
    more = (
        f"--train-samples {tmp_path}/train.txt --val-samples {tmp_path}/val.txt "
        "--group-column subject"
    )
    assert "make the split with this --group-column" in refused(
        main, words(simulated, tmp_path / "rf.tsv", more)
    )


def test_point_14_baselines_of_another_split_are_refused(simulated, tmp_path, capsys):
    ids = [name for (name,) in columns(simulated / "metadata.tsv", "sample-id")]
    for name, first in (("a", 0), ("b", 1)):
        rows = ((one, "test" if at % 4 == first else "train", "") for at, one in enumerate(ids))
        write_rows(tmp_path / f"{name}.tsv", "sample-id side fold", rows)
    assert main(words(simulated, tmp_path / "rf.tsv", f"--split {tmp_path}/a.tsv")) == 0
    predictions = predictions_of(simulated, tmp_path / "p.tsv")
    baselines = f"--baselines {tmp_path}/rf.tsv"
    assert (
        evaluate(simulated, predictions, tmp_path / "e", f"{baselines} --split {tmp_path}/a.tsv")
        == 0
    )
    assert (
        evaluate(simulated, predictions, tmp_path / "f", f"{baselines} --split {tmp_path}/b.tsv")
        == 2
    )
    assert "another --split" in capsys.readouterr().err


def test_point_15_evaluate_keeps_a_target_named_like_a_derived_column(simulated, tmp_path):
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph")
    for file in ("m.tsv", "p.tsv"):
        write_rows(tmp_path / file, "sample-id bmi bmi_q4", ((name, ph, ph) for name, ph in rows))
    text = (
        f"evaluate --predictions {tmp_path}/p.tsv --metadata {tmp_path}/m.tsv --output-dir "
        f"{tmp_path}/e"
    )
    assert main(text.split()) == 0
    assert set(json.loads((tmp_path / "e" / "metrics.json").read_text())["targets"]) == {
        "bmi",
        "bmi_q4",
    }


def test_groups_in_several_folds_of_the_predictions_are_warned_of(simulated, tmp_path):
    """Two folds that part subjects: intervals over subjects do not make the predictions held
    out.
    """
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph", "subject")
    for name, whole in (("parted", False), ("whole", True)):
        folds = [
            int(group.rpartition("-")[2]) % 2 if whole else at % 2
            for at, (*_, group) in enumerate(rows)
        ]
        cells = (
            (sample, float(ph) + 0.1, fold, "")
            for (sample, ph, _), fold in zip(rows, folds, strict=True)
        )
        path = write_rows(tmp_path / f"{name}.tsv", "sample-id ph fold note", cells)
        assert evaluate(simulated, path, tmp_path / name, "--group-column subject") == 0
        report = (tmp_path / name / "report.html").read_text()
        assert ("groups of subject lie in several folds" in report) == (not whole)


def test_what_is_left_out_of_the_metrics_is_said(simulated, tmp_path):
    """A model of two of four biomes, one that predicts every other sample: metrics of the rest,
    without a word.
    """
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph", "biome")
    first, second = sorted({biome for *_, biome in rows})[:2]
    shared_biomes = sum(biome in (first, second) for *_, biome in rows)
    cells = (
        (name, ph if at % 2 else "", first, 0.7, 0.3, "") for at, (name, ph, _) in enumerate(rows)
    )
    write_rows(tmp_path / "p.tsv", f"sample-id ph biome biome={first} biome={second} note", cells)
    assert evaluate(simulated, tmp_path / "p.tsv", tmp_path / "e") == 0
    targets = json.loads((tmp_path / "e" / "metrics.json").read_text())["targets"]
    assert "20 of 40 samples have no prediction and are in no metric." in targets["ph"]["verdict"]
    unknown = f"{40 - shared_biomes} of 40 samples are of classes that the model does not know"
    assert any(one.startswith(unknown) for one in targets["biome"]["verdict"])
    page = (tmp_path / "e" / "report.html").read_text()
    assert targets["ph"]["subset"] == "unknown"
    assert "whether the samples were held out is not known" in page
    assert "Held-out metrics" not in page


@pytest.fixture(scope="module")
def without_test_subset(simulated) -> Path:
    """A run of a member that learns from training and validation samples alike, on a target of
    noise.
    """
    words = (
        f"train --table {simulated}/table.biom --metadata {simulated}/metadata.tsv "
        "--metadata-column null "
    )
    words += (
        "--rarefy-depth 200 --members presence --group-column subject --test-size 0 "
        "--validation-size 0.4 "
    )
    words += (
        "--embedding-dim 8 --attention-layers 1 --attention-heads 1 --threads 1 "
        f"--output-dir {simulated}/run"
    )
    assert main(words.split()) == 0
    return simulated / "run"


def test_validation_samples_that_members_learned_from_are_samples_of_training(
    simulated, without_test_subset, tmp_path
):
    """The report of the run predicts them by members without them; those of the saved model know
    their labels.
    """
    run = without_test_subset
    words = (
        f"evaluate --model {run} --table {simulated}/table.biom --metadata "
        f"{simulated}/metadata.tsv "
    )
    words += f"--split {run}/split.tsv --threads 1 --output-dir {tmp_path}/e"
    assert main(words.split()) == 0
    result = json.loads((tmp_path / "e" / "metrics.json").read_text())["targets"]["null"]
    assert result["subset"] == "training"
    assert result["tests"] == {}
    page = (tmp_path / "e" / "report.html").read_text()
    assert "Metrics of samples that training has seen" in page
    assert "Held-out metrics" not in page
    assert "--test-size or --cv of aam train holds samples out" in re.sub("</?span[^>]*>", "", page)
    assert "values of subject" in page, (
        "groups are those of the model, unless another column is named"
    )
    words = (
        f"evaluate --predictions {run}/predictions.tsv --metadata {simulated}/metadata.tsv "
        f"--output-dir {tmp_path}/p"
    )
    assert main(words.split()) == 0
    assert "values of subject" in (tmp_path / "p" / "report.html").read_text()


def test_samples_that_pretraining_saw_are_said_to_be(without_test_subset):
    saved = load_model(without_test_subset / "model", torch.device("cpu"))
    first, second = saved.notes["seen_samples"][:2]
    pretrained = dataclasses.replace(saved, notes={**saved.notes, "labelled_samples": [first]})
    assert _saw_unlabelled([pretrained], [second])
    assert not _saw_unlabelled([pretrained], [first, "new"])
    assert not _saw_unlabelled([saved], [first, second])


def test_predictions_of_another_table_are_counted(simulated, tmp_path):
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph")
    renamed = ((name if at < 10 else f"other-{at}", ph, "") for at, (name, ph) in enumerate(rows))
    write_rows(tmp_path / "p.tsv", "sample-id ph note", renamed)
    assert evaluate(simulated, tmp_path / "p.tsv", tmp_path / "e") == 0
    page = (tmp_path / "e" / "report.html").read_text()
    assert "30 of 40 predicted samples are in no metric" in page


def test_new_samples_stand_beside_what_guessing_would_be_in_training(simulated, tmp_path):
    """Twelve samples are called otherwise, as if they were new; of a number and of classes."""
    words = (
        f"train --table {simulated}/table.biom --metadata {simulated}/metadata.tsv "
        "--metadata-column ph biome "
    )
    words += (
        "--rarefy-depth 200 --members presence --no-rf-baseline --test-size 0.3 "
        "--validation-size 0 "
    )
    words += "--threads 1 --output-dir"
    assert main([*words.split(), str(tmp_path / "run")]) == 0
    split = read_split(tmp_path / "run" / "split.tsv")
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph", "biome")
    held_out = [row for row in rows if row[0] in split.ids("test")]
    write_rows(tmp_path / "new.tsv", "sample-id ph biome", held_out)
    words = (
        f"evaluate --model {tmp_path}/run/model --table {simulated}/table.biom --metadata "
        f"{tmp_path}/new.tsv "
    )
    assert main([*words.split(), "--threads", "1", "--output-dir", str(tmp_path / "e")]) == 0
    targets = json.loads((tmp_path / "e" / "metrics.json").read_text())["targets"]
    trained = [row for row in rows if row[0] in split.ids("train")]
    median = np.median([float(ph) for _, ph, _ in trained])
    error = np.abs([float(ph) - median for _, ph, _ in held_out]).mean()
    assert targets["ph"]["baselines"][MEDIAN]["mae"] == pytest.approx(error)
    majority = Counter(biome for *_, biome in trained).most_common(1)[0][0]
    share = np.mean([biome == majority for *_, biome in held_out])
    assert targets["biome"]["baselines"][MAJORITY]["accuracy"] == pytest.approx(share)
