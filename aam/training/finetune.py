"""Supervised training: a network, new or from a pretrained encoder, learns to predict targets."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.config import FineTuneConfig
from aam.data.batch import PaddedBatch, pad_batch
from aam.data.rarefaction import EVALUATION
from aam.data.study import Study
from aam.data.targets import Covariates, Targets, head_sizes
from aam.device.rng import subsample
from aam.engine.step import RunningMeans, make_optimizer
from aam.engine.task import Metrics, Terms
from aam.evaluate.metrics import classification_metrics, regression_metrics
from aam.model.aam import Aam, HeadConfig, Outputs, Readout
from aam.options import TrainingOptions
from aam.training.inference import Predicted, collect, encode_table, run_model
from aam.training.losses import class_weights, target_terms
from aam.training.pretrain import AmpliconTask, encoder_heads
from aam.typing import Array, Bools, Names, Rows

# Share of the covariates that training hides, so that the category unknown is learned.
HIDDEN_COVARIATES = 0.1

# Parts that learn at a lower rate than the heads that are fitted to what they give, and their share
# of the learning rate (docs/adr/005).
ENCODERS, RATE_OF_ENCODERS = ("asv.", "sample.", "reference."), 0.01

HIGHER_IS_BETTER = ("r2", "accuracy", "f1", "auroc")


class SupervisedTask(AmpliconTask):
    """Training of `model` to predict targets and classes; parameters as `AmpliconTask`."""

    config: FineTuneConfig

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        labels, targets = self.train.study.labels.label[self.train.rows], self.config.targets
        # On the device: a step that copies from the host could not be captured.
        self.class_weights = tuple(
            None if weights is None else weights.to(self.device)
            for weights in class_weights(targets.class_weights, labels, _sizes(self.model))
        )
        metric = targets.best_metric
        self.best_metric = metric if metric == "val_loss" else f"val_{metric}"
        self.higher_is_better = metric in HIGHER_IS_BETTER
        self.validates_first = True
        if targets.target_transform != "none":
            self.units = {"val_mae": "(standardized)"}

    def configure_optimizer(self, options: TrainingOptions) -> Optimizer:
        """Return the optimizer, which trains the encoders at a lower rate.

        The first steps of Adam change each weight by the learning rate, whatever its gradient, and
        all changes of an encoder add up in the mean of the sample vectors.
        """
        return make_optimizer(
            self.model, options, lambda name: RATE_OF_ENCODERS if name.startswith(ENCODERS) else 1.0
        )

    def terms(self, outputs: Outputs, batch: PaddedBatch) -> Terms:
        """Return every loss of the outputs, those of the targets too."""
        loss = self.config.targets.loss_type
        target_losses = target_terms(outputs, batch, loss, self.class_weights)
        return super().terms(outputs, batch) | target_losses

    def validate(self, network: nn.Module) -> Metrics:
        """Return losses of the validation samples, and metrics of their predictions."""
        if not len(self.validation):
            return {}
        means, parts = RunningMeans(self.loss_names), []
        for batch in self.validation.epoch(EVALUATION):
            prepared = self.prepare(batch, EVALUATION)
            masked = {}
            if prepared.batch.bases is not None or prepared.batch.hidden is not None:
                masked = self.losses(network, prepared)
            # Targets are scored as they are predicted, with no count withheld.
            unmasked = prepared._replace(batch=pad_batch(batch).to(self.device))
            outputs, batch = self.outputs(network, unmasked)
            parts.append(collect(outputs, batch))
            means.add({**masked, **self.terms(outputs, batch)})
        metrics = {**self._reduced(means), **self._scores(Predicted.concatenate(parts))}
        losses = [
            value for name, value in metrics.items() if name.startswith(("val_target", "val_label"))
        ]
        # Of samples without a value it is undefined.
        return {**metrics, "val_loss": sum(losses) if losses else math.nan}

    def _scores(self, predicted: Predicted) -> Metrics:
        """Metrics of the predictions of all ranks, each the mean over the columns that have it."""
        study, scores = self.validation.study, dict[str, list[float]]()
        arrays = (study.rows(predicted.sample_ids), predicted.target, *predicted.probabilities)
        tensors = {str(place): torch.tensor(values) for place, values in enumerate(arrays)}
        ranks = self.world.all_gather(tensors)
        rows, target, *probabilities = (
            torch.cat([rank[name] for rank in ranks]).numpy() for name in tensors
        )
        for truth, values in zip(study.labels.target[rows].T, target.T, strict=True):
            has_truth = np.isfinite(truth)
            metrics = regression_metrics(truth[has_truth], values[has_truth])
            for name in ("mae", "r2"):
                scores.setdefault(f"val_{name}", []).append(metrics[name])
        for truth, shares in zip(study.labels.label[rows].T, probabilities, strict=True):
            metrics = classification_metrics(truth[truth >= 0], shares[truth >= 0])
            for name, key in (("accuracy", "accuracy"), ("f1", "macro_f1"), ("auroc", "auroc")):
                scores.setdefault(f"val_{name}", []).append(metrics[key])
        return {name: float(np.mean(values)) for name, values in scores.items()}


def _sizes(network: Aam) -> list[int]:
    """Number of classes of each class column."""
    return [head.linear.out_features for head in network.labels if isinstance(head, Readout)]


def target_heads(
    study: Study, config: FineTuneConfig, train_rows: Rows, targets: Targets, covariates: Covariates
) -> HeadConfig:
    """The heads of an encoder, and one for each target."""
    sizes = head_sizes(targets, covariates)
    encoder = encoder_heads(study, config.train, train_rows)
    return replace(encoder, covariates=config.covariates, **sizes)


# --- the linear part of target heads, fitted before training (docs/adr/005) -----------------------

LINEAR_RAREFACTIONS = 2
# The few hundred weights of a linear model need no more training samples, and memory would grow.
MOST_LINEAR_SAMPLES = 10_000
# Folds of whole groups choose the penalty; the middle one is that of one or two groups.
INNER_FOLDS = 4
HEAD_PENALTIES = (1e0, 1e1, 1e2, 1e3, 1e4)
# The place of the middle one.
DEFAULT_PENALTY = 2
# Intercept of a class that no training sample has.
ABSENT = -10.0


def fit_heads(
    network: Aam,
    study: Study,
    train_rows: Rows,
    train_groups: Names | None,
    asvs: Tensor | None,
    device: torch.device,
    config: FineTuneConfig,
) -> None:
    """Fit the linear part of each target head on the vectors of the training samples.

    Vectors of ASVs are computed here if they are not known.

    Classes weigh as they do in the loss, and inner folds of whole groups choose the penalty.
    """
    places = subsample(len(train_rows), 0, MOST_LINEAR_SAMPLES)
    rows = train_rows[places]
    runtime, labels = config.runtime, study.labels
    if asvs is None:
        asvs = encode_table(network, study, device, runtime, rows)
    draws = [
        run_model(network, study, rows, device, runtime, number, asvs)
        for number in range(LINEAR_RAREFACTIONS)
    ]
    vectors = np.concatenate([draw.read for draw in draws])
    center, spread = vectors.mean(axis=0), vectors.std(axis=0) + 1e-6
    x = (vectors - center) / spread
    names = np.arange(len(rows)) if train_groups is None else train_groups[places]
    groups = np.unique(names, return_inverse=True)[1]

    def write(layer: nn.Linear, outputs: slice, coefficients: Array, intercepts: Array) -> None:
        """Write a model of standardized vectors into a layer that reads them as they are."""
        scaled = coefficients / spread
        with torch.no_grad():
            layer.weight[outputs] = torch.from_numpy(scaled).to(layer.weight)
            layer.bias[outputs] = torch.from_numpy(intercepts - scaled @ center).to(layer.bias)

    if network.target is not None:
        for column, values in enumerate(labels.target[rows].T.astype(np.float64)):
            ridge = _best(
                Ridge(), {"alpha": HEAD_PENALTIES}, np.isfinite(values), x, values, groups
            )
            output, intercept = slice(column, column + 1), np.array([ridge.intercept_])
            write(network.target.linear, output, ridge.coef_[None], intercept)
    columns = labels.label[rows]
    weights = class_weights(config.targets.class_weights, columns, _sizes(network))
    heads = [head.linear for head in network.labels if isinstance(head, Readout)]
    for layer, classes, tensor in zip(heads, columns.T, weights, strict=True):
        weight = None if tensor is None else dict(enumerate(tensor.tolist()))
        coefficients, intercepts = _fit_classes(layer.out_features, x, classes, weight, groups)
        write(layer, slice(None), coefficients, intercepts)


def _fit_classes(
    number: int, x: Array, classes: Rows, weight: dict[int, float] | None, groups: Rows
) -> tuple[Array, Array]:
    """Coefficients [K, W] and intercepts [K] of a logistic regression."""
    coefficients, intercepts = np.zeros((number, x.shape[1])), np.full(number, ABSENT)
    present = np.unique(classes[classes >= 0])
    if len(present) < 2:
        intercepts[present] = 0.0
        return coefficients, intercepts
    model = LogisticRegression(max_iter=200, class_weight=weight)
    grid = {"C": [1 / penalty for penalty in HEAD_PENALTIES]}
    best = _best(model, grid, classes >= 0, x, classes, groups)
    # Two classes have one logit.
    signs = np.array([-0.5, 0.5]) if len(present) == 2 else np.ones(len(present))
    coefficients[present] = signs[:, None] * best.coef_
    intercepts[present] = signs * best.intercept_
    return coefficients, intercepts


def _best(
    model: Any, penalties: dict[str, Any], has_label: Bools, x: Array, y: Array, groups: Rows
) -> Any:
    """The model with the strongest penalty whose error is within a standard error of the lowest.

    `x` [LINEAR_RAREFACTIONS * n, W] holds several rarefactions of the n samples.
    """
    x = x[np.tile(has_label, LINEAR_RAREFACTIONS)]
    y, groups = (np.tile(values[has_label], LINEAR_RAREFACTIONS) for values in (y, groups))
    folds = min(INNER_FOLDS, len(np.unique(groups)))
    with warnings.catch_warnings():
        # Some folds lack a class, and some logistic regressions stop early.
        warnings.simplefilter("ignore")
        # One of two folds may lack a class that the other has.
        if folds > 2:
            cv = GroupKFold(folds)
            search = GridSearchCV(model, penalties, scoring=_score, cv=cv, refit=_strongest)
            return search.fit(x, y, groups=groups).best_estimator_
        ((name, values),) = penalties.items()
        return model.set_params(**{name: values[DEFAULT_PENALTY]}).fit(x, y)


def _score(model: Any, x: Array, y: Array) -> float:
    """The negative absolute error, or the log-likelihood; NaN if all classes are new."""
    if isinstance(model, Ridge):
        return -float(np.abs(model.predict(x) - y).mean())
    is_known = np.isin(y, model.classes_)
    place = np.searchsorted(model.classes_, y[is_known])
    likelihood = model.predict_proba(x)[is_known, place]
    return float(np.log(np.maximum(likelihood, 1e-12)).mean())


def _strongest(results: dict[str, Any]) -> int:
    """The place of the strongest penalty by the one-standard-error rule.

    The rule is that of Breiman et al. (1984, section 3.4.3), with paired differences of folds.
    """
    folds = [values for name, values in results.items() if name.startswith("split")]
    scores = np.stack(folds)
    scores = scores[np.isfinite(scores).all(axis=1)]
    if not len(scores):
        return DEFAULT_PENALTY
    lost = scores[:, [scores.mean(axis=0).argmax()]] - scores
    limit = lost.std(axis=0) / math.sqrt(len(scores))
    return int(np.flatnonzero(lost.mean(axis=0) <= limit).max())
