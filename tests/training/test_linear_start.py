"""Heads start as linear models of the sample vectors: what those can tell is told at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aam.config import FineTuneConfig, TargetConfig
from aam.data.rarefaction import EVALUATION
from aam.device.rng import subsample
from aam.model.aam import HeadConfig
from aam.options import RuntimeConfig
from aam.training.finetune import fit_heads
from aam.training.inference import encode_table, run_model
from tests.data.labels import labelled

CPU, PLAIN, CONFIG = torch.device("cpu"), RuntimeConfig(), FineTuneConfig()
TRAIN, HELD = np.arange(60), np.arange(60, 90)


def fitted(model, study, config=CONFIG) -> None:
    fit_heads(model, study, TRAIN, None, encode_table(model, study, CPU, PLAIN), CPU, config)


@pytest.fixture
def study(study_of, tiny):
    return study_of(**tiny(samples=90, asvs=8, tree=False))


def test_what_is_linear_in_the_vectors_is_predicted_from_the_start(study, model_of):
    model = model_of(HeadConfig(n_targets=2, n_classes=(2, 4)), noise=0.0)
    everyone = np.arange(90)
    vectors = run_model(model, study, everyone, CPU, PLAIN).samples
    centered = (vectors - vectors.mean(axis=0)) / vectors.std(axis=0)
    first, second = centered[:, 0], centered[:, 1]
    target = np.stack([first, 5 * second - 30], axis=1).astype(np.float32)
    target[3, 0] = np.nan
    label = np.stack([first > 0, (second > 0) + 2 * (first > 0)], axis=1).astype(np.int64)
    label[5, 1] = -1
    study = labelled(study, target=target, label=label)
    fitted(model, study)
    predicted = run_model(model, study, HELD, CPU, PLAIN, EVALUATION)
    for column in range(2):
        correlation = np.corrcoef(predicted.target[:, column], target[HELD, column])[0, 1]
        assert correlation > 0.9
    assert abs(predicted.target[:, 1].mean() - target[HELD, 1].mean()) < 1
    assert (predicted.probabilities[0].argmax(axis=1) == label[HELD, 0]).mean() > 0.8
    assert (predicted.probabilities[1].argmax(axis=1) == label[HELD, 1]).mean() > 0.7


def test_large_studies_are_fitted_in_part(study, model_of, monkeypatch):
    """The heads are those of a study that has no other training samples."""
    noise = np.random.default_rng(0).normal(7, 1, (90, 1)).astype(np.float32)
    study = labelled(study, target=noise)
    monkeypatch.setattr("aam.training.finetune.MOST_LINEAR_SAMPLES", 20)
    part, whole = model_of(HeadConfig(n_targets=1)), model_of(HeadConfig(n_targets=1))
    fitted(part, study)
    kept = TRAIN[subsample(60, 0, 20)]
    fit_heads(whole, study, kept, None, encode_table(whole, study, CPU, PLAIN), CPU, CONFIG)
    assert torch.equal(part.target.linear.weight, whole.target.linear.weight)


def test_noise_is_answered_with_the_mean(study, model_of):
    model = model_of(HeadConfig(n_targets=1), noise=0.0)
    noise = np.random.default_rng(0).normal(7, 1, (90, 1)).astype(np.float32)
    study = labelled(study, target=noise)
    fitted(model, study)
    values = run_model(model, study, HELD, CPU, PLAIN).target[:, 0]
    assert abs(values.mean() - 7) < 0.5
    assert values.std() < 0.6, "the held-out samples choose a strong penalty"


def test_a_class_without_training_samples_is_hardly_predicted(study, model_of):
    model = model_of(HeadConfig(n_classes=(3,)), noise=0.0)
    label = (np.arange(90) % 2)[:, None]
    study = labelled(study, label=label.astype(np.int64))
    fitted(model, study)
    probabilities = run_model(model, study, HELD, CPU, PLAIN).probabilities[0]
    assert probabilities[:, 2].max() < 0.05
    assert probabilities[:, :2].min() > 0.05


def test_weights_count_from_the_start(study, model_of):
    """Noise with one class in nine: weights that even the classes out make it far more likely."""
    label = (np.arange(90) % 9 == 0)[:, None].astype(np.int64)
    plain, asked = FineTuneConfig(), TargetConfig(class_weights=("1", "8"))
    weighted = FineTuneConfig(targets=asked)
    for config, low, high in ((plain, 0.05, 0.2), (weighted, 0.25, 0.6)):
        model = model_of(HeadConfig(n_classes=(2,)), noise=0.0)
        fitted(model, labelled(study, label=label), config=config)
        rare = run_model(model, study, HELD, CPU, PLAIN).probabilities[0][:, 1]
        assert low < rare.mean() < high
