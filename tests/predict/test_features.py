"""Features are those of the rarefactions that the network reads; sequences are compared by their
8-mers.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy import sparse

from aam.data.collate import Collation, rarefied_batch
from aam.data.rarefaction import rarefied_rows
from aam.data.tokens import PAD, K, N, encode, kmer_counts
from aam.predict.features import (
    BUCKETS,
    FEATURES,
    Inputs,
    Presence,
    Samples,
    as_bytes,
    as_sequences,
    fit_features,
    kmer_sketch,
    stack_rows,
)
from tests.data.labels import labelled

ROWS = np.arange(9)


@pytest.fixture
def study(study_of, tiny):
    return study_of(**tiny(lengths=(20, 17), tree=False))


@pytest.mark.parametrize("rarefaction", [0, 3, -2])
def test_reads_are_what_the_network_reads_in_the_same_rarefaction(study, rarefaction):
    samples = Samples.rarefied(study, ROWS, [rarefaction])
    batch = rarefied_batch(study, ROWS, rarefaction, Collation(distances=False))
    for place, name in enumerate(batch.sample_ids):
        here = batch.counts[place] > 0
        expected = np.zeros(len(study.table.sequences))
        expected[batch.column[batch.asv[place][here]]] = batch.counts[place][here]
        row = study.table.sample_ids.index(name)
        np.testing.assert_array_equal(
            samples.counts[0][row].toarray()[0], expected[samples.columns]
        )
        assert samples.counts[0][row].sum() == expected.sum()


def test_every_rarefaction_is_another_and_depends_on_the_sample_alone(study):
    both = Samples.rarefied(study, ROWS, [0, 1])
    assert (both.counts[0] != both.counts[1]).nnz
    alone = Samples.rarefied(study, np.array([4]), [0])
    expected = both.counts[0][4].toarray()[0]
    np.testing.assert_array_equal(
        alone.counts[0].toarray()[0], expected[np.isin(both.columns, alone.columns)]
    )
    known = Samples.of_reads(study, ROWS, [rarefied_rows(study, ROWS, 0)])
    assert (known.counts[0] != Samples.rarefied(study, ROWS, [0]).counts[0]).nnz == 0


def test_an_asv_of_two_samples_is_not_known(study_of):
    counts = np.full((6, 3), 40)
    counts[2:, 0], counts[3:, 1] = 0, 0
    study = study_of(counts, ["ACGTACGTAC", "CCGTACGTAC", "GCGTACGTAC"], depth=40)
    presence = Presence().fit(Samples.rarefied(study, np.arange(6), range(2)))
    assert as_sequences(presence.sequences_) == ("CCGTACGTAC", "GCGTACGTAC")


def test_presence_and_shares_are_of_the_asvs_that_are_known(study_of, tiny):
    """In a table of other columns too."""
    made = tiny(tree=False)
    study = study_of(**made)
    order = np.random.default_rng(0).permutation(24)[:20]
    other = study_of(
        made["counts"][:, order], [made["sequences"][column] for column in order], depth=40
    )
    for one in (study, other):
        samples = Samples.rarefied(one, ROWS, [0])
        reads = {
            sequence: samples.counts[0][:, [at]].toarray()[:, 0]
            for at, sequence in enumerate(samples.sequences)
        }
        for name, of_reads in (("presence", np.sign), ("shares", lambda values: values / 40)):
            feature = FEATURES[name]()
            feature.sequences_ = as_bytes(made["sequences"][3:15])
            (values,) = feature.transform(samples)
            for place, sequence in enumerate(made["sequences"][3:15]):
                expected = of_reads(reads.get(sequence, np.zeros(9)))
                np.testing.assert_allclose(values.toarray()[:, place], expected, atol=1e-12)


def test_words_are_those_of_a_naive_loop():
    tokens = np.random.default_rng(0).integers(1, 6, (7, 25)).astype(np.uint8)
    tokens[3, 12:] = PAD
    expected = [
        {
            bytes(row[at : at + 8])
            for at in range(18)
            if all(0 < base < N for base in row[at : at + 8])
        }
        for row in tokens
    ]
    counts = kmer_counts(tokens)
    assert [int((counts[[row]] > 0).sum()) for row in range(7)] == list(map(len, expected))
    shared = ((counts > 0).astype(int) @ (counts > 0).astype(int).T).toarray()
    assert shared.tolist() == [[len(one & other) for other in expected] for one in expected]
    assert kmer_counts(encode(["AAAAAAAAAA"])).max() == 3


def test_the_sketch_keeps_the_similarity_of_sets_of_8mers():
    rng = np.random.default_rng(0)
    base = rng.choice(list("ACGT"), 150)
    sequences = []
    for changed in (0, 1, 5, 15, 60):
        other = base.copy()
        other[rng.choice(150, changed, replace=False)] = "A"
        sequences.append("".join(other))
    sets = [{s[i : i + K] for i in range(len(s) - K + 1)} for s in sequences]
    exact = [[len(a & b) / np.sqrt(len(a) * len(b)) for b in sets] for a in sets]
    sketch = kmer_sketch(encode(sequences))
    assert sketch.shape == (5, BUCKETS)
    np.testing.assert_allclose((sketch @ sketch.T).toarray(), exact, atol=0.05)


def test_the_sketch_ignores_padding_and_8mers_with_n():
    lone, padded = (
        kmer_sketch(encode(["ACGTTGCAAC"])),
        kmer_sketch(encode(["ACGTTGCAAC", "A" * 30])),
    )
    assert (lone != padded[:1]).nnz == 0
    assert kmer_sketch(encode(["ACGTNGCAACC"])).nnz == 0, "each of its 8-mers holds the N"
    assert kmer_sketch(encode(["ACGT"])).nnz == 0, "it is shorter than an 8-mer"


def test_smoothed_presence_is_multiplied_as_a_matrix(study):
    X = Inputs.of(
        fit_features(["kmers"], Samples.rarefied(study, ROWS, [0])),
        Samples.rarefied(study, ROWS, [0]),
    )
    product, full = X.read("kmers"), X.read("kmers").toarray()
    other = np.random.default_rng(0).normal(size=(BUCKETS, 2))
    np.testing.assert_allclose(product @ other, full @ other, atol=1e-9)
    np.testing.assert_allclose(product.T @ other[:9], full.T @ other[:9], atol=1e-9)
    np.testing.assert_allclose(
        X[np.array([4, 2])].read("kmers").toarray(), full[[4, 2]], atol=1e-12
    )


def test_a_feature_is_computed_once_and_only_where_it_is_read(study, monkeypatch):
    samples, computed = Samples.rarefied(study, ROWS, range(3)), []
    transform = Presence.transform
    monkeypatch.setattr(
        Presence, "transform", lambda *asked: computed.append(1) or transform(*asked)
    )
    monkeypatch.setattr(FEATURES["kmers"], "transform", None)
    X = Inputs.of(fit_features(["presence", "kmers"], samples), samples)
    for number in range(3):
        inputs = X.rarefaction(number)[np.arange(4)]
        np.testing.assert_array_equal(
            inputs.read("presence").toarray(), X.read("presence", number).toarray()[:4]
        )
    assert computed == [1]
    assert (len(X), X.rarefactions, X[np.array([3])].ids) == (9, 3, ["s3"])


def test_covariates_are_one_column_for_each_category_and_number(study):
    category = np.array([[0], [1], [2], [3], [1], [2], [3], [0], [1]])
    covariate = np.linspace(-1, 1, 9, dtype=np.float32)[:, None].copy()
    covariate[5] = np.nan
    covered = labelled(study, category=category, covariate=covariate)
    feature = FEATURES["covariates"]().fit(Samples.rarefied(covered, ROWS, [0]))
    (values,) = feature.transform(Samples.rarefied(covered, ROWS, [0]))
    assert values.shape == (9, 4)
    np.testing.assert_array_equal(values[:, :3].sum(axis=1), category[:, 0] > 0)
    assert values[5, 3] == 0
    assert values[8, 3] == 1
    assert not feature.transform(Samples.rarefied(study, ROWS, [0]))[0].any(), (
        "unknown where a table has none"
    )


def test_sequences_survive_as_bytes():
    for sequences in (("ACGT", "AC", "NNRYACG"), ()):
        assert as_sequences(as_bytes(sequences)) == sequences


def test_8_mers_of_samples_are_compared_as_sets(study):
    samples = Samples.rarefied(study, ROWS, [0])
    (distance,) = FEATURES["kmer-jaccard"]().transform(samples)
    words = []
    for row in ROWS:
        sequences = [samples.sequences[column] for column in samples.counts[0][row].indices]
        words.append(
            {sequence[at : at + K] for sequence in sequences for at in range(len(sequence) - K + 1)}
        )
    expected = [
        [1 - len(first & second) / len(first | second) for second in words] for first in words
    ]
    np.testing.assert_allclose(distance, expected, atol=1e-6)
    assert FEATURES["unifrac"]().transform(samples) == (), "it needs a tree"
    covariate = np.arange(9, dtype=np.float32)[:, None] / 8
    covered = labelled(study, category=np.zeros((9, 0), np.int64), covariate=covariate)
    (farther,) = FEATURES["kmer-jaccard"]().transform(Samples.rarefied(covered, ROWS, [0]))
    np.testing.assert_allclose(farther - distance, np.abs(covariate - covariate.T), atol=1e-6)


def test_what_is_read_of_many_asvs_is_held_once_while_it_is_put_together():
    parts = [sparse.random(500, 300, 0.2, format="csr", random_state=seed) for seed in range(20)]
    expected = sparse.vstack(parts, format="csr")
    size = expected.data.nbytes + expected.indices.nbytes
    tracemalloc.start()
    whole = stack_rows(part.copy() for part in parts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (whole != expected).nnz == 0
    assert whole.indices.dtype == expected.indices.dtype
    assert peak < 1.3 * size, "sparse.vstack holds every part beside the whole: 2.1 times"
    mixed = [parts[0].astype(np.float32), parts[1], parts[2].astype(bool)]
    assert (stack_rows(iter(mixed)) != sparse.vstack(mixed).astype(np.float32)).nnz == 0
    alone = stack_rows(iter(parts[:1]))
    assert (alone != parts[0]).nnz == 0
