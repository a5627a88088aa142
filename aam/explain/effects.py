"""What the absence, and a permutation, of each ASV does to the predictions of samples and to their
loss.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.data.batch import Batch
from aam.data.collate import batch_of_reads, rows_read
from aam.data.rarefaction import EVALUATION, Row, matrix_of, rarefied_rows
from aam.data.shelves import on_shelves
from aam.data.study import Rows, Study
from aam.data.targets import TargetSpec
from aam.device.options import RuntimeConfig
from aam.device.precision import autocast
from aam.device.rng import generator
from aam.errors import InputError, shown
from aam.model.aam import slots_of
from aam.predict.blend import mean_of, specs_in_order
from aam.predict.prediction import with_inputs
from aam.predict.samples import Samples
from aam.predict.saved_model import SavedModel
from aam.training.inference import AsvVectors, collect, encode_table, per_target

log = logging.getLogger("aam")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

Matrix: TypeAlias = sparse.csr_matrix

# --- variants of samples ------------------------------------------------------------------------

# Samples that are chosen to get an ASV for each sample that has it; one where the network is run,
# which takes longest.
RECEIVERS = 2


@dataclass(frozen=True, eq=False)
class Variants:
    """M variants of n rarefied samples.

    Attributes
    ----------
    sample : int64 [M]
        Place of the sample among the n.
    column : int64 [M]
        The ASV of the table whose reads are changed.
    before, after : int64 [M]
        Its reads in the rarefied sample and in the variant; 0 where it is absent.
    weight : float64 [M]
        Of the variant in the expected loss after a permutation of the ASV over the samples.
    """

    sample: Ints
    column: Ints
    before: Ints
    after: Ints
    weight: Floats

    def __getitem__(self, places: Bools | Ints | slice) -> Variants:
        """Return some of the variants."""
        return Variants(*(values[places] for values in vars(self).values()))

    def reads(self, counts: Matrix) -> list[Row]:
        """Return columns and reads of each variant of samples with the reads `counts` ``[n, F]``.

        An ASV that a sample has, but not in `counts`, which may be limited to fewer, stays out of
        them.
        """
        before = np.asarray(counts[self.sample, self.column]).ravel()
        after = np.where((self.before > 0) & (before == 0), 0, self.after)
        places, shape = np.arange(len(before)), (len(before), counts.shape[1])
        changed = counts[self.sample] + sparse.csr_matrix(
            (after - before, (places, self.column)), shape
        )
        changed.eliminate_zeros()
        ends = changed.indptr[1:-1]
        return list(zip(np.split(changed.indices, ends), np.split(changed.data, ends), strict=True))


def make_variants(counts: Matrix, reads_counts: bool, seed: tuple[int, ...]) -> Variants:
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
    """
    (samples, asvs), rng = counts.shape, generator("explain", *seed)
    by_column = counts.tocsc()
    sample, reads, carriers = (
        by_column.indices.astype(np.int64),
        by_column.data,
        np.diff(by_column.indptr),
    )
    column = np.repeat(np.arange(asvs), carriers)
    prevalence = carriers / max(samples, 1)
    # Of a sample's only ASV nothing can be said: no model reads an empty sample.
    several_asvs = np.bincount(sample, minlength=samples)[sample] > 1
    without = Variants(sample, column, reads, np.zeros_like(reads), 1 - prevalence[column])[
        several_asvs
    ]
    receivers = 1 if reads_counts else RECEIVERS
    chosen = rng.integers(max(samples, 1), size=(receivers, len(column)))
    receiver, of = np.divmod(np.unique(chosen * asvs + column), max(asvs, 1))
    is_chosen = 1 - (1 - 1 / max(samples, 1)) ** (receivers * carriers[of])
    before = np.asarray(counts[receiver, of]).ravel() if len(of) else reads
    after = reads[by_column.indptr[of] + rng.integers(carriers[of])]
    added = Variants(receiver, of, before, after, prevalence[of] / is_chosen)
    added = added[before != after if reads_counts else before == 0]
    parts = zip(*(vars(part).values() for part in (without, added)), strict=True)
    joined = Variants(*(np.concatenate(values) for values in parts))
    # Trees read variants of one sample side by side faster.
    return joined[np.argsort(joined.sample, kind="stable")]


