"""What a saved model and each of its learners predict of samples whose reads are known, such as variants of samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from aam.data.batch import Batch
from aam.data.collate import batch_of_reads, rarefied_rows, rows_read
from aam.data.study import Row, Rows, Study
from aam.device.options import RuntimeConfig
from aam.device.platform import routed
from aam.device.precision import autocast
from aam.explain.variants import Floats, Variants, counts_of
from aam.predict.blend import NETWORK
from aam.predict.features import Samples
from aam.predict.network import AsvVectors, collect, encode_table, per_target
from aam.predict.prediction import with_inputs
from aam.predict.saved_model import SavedModel

# The whole model, beside its learners.
BLEND = "model"

# A network of a smaller weight is not run on variants: its part of an effect is at most that share.
LEAST_WEIGHT = 0.02

VARIANTS_AT_ONCE = 1 << 14

SAMPLES_AT_ONCE = 256

# For each target, what each learner predicts: numbers [n, 1] or probabilities [n, classes].
Scores = list[dict[str, Floats]]


@dataclass(frozen=True, eq=False)
class Rarefied:
    """A numbered rarefaction of the samples at `rows` of a study: all `reads`, and those that a network reads."""

    rarefaction: int
    rows: Rows
    reads: Sequence[Row]
    limited: Sequence[Row]


@dataclass(frozen=True, eq=False)
class Predictor:
    """A saved model, the study that it reads, and the vectors of its ASVs where the network has a weight."""

    saved: SavedModel
    study: Study
    config: RuntimeConfig
    asvs: AsvVectors | None

    @classmethod
    def of(cls, saved: SavedModel, study: Study, sample_ids: Sequence[str], config: RuntimeConfig) -> Predictor:
        """Return what predicts variants of some samples of a study with the metadata that the model reads."""
        study = with_inputs(saved, replace(study, seed=saved.seed))
        if saved.network is None or saved.blend.network_weight == 0:
            return cls(saved, study, config, None)
        asvs = encode_table(saved.network, study, saved.device, config, study.rows(sample_ids))
        return cls(saved, study, config, asvs)

    @property
    def explains_network(self) -> bool:
        """Whether the network takes part in effects: where it has `LEAST_WEIGHT` for some target."""
        return self.asvs is not None and self.saved.blend.network_weight >= LEAST_WEIGHT

    def rarefied(self, sample_ids: Sequence[str], rarefaction: int) -> Rarefied:
        """Return a numbered rarefaction of some samples."""
        rows = self.study.rows(sample_ids)
        limited = rows_read(self.study, rows, rarefaction)
        return Rarefied(rarefaction, rows, rarefied_rows(self.study, rows, rarefaction), limited)

    def predict(self, samples: Rarefied, variants: Variants) -> tuple[Scores, Scores]:
        """Return what the whole model and each learner predict of samples, and of variants, in the units of targets.

        A network of next to no weight predicts of variants what it does of their samples.
        """
        asvs = len(self.study.table.sequences)
        counts, limited = counts_of(samples.reads, asvs), counts_of(samples.limited, asvs)
        of_network = self._network(samples)
        of_samples = self._predict(samples, of_network)
        parts = [[{name: values[:0] for name, values in one.items()} for one in of_samples]]
        for start in range(0, len(variants.sample), VARIANTS_AT_ONCE):
            some = variants[start : start + VARIANTS_AT_ONCE]
            changed = replace(samples, rows=samples.rows[some.sample], reads=some.reads(counts))
            if self.explains_network:
                changed = replace(changed, limited=some.reads(limited))
                parts.append(self._predict(changed, self._network(changed)))
            else:
                parts.append(self._predict(changed, [values[some.sample] for values in of_network]))
        return of_samples, [
            {name: np.concatenate([scores[name] for scores in of_target]) for name in of_target[0]}
            for of_target in zip(*parts, strict=True)
        ]

    def attention(self, samples: Rarefied) -> Floats:
        """Return the weight in the attention pool of each ASV that the network reads, of sum 1 by sample, one by one.

        It says what the network looks at, not what changes its prediction.
        """
        network, by_place = self.saved.required_network, dict[int, Floats]()
        for places, batch, vectors in self._batches(samples):
            weights = network.sample.attention(vectors[batch.asv], batch.counts).double().cpu().numpy()
            by_place |= {int(at): row[:size] for at, row, size in zip(places, weights, batch.sizes, strict=True)}
        return np.concatenate([by_place[place] for place in range(len(samples.rows))])

    def _batches(self, samples: Rarefied) -> Iterator[tuple[Rows, Batch, torch.Tensor]]:
        """Yield places among the samples, a batch of them and the vectors of its ASVs, within a forward pass."""
        if self.asvs is None:
            return
        order = np.argsort([-len(columns) for columns, _ in samples.limited], kind="stable")
        device = self.asvs.vectors.device
        self.saved.required_network.eval()
        with torch.inference_mode(), autocast(self.config, device), routed(device):
            for start in range(0, len(order), SAMPLES_AT_ONCE):
                places = order[start : start + SAMPLES_AT_ONCE]
                reads = [samples.limited[place] for place in places]
                batch = batch_of_reads(self.study, samples.rows[places], reads).to(device)
                yield places, batch, self.asvs.select(batch)

    def _network(self, samples: Rarefied) -> list[Floats]:
        """Return what the network says of each target; nothing where it has no weight."""
        parts, order = [], [np.zeros(0, np.int64)]
        for places, batch, vectors in self._batches(samples):
            parts.append(per_target(collect(self.saved.required_network(batch, None, vectors), batch)))
            order.append(places)
        back = np.argsort(np.concatenate(order))
        return [np.concatenate(values)[back] for values in zip(*parts, strict=True)]

    def _predict(self, samples: Rarefied, of_network: Sequence[Floats]) -> Scores:
        """Return what the whole model and, where there are several, each learner predict; the network's is known."""
        blend = self.saved.blend
        X = blend.inputs(Samples.of_reads(self.study, samples.rows, [samples.reads])) if blend.learners else None
        scores = blend.scores(X)
        for place, values in enumerate(of_network):
            scores[place][NETWORK] = values
        predicted = {BLEND: self._decoded(samples, blend.blend(scores))}
        for name in blend.learners:
            predicted[name] = self._decoded(samples, [one[name] for one in scores])
        if blend.learners and self.explains_network:
            predicted[NETWORK] = self._decoded(samples, of_network)
        return [dict(zip(predicted, values, strict=True)) for values in zip(*predicted.values(), strict=True)]

    def _decoded(self, samples: Rarefied, values: Sequence[Floats]) -> list[Floats]:
        """Return predictions of each target, numbers first, with numbers in the units of their columns."""
        numbers = len(self.saved.targets.numeric)
        if not numbers:
            return list(values)
        ids = [self.study.table.sample_ids[row] for row in samples.rows.tolist()]
        encoded = np.concatenate(values[:numbers], axis=1)
        decoded = self.saved.targets.decode(encoded, self.study.metadata, ids)
        return [*(decoded[:, [column]] for column in range(numbers)), *values[numbers:]]
