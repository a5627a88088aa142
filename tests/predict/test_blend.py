"""Weights of a blend: none negative, of sum one, shrunk to equal, better where one learner is."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy

from aam.data.targets import Scale, Targets, TargetSpec
from aam.evaluate.metrics import auroc
from aam.predict.blend import (
    NETWORK,
    OutOfFold,
    TargetBlend,
    blend_from_arrays,
    blend_power,
    blend_to_arrays,
    blend_weights,
    fit_blend,
    fit_power,
    specs_in_order,
    temper,
)
from aam.predict.features import Samples
from aam.predict.learner import make_truth
from tests.data.labels import labelled

RNG = np.random.default_rng(0)
NUMBERS = make_truth(RNG.normal(size=200), 0)


def noisy(*deviations: float) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.stack(
        [
            NUMBERS.values[:, None] + deviation * rng.normal(size=(200, 1))
            for deviation in deviations
        ]
    )


def test_without_shrinkage_weights_are_the_least_squares_of_independent_errors():
    weights = blend_weights(noisy(0.5, 1.0), NUMBERS, shrinkage=0.0)
    assert weights[0] == pytest.approx(1 / 0.25 / (1 / 0.25 + 1), abs=0.08)


def test_shrinkage_pulls_to_equal_weights():
    gaps = [
        np.ptp(blend_weights(noisy(0.3, 1.0), NUMBERS, shrinkage))
        for shrinkage in (0.0, 0.1, 1.0, 10.0, np.inf)
    ]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] == 0


def test_few_samples_move_the_weights_less(monkeypatch):
    few = make_truth(NUMBERS.values[:5], 0)
    gap = np.ptp(blend_weights(noisy(0.3, 1.0)[:, :5], few))
    monkeypatch.setattr("aam.predict.blend.FEW_SAMPLES", 0)
    assert gap < 0.7 * np.ptp(blend_weights(noisy(0.3, 1.0)[:, :5], few))


def test_weights_are_shrunk_to_the_prior():
    prior = np.array([0.2, 0.8])
    np.testing.assert_allclose(
        blend_weights(noisy(0.5, 0.5), NUMBERS, 1e6, prior), prior, atol=1e-3
    )
    np.testing.assert_array_equal(
        blend_weights(noisy(0.5, 0.5) * np.nan, NUMBERS, prior=prior), prior
    )


def test_a_learner_that_is_only_wrong_has_no_weight():
    away = np.stack([NUMBERS.values[:, None], NUMBERS.values[:, None] + 50])
    np.testing.assert_allclose(blend_weights(away, NUMBERS, shrinkage=0.0), [1, 0], atol=1e-6)


def test_samples_that_a_learner_has_not_predicted_are_left_out():
    learners = noisy(0.3, 1.0)
    learners[0, 150:] = np.nan
    half = make_truth(NUMBERS.values[:150], 0)
    np.testing.assert_allclose(
        blend_weights(learners, NUMBERS), blend_weights(learners[:, :150], half), atol=1e-9
    )
    learners[0] = np.nan
    np.testing.assert_array_equal(blend_weights(learners, NUMBERS), [0.5, 0.5])


def test_classes_are_weighed_by_the_brier_score():
    label = np.arange(90) % 3
    truth = make_truth(label.astype(float), 3)
    sure, unsure = 0.1 + 0.7 * np.eye(3)[label], np.full((90, 3), 1 / 3)
    weights = blend_weights(np.stack([sure, unsure]), truth)
    assert weights[0] > weights[1]


def test_a_power_makes_probabilities_as_sure_as_they_are_right():
    rng = np.random.default_rng(8)
    logits = rng.normal(size=(4000, 3))
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    drawn = (true.cumsum(axis=1) < rng.random((4000, 1))).sum(axis=1)
    unsure = temper(true, 0.2)
    assert fit_power(unsure, make_truth(drawn.astype(float), 3)) == pytest.approx(5, rel=0.1)
    np.testing.assert_allclose(temper(unsure, 5.0), true, atol=1e-9)
    np.testing.assert_array_equal(unsure.argmax(axis=1), true.argmax(axis=1))


def test_a_power_is_1_where_there_is_nothing_to_fit_it_on():
    assert fit_power(np.full((4, 2), np.nan), make_truth(np.array([0.0, 1.0, 0.0, 1.0]), 2)) == 1
    assert fit_power(NUMBERS.values[:, None], NUMBERS) == 1
    two = make_truth(np.array([0.0, 1.0, 0.0, 1.0]), 2)
    assert blend_power(np.array([[0.6, 0.4], [0.4, 0.6]] * 2), two) == 1


def test_an_unsure_learner_that_ranks_as_well_weighs_as_much():
    rng = np.random.default_rng(9)
    logits = rng.normal(size=(1000, 3)) * 2
    true = temper(np.exp(logits), 1.0)
    drawn = (true.cumsum(axis=1) < rng.random((1000, 1))).sum(axis=1)
    weights = blend_weights(np.stack([true, temper(true, 0.2)]), make_truth(drawn.astype(float), 3))
    np.testing.assert_allclose(weights, [0.5, 0.5], atol=0.02)


# --- the network's weight beside the other learners: earned on validation samples, or 0 --------


ROWS = np.arange(200)


def share(rows: np.ndarray, predicted: np.ndarray) -> float:
    out_of_fold = OutOfFold(ROWS, NUMBERS, noisy(1.0, 1.0))
    blend = TargetBlend({}, {"kernel": 0.5, "forest": 0.5}, 1.0, out_of_fold)
    weights = blend.with_network(rows, predicted).weights
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["kernel"] == pytest.approx(weights["forest"])
    return weights[NETWORK]


def of_network(deviation: float) -> np.ndarray:
    return NUMBERS.values[:, None] + deviation * np.random.default_rng(2).normal(size=(200, 1))


def test_a_network_that_helps_gets_more_weight_and_one_that_does_not_gets_none():
    good, equal, useless = (share(ROWS, of_network(deviation)) for deviation in (0.3, 0.7, 5.0))
    assert good > 0.5
    assert good > equal > 0.2
    assert useless < 0.05


def test_few_validation_samples_show_less_and_none_show_nothing():
    assert share(ROWS[:10], of_network(0.3)[:10]) < share(ROWS, of_network(0.3))
    assert share(ROWS[:0], np.zeros((0, 1))) == 0
    with pytest.raises(ValueError, match="nothing to fit weights on"):
        TargetBlend().with_network(ROWS, of_network(0.3))


def test_a_network_alone_is_what_is_predicted():
    predicted = np.array([[0.2, 0.8], [0.5, 0.5]])
    np.testing.assert_array_equal(TargetBlend().blend({NETWORK: predicted}), predicted)


SAMPLES, ASVS, TRAIN = 150, 80, np.arange(100)
TEST = np.arange(100, SAMPLES)
TARGETS = Targets(
    (
        TargetSpec("site", "class", ("a", "b", "c")),
        TargetSpec(
            "age", "numeric", transform="zscore", scale=Scale(30.0, 10.0), bounds=(-100.0, 100.0)
        ),
        TargetSpec("case", "class", ("no", "yes")),
    )
)
GROUPS = [f"g{row // 3}" for row in range(SAMPLES)]
NAMES = ("presence", "forest")


@pytest.fixture(scope="module")
def study(study_of):
    """Samples of three sites, each with its own ASVs; the age moves some of them in and out; half
    are cases.
    """
    rng = np.random.default_rng(0)
    site, age, case = (
        rng.integers(0, 3, SAMPLES),
        rng.normal(size=SAMPLES),
        rng.integers(0, 2, SAMPLES),
    )
    logits = np.full((SAMPLES, ASVS), -1.0)
    logits[:, :15] += 2.5 * (np.arange(15) % 3 == site[:, None])
    logits[:, 15:45] += 2.0 * age[:, None] * rng.choice([-1, 1], 30)
    logits[:, 45:60] += 2.5 * case[:, None]
    here = rng.random((SAMPLES, ASVS)) < 1 / (1 + np.exp(-logits))
    counts = rng.poisson(20, (SAMPLES, ASVS)) * here
    counts[:, -1] += 100
    sequences = ["".join(rng.choice(list("ACGT"), 40)) for _ in range(ASVS)]
    made = study_of(counts, sequences, depth=100)
    order = [made.table.sequences.index(sequence) for sequence in sequences]
    assert sorted(order) == list(range(ASVS))
    label = np.stack([site, case], axis=1)
    return labelled(made, target=age.astype(np.float32)[:, None], label=label)


@pytest.fixture(scope="module")
def blend(study):
    return fit_blend(study, TARGETS, TRAIN, [GROUPS[row] for row in TRAIN], 0, NAMES)


def predict(blend, study, rows, rarefactions, targets=TARGETS) -> dict[str, np.ndarray]:
    """Return the blended prediction of each target by name."""
    blended = blend.blend(blend.scores(blend.inputs(Samples.rarefied(study, rows, rarefactions))))
    return {
        spec.name: values for spec, values in zip(specs_in_order(targets), blended, strict=True)
    }


def scores(study, predictions) -> tuple[float, float, float]:
    """Accuracy of the site, correlation of the age, AUROC of the cases, on the held-out samples."""
    right = (predictions["site"].argmax(axis=1) == study.labels.label[TEST, 0]).mean()
    related = np.corrcoef(predictions["age"][:, 0], study.labels.target[TEST, 0])[0, 1]
    return (
        float(right),
        float(related),
        auroc(study.labels.label[TEST, 1] == 1, predictions["case"][:, 1]),
    )


def test_learners_recover_what_presence_tells(study, blend):
    predictions = predict(blend, study, TEST, [-2, -3])
    right, related, area = scores(study, predictions)
    assert right > 0.75
    assert related > 0.7
    assert area > 0.85
    for name, width in (("site", 3), ("case", 2)):
        assert predictions[name].shape == (50, width)
        np.testing.assert_allclose(predictions[name].sum(axis=1), 1, atol=1e-12)
    for of_target in blend.scores(blend.inputs(Samples.rarefied(study, TEST, [-2]))):
        assert list(of_target) == list(NAMES)
        assert all(np.isfinite(values).all() for values in of_target.values())


def test_permuted_training_labels_give_chance(study):
    order = np.arange(SAMPLES)
    order[TRAIN] = np.random.default_rng(3).permutation(TRAIN)
    mixed = labelled(study, target=study.labels.target[order], label=study.labels.label[order])
    blend = fit_blend(mixed, TARGETS, TRAIN, [GROUPS[row] for row in TRAIN], 0, NAMES)
    right, related, area = scores(study, predict(blend, study, TEST, [-2, -3]))
    assert right < 0.6
    assert abs(related) < 0.4
    assert 0.25 < area < 0.75


def test_no_held_out_label_is_seen(study, blend):
    """Weights, penalties and every array are the same whatever the labels of the held-out samples
    are.
    """
    rng = np.random.default_rng(4)
    target, label = study.labels.target.copy(), study.labels.label.copy()
    target[TEST], label[TEST] = rng.permutation(target[TEST]), rng.permutation(label[TEST])
    assert (label[TEST] != study.labels.label[TEST]).any()
    mixed = labelled(study, target=target, label=label)
    again = fit_blend(mixed, TARGETS, TRAIN, [GROUPS[row] for row in TRAIN], 0, NAMES)
    (arrays, description), (others, described) = blend_to_arrays(blend), blend_to_arrays(again)
    assert description == described
    for name, values in arrays.items():
        np.testing.assert_array_equal(values, others[name])


def test_large_studies_are_learned_from_in_part(study, monkeypatch):
    monkeypatch.setattr("aam.predict.blend.MOST_SAMPLES", 60)
    some = fit_blend(study, TARGETS, TRAIN, [GROUPS[row] for row in TRAIN], 0, ("presence",))
    for fitted in some.fitted:
        rows = fitted.out_of_fold.rows
        assert 0 < len(rows) <= 60
        assert set(rows) < set(TRAIN)
        assert fitted.out_of_fold.predictions.shape[1] == len(rows)
    assert scores(study, predict(some, study, TEST, [-2, -3]))[0] > 0.7


def test_a_blend_survives_on_disk(study, blend, tmp_path):
    arrays, description = blend_to_arrays(blend)
    safetensors.numpy.save_file(arrays, tmp_path / "learners.safetensors")
    read = blend_from_arrays(
        safetensors.numpy.load_file(tmp_path / "learners.safetensors"),
        json.loads(json.dumps(description)),
    )
    before, after = (predict(one, study, TEST, [-2, -3]) for one in (blend, read))
    for name, values in before.items():
        np.testing.assert_array_equal(values, after[name])
    assert read.fitted[0].learners["forest"].get_params()["n_estimators"] == 50


def test_samples_without_a_target_are_left_out_of_it_alone(study):
    target, label = study.labels.target.copy(), study.labels.label.copy()
    target[:20], label[30:40, 0] = np.nan, -1
    gaps = labelled(study, target=target, label=label)
    blend = fit_blend(gaps, TARGETS, TRAIN, [GROUPS[row] for row in TRAIN], 0, ("presence",))
    age, site, case = (fitted.out_of_fold for fitted in blend.fitted)
    assert age.rows.tolist() == list(range(20, 100))
    assert len(site.rows) == 90
    assert len(case.rows) == 100
    right, related, _ = scores(study, predict(blend, study, TEST, [-2]))
    assert right > 0.6
    assert related > 0.5


def test_samples_of_no_weight_are_not_learned_from(study):
    """With whole groups of no weight an inner fold could have nothing to learn from."""
    weight = np.where(np.arange(SAMPLES) < 75, 0.0, 1.0).astype(np.float32)
    groups = ["first" if row < 75 else "last" for row in TRAIN]
    weighted = fit_blend(labelled(study, weight=weight), TARGETS, TRAIN, groups, 0, NAMES[:2])
    for fitted in weighted.fitted:
        assert fitted.out_of_fold.rows.tolist() == list(range(75, 100))
    for values in predict(weighted, study, TEST, [-2]).values():
        assert np.isfinite(values).all()


def test_other_samples_and_the_order_of_rows_change_no_prediction(study, blend):
    together = predict(blend, study, TEST, [-2])
    alone = predict(blend, study, TEST[[7, 3]], [-2])
    for name, values in alone.items():
        np.testing.assert_allclose(values, together[name][[7, 3]], atol=1e-12)


def test_covariates_join(study):
    """The case is in the covariates and, with its ASVs hidden, nowhere else."""
    without = labelled(study, label=np.random.default_rng(5).integers(0, 2, (SAMPLES, 1)))
    targets = Targets((TargetSpec("case", "class", ("no", "yes")),))
    covered = labelled(
        without, category=without.labels.label + 1, covariate=np.zeros((SAMPLES, 0), np.float32)
    )
    areas = []
    for one in (without, covered):
        predictions = predict(
            fit_blend(one, targets, TRAIN, None, 0, NAMES), one, TEST, [-2], targets
        )
        areas.append(auroc(one.labels.label[TEST, 0] == 1, predictions["case"][:, 1]))
    assert areas[0] < 0.75
    assert areas[1] > 0.9


def test_one_group_has_equal_weights(study):
    blend = fit_blend(study, TARGETS, TRAIN, ["one"] * 100, 0, NAMES[:2])
    for fitted in blend.fitted:
        assert list(fitted.weights.values()) == pytest.approx([1 / 2] * 2)
    assert scores(study, predict(blend, study, TEST, [-2]))[0] > 0.6


ONE, OTHER, THIRD = (
    TargetSpec(name, "class", ("case", "control")) for name in ("one", "other", "third")
)
