"""Distances between samples whose ASVs are placed on a reference tree, against exact UniFrac and
naive sums.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from aam.diversity.distances import unifrac_matrix
from aam.diversity.unifrac import UnifracOptions
from aam.io.phylogeny import parse_newick
from aam_16s.distances import placed_between, placed_tiles, sample_branches

RNG = np.random.default_rng(0)
TREE = parse_newick("(((a:.1,b:.2):.3,(c:.4,d:.1):.05):.2,(e:.3,f:.2):.4):0;", "tree")
COUNTS = sparse.csr_matrix(RNG.poisson(0.8, (9, 6)) + np.eye(9, 6, dtype=int))
METRICS = ("unifrac", "weighted-normalized")


def matrix(counts, probability, length, own, metric):
    values = np.full((counts.shape[0],) * 2, np.nan)
    for rows, columns, tile in placed_tiles(
        counts, sparse.csr_matrix(probability), length, own, metric
    ):
        values[rows, columns], values[columns, rows] = tile, tile.T
    return values


def sure_places() -> np.ndarray:
    probability = np.zeros((6, len(TREE.parent)), np.float32)
    for tip in range(6):
        probability[tip, (TREE.lo <= tip) & (tip < TREE.hi)] = 1
    return probability


LENGTH, OWN, NO_OWN = (
    TREE.length.astype(np.float32),
    RNG.random(6).astype(np.float32),
    np.zeros(6, np.float32),
)
IN_DOUBT = sure_places() * RNG.random((6, len(TREE.parent))).astype(np.float32)


@pytest.mark.parametrize("metric", METRICS)
def test_where_nothing_is_in_doubt_it_is_unifrac_itself(metric, monkeypatch):
    monkeypatch.setattr("aam_16s.distances.TILE", 4)
    found = matrix(COUNTS, sure_places(), LENGTH, NO_OWN, metric)
    exact = unifrac_matrix(TREE, np.arange(6), COUNTS, UnifracOptions(metric))
    np.testing.assert_allclose(found, exact, atol=3e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_branches_in_doubt_and_own_ones_are_summed_as_written(metric):
    lengths, counts = np.r_[LENGTH, OWN], COUNTS.toarray()
    above = np.c_[IN_DOUBT, np.eye(6)]
    expected = np.zeros((9, 9))
    for i, one in enumerate(counts):
        for j, other in enumerate(counts):
            if metric == "unifrac":
                p, q = (1 - np.prod(1 - above[reads > 0], axis=0) for reads in (one, other))
                part, whole = lengths * (p - q) ** 2, lengths * (p**2 + q**2 - p * q)
            else:
                p, q = (reads / reads.sum() @ above for reads in (one, other))
                part, whole = lengths * abs(p - q), lengths * (p + q)
            expected[i, j] = part.sum() / whole.sum()
    np.testing.assert_allclose(matrix(COUNTS, IN_DOUBT, LENGTH, OWN, metric), expected, atol=2e-5)


@pytest.mark.parametrize("metric", METRICS)
def test_a_branch_counts_as_much_in_pieces(metric):
    pieces = (
        np.concatenate([IN_DOUBT, IN_DOUBT[:, ::-1]], axis=1),
        np.r_[LENGTH * 0.25, LENGTH[::-1] * 0.75],
    )
    whole = matrix(COUNTS, IN_DOUBT, LENGTH, NO_OWN, metric)
    np.testing.assert_allclose(matrix(COUNTS, *pieces, NO_OWN, metric), whole, atol=1e-6)


def test_a_sample_without_reads_on_the_tree_has_no_branches():
    counts = sparse.csr_matrix(np.array([[0, 3], [0, 0]]))
    probability = sparse.csr_matrix(np.array([[1, 0.5], [0, 0.25]], np.float32))
    np.testing.assert_allclose(
        sample_branches(counts, probability, "unifrac"), [[0, 0.25], [0, 0]], atol=1e-6
    )
    np.testing.assert_allclose(
        sample_branches(counts, probability, "weighted-normalized"), [[0, 0.25], [0, 0]]
    )


@pytest.mark.parametrize("metric", METRICS)
def test_distances_to_other_samples_are_those_of_one_table(metric, monkeypatch):
    monkeypatch.setattr("aam_16s.distances.TILE", 4)
    whole = matrix(COUNTS, IN_DOUBT, LENGTH, OWN, metric)
    found = np.full((5, 4), np.nan)
    for rows, columns, tile in placed_between(
        COUNTS[:5], COUNTS[5:], sparse.csr_matrix(IN_DOUBT), LENGTH, OWN, metric
    ):
        found[rows, columns] = tile
    np.testing.assert_allclose(found, whole[:5, 5:], atol=1e-6)


def test_the_cosine_is_that_of_cube_roots_of_shares_and_fourth_roots_of_lengths():
    ((_, _, tile),) = placed_between(
        COUNTS[:5], COUNTS[5:], sparse.csr_matrix(IN_DOUBT), LENGTH, NO_OWN, "cosine"
    )
    reads = COUNTS.toarray()
    one, other = (
        np.cbrt(part @ IN_DOUBT / part.sum(axis=1, keepdims=True))
        for part in (reads[:5], reads[5:])
    )
    one, other = (part * TREE.length**0.25 for part in (one, other))
    norms = np.outer(np.linalg.norm(one, axis=1), np.linalg.norm(other, axis=1))
    np.testing.assert_allclose(tile, 1 - one @ other.T / norms, atol=1e-6)
