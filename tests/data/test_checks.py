"""Warnings about values, and reads that are no counts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from aam.data import checks
from aam.data.table import make_table
from aam.io.ids import md5
from aam.io.tables import AmpliconTable
from tests.data.studies import metadata_of
from tests.refusals import refusal

DONORS, VISITS = 10, 4
IDS = [f"s{row}" for row in range(DONORS * VISITS)]


def table_of(counts) -> AmpliconTable:
    names = [f"f{column}" for column in range(np.shape(counts)[1])]
    return make_table(csr_array(np.asarray(counts, np.uint32)), IDS[: len(counts)], names)


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (lambda x: x / x.sum(axis=1, keepdims=True) * 1e6, "1,000,000 reads"),
        (lambda x: x / x.sum(axis=1, keepdims=True) * 1e4, "reads; they were"),
        (lambda x: x * 1e5, ""),
        (lambda x: x, ""),
        (lambda x: x // 100, ""),
    ],
)
def test_whole_numbers_that_are_no_reads_are_named(caplog, scale, words):
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(60, 0.3), 20)
    counts = [rng.multinomial(5_000 + 700 * row, share) for row, share in enumerate(shares)]
    checks.warn_of_reads(table_of(scale(np.array(counts, float)).round()))
    assert words in caplog.text
    assert bool(caplog.text) == bool(words)


@pytest.mark.parametrize(("centres", "number"), [("a a b b", 2), ("a b a a", 1), ("a b a b", 0)])
def test_groups_of_several_batches_are_counted(caplog, centres, number):
    metadata = metadata_of(child=[1, 2, 1, 2], centre=centres.split())
    with caplog.at_level("INFO", "aam"):
        checks.list_groups_of_batches(metadata, "child", "centre", metadata.ids)
    said = f"{number} values of 'child' occur in several values of 'centre'" * bool(number)
    assert said in caplog.text
    assert len(caplog.records) == bool(number)


def test_the_number_of_groups_and_the_largest_are_shown(caplog):
    caplog.set_level("INFO", "aam")
    values = ["7", "7.0", "b", "b", "unknown", "unknown", "unknown", ""]
    metadata = metadata_of(person=values)
    checks.list_groups(metadata, "person", metadata.ids)
    assert "'person': 4 groups with a value, the largest: 'unknown' 3, 'b' 2, '7' 1" in caplog.text
    assert "1 of 8 samples have no value in --group-column person; each counts as" in caplog.text


# --- metadata inside a table --------------------------------------------------------------------

COUNTS = np.random.default_rng(4).poisson(30, (40, 30)) * (
    np.random.default_rng(5).random((40, 30)) < 0.5
)
LETTERS = [f"f{column}" for column in range(30)]
MONTHS = np.random.default_rng(7).random(40).round(3) * 12


@pytest.mark.parametrize("name", ["month", "Month", "MONTH ", "mo_nth"])
def test_a_feature_called_as_a_column_that_an_option_names_is_refused(name):
    table = make_table(csr_array(COUNTS.astype(np.uint32)), IDS, [*LETTERS[1:], name])
    fault = f"table: feature {name!r} has the name of the metadata column 'month'; remove it"
    assert refusal(checks.refuse_metadata_inside, table, ["subject", "month"]) == fault
    checks.refuse_metadata_inside(table, ["subject"])


def test_the_largest_features_are_named_with_their_share():
    reads = [[900, 60, 0, 10, 10, 10, 10]]
    words = checks.shares_in_words(table_of(reads))
    assert words == "f0 90.0%, f1 6.0%, f3 1.0%, f4 1.0%, f5 1.0%"
    dna = ["ACGT" * 10, "CCGT" * 10]
    table = make_table(csr_array(np.array([[1, 3]], np.uint32)), ["s"], dna, dna)
    assert checks.shares_in_words(table) == f"{md5(dna[1])} 75.0%, {md5(dna[0])} 25.0%"


@pytest.mark.parametrize(
    ("depths", "says"),
    [
        (
            [900] * 9 + [89],
            "1 of 10 samples have less than a tenth of the median depth (900 reads): 's9 (89)'",
        ),
        ([900] * 7 + [1, 2, 0], "3 of 10 samples"),
        ([900] * 9 + [90], ""),
    ],
)
def test_samples_far_below_the_median_depth_are_listed(caplog, depths, says):
    caplog.set_level("INFO", "aam")
    checks.list_shallow_samples(table_of([[depth] for depth in depths]))
    assert says in caplog.text
    assert ("--exclude FILE" in caplog.text) == bool(says)
