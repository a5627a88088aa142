"""Effects of the absence, and of a permutation, of each ASV on predictions and their loss."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy import sparse

from aam.data.batch import Batch, on_shelves
from aam.data.loader import collate, rows_read
from aam.data.rarefaction import EVALUATION, matrix_of, rarefied_rows
from aam.data.study import Rows, Study
from aam.data.targets import TargetSpec
from aam.device.precision import autocast
from aam.device.rng import generator
from aam.errors import InputError, shown
from aam.model.aam import slots_of
from aam.options import RuntimeConfig
from aam.predict.blend import specs_in_order
from aam.predict.estimator import Samples
from aam.predict.prediction import with_inputs
from aam.predict.saved_model import SavedModel
from aam.training.inference import WITHOUT_TOKENS, AsvVectors, collect, encode_table, per_target

log = logging.getLogger("aam")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Matrix: TypeAlias = sparse.csr_matrix

# --- variants of samples ------------------------------------------------------------------------

# Samples that are chosen to get an ASV for each sample that has it; one where the network is run,
# which takes longest.
RECEIVERS = 2


def applied(variants: pd.DataFrame, counts: Matrix) -> Matrix:
    """Reads ``[M, F]`` of the variants of samples with the reads `counts` ``[n, F]``.

    An ASV that a sample has, but not in `counts`, which may be limited to fewer, stays out of them.
    """
    sample, column, before, after = variants[["sample", "column", "before", "after"]].to_numpy().T
    present = np.asarray(counts[sample, column]).ravel()
    after = np.where((before > 0) & (present == 0), 0, after)
    places = (np.arange(len(after)), column)
    changed = sparse.csr_matrix((after - present, places), (len(after), counts.shape[1]))
    reads = sparse.csr_matrix(counts[sample] + changed)
    reads.eliminate_zeros()
    return reads


def make_variants(counts: Matrix, reads_counts: bool, seed: tuple[int, ...]) -> pd.DataFrame:
    """Return the variants from which the effect and the importance of every ASV of some samples
    follow.

    For each ASV of each sample the sample without it. And for each ASV some samples with the reads
    of a random sample that has it.

    A permutation of an ASV over n samples gives each sample the ASV with probability p, its
    prevalence, with the reads of a random sample that has it. So the expected loss after a
    permutation is known from what is here: a sample with the ASV loses it with probability 1 - p,
    which is the weight of its removal, and each sample gets it with probability p: each is chosen
    with a probability q, and has the weight p / q.

    Parameters
    ----------
    counts : int64 [n, F]
        Reads of the rarefied samples.
    reads_counts : bool
        Whether the model reads more than which ASVs are present.
    seed : tuple
        Of the random choices.

    Returns
    -------
    DataFrame
        ``sample`` (place among the n), ``column`` (the ASV whose reads are changed), ``before`` and
        ``after`` (its reads in the sample and in the variant; 0 where it is absent), and ``weight``
        (in the expected loss after a permutation of the ASV over the samples).
    """
    (samples, asvs), rng = counts.shape, generator("explain", *seed)
    by_column = counts.tocsc()
    sample, reads = by_column.indices.astype(np.int64), by_column.data
    carriers = np.diff(by_column.indptr)
    column, prevalence = np.repeat(np.arange(asvs), carriers), carriers / samples
    lost = {"sample": sample, "column": column, "before": reads, "after": 0}
    without = pd.DataFrame({**lost, "weight": 1 - prevalence[column]})
    # Of a sample's only ASV nothing can be said: no model reads an empty sample.
    without = without[np.bincount(sample, minlength=samples)[sample] > 1]
    receivers = 1 if reads_counts else RECEIVERS
    chosen = rng.integers(samples, size=(receivers, len(column)))
    receiver, of = np.divmod(np.unique(chosen * asvs + column), asvs)
    is_chosen = 1 - (1 - 1 / samples) ** (receivers * carriers[of])
    before = np.asarray(counts[receiver, of]).ravel()
    after = reads[by_column.indptr[of] + rng.integers(carriers[of])]
    got = {"sample": receiver, "column": of, "before": before, "after": after}
    added = pd.DataFrame({**got, "weight": prevalence[of] / is_chosen})
    added = added[before != after if reads_counts else before == 0]
    # Trees read variants of one sample side by side faster.
    return pd.concat([without, added], ignore_index=True).sort_values("sample", kind="stable")


# --- what is predicted of them -----------------------------------------------------------------

VARIANTS_AT_ONCE = 1 << 14

SAMPLES_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Predictor:
    """A saved model, the study that it reads, and the vectors of its ASVs if it has a network."""

    saved: SavedModel
    study: Study
    config: RuntimeConfig
    asvs: AsvVectors | None

    def predict(self, rows: Rows, reads: Matrix, limited: Matrix) -> list[Floats]:
        """Predictions of each target, numbers first, in the units of targets.

        The samples at `rows` of the study have these `reads` ``[n, F]``; the network reads the
        `limited` ones.
        """
        parts, places = [], [np.zeros(0, np.int64)]
        for at, batch, vectors in self._batches(rows, limited):
            outputs = self.saved.required_network(batch, asvs=vectors)
            parts.append(per_target(collect(outputs, batch)))
            places.append(at)
        back = np.argsort(np.concatenate(places))
        of_network = [np.concatenate(values)[back] for values in zip(*parts, strict=True)]
        samples = Samples.of_study(self.study, rows, self.saved.levels, reads)
        return self.saved.predicted(samples, of_network)

    def attention(self, rows: Rows, limited: Matrix) -> Floats:
        """Return the weight in the attention pool of each ASV that the network reads, in the order
        of `limited`; its sum is 1 per sample.

        It says what the network looks at, not what changes its prediction.
        """
        network, by_place = self.saved.required_network, dict[int, Floats]()
        for places, batch, vectors in self._batches(rows, limited):
            by_shelf = network.sample.attention(vectors, slots_of(on_shelves(batch)))
            weights = [row for shelf in by_shelf for row in shelf.double().cpu().numpy()]
            sized = zip(places.tolist(), weights, batch.sizes, strict=True)
            by_place |= {at: row[:size] for at, row, size in sized}
        return np.concatenate([by_place[place] for place in range(len(rows))])

    def _batches(self, rows: Rows, limited: Matrix) -> Iterator[tuple[Rows, Batch, torch.Tensor]]:
        """Yield places among the samples, a batch of them and the vectors of its ASVs, within a
        forward pass; nothing without a network.
        """
        if self.asvs is None:
            return
        ends, sizes = limited.indptr[1:-1], np.diff(limited.indptr)
        reads = [np.split(values, ends) for values in (limited.indices, limited.data)]
        order, device = np.argsort(-sizes, kind="stable"), self.asvs.vectors.device
        self.saved.required_network.eval()
        with torch.inference_mode(), autocast(self.config, device, in_bf16=False):
            for start in range(0, len(order), SAMPLES_AT_ONCE):
                places = order[start : start + SAMPLES_AT_ONCE]
                of_batch = [(reads[0][place], reads[1][place]) for place in places]
                parts = [rows[places]], [of_batch]
                batch = collate(self.study, *parts, EVALUATION, WITHOUT_TOKENS).to(device)
                yield places, batch, self.asvs.select(batch)


# --- effects -----------------------------------------------------------------------------------


def output_columns(spec: TargetSpec) -> list[int]:
    """Columns of a prediction that are explained: the number, the second of two classes, or every
    class.
    """
    columns = list(range(len(spec.labels) or 1))
    return columns if len(columns) != 2 else [1]


def losses(spec: TargetSpec, truth: Floats, predicted: Floats) -> Floats:
    """Return the loss of each sample, NaN without a truth: absolute error in own units, or half the
    Brier score.

    Of two classes, half the Brier score is the squared error of the probability.

    Parameters
    ----------
    spec : TargetSpec
    truth : float64 [n]
        Numbers, or indices of classes; NaN where missing.
    predicted : float64 [n, W]
    """
    if spec.kind == "numeric":
        return np.asarray(np.abs(predicted[:, 0] - truth))
    classes = np.nan_to_num(truth).astype(np.int64)
    error = ((predicted - np.eye(len(spec.labels))[classes]) ** 2).sum(axis=1) / 2
    return np.where(np.isnan(truth), np.nan, error)


@dataclass(frozen=True, eq=False)
class TargetEffects:
    """Effects of F ASVs on the predictions of one target in N samples, as means over rarefactions
    and models.

    Attributes
    ----------
    spec : TargetSpec
    sample_ids : tuple of str [N]
    truth : float64 [N]
        In own units, or the index of the class; NaN where it is not known.
    prediction : float64 [N, W]
        In own units, or probabilities.
    carriers : sparse [N, F]
        The share of the rarefactions in which the sample has the ASV.
    losses : sparse [N, F]
        By how much a permutation of the ASV is expected to raise the loss of each sample.
    effects : tuple of sparse [N, F]
        For each output the prediction minus that of the sample without the ASV.
    attention : sparse [N, F], optional
        Weights of the network's attention, of sum 1 by sample; no effect.
    """

    spec: TargetSpec
    sample_ids: tuple[str, ...]
    truth: Floats
    prediction: Floats
    carriers: Matrix
    losses: Matrix
    effects: tuple[Matrix, ...]
    attention: Matrix | None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Name of each output: the class of the probability; empty for a number."""
        labels = self.spec.labels
        return tuple(labels[column] for column in output_columns(self.spec)) if labels else ("",)

    def __add__(self, other: TargetEffects) -> TargetEffects:
        """The sums over other rarefactions or models of the same samples."""
        attention = [part.attention for part in (self, other) if part.attention is not None]
        return replace(
            self,
            prediction=self.prediction + other.prediction,
            carriers=self.carriers + other.carriers,
            losses=self.losses + other.losses,
            effects=tuple(map(add, self.effects, other.effects)),
            attention=sum(attention[1:], attention[0]) if attention else None,
        )

    def summed(self, sets: Matrix) -> TargetEffects:
        """Return the effects of sets of ASVs, ``[F, sets]``: the sums of those of their ASVs in
        each sample.

        A sample carries a set where it carries one of its ASVs.
        """
        carriers, losses = (self.carriers @ sets).minimum(1.0), self.losses @ sets
        effects = tuple(matrix @ sets for matrix in self.effects)
        return replace(self, carriers=carriers, losses=losses, effects=effects, attention=None)


