"""The file of predictions, written and read back."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aam.data.targets import TargetSpec
from aam.evaluate.predictions import (
    check_targets,
    make_predictions,
    name_problems,
    read_predictions,
    write_predictions,
)
from aam.io.metadata import read_metadata
from tests.evaluate.conftest import AGE, READS, SITE, assert_same, table
from tests.refusals import refusal


def test_the_columns_of_the_file(tmp_path):
    shares = np.array([[0.25, 0.625, 0.125], [math.nan] * 3])
    values = {"age": np.array([31.25, math.nan]), "site": shares}
    spread, notes = {"age": np.array([0.5, math.nan])}, ("", "12 reads, fewer than 40")
    written = make_predictions(("a", "b"), (AGE, SITE), values, spread, note=notes)
    write_predictions(tmp_path / "p.tsv", written)
    assert (tmp_path / "p.tsv").read_bytes().decode() == (
        "sample-id\tage\tage.rarefaction-sd\tsite\tsite=gut\tsite=oral\tsite=skin\tnote\n"
        "a\t31.25\t0.5\toral\t0.25\t0.625\t0.125\t\n"
        "b\t\t\t\t\t\t\t12 reads, fewer than 40\n"
    )
    assert_same(read_predictions(tmp_path / "p.tsv"), written)


def test_names_may_hold_anything(tmp_path):
    specs = (
        TargetSpec("a=b", "class", ("x", "y", "y=z", 'tab\tquote"')),
        TargetSpec("pH (1:5, H₂O)", "numeric"),
        TargetSpec("b", "numeric"),
    )
    ids = ("0012", 'q"t', "with blank", "Ünï", "tab\tbed")
    weights = np.random.default_rng(0).dirichlet(np.ones(4), 5)
    values = {"pH (1:5, H₂O)": np.arange(5.0), "b": np.full(5, -1e-9), "a=b": weights}
    written = make_predictions(ids, specs, values)
    write_predictions(tmp_path / "p.tsv", written)
    assert_same(read_predictions(tmp_path / "p.tsv"), written)


def test_what_is_derived_is_written_read_and_laid_out(tmp_path):
    written = table(folds=("0", "1"), notes=("", "why"), specs=(SITE, READS, AGE))
    written = written.with_limits("age", np.array([[1.5, 2.5], [3.0, 4.25]]))
    more = {"age.member-sd": np.array([0.5, 0.25]), "subset": ("train", "")}
    written = written.with_columns(more)
    write_predictions(tmp_path / "p.tsv", written)
    header = (tmp_path / "p.tsv").read_text().splitlines()[0].split("\t")
    of_age = ["age", "age.rarefaction-sd", "age.member-sd", "age.low", "age.high"]
    assert header[-8:] == [*of_age, "fold", "subset", "note"]
    read = read_predictions(tmp_path / "p.tsv")
    assert_same(read, written)
    assert read.texts("subset") == ("train", "")
    moved = written.with_rows(["007", "new"], {})
    np.testing.assert_array_equal(moved.limits("age"), [[3.0, 4.25], [math.nan, math.nan]])
    assert (moved.texts("subset"), moved.texts("fold")) == (("", ""), ("1", ""))
    assert table().limits("age") is None


def test_a_target_named_like_a_derived_column_is_refused():
    specs = (TargetSpec("ph", "numeric"), TargetSpec("ph.low", "numeric"))
    (problem,) = name_problems(specs)
    assert "two columns of predictions would be called 'ph.low'" in problem
    assert name_problems((TargetSpec("ph.low", "numeric"), TargetSpec("b", "numeric"))) == []


CLASSES = "sample-id\tsite\tsite=a\tsite=b\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty or nothing but comments, expected the columns sample-id and one for each"),
        ("height\tage\na\t1\n", "line 1 begins with 'height' (cells separated by tabs), expected"),
        ("sample-id\tage\na\t1\t2\n", "header: column 3 has values and no name"),
        ("sample-id\tage\na\t1\t2\nb\t1\n", "line 2 (3 cells): more cells than the 2"),
        ("sample-id\tage\na\t1\nb\n", "line 3 (1 cells): fewer cells than the 2"),
        ("sample-id\tage\n\t1\n", "line 2: no sample id"),
        ("sample-id\tage\n", "no sample below the header"),
        (
            "sample-id\tage\na\t1\na\t2\n",
            "line 3 ('a'): a sample that stands there twice; leave it in once",
        ),
        ("sample-id\tage\tage\na\t1\t2\n", "column 'age' occurs 2 times; leave it in once"),
        ("sample-id\tnote\na\tx\n", "no target column"),
        (
            "sample-id\tage\na\told\n",
            "'age' holds text where numbers belong: 'old'; correct it; if",
        ),
        ("sample-id\tage\nx\t1\na\t2_5\n", "'age' holds text where numbers belong: '2_5'"),
        ("sample-id\tage\na\t٣\n", "'age' holds text where numbers belong: '٣'"),
        ("sample-id\tage\na\t2,5\n", "decimal commas: '2,5'; pass --decimal ,"),
        ("sample-id\tsite\tsite=gut\na\tgut\tmuch\n", "'site=gut' holds text"),
        ("sample-id\tage\tage.rarefaction-sd\na\t1\tx\n", "'age.rarefaction-sd' holds text"),
        # What no model predicts was evaluated or, where infinite, left out.
        ("sample-id\tph\na\t7\nb\tinf\nc\t-inf\n", "2 of 3 samples ('b', 'c') have an infinite"),
        ("sample-id\tph\na\t-1e300\n", "have a prediction above 1e+38 in 'ph'; correct them"),
        ("sample-id\tph\tph.low\tph.high\na\t7\t8\t6\n", "a lower limit above the upper one"),
        (f"{CLASSES}s\ta\t0.9\t0.9\n", "1 of 1 samples ('s') have probabilities that are no"),
        (f"{CLASSES}s\ta\t1.5\t-0.5\n", "have probabilities that are no numbers from 0 to 1"),
        (f"{CLASSES}s\tb\t0.9\t0.1\n", "have a label that has not the largest probability"),
        (f"{CLASSES}s\tc\t0.9\t0.1\n", "have a label that has not the largest probability"),
        (f"{CLASSES}s\ta\tinf\t0.1\n", "have infinite probabilities in 'site'"),
    ],
)
def test_bad_files(tmp_path, text: str, message: str):
    path = tmp_path / "p.tsv"
    path.write_text(text)
    found = refusal(read_predictions, path)
    assert message in found
    assert str(path) in found


def test_unreadable_files(tmp_path):
    (tmp_path / "latin.tsv").write_bytes("sample-id\tage\nü\t1\n".encode("latin-1"))
    for path in (tmp_path / "latin.tsv", tmp_path / "nowhere.tsv", tmp_path):
        assert str(path) in refusal(read_predictions, path)


def test_a_file_that_a_spreadsheet_saved_is_read(tmp_path):
    (tmp_path / "p.csv").write_bytes('\ufeffid,age,note\r\na,1.5,"x, y",,\r\n,,\r\n'.encode())
    read = read_predictions(tmp_path / "p.csv")
    assert (read.sample_ids, read.texts("note"), *read.predicted("age")) == (("a",), ("x, y",), 1.5)


def test_decimal_commas_and_missing_values_are_those_of_metadata(tmp_path):
    text = "sample-id\tph\tsite\tsite=a\tsite=b\ns0\t6,5\ta\t0,75\t0,25\ns1\t#N/A\t\tNA\t-\n"
    (tmp_path / "p.tsv").write_text(text)
    table = read_predictions(tmp_path / "p.tsv", ",")
    np.testing.assert_array_equal(table.predicted("ph"), [6.5, math.nan])
    np.testing.assert_array_equal(table.predicted("site"), [[0.75, 0.25], [math.nan] * 2])


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("ph.member-sd", ["p.tsv: column 'ph' is missing next to 'ph.member-sd'"]),
        ("age ph.low ph.high", ["p.tsv: column 'ph' is missing next to 'ph.low', 'ph.high'"]),
        ("si=te=a si=te=b", ["p.tsv: column 'si=te' is missing next to 'si=te=a', 'si=te=b'"]),
        ("age Ph", ["Did you mean 'ph'", "p.tsv: remove column 'Ph' if it is no target"]),
    ],
)
def test_columns_that_are_no_targets_are_named(tmp_path, header, expected):
    (tmp_path / "m.tsv").write_text("sample-id\tage\tph\tsi=te\ns1\t3\t7\ta\n")
    names = header.split()
    rows = [["sample-id", *names], ["s1", *["0.5"] * len(names)]]
    (tmp_path / "p.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    table = read_predictions(tmp_path / "p.tsv")
    metadata = read_metadata(tmp_path / "m.tsv")
    message = refusal(check_targets, tmp_path / "p.tsv", table, metadata)
    assert all(text in message for text in expected)


def test_missing_values_and_few_digits_are_accepted(tmp_path):
    lines = ["sample-id\tsite\tsite=a\tsite=b\tsite=c\tph\tnote", "s0\t\t\t\t\t\tfew reads"]
    lines += ["s1\ta\t0.33\t0.33\t0.33\tnan\t", "s2\tb\t0.33\t0.33\t0.33\t1\t"]
    (tmp_path / "p.tsv").write_text("\n".join(lines) + "\n")
    assert read_predictions(tmp_path / "p.tsv").sample_ids == ("s0", "s1", "s2")
