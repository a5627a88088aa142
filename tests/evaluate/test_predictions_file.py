"""The file of predictions, written and read back."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aam.data.targets import TargetSpec
from aam.evaluate.predictions import (
    SAMPLE_SUBSETS,
    is_written,
    make_predictions,
    name_problems,
    read_predictions,
    write_predictions,
)
from tests.evaluate.conftest import AGE, READS, SITE, assert_same, table
from tests.refusals import refusal


def test_the_columns_of_the_file(tmp_path):
    shares = np.array([[0.25, 0.625, 0.125], [math.nan] * 3])
    values = {"age": np.array([31.25, math.nan]), "site": shares}
    spread, notes = {"age": np.array([0.5, math.nan])}, ("", "12 reads, fewer than 40")
    written = make_predictions(
        ("a", "b"), (AGE, SITE), values, spread, note=notes, subset=("new", "")
    )
    write_predictions(tmp_path / "p.tsv", written)
    assert (tmp_path / "p.tsv").read_bytes().decode() == (
        "sample-id\tage\tage.rarefaction-sd\tsite\tsite=gut\tsite=oral\tsite=skin\tfold\tsubset\tnote\n"
        "a\t31.25\t0.5\toral\t0.25\t0.625\t0.125\t\tnew\t\n"
        "b\t\t\t\t\t\t\t\t\t12 reads, fewer than 40\n"
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
    written = make_predictions(ids, specs, values, subset="test")
    write_predictions(tmp_path / "p.tsv", written)
    assert_same(read_predictions(tmp_path / "p.tsv"), written)


def test_what_is_derived_is_written_read_and_laid_out(tmp_path):
    written = table(folds=("0", "1"), notes=("", "why"), specs=(SITE, READS, AGE))
    written = written.with_limits("age", np.array([[1.5, 2.5], [3.0, 4.25]]))
    more = {"age.member-sd": np.array([0.5, 0.25]), "subset": ("train", "new")}
    written = written.with_columns(more)
    write_predictions(tmp_path / "p.tsv", written)
    header = (tmp_path / "p.tsv").read_text().splitlines()[0].split("\t")
    of_age = ["age", "age.rarefaction-sd", "age.member-sd", "age.low", "age.high"]
    assert header[-8:] == [*of_age, "fold", "subset", "note"]
    read = read_predictions(tmp_path / "p.tsv")
    assert_same(read, written)
    assert read.texts("subset") == ("train", "new")
    moved = written.with_rows(["007", "new"], {})
    np.testing.assert_array_equal(moved.limits("age"), [[3.0, 4.25], [math.nan, math.nan]])
    assert (moved.texts("subset"), moved.texts("fold")) == (("new", ""), ("1", ""))
    assert table().limits("age") is None


def test_a_target_named_like_a_derived_column_is_refused():
    specs = (TargetSpec("ph", "numeric"), TargetSpec("ph.low", "numeric"))
    (problem,) = name_problems(specs)
    assert "two columns of predictions would be called 'ph.low'" in problem
    assert name_problems((TargetSpec("ph.low", "numeric"), TargetSpec("b", "numeric"))) == []


END = "\tfold\tsubset\tnote\n"
PH, SITES = f"sample-id\tph{END}", f"sample-id\tsite\tsite=a\tsite=b{END}"


def test_every_subset_that_aam_writes_is_read(tmp_path):
    rows = [f"s{at}\t1\t\t{subset}\t\n" for at, subset in enumerate(SAMPLE_SUBSETS)]
    (tmp_path / "p.tsv").write_text(PH + "".join(rows) + "empty\t\t\t\tfew reads\n")
    read = read_predictions(tmp_path / "p.tsv")
    assert read.texts("subset") == (*SAMPLE_SUBSETS, "")
    assert is_written(tmp_path / "p.tsv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected predictions as aam writes them"),
        ("height\tage\na\t1\n", "has the columns 'height', 'age', expected predictions as aam"),
        # What other programs, or an aam of before, wrote, and what spreadsheets make of ours.
        ("sample-id\tph\na\t1\n", "has the columns 'sample-id', 'ph', expected"),
        ("sample-id\tph\tnote\na\t1\t\n", "'ph', 'note', expected"),
        (f"sample-id{END}a\t\ttest\t\n", "has the columns 'sample-id', 'fold', 'subset', 'note'"),
        (f"id\tph{END}a\t7\t\ttest\t\n", "has the columns 'id', 'ph',"),
        ("sample-id,ph,fold,subset,note\na,7,,test,\n", "has the columns 'sample-id,ph,fold,"),
        (PH.replace("subset", "side") + "a\t7\t\ttest\t\n", "'side', 'note', expected"),
        (PH + "a\t7\nb\t7\t\ttest\t\n", "1 of 2 rows have not 5 cells; is the file cut off?"),
        (
            PH + "b\t7\t\ttest\t\na\t7\t\ttest\n",
            "1 of 2 rows have not 5 cells; is the file cut off?",
        ),
        (f"{SITES}s\ta\t\t-5\t\ttest\t\n", "no numbers from 0 to 1 with a sum of 1"),
        (f"{SITES}s\ta\t\t1\t\ttest\t\n", "no numbers from 0 to 1 with a sum of 1"),
        (PH + "a\t7\t\ttest\t\t\n", "1 of 1 rows have not 5 cells"),
        (f"sample-id\tph\tph.low\tph.high{END}a\t7\t8\t6\t\ttest\t\n", "a lower limit above"),
        (PH, "0 of 0 rows have not 5 cells"),
        (PH + "\t7\t\ttest\t\n", "'' twice or empty"),
        (PH + "a\t7\t\ttest\t\n" * 2, "'a' twice or empty"),
        (f"sample-id\tph\tph{END}a\t1\t2\t\ttest\t\n", "'ph' twice or empty"),
        (PH + 'a\t"7\t\ttest\t\n', "expected predictions as aam writes them"),
        *(
            (f"{PH}a\t{cell}\t\ttest\t\n", "column 'ph': no number, in 1 of 1 samples ('a')")
            for cell in ("old", "2_5", "2,5", "٣", "inf", "-inf", "-1e300", "1e400", "N/A")
        ),
        (f"sample-id\tph\tph.low\tph.high{END}a\t7\tx\t6\t\ttest\t\n", "'ph.low': no number"),
        (f"{SITES}s\ta\t0.9\t0.9\t\ttest\t\n", "probabilities that are no numbers from 0 to 1"),
        (f"{SITES}s\ta\t1.5\t-0.5\t\ttest\t\n", "probabilities that are no numbers from 0 to 1"),
        (f"{SITES}s\ta\tinf\t0.1\t\ttest\t\n", "column 'site=a': no number"),
        # What the samples were to the model is written by aam, and may not be left out.
        (PH + "a\t7\t\t\t\n", "column 'subset': none of train, validation, test, calibration, new"),
        (PH + "a\t7\t\theld-out\t\n", "column 'subset': none of train"),
        (PH + "a\t\t\tTest\t\n", "column 'subset': none of train"),
        (PH + "a\t7\t0\ttest\t\nb\t7\t\ttest\t\n", "'fold': no value, though other samples"),
    ],
)
def test_what_aam_did_not_write_is_refused(tmp_path, text: str, message: str):
    path = tmp_path / "p.tsv"
    path.write_text(text)
    found = refusal(read_predictions, path)
    assert message in found
    assert str(path) in found
    assert not is_written(path)


def test_all_faults_of_a_file_are_in_one_message(tmp_path):
    path = tmp_path / "p.tsv"
    path.write_text(SITES + "a\tb\t0.9\t0.2\t\tx\t\nb\ta\tz\t0.1\t\ttest\t\n")
    found = refusal(read_predictions, path)
    for part in ("'site=a': no number", "a sum of 1", "column 'subset'", "--model and"):
        assert part in found


def test_unreadable_files(tmp_path):
    (tmp_path / "latin.tsv").write_bytes("sample-id\tage\nü\t1\n".encode("latin-1"))
    for path in (tmp_path / "latin.tsv", tmp_path / "nowhere.tsv", tmp_path):
        assert str(path) in refusal(read_predictions, path)


def test_samples_may_have_the_names_of_columns(tmp_path):
    path = tmp_path / "predictions.tsv"
    path.write_text(PH + "ph\t7\t\ttest\t\nnote\t6\t\ttest\t\n")
    assert read_predictions(path).sample_ids == ("ph", "note")
