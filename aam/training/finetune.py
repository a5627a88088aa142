"""Supervised training: a network, new or from a pretrained encoder, learns to predict targets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from aam.config import FineTuneConfig
from aam.data.batch import Shelved, on_shelves
from aam.data.loader import Collation, Loader
from aam.data.rarefaction import EVALUATION
from aam.data.study import Study
from aam.data.targets import Covariates, Labels, Targets
from aam.device.distributed import SINGLE, World
from aam.engine.step import RunningMeans
from aam.engine.task import Metrics, Terms
from aam.evaluate.metrics import classification_metrics, regression_metrics
from aam.model.aam import Aam, Outputs
from aam.model.heads import HeadConfig, Readout
from aam.training.inference import Array, AsvVectors, Predicted, Rows, collect, encode_table
from aam.training.linear_start import fit_heads
from aam.training.losses import class_weights, loss_counts, target_terms
from aam.training.network import (
    FittedNetwork,
    Place,
    create_network,
    encoder_heads,
    make_loaders,
    standardize,
    train,
)
from aam.training.task import AmpliconTask, Prepared

# Parts of a network that an encoder does not have.
NEW_PARTS = ("target", "labels", "covariates")

# Share of the covariates that training hides, so that the category unknown is learned.
HIDDEN_COVARIATES = 0.1

HIGHER_IS_BETTER = ("r2", "accuracy", "f1", "auroc")


class SupervisedTask(AmpliconTask):
    """Training of `model` to predict targets and classes; parameters as `AmpliconTask`."""

    config: FineTuneConfig

    def __init__(
        self,
        model: Aam,
        config: FineTuneConfig,
        learned: Loader,
        validation: Loader,
        device: torch.device,
        asvs: AsvVectors | None = None,
        world: World = SINGLE,
    ) -> None:
        super().__init__(model, config, learned, validation, device, asvs, world)
        labels = learned.study.labels.label[learned.rows]
        sizes = [head.linear.out_features for head in model.labels if isinstance(head, Readout)]
        self.class_weights = class_weights(config.targets.class_weights, labels, sizes)
        metric = config.targets.best_metric
        self.best_metric = metric if metric == "val_loss" else f"val_{metric}"
        self.higher_is_better = metric in HIGHER_IS_BETTER
        self.validates_first = True

    def terms(self, outputs: Outputs, batch: Shelved) -> Terms:
        """Return every loss of the outputs, those of the targets too."""
        kind = self.config.targets.loss_type
        return {
            **super().terms(outputs, batch),
            **target_terms(outputs, batch, kind, self.class_weights),
        }

    def loss_counts(self, prepared: Prepared) -> dict[str, Tensor]:
        """Number of terms of each loss of a batch."""
        return loss_counts(self.with_distances(prepared.batch), self.class_weights)

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
            whole = prepared._replace(batch=on_shelves(batch).to(self.device))
            outputs = self.outputs(network, whole)
            parts.append(collect(outputs, whole.batch))
            means.add({**masked, **self.terms(outputs, self.with_distances(whole.batch))})
        metrics = {**self._reduced(means), **self._scores(Predicted.concatenate(parts))}
        of_targets = [name for name in metrics if name.startswith(("val_target", "val_label"))]
        return {**metrics, "val_loss": sum(metrics[name] for name in of_targets)}

    def _scores(self, predicted: Predicted) -> Metrics:
        """Return the metrics of the predictions of all ranks."""
        study = self.validation.study
        of_rank = (study.rows(predicted.sample_ids), predicted.target, *predicted.probabilities)
        gathered = (np.concatenate(self.world.all_gather(values)) for values in of_rank)
        scores = _mean_scores(study.labels, *gathered)
        return {f"val_{name}": value for name, value in scores.items()}


def _mean_scores(
    labels: Labels, rows: Rows, target: Array, *probabilities: Array
) -> dict[str, float]:
    """Return the metrics that choose an epoch, each the mean over the columns that have it.

    `labels` are those of a study, `rows` ``[n]`` the predicted samples, `target` ``[n, T]``
    (transformed units) and `probabilities` ``[n, classes]`` their predictions.
    """
    collected: dict[str, list[float]] = {}
    for truth, values in zip(labels.target[rows].T, target.T, strict=True):
        present = np.isfinite(truth)
        scores = regression_metrics(truth[present], values[present])
        for name in ("mae", "r2"):
            collected.setdefault(name, []).append(scores[name])
    for classes, shares in zip(labels.label[rows].T, probabilities, strict=True):
        scores = classification_metrics(classes[classes >= 0], shares[classes >= 0])
        for name, key in (("accuracy", "accuracy"), ("f1", "macro_f1"), ("auroc", "auroc")):
            collected.setdefault(name, []).append(scores[key])
    return {name: float(np.mean(values)) for name, values in collected.items()}


def _with_targets(
    heads: HeadConfig, targets: Targets, covariates: Covariates, config: FineTuneConfig
) -> HeadConfig:
    """Heads of an encoder, and one for each target."""
    return replace(
        heads,
        n_targets=len(targets.numeric),
        n_classes=tuple(len(spec.labels) for spec in targets.classes),
        levels=tuple(1 + len(levels) for levels in covariates.categorical.values()),
        numbers=len(covariates.numeric),
        covariates=config.covariates,
    )


def fit_network(
    study: Study,
    rows: tuple[Rows, Rows],
    targets: Targets,
    covariates: Covariates,
    config: FineTuneConfig,
    place: Place,
) -> FittedNetwork:
    """Train a network to predict all targets at once.

    Parameters
    ----------
    study : Study
        Its labels are those of `targets` and `covariates` (`aam.data.targets.fit_labels`).
    rows : pair of int64 [n]
        Rows of the training and of the validation samples; the latter choose the best epoch.
    targets : Targets
    covariates : Covariates
    config : FineTuneConfig
        `model.max_bp` is set.
    place : Place
        `InputError` if its encoder fits no weight.
    """
    encoder, frozen = place.encoder, config.targets.freeze_base
    of_encoder = encoder_heads(study, config.train, rows[0])
    heads = _with_targets(of_encoder, targets, covariates, config)
    # Trained heads go on as they are: a linear model next to their correction counts twice.
    continues = encoder is not None and (
        (encoder.targets.specs, encoder.covariates) == (targets.specs, covariates)
        and replace(encoder.heads, scale=heads.scale) == heads
    )
    network = create_network(study, heads, config, encoder, () if continues else NEW_PARTS)
    if place.state is None:
        ids = {study.table.sample_ids[row] for row in rows[0].tolist()}
        # The encoder's own samples are read as it reads them.
        is_new = encoder is not None and ids.isdisjoint(encoder.seen)
        standardize(network, encoder, study, rows[0], reads_anew=is_new and not frozen)
    else:
        network.load_state_dict(place.state.part("model"))
    network.to(place.device)
    asvs = None
    if frozen:
        asvs = place.encoded.encode(network, study, place.device, config.runtime)
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name.startswith(NEW_PARTS))
    if place.state is None and not continues:
        both = np.concatenate(rows)
        vectors = asvs or encode_table(network, study, place.device, config.runtime, both)
        fit_heads(network, study, rows[0], vectors, place.device, config)
    # Masked counts are chosen by the sequences of the ASVs, also where vectors are known.
    tokens = asvs is None or config.train.count_penalty > 0
    how = Collation(tokens=tokens, distances=network.distance is not None)
    hidden = {"covariate_dropout": HIDDEN_COVARIATES}
    loaders = make_loaders(study, rows, config, how, place.world, **hidden)
    task = SupervisedTask(network, config, *loaders, place.device, asvs, place.world)
    return train(task, config, study, heads, place)
