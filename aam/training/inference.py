"""Outputs of a network for rarefied samples; each ASV is encoded once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from aam.data.batch import Batch, PaddedBatch
from aam.data.loader import Collation, Loader
from aam.data.rarefaction import EVALUATION
from aam.data.study import Study
from aam.data.targets import Covariates, Targets
from aam.device.measure import stage
from aam.device.precision import autocast
from aam.io.tables import AmpliconTable
from aam.model.aam import Aam, HeadConfig, Outputs
from aam.options import RuntimeConfig, not_none
from aam.typing import Floats, Ints, Reals, Rows

WITHOUT_TOKENS = Collation(tokens=False, distances=False)

ASVS_AT_ONCE = 1024
BATCH_SAMPLES = 128


@dataclass(frozen=True, eq=False)
class Encoder:
    """A trained network that another one starts from, with what it has seen.

    Attributes
    ----------
    source : Path
        Its folder, for messages.
    network : Aam
    heads : HeadConfig
    targets, covariates : Targets, Covariates
        What it predicts and reads; nothing after pretraining.
    seen, labelled : frozenset of str
        Samples that it has learned from, and those whose labels took part.
    """

    source: Path
    network: Aam
    heads: HeadConfig
    targets: Targets
    covariates: Covariates
    seen: frozenset[str] = frozenset()
    labelled: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class FittedNetwork:
    """A network that has been trained.

    Attributes
    ----------
    network : Aam
        With its best weights, in evaluation mode.
    heads : HeadConfig
    last_weights : dict of str to tensor
        The weights of the last step.
    best_epoch : int
    """

    network: Aam
    heads: HeadConfig
    last_weights: Mapping[str, Tensor]
    best_epoch: int


def encode_table(
    model: Aam, study: Study, device: torch.device, config: RuntimeConfig, rows: Rows | None = None
) -> Tensor:
    """Return the vectors ``[F, D]`` of all ASVs of the table on the device, encoded once each, in
    order of length so that padding is rare.

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
    return vectors


@dataclass(eq=False)
class EncodedAsvs:
    """Vectors of a table's ASVs by the encoder that read them last.

    The folds of a run share them where their encoders are frozen.
    """

    vectors: Tensor | None = None
    table: AmpliconTable | None = None
    digest: str = ""

    def encode(
        self, model: Aam, study: Study, device: torch.device, config: RuntimeConfig
    ) -> Tensor:
        """Vectors of `encode_table`, kept while weights and ASVs stay the same."""
        digest = hashlib.sha256(str(device).encode())
        for name, value in sorted(model.asv.state_dict().items()):
            digest.update(name.encode() + value.detach().float().cpu().numpy().tobytes())
        is_same = self.table is study.table and self.digest == digest.hexdigest()
        if self.vectors is None or not is_same:
            self.vectors = encode_table(model, study, device, config)
            self.table, self.digest = study.table, digest.hexdigest()
        return self.vectors


@dataclass(frozen=True, eq=False)
class Predicted:
    """Outputs of a network for n samples.

    Attributes
    ----------
    sample_ids : tuple of str
    target : float64 [n, T]
        Numbers in transformed units.
    samples, read : float64 [n, W]
        Vectors of the samples, and those that target heads read, with covariates.
    compared : float32 [n, C]
        Vectors whose distances are predicted; C is 0 if they are not asked for.
    probabilities : tuple of float64 [n, K]
        Of each class column.
    """

    sample_ids: tuple[str, ...]
    target: Floats
    samples: Floats
    read: Floats
    compared: Reals
    probabilities: tuple[Floats, ...]

    @staticmethod
    def concatenate(
        parts: Sequence[Predicted], sample_ids: Sequence[str] | None = None
    ) -> Predicted:
        """The samples of all parts, in their order or in that of `sample_ids`."""
        ids = tuple(name for part in parts for name in part.sample_ids)
        wanted, place = sample_ids or ids, {name: row for row, name in enumerate(ids)}
        rows = np.array([place[name] for name in wanted], np.int64)
        arrays = ((p.target, p.samples, p.read, p.compared, *p.probabilities) for p in parts)
        columns = zip(*arrays, strict=True)
        target, samples, read, compared, *shares = (np.concatenate(c)[rows] for c in columns)
        return Predicted(tuple(wanted), target, samples, read, compared, tuple(shares))


def per_target(predicted: Predicted) -> list[Floats]:
    """Encoded numbers ``[n, 1]`` and class probabilities of each target, numbers first."""
    numbers = predicted.target
    return [*(numbers[:, [column]] for column in range(numbers.shape[1])), *predicted.probabilities]


def collect(outputs: Outputs, batch: Batch | PaddedBatch, compared: bool = False) -> Predicted:
    """Outputs for one batch on the host, in float64; vectors that are `compared` if asked for."""

    def host(values: Tensor | None) -> Floats:
        if values is None:
            return np.zeros((len(batch.sample_ids), 0))
        return values.detach()[: len(batch.sample_ids)].double().cpu().numpy()

    vectors = host(outputs.compared if compared else None).astype(np.float32)
    read = outputs.samples if outputs.read is None else outputs.read
    probabilities = tuple(host(torch.softmax(logits.float(), dim=-1)) for logits in outputs.labels)
    target, samples = host(outputs.target), host(outputs.samples)
    return Predicted(batch.sample_ids, target, samples, host(read), vectors, probabilities)


def run_model(
    model: Aam,
    study: Study,
    rows: Ints,
    device: torch.device,
    config: RuntimeConfig,
    rarefaction: int = EVALUATION,
    asvs: Tensor | None = None,
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
    asvs : float [F, D], optional
        Vectors of all ASVs of the table; unless given, those of these samples' ASVs are computed
        here.
    compared : bool
        Keep the vectors whose distances are predicted too.
    """
    asvs = encode_table(model, study, device, config, rows) if asvs is None else asvs
    loader = Loader(
        study, rows, BATCH_SAMPLES, workers=config.num_workers, collation=WITHOUT_TOKENS
    )
    model.eval()
    parts = []
    with torch.inference_mode(), autocast(config, device, in_bf16=False):
        for batch in loader.epoch(rarefaction):
            moved = batch.to(device)
            with stage("forward"):
                outputs = model(moved, asvs=asvs[not_none(moved.column)])
            parts.append(collect(outputs, moved, compared))
    return Predicted.concatenate(parts, [study.table.sample_ids[row] for row in rows])
