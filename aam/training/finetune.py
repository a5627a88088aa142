"""Supervised training: a network, new or from a pretrained encoder, learns to predict targets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from aam.config import FineTuneConfig
from aam.data.collate import Collation
from aam.data.loader import Loader
from aam.data.rarefaction import EVALUATION
from aam.data.shelves import Shelved, on_shelves
from aam.data.study import Study
from aam.data.targets import Covariates, Labels, Targets
from aam.device.distributed import SINGLE, World
from aam.device.timing import stage
from aam.engine.step import RunningMeans
from aam.engine.task import Metrics, Terms
from aam.evaluate.metrics import classification_metrics, regression_metrics
from aam.model.aam import Aam, Outputs
from aam.model.heads import HeadConfig, Readout
from aam.predict.network import Array, AsvVectors, Predicted, collect, encode_table
from aam.predict.saved_model import SavedModel, load_model, samples_with_labels
from aam.training.linear_start import fit_heads
from aam.training.losses import class_weights, loss_counts, target_terms
from aam.training.network import (
    FittedNetwork,
    Place,
    Rows,
    best_network,
    encoder_folder,
    encoder_heads,
    first_batch,
    load_matching_weights,
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
        train: Loader,
        validation: Loader,
        device: torch.device,
        asvs: AsvVectors | None = None,
        world: World = SINGLE,
    ) -> None:
        super().__init__(model, config, train, validation, device, asvs, world)
        labels = train.study.labels.label[train.rows]
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
        means, parts = RunningMeans(), []
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
        gathered = (np.concatenate(self.world.all_gather_arrays(values)) for values in of_rank)
        scores = _mean_scores(study.labels, *gathered)
        return {f"val_{name}": value for name, value in scores.items()}


def _mean_scores(
    labels: Labels, rows: npt.NDArray[np.int64], target: Array, *probabilities: Array
) -> dict[str, float]:
    """Return the metrics that choose an epoch, each the mean over the columns that have it.

    `labels` are those of a study, `rows` ``[n]`` those of the samples of which `target` ``[n, T]``
    (transformed units) and `probabilities` ``[n, classes]`` were predicted.
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


def _task(
    network: Aam,
    study: Study,
    rows: tuple[Rows, Rows],
    config: FineTuneConfig,
    place: Place,
    asvs: AsvVectors | None,
) -> SupervisedTask:
    """Return the task that trains a network."""
    # Masked counts are chosen by the sequences of the ASVs, also where vectors are known.
    how = Collation(
        tokens=asvs is None or config.train.count_penalty > 0,
        distances=network.distance is not None,
    )
    train = Loader(
        study,
        rows[0],
        config.train.samples_per_batch,
        shuffle=True,
        workers=config.runtime.num_workers,
        how=replace(how, covariate_dropout=HIDDEN_COVARIATES),
        world=place.world,
    )
    validation = replace(train, rows=rows[1], shuffle=False, how=how)
    return SupervisedTask(network, config, train, validation, place.device, asvs, place.world)


def fit_network(
    study: Study,
    rows: tuple[Rows, Rows],
    targets: Targets,
    covariates: Covariates,
    config: FineTuneConfig,
    place: Place,
) -> FittedNetwork:
    """Train a network to predict targets, from the checkpoint of `place` if there is one.

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

    Raises
    ------
    InputError
        The pretrained encoder fits no weight.
    """
    state, machine = place.state, config.runtime
    heads = _heads(study, rows[0], targets, covariates, config)
    both = np.concatenate(rows)
    seen = {study.table.sample_ids[row] for row in both.tolist()}
    labelled = set(seen)
    torch.manual_seed(machine.seed)
    with stage("model creation"):
        network = Aam(config.model, study.depth, heads, study.reference_width)
    encoder, continues = None, False
    if source := encoder_folder(config.train, place.fold):
        encoder = load_model(source, torch.device("cpu"))
        same_targets = (encoder.targets.specs, encoder.covariates) == (targets.specs, covariates)
        continues = same_targets and replace(encoder.heads, scale=heads.scale) == heads
        _read_weights(network, encoder, source, continues)
        seen |= set(encoder.notes["seen_samples"])
        labelled |= samples_with_labels(encoder)
    if state is None:
        _standardize(network, encoder, study, rows[0], config)
    else:
        network.load_state_dict(state.part("model"))
    network.to(place.device)
    asvs = _frozen(network, study, config, place)
    if state is None and not continues:
        vectors = asvs or encode_table(network, study, place.device, machine, both)
        fit_heads(network, study, rows, vectors, place.device, config)
    task = _task(network, study, rows, config, place, asvs)
    trainer = place.train(task, config.train, machine, network)
    best = best_network(config.model, study, heads, trainer)
    last, epoch = trainer.last_weights, trainer.progress.best_epoch
    return FittedNetwork(best, heads, last, epoch, frozenset(seen), frozenset(labelled))


def _read_weights(network: Aam, encoder: SavedModel, source: Path, continues: bool) -> None:
    """Read the weights of an encoder, those of its heads too where its training continues."""
    # Trained heads go on as they are: a linear model next to their correction counts twice.
    new_parts = () if continues else NEW_PARTS
    load_matching_weights(network, encoder.required_network, source, new_parts)


def _heads(
    study: Study, train_rows: Rows, targets: Targets, covariates: Covariates, config: FineTuneConfig
) -> HeadConfig:
    """Return the heads that pretraining and the targets ask for."""
    return replace(
        encoder_heads(study, config.train, train_rows),
        n_targets=len(targets.numeric),
        n_classes=tuple(len(spec.labels) for spec in targets.classes),
        levels=tuple(1 + len(levels) for levels in covariates.categorical.values()),
        numbers=len(covariates.numeric),
        covariates=config.covariates,
    )


def _frozen(network: Aam, study: Study, config: FineTuneConfig, place: Place) -> AsvVectors | None:
    """With ``--freeze-base``, freeze all but the new parts and return the vectors of the ASVs."""
    if not config.targets.freeze_base:
        return None
    vectors = place.encoded.encode(network, study, place.device, config.runtime)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.startswith(NEW_PARTS))
    return vectors


def _standardize(
    network: Aam, encoder: SavedModel | None, study: Study, train_rows: Rows, config: FineTuneConfig
) -> None:
    """Scale what is new of a network on a first batch, before any training."""
    if encoder is None or not encoder.required_network.reads_samples:
        # An encoder of masked bases has learned nothing of samples.
        network.standardize(first_batch(study, train_rows))
        return
    names = {study.table.sample_ids[row] for row in train_rows.tolist()}
    if not config.targets.freeze_base and names.isdisjoint(encoder.notes["seen_samples"]):
        # What varies among the encoder's samples may vary little in this study.
        network.standardize_reference(first_batch(study, train_rows))
    if encoder.required_network.distance is None:
        network.standardize_distance(first_batch(study, train_rows))
