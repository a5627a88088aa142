"""Effects of ASVs on the predictions of samples, and what a permutation of each ASV does to their loss."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from scipy import sparse

from aam.data.study import EVALUATION, Study
from aam.data.targets import TargetSpec
from aam.device.options import RuntimeConfig
from aam.errors import InputError, shown
from aam.explain.predictor import BLEND, Predictor, Rarefied
from aam.explain.variants import Bools, Floats, Ints, Variants, counts_of, make_variants
from aam.predict.blend import specs_in_order
from aam.predict.saved_model import SavedModel

log = logging.getLogger("aam")

Matrix: TypeAlias = sparse.csr_matrix

# The matrices of effects: kind, learner, output.
Name: TypeAlias = tuple[str, str, int]

EFFECT, ABUNDANCE, LOSS = "effect", "abundance", "loss"

CARRIERS, ATTENTION = ("carriers", BLEND, 0), ("attention", BLEND, 0)


def output_columns(spec: TargetSpec) -> list[int]:
    """Return which columns of a prediction are explained: the number, the second of two classes, or every class."""
    return [0] if spec.kind == "numeric" else [1] if len(spec.labels) == 2 else list(range(len(spec.labels)))


def losses(spec: TargetSpec, truth: Floats, predicted: Floats) -> Floats:
    """Return the loss of each sample, NaN without a truth: absolute error in own units, or half the Brier score.

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
    """What F ASVs do to the predictions of one target in N samples, as means over rarefactions and models.

    Attributes
    ----------
    spec : TargetSpec
    sample_ids : tuple of str [N]
    truth : float64 [N]
        In own units, or the index of the class; NaN where it is not known.
    prediction : float64 [N, W]
        In own units, or probabilities.
    matrices : dict of (kind, learner, output) to sparse [N, F]
        What the properties return, of the whole model (`BLEND`) and of each learner.
    """

    spec: TargetSpec
    sample_ids: tuple[str, ...]
    truth: Floats
    prediction: Floats
    matrices: dict[Name, Matrix]

    @property
    def outputs(self) -> tuple[str, ...]:
        """What each output is called: the class whose probability it is, or nothing for a number."""
        labels = self.spec.labels
        return tuple(labels[column] for column in output_columns(self.spec)) if labels else ("",)

    def _of_outputs(self, kind: str, learner: str) -> tuple[Matrix, ...]:
        nothing = 0.0 * self.carriers
        return tuple(self.matrices.get((kind, learner, output), nothing) for output in range(len(self.outputs)))

    @property
    def effects(self) -> tuple[Matrix, ...]:
        """For each output the prediction minus that of the sample without the ASV."""
        return self._of_outputs(EFFECT, BLEND)

    @property
    def abundance(self) -> tuple[Matrix, ...]:
        """The part of the effects that is due to the reads: the prediction minus that with a single read of the ASV."""
        return self._of_outputs(ABUNDANCE, BLEND)

    @property
    def presence(self) -> tuple[Matrix, ...]:
        """The part of the effects that is due to the presence of the ASV, with a single read."""
        return tuple(all_ - part for all_, part in zip(self.effects, self.abundance, strict=True))

    @property
    def losses(self) -> dict[str, Matrix]:
        """By how much a permutation of the ASV is expected to raise the loss of each sample, by learner."""
        return {learner: matrix for (kind, learner, _), matrix in self.matrices.items() if kind == LOSS}

    @property
    def learner_effects(self) -> dict[str, tuple[Matrix, ...]]:
        """The effects on what each learner predicts."""
        return {learner: self._of_outputs(EFFECT, learner) for learner in self.losses if learner != BLEND}

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
        """Return the effects of sets of ASVs, ``[F, sets]``: the sums of those of their ASVs in each sample.

        A sample carries a set where it carries one of its ASVs.
        """
        sums = {name: (matrix @ sets).tocsr() for name, matrix in self.matrices.items()}
        return replace(self, matrices={**sums, CARRIERS: sums[CARRIERS].minimum(1.0)})


def differences(
    spec: TargetSpec, truth: Floats, variants: Variants, base: Mapping[str, Floats], changed: Mapping[str, Floats]
) -> Iterator[tuple[Name, Bools, Floats]]:
    """Yield the name of each matrix of effects and losses, which of the variants say something of it, and what.

    `base` is what is predicted of the samples, of which `truth` is known, and `changed` what is of the variants.
    """
    removed = variants.after == 0
    single_read, permuted = ~removed & (variants.weight == 0), variants.weight > 0
    for learner in base:
        change = base[learner][variants.sample] - changed[learner]
        for output, column in enumerate(output_columns(spec)):
            yield (EFFECT, learner, output), removed, change[removed, column]
            if learner == BLEND:
                yield (ABUNDANCE, learner, output), single_read, change[single_read, column]
        loss = losses(spec, truth, base[learner])[variants.sample]
        raised = variants.weight * np.nan_to_num(losses(spec, truth[variants.sample], changed[learner]) - loss)
        yield (LOSS, learner, 0), permuted, raised[permuted]


def _check_classes(models: Sequence[SavedModel]) -> None:
    for specs in zip(*(saved.targets.specs for saved in models), strict=True):
        if len({spec.labels for spec in specs}) > 1:
            labels = " and ".join(sorted({shown(spec.labels, 10) for spec in specs}))
            raise InputError(
                f"--model: the models know different classes of {specs[0].name!r} ({labels}); explain each alone"
            )


def _add_rarefaction(
    effects: Sequence[TargetEffects], predictor: Predictor, samples: Rarefied, rows: Ints, share: Floats
) -> None:
    """Add what a model says of samples in one rarefaction to the effects on all targets.

    `rows` int64 [n] are those of the samples in the effects, and `share` float64 [N] is what one rarefaction by one
    model is of the mean.
    """
    asvs = len(predictor.study.table.sequences)
    reads, limited = (counts_of(one, asvs) for one in (samples.reads, samples.limited))
    variants = make_variants(reads, predictor.explains_network, (predictor.saved.seed, samples.rarefaction))
    present: list[tuple[Name, sparse.coo_matrix, Floats]] = [(CARRIERS, reads.tocoo(), np.ones(reads.nnz))]
    if predictor.explains_network:
        present.append((ATTENTION, limited.tocoo(), predictor.attention(samples)))
    for of_target, base, changed in zip(effects, *predictor.predict(samples, variants), strict=True):
        of_target.prediction[rows] += base[BLEND] * share[rows, None]
        for name, at, values in present:
            of_target.add(name, rows[at.row], at.col, values * share[rows[at.row]])
        for name, which, values in differences(of_target.spec, of_target.truth[rows], variants, base, changed):
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
    specs, shape = specs_in_order(models[0].targets), (len(sample_ids), len(study.table.sequences))
    effects = [
        TargetEffects(
            spec, tuple(sample_ids), values, np.zeros((len(values), len(spec.labels) or 1)),
            {CARRIERS: sparse.csr_matrix(shape)},
        )
        for spec, values in zip(specs, truth, strict=True)
    ]  # fmt: skip
    for number, (saved, some) in enumerate(zip(models, samples, strict=True), start=1):
        if some:
            predictor, rows = Predictor.of(saved, study, some, config), np.array([place[name] for name in some])
            for passed in range(passes):
                rarefied = predictor.rarefied(some, EVALUATION - 1 - passed)
                _add_rarefaction(effects, predictor, rarefied, rows, share)
            log.info("model %d of %d: %d samples explained", number, len(models), len(some))
    return effects
