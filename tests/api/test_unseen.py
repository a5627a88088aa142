"""Samples whose reads training lacks: empty rows, or one warning where values are needed."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import aam
from aam.cli import main
from aam.evaluate.conformal import Conformal

SAMPLES, DEPTH = 24, 40
# Reads of 1,000 that are unknown.
UNKNOWN = {"none": 0, "half": 500, "exactly": 900, "above": 901, "all": 1000}
EMPTY = ["above", "all"]


def sequences(seed: int, number: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("ACGT"), 30)) for _ in range(number)]


@pytest.fixture(scope="module")
def training() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    counts = rng.poisson(30, (SAMPLES, 30)) * (rng.random((SAMPLES, 30)) < 0.5)
    counts[:, 0] += 50
    return pd.DataFrame(counts, [f"s{row}" for row in range(SAMPLES)], sequences(1, 30))


@pytest.fixture(scope="module")
def new() -> pd.DataFrame:
    """Samples of known and unknown reads."""
    names = [*sequences(1, 30)[:2], *sequences(2, 3)]
    rows = [[1000 - reads, 0, reads, 0, 0] for reads in UNKNOWN.values()]
    return pd.DataFrame(rows, [*UNKNOWN], names)


@pytest.fixture(scope="module")
def regressor(training) -> aam.AmpliconRegressor:
    model = aam.AmpliconRegressor(rarefy_depth=DEPTH, members=("presence",), threads=1)
    return model.fit(training, np.arange(SAMPLES) / 3)


@pytest.fixture(scope="module")
def classifier(training) -> aam.AmpliconClassifier:
    model = aam.AmpliconClassifier(rarefy_depth=DEPTH, members=("presence",), threads=1)
    return model.fit(training, ["a", "b", "c"] * (SAMPLES // 3))


def written(table: pd.DataFrame, path: Path) -> Path:
    table.T.to_csv(path, sep="\t", index_label="#OTU ID")
    return path


def test_rows_above_90_percent_are_empty_with_their_reason(regressor, classifier, new, tmp_path):
    for estimator, columns in ((regressor, ["y"]), (classifier, ["y=a", "y=b", "y=c"])):
        rows = estimator.model_.predict(new)
        assert rows.index[rows[columns].isna().all(axis=1)].tolist() == EMPTY
        assert rows.drop(EMPTY)[columns].notna().all(axis=None)
        for name, share in zip(EMPTY, ("90%", "100%"), strict=True):
            assert f"no prediction: {share} of its reads" in rows.note[name]
            assert "--predict-unlike" in rows.note[name]
        assert not rows.note.drop(EMPTY).str.contains("no prediction").any()
        with pytest.warns(aam.UnlikeTrainingWarning, match="2 of 5 samples") as caught:
            every = estimator.model_.predict(new, predict_unlike=True)
        assert len(caught) == 1
        assert every[columns].notna().all(axis=None)
        pd.testing.assert_frame_equal(every.drop(EMPTY), rows.drop(EMPTY))


def test_the_reason_says_that_reads_are_reversed(training, regressor):
    letters = str.maketrans("ACGT", "TGCA")
    reversed_reads = training.rename(columns=lambda name: name.translate(letters)[::-1])
    rows = regressor.model_.predict(reversed_reads)
    assert rows.y.isna().all()
    assert rows.note.str.contains("no prediction: 100% of its reads").all()
    assert not rows.note.str.contains("were not in the training table").any(), "said once"


def test_intervals_are_empty_too_and_so_is_a_table_of_unknown_reads(regressor, new, tmp_path):
    saved = regressor.model_.models[0]
    saved.notes.intervals["y"] = Conformal((1.0,), (1.0,))
    try:
        rows = regressor.model_.predict(new)
        assert rows[["y.low", "y.high", "y"]].loc[EMPTY].isna().all(axis=None)
        assert np.isfinite(rows["y.low"]["none"])
        rows = regressor.model_.predict(new.loc[EMPTY])
        assert rows[["y.low", "y.high", "y"]].isna().all(axis=None)
    finally:
        del saved.notes.intervals["y"]


def test_several_models_leave_a_row_empty_that_one_of_them_does_not_know(
    regressor, training, new, tmp_path
):
    other = aam.AmpliconRegressor(rarefy_depth=DEPTH, members=("presence",), threads=1)
    named = training.rename(columns={training.columns[0]: sequences(3, 1)[0]})
    other.fit(named, np.arange(SAMPLES) / 3)
    for name, model in (("one", regressor), ("two", other)):
        model.save(tmp_path / name)
    for order in (["one", "two"], ["two", "one"]):
        rows = aam.load([tmp_path / name for name in order], device="cpu").predict(new)
        assert rows.y.isna().all(), "the only known ASV of these samples is not that of both"
        rows = aam.load([tmp_path / name for name in order]).predict(training)
        assert rows.y.notna().all()


def test_estimators_predict_warn_once_and_keep_the_notes(regressor, classifier, training, new):
    for estimator in (regressor, classifier):
        with pytest.warns(aam.UnlikeTrainingWarning) as caught:
            values = estimator.predict(new)
        assert len(caught) == 1
        assert len(values) == len(new)
        assert set(EMPTY) <= set(estimator.notes_)
        assert "100% of its reads" in estimator.notes_["all"]
        assert "none" not in estimator.notes_
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            estimator.predict(training)
        assert estimator.notes_ == {}
    with pytest.warns(aam.UnlikeTrainingWarning) as caught:
        classifier.score(new, ["a", "b", "c", "a", "b"])
    assert len(caught) == 1


def test_the_commands_say_how_many_rows_are_empty(regressor, training, new, tmp_path, capsys):
    regressor.save(tmp_path / "model")
    table, out = written(new, tmp_path / "new.tsv"), tmp_path / "out.tsv"
    words = f"predict --model {tmp_path}/model --table {table} --output {out} --device cpu"
    assert main(words.split()) == 0
    last = capsys.readouterr().err
    assert (
        "5 samples, 3 of them predicted; over 90% unknown reads (--predict-unlike predicts them): 2"
        in last
    )
    assert "--predict-unlike" in last
    frame = pd.read_csv(out, sep="\t", index_col=0)
    assert frame.index[frame.y.isna()].tolist() == EMPTY
    assert main([*words.split(), "--overwrite", "--predict-unlike"]) == 0
    last = capsys.readouterr().err
    assert "5 samples, 5 of them predicted" in last
    assert last.count("warning: 2 of 5 samples have more than 90%") == 1
    assert pd.read_csv(out, sep="\t", index_col=0).y.notna().all()
    # What must have a value for each sample predicts, and warns once.
    metadata = tmp_path / "metadata.tsv"
    pd.Series(np.arange(5.0), new.index, name="y").to_csv(metadata, sep="\t", index_label="id")
    for command in ("evaluate", "explain"):
        words = f"{command} --model {tmp_path}/model --table {table} --metadata {metadata}"
        assert main([*words.split(), "--output-dir", str(tmp_path / command)]) == 0
        assert capsys.readouterr().err.count("warning: 2 of 5 samples have more than 90%") == 1
    frame = pd.read_csv(tmp_path / "evaluate" / "predictions.tsv", sep="\t", index_col=0)
    assert frame.y.notna().all()