def _check_classes(models: Sequence[SavedModel]) -> None:
    for specs in zip(*(saved.targets.specs for saved in models), strict=True):
        if len({spec.labels for spec in specs}) > 1:
            labels = " and ".join(sorted({shown(spec.labels, 10) for spec in specs}))
            raise InputError(
                f"--model: the models know different classes of {specs[0].name!r} ({labels}); "
                "explain each separately"
            )


def _effects_of(
    predictor: Predictor, rows: Rows, number: int, truth: Mapping[TargetSpec, Floats], place: Matrix
) -> list[TargetEffects]:
    """Effects in the samples at `rows` [n] of the study of a model, in a numbered rarefaction.

    `place` ``[N, n]`` puts the samples among all N, times the share that the rarefaction has in
    their mean.
    """
    study, asvs = predictor.study, len(predictor.study.table.feature_ids)
    reads = matrix_of(rarefied_rows(study, rows, number), asvs)
    limited = matrix_of(rows_read(study, rows, number), asvs)
    has_network, attention = predictor.asvs is not None, None
    if has_network:
        weights = limited.astype(np.float64)
        weights.data = predictor.attention(rows, limited)
        attention = place @ weights
    variants = make_variants(reads, has_network, (predictor.saved.seed, number))
    of_samples = predictor.predict(rows, reads, limited)
    parts = [[values[:0] for values in of_samples]]
    for start in range(0, len(variants), VARIANTS_AT_ONCE):
        chunk = variants.iloc[start : start + VARIANTS_AT_ONCE]
        of_chunk = rows[chunk["sample"].to_numpy()]
        parts.append(predictor.predict(of_chunk, applied(chunk, reads), applied(chunk, limited)))
    of_variants = [np.concatenate(values) for values in zip(*parts, strict=True)]
    sample, column = variants["sample"].to_numpy(), variants["column"].to_numpy()
    weight, removed = variants["weight"].to_numpy(), variants["after"].to_numpy() == 0
    carriers = place @ reads.sign().astype(np.float64)

    def of_all(values: Floats, chosen: Bools | slice = slice(None)) -> Matrix:
        places = (sample[chosen], column[chosen])
        return place @ sparse.csr_matrix((values[chosen], places), shape=reads.shape)

    found = []
    for (spec, known), base, changed in zip(truth.items(), of_samples, of_variants, strict=True):
        change = base[sample] - changed
        loss = losses(spec, known, base)[sample]
        rise = of_all(weight * np.nan_to_num(losses(spec, known[sample], changed) - loss))
        effects = tuple(of_all(change[:, k], removed) for k in output_columns(spec))
        found.append(
            TargetEffects(spec, (), known, place @ base, carriers, rise, effects, attention)
        )
    return found


