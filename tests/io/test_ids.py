"""Ids of two sides: which change explains that they do not match."""

import numpy as np
import pandas as pd
import pytest

from aam.data.inputs import aligned
from aam.data.splits import Split, restricted
from aam.data.table import read_table
from aam.io.ids import difference
from aam.io.matrices import DistanceMatrix
from aam.io.metadata import align
from aam.io.phylogeny import Phylogeny, match_tips
from aam.io.taxonomy import Taxonomy
from tests.data.studies import typed_metadata
from tests.refusals import refusal

CASES = [
    ("S1 S2", "s1 s2", "case"),
    ("1 2", "001 002", "zeros before numbers"),
    ("S01 S02", "S1 S2", "zeros before numbers"),
    ("1.0 2.0", "1 2", "a .0 at the end"),
    ("a-b c-d", "a.b c.d", "- . _ and blanks"),
    ("a_b c_d", "a-b c-d", "- . _ and blanks"),
    ("1a 2a", "X1a X2a", "a leading X, which R adds"),
    ("1.a 2.a", "X1-a X2-a", "a leading X, which R adds and - . _ and blanks"),
    ("'a' 'b'", "a b", "quotes around them"),
    ("\u00e9a \u00e9b", "e\u0301a e\u0301b", "their Unicode form"),
    ("\ufeffa b", "a c", "their Unicode form"),
    ("10249.a 10249.b", "a b", "a prefix"),
    ("a b", "study_a study_b", "a prefix"),
    ("a_S1_L001_R1_001 b_S2_L001_R1_001", "a b", "a suffix"),
    ("a b", "a.fastq.gz b.fastq.gz", "a suffix"),
    ("otu1 otu2", "otu1;size=9; otu2;size=4;", "a suffix"),
    ("A-1 B-1", "a.1 b.1", "case and - . _ and blanks"),
    ("A-01 B-01", "a.1 b.1", "case and zeros before numbers and - . _ and blanks"),
    ("a b", "x y", ""),
    ("a A", "\u0101 b", ""),
]


@pytest.mark.parametrize(("wanted", "present", "words"), CASES)
def test_the_reason_of_a_mismatch_is_named(wanted, present, words):
    said = difference(wanted.split(), present.split())
    assert f"match when you ignore {words} (" in said if words else said == ""


def test_blanks_inside_and_around_ids_are_named():
    assert "blanks around them" in difference(["a ", "b"], ["a", "c"])
    assert "- . _ and blanks" in difference(["a b"], ["a_b"])
    assert "their Unicode form" in difference(["a\u00a0b", "c"], ["a b", "d"])


def test_ids_of_both_sides_and_ambiguous_ones_explain_nothing():
    assert difference(["S1", "T9"], ["s1"]) == "; 1 of 2 match when you ignore case ('S1' and 's1')"
    assert difference(["a", "A"], ["a"]) == ""
    assert difference(["Ab"], ["AB", "ab"]) == ""
    assert difference(["S1.2"], ["S1", "S1.2"]) == ""


def test_every_input_says_why_its_ids_do_not_match(tmp_path):
    """Metadata, trees, taxonomies, sequences, matrices and splits showed both sides alone."""
    metadata = typed_metadata(["s1"], {"x": ("1",)}, {})
    (tmp_path / "f.fasta").write_text(">s1\nACGT\n")
    (tmp_path / "t.tsv").write_text("#OTU ID\ts0\nS1\t3\n")
    tree = Phylogeny(*(np.array([1]),) * 4, ("s1",))
    messages = [
        refusal(align, metadata, ["S1", "other"], ["x"]),
        refusal(match_tips, tree, ["S1"]),
        refusal(Taxonomy({"s1": ("k",)}, tmp_path).of, ["S1"], ["ACGT"]),
        refusal(DistanceMatrix(("s1",), np.zeros((1, 1))).select, ["S1"]),
        refusal(restricted, Split(("s1",), ("train",), ("",)), ["S1"]),
        refusal(aligned, pd.Series([1], ["s1"]), ["S1"], "y"),
        refusal(read_table, tmp_path / "t.tsv", tmp_path / "f.fasta"),
    ]
    for message in messages:
        assert "1 of 1 match when you ignore case" in message.replace("1 of 2", "1 of 1")