# --- what is predicted of them -----------------------------------------------------------------

VARIANTS_AT_ONCE = 1 << 14

SAMPLES_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Rarefied:
    """A numbered rarefaction of the samples at `rows` of a study: all `reads`, and those that a
    network reads.
    """

    rarefaction: int
    rows: Rows
    reads: Sequence[Row]
    limited: Sequence[Row]


@dataclass(frozen=True, eq=False)
class Predictor:
    """A saved model, the study that it reads, and the vectors of its ASVs where the network has a
    weight.
    """

    saved: SavedModel
    study: Study
    config: RuntimeConfig
    asvs: AsvVectors | None

    @classmethod
    def of(
        cls, saved: SavedModel, study: Study, sample_ids: Sequence[str], config: RuntimeConfig
    ) -> Predictor:
        """Return what predicts variants of some samples of a study with the metadata that the model
        reads.
        """
        study = with_inputs(saved, replace(study, seed=saved.seed))
        if saved.network is None:
            return cls(saved, study, config, None)
        asvs = encode_table(saved.network, study, saved.device, config, study.rows(sample_ids))
        return cls(saved, study, config, asvs)

    @property
    def explains_network(self) -> bool:
        """Whether the network takes part in effects: where it has `LEAST_WEIGHT` for some
        target.
        """
        return self.asvs is not None

    def rarefied(self, sample_ids: Sequence[str], rarefaction: int) -> Rarefied:
        """Return a numbered rarefaction of some samples."""
        rows = self.study.rows(sample_ids)
        limited = rows_read(self.study, rows, rarefaction)
        return Rarefied(rarefaction, rows, rarefied_rows(self.study, rows, rarefaction), limited)

    def predict(
        self, samples: Rarefied, counts: Matrix, limited: Matrix, variants: Variants
    ) -> tuple[list[Floats], list[Floats]]:
        """Predictions of samples, and of variants, by target, in the units of targets.

        `counts` and `limited` ``[n, F]`` are the reads of the samples. A network of next to no
        weight predicts of variants what it does of their samples.
        """
        of_network = self._network(samples)
        of_samples = self._predict(samples, of_network)
        parts = [[values[:0] for values in of_samples]]
        for start in range(0, len(variants.sample), VARIANTS_AT_ONCE):
            some = variants[start : start + VARIANTS_AT_ONCE]
            changed = replace(samples, rows=samples.rows[some.sample], reads=some.reads(counts))
            of_variants = [values[some.sample] for values in of_network]
            if self.explains_network:
                of_variants = self._network(replace(changed, limited=some.reads(limited)))
            parts.append(self._predict(changed, of_variants))
        return of_samples, [np.concatenate(values) for values in zip(*parts, strict=True)]

    def attention(self, samples: Rarefied) -> Floats:
        """Return the weight in the attention pool of each ASV that the network reads, of sum 1 by
        sample, one by one.

        It says what the network looks at, not what changes its prediction.
        """
        network, by_place = self.saved.required_network, dict[int, Floats]()
        for places, batch, vectors in self._batches(samples):
            by_shelf = network.sample.attention(vectors, slots_of(on_shelves(batch)))
            weights = [row for shelf in by_shelf for row in shelf.double().cpu().numpy()]
            by_place |= {
                int(at): row[:size]
                for at, row, size in zip(places, weights, batch.sizes, strict=True)
            }
        return np.concatenate([by_place[place] for place in range(len(samples.rows))])

    def _batches(self, samples: Rarefied) -> Iterator[tuple[Rows, Batch, torch.Tensor]]:
        """Yield places among the samples, a batch of them and the vectors of its ASVs, within a
        forward pass.
        """
        if self.asvs is None:
            return
        order = np.argsort([-len(columns) for columns, _ in samples.limited], kind="stable")
        device = self.asvs.vectors.device
        self.saved.required_network.eval()
        with torch.inference_mode(), autocast(self.config, device, in_bf16=False):
            for start in range(0, len(order), SAMPLES_AT_ONCE):
                places = order[start : start + SAMPLES_AT_ONCE]
                reads = [samples.limited[place] for place in places]
                batch = batch_of_reads(self.study, samples.rows[places], reads).to(device)
                yield places, batch, self.asvs.select(batch)

    def _network(self, samples: Rarefied) -> list[Floats]:
        """Return what the network says of each target; nothing where it has no weight."""
        parts, order = [], [np.zeros(0, np.int64)]
        for places, batch, vectors in self._batches(samples):
            outputs = self.saved.required_network(batch, asvs=vectors)
            parts.append(per_target(collect(outputs, batch)))
            order.append(places)
        back = np.argsort(np.concatenate(order))
        return [np.concatenate(values)[back] for values in zip(*parts, strict=True)]

    def _predict(self, samples: Rarefied, of_network: Sequence[Floats]) -> list[Floats]:
        """What the whole model predicts of each target; the network's part is known."""
        counts = matrix_of(samples.reads, len(self.study.table.names))
        rarefied = Samples.of_study(self.study, samples.rows, self.saved.levels, counts)
        scores = self.saved.scores(rarefied, of_network)
        return self._decoded(samples, [mean_of(one) for one in scores])

    def _decoded(self, samples: Rarefied, values: Sequence[Floats]) -> list[Floats]:
        """Return predictions of each target, numbers first, with numbers in the units of their
        columns.
        """
        numbers = len(self.saved.targets.numeric)
        if not numbers:
            return list(values)
        [self.study.table.sample_ids[row] for row in samples.rows.tolist()]
        encoded = np.concatenate(values[:numbers], axis=1)
        decoded = self.saved.targets.decode(encoded)
        return [*(decoded[:, [column]] for column in range(numbers)), *values[numbers:]]


