"""Warnings about values, donors, and reads that are no counts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from aam.config import DataConfig
from aam.data import checks
from aam.data.table import make_table
from aam.io.tables import AmpliconTable
from tests.data.studies import metadata_of

DONORS, VISITS = 10, 4
IDS = [f"s{row}" for row in range(DONORS * VISITS)]
DONOR = [row // VISITS for row in range(len(IDS))]
RANDOM = np.random.default_rng(1).random(len(IDS)).round(3).tolist()


def table_of(counts) -> AmpliconTable:
    names = [f"f{column}" for column in range(np.shape(counts)[1])]
    return make_table(csr_array(np.asarray(counts, np.uint32)), IDS[: len(counts)], names)


def warned(caplog, options=(), **columns) -> str:
    """What is said of donors each of whom has ASVs of their own."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(5, (len(IDS), 300)) * (rng.random((len(IDS), 300)) < 0.1)
    for donor in range(DONORS):
        rows = slice(donor * VISITS, (donor + 1) * VISITS)
        counts[rows, donor * 20 : donor * 20 + 20] += rng.poisson(9, (VISITS, 20))
    caplog.clear()
    metadata = metadata_of(y=RANDOM, **columns)
    checks.warn_of_donors(table_of(counts), metadata, ["y"], DataConfig(**dict(options)))
    return caplog.text


@pytest.mark.parametrize("name", ["studyid", "ScreenID", "PID", "subj", "pig", "cage_id", "Nr"])
def test_donors_are_noticed_by_their_samples_whatever_the_column_is_called(caplog, name):
    text = warned(caplog, **{name: DONOR, "visit": [*range(4)] * DONORS, "lat": ["51,5"] * 40})
    assert f"have 10 values in {name!r} and no --group-column is given" in text
    assert f"--group-column {name} keeps the samples of a donor together" in text
    assert f"--group-column {name}" in warned(caplog, **{name: [f"P{donor}" for donor in DONOR]})


def test_columns_of_no_donor_say_nothing(caplog, monkeypatch):
    plate, site = np.random.default_rng(2).integers(0, 8, len(IDS)), [donor % 3 for donor in DONOR]
    numbers = {"visit": [*range(VISITS)] * DONORS, "ph": [donor + 0.5 for donor in DONOR]}
    assert not warned(caplog, plate=plate, site=site, id=IDS, **numbers)
    monkeypatch.delattr(checks, "nearest_samples")
    assert not warned(caplog, site=site, id=IDS, **numbers), "no column asks for similar samples"


@pytest.mark.parametrize("options", [{"group_column": "site"}, {"test_size": 0.0}, {"cv": "pig"}])
def test_donors_that_nothing_divides_say_nothing(caplog, options):
    assert not warned(caplog, options, pig=DONOR, site=[donor % 3 for donor in DONOR])


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (lambda x: x / x.sum(axis=1, keepdims=True) * 1e6, "1,000,000 reads"),
        (lambda x: x / x.sum(axis=1, keepdims=True) * 1e4, "reads; they were"),
        (lambda x: np.log2(x + 1), "may be logarithms"),
        (lambda x: x * 1e5, "more than any sequencer gives"),
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


@pytest.mark.parametrize(("values", "says"), [("0 1 0", "only 0 and 1 and is"), ("1 2 3", "")])
def test_two_numbers_are_rather_classes(caplog, values, says):
    metadata = metadata_of(y=values.split())
    checks.warn_of_two_numbers(metadata, ["y"], metadata.ids)
    assert says in caplog.text
    assert len(caplog.records) == bool(says)
