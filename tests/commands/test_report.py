"""`aam report`: runs side by side, compared in pairs where the truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aam.cli.main import main

IDS = [f"s{at}" for at in range(40)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one target, the second one with larger errors, and the metadata."""
    folder = tmp_path_factory.mktemp("runs")
    draw = np.random.default_rng(0)
    truth = draw.normal(50, 10, 40)
    lines = [
        f"{name}\t{value}\t{at // 4}"
        for at, (name, value) in enumerate(zip(IDS, truth, strict=True))
    ]
    (folder / "metadata.tsv").write_text("\n".join(["sample-id\tage\tsubject", *lines]) + "\n")
    for name, spread in (("good", 1), ("bad", 20)):
        run = folder / name
        run.mkdir()
        predicted = truth + draw.normal(0, spread, 40)
        rows = [f"{sample}\t{value}\ttest\t" for sample, value in zip(IDS, predicted, strict=True)]
        (run / "predictions.tsv").write_text(
            "\n".join(["sample-id\tage\tsubset\tnote", *rows]) + "\n"
        )
        mae = {"value": float(np.abs(predicted - truth).mean()), "low": 0.5, "high": None}
        content = {
            "targets": {"age": {"subset": "held-out", "metrics": {"mae": mae}, "verdict": [name]}},
            "tables": {},
        }
        (run / "metrics.json").write_text(json.dumps(content))
    return folder


def call(*words: object) -> int:
    return main(["report", *map(str, words)])


def test_runs_are_compared_in_pairs(runs, capsys):
    page = runs / "pairs.html"
    given = ("--metadata", runs / "metadata.tsv", "--group-column", "subject")
    assert call(runs / "good", runs / "bad", *given, "--output", page) == 0
    written = capsys.readouterr().err
    assert "age: good does better than bad (MAE 0." in written
    assert "on 40 samples; p 0.00" in written
    text = page.read_text()
    assert "Paired differences to good" in text
    assert call(runs / "good", runs / "bad", *given, "--output", page) == 2, (
        "nothing is replaced unasked"
    )
    assert call(runs / "bad", runs / "good", *given, "--output", page, "--overwrite") == 0
    assert "age: good does better than bad" in capsys.readouterr().err


def test_without_truth_runs_stand_side_by_side_only(runs, capsys):
    assert call(runs / "good", runs / "bad", "--output", runs / "alone.html") == 0
    assert "not compared in pairs: --metadata names the file" in capsys.readouterr().err
    text = (runs / "alone.html").read_text()
    assert "MAE</abbr> of each run" in text
    assert "Paired" not in text


def test_metadata_of_other_samples_are_refused(runs, tmp_path, capsys):
    (tmp_path / "other.tsv").write_text("sample-id\tage\nx1\t3\n")
    assert (
        call(runs / "good", "--metadata", tmp_path / "other.tsv", "--output", tmp_path / "x.html")
        == 2
    )
    assert "other.tsv has none of the 40 samples that" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_every_problem_is_named_at_once(runs, refused):
    (runs / "empty").mkdir(exist_ok=True)
    (runs / "empty2").mkdir(exist_ok=True)
    problems = refused(call, runs / "empty", runs / "empty2", "--output", runs / "x.html")
    assert problems.count("no metrics.json; expected the --output-dir of aam train") == 2
    assert "the same run twice" in refused(
        call, runs / "good", runs / "good", "--output", runs / "x.html"
    )
    problems = refused(call, runs / "good", runs / "nothing", "--output", runs / "x.txt")
    assert "nothing: no such file or folder" in problems
    assert "expected .html" in problems
    assert not (runs / "x.html").exists()


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"targets": {"age": 3}}',
        '{"targets": {"age": {"metrics": {"mae": "x"}}}}',
        '{"tables": {"a": [1]}}',
    ],
)
def test_metrics_that_are_none_are_refused(runs, tmp_path, capsys, content):
    (tmp_path / "metrics.json").write_text(content)
    assert call(runs / "good", tmp_path, "--output", tmp_path / "x.html") == 2
    assert "metrics.json: not the metrics of a run" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize(
    "changed", [{"config": {"data": 3}}, {"inputs": {"metadata": 3}}, {"inputs": {"metadata": {}}}]
)
def test_a_record_that_was_edited_gives_what_it_still_says(runs, tmp_path, changed):
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        for file in (runs / name).iterdir():
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
        (tmp_path / name / "run.json").write_text(
            json.dumps({"config": {}, "inputs": {}, **changed})
        )
    assert call(tmp_path / "good", tmp_path / "bad", "--output", tmp_path / "page.html") == 0


def test_classes_are_shown_without_predictions_and_beside_numbers(runs, tmp_path):
    classes = {
        "targets": {"age": {"subset": "held-out", "metrics": {"accuracy": {"value": 0.5}}}},
        "tables": {},
    }
    (tmp_path / "metrics.json").write_text(json.dumps(classes))
    assert (
        call(
            tmp_path,
            runs / "good",
            "--metadata",
            runs / "metadata.tsv",
            "--output",
            tmp_path / "x.html",
        )
        == 0
    )
    assert "accuracy</abbr> of each run" in (tmp_path / "x.html").read_text()


