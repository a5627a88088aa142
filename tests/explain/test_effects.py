"""Effects of ASVs are what `predict` says of changed samples; their means, and the expected loss of
a permutation.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import sparse

from aam.data.rarefaction import rarefied_rows
from aam.data.targets import Scale, Targets, TargetSpec
from aam.errors import InputError
from aam.explain.effects import apply_variants, explain_samples, make_variants
from aam.model.aam import HeadConfig
from aam.options import RuntimeConfig
from aam.predict.estimator import Samples
from aam.predict.prediction import predict_rows
from tests.data.labels import labelled
from tests.predict.samples import fit_blend, saved_model

SAMPLES, ASVS, DEPTH = 40, 30, 60
AGE = TargetSpec("age", "numeric", (), "zscore", Scale(30.0, 10.0), (-100.0, 100.0))
CLASSES = (TargetSpec("site", "class", ("a", "b", "c")), TargetSpec("case", "class", ("no", "yes")))
TARGETS = Targets((AGE, *CLASSES))
HEADS = HeadConfig(n_targets=1, n_classes=(3, 2))
ROWS = np.arange(0, SAMPLES, 2)
RUNTIME = RuntimeConfig()


@pytest.fixture(scope="module")
def study(study_of):
    rng = np.random.default_rng(3)
    here = rng.random((SAMPLES, ASVS)) < rng.uniform(0.1, 0.9, ASVS)
    counts = rng.poisson(20, (SAMPLES, ASVS)) * here
    counts[:, 0] += 100
    sequences = ["".join(rng.choice(list("ACGT"), 20)) for _ in range(ASVS)]
    made = study_of(counts, sequences, depth=DEPTH)
    present = (made.table.counts.toarray() > 0).astype(float)
    age = present[:, :5].sum(axis=1) - present[:, 5:10].sum(axis=1)
    site, case = present[:, 10:13].sum(axis=1).astype(int) % 3, (age > np.median(age)).astype(int)
    label = np.stack([site, case], axis=1)
    return labelled(made, target=age.astype(np.float32)[:, None], label=label)


@pytest.fixture(scope="module")
def saved(study, model_of):
    """A network and the other members."""
    network = model_of(HEADS, depth=DEPTH, noise=0.1)
    blend = fit_blend(study, TARGETS, Samples.of_study(study, np.arange(SAMPLES)))
    return saved_model(network, HEADS, TARGETS, depth=DEPTH, blend=blend)


IDS = [f"s{row}" for row in ROWS]
UNKNOWN = [np.full(len(ROWS), np.nan)] * 3


def explained(models, study, samples, truth=UNKNOWN, passes=1):
    return explain_samples(models, study, samples, IDS, truth, RUNTIME, passes)


@pytest.fixture(scope="module")
def effects(study, saved):
    assert [study.table.sample_ids[row] for row in ROWS] == IDS
    classes = study.labels.label[ROWS].astype(float)
    truth = [study.labels.target[ROWS, 0] * 10 + 30.0, *classes.T]
    return explained([saved], study, [IDS], truth, 2)


def predicted_alone(saved, study_of, study, counts):
    """What `predict` says of the age and the case of a sample with these reads."""
    alone = study_of(counts[None], study.table.sequences, depth=int(counts.sum()))
    table = predict_rows(saved, alone, alone.table.sample_ids, RUNTIME, 1)
    return table.predicted("age")[0], table.predicted("case")[0, 1]


def test_an_effect_is_what_predict_says_minus_what_it_says_without_the_asv(study, saved, study_of):
    age, _, case = explained([saved], study, [IDS])
    for row in (0, 1):
        reads = np.zeros(ASVS, int)
        columns, values = rarefied_rows(study, ROWS[[row]], -2)[0]
        reads[columns] = values
        base = predicted_alone(saved, study_of, study, reads)
        assert base == pytest.approx((age.prediction[row, 0], case.prediction[row, 1]), abs=1e-4)
        for column in columns[::4]:
            without = reads.copy()
            without[column] = 0
            lost = np.subtract(base, predicted_alone(saved, study_of, study, without))
            expected = [of_target.effects[0][row, column] for of_target in (age, case)]
            assert lost == pytest.approx(expected, abs=1e-4)


def test_absent_asvs_have_no_effect(effects):
    for of_target in effects:
        absent = of_target.carriers.toarray() == 0
        for every in of_target.effects:
            assert not every.toarray()[absent].any()
        np.testing.assert_allclose(of_target.attention.sum(axis=1), 1, atol=1e-5)
    assert [one.outputs for one in effects] == [("",), ("a", "b", "c"), ("yes",)]


@pytest.mark.parametrize("reads_counts", [True, False])
def test_the_weighted_variants_are_on_average_all_permutations(reads_counts):
    """Of any loss that depends on the sample, the ASV and its reads, here drawn at random."""
    rng = np.random.default_rng(1)
    counts = rng.integers(0, 4, (6, 3)) * (rng.random((6, 3)) < [0.3, 0.6, 1.0])
    counts[:, 2] += 1
    loss = rng.normal(size=(6, 3, 5))
    if not reads_counts:
        loss[:, :, 1:] = loss[:, :, [1]]
    base = loss[np.arange(6)[:, None], np.arange(3), counts]
    shifted = [np.roll(counts, shift, axis=0) for shift in range(6)]
    moved = [loss[np.arange(6)[:, None], np.arange(3), reads] - base for reads in shifted]
    expected = np.mean(moved, axis=0).sum(0)
    sums, repeats = np.zeros(3), 1000
    for seed in range(repeats):
        variants = make_variants(sparse.csr_matrix(counts), reads_counts, (seed,))
        sample, column, after = variants[["sample", "column", "after"]].to_numpy().T
        change = loss[sample, column, after] - base[sample, column]
        np.add.at(sums, column, variants["weight"].to_numpy() * change)
    np.testing.assert_allclose(sums / repeats, expected, atol=0.2)


def test_variants_change_one_asv_of_a_sample_and_none_that_a_limit_left_out():
    counts = np.array([[4, 2, 0, 1], [0, 3, 5, 0]])
    limited = np.array([[4, 2, 0, 0], [0, 3, 5, 0]])
    variants = make_variants(sparse.csr_matrix(counts), True, (0,))
    kinds = set(zip(variants["before"] > 0, variants["after"] > 0, strict=True))
    assert {(True, False), (False, True)} <= kinds
    for table in (counts, limited):
        changed = apply_variants(variants, sparse.csr_matrix(table))
        assert changed.nnz == np.count_nonzero(changed.data)
        columns = variants[["sample", "column", "after"]].to_numpy()
        for (sample, column, after), reads in zip(columns, changed.toarray(), strict=True):
            expected = table[sample].copy()
            if table[sample, column] == counts[sample, column]:
                expected[column] = after
            assert reads.tolist() == expected.tolist()


def test_a_sample_without_other_asvs_keeps_its_only_one():
    variants = make_variants(sparse.csr_matrix([[7]]), False, (0,))
    assert len(variants) == 0


@pytest.mark.slow
def test_a_sample_explained_by_two_models_gets_their_mean(study, saved):
    """The other model has another blend, and explains five samples only."""
    other = saved.only("presence")
    calls = ([saved, other], [IDS, IDS[:5]]), ([saved], [IDS]), ([other], [IDS])
    found = [explained(models, study, samples)[0] for models, samples in calls]
    both, alone, added = (of_target.effects[0].toarray() for of_target in found)
    np.testing.assert_allclose(both[:5], (alone + added)[:5] / 2, atol=1e-9)
    np.testing.assert_allclose(both[5:], alone[5:], atol=1e-9)


def test_models_of_different_classes_are_refused(study, saved):
    specs = (*TARGETS.specs[:2], dataclasses.replace(TARGETS.specs[2], labels=("no", "perhaps")))
    other = dataclasses.replace(saved, targets=Targets(specs))
    with pytest.raises(InputError, match="different classes of 'case'"):
        explained([saved, other], study, [IDS, IDS])
