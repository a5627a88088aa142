"""`aam evaluate`, from the command line to the files that it writes."""

from __future__ import annotations

import csv
import dataclasses
import html
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binomtest

from aam.api.apply import saw_unlabelled
from aam.cli import main
from aam.data.splits import read_split
from aam.evaluate.comparison import MAJORITY, MEDIAN, OWN_MEDIAN
from aam.predict.saved_model import load_model


@pytest.fixture(scope="module")
def simulated(simulate_study) -> Path:
    return simulate_study(samples=40, asvs=60, depth=900)


def write_rows(path: Path, header: str, rows: Iterable[Iterable[object]]) -> Path:
    """Write a table of tab-separated values; the names of its columns stand between spaces."""
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [header.split(), *rows]))
    return path


def columns(path: Path, *names: str) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [[row[name] for name in names] for row in csv.DictReader(file, dialect="excel-tab")]


def predictions_of(simulated: Path, path: Path, subset: str = "new") -> Path:
    """A file of predictions that are right to within 0.1."""
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph")
    header = "sample-id ph fold subset note"
    return write_rows(path, header, ((name, float(ph) + 0.1, "", subset, "") for name, ph in rows))


def evaluate(simulated: Path, predictions: Path, output: Path, more: str = "") -> int:
    text = (
        f"evaluate --predictions {predictions} --metadata {simulated}/metadata.tsv "
        f"--output-dir {output} {more}"
    )
    return main(text.split())


def judged(simulated: Path, predictions: Path, output: Path, more: str = "") -> tuple[Any, str]:
    """The targets of metrics.json, and the page."""
    assert evaluate(simulated, predictions, output, more) == 0
    return read(output)


def read(output: Path) -> tuple[Any, str]:
    targets = json.loads((output / "metrics.json").read_text())["targets"]
    return targets, (output / "report.html").read_text()


@pytest.mark.parametrize(
    ("subset", "kind", "title"),
    [
        ("validation", "validation", "Validation metrics"),
        ("test", "held-out", "Held-out metrics"),
        ("new", "held-out", "Held-out metrics"),
        ("train", "training", "Metrics of samples seen in training"),
        ("seen-group", "seen-group", "Metrics of groups seen in training"),
    ],
)
def test_the_title_says_what_the_samples_were(simulated, tmp_path, subset, kind, title):
    predictions = predictions_of(simulated, tmp_path / "p.tsv", subset)
    targets, page = judged(simulated, predictions, tmp_path / "e")
    assert targets["ph"]["subset"] == kind
    assert title in page
    assert ("Held-out metrics" in page) == (kind == "held-out")


def test_intervals_are_not_scored_on_samples_that_fitted_them(simulated, tmp_path):
    subsets = ["calibration"] * 30 + ["new"] * 10
    cells = zip(columns(simulated / "metadata.tsv", "sample-id", "ph"), subsets, strict=True)
    rows = (
        (name, ph, float(ph) - 1, float(ph) + 1, "", subset, "") for (name, ph), subset in cells
    )
    path = write_rows(tmp_path / "p.tsv", "sample-id ph ph.low ph.high fold subset note", rows)
    targets, page = judged(simulated, path, tmp_path / "e")
    assert "no interval is scored on 30 of 40 samples" in page
    ten_of_ten = binomtest(10, 10).proportion_ci().low
    assert targets["ph"]["intervals"]["coverage"]["low"] == pytest.approx(ten_of_ten)


def test_samples_without_a_group_are_groups_of_their_own(simulated, tmp_path, capsys):
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph", "subject")
    subjects = {subject for _, _, subject in rows[3:]}
    rows = [(name, ph, subject if at > 2 else "") for at, (name, ph, subject) in enumerate(rows)]
    metadata = write_rows(tmp_path / "m.tsv", "sample-id ph subject", rows)
    predictions = predictions_of(simulated, tmp_path / "p.tsv")
    text = f"evaluate --predictions {predictions} --metadata {metadata} --group-column subject"
    assert main([*text.split(), "--output-dir", str(tmp_path / "e")]) == 0
    warning = "3 of 40 samples have no value in --group-column subject; each counts as a group of"
    text = capsys.readouterr().err
    assert text.count(warning) == 1
    assert "predictions have no reads, so columns that may name donors are not looked for" in text
    page = (tmp_path / "e" / "report.html").read_text()
    assert f"of {3 + len(subjects)} subject." in page


