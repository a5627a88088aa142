"""Effects of the absence, and of a permutation, of each ASV on predictions and their loss, and the
importance over groups that follows.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from operator import add

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse
from scipy.special import stdtr, stdtrit

from aam.data.loader import rows_read
from aam.data.rarefaction import EVALUATION, matrix_of, rarefied_table
from aam.data.study import Study
from aam.data.targets import TargetSpec
from aam.device.rng import generator
from aam.errors import InputError, shown
from aam.evaluate.intervals import LEAST_GROUPS, interval, resamples
from aam.options import RuntimeConfig, not_none
from aam.predict.blend import specs_in_order
from aam.predict.estimator import Matrix, Samples
from aam.predict.prediction import with_inputs
from aam.predict.saved_model import SavedModel
from aam.typing import Bools, Floats, Ints, Rows

log = logging.getLogger("aam")


# --- variants of samples ------------------------------------------------------------------------

# Samples that are chosen to get an ASV for each sample that has it; one where the network is run,
# which takes longest.
RECEIVERS = 2


def apply_variants(variants: pd.DataFrame, counts: Matrix) -> Matrix:
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


def predict_variants(
    saved: SavedModel, samples: Samples, predicted: Sequence[Floats], variants: pd.DataFrame
) -> list[Floats]:
    """Predictions of each target for variants (`make_variants`) of samples, some at a time.

    `predicted` are those of the samples themselves.
    """
    parts = [[values[:0] for values in predicted]]
    for start in range(0, len(variants), VARIANTS_AT_ONCE):
        chunk = variants.iloc[start : start + VARIANTS_AT_ONCE]
        reads = samples.counts, samples.network_reads
        counts, network_reads = (apply_variants(chunk, not_none(matrix)) for matrix in reads)
        part = samples[chunk["sample"].to_numpy()]
        parts.append(saved.predicted(replace(part, counts=counts, network_reads=network_reads)))
    return [np.concatenate(values) for values in zip(*parts, strict=True)]


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
    attention : sparse [N, F]
        Weights of the network's attention, of sum 1 by sample, 0 without a network; no effect.
    passes : int
        The rarefactions of each sample.
    """

    spec: TargetSpec
    sample_ids: tuple[str, ...]
    truth: Floats
    prediction: Floats
    carriers: Matrix
    losses: Matrix
    effects: tuple[Matrix, ...]
    attention: Matrix
    passes: int = 1

    @property
    def outputs(self) -> tuple[str, ...]:
        """Name of each output: the class of the probability; empty for a number."""
        labels = self.spec.labels
        return tuple(labels[column] for column in output_columns(self.spec)) if labels else ("",)

    def __add__(self, other: TargetEffects) -> TargetEffects:
        """The sums over other rarefactions or models of the same samples."""
        names = ("prediction", "carriers", "losses", "attention")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return replace(self, **sums, effects=tuple(map(add, self.effects, other.effects)))

    def summed(self, sets: Matrix) -> TargetEffects:
        """Return the effects of sets of ASVs, ``[F, sets]``: the sums of those of their ASVs in
        each sample.

        A sample carries a set where it carries one of its ASVs.
        """
        carriers, losses = (self.carriers @ sets).minimum(1.0), self.losses @ sets
        effects, attention = tuple(part @ sets for part in self.effects), self.attention @ sets
        return replace(self, carriers=carriers, losses=losses, effects=effects, attention=attention)


def _check_classes(models: Sequence[SavedModel]) -> None:
    for specs in zip(*(saved.targets.specs for saved in models), strict=True):
        if len({spec.labels for spec in specs}) > 1:
            labels = " and ".join(sorted({shown(spec.labels, 10) for spec in specs}))
            problem = f"the models know different classes of {specs[0].name!r} ({labels})"
            raise InputError(f"--model: {problem}; explain each separately")


