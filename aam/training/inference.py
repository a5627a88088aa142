"""Predictions of a trained model, which encodes each ASV once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.data.batch import Batch
from aam.data.collate import Collation
from aam.data.loader import Loader
from aam.data.study import EVALUATION, Study
from aam.data.targets import Labels
from aam.device.distributed import World
from aam.device.options import RuntimeConfig
from aam.device.precision import autocast
from aam.device.routing import routed
from aam.device.timing import stage
from aam.evaluate.conformal import Conformal
from aam.evaluate.metrics import classification_metrics, regression_metrics
from aam.evaluate.predictions import PredictionTable, joined
from aam.model.aam import Aam, Outputs
from aam.predict.members import Members
from aam.predict.network import NETWORK, blend_draws, per_target
from aam.predict.saved_model import SavedModel

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

ASVS_AT_ONCE = 1024
WITHOUT_TOKENS = Collation(tokens=False, distances=False)

SAMPLES_AT_ONCE = 128
# What is known of them before it is averaged, each tree of a forest included, is held at once.
SAMPLES_OF_PART = 64 * SAMPLES_AT_ONCE


@dataclass(frozen=True, eq=False)
class AsvVectors:
    """Vectors ``[F, D]`` of every ASV of a table, on the device."""

    vectors: Tensor

    def select(self, batch: Batch) -> Tensor:
        """Return the vectors of the batch's distinct ASVs, ``[U, D]``."""
        if batch.column is None:
            raise ValueError("the batch does not say which columns of the table its ASVs are")
        return self.vectors[batch.column]


def encode_table(
    model: Aam, study: Study, device: torch.device, config: RuntimeConfig, rows: Rows | None = None
) -> AsvVectors:
    """Return the vectors of all ASVs of the table, encoded once each, in order of length so that padding is rare.

    With `rows` only those of the ASVs of some samples are encoded, and the others are undefined.
    """
    order = torch.from_numpy(np.argsort(study.lengths, kind="stable"))
    if rows is not None:
        is_asked = np.zeros(len(order), bool)
        is_asked[study.table.columns_of(rows)] = True
        order = order[torch.from_numpy(is_asked)[order]]
    lengths = torch.from_numpy(study.lengths)[order]
    vectors = torch.empty(len(study.lengths), model.asv.position.shape[1], device=device)
    at_once = config.asv_chunk_size or ASVS_AT_ONCE
    model.eval()
    with torch.inference_mode(), autocast(config, device), routed(device):
        for start in range(0, len(order), at_once):
            columns = order[start : start + at_once]
            shortest, longest = int(lengths[start]), int(lengths[start + len(columns) - 1])
            tokens = study.tokens[columns, :longest].to(device)
            _, encoded = model.encode_asvs(tokens, shortest < longest)
            vectors[columns.to(device)] = encoded.float()
    return AsvVectors(vectors)


