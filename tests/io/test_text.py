"""Tables of text: what every reader of rows has in common."""

from __future__ import annotations

import pytest

from aam.io.text import Faults, read_table_text
from tests.refusals import refusal

TEXT = "id,a,b\ns1,1,2\n# note,,\ns2,3\n\ns3,4,5,,\ns4,6,7,8\n"


def test_rows_have_the_cells_of_the_header_and_others_are_faults():
    table = read_table_text(TEXT, "t.csv", "ids")
    assert table.header == ["id", "a", "b"]
    rows = list(table.rows(is_comment=lambda cell: cell.startswith("#")))
    assert rows == [(2, ["s1", "1", "2"]), (6, ["s3", "4", "5"])]
    cause = "expected 3 cells, as in the header; is a delimiter inside a cell, or the file cut off?"
    assert table.faults.messages == [f"t.csv: line 4 (2 cells), 7 (4 cells): {cause}"]


@pytest.mark.parametrize("least", [1, 2])
def test_missing_cells_at_the_end_may_be_empty(least: int):
    table = read_table_text("id\ta\tb\ns1\t1\ns2\n", "t.tsv", "ids")
    rows = [cells for _, cells in table.rows(least)]
    assert rows == [["s1", "1", ""], ["s2", "", ""]][: 3 - least]
    assert len(table.faults.messages) == least - 1


@pytest.mark.parametrize("mark", ["\t", ",", ";"])
@pytest.mark.parametrize("name", ["id", "#SampleID", '"sample name"', "", '""', "Feature ID "])
def test_the_mark_behind_the_first_cell_separates_all_cells(name: str, mark: str):
    text = f"# note, with; marks\n{mark}{mark}\n{name}{mark}a{mark}b\ns1{mark}1\t,;{mark}2\n"
    text = text.replace("1\t,;", "1\t,;".replace(mark, ""))
    table = read_table_text(text, "t", "ids")
    assert table.header == [name.strip('" '), "a", "b"]
    assert [cells[::2] for _, cells in table.rows()] == [["s1", "2"]]


@pytest.mark.parametrize(
    "line", ["Run\ta", "sample-id a", "sample|a", "#q2:types\tnumeric", "a,id"]
)
def test_another_first_cell_is_named(line: str):
    message = refusal(read_table_text, f"# note\n{line}\ns1\t1\n", "t.tsv", "ids")
    assert message == f"t.tsv: line 2 is {line!r}, expected ids"


def test_faults_of_one_cause_are_one_message():
    faults = Faults("f")
    faults.raise_if_any()
    for line in range(1, 11):
        faults.add("is odd", line, "x" * (line == 2))
    faults.add("is empty")
    listed = "1, 2 (x), 3, 4, 5, 6, 7, 8 and 2 more"
    assert faults.messages == [f"f: line {listed}: is odd", "f: is empty"]