def _effects_of(
    saved: SavedModel,
    study: Study,
    rows: Rows,
    number: int,
    truth: Mapping[TargetSpec, Floats],
    place: Matrix,
) -> list[TargetEffects]:
    """Effects in the samples at `rows` [n] of the study of a model that is prepared for them, in a
    numbered rarefaction.

    `place` ``[N, n]`` puts the samples among all N, times the share that the rarefaction has in
    their mean.
    """
    reads, network = rarefied_table(study, number, rows), saved.estimator
    network_reads = matrix_of(rows_read(study, rows, number), study.table.shape[1])
    samples = Samples.of_study(study, rows, saved.covariates.levels, reads, network_reads)
    attention = sparse.csr_matrix(reads.shape) if network is None else network.attention(samples)
    variants = make_variants(reads, network is not None, (saved.seed, number))
    sample_predictions = saved.predicted(samples)
    variant_predictions = predict_variants(saved, samples, sample_predictions, variants)
    sample, column = variants["sample"].to_numpy(), variants["column"].to_numpy()
    weight, removed = variants["weight"].to_numpy(), variants["after"].to_numpy() == 0
    carriers = place @ reads.sign().astype(np.float64)

    def as_matrix(values: Floats, chosen: Bools | slice = slice(None)) -> Matrix:
        places = (sample[chosen], column[chosen])
        return place @ sparse.csr_matrix((values[chosen], places), shape=reads.shape)

    effects_by_target = []
    for (spec, target_truth), base, changed in zip(
        truth.items(), sample_predictions, variant_predictions, strict=True
    ):
        change = base[sample] - changed
        loss = losses(spec, target_truth, base)[sample]
        rise = np.nan_to_num(losses(spec, target_truth[sample], changed) - loss)
        effects_by_target.append(
            TargetEffects(
                spec,
                sample_ids=(),
                truth=target_truth,
                prediction=place @ base,
                carriers=carriers,
                losses=as_matrix(weight * rise),
                effects=tuple(as_matrix(change[:, k], removed) for k in output_columns(spec)),
                attention=place @ attention,
            )
        )
    return effects_by_target


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
        saved = saved.prepared(read, rows, config)
        places = np.array([place[name] for name in names])
        cells = (share[places], (places, np.arange(len(names))))
        spread = sparse.csr_matrix(cells, (len(sample_ids), len(names)))
        truths = {spec: values[places] for spec, values in zip(specs, truth, strict=True)}
        for passed in range(passes):
            effects = _effects_of(saved, read, rows, EVALUATION - 1 - passed, truths, spread)
            total = list(map(add, total, effects)) if total else effects
        log.info("model %d of %d: %d samples explained", number, len(models), len(names))
    ids = tuple(sample_ids)
    return [
        replace(effects, sample_ids=ids, truth=values, passes=passes)
        for effects, values in zip(total, truth, strict=True)
    ]


# --- importance ---------------------------------------------------------------------------------

# The share of false discoveries among what is said to stand out.
FALSE_DISCOVERIES = 0.05

# Resamplings of groups for an interval, and columns resampled at a time.
BOOTSTRAP_REPEATS, COLUMNS_AT_ONCE = 1000, 512


