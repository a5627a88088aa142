"""What learned baselines read, against the definitions."""

from __future__ import annotations

import numpy as np
import pytest

from aam.predict.baseline_inputs import kmer_distance, linear_features, presence, rarefactions, shares, words_of


@pytest.fixture
def study(study_of, tiny):
    return study_of(**tiny(samples=12, asvs=20))


def test_8_mers_of_samples_are_compared_as_sets(study):
    (counts,) = rarefactions(study, np.arange(12), 1)
    distance = kmer_distance(words_of(study), counts, ())
    words = []
    for row in range(12):
        sequences = [study.table.sequences[column] for column in counts[row].indices]
        words.append({sequence[at : at + 8] for sequence in sequences for at in range(len(sequence) - 7)})
    expected = [[1 - len(first & second) / len(first | second) for second in words] for first in words]
    np.testing.assert_allclose(distance, expected, atol=1e-6)


def test_shares_add_up_presence_is_0_or_1_and_rarefactions_differ(study):
    first, second = rarefactions(study, np.arange(12), 2)
    assert (first != second).nnz > 0
    assert shares(first, ()).sum(axis=1) == pytest.approx(1)
    assert set(np.unique(presence(first, ()).toarray())) == {0, 1}
    np.testing.assert_array_equal(presence(first, ()).toarray() > 0, first.toarray() > 0)


def test_covariates_vary_as_much_as_presence_in_what_a_linear_model_reads(study):
    (counts,) = rarefactions(study, np.arange(12), 1)
    blocks = (np.eye(3)[np.arange(12) % 3], np.arange(12.0)[:, None] / 11)
    variance = linear_features(counts, blocks).toarray().var(axis=0)
    assert variance[:20].sum() == pytest.approx(variance[20:].sum(), rel=1e-4)
    np.testing.assert_array_equal(linear_features(counts, ()).toarray(), presence(counts, ()).toarray())