# --- effects -----------------------------------------------------------------------------------

# The matrices of effects: kind and output.
Name: TypeAlias = tuple[str, int]

EFFECT = "effect"

LOSS, CARRIERS, ATTENTION = ("loss", 0), ("carriers", 0), ("attention", 0)


def output_columns(spec: TargetSpec) -> list[int]:
    """Return which columns of a prediction are explained: the number, the second of two classes, or
    every class.
    """
    return (
        [0]
        if spec.kind == "numeric"
        else [1]
        if len(spec.labels) == 2
        else list(range(len(spec.labels)))
    )


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
    """What F ASVs do to the predictions of one target in N samples, as means over rarefactions and
    models.

    Attributes
    ----------
    spec : TargetSpec
    sample_ids : tuple of str [N]
    truth : float64 [N]
        In own units, or the index of the class; NaN where it is not known.
    prediction : float64 [N, W]
        In own units, or probabilities.
    matrices : dict of (kind, output) to sparse [N, F]
        What the properties return.
    """

    spec: TargetSpec
    sample_ids: tuple[str, ...]
    truth: Floats
    prediction: Floats
    matrices: dict[Name, Matrix]

    @property
    def outputs(self) -> tuple[str, ...]:
        """What each output is called: the class whose probability it is, or nothing for a
        number.
        """
        labels = self.spec.labels
        return tuple(labels[column] for column in output_columns(self.spec)) if labels else ("",)

    @property
    def effects(self) -> tuple[Matrix, ...]:
        """For each output the prediction minus that of the sample without the ASV."""
        nothing = 0.0 * self.carriers
        return tuple(
            self.matrices.get((EFFECT, output), nothing) for output in range(len(self.outputs))
        )

    @property
    def losses(self) -> Matrix:
        """By how much a permutation of the ASV is expected to raise the loss of each sample."""
        return self.matrices[LOSS]

    @property
    def carriers(self) -> Matrix:
        """The share of the rarefactions in which the sample has the ASV."""
        return self.matrices[CARRIERS]

    @property
    def attention(self) -> Matrix | None:
        """Weights of the network's attention, of sum 1 by sample; no effect."""
        return self.matrices.get(ATTENTION)

    def add(self, name: Name, row: Ints, column: Ints, values: Floats) -> None:
        """Add values at rows of the samples and columns of the table to a matrix."""
        matrix = sparse.csr_matrix((values, (row, column)), shape=self.carriers.shape)
        self.matrices[name] = self.matrices[name] + matrix if name in self.matrices else matrix

    def summed(self, sets: Matrix) -> TargetEffects:
        """Return the effects of sets of ASVs, ``[F, sets]``: the sums of those of their ASVs in
        each sample.

        A sample carries a set where it carries one of its ASVs.
        """
        sums = {name: (matrix @ sets).tocsr() for name, matrix in self.matrices.items()}
        return replace(self, matrices={**sums, CARRIERS: sums[CARRIERS].minimum(1.0)})


