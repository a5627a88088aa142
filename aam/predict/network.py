"""The network as a learner: what it predicts of rarefied samples; each ASV is encoded once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.data.batch import Batch
from aam.data.collate import Collation
from aam.data.loader import Loader
from aam.data.rarefaction import EVALUATION
from aam.data.shelves import Shelved
from aam.data.study import Study
from aam.device.options import RuntimeConfig
from aam.device.precision import autocast
from aam.device.timing import stage
from aam.model.aam import Aam, Outputs

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

WITHOUT_TOKENS = Collation(tokens=False, distances=False)

ASVS_AT_ONCE = 1024
SAMPLES_AT_ONCE = 128
# Samples of a large table that are predicted or embedded at a time.
SAMPLES_OF_PART = 64 * SAMPLES_AT_ONCE


@dataclass(frozen=True, eq=False)
class AsvVectors:
    """Vectors ``[F, D]`` of every ASV of a table, on the device."""

    vectors: Tensor

    def select(self, batch: Batch | Shelved) -> Tensor:
        """Return the vectors of the batch's distinct ASVs, ``[U, D]``."""
        if batch.column is None:
            raise ValueError("the batch does not say which columns of the table its ASVs are")
        return self.vectors[batch.column]


def encode_table(
    model: Aam, study: Study, device: torch.device, config: RuntimeConfig, rows: Rows | None = None
) -> AsvVectors:
    """Return the vectors of all ASVs of the table, encoded once each, in order of length so that
    padding is rare.

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
    with torch.inference_mode(), autocast(config, device, in_bf16=False):
        for start in range(0, len(order), at_once):
            columns = order[start : start + at_once]
            shortest, longest = int(lengths[start]), int(lengths[start + len(columns) - 1])
            tokens = study.tokens[columns, :longest].to(device)
            _, encoded = model.encode_asvs(tokens, shortest < longest)
            vectors[columns.to(device)] = encoded.float()
    return AsvVectors(vectors)


@dataclass(eq=False)
class EncodedAsvs:
    """The vectors of a table's ASVs by the encoder that read them last, for networks that read ASVs
    as it does.

    The folds of a run with frozen bases do, and so does the model that a fold saves: then each ASV
    is encoded once.
    """

    vectors: AsvVectors | None = None
    tokens: Tensor | None = None
    digest: str = ""

    def encode(
        self, model: Aam, study: Study, device: torch.device, config: RuntimeConfig
    ) -> AsvVectors:
        """Return what `encode_table` does, from memory where the weights and the ASVs are those of
        the last call.
        """
        digest = hashlib.sha256(str(device).encode())
        for name, value in sorted(model.asv.state_dict().items()):
            digest.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
        if (
            self.vectors is None
            or self.tokens is not study.tokens
            or self.digest != digest.hexdigest()
        ):
            self.vectors = encode_table(model, study, device, config)
            self.tokens, self.digest = study.tokens, digest.hexdigest()
        return self.vectors


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions: `target` [N, T] in transformed units, and [N, classes] for each class column.

    `read` [N, W] are the vectors that target heads read, `compared` [N, C] those whose distances
    are predicted (C is 0 where they are not asked for).
    """

    sample_ids: tuple[str, ...]
    target: Array
    probabilities: tuple[Array, ...]
    samples: Array
    read: Array
    compared: npt.NDArray[np.float32]

    @staticmethod
    def concatenate(parts: Sequence[Predicted]) -> Predicted:
        """Return the samples of all parts, in their order."""
        columns = zip(*(part.arrays for part in parts), strict=True)
        return Predicted._of(
            sum((part.sample_ids for part in parts), ()), map(np.concatenate, columns)
        )

    @staticmethod
    def _of(sample_ids: tuple[str, ...], arrays: Iterable[Any]) -> Predicted:
        target, samples, read, compared, *probabilities = arrays
        return Predicted(sample_ids, target, tuple(probabilities), samples, read, compared)

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """All arrays, whose first axis is that of the samples."""
        return (self.target, self.samples, self.read, self.compared, *self.probabilities)

    def reorder(self, sample_ids: Sequence[str]) -> Predicted:
        """Return the predictions in the order of `sample_ids`."""
        row_of = {name: row for row, name in enumerate(self.sample_ids)}
        rows = np.array([row_of[name] for name in sample_ids], np.int64)
        return Predicted._of(tuple(sample_ids), (values[rows] for values in self.arrays))


def per_target(predicted: Predicted) -> list[Array]:
    """Return one array per target, numbers first: encoded numbers ``[n, 1]`` and class
    probabilities.
    """
    numbers = predicted.target
    return [*(numbers[:, [column]] for column in range(numbers.shape[1])), *predicted.probabilities]


def collect(outputs: Outputs, batch: Batch | Shelved, compared: bool = False) -> Predicted:
    """Return the predictions of one batch on the host, in float64; with `compared` what distances
    are taken of too.
    """

    def host(values: Tensor) -> Array:
        return values.detach().double().cpu().numpy()

    target = (
        np.zeros((len(batch.sample_ids), 0)) if outputs.target is None else host(outputs.target)
    )
    probabilities = tuple(host(torch.softmax(logits.float(), dim=-1)) for logits in outputs.labels)
    read = outputs.samples if outputs.read is None else outputs.read
    vectors = np.zeros((len(target), 0), np.float32)
    if compared and outputs.compared is not None:
        vectors = outputs.compared.detach().float().cpu().numpy()
    return Predicted(
        batch.sample_ids, target, probabilities, host(outputs.samples), host(read), vectors
    )


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
        Vectors of all ASVs of the table; unless given, those of these samples' ASVs are computed
        here.
    compared : bool
        Keep the vectors whose distances are predicted too.
    """
    asvs = encode_table(model, study, device, config, rows) if asvs is None else asvs
    loader = Loader(study, rows, SAMPLES_AT_ONCE, workers=config.num_workers, how=WITHOUT_TOKENS)
    model.eval()
    parts = []
    with torch.inference_mode(), autocast(config, device, in_bf16=False):
        for batch in loader.epoch(rarefaction):
            moved = batch.to(device)
            with stage("forward"):
                outputs = model(moved, asvs=asvs.select(moved))
            parts.append(collect(outputs, moved, compared))
    return Predicted.concatenate(parts).reorder([study.table.sample_ids[row] for row in rows])
