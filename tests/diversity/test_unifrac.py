"""UniFrac, Faith PD and Jaccard against their formulas, scikit-bio and published
matrices.
"""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.spatial.distance import pdist, squareform
from skbio import DistanceMatrix
from skbio.diversity import alpha_diversity, beta_diversity

from aam.config import UnifracMetric
from aam.data.table import read_table
from aam.diversity import distances, unifrac
from aam.diversity.distances import (
    TreeOnDevice,
    batch_unifrac,
    faith_pd,
    jaccard,
    multiply_on,
    samples_without_tips,
    unifrac_matrix,
    unifrac_tiles,
)
from aam.diversity.unifrac import UnifracOptions
from aam.io.phylogeny import Phylogeny, match_tips, parse_newick, prune, read_tree
from tests.data.small_trees import random_newick, skbio_tree

METRICS = get_args(UnifracMetric)
RIVALS = {
    "unifrac": {"metric": "unweighted_unifrac"},
    "weighted": {"metric": "weighted_unifrac"},
    "weighted-normalized": {"metric": "weighted_unifrac", "normalized": True},
}


def random_counts(rng: np.random.Generator, samples: int, features: int) -> np.ndarray:
    return rng.integers(1, 50, (samples, features)) * (rng.random((samples, features)) < 0.3)


def case(seed: int, samples: int = 9, features: int = 30):
    """Newick text, its tree, the tip of each feature, and counts."""
    rng = np.random.default_rng(seed)
    text = f"({random_newick(rng, features)});"
    tips = match_tips(tree := parse_newick(text), [f"t{i}" for i in range(features)])
    return text, tree, tips, random_counts(rng, samples, features)


def double(metric: str, alpha: float = 0.5, root_length: str = "include") -> UnifracOptions:
    return UnifracOptions(metric, alpha, root_length, double=True)


def naive(tree: Phylogeny, tips: np.ndarray, counts: np.ndarray, metric: str, alpha: float):
    """The published formulas, over all branches and pairs of samples."""
    is_below = (tree.lo[:, None] <= tips) & (tips < tree.hi[:, None])
    share = is_below @ counts.T / np.maximum(counts.sum(axis=1), 1)
    p, q = share[:, :, None], share[:, None, :]
    if metric == "unifrac":
        p, q = (p > 0).astype(float), (q > 0).astype(float)
    both, power = p + q, {"unifrac": 0.0, "generalized": alpha}.get(metric, 1.0)
    safe = np.where(both > 0, both, 1)
    weight = np.where(both > 0, tree.length[:, None, None] * safe**power, 0)
    above = (weight * abs(p - q) / (1 if metric == "unifrac" else safe)).sum(axis=0)
    below = 1 if metric == "weighted" else weight.sum(axis=0)
    return np.divide(above, below, out=np.zeros_like(above), where=np.greater(below, 0))


def scikit_bio(text: str, counts: np.ndarray, metric: str) -> np.ndarray:
    taxa = [f"t{i}" for i in range(counts.shape[1])]
    return beta_diversity(counts=counts, taxa=taxa, tree=skbio_tree(text), **RIVALS[metric]).data


@pytest.fixture
def small_tiles(monkeypatch):
    """Sizes so small that every branch of the code for large tables is taken."""
    monkeypatch.setattr(distances, "TILE", 16)
    monkeypatch.setattr(unifrac, "BRANCHES", 7)
    monkeypatch.setattr(unifrac, "SAMPLES_IN_CACHE", 3)
    monkeypatch.setattr(unifrac, "ADDED", 3)
    monkeypatch.setattr(distances, "STRIP", 5)
    monkeypatch.setattr(unifrac, "VISITED_PAIRS", 10)
    monkeypatch.setattr(unifrac, "RARE_SHARE", 0.4)
    monkeypatch.setattr(unifrac, "RARE_TIPS", 10)


# --- against formulas and scikit-bio -----------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("metric", "alpha"),
    [(metric, 0.5) for metric in METRICS] + [("generalized", alpha) for alpha in (0.0, 0.3, 1.0)],
)
def test_batches_equal_the_formulas(seed, metric, alpha):
    _, tree, tips, counts = case(seed)
    distances = batch_unifrac(tree, tips, counts, double(metric, alpha))
    np.testing.assert_allclose(distances, naive(tree, tips, counts, metric, alpha), atol=1e-13)
    assert (distances == distances.T).all()
    assert (np.diagonal(distances) == 0).all()


@pytest.mark.parametrize("metric", RIVALS)
@pytest.mark.parametrize("seed", range(2))
def test_batches_equal_scikit_bio(seed, metric):
    text, tree, tips, counts = case(seed, samples=20, features=60)
    counts[[2, 5]] = 0
    distances = batch_unifrac(tree, tips, counts, double(metric))
    np.testing.assert_allclose(distances, scikit_bio(text, counts, metric), atol=1e-13)
    assert distances[2, 5] == 0, "samples without reads"


