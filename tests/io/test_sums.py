"""Totals in a table: samples and features that are sums of others are refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from aam.io.packed import write_artifact
from aam.io.tables import AmpliconTable, checked_table, find_sums
from tests.data.small_tables import biom_table, refused, save_hdf5
from tests.refusals import refusal

READS = np.random.default_rng(3).integers(0, 90, (5, 9))
SAMPLES, FEATURES = [f"s{row}" for row in range(5)], [f"f{column}" for column in range(9)]


def table(reads) -> AmpliconTable:
    samples, features = (
        tuple(f"{kind}{x}" for x in range(n)) for kind, n in zip("sf", reads.shape, strict=True)
    )
    counts = csr_array(reads.astype(np.uint32))
    return AmpliconTable(counts, samples, features)


def with_sum(axis: int, place: int, name: str):
    """READS [samples, features] with the sum over an axis among them, and the names of both."""
    samples, features = [*SAMPLES], [*FEATURES]
    (samples if axis == 0 else features).insert(place, name)
    return np.insert(READS, place, READS.sum(axis=axis), axis=axis), samples, features


@pytest.mark.parametrize("kind", ["text", "biom", "qza"])
@pytest.mark.parametrize(("axis", "noun"), [(0, "sample"), (1, "feature")])
@pytest.mark.parametrize(("place", "name"), [(0, "Gesamt"), (3, "x"), (-1, "Total")])
def test_a_total_is_refused_by_name(tmp_path, kind, axis, noun, place, name):
    reads, samples, features = with_sum(axis, place % (READS.shape[axis] + 1), name)
    path = tmp_path / "t"
    if kind == "text":
        rows = ([name, *cells] for name, cells in zip(features, reads.T, strict=True))
        lines = [["#OTU ID", *samples], *rows]
        path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    else:
        save_hdf5(biom_table(reads, samples, features), path)
        if kind == "qza":
            blob = {"feature-table.biom": path.read_bytes()}
            write_artifact(path, "FeatureTable[Frequency]", "BIOMV210DirFmt", blob)
    assert f"1 {noun}s equal the sum of other {noun}s: {name!r}" in refused(path)


def test_both_margins_and_two_copies_are_named():
    margins = np.vstack([READS, READS.sum(axis=0)])
    totals = margins.sum(axis=1)
    margins = np.column_stack([totals, margins, totals])
    names = [*SAMPLES, "all"], ["Sum", *FEATURES, "Total"]
    problems = refusal(checked_table, csr_array(margins), *names, "t").split("\n")
    assert [problem.split(": ")[2] for problem in problems] == [
        "'all'; remove such totals from the table",
        "'Sum', 'Total'; remove such totals from the table",
    ]


def test_subtotals_and_the_total_of_their_rows():
    parts = READS[:, :3], READS[:, 3:6], READS[:, 6:]
    below = [np.column_stack([part, part.sum(axis=1)]) for part in parts]
    above = [np.column_stack([part.sum(axis=1), part]) for part in parts]
    total = READS.sum(axis=1)
    assert find_sums(table(np.column_stack([*below, total])), 1).tolist() == [3, 7, 11, 12]
    assert find_sums(table(np.column_stack([total, *above])), 1).tolist() == [0, 1, 5, 9]
    assert find_sums(table(np.column_stack([*below, total]).T), 0).tolist() == [3, 7, 11, 12]


@pytest.mark.parametrize(
    "reads",
    [
        np.array([[60, 30, 30]]),  # The sum of two.
        np.array([[9], [9], [9]]),
        np.array([[3, 1, 1, 1, 0, 0]]),  # Too few reads to tell.
        np.array([[5, 0, 40, 0], [5, 0, 40, 0], [10, 7, 80, 1]]),  # A pool of two samples.
        np.zeros((4, 5), int),
        np.tile([500, 20, 30], (6, 1)),
    ],
)
def test_what_is_no_sum_of_three(reads):
    assert find_sums(table(reads), 0).tolist() == []
    assert find_sums(table(reads), 1).tolist() == []


def test_rare_features_next_to_each_other_are_no_sums():
    """Features of one sample each, as de-novo ASVs sorted by sample: 4 = 2 + 1 + 1 occurs often."""
    rng = np.random.default_rng(0)
    reads = np.zeros((30, 3000), int)
    reads[np.repeat(np.arange(30), 100), np.arange(3000)] = rng.geometric(0.4, 3000)
    assert find_sums(table(reads), 1).tolist() == []


@pytest.mark.parametrize(("axis", "noun"), [(0, "sample"), (1, "feature")])
@pytest.mark.parametrize(("name", "share"), [("TOTAL", 1.3), ("Gesamt", 0.7), ("Grand total", 1)])
def test_a_total_of_more_than_there_is_is_refused_by_name(axis, noun, name, share):
    """As after features of few reads were left out of a table, and their total was not."""
    reads, samples, features = with_sum(axis, 2, name)
    at = (2, slice(None)) if axis == 0 else (slice(None), 2)
    reads[at] = reads[at] * share + 1
    message = refusal(checked_table, csr_array(reads), samples, features, "t")
    says = f"{name!r} has at least half as many reads as all other {noun}s together"
    assert message == f"t: {says}; remove such totals from the table"
    reads[at] = reads[at] // 4
    checked_table(csr_array(reads), samples, features, "t")
    names = [x if x != name else "Bacteroides" for x in (samples if axis == 0 else features)]
    reads[at] *= 5
    checked_table(csr_array(reads), *((names, features) if axis == 0 else (samples, names)), "t")
