"""Adaptation of predicted classes to a new study: the labels of a few of its samples, checked and learned from."""

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

from aam.data.study import Study
from aam.data.targets import TargetSpec
from aam.errors import Problems, shown
from aam.evaluate.predictions import PredictionTable
from aam.io.metadata import Metadata
from aam.predict.features import Floats, Rows, Samples
from aam.predict.learner import make_truth
from aam.predict.linear import LEAST_TO_CENTRE
from aam.predict.saved_model import SavedModel

log = logging.getLogger("aam")

# Class of each labelled sample, 0 or 1, by target.
Labels = Mapping[str, Mapping[str, int]]

# Candidates: what one standard deviation of the prediction says of a class, -1 or 1, and the share of the remaining
# variance that the labels explain through the kernel; with a share of 0 they change no order.
SLOPES, SHARES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.65), (0.0, 0.03, 0.06, 0.12, 0.2, 0.35, 0.55, 0.8)

# Of the logarithm of a candidate's prior, for each of the two: labels explain something although the prediction says
# little, and labels explain much. Few labels must say so clearly.
PENALTY, STRONG = 2.0, 0.35

LEAST_LABELS = 5


def study_kernel(samples: Samples, places: Rows) -> Floats:
    """Return inner products ``[n, m]`` of all samples with those at `places` ``[m]``, of mean diagonal 1.

    They are of presence and of log(1 + reads), alike, relative to the mean of the n samples, and averaged over the
    rarefactions. All ASVs of the table count, those too that training never had.
    """
    kernels = []
    for features in (sparse.csr_matrix.sign, sparse.csr_matrix.log1p):
        products, variance = np.zeros((len(samples.rows), len(places))), 0.0
        for counts in samples.counts:
            values = features(counts)
            mean = np.asarray(values.mean(axis=0)).ravel()
            on_mean = np.asarray(values @ mean)
            products += (values @ values[places].T).toarray() - on_mean[:, None] - on_mean[places] + mean @ mean
            variance += float(np.square(values.data).sum() / len(on_mean) - mean @ mean)
        kernels.append(products / max(variance, 1e-12))
    return np.asarray(np.mean(kernels, axis=0))


def adapt(kernel: Floats, probability: Floats, places: Rows, classes: npt.NDArray[np.int64]) -> Floats:
    """Return the probabilities ``[n]`` of the second of two classes after the labels of a few of n samples.

    A Gaussian process predicts the classes -1 and 1, which weigh alike: its mean is the prediction without labels times
    a slope, its covariance the kernel of the study. Slopes and shares of variance are averaged, weighted by how likely
    they make the labels (Rasmussen and Williams 2006, 2.2, 5.4.1).

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
    """Return the labels of samples of a new study, for each target of two classes that `labels` has as a column.

    Raises
    ------
    InputError
        With every problem: no such column, samples that are not in the table, no value or one that training had not,
        a single class, too few labels or, to know the mean of the study, too few samples.
    """
    problems, source = Problems(), f"--labels: {labels.source}"
    of_models = [{spec.name: {*spec.labels} for spec in model.targets.specs} for model in models]
    alike = [spec for spec in models[0].targets.specs if all(one[spec.name] == {*spec.labels} for one in of_models)]
    named = {spec.name: spec for spec in alike if len(spec.labels) == 2}
    present = [name for name in named if name in labels.columns]
    if not present:
        problems.add(f"{source}: no column of a target of two classes; the model has {shown(named) or 'none'}")
    if absent := [name for name in labels.ids if name not in study.selection.of_file]:
        problems.add(f"{source}: {len(absent)} of {len(labels.ids)} samples are not in the table: {shown(absent)}")
    if len(study.table.sample_ids) < LEAST_TO_CENTRE:
        problems.add(f"{source}: {len(study.table.sample_ids)} samples in the table, {LEAST_TO_CENTRE} are needed")
    deep_enough = set(study.table.sample_ids)
    in_study = [name for name in labels.ids if name in deep_enough]
    result = {name: _classes(labels, named[name], in_study, problems) for name in present}
    problems.raise_if_any()
    return result


def _classes(labels: Metadata, spec: TargetSpec, in_study: Collection[str], problems: Problems) -> dict[str, int]:
    """Return the class of each sample `in_study`; those below the depth have a label, which helps nobody."""
    source, values = f"--labels: {labels.source}: {spec.name!r}", labels.values(spec.name, labels.ids)
    if lacking := [name for name, value in zip(labels.ids, values, strict=True) if value is None]:
        problems.add(f"{source}: {len(lacking)} samples have no value: {shown(lacking)}; leave these rows out")
    if unknown := sorted({value for value in values if value is not None} - set(spec.labels)):
        problems.add(f"{source}: {shown(unknown)}: no class of training, which had {shown(spec.labels)}")
    pairs = dict(zip(labels.ids, values, strict=True))
    classes = {name: spec.labels.index(value) for name in in_study if (value := pairs[name]) in spec.labels}
    if lacking or unknown:
        return classes
    if len(classes) < LEAST_LABELS:
        problems.add(
            f"{source}: {len(classes)} labels of samples that reach the model's depth, {LEAST_LABELS} are needed"
        )
    elif len(set(classes.values())) == 1:
        problems.add(f"{source}: all labels are {spec.labels[min(classes.values())]!r}, both classes are needed")
    return classes


def adapt_table(table: PredictionTable, samples: Samples, labels: Labels) -> PredictionTable:
    """Return the predictions of a new study adapted to `labels`, whose samples are of subset train; say what changed.

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
            "--labels: %r adapted to %d labels (%s); %d of the other %d samples have another most probable class than "
            "without them; the labelled samples are marked train in the column subset: score none of them", name,
            len(places), of_class, changed.sum(), len(changed),
        )  # fmt: skip
    return table
