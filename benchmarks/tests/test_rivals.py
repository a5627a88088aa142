"""Other programs are compared on the folds of a run, and one that cannot run says why."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from aam.config import DataConfig, FineTuneConfig, TargetConfig
from aam.data.targets import TargetSpec
from aam.evaluate.comparison import Baseline, compare_with_baselines
from aam.evaluate.predictions import make_predictions, write_predictions
from aam.options import RunConfig, to_dict
from aam.predict.baselines import TargetData
from aam.predict.estimator import Samples
from aam.predict.out_of_fold import Fold
from benchmarks.config import RivalsConfig
from benchmarks.rivals import (
    DEBIAS,
    GENEICL,
    LASSO,
    RIVALS,
    LogShares,
    compare_with_rivals,
    comparison_row,
    environment,
    in_rows_of,
    lasso_predictions,
    last_line,
    line_of,
    load_run,
    rival_predictions,
)

ROWS, FEATURES = 60, 12


def make_task(classes: int, studies: bool = False) -> TargetData:
    """A target that the first feature gives away, in two folds; the last feature is rare."""
    random = np.random.default_rng(5)
    counts = random.integers(50, 90, (ROWS, FEATURES))
    truth = np.arange(ROWS) % max(classes, 2)
    counts[:, 0] += 400 * truth
    counts[:, -1] = 0
    first, second = np.array_split(np.arange(ROWS), 2)
    names = np.repeat(["north", "south"], ROWS // 2)
    return TargetData(
        truth=truth if classes else truth * 3.5,
        labels=tuple("abcdefghijkl"[:classes]),
        folds=[Fold(first, second), Fold(second, first)],
        depth=counts.sum(axis=1),
        richness=(counts > 0).sum(axis=1),
        studies=names if studies else None,
        samples=Samples.of(counts),
    )


def test_log_shares_are_filtered_and_standardized_by_training_samples():
    counts = np.array([[999, 1, 0, 0], [500, 498, 2, 0], [700, 299, 0, 1]] * 4, float)
    counts[0] = [9995, 5, 0, 0]
    values = LogShares().fit(counts)
    assert values.columns_.tolist() == [0, 1, 2, 3]
    # The largest share of the second feature is 0.0005.
    assert LogShares().fit(np.array([[9999, 1], [9995, 5]], float)).columns_.tolist() == [0]
    logs = np.log10(counts / counts.sum(axis=1, keepdims=True) + 1e-6)
    added = np.quantile(logs.std(axis=0, ddof=1), 0.1)
    expected = (logs - logs.mean(axis=0)) / (logs.std(axis=0, ddof=1) + added)
    np.testing.assert_allclose(values.transform(counts), expected)
    # Shares, not reads: other depths change nothing.
    np.testing.assert_allclose(values.transform(counts * 3), expected)


def test_the_lasso_finds_the_feature_that_gives_a_target_away():
    pytest.importorskip("sklearn", minversion="1.8")
    of_classes = lasso_predictions(make_task(2))
    assert ((of_classes[:, 1] > 0.5) == make_task(2).truth).all()
    np.testing.assert_allclose(of_classes.sum(axis=1), 1)
    of_numbers = lasso_predictions(make_task(0))
    assert np.abs(of_numbers - make_task(0).truth).mean() < 0.5


@pytest.mark.parametrize(
    ("name", "task", "reason"),
    [
        (LASSO, make_task(3), "tells 2 classes apart, of 3"),
        (GENEICL, make_task(11), "tells 10 classes apart, of 11"),
        (DEBIAS, make_task(2), "holds out no whole study"),
        (DEBIAS, make_task(0, studies=True), "the target has numbers"),
    ],
)
def test_a_program_that_does_not_suit_a_task_is_not_run(name, task, reason):
    assert reason in rival_predictions(name, task, Path("no-python"))


def make_environment(folder: Path, name: str, python: str) -> None:
    """An environment that counts as installed, with this program as its Python."""
    place = folder / name
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").write_text(f"#!/bin/sh\n{python}\n")
    (place / "bin" / "python").chmod(0o755)
    packages = RIVALS[name].package, *RIVALS[name].requirements
    (place / "requirements.txt").write_text("\n".join(packages))


def test_a_program_that_fails_has_a_reason(tmp_path):
    make_environment(tmp_path, GENEICL, f'exec {sys.executable} -S "$@"')
    python = environment(GENEICL, tmp_path)
    assert "No module named 'numpy'" in rival_predictions(GENEICL, make_task(2), python)
    make_environment(tmp_path, DEBIAS, "kill -9 $$")
    python = environment(DEBIAS, tmp_path)
    failure = rival_predictions(DEBIAS, make_task(2, studies=True), python)
    assert failure == "its exit status is -9"


def test_a_program_that_cannot_be_installed_has_a_reason(tmp_path):
    # The folder of its environment is a file.
    (tmp_path / GENEICL).write_text("")
    reason = environment(GENEICL, tmp_path)
    assert reason.startswith("venv: ")
    assert GENEICL in reason
    assert rival_predictions(GENEICL, make_task(0), reason) == reason
    assert "downloads" in environment("TabPFN", tmp_path)
    assert environment(LASSO, tmp_path) == Path(sys.executable)


def test_the_last_line_of_a_message_is_its_reason():
    assert last_line("Traceback:\n  File\nValueError: 11 classes\n\n") == "ValueError: 11 classes"
    assert last_line("\n \n") == ""


@pytest.fixture(scope="module")
def run(simulate_study, tmp_path_factory) -> Path:
    """The options and predictions of a run without its models: the truth, half a unit off."""
    study, folder = simulate_study(samples=50, depth=3000), tmp_path_factory.mktemp("runs") / "ph"
    folder.mkdir()
    data = DataConfig(
        table=study / "table.biom",
        metadata=study / "metadata.tsv",
        group_column="subject",
        cv="fold",
        rarefy_depth=300,
        missing="drop",
    )
    targets = TargetConfig(metadata_column=("ph",))
    config = FineTuneConfig(data, targets, runtime=RunConfig(output_dir=folder, device="cpu"))
    (folder / "run.json").write_text(json.dumps({"config": to_dict(config)}))
    metadata = pd.read_csv(study / "metadata.tsv", sep="\t", dtype={"fold": str}, index_col=0)
    ids, spec = list(metadata.index[::-1]), TargetSpec("ph", "numeric")
    values = {"ph": metadata.loc[ids, "ph"].to_numpy() + 0.5}
    folds = metadata.loc[ids, "fold"].tolist()
    table = make_predictions(ids, (spec,), values, fold=folds, subset="test")
    write_predictions(folder / "predictions.tsv", table)
    return folder


def test_programs_are_compared_with_the_predictions_of_a_run(run, tmp_path, capsys):
    make_environment(tmp_path, GENEICL, "exit 5")
    output = tmp_path / "rivals.json"
    compare_with_rivals(RivalsConfig(runs=(run,), environments=tmp_path, output=output))
    rows = {row["rival"]: row for row in json.loads(output.read_text())}
    assert list(rows) == list(RIVALS)
    lasso = rows.pop(LASSO)
    assert {row["task"] for row in rows.values()} == {"ph"}
    assert all("not_run" in row and "value" not in row for row in rows.values())
    assert lasso["metric"] == "mae"
    assert lasso["aam"] == pytest.approx(0.5, abs=1e-6)
    low, high = lasso["interval"]
    assert 0.3 < low < lasso["value"] < high
    assert lasso["difference"] == pytest.approx(0.5 - lasso["value"])
    assert (lasso["samples"], lasso["groups"]) == (50, 10)
    assert 0 <= lasso["p"] <= lasso["corrected_p"] <= 1
    assert {"command", "commit", "date", "machine", "version", "seconds"} <= lasso.keys()
    lines = capsys.readouterr().err
    assert f"ph: {LASSO}" in lines
    assert "ph: TabPFN: not run: its package" in lines


def test_few_groups_have_neither_limits_nor_p(run):
    predictions = load_run(run)[1]
    few = predictions.at(np.isin(predictions.groups, np.unique(predictions.groups)[:3]))
    baseline = Baseline("other", few.truth + 1.0, trivial=False)
    (comparison,) = compare_with_baselines(few, [baseline], seed=0, repeats=20)
    row = {"task": "ph", "rival": "other", "version": "1", "seconds": 2.0}
    row |= comparison_row(comparison)
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["value"] == pytest.approx(1.0)
    assert row["interval"] is row["difference_interval"] is row["p"] is row["corrected_p"] is None
    assert "too few groups" in line_of(row)


def test_the_held_out_samples_of_a_run_are_those_of_its_options(run):
    task, predictions = load_run(run)
    assert len(task.folds) == 5
    held_out = np.concatenate([fold.test for fold in task.folds])
    assert np.sort(held_out).tolist() == list(range(50))
    truth = in_rows_of(task, predictions, task.truth)
    np.testing.assert_array_equal(truth, predictions.truth)
    fewer = in_rows_of(task, predictions.at(np.arange(7)), task.truth)
    np.testing.assert_array_equal(fewer, predictions.truth[:7])