def test_only_samples_of_both_runs_are_compared(runs, tmp_path, capsys):
    part = tmp_path / "part"
    part.mkdir()
    lines = (runs / "bad" / "predictions.tsv").read_text().splitlines(keepends=True)
    (part / "predictions.tsv").write_text("".join(lines[:25]))
    (part / "metrics.json").write_text((runs / "bad" / "metrics.json").read_text())
    given = (
        "--metadata",
        runs / "metadata.tsv",
        "--group-column",
        "subject",
        "--output",
        tmp_path / "x.html",
    )
    assert call(runs / "good", part, *given) == 0
    assert "on 24 samples" in capsys.readouterr().err


def two_classes(
    folder: Path, score: np.ndarray, fold: np.ndarray, subset: str = "held-out"
) -> Path:
    """A run of two classes, which alternate, with the probability of the second one."""
    folder.mkdir()
    cells = zip(IDS, np.round(score, 6).tolist(), fold.tolist(), strict=True)
    rows = [
        f"{name}\t{'yes' if p > 0.5 else 'no'}\t{1 - p:.6f}\t{p}\t{k}\ttest\t"
        for name, p, k in cells
    ]
    header = "sample-id\tcase\tcase=no\tcase=yes\tfold\tsubset\tnote"
    (folder / "predictions.tsv").write_text("\n".join([header, *rows]) + "\n")
    area = {"value": 1.0, "low": None, "high": None}
    content = {
        "targets": {"case": {"subset": subset, "metrics": {"auroc": area}, "verdict": []}},
        "tables": {},
    }
    (folder / "metrics.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Metadata of two classes, which alternate."""
    path = tmp_path_factory.mktemp("case") / "metadata.tsv"
    lines = [
        f"{name}\t{('no', 'yes')[at % 2]}\t{at // 4 if at else ''}" for at, name in enumerate(IDS)
    ]
    path.write_text("\n".join(["sample-id\tcase\tsubject", *lines]) + "\n")
    return path


def test_runs_of_cross_validations_are_ranked_inside_the_folds_of_both(case, tmp_path, capsys):
    """In each of two folds the first run is perfect, with an offset of its own that pooling would
    count as errors.
    """
    place = np.arange(40)
    fold = place // 20
    noise = np.random.default_rng(0).random(40)
    first = two_classes(
        tmp_path / "first", 0.1 + 0.6 * fold + 0.2 * (place % 2) + 0.01 * noise, fold
    )
    second = two_classes(tmp_path / "second", 0.2 + 0.6 * noise, fold)
    given = ("--metadata", case, "--output", tmp_path / "x.html")
    assert call(first, second, *given) == 0
    assert "AUROC 1.00 against" in capsys.readouterr().err


def test_runs_of_cross_validations_share_samples_and_p_counts_for_less(case, tmp_path, capsys):
    """Six folds of two groups: one difference in each, which folds make less sure."""
    place = np.arange(40)
    scores = (
        0.5 + 0.3 * (2 * (place % 2) - 1),
        0.5 + 0.1 * np.random.default_rng(1).normal(size=40),
    )
    p = {}
    for name, fold in (("fixed", np.zeros(40, int)), ("folds", place // 8)):
        runs = [
            two_classes(tmp_path / f"{name}{at}", score, fold) for at, score in enumerate(scores)
        ]
        assert call(*runs, "--metadata", case, "--output", tmp_path / f"{name}.html") == 0
        p[name] = float(capsys.readouterr().err.split("; p ")[1].split(")")[0])
    assert p["folds"] > p["fixed"]


def test_a_run_of_other_classes_is_not_compared_and_named(case, tmp_path, capsys):
    random = np.random.default_rng(0)
    runs = [
        two_classes(tmp_path / name, random.random(40), np.zeros(40, int))
        for name in ("first", "second")
    ]
    path = runs[1] / "predictions.tsv"
    path.write_text(path.read_text().replace("yes", "maybe"))
    assert call(*runs, "--metadata", case, "--output", tmp_path / "x.html") == 0
    assert "second is not compared with first: it has other classes" in capsys.readouterr().err


def test_samples_that_training_has_seen_are_compared_with_nothing(case, tmp_path, capsys):
    place = np.arange(40)
    fold = np.zeros(40, int)
    seen = two_classes(tmp_path / "seen", 0.3 + 0.4 * (place % 2), fold, "training")
    held_out = two_classes(tmp_path / "fair", np.random.default_rng(0).random(40), fold)
    for runs in ((seen, held_out), (held_out, seen)):
        assert call(*runs, "--metadata", case, "--output", tmp_path / f"{runs[0].name}.html") == 0
        written = capsys.readouterr().err
        assert "seen is compared with nothing: training has seen some of its samples" in written
        assert "does better" not in written


def test_samples_without_a_group_do_not_count_as_one_group(case, tmp_path, capsys):
    fold = np.zeros(40, int)
    runs = [two_classes(tmp_path / name, np.linspace(0.1, 0.9, 40), fold) for name in "ab"]
    assert (
        call(
            *runs, "--metadata", case, "--group-column", "subject", "--output", tmp_path / "x.html"
        )
        == 2
    )
    assert "1 of 40 samples have no value in --group-column subject" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
