"""The members of a prediction together: fitted on a study, blended, applied to any table, saved as arrays."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from aam.data.study import Study
from aam.data.targets import Targets, TargetSpec
from aam.predict.blend import blend_power, blend_weights, temper
from aam.predict.forest import ForestMember, fit_forest
from aam.predict.kernel import KernelMember, fit_kernel
from aam.predict.presence import Vocabulary, common_columns, make_vocabulary, presence, read_present
from aam.predict.truth import Truth, inner_folds, learned_places, make_truth

log = logging.getLogger("aam")

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
Member = KernelMember | ForestMember

# The kernel of ASVs as themselves; that of ASVs as themselves and as sequences; trees.
NAMES = ("presence", "kernel", "forest")

DRAWS = 6

# Of more training samples so many are learned from, drawn at random: as many as a forest learns from in one
# rarefaction. The 8-mers of the ASVs of all 300,000 samples of a study would take 5 GB.
MOST_SAMPLES = 20_000


@dataclass(frozen=True, eq=False)
class TargetMembers:
    """The members of one target, by name, and the weight of each in the blend, whose probabilities get a `power`.

    `held_out` and `truth` are there after fitting: what each member said of the samples `rows` of the study out of
    their folds, ``[M, n, W]``, and the truth. They are not saved.
    """

    members: dict[str, Member]
    weights: dict[str, float]
    power: float = 1.0
    rows: Rows | None = None
    truth: Truth | None = None
    held_out: Floats | None = None


def specs_in_order(targets: Targets) -> tuple[TargetSpec, ...]:
    """Return the targets as a study holds them: numbers first, then classes."""
    return (*targets.numeric, *targets.classes)


@dataclass(frozen=True, eq=False)
class Members:
    """Fitted members of every target, which predict any table.

    Attributes
    ----------
    targets : Targets
    vocabulary : Vocabulary
        What the members know by name.
    fitted : tuple of TargetMembers
        One for each target, numbers first.
    """

    targets: Targets
    vocabulary: Vocabulary
    fitted: tuple[TargetMembers, ...] = field(repr=False)

    @property
    def reads_sequences(self) -> bool:
        """Return whether some member reads ASVs by their sequences, not only by which they are."""
        members = [member for fitted in self.fitted for member in fitted.members.values()]
        return any(isinstance(member, KernelMember) and bool(member.kmers.any()) for member in members)

    def raw(self, study: Study, rows: Rows, rarefactions: Sequence[int]) -> list[dict[str, list[Floats]]]:
        """Return for each target and member what it says of the samples at `rows` in each of `rarefactions`."""
        drawn = [presence(study, rows, draw) for draw in rarefactions]
        features = read_present(study, rows, drawn, self.vocabulary, self.reads_sequences)
        return [{name: [m.raw(one) for one in features] for name, m in f.members.items()} for f in self.fitted]

    def scores(self, study: Study, rows: Rows, rarefactions: Sequence[int]) -> list[dict[str, Floats]]:
        """Return for each target the prediction of each member: encoded numbers ``[n, 1]``, or probabilities."""
        raw_values = self.raw(study, rows, rarefactions)
        return [
            {name: fitted.members[name].finish(parts) for name, parts in by_member.items()}
            for fitted, by_member in zip(self.fitted, raw_values, strict=True)
        ]

    def blend(self, scores: Sequence[Mapping[str, Floats]]) -> list[Floats]:
        """Return for each target the weighted mean of what its members said, probabilities tempered."""
        means = [
            np.asarray(sum(weight * of_target[name] for name, weight in fitted.weights.items()))
            for fitted, of_target in zip(self.fitted, scores, strict=True)
        ]
        numbers = len(self.targets.numeric)
        pairs = zip(self.fitted[numbers:], means[numbers:], strict=True)
        return [*means[:numbers], *(temper(mean, fitted.power) for fitted, mean in pairs)]

    def predict(self, study: Study, rows: Rows, rarefactions: Sequence[int]) -> dict[str, Floats]:
        """Return the blended prediction of each target by name, from several draws of the samples at `rows`.

        Numbers are in the column's own units, float64 ``[n]``; classes have probabilities ``[n, classes]``.
        """
        blended = self.blend(self.scores(study, rows, rarefactions))
        numbers = len(self.targets.numeric)
        predictions = {spec.name: value for spec, value in zip(specs_in_order(self.targets), blended, strict=True)}
        if numbers:
            ids = [study.table.sample_ids[row] for row in rows.tolist()]
            decoded = self.targets.decode(np.concatenate(blended[:numbers], axis=1), study.metadata, ids)
            predictions |= {spec.name: decoded[:, column] for column, spec in enumerate(self.targets.numeric)}
        return predictions


def target_values(study: Study, targets: Targets, rows: Rows) -> list[tuple[Floats, int]]:
    """Return each target of the samples at `rows`, NaN where it is missing, and its number of classes (0: a number)."""
    columns = []
    for column in range(len(targets.numeric)):
        if not study.labels.target.shape[1]:
            raise ValueError("the study has no numeric targets")
        columns.append((study.labels.target[rows, column].astype(np.float64), 0))
    for column, spec in enumerate(targets.classes):
        if not study.labels.label.shape[1]:
            raise ValueError("the study has no labels")
        label = study.labels.label[rows, column]
        columns.append((np.where(label < 0, np.nan, label.astype(np.float64)), len(spec.labels)))
    return columns


def fit_members(
    study: Study, targets: Targets, rows: Rows, groups: Sequence[str] | None, seed: int, names: Sequence[str] = NAMES
) -> Members:
    """Fit members of every target on the samples at `rows`, and the weights of their blend.

    Inner folds of whole groups choose penalties and weights; then every member learns from all of the samples.

    Parameters
    ----------
    study : Study
        With targets and covariates, whose scales know the training samples only.
    targets : Targets
    rows : int64 [n]
        The training samples. No label of another sample is read.
    groups : sequence of str, optional
        The group of each; without it each sample is its own.
    seed : int
        Of inner folds and of the forest; rarefactions follow the study's.
    names : sequence of str
        Members, of `NAMES`.
    """
    kept = learned_places(len(rows), DRAWS, MOST_SAMPLES)
    rows, groups = rows[kept], None if groups is None else [groups[place] for place in kept.tolist()]
    drawn = [presence(study, rows, draw) for draw in range(DRAWS)]
    vocabulary = make_vocabulary(study, rows, common_columns(drawn))
    features = read_present(study, rows, drawn, vocabulary, sequences="kernel" in names)
    ids = [study.table.sample_ids[row] for row in rows.tolist()]
    group_of = ids if groups is None else list(groups)
    fitted = []
    for spec, (values, classes) in zip(specs_in_order(targets), target_values(study, targets, rows), strict=True):
        weights = study.labels.weight[rows].astype(np.float64)
        # An inner fold of samples without weight would have nothing to learn from.
        with_truth = np.flatnonzero(np.isfinite(values) & (weights > 0))
        truth = make_truth(values[with_truth], classes, weights[with_truth])
        folds = inner_folds(truth, [ids[i] for i in with_truth], [group_of[i] for i in with_truth], seed)
        target_features = [one.rows(with_truth) for one in features]
        members: dict[str, Member] = {}
        held_out = []
        for name in names:
            begun = time.monotonic()
            if name == "forest":
                members[name], predicted = fit_forest(target_features, truth, folds, seed)
            else:
                members[name], predicted = fit_kernel(target_features, truth, folds, sequences=name == "kernel")
            held_out.append(predicted)
            log.info("%s: member %s fitted in %.1f s", spec.name, name, time.monotonic() - begun)
        stacked = np.stack(held_out)
        shares = blend_weights(stacked, truth)
        power = blend_power(np.tensordot(shares, stacked, axes=1), truth)
        shares_by_name = dict(zip(names, shares.tolist(), strict=True))
        fitted.append(TargetMembers(members, shares_by_name, power, rows[with_truth], truth, stacked))
    return Members(targets, vocabulary, tuple(fitted))