def test_faith_pd_equals_scikit_bio():
    text, tree, tips, counts = case(5)
    counts[3], taxa = 0, [f"t{i}" for i in range(30)]
    expected = alpha_diversity("faith_pd", counts, taxa=taxa, tree=skbio_tree(text))
    np.testing.assert_allclose(faith_pd(tree, tips, counts), expected, atol=1e-13)


@pytest.mark.parametrize("metric", METRICS)
def test_a_batch_without_any_read_is_at_distance_0(metric):
    _, tree, tips, counts = case(8)
    assert (batch_unifrac(tree, tips, 0 * counts, double(metric)) == 0).all()
    assert (faith_pd(tree, tips, 0 * counts) == 0).all()


def test_samples_without_reads_on_the_tree_are_found():
    _, _, tips, counts = case(8)
    counts[[2, 5]] = 0
    np.testing.assert_array_equal(np.flatnonzero(samples_without_tips(tips, counts)), [2, 5])
    without = tips.copy()
    without[counts[0] > 0] = -1
    assert samples_without_tips(without, counts)[0], "reads of features without a tip do not count"


@pytest.mark.parametrize("metric", ["unifrac", "weighted-normalized"])
def test_the_length_of_the_root_counts_unless_excluded(metric):
    text = "((t0:1,t1:2):0.5,(t2:1,t3:0.25):2):3;"
    tree = parse_newick(text)
    tips, counts = np.arange(4), np.array([[3, 1, 0, 0], [0, 1, 2, 0], [0, 0, 1, 5]])
    included = batch_unifrac(tree, tips, counts, double(metric))
    excluded = batch_unifrac(tree, tips, counts, double(metric, root_length="exclude"))
    np.testing.assert_allclose(
        excluded, scikit_bio(text.replace(":3;", ";"), counts, metric), atol=1e-13
    )
    np.testing.assert_allclose(included, naive(tree, tips, counts, metric, 0.5), atol=1e-13)
    assert (included < excluded)[np.triu_indices(3, 1)].all()
    difference = faith_pd(tree, tips, counts) - faith_pd(tree, tips, counts, "exclude")
    np.testing.assert_allclose(difference, 3)


# --- invariances -------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
def test_neither_order_nor_pruning_nor_absent_features_change_anything(metric):
    _, tree, tips, counts = case(9)
    expected = batch_unifrac(tree, tips, counts, double(metric))
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(9), rng.permutation(30)
    moved = batch_unifrac(tree, tips[columns], counts[rows][:, columns], double(metric))
    np.testing.assert_allclose(moved, expected[np.ix_(rows, rows)], atol=1e-13)

    present = np.flatnonzero(counts[:4].any(axis=0))
    pruned = prune(tree, tips[present])
    new_tips = match_tips(pruned, [tree.tips[tip] for tip in tips[present]])
    alone = batch_unifrac(pruned, new_tips, counts[:4, present], double(metric))
    np.testing.assert_allclose(alone, expected[:4, :4], atol=1e-13)


@pytest.mark.parametrize("kind", [np.float32, sparse.csr_matrix, sparse.csr_array])
def test_any_kind_of_counts(kind):
    _, tree, tips, counts = case(11)
    expected = batch_unifrac(tree, tips, counts, double("weighted"))
    same = counts.astype(kind) if kind is np.float32 else kind(counts)
    np.testing.assert_array_equal(batch_unifrac(tree, tips, same, double("weighted")), expected)
    # More reads than 32 bits hold.
    many = batch_unifrac(tree, tips, counts.astype(np.int64) * 10**9, double("weighted"))
    np.testing.assert_allclose(many, expected, atol=1e-13)


# --- whole tables ------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("threads", [1, 2])
def test_tiles_equal_one_batch(metric, threads, small_tiles):
    _, tree, tips, counts = case(14, samples=50, features=80)
    expected = batch_unifrac(tree, tips, counts, double(metric))
    table, options = sparse.csr_matrix(counts), double(metric)
    seen = np.zeros((50, 50), int)
    for rows, columns, tile in unifrac_tiles(tree, tips, table, options, threads=threads):
        np.testing.assert_allclose(tile, expected[rows, columns], atol=1e-13)
        seen[rows, columns] += 1
        assert columns.start >= rows.start
    assert (np.maximum(seen, seen.T) == 1).all()
    whole = unifrac_matrix(tree, tips, table, options, threads)
    np.testing.assert_allclose(whole, expected, atol=1e-13)
    assert (whole == whole.T).all()
    np.testing.assert_allclose(faith_pd(tree, tips, table), faith_pd(tree, tips, counts))