def test_a_file_without_a_prediction_is_refused(simulated, tmp_path, capsys):
    names = columns(simulated / "metadata.tsv", "sample-id")
    rows = ((*name, "", "", "", "alien" if at > 2 else "") for at, name in enumerate(names))
    predictions = write_rows(tmp_path / "p.tsv", "sample-id ph fold subset note", rows)
    assert evaluate(simulated, predictions, tmp_path / "e") == 2
    text = capsys.readouterr().err
    assert "--predictions: no prediction of 40 samples with a value of every target" in text
    assert "(note of 37: alien)" in text
    assert not (tmp_path / "e").exists()


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
            (sample, float(ph) + 0.1, fold, "test", "")
            for (sample, ph, _), fold in zip(rows, folds, strict=True)
        )
        path = write_rows(tmp_path / f"{name}.tsv", "sample-id ph fold subset note", cells)
        _, page = judged(simulated, path, tmp_path / name, "--group-column subject")
        assert ("groups of subject lie in several folds" in page) == (not whole)


def test_folds_are_those_of_the_file_and_no_file_beside_it_says_more(simulated, tmp_path):
    """Two folds whose models rank their samples rightly, the second with lower probabilities."""
    shares = {("yes", 0): 0.9, ("no", 0): 0.2, ("yes", 1): 0.1, ("no", 1): 0.0}
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph")
    truth = [(name, "yes" if float(ph) > 6.5 else "no") for name, ph in rows]
    write_rows(tmp_path / "m.tsv", "sample-id acid", truth)
    record = {"inputs": {}, "config": {"group_column": "acid", "data": {"cv": None}}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    words = f"evaluate --predictions {tmp_path}/p.tsv --metadata {tmp_path}/m.tsv --output-dir"
    auroc = list[float]()
    for at, is_written in enumerate((True, False)):
        cells = []
        for place, (name, acid) in enumerate(truth):
            share = shares[acid, place % 2]
            fold = place % 2 if is_written else ""
            label = "yes" if share > 0.5 else "no"
            cells.append((name, label, share, 1 - share, fold, "test", ""))
        write_rows(tmp_path / "p.tsv", "sample-id acid acid=yes acid=no fold subset note", cells)
        assert main([*words.split(), str(tmp_path / f"e{at}")]) == 0
        target = read(tmp_path / f"e{at}")[0]["acid"]
        assert "No group column is named" in " ".join(target["verdict"])
        auroc.append(target["metrics"]["auroc"]["value"])
    assert auroc[0] == 1 > auroc[1]


def test_what_is_left_out_of_the_metrics_is_said(simulated, tmp_path):
    """A model of two of four biomes, one that predicts every other sample: metrics of the rest,
    without a word.
    """
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph", "biome")
    first, second = sorted({biome for *_, biome in rows})[:2]
    shared_biomes = sum(biome in (first, second) for *_, biome in rows)
    cells = (
        (name, ph if at % 2 else "", first, 0.7, 0.3, "", "new", "")
        for at, (name, ph, _) in enumerate(rows)
    )
    header = f"sample-id ph biome biome={first} biome={second} fold subset note"
    write_rows(tmp_path / "p.tsv", header, cells)
    targets, page = judged(simulated, tmp_path / "p.tsv", tmp_path / "e")
    unscored = "20 of 40 samples with a value are in no metric: "
    assert any(one.startswith(unscored) for one in targets["ph"]["verdict"])
    unknown = f"{40 - shared_biomes} of 40 samples with a value are in no metric: "
    assert any(one.startswith(unknown) for one in targets["biome"]["verdict"])
    assert "samples of other classes are in no metric" in page


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


def test_samples_of_training_are_called_so(simulated, without_test_subset, tmp_path, refused):
    run = without_test_subset
    inputs = f"--table {simulated}/table.biom --metadata {simulated}/metadata.tsv --threads 1"
    words = f"evaluate --model {run} {inputs} --output-dir {tmp_path}/e".split()
    assert "holds no sample out" in refused(main, [*words, "--split", str(run / "split.tsv")])
    assert main(words) == 0
    targets, page = read(tmp_path / "e")
    assert targets["null"]["subset"] == "training"
    assert targets["null"]["tests"] == {}
    assert "Metrics of samples seen in training" in page
    assert "Held-out metrics" not in page


def test_new_samples_of_groups_of_training_are_not_called_held_out(simulated, tmp_path, capsys):
    """The model learns from all but twelve samples, which are evaluated; of some of these all
    samples of the subject are new.
    """
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph", "subject")
    new = rows[::4]
    entirely_new = new[0][2]
    new += [row for row in rows if row[2] == entirely_new and row not in new]
    write_rows(tmp_path / "new.tsv", "sample-id ph subject", new)
    (tmp_path / "excluded.txt").write_text("sample-id\n" + "".join(f"{row[0]}\n" for row in new))
    inputs = f"--table {simulated}/table.biom --threads 1 --output-dir"
    words = (
        f"train --metadata {simulated}/metadata.tsv --metadata-column ph --group-column subject "
        "--rarefy-depth 200 --members presence --test-size 0 --validation-size 0 "
        f"--exclude {tmp_path}/excluded.txt {inputs} {tmp_path}/run"
    )
    assert main(words.split()) == 0
    seen = [row for row in new if row[2] != entirely_new]
    words = f"evaluate --model {tmp_path}/run --metadata {tmp_path}/new.tsv {inputs}"
    assert main([*words.split(), str(tmp_path / "e")]) == 0
    targets, page = read(tmp_path / "e")
    assert targets["ph"]["subset"] == "seen-group"
    assert f"among them {len(seen)} samples of groups seen in training" in page
    assert "note: Training has seen other samples of these groups" in capsys.readouterr().err
    assert "Metrics of groups seen in training" in page
    assert "held-out samples" not in page
    # Samples of the other subject, and all samples by another column, are held out.
    (tmp_path / "seen.txt").write_text("sample-id\n" + "".join(f"{row[0]}\n" for row in seen))
    more = {"fewer": f"--exclude {tmp_path}/seen.txt", "column": "--group-column ph"}
    for folder, option in more.items():
        assert main([*words.split(), str(tmp_path / folder), *option.split()]) == 0
        assert read(tmp_path / folder)[0]["ph"]["subset"] == "held-out"


def test_samples_that_pretraining_saw_are_said_to_be(without_test_subset):
    saved = load_model(without_test_subset / "model", torch.device("cpu"))
    first, second = saved.notes.seen_samples[:2]
    notes = dataclasses.replace(saved.notes, labelled_samples=(first,))
    pretrained = dataclasses.replace(saved, notes=notes)
    assert saw_unlabelled([pretrained], [second])
    assert not saw_unlabelled([pretrained], [first, "new"])
    assert not saw_unlabelled([saved], [first, second])


def test_predictions_of_another_table_are_counted(simulated, tmp_path):
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph")
    renamed = (
        (name if at < 10 else f"other-{at}", ph, "", "new", "")
        for at, (name, ph) in enumerate(rows)
    )
    write_rows(tmp_path / "p.tsv", "sample-id ph fold subset note", renamed)
    _, page = judged(simulated, tmp_path / "p.tsv", tmp_path / "e")
    assert "30 of 40 predicted samples are in no metric" in page


def test_new_samples_stand_beside_what_guessing_would_be_in_training(simulated, tmp_path):
    """Twelve samples are called otherwise, as if they were new; of a number and of classes."""
    words = (
        f"train --table {simulated}/table.biom --metadata {simulated}/metadata.tsv "
        "--metadata-column ph biome "
    )
    words += "--rarefy-depth 200 --members presence --test-size 0.3 --validation-size 0 "
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
    targets, _ = read(tmp_path / "e")
    trained = [row for row in rows if row[0] in split.ids("train")]
    median = np.median([float(ph) for _, ph, _ in trained])
    error = np.abs([float(ph) - median for _, ph, _ in held_out]).mean()
    assert targets["ph"]["baselines"][MEDIAN]["mae"] == pytest.approx(error)
    majority = Counter(biome for *_, biome in trained).most_common(1)[0][0]
    share = np.mean([biome == majority for *_, biome in held_out])
    assert targets["biome"]["baselines"][MAJORITY]["accuracy"] == pytest.approx(share)


def test_a_model_worse_than_the_median_of_its_new_cohort_is_not_better_than_guessing(
    simulated, tmp_path
):
    """Values of another cohort are offset: the training median errs more than the model does."""
    rows = [
        (name, float(ph) + 30, "", "new", "")
        for name, ph in columns(simulated / "metadata.tsv", "sample-id", "ph")
    ]
    path = write_rows(tmp_path / "p.tsv", "sample-id ph fold subset note", rows)
    targets, page = judged(simulated, path, tmp_path / "e")
    result = targets["ph"]
    assert result["baselines"][OWN_MEDIAN]["mae"] < result["metrics"]["mae"]["value"]
    assert "Worse than guessing" in page
    assert "Better than guessing" not in page


def classes_of(tmp_path: Path, *labels: str) -> list[str]:
    """The words of an evaluation of 12 samples of pond and reef, called `labels` in metadata."""
    rows = [
        (f"s{row}", ("pond", "reef")[row % 2], 1 - row % 2, row % 2, "", "new", "")
        for row in range(12)
    ]
    header = "sample-id water water=pond water=reef fold subset note"
    predictions = write_rows(tmp_path / "p.tsv", header, rows)
    truth = [(f"s{row}", labels[row % len(labels)], row % 3) for row in range(12)]
    metadata = write_rows(tmp_path / "m.tsv", "sample-id water depth", truth)
    words = f"evaluate --predictions {predictions} --metadata {metadata} --output-dir"
    return [*words.split(), str(tmp_path / "e")]


@pytest.mark.parametrize(
    "labels", [("Pond", "Reef"), ("POND", "POND "), ("0", "1"), ("lake", "sea")]
)
def test_classes_that_are_in_no_prediction_are_refused(tmp_path, refused, labels):
    message = refused(main, classes_of(tmp_path, *labels))
    listed = ", ".join(repr(label) for label in sorted({label.strip() for label in labels}))
    assert f"m.tsv has {listed} in 'water', predicted are 'pond', 'reef'; spell" in message
    assert not (tmp_path / "e").exists()


def test_classes_that_no_model_predicts_are_named(tmp_path):
    assert main(classes_of(tmp_path, "pond", "reef", "pond", "Reef", "lake", "reef")) == 0
    page = html.unescape(read(tmp_path / "e")[1])
    assert "m.tsv has 'Reef', 'lake' in 'water', predicted are 'pond', 'reef'" in page


def test_numbers_and_ids_that_do_not_match_are_named(tmp_path, refused):
    words = classes_of(tmp_path, "pond", "reef")
    text = (tmp_path / "m.tsv").read_text()
    (tmp_path / "m.tsv").write_text(text.replace("\ns", "\nS"))
    assert "12 of 12 match when you ignore case" in refused(main, words)
    (tmp_path / "m.tsv").write_text(text)
    numbers = [(f"s{row}", row + 0.5, "", "new", "") for row in range(12)]
    write_rows(tmp_path / "p.tsv", "sample-id water fold subset note", numbers)
    assert "column 'water' has 12 of 12 values that are no numbers of at most 1e+20" in refused(
        main, words
    )
    write_rows(tmp_path / "p.tsv", "sample-id Water fold subset note", numbers)
    assert "no column 'Water'. Columns: " in refused(main, words)


@pytest.mark.parametrize(
    "division", ["--test-size 0.3", pytest.param("--cv 3", marks=pytest.mark.slow)]
)
def test_train_and_evaluate_judge_the_same_samples_alike(
    simulated, tmp_path, monkeypatch, division
):
    """They gave two verdicts on nine samples, and other baselines; some samples have no target."""
    monkeypatch.setattr("aam.predict.baselines.MOST_BASELINE_ROWS", 1_500)
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph", "subject", "biome")
    rows = [(name, "" if at < 3 else ph, *more) for at, (name, ph, *more) in enumerate(rows)]
    metadata = write_rows(tmp_path / "m.tsv", "sample-id ph subject biome", rows)
    inputs = f"--table {simulated}/table.biom --metadata {metadata} --threads 1"
    words = f"train {inputs} --metadata-column ph --missing drop --group-column subject "
    words += f"--batch-column biome --rarefy-depth 200 {division} --output-dir {tmp_path}/run"
    assert main(words.split()) == 0
    run = tmp_path / "run"
    trained = read(run)[0]["ph"]
    if division.startswith("--cv"):
        words = f"evaluate --predictions {run}/predictions.tsv --metadata {metadata}"
        words += " --group-column subject --batch-column biome"
        same = ("metrics", "folds", "parts")
    else:
        words = f"evaluate --model {run} {inputs} --split {run}/split.tsv"
        same = ("metrics", "folds", "parts", "baselines", "tests")
    assert main([*words.split(), "--output-dir", str(tmp_path / "e")]) == 0
    judged = read(tmp_path / "e")[0]["ph"]
    assert judged["subset"] == trained["subset"]
    for part in same:
        # The file has seven digits.
        numbers = (pd.json_normalize(record[part]).T[0] for record in (judged, trained))
        pd.testing.assert_series_equal(*numbers, rtol=1e-4, check_dtype=False)
    if "tests" in same:
        assert judged["verdict"] == trained["verdict"]


def test_a_mixture_of_seen_and_held_out_samples_is_counted(simulated, tmp_path):
    rows = columns(simulated / "metadata.tsv", "sample-id", "ph")
    subsets = ["train"] * 27 + ["new"] * 9 + [""] * 4
    cells = (
        (name, ph if subset else "", "", subset, "" if subset else "few reads")
        for (name, ph), subset in zip(rows, subsets, strict=True)
    )
    path = write_rows(tmp_path / "p.tsv", "sample-id ph fold subset note", cells)
    _, page = judged(simulated, path, tmp_path / "e")
    assert "36 samples, among them 27 samples seen in training." in page


@pytest.mark.slow
def test_samples_of_a_held_out_study_are_predicted_as_in_training(simulated, tmp_path, refused):
    """Training centres the samples of a study that was held out whole; evaluate did not."""
    inputs = f"--table {simulated}/table.biom --metadata {simulated}/metadata.tsv --threads 1"
    words = f"train {inputs} --metadata-column ph --study-column biome --rarefy-depth 200 "
    run = tmp_path / "run"
    assert main([*words.split(), "--output-dir", str(run)]) == 0
    trained = {name: row for name, *row in columns(run / "predictions.tsv", "sample-id", "ph")}
    for fold in sorted(run.glob("fold-*"))[:2]:
        words = f"evaluate --model {fold} {inputs} --split {fold}/split.tsv"
        assert main([*words.split(), "--output-dir", str(tmp_path / fold.name)]) == 0
        path = tmp_path / fold.name / "predictions.tsv"
        for name, *row in columns(path, "sample-id", "ph"):
            assert row == trained[name]
    other = (run / "fold-gut" / "split.tsv").read_text().replace("sample-0", "other-0")
    other = other.replace("sample-1", "x").replace("sample-2", "y").replace("sample-3", "z")
    (tmp_path / "split.tsv").write_text(other.replace("sample-4", "w"))
    words = f"evaluate --model {run} {inputs} --split {tmp_path}/split.tsv --output-dir {run}/e"
    message = refused(main, words.split())
    assert "--split: none of its 40 samples is in the table" in message
