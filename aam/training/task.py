"""The microbiome task on the engine: batches of samples, masks, losses and validation metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from aam.config import FineTuneConfig
from aam.data.batch import Batch
from aam.data.loader import Loader
from aam.data.rarefaction import EVALUATION
from aam.data.targets import Labels
from aam.device.distributed import SINGLE, World
from aam.device.precision import autocast
from aam.device.timing import stage
from aam.engine.step import RunningMeans
from aam.engine.task import Metrics, Task, Terms
from aam.evaluate.metrics import classification_metrics, regression_metrics
from aam.model.aam import Aam, Masks, Outputs
from aam.model.heads import Readout
from aam.predict.network import Array, AsvVectors, Predicted, collect
from aam.training.losses import class_weights, loss_counts, loss_terms, penalties
from aam.training.masking import make_masks

HIGHER_IS_BETTER = ("r2", "accuracy", "f1", "auroc")


class MaskedBatch(NamedTuple):
    """A batch on the device, what is withheld from the network, and ASV vectors ``[U, D]`` computed
    beforehand.
    """

    batch: Batch
    masks: Masks | None
    asvs: Tensor | None


class AmpliconTask(Task):
    """Pretraining or supervised training of `model` on the samples of two loaders.

    Parameters
    ----------
    model : Aam
    config : FineTuneConfig
    train, validation : Loader
    device : torch.device
    asvs : AsvVectors, optional
        Vectors of every ASV of the table, where the encoder is frozen.
    world : World
    """

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
        self.model: Aam = model
        self.config, self.device, self.world = config, device, world
        self.train, self.validation, self.asvs = train, validation, asvs
        model.gather = world.gather_rows
        labels = train.study.labels.label[train.rows]
        sizes = [len(head.linear.bias) for head in model.labels if isinstance(head, Readout)]
        self.class_weights = class_weights(config.targets.class_weights, labels, sizes)
        self.loss_weights = penalties(config.train, len(sizes))
        self.loss_names = tuple(self.loss_weights)
        metric = config.targets.best_metric
        self.best_metric = metric if metric == "val_loss" else f"val_{metric}"
        self.higher_is_better = metric in HIGHER_IS_BETTER
        # What starts from an encoder ends no worse than that on the validation samples.
        self.validates_first = (
            bool(config.targets.metadata_column) or config.train.pretrained_encoder is not None
        )

    @property
    def batches_per_epoch(self) -> int:  # type: ignore[override]
        """The number of batches of an epoch, on all ranks together."""
        return len(self.train)

    def batches(self, epoch: int, skip: int) -> Iterator[Sequence[Batch]]:
        """Yield the batches of an epoch."""
        return ((batch,) for batch in self.train.epoch(epoch, skip))

    @stage("losses")
    def masks(self, batch: Batch, number: int) -> Masks | None:
        """Return what is withheld from the network in batch `number` of the run."""
        return make_masks(batch, self.config.train, self.config.runtime.seed, number)

    def prepare(self, batch: Batch, number: int) -> MaskedBatch:
        """Return the batch on the device, with its masks and, where the encoder is frozen, its ASV
        vectors.
        """
        moved = batch.to(self.device)
        return MaskedBatch(
            moved, self.masks(moved, number), None if self.asvs is None else self.asvs.select(moved)
        )

    def run(self, network: nn.Module, prepared: MaskedBatch) -> tuple[Outputs, Terms]:
        """Return the outputs of one batch, and every loss of them as ``name -> (sum, count)``."""
        precision = autocast(self.config.runtime, self.device, self.config.model.trains_in_bf16)
        with precision, stage("forward"):
            outputs = network(*prepared).full()
        terms = loss_terms(
            outputs,
            prepared.batch,
            prepared.masks,
            self.config.targets.loss_type,
            self.train.study.depth,
            self.class_weights,
        )
        return outputs, terms

    def losses(self, network: nn.Module, prepared: MaskedBatch) -> Terms:
        """Return every loss of a batch as ``name -> (sum, count)``."""
        return self.run(network, prepared)[1]

    @stage("losses")
    def loss_counts(self, prepared: MaskedBatch) -> dict[str, Tensor]:
        """Return what each loss of a batch will count."""
        return loss_counts(prepared.batch, prepared.masks, self.class_weights)

    def samples(self, prepared: MaskedBatch) -> int:
        """Return the samples of a batch on all ranks."""
        return sum(prepared.batch.ranks.samples) or len(prepared.batch.sample_ids)

    def work(self, prepared: MaskedBatch) -> int | None:
        """Return the tokens that each block of the encoders reads."""
        return prepared.batch.work(self.config.model.patch_size)

    def describe_batch(self, prepared: MaskedBatch) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors of a batch and the ids of its samples."""
        batch = prepared.batch
        tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
        return tensors, {"sample_ids": batch.sample_ids}

    def validate(self, network: nn.Module) -> Metrics:
        """Return losses and metrics of the validation samples, in one fixed rarefaction with fixed
        masks.
        """
        if not len(self.validation):
            return {}
        means, parts = RunningMeans(), []
        supervised = self.model.target is not None or len(self.model.labels) > 0
        for batch in self.validation.epoch(EVALUATION):
            prepared = self.prepare(batch, EVALUATION)
            terms: Terms = {}
            if prepared.masks is not None or not supervised:
                _, terms = self.run(network, prepared)
            if supervised:
                # Targets are scored as they are predicted, with no count withheld.
                outputs, target_terms = self.run(network, prepared._replace(masks=None))
                parts.append(collect(outputs, prepared.batch))
                terms |= target_terms
            means.add(terms)
        reduced = means.all_reduce(self.loss_names, self.world)
        metrics = {f"val_{name}": value for name, value in reduced.read(self.loss_weights).items()}
        if parts:
            metrics |= self._scores(Predicted.concatenate(parts))
            metrics["val_loss"] = sum(
                v for n, v in metrics.items() if n.startswith(("val_target", "val_label"))
            )
        return metrics

    def _scores(self, predicted: Predicted) -> Metrics:
        """Return the metrics of the predictions of all ranks."""
        study = self.validation.study
        of_rank = (study.rows(predicted.sample_ids), predicted.target, *predicted.probabilities)
        gathered = (np.concatenate(self.world.all_gather_arrays(values)) for values in of_rank)
        return {
            f"val_{name}": value for name, value in _mean_scores(study.labels, *gathered).items()
        }


def _mean_scores(
    labels: Labels, rows: npt.NDArray[np.int64], target: Array, *probabilities: Array
) -> dict[str, float]:
    """Return the metrics that choose an epoch, each the mean over the columns that have it, in
    transformed units.

    `labels` are those of a study, `rows` ``[n]`` those of the samples of which `target` ``[n, T]``
    and `probabilities` ``[n, classes]`` were predicted.
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
