"""Predictions that no model writes are refused: they were evaluated, or, where infinite, left out without a word."""

from __future__ import annotations

import pytest

from aam.errors import InputError
from aam.evaluate.prediction_file import read_predictions


@pytest.mark.parametrize(
    ("header", "rows", "problem"),
    [
        ("ph", ["7", "inf", "-inf"], "2 of 3 samples ('s1', 's2') have an infinite prediction in 'ph'"),
        ("ph\tph.low\tph.high", ["7\t6\t8", "7\t8\t6"], "1 of 2 samples ('s1') have a lower limit above the upper one"),
        (
            "site\tsite=a\tsite=b",
            ["a\t0.9\t0.9", "b\t0.1\t0.9"],
            "1 of 2 samples ('s0') have probabilities that are no",
        ),
        ("site\tsite=a\tsite=b", ["a\t1.5\t-0.5"], "have probabilities that are no numbers from 0 to 1"),
        ("site\tsite=a\tsite=b", ["b\t0.9\t0.1"], "have a label that has not the largest probability in 'site'"),
        ("site\tsite=a\tsite=b", ["c\t0.9\t0.1"], "have a label that has not the largest probability in 'site'"),
        ("site\tsite=a\tsite=b", ["a\tinf\t0.1"], "have infinite probabilities in 'site'"),
    ],
)
def test_what_no_model_predicts_is_refused(tmp_path, header: str, rows: list[str], problem: str):
    lines = [f"sample-id\t{header}\tnote", *(f"s{at}\t{row}\t" for at, row in enumerate(rows))]
    (tmp_path / "p.tsv").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError) as caught:
        read_predictions(tmp_path / "p.tsv")
    assert problem in str(caught.value)
    assert str(tmp_path / "p.tsv") in str(caught.value)


def test_missing_values_and_few_digits_are_accepted(tmp_path):
    lines = ["sample-id\tsite\tsite=a\tsite=b\tsite=c\tph\tnote", "s0\t\t\t\t\t\tfew reads"]
    lines += ["s1\ta\t0.33\t0.33\t0.33\tnan\t", "s2\tb\t0.33\t0.33\t0.33\t1\t"]
    (tmp_path / "p.tsv").write_text("\n".join(lines) + "\n")
    assert read_predictions(tmp_path / "p.tsv").sample_ids == ("s0", "s1", "s2")