@pytest.mark.parametrize("metric", METRICS)
def test_tables_in_single_precision_are_near_the_double(metric, small_tiles):
    _, tree, tips, counts = case(17, samples=50, features=300)
    counts[7] = counts[31]
    counts[9] *= 1000
    single = unifrac_matrix(tree, tips, counts, UnifracOptions(metric))
    assert single.dtype == np.float32
    exact = unifrac_matrix(tree, tips, counts, double(metric))
    np.testing.assert_allclose(single, exact, atol=1e-6)
    assert single[7, 31] < 1e-6
    if metric == "unifrac":
        assert single[7, 31] == 0, "sums of rounded lengths are exact, so equal samples are equal"


def test_a_memory_limit_makes_tiles_smaller():
    _, tree, tips, counts = case(15, samples=40, features=80)
    for limit, largest in ((100_000, range(2, 40)), (1000, range(1, 2))):
        tiles = unifrac_tiles(tree, tips, counts, memory_limit=limit)
        assert max(tile.shape[0] for _, _, tile in tiles) in largest


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_products_on_a_device_equal_those_of_numpy(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU that torch can use")
    _, tree, tips, counts = case(16, samples=40, features=80)
    multiply, options = multiply_on(torch.device(device)), double("unifrac")
    ((_, _, tile),) = unifrac_tiles(tree, tips, counts, options, multiply)
    np.testing.assert_allclose(tile, batch_unifrac(tree, tips, counts, options), atol=1e-13)


@pytest.mark.parametrize("root_length", ["include", "exclude"])
@pytest.mark.parametrize("metric", METRICS)
def test_a_batch_on_a_device_equals_that_of_the_host(
    study_of, tiny, metric, root_length, monkeypatch
):
    study = study_of(**tiny())
    part, options = study.parts[0], double(metric, root_length=root_length)
    table = study.table.counts[:9].toarray()
    tips = np.where(np.arange(table.shape[1]) % 7, part.tips, -1)
    # The first two samples have no read on the tree.
    table[:2] = np.where(tips >= 0, 0, table[:2])
    expected = batch_unifrac(part.tree, tips, table, options)
    row, feature = (torch.from_numpy(places) for places in np.nonzero(table + 1))
    reads = torch.from_numpy(table.flatten().astype(np.float32))
    on_device = TreeOnDevice(part.tree, tips, options, torch.device("cpu"))
    slots = (feature, row, reads)
    actual = on_device.distances(*slots, (9,), (len(row),))
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-12)
    # Three ranks, whose samples are read together, or one rank after the other.
    features = table.shape[1]
    for chunk, fits in itertools.product((1, 5 * 9 * len(on_device.length)), (True, False)):
        monkeypatch.setattr("aam.diversity.distances.CHUNK_NUMBERS", chunk)
        monkeypatch.setattr(TreeOnDevice, "fits", lambda *_, fits=fits: fits)
        samples = (3, 5, 1)
        divided = [number * features for number in samples]
        some = on_device.distances(*slots, samples, divided, 1)
        np.testing.assert_allclose(some.numpy(), expected[3:8], rtol=0, atol=1e-12)


# --- published matrices and real studies -------------------------------------------------------


QIIME_1 = ("skbio_qiime191_tt", "otu-table.tsv", "{}_unifrac_dm.txt")
QIIME_2 = ("moving_pictures_q2mlab", "table.biom", "expected_{}_unifrac.tsv")


@pytest.mark.parametrize(
    ("source", "metric", "name"),
    [
        (QIIME_1, "unifrac", "unweighted"),
        (QIIME_1, "weighted", "weighted"),
        (QIIME_1, "weighted-normalized", "weighted_normalized"),
        (QIIME_2, "unifrac", "unweighted"),
        (QIIME_2, "weighted", "weighted"),
    ],
)
def test_published_matrices(bench_data, source, metric, name):
    folder = bench_data / "unifrac-truth" / source[0]
    table = read_table(folder / source[1], need_sequences=False)
    expected = DistanceMatrix.read(str(folder / source[2].format(name)))
    tips = match_tips(tree := read_tree(folder / "tree.nwk"), table.feature_ids)
    distances = unifrac_matrix(tree, tips, table.counts, UnifracOptions(metric))
    kept = [name for name in table.sample_ids if name in expected.ids]
    assert len(kept) >= 8
    rows = [table.row_of[name] for name in kept]
    np.testing.assert_allclose(distances[np.ix_(rows, rows)], expected.filter(kept).data, atol=1e-6)


def test_jaccard_is_that_of_scipy():
    counts = random_counts(np.random.default_rng(0), 12, 60)
    expected = squareform(pdist(counts > 0, "jaccard"))
    np.testing.assert_allclose(jaccard(sparse.csr_matrix(counts)), expected, atol=1e-15)
