"""Splits in files: read as written, or refused with the line."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aam.data.split import SUBSETS, Split
from aam.data.split_file import read_split, read_subsets, write_split
from aam.errors import InputError

WORD = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(WORD, st.tuples(st.sampled_from(SUBSETS), WORD), min_size=1), st.booleans())
def test_split_files_are_read_as_written(tmp_path, rows, folded):
    rows["#train, \"'"] = ("train", "x")
    ids = sorted(rows)
    split = Split(
        tuple(ids), tuple(rows[name][0] for name in ids), tuple(rows[name][1] if folded else "" for name in ids)
    )
    write_split(tmp_path / "split.tsv", split)
    assert read_split(tmp_path / "split.tsv") == split


def test_the_file_is_a_table_that_people_can_read(tmp_path):
    write_split(tmp_path / "split.tsv", Split(("a", "b"), ("test", "train"), ("1", "0")))
    assert (tmp_path / "split.tsv").read_bytes() == b"sample-id\tside\tfold\na\ttest\t1\nb\ttrain\t0\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "samples and none with the side 'train'"),
        ("sample-id\tside\tfold\n", "samples and none with the side 'train'"),
        ("id\tside\tfold\na\ttrain\t\n", "line 1: header is"),
        ("sample-id\tside\tfold\na\ttrain\n", "line 2: 2 cells, expected 3"),
        ("sample-id\tside\tfold\na\tTrain\t\n", "line 2: side is 'Train', expected train or validation or test"),
        ("sample-id\tside\tfold\na\ttrain\t\n\na\ttest\t\n", "line 4: sample-id 'a' is empty or stands there twice"),
        ("sample-id\tside\tfold\n\ttrain\t\n", "line 2: sample-id ''"),
        ("sample-id\tside\tfold\na\ttrain\t\nb\ttest\t1\n", "1 samples have no fold and 1 have one"),
        ("sample-id\tside\tfold\na\ttest\t\n", "samples and none with the side 'train'"),
        ('sample-id\tside\tfold\n"a\ttest\t\n', "double quote"),
        ("sample-id\tside\tfold\n" + "a\tx\t\n" * 50, "line 11: side is 'x'"),
    ],
)
def test_damaged_split_files(tmp_path, text, expected):
    path = tmp_path / "split.tsv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_split(path)
    assert expected in str(error.value)
    assert len(error.value.problems) <= 10


def test_subsets_from_two_files_of_ids(tmp_path):
    one, other = tmp_path / "train.txt", tmp_path / "val.txt"
    one.write_text("b\n a \n\n")
    other.write_bytes(b"c\r\nd\r\n")
    split = read_subsets(one, other)
    assert (split.ids("train"), split.ids("test"), split.held_out, split.not_held_out) == (
        ("a", "b"), ("c", "d"), ("c", "d"), ("a", "b")
    )  # fmt: skip
    other.write_text("\n")
    one.write_text("\n")
    with pytest.raises(InputError, match=r"train.txt: no sample id in it\n.*val.txt: no sample id in it"):
        read_subsets(one, other)
    one.write_text("x\n")
    other.write_text("x")
    with pytest.raises(InputError, match="1 samples are in both, expected none: 'x'"):
        read_subsets(one, other)
