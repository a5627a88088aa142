"""Presence is that of the model's rarefactions; sequences are compared by their 8-mers."""

from __future__ import annotations

import numpy as np
import pytest

from aam.data.collate import Collation, rarefied_batch
from aam.data.tokens import encode
from aam.predict.presence import (
    BUCKETS,
    K,
    Vocabulary,
    as_bytes,
    as_sequences,
    common_columns,
    kmer_sketch,
    make_vocabulary,
    presence,
    read_features,
    read_present,
)
from tests.data.labels import labelled

ROWS = np.arange(9)


@pytest.fixture
def study(study_of, tiny):
    return study_of(**tiny(lengths=(20, 17), tree=False))


@pytest.mark.parametrize("draw", [0, 3, -2])
def test_presence_is_what_the_model_reads_in_the_same_draw(study, draw):
    present = presence(study, ROWS, draw).toarray()
    batch = rarefied_batch(study, ROWS, draw, Collation(distances=False))
    for at, name in enumerate(batch.sample_ids):
        here = batch.asv[at][batch.counts[at] > 0]
        expected = np.zeros(present.shape[1])
        expected[batch.column[here]] = 1
        np.testing.assert_array_equal(present[study.table.sample_ids.index(name)], expected)


def test_every_draw_is_another_and_depends_on_the_sample_alone(study):
    assert (presence(study, ROWS, 0) != presence(study, ROWS, 1)).nnz
    alone = presence(study, np.array([4]), 0).toarray()[0]
    np.testing.assert_array_equal(presence(study, ROWS, 0).toarray()[4], alone)


def test_an_asv_of_two_samples_is_not_known(study_of):
    counts = np.full((6, 3), 40)
    counts[2:, 0], counts[3:, 1] = 0, 0
    study = study_of(counts, ["ACGTACGTAC", "CCGTACGTAC", "GCGTACGTAC"], depth=40)
    columns = common_columns([presence(study, np.arange(6), draw) for draw in range(2)])
    assert [study.table.sequences[column] for column in columns] == ["CCGTACGTAC", "GCGTACGTAC"]


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
    lone, padded = kmer_sketch(encode(["ACGTTGCAAC"])), kmer_sketch(encode(["ACGTTGCAAC", "A" * 30]))
    assert (lone != padded[:1]).nnz == 0
    assert kmer_sketch(encode(["ACGTNGCAACC"])).nnz == 0, "each of its 8-mers holds the N"
    assert kmer_sketch(encode(["ACGT"])).nnz == 0, "it is shorter than an 8-mer"


def test_the_vocabulary_finds_its_asvs_in_a_table_of_other_columns(study_of, tiny):
    given = tiny(tree=False)
    study = study_of(**given)
    order = np.random.default_rng(0).permutation(24)[:20]
    names = [given["sequences"][column] for column in order]
    other = study_of(given["counts"][:, order], names, depth=40)
    vocabulary = Vocabulary(tuple(given["sequences"][3:15]))
    for one in (study, other):
        known = vocabulary.columns(one.table.sequences)
        present = vocabulary.select(known, presence(one, ROWS, 0)).toarray()
        for place, sequence in enumerate(vocabulary.sequences):
            expected = np.zeros(9)
            if sequence in one.table.sequences:
                expected = presence(one, ROWS, 0).toarray()[:, one.table.sequences.index(sequence)]
            np.testing.assert_array_equal(present[:, place], expected)


def test_features_of_the_asvs_that_occur_give_what_those_of_all_give(study):
    drawn = [presence(study, ROWS[:3], draw) for draw in range(2)]
    vocabulary = make_vocabulary(study, ROWS, np.arange(len(study.table.sequences)))
    pairs = zip(
        read_features(study, ROWS[:3], drawn, vocabulary), read_present(study, ROWS[:3], drawn, vocabulary), strict=True
    )
    for every, present in pairs:
        assert present.all_asvs.shape[1] < every.all_asvs.shape[1]
        np.testing.assert_array_equal(present.known_asvs.toarray(), every.known_asvs.toarray())
        np.testing.assert_array_equal(
            (present.all_asvs @ present.sketch).toarray(), (every.all_asvs @ every.sketch).toarray()
        )
    for one in read_present(study, ROWS[:3], drawn, vocabulary, sequences=False):
        assert one.sketch.shape == (one.all_asvs.shape[1], BUCKETS)
        assert one.sketch.nnz == 0


def test_covariates_are_one_column_for_each_category_and_number(study):
    category = np.array([[0], [1], [2], [3], [1], [2], [3], [0], [1]])
    covariate = np.linspace(-1, 1, 9, dtype=np.float32)[:, None].copy()
    covariate[5] = np.nan
    study = labelled(study, category=category, covariate=covariate)
    vocabulary = make_vocabulary(study, ROWS, np.arange(3))
    (features,) = read_features(study, ROWS, [presence(study, ROWS, 0)], vocabulary)
    assert features.covariates.shape == (9, 4)
    np.testing.assert_array_equal(features.covariates[:, :3].sum(axis=1), category[:, 0] > 0)
    assert features.covariates[5, 3] == 0
    assert features.covariates[8, 3] == 1


def test_sequences_survive_as_bytes():
    for sequences in (("ACGT", "AC", "NNRYACG"), ()):
        assert as_sequences(as_bytes(sequences)) == sequences
