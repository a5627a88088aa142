"""Running a trained model: each distinct ASV encoded once, then samples batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.config import RuntimeConfig
from aam.data.batch import Batch
from aam.data.loader import Loader
from aam.data.study import EVALUATION, Study
from aam.model.aam import Aam, Outputs
from aam.runtime.device import autocast

Array = npt.NDArray[np.float64]

ASVS_AT_ONCE = 1024
SAMPLES_AT_ONCE = 128


@dataclass(frozen=True, eq=False)
class AsvVectors:
    """Vectors ``[F, D]`` of every ASV of a table, on the device."""

    vectors: Tensor

    def of(self, batch: Batch) -> Tensor:
        """Those of the batch's distinct ASVs, ``[U, D]``."""
        if batch.column is None:
            raise ValueError("the batch does not say which columns of the table its ASVs are")
        return self.vectors[batch.column]


def encode_table(model: Aam, study: Study, device: torch.device, config: RuntimeConfig) -> AsvVectors:
    """Encode every ASV of the table once, those of one length together so that nothing is padded."""
    order = torch.from_numpy(np.argsort(study.lengths, kind="stable"))
    lengths = torch.from_numpy(study.lengths)[order]
    vectors = torch.empty(len(order), model.asv.position.shape[1], device=device)
    at_once = config.asv_chunk_size or ASVS_AT_ONCE
    model.eval()
    with torch.inference_mode(), autocast(config, device):
        for start in range(0, len(order), at_once):
            chosen = order[start : start + at_once]
            shortest, longest = int(lengths[start]), int(lengths[start + len(chosen) - 1])
            tokens = study.tokens[chosen, :longest].to(device)
            _, encoded = model.asv(tokens, shortest < longest)
            vectors[chosen.to(device)] = encoded.float()
    return AsvVectors(vectors)


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions: `target` [N, T] in transformed units, and [N, classes] for each class column."""

    sample_ids: tuple[str, ...]
    target: Array
    probabilities: tuple[Array, ...]
    samples: Array

    @staticmethod
    def joined(parts: Sequence[Predicted]) -> Predicted:
        """One after the other."""
        return Predicted(
            sum((part.sample_ids for part in parts), ()),
            np.concatenate([part.target for part in parts]),
            tuple(np.concatenate(columns) for columns in zip(*(p.probabilities for p in parts), strict=True)),
            np.concatenate([part.samples for part in parts]),
        )

    def ordered(self, sample_ids: Sequence[str]) -> Predicted:
        """In the order of `sample_ids`."""
        place = {name: row for row, name in enumerate(self.sample_ids)}
        rows = np.array([place[name] for name in sample_ids], np.int64)
        probabilities = tuple(column[rows] for column in self.probabilities)
        return Predicted(tuple(sample_ids), self.target[rows], probabilities, self.samples[rows])


def collect(outputs: Outputs, batch: Batch) -> Predicted:
    """The predictions of one batch on the host, in float64."""

    def host(values: Tensor) -> Array:
        return values.detach().double().cpu().numpy()

    target = np.zeros((len(batch.sample_ids), 0)) if outputs.target is None else host(outputs.target)
    probabilities = tuple(host(torch.softmax(logits.float(), dim=-1)) for logits in outputs.labels)
    return Predicted(batch.sample_ids, target, probabilities, host(outputs.samples))


def run_model(
    model: Aam,
    study: Study,
    rows: npt.NDArray[np.int64],
    device: torch.device,
    config: RuntimeConfig,
    draw: int = EVALUATION,
    asvs: AsvVectors | None = None,
) -> Predicted:
    """Predict the samples at `rows` from one rarefied draw; every distinct ASV is encoded once."""
    asvs = encode_table(model, study, device, config) if asvs is None else asvs
    loader = Loader(study, rows, SAMPLES_AT_ONCE, workers=config.num_workers, tokens=False, distances=False)
    model.eval()
    parts = []
    with torch.inference_mode(), autocast(config, device):
        for batch in loader.epoch(draw):
            moved = batch.to(device)
            parts.append(collect(model(moved, None, asvs.of(moved)), moved))
    return Predicted.joined(parts).ordered([study.table.sample_ids[row] for row in rows])
