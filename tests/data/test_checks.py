"""Warnings about donors and reads."""

import logging

import numpy as np
import pytest
from scipy.sparse import csr_array

from aam.config import DataConfig
from aam.data.checks import warn_of_donors, warn_of_reads, warn_of_values
from aam.data.table import make_table
from aam.io.metadata import make_metadata
from aam.io.tables import AmpliconTable

DONORS, VISITS = 10, 4
IDS = [f"s{row:02}" for row in range(DONORS * VISITS)]


def table_of(counts) -> AmpliconTable:
    names = [f"f{column}" for column in range(np.shape(counts)[1])]
    return make_table(csr_array(np.asarray(counts, np.uint32)), IDS[: len(counts)], names)


def reads(own: int = 20, seed: int = 0) -> np.ndarray:
    """Counts of donors each of whom has ASVs of his own."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(5, (len(IDS), 300)) * (rng.random((len(IDS), 300)) < 0.1)
    for donor in range(DONORS):
        rows = slice(donor * VISITS, (donor + 1) * VISITS)
        counts[rows, donor * 20 : donor * 20 + own] += rng.poisson(9, (VISITS, own))
    return counts


def said(caplog, counts, columns: dict[str, list], **options) -> str:
    caplog.clear()
    cells = {name: tuple(map(str, values)) for name, values in columns.items()}
    blank = [""] * len(cells)
    metadata = make_metadata(IDS, cells, blank, blank, "metadata")
    warn_of_donors(table_of(counts), metadata, ["y"], DataConfig(**options))
    return caplog.text


DONOR = [row // VISITS for row in range(len(IDS))]
RANDOM = np.random.default_rng(1).random(len(IDS)).round(3).tolist()
NAMES = ["studyid", "ScreenID", "PID", "subj", "pig", "cage_id", "household", "x", "tree", "Nr"]


@pytest.mark.parametrize("name", NAMES)
def test_donors_are_noticed_by_their_samples_whatever_the_column_is_called(caplog, name):
    text = said(caplog, reads(), {"y": RANDOM, name: DONOR, "visit": [*range(4)] * DONORS})
    assert f"have 10 values in {name!r} and no --group-column is given" in text
    assert f"--group-column {name} keeps the samples of a donor together" in text
    text = said(caplog, reads(), {"y": RANDOM, name: [f"P{donor}" for donor in DONOR]})
    assert f"--group-column {name}" in text


def test_columns_of_no_donor_say_nothing(caplog):
    rng = np.random.default_rng(2)
    columns = {
        "plate": rng.integers(0, 8, len(IDS)),
        "visit": [*range(VISITS)] * DONORS,
        "id": IDS,
        "site": [donor % 3 for donor in DONOR],
        "ph": [donor + 0.5 for donor in DONOR],
    }
    assert not said(caplog, reads(), {"y": RANDOM, **columns})


@pytest.mark.parametrize("options", [{"group_column": "site"}, {"test_size": 0.0}, {"cv": "pig"}])
def test_donors_that_nothing_divides_say_nothing(caplog, options):
    columns = {"y": RANDOM, "pig": DONOR, "site": [donor % 3 for donor in DONOR]}
    assert not said(caplog, reads(), columns, **options)


def raw() -> np.ndarray:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(60, 0.3), 20)
    return np.array([rng.multinomial(5_000 + 700 * row, share) for row, share in enumerate(shares)])


SCALED = {
    "counts per million": (lambda x: x / x.sum(axis=1, keepdims=True) * 1e6, "1,000,000 reads"),
    "scaled to 10,000": (lambda x: x / x.sum(axis=1, keepdims=True) * 1e4, "reads; they were"),
    "rounded logarithms": (lambda x: np.log2(x + 1), "may be logarithms"),
    "too many": (lambda x: x * 1e5, "more than any sequencer gives"),
}


@pytest.mark.parametrize(("scale", "words"), SCALED.values(), ids=SCALED)
def test_whole_numbers_that_are_no_reads_are_named(caplog, scale, words):
    with caplog.at_level(logging.WARNING, "aam"):
        warn_of_reads(table_of(scale(raw().astype(float)).round()))
    assert words in caplog.text
    caplog.clear()
    warn_of_reads(table_of(raw()))
    warn_of_reads(table_of(raw() // 100))
    assert not caplog.text


PAIRS = [f"{letter}{number}" for number in range(5) for letter in "Pp"]
MEANT_OTHERWISE = [
    (["Yes", "yes", "no"], "classes", "'Yes', 'yes' in 'y' are different classes"),
    (["P1", "p1", "P2"], "group", "'P1', 'p1' in 'y' are different groups; if they are one, it is"),
    (["X", "x", "Y", "y"], "fold", "'X', 'x' and 'Y', 'y' in 'y' are different folds; if they"),
    (PAIRS, "group", "and 2 more in 'y' are different groups"),
    ([f"{n} months" for n in range(5)], "classes", "'y' holds numbers with units: '0 months', '1"),
    (
        ["0", "1", "0"],
        "columns",
        "'y' contains only 0 and 1 and is predicted as a number; --classif",
    ),
    (["-9", "2", "3", "4"], "columns", "'-9' in 'y' may mean a missing value; if so, pass --miss"),
    (["gut", "TBD"], "group", "'TBD' in 'y' may mean a missing value"),
    (["1", "2", "3"], "columns", ""),
    (["a", "b", "c"], "fold", ""),
]


@pytest.mark.parametrize(("values", "use", "says"), MEANT_OTHERWISE)
def test_values_that_are_probably_meant_otherwise_are_warned_of(caplog, values, use, says):
    ids = [f"s{row}" for row in range(len(values))]
    metadata = make_metadata(ids, {"y": tuple(values)}, [""], [""], "metadata")
    uses = {"columns": [], "classes": [], "group": None, "fold": None}
    uses |= {use: "y" if use in ("group", "fold") else ["y"]}
    with caplog.at_level(logging.WARNING, "aam"):
        warn_of_values(metadata, **uses)
    assert says in caplog.text
    assert len(caplog.records) == bool(says)