def differences(
    spec: TargetSpec, truth: Floats, variants: Variants, base: Floats, changed: Floats
) -> Iterator[tuple[Name, Bools, Floats]]:
    """Yield the name of each matrix of effects and losses, which of the variants say something of
    it, and what.

    `base` is what is predicted of the samples, of which `truth` is known, and `changed` what is of
    the variants.
    """
    removed, permuted = variants.after == 0, variants.weight > 0
    change = base[variants.sample] - changed
    for output, column in enumerate(output_columns(spec)):
        yield (EFFECT, output), removed, change[removed, column]
    loss = losses(spec, truth, base)[variants.sample]
    raised = variants.weight * np.nan_to_num(losses(spec, truth[variants.sample], changed) - loss)
    yield LOSS, permuted, raised[permuted]


def _check_classes(models: Sequence[SavedModel]) -> None:
    for specs in zip(*(saved.targets.specs for saved in models), strict=True):
        if len({spec.labels for spec in specs}) > 1:
            labels = " and ".join(sorted({shown(spec.labels, 10) for spec in specs}))
            raise InputError(
                f"--model: the models know different classes of {specs[0].name!r} ({labels}); "
                "explain each alone"
            )


def _add_rarefaction(
    effects: Sequence[TargetEffects],
    predictor: Predictor,
    samples: Rarefied,
    rows: Ints,
    share: Floats,
) -> None:
    """Add what a model says of samples in one rarefaction to the effects on all targets.

    `rows` int64 [n] are those of the samples in the effects, and `share` float64 [N] is what one
    rarefaction by one model is of the mean.
    """
    asvs = len(predictor.study.table.feature_ids)
    reads, limited = (matrix_of(one, asvs) for one in (samples.reads, samples.limited))
    variants = make_variants(
        reads, predictor.explains_network, (predictor.saved.seed, samples.rarefaction)
    )
    present: list[tuple[Name, sparse.coo_matrix, Floats]] = [
        (CARRIERS, reads.tocoo(), np.ones(reads.nnz))
    ]
    if predictor.explains_network:
        present.append((ATTENTION, limited.tocoo(), predictor.attention(samples)))
    for of_target, base, changed in zip(
        effects, *predictor.predict(samples, reads, limited, variants), strict=True
    ):
        of_target.prediction[rows] += base * share[rows, None]
        for name, at, values in present:
            of_target.add(name, rows[at.row], at.col, values * share[rows[at.row]])
        for name, which, values in differences(
            of_target.spec, of_target.truth[rows], variants, base, changed
        ):
            row = rows[variants.sample[which]]
            of_target.add(name, row, variants.column[which], values * share[row])


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
    _check_classes([saved for saved, some in zip(models, samples, strict=True) if some])
    place = {name: row for row, name in enumerate(sample_ids)}
    times = Counter(name for some in samples for name in some)
    share = np.array([1 / (passes * times[name]) for name in sample_ids])
    specs = specs_in_order(models[0].targets)
    shape = len(sample_ids), len(study.table.feature_ids)
    effects = [
        TargetEffects(
            spec,
            tuple(sample_ids),
            values,
            np.zeros((len(values), len(spec.labels) or 1)),
            {CARRIERS: sparse.csr_matrix(shape)},
        )
        for spec, values in zip(specs, truth, strict=True)
    ]
    for number, (saved, some) in enumerate(zip(models, samples, strict=True), start=1):
        if some:
            predictor = Predictor.of(saved, study, some, config)
            rows = np.array([place[name] for name in some])
            for passed in range(passes):
                rarefied = predictor.rarefied(some, EVALUATION - 1 - passed)
                _add_rarefaction(effects, predictor, rarefied, rows, share)
            log.info("model %d of %d: %d samples explained", number, len(models), len(some))
    return effects