@dataclass(eq=False)
class EncodedAsvs:
    """The vectors of a table's ASVs by the encoder that read them last, for networks that read ASVs as it does.

    The folds of a run with frozen bases do, and so does the model that a fold saves: then each ASV is encoded once.
    """

    vectors: AsvVectors | None = None
    tokens: Tensor | None = None
    digest: str = ""

    def encode(self, model: Aam, study: Study, device: torch.device, config: RuntimeConfig) -> AsvVectors:
        """Return what `encode_table` does, from memory where the weights and the ASVs are those of the last call."""
        digest = hashlib.sha256(str(device).encode())
        for name, value in sorted(model.asv.state_dict().items()):
            digest.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
        if self.vectors is None or self.tokens is not study.tokens or self.digest != digest.hexdigest():
            self.vectors = encode_table(model, study, device, config)
            self.tokens, self.digest = study.tokens, digest.hexdigest()
        return self.vectors


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions: `target` [N, T] in transformed units, and [N, classes] for each class column.

    `read` [N, W] are the vectors that target heads read, `compared` [N, C] those whose distances are predicted (C is 0
    where they are not asked for), `quantiles` are [N, Q, T].
    """

    sample_ids: tuple[str, ...]
    target: Array
    probabilities: tuple[Array, ...]
    samples: Array
    read: Array
    quantiles: Array
    compared: npt.NDArray[np.float32]

    @staticmethod
    def concatenate(parts: Sequence[Predicted]) -> Predicted:
        """Return the samples of all parts, in their order."""
        return Predicted(
            sum((part.sample_ids for part in parts), ()),
            np.concatenate([part.target for part in parts]),
            tuple(np.concatenate(columns) for columns in zip(*(p.probabilities for p in parts), strict=True)),
            *(
                np.concatenate([getattr(p, name) for p in parts])
                for name in ("samples", "read", "quantiles", "compared")
            ),
        )

    def all_gather(self, world: World, study: Study) -> Predicted:
        """Return the predictions of all ranks, on each rank."""
        if world.size == 1:
            return self
        rows = np.concatenate(world.all_gather_arrays(study.rows(self.sample_ids)))
        arrays = (self.target, self.samples, self.read, self.quantiles, *self.probabilities)
        target, samples, read, quantiles, *probabilities = (
            np.concatenate(world.all_gather_arrays(values)) for values in arrays
        )
        compared = np.concatenate(world.all_gather_arrays(self.compared))
        names = tuple(study.table.sample_ids[row] for row in rows)
        return Predicted(names, target, tuple(probabilities), samples, read, quantiles, compared)

    def reorder(self, sample_ids: Sequence[str]) -> Predicted:
        """Return the predictions in the order of `sample_ids`."""
        row_of = {name: row for row, name in enumerate(self.sample_ids)}
        rows = np.array([row_of[name] for name in sample_ids], np.int64)
        probabilities = tuple(column[rows] for column in self.probabilities)
        samples, read, quantiles = (values[rows] for values in (self.samples, self.read, self.quantiles))
        compared = self.compared[rows]
        return Predicted(tuple(sample_ids), self.target[rows], probabilities, samples, read, quantiles, compared)


def collect(outputs: Outputs, batch: Batch, compared: bool = False) -> Predicted:
    """Return the predictions of one batch on the host, in float64; with `compared` what distances are taken of too."""

    def host(values: Tensor) -> Array:
        return values.detach().double().cpu().numpy()

    target = np.zeros((len(batch.sample_ids), 0)) if outputs.target is None else host(outputs.target)
    probabilities = tuple(host(torch.softmax(logits.float(), dim=-1)) for logits in outputs.labels)
    read = outputs.samples if outputs.read is None else outputs.read
    quantiles = np.zeros((len(target), 0, 0)) if outputs.quantiles is None else host(outputs.quantiles)
    vectors = np.zeros((len(target), 0), np.float32)
    if compared and outputs.compared is not None:
        vectors = outputs.compared.detach().float().cpu().numpy()
    return Predicted(batch.sample_ids, target, probabilities, host(outputs.samples), host(read), quantiles, vectors)


def mean_scores(labels: Labels, rows: Rows, predicted: Predicted) -> dict[str, float]:
    """Return the metrics that choose an epoch, each the mean over the columns that have it, in transformed units.

    `labels` are those of a study, `rows` those of the samples that were predicted.
    """
    collected: dict[str, list[float]] = {}
    for truth, values in zip(labels.target[rows].T, predicted.target.T, strict=True):
        present = np.isfinite(truth)
        scores = regression_metrics(truth[present], values[present])
        for name in ("mae", "r2"):
            collected.setdefault(name, []).append(scores[name])
    for classes, shares in zip(labels.label[rows].T, predicted.probabilities, strict=True):
        scores = classification_metrics(classes[classes >= 0], shares[classes >= 0])
        for name, key in (("accuracy", "accuracy"), ("f1", "macro_f1"), ("auroc", "auroc")):
            collected.setdefault(name, []).append(scores[key])
    return {name: float(np.mean(values)) for name, values in collected.items()}


def run_model(
    model: Aam,
    study: Study,
    rows: npt.NDArray[np.int64],
    device: torch.device,
    config: RuntimeConfig,
    rarefaction: int = EVALUATION,
    asvs: AsvVectors | None = None,
    compared: bool = False,
) -> Predicted:
    """Predict the samples at `rows` from one rarefaction.

    Parameters
    ----------
    model : Aam
    study : Study
    rows : int64 [n]
        Rows of the table; predictions are in their order.
    device : torch.device
    config : RuntimeConfig
    rarefaction : int
        Number of the rarefaction; the fixed one of evaluation unless given.
    asvs : AsvVectors, optional
        Vectors of all ASVs of the table; unless given, those of these samples' ASVs are computed here.
    compared : bool
        Keep the vectors whose distances are predicted too; on a reference tree they are wide.
    """
    asvs = encode_table(model, study, device, config, rows) if asvs is None else asvs
    placed = study.placed_on(model.reference)
    loader = Loader(placed, rows, SAMPLES_AT_ONCE, workers=config.num_workers, how=WITHOUT_TOKENS)
    model.eval()
    parts = []
    with torch.inference_mode(), autocast(config, device), routed(device):
        for batch in loader.epoch(rarefaction):
            moved = batch.to(device)
            with stage("forward"):
                outputs = model(moved, None, asvs.select(moved))
            parts.append(collect(outputs, moved, compared))
    return Predicted.concatenate(parts).reorder([study.table.sample_ids[row] for row in rows])


def _with_members(
    members: Members, study: Study, rows: Rows, rarefactions: Sequence[int], predicted: Sequence[Predicted]
) -> list[Predicted]:
    """Return what the network says in each draw, blended with what the members say."""
    blended = blend_draws(
        members, study, rows, rarefactions, [per_target(p.target, p.probabilities) for p in predicted]
    )
    blended_predictions = []
    for one, parts in zip(predicted, blended, strict=True):
        numbers = one.target.shape[1]
        target = np.concatenate([one.target[:, :0], *parts[:numbers]], axis=1)
        blended_predictions.append(replace(one, target=target, probabilities=tuple(parts[numbers:])))
    return blended_predictions


def reads_network(saved: SavedModel) -> bool:
    """Return whether the network has a weight in some prediction: where it has none, no ASV needs to be encoded."""
    if saved.members is None:
        return True
    return any(fitted.weights.get(NETWORK, 0.0) > 0 for fitted in saved.members.fitted)


def silent_network(saved: SavedModel, sample_ids: Sequence[str]) -> Predicted:
    """Return zeros in place of what a network without weight would say."""
    number = len(sample_ids)
    target = np.zeros((number, len(saved.targets.numeric)))
    probabilities = tuple(np.zeros((number, len(spec.labels))) for spec in saved.targets.classes)
    empty, quantiles = np.zeros((number, 0)), np.zeros((number, 0, target.shape[1]))
    return Predicted(tuple(sample_ids), target, probabilities, empty, empty, quantiles, empty.astype(np.float32))


def predict_rows(
    saved: SavedModel,
    study: Study,
    sample_ids: Sequence[str],
    config: RuntimeConfig,
    device: torch.device,
    passes: int,
    fold: str = "",
    asvs: AsvVectors | None = None,
) -> PredictionTable:
    """Predict samples of `study` from `passes` rarefactions each.

    Numbers are means over the rarefactions, spreads their standard deviation, probabilities their mean; intervals are
    added where the model holds fitted ones. Each of their ASVs is encoded once, unless `asvs` are given. Of large
    tables some samples are predicted at a time.
    """
    study = study.with_covariates(saved.covariates, study.metadata)
    study = study.placed_on(saved.network.reference)
    if asvs is None and reads_network(saved):
        asvs = encode_table(saved.network, study, device, config, study.rows(sample_ids))
    parts = []
    for start in range(0, max(len(sample_ids), 1), SAMPLES_OF_PART):
        some = sample_ids[start : start + SAMPLES_OF_PART]
        parts.append(_predict_part(saved, study, some, config, device, asvs, passes))
    table = replace(parts[0] if len(parts) == 1 else joined(parts), folds=(fold,) * len(sample_ids))
    for name, fitted in saved.notes.get("intervals", {}).items():
        table = table.with_limits(name, Conformal.from_json(fitted).limits(table.values[name]))
    return table


def _predict_part(
    saved: SavedModel,
    study: Study,
    sample_ids: Sequence[str],
    config: RuntimeConfig,
    device: torch.device,
    asvs: AsvVectors | None,
    passes: int,
) -> PredictionTable:
    rows = study.rows(sample_ids)
    draw_numbers = [EVALUATION - 1 - number for number in range(passes)]
    if reads_network(saved):
        rarefactions = [run_model(saved.network, study, rows, device, config, draw, asvs) for draw in draw_numbers]
    else:
        rarefactions = [silent_network(saved, sample_ids)] * passes
    if saved.members is not None:
        rarefactions = _with_members(saved.members, study, rows, draw_numbers, rarefactions)

    def decode(target: Array) -> Array:
        return saved.targets.decode(target, study.metadata, sample_ids)

    numbers = np.stack([decode(predicted.target) for predicted in rarefactions])
    levels = range(rarefactions[0].quantiles.shape[1])
    quantiles = [
        np.mean([decode(predicted.quantiles[:, level]) for predicted in rarefactions], axis=0) for level in levels
    ]
    numeric = [spec.name for spec in saved.targets.numeric]
    classes = [spec.name for spec in saved.targets.classes]
    return PredictionTable(
        sample_ids=tuple(sample_ids),
        specs=saved.targets.specs,
        values={name: numbers.mean(axis=0)[:, column] for column, name in enumerate(numeric)},
        spreads={name: numbers.std(axis=0)[:, column] for column, name in enumerate(numeric)} if passes > 1 else {},
        probabilities={
            name: np.mean([predicted.probabilities[column] for predicted in rarefactions], axis=0)
            for column, name in enumerate(classes)
        },
        notes=("",) * len(sample_ids),
        folds=("",) * len(sample_ids),
        quantiles={
            spec.name: np.stack([values[:, column] for values in quantiles], axis=1)
            for column, spec in enumerate(saved.targets.numeric)
            if spec.quantiles
        },
    )
