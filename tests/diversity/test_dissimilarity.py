"""Bray-Curtis and Jaccard against scipy and scikit-bio."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.spatial.distance import pdist, squareform
from skbio.diversity import beta_diversity

from aam.diversity.batch import bray_curtis, jaccard

RNG = np.random.default_rng(0)
COUNTS = np.stack([RNG.multinomial(200, RNG.dirichlet(np.full(60, 0.2))) for _ in range(12)])
TABLE = sparse.csr_matrix(COUNTS)


@pytest.mark.parametrize(
    ("function", "name", "values"), [(bray_curtis, "braycurtis", COUNTS), (jaccard, "jaccard", COUNTS > 0)]
)
def test_both_are_those_of_scipy_and_scikit_bio(function, name, values):
    expected = squareform(pdist(values, name))
    np.testing.assert_allclose(function(TABLE), expected, atol=1e-15)
    np.testing.assert_allclose(function(TABLE), beta_diversity(name, values.astype(int)).data, atol=1e-15)
    np.testing.assert_array_equal(function(TABLE, slice(3, 7)), function(TABLE)[3:7])
    assert (np.diag(function(TABLE)) == 0).all()


def test_samples_of_other_depths_are_compared_by_their_shares():
    deeper = COUNTS * np.arange(1, 13)[:, None]
    np.testing.assert_allclose(bray_curtis(sparse.csr_matrix(deeper)), bray_curtis(TABLE), atol=1e-15)
    np.testing.assert_array_equal(jaccard(sparse.csr_matrix(deeper)), jaccard(TABLE))


def test_samples_without_a_common_feature_are_at_one():
    apart = sparse.csr_matrix([[3, 0, 1], [0, 2, 0]])
    np.testing.assert_array_equal(bray_curtis(apart), [[0, 1], [1, 0]])
    np.testing.assert_array_equal(jaccard(apart), [[0, 1], [1, 0]])
