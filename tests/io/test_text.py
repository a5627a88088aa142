"""Tables of text: what every reader of rows has in common."""

from __future__ import annotations

import pytest

from aam.io.text import Faults, read_table_text

TEXT = "id,a,b\ns1,1,2\n# note,,\ns2,3\n\ns3,4,5,,\ns4,6,7,8\n"


def test_rows_have_the_cells_of_the_header_and_others_are_faults():
    table = read_table_text(TEXT, "t.csv", "ids")
    assert table.header == ["id", "a", "b"]
    rows = list(table.rows(is_comment=lambda cell: cell.startswith("#")))
    assert rows == [(2, ["s1", "1", "2"]), (6, ["s3", "4", "5"]), (7, ["s4", "6", "7"])]
    assert table.comments == [["# note", "", ""]]
    assert table.faults.messages == [
        "t.csv: line 4 (2 cells): fewer cells than the 3 that a row needs; is the file cut off?",
        "t.csv: line 7 (4 cells): more cells than the 3 of the header; is a delimiter inside a "
        "cell?",
    ]


@pytest.mark.parametrize("least", [1, 2])
def test_missing_cells_at_the_end_may_be_empty(least: int):
    table = read_table_text("id\ta\tb\ns1\t1\ns2\n", "t.tsv", "ids")
    rows = [cells for _, cells in table.rows(least)]
    assert rows == [["s1", "1", ""], ["s2", "", ""]][: 3 - least]
    assert len(table.faults.messages) == least - 1


def test_columns_right_of_the_header_are_named_once():
    table = read_table_text("id\ta\ns1\t1\t2\t3\ns2\t4\t5\t6\n", "t.tsv", "ids")
    assert len(list(table.rows())) == 2
    (message,) = table.faults.messages
    assert message.startswith("t.tsv: header: columns 3, 4 have values and no name")


@pytest.mark.parametrize("more", ["", "\tcategorical"])
def test_directives_may_lack_the_columns_without_a_name(more: str):
    text = f"id\ta\n#q2:types\tnumeric{more}\ns1\t1\tx\ns2\t4\ty\n"
    table = read_table_text(text, "t.tsv", "ids")
    assert len(list(table.rows(least=1))) == 3
    (message,) = table.faults.messages
    assert message.startswith("t.tsv: header: column 3 has values and no name")


def test_faults_of_one_cause_are_one_message():
    faults = Faults("f")
    faults.raise_if_any()
    for line in range(1, 11):
        faults.add("is odd", line, "x" * (line == 2))
    faults.add("is empty")
    listed = "1, 2 (x), 3, 4, 5, 6, 7, 8 and 2 more"
    assert faults.messages == [f"f: line {listed}: is odd", "f: is empty"]