def explain_samples(
    models: Sequence[SavedModel],
    study: Study,
    samples: Sequence[Sequence[str]],
    sample_ids: Sequence[str],
    truth: Sequence[Floats],
    config: RuntimeConfig,
    passes: int,
) -> list[TargetEffects]:
    """Return the effects on each target, numbers first, in `passes` rarefactions of samples.

    A sample that several models explain gets the mean of them.

    Parameters
    ----------
    models : sequence of SavedModel
        Of the same targets.
    study : Study
        With the metadata that the models read.
    samples : sequence of sequence of str
        Those that each model explains.
    sample_ids : sequence of str [N]
        All of them, in the order of the result.
    truth : sequence of float64 [N]
        Of each target, in own units or as index of its class; NaN where it is not known.
    config : RuntimeConfig
    passes : int
        Rarefactions, those that predictions are made from.

    Raises
    ------
    InputError
        The models know different classes.
    """
    _check_classes([saved for saved, names in zip(models, samples, strict=True) if names])
    place = {name: row for row, name in enumerate(sample_ids)}
    times = Counter(name for names in samples for name in names)
    share = np.array([1 / (passes * times[name]) for name in sample_ids])
    specs, total = specs_in_order(models[0].targets), list[TargetEffects]()
    for number, (saved, names) in enumerate(zip(models, samples, strict=True), start=1):
        if not names:
            continue
        rows, read = study.rows(names), with_inputs(saved, replace(study, seed=saved.seed))
        network, vectors = saved.network, None
        if network is not None:
            vectors = encode_table(network, read, saved.device, config, rows)
        predictor = Predictor(saved, read, config, vectors)
        places = np.array([place[name] for name in names])
        spread = sparse.csr_matrix(
            (share[places], (places, np.arange(len(names)))), (len(sample_ids), len(names))
        )
        known = {spec: values[places] for spec, values in zip(specs, truth, strict=True)}
        for passed in range(passes):
            found = _effects_of(predictor, rows, EVALUATION - 1 - passed, known, spread)
            total = list(map(add, total, found)) if total else found
        log.info("model %d of %d: %d samples explained", number, len(models), len(names))
    ids = tuple(sample_ids)
    return [replace(of, sample_ids=ids, truth=t) for of, t in zip(total, truth, strict=True)]
