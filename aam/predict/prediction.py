"""Predictions of saved models: their learners blended, averaged over rarefactions and models; few
labels.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.data.placement import shipped_reference
from aam.data.rarefaction import EVALUATION, matrix_of, rarefied_rows
from aam.data.study import Study
from aam.data.targets import TargetSpec
from aam.device.options import RuntimeConfig
from aam.errors import InputError, Problems, shown
from aam.evaluate.intervals import Conformal
from aam.evaluate.likeness import Likeness
from aam.evaluate.predictions import PredictionTable, combined, joined
from aam.io.metadata import Metadata
from aam.predict.blend import NETWORK
from aam.predict.features import Floats, Rows, Samples
from aam.predict.learner import make_truth
from aam.predict.linear import LEAST_TO_CENTRE
from aam.predict.network import SAMPLES_OF_PART, AsvVectors, encode_table, per_target, run_model
from aam.predict.saved_model import SavedModel, samples_with_labels

log = logging.getLogger("aam")

# Share of the reads in ASVs of training below which these ASVs say too little (docs/decisions.md).
LEAST_KNOWN = 0.1


# --- a table by several models -----------------------------------------------------------------


def predict_samples(
    models: Sequence[SavedModel],
    study: Study,
    passes: int,
    runtime: RuntimeConfig,
    new_study: bool = False,
    labels: Metadata | None = None,
    unlike: Mapping[str, str] | None = None,
) -> PredictionTable:
    """Return one row per sample of the file, the mean of all models; one below the depth is empty
    and says why.

    With `new_study` the samples are read relative to their own mean, and adapted to the `labels` of
    a few of them. Samples `unlike` training, which are computed where they are not given, get no
    interval.
    """
    if not models[0].targets.specs:
        raise InputError(
            "--model: a pretrained encoder predicts nothing; fine-tune it with `aam train` first"
        )
    models = [_bridged(model, study) for model in models]
    _check_new_study(models, study, new_study)
    few = {} if labels is None else checked_labels(labels, models, study)
    ids = study.table.sample_ids
    studies = ["new"] * len(ids) if new_study else None
    predictions = [
        predict_rows(model, replace(study, seed=model.seed), ids, runtime, passes, studies=studies)
        for model in models
    ]
    table = combined(predictions)
    if few:
        samples = samples_to_predict(replace(study, seed=models[0].seed), ids, passes)
        table = adapt_table(table, samples, few)
    notes = dict.fromkeys(study.selection.of_file, "no metadata, which the model reads")
    notes |= dict(zip(ids, models[0].profile.compare_samples(study.table), strict=True))
    if any(table.limits(spec.name) is not None for spec in table.specs):
        unlike = unlike_training(models[0], study) if unlike is None else unlike
        table = without_limits(table, unlike)
        for name, reason in unlike.items():
            notes[name] = "; ".join(filter(None, (notes.get(name), f"no interval: {reason}")))
    notes |= {
        name: f"{reads} reads, below the model's depth of {study.depth}"
        for name, reads in study.selection.dropped.items()
    }
    subsets = {
        name: "calibration" for saved in models for name in saved.notes.get("interval_samples", ())
    }
    subsets |= {name: "train" for saved in models for name in samples_with_labels(saved)}
    subsets |= {name: "train" for classes in few.values() for name in classes}
    table = replace(table, subsets=tuple(subsets.get(name, "") for name in table.sample_ids))
    return table.with_rows(study.selection.of_file, notes)


def presence_of(study: Study, rows: Rows) -> sparse.csr_matrix:
    """Presence of the ASVs of a table in its samples at `rows`, after one rarefaction, [n, A]."""
    drawn = rarefied_rows(study, rows, EVALUATION - 1)
    return matrix_of(drawn, len(study.table.feature_ids)).sign()


def unlike_training(saved: SavedModel, study: Study) -> dict[str, str]:
    """Reasons why samples of a table are unlike those of training, by sample; like ones are absent.

    A sample is unlike training if its ASVs have another length, strand or region, if too many of
    its reads are of new ASVs, or if the whole table differs (`Likeness`).
    """
    ids = study.table.sample_ids
    reasons = dict(zip(ids, saved.profile.compare_samples(study.table), strict=True))
    if (likeness := saved.notes.get("likeness")) is not None:
        presence = presence_of(study, np.arange(len(ids)))
        unseen = saved.profile.shares_of_samples(study.table)["unseen"]
        known = Likeness.from_json(likeness).reasons(presence, study.table.sequences, unseen)
        reasons |= {name: text for name, text in zip(ids, known, strict=True) if text}
    return {name: text for name, text in reasons.items() if text}


def without_limits(table: PredictionTable, unlike: Collection[str]) -> PredictionTable:
    """The table without the intervals of samples that are `unlike` training."""
    if not unlike:
        return table
    removed = np.array([name in unlike for name in table.sample_ids])
    for spec in table.specs:
        limits = table.limits(spec.name)
        if limits is not None:
            table = table.with_limits(spec.name, np.where(removed[:, None], math.nan, limits))
    return table


def _check_new_study(models: Sequence[SavedModel], study: Study, new_study: bool) -> None:
    """Say what centres the samples of a new study; `InputError` for a model that learned nothing
    about studies.
    """
    ids, column = study.table.sample_ids, models[0].data.study_column
    if column is None and new_study:
        raise InputError(
            "--new-study: the model was not trained to hold in other studies; train it with "
            "--study-column"
        )
    if column is None:
        return
    relative = any(model.blend.is_relative for model in models)
    seen = set(ids).intersection(*(samples_with_labels(model) for model in models))
    if new_study and seen:
        log.warning(
            "warning: --new-study: %d samples are of a study of training: %s",
            len(seen),
            shown(sorted(seen), 3),
        )
    if relative and not new_study and len(seen) < len(ids):
        log.warning(
            "warning: the model learned from several values of %r; for one it has not seen: "
            "--new-study",
            column,
        )
    if relative and new_study and len(ids) < LEAST_TO_CENTRE:
        log.warning(
            "warning: --new-study: %d samples are too few to know the mean of their study, %d "
            "are needed; they are "
            "read relative to the mean of training",
            len(ids),
            LEAST_TO_CENTRE,
        )
    elif relative and new_study:
        log.info(
            "--new-study: read relative to the mean of its %d samples, whose labels nobody needs",
            len(ids),
        )


def _bridged(model: SavedModel, study: Study) -> SavedModel:
    """Return what predicts a table: the model, or its learners of reference branches where it knows
    few of the reads.

    These say nothing of how far they err: no intervals were fitted to them. `InputError` where the
    reads are no 16S.
    """
    if not model.elsewhere.fitted:
        return model
    known = float(np.median(1 - model.profile.shares_of_samples(study.table)["unseen"]))
    if known >= LEAST_KNOWN:
        return model
    log.warning(
        "warning: training had the ASVs of %.0f %% of the reads (median of samples): predicted "
        "by where reads stand on "
        "a reference tree, which holds across regions of 16S, less exactly and without intervals",
        100 * known,
    )
    shipped_reference().place_softly(study.tokens.numpy()).check_16s(study.table.counts, "--table")
    notes = {name: value for name, value in model.notes.items() if name != "intervals"}
    return replace(model, network=None, blend=model.elsewhere, notes=notes)


# --- samples by one model ----------------------------------------------------------------------


def with_inputs(saved: SavedModel, study: Study) -> Study:
    """Return the study with what the model reads beside the reads: covariates, and places on a
    reference tree.
    """
    return study.placed_on(saved.reference).with_covariates(saved.covariates, study.metadata)


def samples_to_predict(study: Study, sample_ids: Sequence[str], passes: int) -> Samples:
    """Return samples in the rarefactions that predictions are made from, none of which training
    has.
    """
    return Samples.rarefied(
        study, study.rows(sample_ids), [EVALUATION - 1 - number for number in range(passes)]
    )


def centred_on(
    saved: SavedModel, study: Study, sample_ids: Sequence[str], passes: int
) -> SavedModel:
    """Return the model for a study of which `sample_ids` are unlabelled samples; itself for fewer
    than enough.
    """
    if len(sample_ids) < LEAST_TO_CENTRE or not saved.blend.learners:
        return saved
    samples = samples_to_predict(study, sample_ids[:SAMPLES_OF_PART], passes)
    return replace(saved, blend=saved.blend.centred_on(samples))


def predict_rows(
    saved: SavedModel,
    study: Study,
    sample_ids: Sequence[str],
    config: RuntimeConfig,
    passes: int,
    fold: str = "",
    asvs: AsvVectors | None = None,
    studies: Sequence[str] | None = None,
) -> PredictionTable:
    """Predict samples of `study` from `passes` rarefactions each.

    Samples of `studies` are read relative to the mean of their study, where the model learned so
    and there are `LEAST_TO_CENTRE` of them, else relative to the mean of training. Numbers are
    means over the rarefactions with their standard deviation, probabilities their mean; intervals
    are added where the model holds fitted ones. Each of their ASVs is encoded once, unless `asvs`
    are known. Of large tables some samples are predicted at a time.
    """
    study = with_inputs(saved, study)
    if asvs is None and saved.network is not None and saved.blend.network_weight > 0:
        asvs = encode_table(saved.network, study, saved.device, config, study.rows(sample_ids))
    of_study: dict[str, list[str]] = {}
    for name, sample_id in zip(studies or [""] * len(sample_ids), sample_ids, strict=True):
        of_study.setdefault(name, []).append(sample_id)
    parts = []
    for ids in of_study.values() or ([],):
        centred = saved if studies is None else centred_on(saved, study, ids, passes)
        for start in range(0, max(len(ids), 1), SAMPLES_OF_PART):
            some = ids[start : start + SAMPLES_OF_PART]
            parts.append(_predict_part(centred, study, some, config, asvs, passes))
    table = parts[0] if len(parts) == 1 else joined(parts).with_rows(sample_ids, {})
    table = replace(table, folds=(fold,) * len(sample_ids))
    for name, fitted in saved.notes.get("intervals", {}).items():
        table = table.with_limits(name, Conformal.from_json(fitted).limits(table.values[name]))
    return table


def _predict_part(
    saved: SavedModel,
    study: Study,
    sample_ids: Sequence[str],
    config: RuntimeConfig,
    asvs: AsvVectors | None,
    passes: int,
) -> PredictionTable:
    rows, blend = study.rows(sample_ids), saved.blend
    rarefactions = [EVALUATION - 1 - number for number in range(passes)]
    X = blend.inputs(Samples.rarefied(study, rows, rarefactions)) if blend.learners else None
    blended, quantiles = [], []
    for number, rarefaction in enumerate(rarefactions):
        scores = blend.scores(None if X is None else X.rarefaction(number))
        if asvs is not None and saved.network is not None:
            predicted = run_model(
                saved.network, study, rows, saved.device, config, rarefaction, asvs
            )
            quantiles.append(predicted.quantiles)
            for of_target, values in zip(scores, per_target(predicted), strict=True):
                of_target[NETWORK] = values
        blended.append(blend.blend(scores))
    numeric, classes = saved.targets.numeric, saved.targets.classes

    def decode(encoded: Floats) -> Floats:
        return saved.targets.decode(encoded, study.metadata, sample_ids)

    empty = np.zeros((len(rows), 0))
    numbers = np.stack(
        [decode(np.concatenate([empty, *one[: len(numeric)]], axis=1)) for one in blended]
    )
    levels = range(quantiles[0].shape[1] if quantiles else 0)
    limits = [
        np.mean([decode(values[:, level]) for values in quantiles], axis=0) for level in levels
    ]
    deviations = numbers.std(axis=0)
    return PredictionTable(
        sample_ids=tuple(sample_ids),
        specs=saved.targets.specs,
        values={spec.name: numbers.mean(axis=0)[:, column] for column, spec in enumerate(numeric)},
        deviations={spec.name: deviations[:, column] for column, spec in enumerate(numeric)}
        if passes > 1
        else {},
        probabilities={
            spec.name: np.mean([one[len(numeric) + column] for one in blended], axis=0)
            for column, spec in enumerate(classes)
        },
        notes=("",) * len(sample_ids),
        folds=("",) * len(sample_ids),
        quantiles={
            spec.name: np.stack([values[:, column] for values in limits], axis=1)
            for column, spec in enumerate(numeric)
            if spec.quantiles
        },
    )


# --- classes of a new study adapted to the labels of a few of its samples ----------------------

# Class of each labelled sample, 0 or 1, by target.
Labels = Mapping[str, Mapping[str, int]]

# Candidates: what one standard deviation of the prediction says of a class, -1 or 1, and the share
# of the remaining variance that the labels explain through the kernel; with a share of 0 they
# change no order.
SLOPES, SHARES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.65), (0.0, 0.03, 0.06, 0.12, 0.2, 0.35, 0.55, 0.8)

# Of the logarithm of a candidate's prior, for each of the two: labels explain something although
# the prediction says little, and labels explain much. Few labels must say so clearly.
PENALTY, STRONG = 2.0, 0.35

LEAST_LABELS = 5


def study_kernel(samples: Samples, places: Rows) -> Floats:
    """Return inner products ``[n, m]`` of all samples with those at `places` ``[m]``, of mean
    diagonal 1.

    They are of presence and of log(1 + reads), alike, relative to the mean of the n samples, and
    averaged over the rarefactions. All ASVs of the table count, those too that training never had.
    """
    kernels = []
    for features in (sparse.csr_matrix.sign, sparse.csr_matrix.log1p):
        products, variance = np.zeros((len(samples.rows), len(places))), 0.0
        for counts in samples.counts:
            values = features(counts)
            mean = np.asarray(values.mean(axis=0)).ravel()
            on_mean = np.asarray(values @ mean)
            products += (
                (values @ values[places].T).toarray()
                - on_mean[:, None]
                - on_mean[places]
                + mean @ mean
            )
            variance += float(np.square(values.data).sum() / len(on_mean) - mean @ mean)
        kernels.append(products / max(variance, 1e-12))
    return np.asarray(np.mean(kernels, axis=0))


def adapt(
    kernel: Floats, probability: Floats, places: Rows, classes: npt.NDArray[np.int64]
) -> Floats:
    """Return the probabilities ``[n]`` of the second of two classes after the labels of a few of n
    samples.

    A Gaussian process predicts the classes -1 and 1, which weigh alike: its mean is the prediction
    without labels times a slope, its covariance the kernel of the study. Slopes and shares of
    variance are averaged, weighted by how likely they make the labels (Rasmussen and Williams 2006,
    2.2, 5.4.1).

    Parameters
    ----------
    kernel : float64 [n, m]
        As `study_kernel` returns it.
    probability : float64 [n]
        Of the second class, without the labels. Both are equally common in what is returned.
    places : int64 [m]
        The samples that have a label.
    classes : int64 [m]
        0 or 1.
    """
    truth = make_truth(classes.astype(np.float64), 2)
    base = (probability - probability.mean()) / max(float(probability.std()), 1e-12)
    block, target = kernel[places], 2.0 * classes - 1
    scores, evidence = [], []
    for slope, share in itertools.product(SLOPES, SHARES):
        covariance = share * block + np.diag((1 - share) / truth.weights)
        residual, variance = target - slope * base[places], 1 - slope**2
        dual = np.linalg.solve(covariance, residual)
        fit = float(residual @ dual) / variance + len(places) * math.log(variance)
        scores.append(slope * base + share * kernel @ dual)
        unlikely = (slope < STRONG and share > 0) + (share > STRONG)
        evidence.append(-(fit + float(np.linalg.slogdet(covariance)[1])) / 2 - PENALTY * unlikely)
    weights = np.exp(np.array(evidence) - max(evidence))
    weights /= weights.sum()
    # Between 0 and 1 in the same order; near 1/2 it is the expected class itself.
    return np.asarray((1 + np.tanh(weights @ np.stack(scores))) / 2)


def checked_labels(labels: Metadata, models: Sequence[SavedModel], study: Study) -> Labels:
    """Return the labels of samples of a new study, for each target of two classes that `labels` has
    as a column.

    Raises
    ------
    InputError
        With every problem: no such column, samples that are not in the table, no value or one that
        training had not, a single class, too few labels or, to know the mean of the study, too few
        samples.
    """
    problems, source = Problems(), f"--labels: {labels.source}"
    of_models = [{spec.name: {*spec.labels} for spec in model.targets.specs} for model in models]
    alike = [
        spec
        for spec in models[0].targets.specs
        if all(one[spec.name] == {*spec.labels} for one in of_models)
    ]
    named = {spec.name: spec for spec in alike if len(spec.labels) == 2}
    present = [name for name in named if name in labels.columns]
    if not present:
        problems.add(
            f"{source}: no column of a target of two classes; the model has "
            f"{shown(named) or 'none'}"
        )
    if absent := [name for name in labels.ids if name not in study.selection.of_file]:
        problems.add(
            f"{source}: {len(absent)} of {len(labels.ids)} samples are not in the table: "
            f"{shown(absent)}"
        )
    if len(study.table.sample_ids) < LEAST_TO_CENTRE:
        problems.add(
            f"{source}: {len(study.table.sample_ids)} samples in the table, {LEAST_TO_CENTRE} "
            "are needed"
        )
    deep_enough = set(study.table.sample_ids)
    in_study = [name for name in labels.ids if name in deep_enough]
    result = {name: _classes(labels, named[name], in_study, problems) for name in present}
    problems.raise_if_any()
    return result


def _classes(
    labels: Metadata, spec: TargetSpec, in_study: Collection[str], problems: Problems
) -> dict[str, int]:
    """Return the class of each sample `in_study`; those below the depth have a label, which helps
    nobody.
    """
    source, values = (
        f"--labels: {labels.source}: {spec.name!r}",
        labels.values(spec.name, labels.ids),
    )
    if lacking := [name for name, value in zip(labels.ids, values, strict=True) if value is None]:
        problems.add(
            f"{source}: {len(lacking)} samples have no value: {shown(lacking)}; leave these rows "
            "out"
        )
    if unknown := sorted({value for value in values if value is not None} - set(spec.labels)):
        problems.add(
            f"{source}: {shown(unknown)}: no class of training, which had {shown(spec.labels)}"
        )
    pairs = dict(zip(labels.ids, values, strict=True))
    classes = {
        name: spec.labels.index(value) for name in in_study if (value := pairs[name]) in spec.labels
    }
    if lacking or unknown:
        return classes
    if len(classes) < LEAST_LABELS:
        problems.add(
            f"{source}: {len(classes)} labels of samples that reach the model's depth, "
            f"{LEAST_LABELS} are needed"
        )
    elif len(set(classes.values())) == 1:
        problems.add(
            f"{source}: all labels are {spec.labels[min(classes.values())]!r}, both classes are "
            "needed"
        )
    return classes


def adapt_table(table: PredictionTable, samples: Samples, labels: Labels) -> PredictionTable:
    """Return the predictions of a new study adapted to `labels`, whose samples are of subset train;
    say what changed.

    All `samples` of the study are predicted in `table`, from the same rarefactions.
    """
    place = {name: row for row, name in enumerate(table.sample_ids)}
    for name, classes in labels.items():
        spec = next(spec for spec in table.specs if spec.name == name)
        places = np.array([place[one] for one in classes], np.int64)
        before, values = table.probabilities[name], np.array([*classes.values()], np.int64)
        second = adapt(study_kernel(samples, places), before[:, 1], places, values)
        after = np.stack([1 - second, second], axis=1)
        table = replace(table, probabilities={**table.probabilities, name: after})
        changed = np.delete(after.argmax(axis=1) != before.argmax(axis=1), places)
        counts = Counter(spec.labels[value] for value in values)
        of_class = ", ".join(f"{count} {label!r}" for label, count in counts.items())
        log.info(
            "--labels: %r adapted to %d labels (%s); %d of the other %d samples have another "
            "most probable class than "
            "without them; the labelled samples are marked train in the column subset: score "
            "none of them",
            name,
            len(places),
            of_class,
            changed.sum(),
            len(changed),
        )
    return table
