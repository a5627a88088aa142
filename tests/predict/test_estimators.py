"""Estimators on raw counts: they rarefy themselves, learn what presence tells, and are scikit-learn's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.utils.class_weight import compute_sample_weight

import aam
from aam.data.rarefaction import rarefied_row
from aam.device.rng import subsample
from aam.errors import InputError
from aam.evaluate.metrics import auroc
from aam.predict import estimator, members
from aam.predict.blend import PerTarget
from aam.predict.estimator import Samples, common_names, feature_values
from aam.predict.members import (
    Forest,
    LinearClassifier,
    LinearRegressor,
    TreesClassifier,
    TreesRegressor,
    medians,
    ridge_duals,
)
from tests.predict.samples import samples_of

SAMPLES, AGE = samples_of()
CASE = AGE > 0
TRAIN, TEST = np.arange(100), np.arange(100, 150)
SMALL = {"depth": 100, "passes": 2}
KINDS = [
    (LinearRegressor, AGE),
    (TreesRegressor, AGE),
    (LinearClassifier, CASE),
    (TreesClassifier, CASE),
]


# --- samples ------------------------------------------------------------------------------------


def test_a_rarefaction_is_that_of_the_network(study_of, tiny):
    study = study_of(**tiny(samples=8, asvs=12), depth=30)
    samples = Samples.of_study(study, np.arange(8))
    rarefied = samples.rarefied(30, study.seed, -2)
    for row in range(8):
        columns, reads = rarefied_row(study.table, row, 30, study.seed, -2)
        expected = np.zeros(12)
        expected[columns] = reads
        np.testing.assert_array_equal(rarefied.counts[[row]].toarray()[0], expected)
    alone = Samples.of_study(study, np.array([5])).rarefied(30, study.seed, -2)
    np.testing.assert_array_equal(alone.counts.toarray()[0], rarefied.counts[[5]].toarray()[0])


def test_covariates_are_one_column_for_each_category_and_number(study_of, tiny):
    from tests.data.labels import labelled

    study = labelled(
        study_of(**tiny(samples=4, asvs=6)),
        category=np.array([[1], [2], [0], [3]]),
        covariate=np.array([[0.5], [np.nan], [1.0], [2.0]], np.float32),
    )
    covariates = Samples.of_study(study, np.arange(4), [2]).covariates
    np.testing.assert_array_equal(covariates, [[1, 0, 0.5], [0, 1, 0], [0, 0, 1.0], [0, 0, 2.0]])


def test_features_of_another_table_are_matched_by_name():
    other = replace(SAMPLES, counts=SAMPLES.counts[:, ::-1].tocsr(), names=SAMPLES.names[::-1])
    fewer = replace(other, counts=other.counts[:, :-20], names=other.names[:-20])
    names = common_names([SAMPLES])
    values = feature_values("presence", fewer, names).toarray()
    absent = [place for place, name in enumerate(names) if name not in fewer.names]
    assert absent
    assert not values[:, absent].any()
    expected = feature_values("presence", SAMPLES, names).toarray()
    present = np.setdiff1d(np.arange(len(names)), absent)
    np.testing.assert_array_equal(values[:, present], expected[:, present])


def test_log_ratios_are_centred_and_shares_sum_to_one_with_rare_features():
    rarefied = SAMPLES.rarefied(100, 0, 0)
    for kind, least, row in (("clr", 3, 0), ("shares", 0, 1)):
        values = feature_values(kind, rarefied, common_names([rarefied], least))
        np.testing.assert_allclose(np.asarray(values.sum(axis=1)).ravel(), row, atol=1e-12)


def test_samples_below_the_depth_are_named():
    with pytest.raises(InputError, match="150 samples have fewer than 99999 reads: 's0'"):
        SAMPLES.rarefied(99_999, 0, 0)


# --- linear models ------------------------------------------------------------------------------


@pytest.mark.parametrize("studies", [None, np.repeat(["a", "b"], 20)])
def test_duals_are_those_of_ridge_regression(studies):
    rng = np.random.default_rng(0)
    x, y, weights = rng.normal(size=(40, 7)), rng.normal(size=(40, 2)), rng.uniform(0.5, 2, 40)
    centred = x.copy(), y.copy()
    for study in [np.full(40, True)] if studies is None else [studies == "a", studies == "b"]:
        for values in centred:
            values[study] -= np.average(values[study], axis=0, weights=weights[study])
    share = weights / weights.sum() * 40
    penalties = np.array([0.3, 3.0])
    duals, mean = ridge_duals(x @ x.T, y, weights, penalties, studies)
    if studies is not None:
        penalties = penalties * float((share @ np.square(centred[0])).sum())
    np.testing.assert_allclose(mean, share @ y / 40)
    for penalty, dual in zip(penalties, duals, strict=True):
        expected = Ridge(penalty, fit_intercept=False).fit(*centred, share).coef_.T
        np.testing.assert_allclose(x.T @ dual, expected, atol=1e-10)


def test_the_median_of_a_distribution_is_found_between_thresholds():
    shares = np.array([[0.0, 0.5, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    middle, low, high = medians(shares, np.array([1.0, 2.0, 3.0]), 0.0, 4.0)
    assert middle == pytest.approx(2.5)
    assert low < 1 < 3 < high


def test_a_fold_chooses_its_penalty_without_held_out_groups():
    """Copies of a sample in one group: the penalty is chosen as if each group were one sample."""
    rows = np.repeat(TRAIN, 2)
    groups = [f"g{row}" for row in rows]
    doubled = replace(SAMPLES[rows], sample_ids=tuple(f"{n}" for n in range(200)))
    noise = np.random.default_rng(1).normal(size=150)
    grouped = LinearRegressor(**SMALL).fit(doubled, noise[rows], groups=groups)
    alone = LinearRegressor(**SMALL).fit(doubled, noise[rows])
    assert grouped.penalty_ > alone.penalty_


def test_a_large_study_is_learned_from_in_parts(monkeypatch):
    whole = LinearRegressor(**SMALL).fit(SAMPLES[TRAIN], AGE[TRAIN])
    monkeypatch.setattr(members, "MAX_KERNEL_SAMPLES", 60)
    parts = LinearRegressor(**SMALL).fit(SAMPLES[TRAIN], AGE[TRAIN])
    predicted = [model.predict(SAMPLES[TEST]) for model in (whole, parts)]
    assert np.abs(np.subtract(*predicted)).max() > 0
    assert np.corrcoef(*predicted)[0, 1] > 0.9


def test_a_new_study_is_read_relative_to_its_own_mean():
    """A feature that all samples of a study have shifts nothing."""
    studies = np.where(np.arange(100) % 2 == 0, "a", "b")
    model = LinearClassifier(**SMALL).fit(SAMPLES[TRAIN], CASE[TRAIN], studies=studies)
    counts = SAMPLES.counts[TEST].toarray()
    counts[:, :20:2] += 5
    shifted = replace(SAMPLES[TEST], counts=sparse.csr_matrix(counts), drawn={})
    plain, centred = (
        model.centred_on(one).predict_proba(one)[:, 1] for one in (SAMPLES[TEST], shifted)
    )
    assert auroc(CASE[TEST], centred) > 0.8
    assert abs(centred.mean() - plain.mean()) < 0.02
    assert model.predict_proba(shifted)[:, 1].mean() < plain.mean() - 0.1
    assert model.centred_on(SAMPLES[:5]) is model


def test_studies_weigh_by_the_root_of_their_size_and_classes_the_same():
    values, studies = np.repeat([0, 1, 0, 1], [90, 10, 10, 15]), np.repeat(["a", "b"], [100, 25])
    samples = replace(SAMPLES, values=values, studies=studies)
    weights = estimator.training_weights(samples, 2)
    cells = 2 * (studies == "b") + values
    sums = np.bincount(cells, weights)
    assert sums[0] / sums == pytest.approx([1, 1, 2, 2])
    assert weights.mean() == pytest.approx(1)


# --- all estimators -----------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "y"), KINDS)
def test_they_learn_what_presence_tells_and_repeat_it(kind, y, monkeypatch):
    """Held-out labels, the other samples and chunks change no prediction; the seed does."""
    model = kind(**SMALL, seed=3).fit(SAMPLES[TRAIN], y[TRAIN])
    together = model.predict_draws(SAMPLES[TEST])
    mean = together.mean(axis=0)
    if is_classifier(model):
        np.testing.assert_allclose(mean.sum(axis=1), 1)
        right = (model.predict(SAMPLES[TEST]) == y[TEST]).mean()
        assert right == model.score(SAMPLES[TEST], y[TEST]) > 0.75
    assert np.corrcoef(mean[:, -1], y[TEST])[0, 1] > 0.6
    np.testing.assert_allclose(model.predict_draws(SAMPLES[TEST[[7, 3]]]), together[:, [7, 3]])
    monkeypatch.setattr(estimator, "SAMPLES_AT_ONCE", 16)
    np.testing.assert_allclose(model.predict_draws(SAMPLES[TEST]), together)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    again = copy.fit(SAMPLES[TRAIN], y[TRAIN]).predict_draws(SAMPLES[TEST])
    np.testing.assert_array_equal(again, together)
    mixed = np.random.default_rng(0).permutation(y[TRAIN])
    chance = kind(**SMALL).fit(SAMPLES[TRAIN], mixed).predict_draws(SAMPLES[TEST])
    assert abs(np.corrcoef(chance.mean(axis=0)[:, -1], y[TEST])[0, 1]) < 0.5


@pytest.mark.parametrize(
    "model", [LinearClassifier(**SMALL), TreesClassifier(**SMALL, n_estimators=20)]
)
@pytest.mark.parametrize("learned", [["low", "high"], ["mid", "high"], ["mid"]])
def test_classes_of_weight_zero_are_predicted_with_little_probability(model, learned):
    y = np.select([AGE < -0.5, AGE > 0.5], ["low", "high"], "mid")
    weights = np.isin(y, learned).astype(float)
    model = clone(model).fit(SAMPLES[TRAIN], y[TRAIN], sample_weight=weights[TRAIN])
    probability = pd.DataFrame(model.predict_proba(SAMPLES[TEST]), columns=model.classes_)
    assert list(probability) == ["high", "low", "mid"]
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    assert (probability.drop(columns=learned) < 0.01).all(axis=None)
    assert set(model.predict(SAMPLES[TEST])) == set(learned)


@pytest.mark.parametrize("kind", [LinearClassifier, TreesClassifier])
def test_balanced_classes_are_learned_with_the_same_total_weight(kind):
    codes = (AGE[TRAIN] > 0.8).astype(np.int64)
    codes[:7] = -1
    known = codes >= 0
    share = codes[known].mean()
    assert share < 0.3
    weights = compute_sample_weight("balanced", codes[known])
    np.testing.assert_allclose(weights, np.where(codes[known], 0.5 / share, 0.5 / (1 - share)))
    samples = SAMPLES[TRAIN]
    fitted = PerTarget((kind(**SMALL),)).fit(samples, [codes], class_weight="balanced")
    by_hand = kind(**SMALL).fit(samples[known], codes[known], sample_weight=weights)
    expected = by_hand.predict_proba(SAMPLES[TEST])
    np.testing.assert_allclose(fitted.estimators[0].predict_proba(SAMPLES[TEST]), expected)
    same = {code: weights[codes[known] == code][0] for code in (0, 1)}
    sampled = PerTarget((kind(**SMALL),)).fit(samples, [codes], None, None, None, same)
    np.testing.assert_allclose(sampled.estimators[0].predict_proba(SAMPLES[TEST]), expected)
    plain = kind(**SMALL).fit(samples[known], codes[known]).predict_proba(SAMPLES[TEST])
    # Leaves of trees are pure: their probabilities change with the branchings only.
    change = (expected - plain)[:, 1]
    assert change.any() if kind is TreesClassifier else change.mean() > 0.05


@pytest.mark.parametrize(("kind", "y"), KINDS)
def test_three_samples_or_more_have_a_weight(kind, y):
    weights = np.zeros(100)
    for number in (0, 2):
        weights[:number] = 0.2
        with pytest.raises(InputError, match=f"sample_weight: is above 0 for {number} samples"):
            kind(**SMALL).fit(SAMPLES[TRAIN], y[TRAIN], sample_weight=weights)
    weights[7] = 3.0
    model = kind(**SMALL).fit(SAMPLES[TRAIN], y[TRAIN], sample_weight=weights)
    assert np.isfinite(model.predict_draws(SAMPLES[TEST])).all()


@pytest.mark.parametrize("kind", [LinearClassifier, TreesClassifier])
def test_the_limit_of_training_samples_keeps_every_class(kind, monkeypatch):
    monkeypatch.setattr(estimator, "MOST_TRAINING_SAMPLES", 40)
    usual = subsample(100, 0, 40)
    codes = np.arange(100) % 2
    np.testing.assert_array_equal(subsample(100, 0, 40, codes), usual)
    y = np.where(CASE, "case", "control").astype(object)
    y[np.setdiff1d(TRAIN, usual)[:2]] = "rare"
    y[np.setdiff1d(TRAIN, usual)[-1]] = "alone"
    assert len({*y[usual]}) == 2
    model = kind(**SMALL).fit(SAMPLES[TRAIN], y[TRAIN])
    kept = subsample(100, 0, 40, np.unique(y[TRAIN], return_inverse=True)[1])
    assert len(kept) == 40
    assert {*y[kept]} == {*model.classes_} == {"alone", "case", "control", "rare"}
    assert model.predict_proba(SAMPLES[TEST]).shape == (50, 4)
    assert len(subsample(100, 0, 40, TRAIN)) == 40


def test_tools_of_scikit_learn_work():
    groups = np.arange(150) // 3
    frame = pd.DataFrame(SAMPLES.counts.toarray(), SAMPLES.sample_ids, SAMPLES.names)
    pipeline = make_pipeline(LinearRegressor(**SMALL))
    for X in (SAMPLES, frame, SAMPLES.counts, aam.read_table(frame)):
        predicted = cross_val_predict(pipeline, X, AGE, cv=GroupKFold(3), groups=groups)
        assert np.corrcoef(predicted, AGE)[0, 1] > 0.8
    grid = {"features": ["presence", "shares"], "depth": [50, 100]}
    search = GridSearchCV(LinearClassifier(passes=1), grid, cv=2).fit(SAMPLES, CASE)
    assert search.best_params_["depth"] in (50, 100)
    assert search.predict(SAMPLES).dtype == bool


@pytest.mark.parametrize("kind", [LinearClassifier, TreesClassifier])
def test_covariates_join(kind):
    """Classes that are in the covariates and nowhere else are learned."""
    y = np.random.default_rng(0).integers(0, 2, 150)
    covered = replace(SAMPLES, covariates=y[:, None].astype(float))
    fitted = kind(**SMALL).fit(covered[TRAIN], y[TRAIN])
    assert auroc(y[TEST] == 1, fitted.predict_proba(covered[TEST])[:, 1]) > 0.9


LINEAR = ((LinearRegressor, AGE), (LinearClassifier, CASE))
WITH_COVARIATES = [
    *((*pair, {"features": name}) for pair in LINEAR for name in ("presence", "shares", "clr")),
    (TreesRegressor, AGE, {}),
    (TreesClassifier, CASE, {}),
]


@pytest.mark.parametrize(("kind", "y", "options"), WITH_COVARIATES)
def test_they_read_all_kinds_of_features_with_covariates(kind, y, options):
    covariates = np.random.default_rng(0).normal(size=(len(SAMPLES), 2))
    samples = replace(SAMPLES, covariates=covariates, drawn={})
    for each in (SAMPLES, samples):
        model = kind(**SMALL, **options).fit(each[TRAIN], y[TRAIN])
        assert np.isfinite(model.predict_draws(each[TEST])).all()
    with pytest.raises(ValueError, match=r"features|matmul|shape|dimension"):
        model.predict_draws(SAMPLES[TEST])


def test_trees_predict_what_scikit_learn_predicts():
    """Each sample reaches the same leaf as in scikit-learn, also for zero and one sample."""
    from sklearn.ensemble import ExtraTreesRegressor

    rng = np.random.default_rng(1)
    values = np.round(rng.normal(size=(300, 8)), 1).astype(np.float32)
    grown = ExtraTreesRegressor(20, random_state=0).fit(values, rng.normal(size=300))
    trees = [each.tree_ for each in grown.estimators_]
    forest = Forest.of(trees)
    for rows in (0, 1, 7, 300):
        leaves = forest.leaves(values[:rows])
        assert leaves.shape == (20, rows)
        starts = np.cumsum(forest.node_count) - forest.node_count
        for tree, start, of_tree in zip(trees, starts, leaves, strict=True):
            np.testing.assert_array_equal(of_tree - start, tree.apply(values[:rows]))
    # Values at and around the thresholds, and the largest ones.
    edges = np.unique(forest.threshold[forest.left_child >= 0])[:200].astype(np.float32)
    edges = np.concatenate([edges, np.nextafter(edges, np.float32(9)), [np.inf, -np.inf, 3e38]])
    edges = np.tile(edges[:, None], 8).astype(np.float32)
    for tree, of_tree in zip(trees, forest.leaves(edges), strict=True):
        expected = tree.value[tree.apply(np.clip(edges, -3e38, 3e38)), 0, 0]
        np.testing.assert_array_equal(forest.value[of_tree, 0], expected)
