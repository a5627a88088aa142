"""Effects of ASVs on the predictions of samples, and what a permutation of each ASV does to their loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.data.targets import TargetSpec
from aam.errors import InputError, shown

Floats = npt.NDArray[np.float64]
Matrix: TypeAlias = sparse.csr_matrix

# The whole model, beside its members.
BLEND = "model"


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
    """What F ASVs do to the predictions of one target in N samples, as means over rarefactions.

    Attributes
    ----------
    spec : TargetSpec
    sample_ids : tuple of str [N]
    truth : float64 [N]
        In own units, or the index of the class; NaN where it is not known.
    prediction : float64 [N, W]
        In own units, or probabilities.
    effects : tuple of sparse [N, F]
        For each output (`output_columns`) the prediction minus that of the sample without the ASV.
    abundance : tuple of sparse [N, F]
        The part of it that is due to the number of reads: the prediction minus that with a single read of the ASV.
    losses : dict of member to sparse [N, F]
        By how much a permutation of the ASV is expected to raise the loss of each sample; of the whole model (`BLEND`)
        and of each member.
    members : dict of member to tuple of sparse [N, F]
        The effects of each member.
    carriers : sparse [N, F]
        The share of the rarefactions in which the sample has the ASV.
    attention : sparse [N, F], optional
        Weights of the network's attention, of sum 1 by sample; no effect.
    """

    spec: TargetSpec
    sample_ids: tuple[str, ...]
    truth: Floats
    prediction: Floats
    effects: tuple[Matrix, ...]
    abundance: tuple[Matrix, ...]
    losses: Mapping[str, Matrix]
    members: Mapping[str, tuple[Matrix, ...]]
    carriers: Matrix
    attention: Matrix | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        """What each output is called: the class whose probability it is, or nothing for a number."""
        labels = self.spec.labels
        return tuple(labels[column] for column in output_columns(self.spec)) if labels else ("",)

    @property
    def presence(self) -> tuple[Matrix, ...]:
        """The part of the effects that is due to the presence of the ASV, with a single read."""
        return tuple(all_ - part for all_, part in zip(self.effects, self.abundance, strict=True))

    def turned(self, turn: Matrix) -> TargetEffects:
        """Return the same with each row replaced by the weighted mean of rows that a matrix ``[N', N]`` takes.

        Samples and truth stay those of the caller to set.
        """

        def all_of(matrices: Sequence[Matrix]) -> tuple[Matrix, ...]:
            return tuple(turn @ matrix for matrix in matrices)

        return replace(
            self,
            prediction=turn @ self.prediction,
            effects=all_of(self.effects),
            abundance=all_of(self.abundance),
            losses={name: turn @ matrix for name, matrix in self.losses.items()},
            members={name: all_of(matrices) for name, matrices in self.members.items()},
            carriers=turn @ self.carriers,
            attention=None if self.attention is None else turn @ self.attention,
        )


def _summed(parts: Sequence[TargetEffects]) -> TargetEffects:
    """Return the sum of effects of the same samples; a member that one model lacks adds nothing there."""
    first = parts[0]
    empty = 0.0 * first.carriers

    def sums(values: Sequence[Sequence[Matrix]]) -> tuple[Matrix, ...]:
        return tuple(sum(some[1:], start=some[0]) for some in zip(*values, strict=True))

    names = dict.fromkeys(name for part in parts for name in part.losses)
    none = (empty,) * len(first.effects)
    has_attention = any(part.attention is not None for part in parts)
    return replace(
        first,
        prediction=np.sum([part.prediction for part in parts], axis=0),
        effects=sums([part.effects for part in parts]),
        abundance=sums([part.abundance for part in parts]),
        losses={name: sums([(part.losses.get(name, empty),) for part in parts])[0] for name in names},
        members={
            name: sums([part.members.get(name, none) for part in parts])
            for name in dict.fromkeys(name for part in parts for name in part.members)
        },
        carriers=sums([(part.carriers,) for part in parts])[0],
        attention=sums([(part.attention if part.attention is not None else empty,) for part in parts])[0]
        if has_attention
        else None,
    )


def joined_effects(parts: Sequence[TargetEffects], sample_ids: Sequence[str], truth: Floats) -> TargetEffects:
    """Return the effects of one target in `sample_ids` from those of several models, each of some of the samples.

    A sample that several models explain gets the mean of them.

    Raises
    ------
    InputError
        The models know different classes.
    """
    if len({part.spec.labels for part in parts}) > 1:
        labels = " and ".join(sorted({shown(part.spec.labels, 10) for part in parts}))
        raise InputError(
            f"--model: the models know different classes of {parts[0].spec.name!r} ({labels}); explain each alone"
        )
    place = {name: row for row, name in enumerate(sample_ids)}
    rows = [np.array([place[name] for name in part.sample_ids], np.int64) for part in parts]
    times = np.bincount(np.concatenate(rows), minlength=len(sample_ids))
    moved = []
    for part, at in zip(parts, rows, strict=True):
        shape = (len(sample_ids), len(at))
        moved.append(part.turned(sparse.csr_matrix((1 / times[at], (at, np.arange(len(at)))), shape=shape)))
    return replace(_summed(moved), sample_ids=tuple(sample_ids), truth=truth)
