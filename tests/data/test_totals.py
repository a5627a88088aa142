"""Samples and features that are computed from others are refused by name, and what is not is read."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import biom
import numpy as np
import pytest
from scipy.sparse import csr_array

from aam.data.totals import find_ancestors, find_numbers, find_totals, refuse_computed
from aam.io.tables import AmpliconTable
from tests.archives import write_artifact
from tests.data.small_tables import biom_table, refused, save_hdf5
from tests.refusals import refusal

READS = np.random.default_rng(3).integers(0, 90, (5, 9))
SAMPLES, FEATURES = [f"s{row}" for row in range(5)], [f"f{column}" for column in range(9)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "infant-age"


def table_of(reads, features=()) -> AmpliconTable:
    counts = csr_array(np.asarray(reads, np.uint32))
    samples = tuple(f"s{row}" for row in range(counts.shape[0]))
    features = tuple(features) or tuple(f"f{column}" for column in range(counts.shape[1]))
    return AmpliconTable(counts, samples, features)


def with_sum(axis: int, place: int, name: str):
    """READS [samples, features] with the sum over an axis among them, and the names of both."""
    samples, features = [*SAMPLES], [*FEATURES]
    (samples if axis == 0 else features).insert(place, name)
    return np.insert(READS, place, READS.sum(axis=axis), axis=axis), samples, features


@pytest.mark.parametrize("kind", ["text", "biom", "qza"])
@pytest.mark.parametrize(
    ("axis", "says"),
    [
        (0, "samples equal the sum of all other samples: {}; remove them"),
        (1, "features equal the reads or the number of all other features of a sample: {}"),
    ],
)
@pytest.mark.parametrize(("place", "name"), [(0, "Gesamt"), (3, "x"), (-1, "Total")])
def test_a_total_is_refused_by_name(tmp_path, kind, axis, says, place, name):
    reads, samples, features = with_sum(axis, place % (READS.shape[axis] + 1), name)
    path = tmp_path / "t"
    if kind == "text":
        rows = ([feature, *cells] for feature, cells in zip(features, reads.T, strict=True))
        lines = [["#OTU ID", *samples], *rows]
        path.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    else:
        save_hdf5(biom_table(reads, samples, features), path)
        if kind == "qza":
            blob = {"feature-table.biom": path.read_bytes()}
            write_artifact(path, "FeatureTable[Frequency]", "BIOMV210DirFmt", blob)
    assert says.format(repr(name)) in refused(path)


def test_all_that_is_computed_comes_in_one_message():
    margins = np.vstack([READS, READS.sum(axis=0)])
    message = refusal(
        refuse_computed, table_of(np.column_stack([margins, margins.sum(axis=1)])), "t"
    )
    assert [line.split(": ")[2] for line in message.split("\n")] == [
        "'s5'; remove them",
        "'f9'; remove them",
    ]


RNG = np.random.default_rng(0)
SPARSE = RNG.poisson(40, (30, 60)) * (RNG.random((30, 60)) < 0.4)
RICHNESS, DEPTH = (SPARSE > 0).sum(axis=1), SPARSE.sum(axis=1)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ([RICHNESS], [60]),
        ([DEPTH], [60]),
        ([RICHNESS, DEPTH], [60, 61]),
        ([DEPTH, RICHNESS], [60, 61]),
        ([np.where(np.arange(30) < 3, 7, RICHNESS)], [60]),
        ([np.where(np.arange(30) < 4, 7, RICHNESS)], []),
        ([2 * RICHNESS], []),
        ([DEPTH - 1], []),
    ],
)
def test_numbers_of_reads_and_features_are_no_features(columns, found):
    reads = np.column_stack([SPARSE, *columns])
    if not found:
        refuse_computed(table_of(reads), "t")
        return
    names = ", ".join(repr(f"f{place}") for place in found)
    assert "t: features equal the reads or the number" in (
        message := refusal(refuse_computed, table_of(reads), "t")
    )
    assert f"{names}; remove them" in message


@pytest.mark.parametrize(
    "reads",
    [
        np.array([[60, 30, 30]]),  # The sum of two.
        np.array([[9], [9], [9]]),
        np.array([[3, 1, 1, 1, 0, 0]]),  # Too few reads to tell.
        np.array([[5, 0, 40, 0], [5, 0, 40, 0], [10, 7, 80, 1]]),  # A pool of two samples.
        np.zeros((4, 5), int),
        np.tile([500, 20, 30], (6, 1)),
        np.eye(40, dtype=int),
    ],
)
def test_what_is_no_sum_of_three(reads):
    for counts in (csr_array(reads), csr_array(reads.T)):
        assert find_totals(counts).tolist() == find_numbers(counts).tolist() == []


def test_rare_features_of_one_sample_each_are_no_totals():
    rng = np.random.default_rng(0)
    reads = np.zeros((30, 3000), int)
    reads[np.repeat(np.arange(30), 100), np.arange(3000)] = rng.geometric(0.4, 3000)
    table = table_of(reads)
    refuse_computed(table, "t")
    assert find_totals(table.counts).tolist() == find_numbers(table.counts).tolist() == []


# --- ranks -------------------------------------------------------------------------------------


def collapsed(rank: int, padded: bool) -> dict[str, np.ndarray]:
    """Reads [N] of each taxon of the example at a rank, as ``qiime taxa collapse`` and people who
    drop empty names write it.
    """
    table = biom.load_table(str(EXAMPLE / "table.biom"))
    lines = (EXAMPLE / "taxonomy.tsv").read_text().splitlines()
    lineage_of = dict(line.split("\t")[:2] for line in lines)
    reads: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(table.shape[1], np.int64))
    counts = table.matrix_data.tocsr().astype(np.int64)
    for place, feature in enumerate(table.ids("observation")):
        names = lineage_of.get(feature, "Unassigned").split("; ")[:rank]
        names += ["__"] * (rank - len(names)) if padded else []
        while not padded and len(names) > 1 and names[-1].endswith("__"):
            names.pop()
        reads[";".join(names)] += counts[[place]].toarray()[0]
    return reads


@pytest.fixture(scope="module")
def taxa():
    return {(rank, padded): collapsed(rank, padded) for rank in range(1, 8) for padded in (0, 1)}


def joined(parts, mark=";") -> AmpliconTable:
    """One table of several ranks; of taxa of one name the first stays."""
    reads = {}
    for part in parts:
        for name, values in part.items():
            reads.setdefault(name, values)
    names = [name.replace(";", mark) for name in reads]
    return table_of(np.column_stack([*reads.values()]), names)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("rank", range(1, 8))
def test_a_collapsed_table_is_read(taxa, rank, padded):
    """Up to 50 of 217 names are continued by others, and none is their sum."""
    table = joined([taxa[rank, padded]])
    refuse_computed(table, "t")
    assert find_ancestors(table.counts, table.feature_ids).tolist() == []


@pytest.mark.parametrize("mark", [";", "|", "; "])
@pytest.mark.parametrize(
    ("ranks", "padded", "number"),
    [
        (range(1, 8), True, 329),
        (range(2, 8), False, 119),
        ((2, 6), True, 14),
        ((2, 6), False, 6),
        ((5, 6, 7), False, 58),
    ],
)
def test_several_ranks_in_one_table_are_refused(taxa, mark, ranks, padded, number):
    message = refusal(refuse_computed, joined([taxa[rank, padded] for rank in ranks], mark), "t")
    assert message.startswith("t: features are the sum of others whose names continue")
    assert message.endswith(f"and {number - 5} more; keep one rank")
    assert message.count("', '") == 4


# --- pseudocounts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reads", "says"),
    [
        (SPARSE + 1, "t: no count is 0 and 61% are 1, as after a pseudocount was added; pass the"),
        (SPARSE + 3, "are 3, as after"),
        (np.maximum(SPARSE, 1), "61% are 1"),
        (SPARSE, ""),
        (READS + 1, ""),
        (np.ones((1, 90), int), ""),
        (np.ones((4, 90), int), ""),
    ],
)
def test_pseudocounts_are_refused_and_dense_tables_are_not(reads, says):
    if says:
        assert says in refusal(refuse_computed, table_of(reads), "t")
    else:
        refuse_computed(table_of(reads), "t")