def one_sided_test(sums: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    """Return the p [F] of a mean of at most 0 over samples in groups, and the standard error [F] of
    the mean.

    It is a t-test on the sums of groups: `sums` ``[G, F]``, and `sizes` ``[G]``, the samples of
    each.
    """
    groups, total = len(sizes), sizes.sum()
    around = sums - sizes[:, None] * sums.sum(axis=0) / total
    error = np.sqrt(groups / max(groups - 1, 1) * (around**2).sum(axis=0)) / total
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(error > 0, sums.sum(axis=0) / total / error, 0.0)
    return np.asarray(stdtr(groups - 1, -t)), np.asarray(error)


def _tests(raised: Matrix, sizes: Floats, tested: Ints, kinds: Sequence[str]) -> dict[str, Floats]:
    """Return p, q and corrected limits of the `tested` columns of the sums of groups ``[G, F]``,
    NaN of others.

    p is corrected by Benjamini and Hochberg (1995) within each of the `kinds`. The limits have the
    rate of false coverage `FALSE_DISCOVERIES` among what is said to stand out (Benjamini and
    Yekutieli 2005), each end at the level of the test: they hold 0 wherever the test shows nothing.
    """
    # The import takes a second.
    from scipy.stats import false_discovery_control

    p, q, reach = np.full((3, raised.shape[1]), np.nan)
    if len(tested):
        p[tested], reach[tested] = one_sided_test(raised[:, tested].toarray(), sizes)
    kind_of = np.array(kinds or [""] * len(p), object)
    for kind in set(kind_of):
        chosen = (kind_of == kind) & ~np.isnan(p)
        q[chosen] = false_discovery_control(p[chosen])
        discovery_share = max((q[chosen] <= FALSE_DISCOVERIES).sum(), 1) / max(chosen.sum(), 1)
        reach[chosen] *= stdtrit(len(sizes) - 1, 1 - FALSE_DISCOVERIES * discovery_share)
    reach[reach == 0] = np.nan
    mean = _sum(raised) / sizes.sum()
    return {"p": p, "q": q, "corrected.low": mean - reach, "corrected.high": mean + reach}


def _sum(matrix: Matrix) -> Floats:
    return np.asarray(matrix.sum(axis=0)).ravel()


def _ratios(top: Matrix, bottom: Matrix, seed: int) -> Floats:
    """Return top / bottom of each column and its limits over groups, [3, F]; `bottom` is ``[G, F]``
    or, for all columns, ``[G, 1]``.
    """
    groups, ratios = top.shape[0], [np.zeros((0, 3))]
    # How often each group counts: once, and then as drawn with replacement.
    drawn = resamples(groups, seed, BOOTSTRAP_REPEATS, groups)
    weights = np.concatenate([np.ones((1, groups)), *drawn])
    for start in range(0, top.shape[1], COLUMNS_AT_ONCE):
        columns = slice(start, start + COLUMNS_AT_ONCE)
        above = weights @ top[:, columns].toarray()
        below = weights @ bottom[:, columns if bottom.shape[1] > 1 else slice(1)].toarray()
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(below > 0, above / below, np.nan)
        ratios.append(np.array([astuple(interval(values, groups)) for values in ratio.T]))
    return np.concatenate(ratios).T


def _limits(name: str, values: Floats) -> dict[str, Floats]:
    """Columns of values with limits, [3, F]."""
    return dict(zip((name, f"{name}.low", f"{name}.high"), values, strict=True))


def _effect_columns(effects: TargetEffects, by_group: Matrix, seed: int) -> dict[str, object]:
    """Return the columns of the effects, from what the presence of an ASV raises to effects on each
    output.
    """
    spec, outputs, carriers = effects.spec, effects.outputs, by_group @ effects.carriers
    ratios = np.array([_ratios(by_group @ matrix, carriers, seed) for matrix in effects.effects])
    sizes = np.array([_sum(abs(matrix)) for matrix in effects.effects]) / len(effects.sample_ids)
    means, places = ratios[:, 0], np.arange(ratios.shape[2])
    highest = np.argmax(means, axis=0)
    largest = means[highest, places]
    low, high = ("lower", "higher") if spec.kind == "numeric" else spec.labels[:2]
    several = np.array(outputs, object)[highest]
    signed = several if len(outputs) > 1 else np.where(largest > 0, high, low)
    columns = {
        "raises": np.where(np.isnan(largest) | (largest == 0), "", signed),
        **_limits("effect", ratios[highest, :, places].T),
        "mean-absolute-effect": sizes[highest, places],
    }
    labelled = zip(outputs, means, strict=True) if len(outputs) > 1 else ()
    return columns | {f"effect={label}": values for label, values in labelled}


def importance_of(
    effects: TargetEffects,
    groups: npt.NDArray[np.object_] | None,
    seed: int = 0,
    kinds: Sequence[str] = (),
    tested: Bools | bool = True,
) -> pd.DataFrame:
    """Return the importance of every ASV, or set of ASVs, that a sample has, the most important one
    first.

    Only groups with a sample whose truth is known count in tests and intervals of importances.

    Parameters
    ----------
    effects : TargetEffects
    groups : array [N], optional
        Groups that are resampled whole; single samples without.
    seed : int
        Of the resampling.
    kinds : sequence of str [F], optional
        Kinds of sets; each kind has a correction of its own.
    tested : bool or bool [F]
        Which importances have a p. A model that has learned from the samples uses their noise too.

    Returns
    -------
    pandas.DataFrame
        The columns of features.tsv (docs/reference/files.md) by column of the ASVs, or place among
        the sets. p is one-sided, of an importance of 0, and NaN for an ASV of fewer than
        `LEAST_GROUPS` groups.
    """
    every = np.arange(len(effects.sample_ids))
    _, group = np.unique(every if groups is None else groups.astype(str), return_inverse=True)
    by_group = sparse.csr_matrix((np.ones(len(group)), (group, every)))
    sizes = by_group @ np.isfinite(effects.truth).astype(np.float64)
    judged = np.flatnonzero(sizes)
    carriers, raised = by_group @ effects.carriers, (by_group @ effects.losses)[judged]
    columns = {
        "samples": _sum(effects.carriers > 0),
        "groups": _sum(carriers > 0),
        **_limits("importance", _ratios(raised, sparse.csr_matrix(sizes[judged][:, None]), seed)),
        **dict.fromkeys(("p", "q", "corrected.low", "corrected.high"), np.nan),
    }
    if len(judged):
        enough = (_sum(carriers[judged] > 0) >= LEAST_GROUPS) & tested
        columns |= _tests(raised, sizes[judged], np.flatnonzero(enough), kinds)
    table = pd.DataFrame({**columns, **_effect_columns(effects, by_group, seed)})
    size = np.max([_sum(abs(matrix)) for matrix in effects.effects], axis=0)
    ordered = table.iloc[np.lexsort((-size, -table["importance"].fillna(0.0)))]
    return ordered[ordered["samples"] > 0]
