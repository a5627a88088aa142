"""Effects of ASVs: those of samples that are really changed, their sums, and the expected loss of a permutation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy import sparse

from aam.config import DataConfig, ModelConfig
from aam.data.collate import rarefied_rows
from aam.data.targets import Covariates, Scale, Targets, TargetSpec
from aam.device.options import RuntimeConfig
from aam.explain.effects import BLEND, joined_effects, losses
from aam.explain.explain import explain_samples
from aam.explain.member_variants import asv_weights, forest_variants, known_places, linear_variants
from aam.explain.network_variants import network_variants
from aam.explain.variants import make_variants
from aam.model.heads import HeadConfig
from aam.predict.blend import LEARNERS, NETWORK, fit_blend
from aam.predict.features import Samples
from aam.predict.network import encode_table, per_target, run_model
from aam.predict.prediction import predict_rows
from aam.predict.saved_model import SavedModel
from tests.data.labels import labelled

SAMPLES, ASVS, DEPTH = 40, 30, 60
TARGETS = Targets(
    (
        TargetSpec("age", "numeric", transform="zscore", scale=Scale(30.0, 10.0), bounds=(-100.0, 100.0)),
        TargetSpec("site", "class", ("a", "b", "c")),
        TargetSpec("case", "class", ("no", "yes")),
    )
)
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
    site, case = (present[:, 10:13].cumsum(axis=1)[:, -1] % 3).astype(int), (age > np.median(age)).astype(int)
    return labelled(made, target=age.astype(np.float32)[:, None], label=np.stack([site, case], axis=1))


@pytest.fixture(scope="module")
def saved(study, model_of):
    """A network and all other learners, each with the same share in the blend."""
    network = model_of(HEADS, depth=DEPTH, noise=0.1)
    blend = fit_blend(study, TARGETS, np.arange(SAMPLES), None, 0, tuple(LEARNERS))
    names = (NETWORK, *LEARNERS)
    equal = [dataclasses.replace(one, weights=dict.fromkeys(names, 0.25)) for one in blend.fitted]
    blend = dataclasses.replace(blend, fitted=tuple(equal))
    notes = {"seen_samples": []}
    return SavedModel(network, DataConfig(), ModelConfig(), HEADS, DEPTH, 0, TARGETS, None, notes, Covariates(), blend)


@pytest.fixture(scope="module")
def effects(study, saved):
    ids = [study.table.sample_ids[row] for row in ROWS]
    truth = [study.labels.target[ROWS, 0] * 10 + 30.0, *(study.labels.label[ROWS, k].astype(float) for k in range(2))]
    explained = explain_samples(saved, study, ids, truth, RUNTIME, 2)
    return [joined_effects(parts, ids, true_values) for parts, true_values in zip(explained, truth, strict=True)]


def inputs_of(study, blend):
    return blend.inputs(Samples.rarefied(study, ROWS, [-2]))


def of_samples(X, variants):
    """Return the variants with the columns of the samples."""
    return dataclasses.replace(variants, column=np.searchsorted(X.samples.columns, variants.column))


def changed_inputs(study, blend, variants):
    """Return what learners read of each variant, made by changing the reads of the samples."""
    reads = rarefied_rows(study, ROWS, -2)
    changed = [variants.row(reads[sample], number) for number, sample in enumerate(variants.sample.tolist())]
    return blend.inputs(Samples.of_reads(study, ROWS[variants.sample], [changed]))


@pytest.mark.parametrize("target", [0, 1, 2])
@pytest.mark.parametrize("name", ["presence", "kernel", "forest"])
def test_learners_say_of_a_variant_what_they_say_of_the_changed_sample(study, saved, target, name):
    variants = make_variants(rarefied_rows(study, ROWS, -2), 2.0, False, (0,))
    assert variants.changes_presence.all()
    X, learner = inputs_of(study, saved.blend), saved.blend.fitted[target].learners[name]
    of_variants = forest_variants if name == "forest" else linear_variants
    quick = of_variants(learner, X, of_samples(X, variants))
    np.testing.assert_allclose(quick, learner.outputs(changed_inputs(study, saved.blend, variants)), atol=1e-9)
    assert np.abs(quick - learner.outputs(X)[variants.sample]).max() > 0.01


def test_the_network_says_of_a_variant_what_it_says_of_the_changed_table(study, saved, study_of):
    rows = ROWS[:4]
    reads = rarefied_rows(study, rows, -2)
    variants = make_variants(reads, 1.0, True, (0,))
    kinds = {(before > 0, after > 0) for before, after in zip(variants.before, variants.after, strict=True)}
    assert kinds == {(True, False), (False, True), (True, True)}
    asvs = encode_table(saved.network, study, torch.device("cpu"), RUNTIME)
    quick = network_variants(saved.network, study, rows, reads, variants, asvs, RUNTIME)
    for number in range(0, len(variants.sample), 7):
        counts = np.zeros((1, ASVS), int)
        columns, values = reads[variants.sample[number]]
        counts[0, columns] = values
        counts[0, variants.column[number]] = variants.after[number]
        changed = study_of(counts, study.table.sequences, depth=int(counts.sum()))
        predictions = run_model(saved.network, changed, np.array([0]), torch.device("cpu"), RUNTIME)
        for fast, slow in zip(quick, per_target(predictions), strict=True):
            np.testing.assert_allclose(fast[number], slow[0], atol=1e-4)


def test_effects_of_a_linear_learner_add_up_to_its_score(study, saved):
    """What all ASVs of a sample add is its score minus that of a sample without any."""
    X = inputs_of(study, saved.blend)
    present = X.samples.counts[0].sign()
    for fitted in saved.blend.fitted:
        for name in ("presence", "kernel"):
            learner = fitted.learners[name]
            weights = asv_weights(learner, X, known_places(X))
            alone = learner.intercept_ + X.read("covariates") @ learner.coef_["covariates"]
            np.testing.assert_allclose(present @ weights, learner.indicators(X) - alone, atol=1e-9)


def test_an_effect_is_the_prediction_minus_that_without_the_asv(study, saved, effects):
    """In one rarefaction, for the blend of all members, computed from changed samples."""
    ids = [study.table.sample_ids[row] for row in ROWS]
    truth = [np.full(len(ids), np.nan)] * 3
    (age,), *_ = explain_samples(saved, study, ids, truth, RUNTIME, 1)
    reads = rarefied_rows(study, ROWS, -2)
    variants = make_variants(reads, 1.0, True, (0, -2))
    asvs = encode_table(saved.network, study, torch.device("cpu"), RUNTIME)
    X, fitted = changed_inputs(study, saved.blend, variants), saved.blend.fitted[0]
    predictions = {name: learner.outputs(X) for name, learner in fitted.learners.items()}
    predictions[NETWORK] = network_variants(saved.network, study, ROWS, reads, variants, asvs, RUNTIME)[0]
    blended = 30 + 10 * sum(weight * predictions[name][:, 0] for name, weight in fitted.weights.items())
    for number in np.flatnonzero(variants.after == 0)[::11]:
        row, column = variants.sample[number], variants.column[number]
        assert age.effects[0][row, column] == pytest.approx(age.prediction[row, 0] - blended[number], abs=1e-4)


def test_parts_of_effects_add_up_and_absent_asvs_have_none(effects):
    for of_target in effects:
        absent = of_target.carriers.toarray() == 0
        for every, here, reads in zip(of_target.effects, of_target.presence, of_target.abundance, strict=True):
            np.testing.assert_allclose((here + reads).toarray(), every.toarray(), atol=1e-12)
            assert not every.toarray()[absent].any()
            assert np.abs(reads).max() > 0
        np.testing.assert_allclose(of_target.attention.sum(axis=1), 1, atol=1e-5)
    assert [one.outputs for one in effects] == [("",), ("a", "b", "c"), ("yes",)]
    assert set(effects[0].losses) == {BLEND, NETWORK, "presence", "kernel", "forest"}


def test_the_importance_is_what_permutations_do_to_the_loss(study, saved):
    """Over all samples with which another can change its ASV, for learners, whose variants are all there."""
    spec, row = TARGETS.specs[0], np.arange(len(ROWS))
    reads = rarefied_rows(study, ROWS, -2)
    variants = make_variants(reads, 1e6, False, (0,))
    X, learner = inputs_of(study, saved.blend), saved.blend.fitted[0].learners["forest"]
    truth = study.labels.target[ROWS, 0].astype(float)
    changed = forest_variants(learner, X, of_samples(X, variants))
    base = losses(spec, truth, learner.outputs(X))
    raised = variants.weight * (losses(spec, truth[variants.sample], changed) - base[variants.sample])
    here = X.samples.counts[0].toarray()
    for column in (0, 3, 7):
        expected = []
        place = np.searchsorted(X.samples.columns, column)
        for shift in row:
            # Every sample gets the ASV of every other once.
            moved = here.copy()
            moved[:, place] = np.roll(here[:, place], shift)
            samples = dataclasses.replace(X.samples, counts=(sparse.csr_matrix(moved),))
            expected.append(losses(spec, truth, learner.outputs(saved.blend.inputs(samples))) - base)
        assert raised[variants.column == column].sum() == pytest.approx(np.mean(expected, axis=0).sum(), abs=1e-9)


def test_a_sample_explained_by_two_models_gets_their_mean(effects):
    age = effects[0]
    half = dataclasses.replace(age.turned(sparse.identity(len(ROWS), format="csr")[:5]), sample_ids=age.sample_ids[:5])
    doubled = dataclasses.replace(half, effects=tuple(3 * one for one in half.effects))
    both = joined_effects([age, doubled], age.sample_ids, age.truth)
    expected = age.effects[0].toarray()
    expected[:5] *= 2
    np.testing.assert_allclose(both.effects[0].toarray(), expected, atol=1e-12)


def test_a_network_of_next_to_no_weight_takes_no_part_in_effects(study, saved):
    """The effects are those of the members; the predictions are those of the whole model."""
    fitted = [dataclasses.replace(one, weights={**one.weights, NETWORK: 0.01}) for one in saved.blend.fitted]
    without = dataclasses.replace(saved, blend=dataclasses.replace(saved.blend, fitted=tuple(fitted)))
    ids = [study.table.sample_ids[row] for row in ROWS]
    truth = [np.full(len(ids), np.nan)] * 3
    (age,), *_ = explain_samples(without, study, ids, truth, RUNTIME, 1)
    assert age.attention is None
    assert not age.abundance[0].nnz
    assert set(age.losses) == {BLEND, "presence", "kernel", "forest"}
    predicted = predict_rows(without, study, ids, RUNTIME, 1)
    np.testing.assert_allclose(age.prediction[:, 0], predicted.values["age"], atol=1e-4)
    weighted = sum(0.25 * age.members[name][0] for name in ("presence", "kernel", "forest"))
    np.testing.assert_allclose(age.effects[0].toarray(), weighted.toarray(), atol=1e-9)
