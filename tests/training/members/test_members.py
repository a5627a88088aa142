"""Members together: what they recover, that held-out labels are never seen, and that they survive on disk."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy

from aam.data.targets import Scale, Targets, TargetSpec
from aam.evaluate.metrics import auroc
from aam.predict.members import fit_members
from aam.predict.presence import presence, read_features
from aam.predict.saving import from_tensors, to_tensors
from tests.data.labels import labelled

SAMPLES, ASVS, TRAIN = 150, 80, np.arange(100)
TEST = np.arange(100, SAMPLES)
TARGETS = Targets(
    (
        TargetSpec("site", "class", ("a", "b", "c")),
        TargetSpec("age", "numeric", transform="zscore", scale=Scale(30.0, 10.0), bounds=(-100.0, 100.0)),
        TargetSpec("case", "class", ("no", "yes")),
    )
)
GROUPS = [f"g{row // 3}" for row in range(SAMPLES)]
NAMES = ("presence", "kernel", "forest")


@pytest.fixture(scope="module")
def study(study_of):
    """Samples of three sites, each with its own ASVs; the age moves some of them in and out; half are cases."""
    rng = np.random.default_rng(0)
    site, age, case = rng.integers(0, 3, SAMPLES), rng.normal(size=SAMPLES), rng.integers(0, 2, SAMPLES)
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
def members(study):
    return fit_members(study, TARGETS, TRAIN, [GROUPS[row] for row in TRAIN], 0, NAMES)


def scores(study, predictions) -> tuple[float, float, float]:
    """Accuracy of the site, correlation of the age, AUROC of the cases, on the held-out samples."""
    right = (predictions["site"].argmax(axis=1) == study.labels.label[TEST, 0]).mean()
    related = np.corrcoef(predictions["age"], study.labels.target[TEST, 0])[0, 1]
    return float(right), float(related), auroc(study.labels.label[TEST, 1] == 1, predictions["case"][:, 1])


def test_members_recover_what_presence_tells(study, members):
    right, related, area = scores(study, members.predict(study, TEST, [-2, -3]))
    assert right > 0.75
    assert related > 0.7
    assert area > 0.85
    for name in NAMES:
        for of_target in members.scores(study, TEST, [-2]):
            assert np.isfinite(of_target[name]).all()


def test_numbers_are_in_their_own_units_and_probabilities_sum_to_one(study, members):
    predictions = members.predict(study, TEST, [-2])
    assert predictions["age"].shape == (50,)
    assert 25 < predictions["age"].mean() < 35
    for name, classes in (("site", 3), ("case", 2)):
        assert predictions[name].shape == (50, classes)
        np.testing.assert_allclose(predictions[name].sum(axis=1), 1, atol=1e-12)


def test_permuted_training_labels_give_chance(study):
    order = np.arange(SAMPLES)
    order[TRAIN] = np.random.default_rng(3).permutation(TRAIN)
    mixed = labelled(study, target=study.labels.target[order], label=study.labels.label[order])
    members = fit_members(mixed, TARGETS, TRAIN, [GROUPS[row] for row in TRAIN], 0, NAMES)
    right, related, area = scores(study, members.predict(study, TEST, [-2, -3]))
    assert right < 0.6
    assert abs(related) < 0.4
    assert 0.25 < area < 0.75


def test_no_held_out_label_is_seen(study, members):
    """Weights, penalties and every array are the same whatever the labels of the held-out samples are."""
    rng = np.random.default_rng(4)
    target, label = study.labels.target.copy(), study.labels.label.copy()
    target[TEST], label[TEST] = rng.permutation(target[TEST]), rng.permutation(label[TEST])
    assert (label[TEST] != study.labels.label[TEST]).any()
    mixed = labelled(study, target=target, label=label)
    again = fit_members(mixed, TARGETS, TRAIN, [GROUPS[row] for row in TRAIN], 0, NAMES)
    (tensors, description), (others, described) = to_tensors(members), to_tensors(again)
    assert description == described
    for name, values in tensors.items():
        np.testing.assert_array_equal(values, others[name])


def test_large_studies_are_learned_from_in_part(study, monkeypatch):
    monkeypatch.setattr("aam.predict.members.MOST_SAMPLES", 60)
    some = fit_members(study, TARGETS, TRAIN, [GROUPS[row] for row in TRAIN], 0, ("presence",))
    for fitted in some.fitted:
        assert 0 < len(fitted.rows) <= 60
        assert set(fitted.rows) < set(TRAIN)
        assert fitted.held_out.shape[1] == len(fitted.rows)
    assert scores(study, some.predict(study, TEST, [-2, -3]))[0] > 0.7


def test_sequences_are_counted_only_where_a_member_reads_them(study, members):
    assert members.reads_sequences
    alone = fit_members(study, TARGETS, TRAIN, None, 0, ("presence",))
    assert not alone.reads_sequences
    (features,) = read_features(study, TEST, [presence(study, TEST, -2)], alone.vocabulary)
    for by_member, fitted in zip(alone.raw(study, TEST, [-2]), alone.fitted, strict=True):
        np.testing.assert_array_equal(by_member["presence"][0], fitted.members["presence"].raw(features))


def test_members_survive_on_disk(study, members, tmp_path):
    tensors, description = to_tensors(members)
    safetensors.numpy.save_file(tensors, tmp_path / "members.safetensors")
    (tmp_path / "members.json").write_text(json.dumps(description))
    read = from_tensors(
        safetensors.numpy.load_file(tmp_path / "members.safetensors"),
        json.loads((tmp_path / "members.json").read_text()),
        TARGETS,
    )
    before, after = (one.predict(study, TEST, [-2, -3]) for one in (members, read))
    for name, values in before.items():
        np.testing.assert_array_equal(values, after[name])


def test_samples_without_a_target_are_left_out_of_it_alone(study, members):
    target, label = study.labels.target.copy(), study.labels.label.copy()
    target[:20], label[30:40, 0] = np.nan, -1
    gaps = labelled(study, target=target, label=label)
    predictions = fit_members(gaps, TARGETS, TRAIN, [GROUPS[row] for row in TRAIN], 0, ("kernel",))
    age, site, case = predictions.fitted
    assert age.rows.tolist() == list(range(20, 100))
    assert len(site.rows) == 90
    assert len(case.rows) == 100
    right, related, _ = scores(study, predictions.predict(study, TEST, [-2]))
    assert right > 0.6
    assert related > 0.5


def test_samples_of_no_weight_are_not_learned_from(study):
    """With whole groups of no weight an inner fold could have nothing to learn from."""
    weight = np.where(np.arange(SAMPLES) < 75, 0.0, 1.0).astype(np.float32)
    groups = ["first" if row < 75 else "last" for row in TRAIN]
    weighted = fit_members(labelled(study, weight=weight), TARGETS, TRAIN, groups, 0, NAMES)
    alone = fit_members(study, TARGETS, TRAIN[75:], groups[75:], 0, NAMES)
    assert [one.rows.tolist() for one in weighted.fitted] == [one.rows.tolist() for one in alone.fitted]
    for values in weighted.predict(study, TEST, [-2]).values():
        assert np.isfinite(values).all()


def test_other_samples_and_the_order_of_rows_change_no_prediction(study, members):
    together = members.predict(study, TEST, [-2])
    alone = members.predict(study, TEST[[7, 3]], [-2])
    for name, values in alone.items():
        np.testing.assert_allclose(values, together[name][[7, 3]], atol=1e-12)


def test_covariates_join(study):
    """The case is in the covariates and, with its ASVs hidden, nowhere else."""
    without = labelled(study, label=np.random.default_rng(5).integers(0, 2, (SAMPLES, 1)))
    targets = Targets((TargetSpec("case", "class", ("no", "yes")),))
    covered = labelled(without, category=without.labels.label + 1, covariate=np.zeros((SAMPLES, 0), np.float32))
    areas = []
    for one in (without, covered):
        members = fit_members(one, targets, TRAIN, None, 0, NAMES)
        predictions = members.predict(one, TEST, [-2])["case"]
        areas.append(auroc(one.labels.label[TEST, 0] == 1, predictions[:, 1]))
        tensors, description = to_tensors(members)
        np.testing.assert_array_equal(
            from_tensors(tensors, description, targets).predict(one, TEST, [-2])["case"], predictions
        )
    assert areas[0] < 0.75
    assert areas[1] > 0.9


def test_one_group_has_equal_weights(study):
    members = fit_members(study, TARGETS, TRAIN, ["one"] * 100, 0, NAMES)
    for fitted in members.fitted:
        assert list(fitted.weights.values()) == pytest.approx([1 / 3] * 3)
    assert scores(study, members.predict(study, TEST, [-2]))[0] > 0.6
