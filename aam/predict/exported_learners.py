"""Linear learners, trees and their blend as one function of tensors: what `aam predict` gives of one rarefaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor, nn

from aam.data.targets import TargetSpec
from aam.data.tokens import K, kmer_words
from aam.device.rng import splitmix64
from aam.predict.blend import TargetBlend, specs_in_order
from aam.predict.features import BUCKETS, Inputs, Matrix, Product, kmer_sketch
from aam.predict.forest import Forest, Trees
from aam.predict.linear import SMALLEST, Linear
from aam.predict.saved_model import SavedModel

# Names of features, and what the graph computes of each: presence [B, V], sums of sketches by ASV, covariates [B, P].
Features = Mapping[str, Any]


def _double(values: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.float64).copy())


class ExportedLinear(nn.Module):
    """A `Linear` learner: its features to numbers ``[B, 1]`` or probabilities ``[B, K]``."""

    intercept: Tensor
    base_rates: Tensor
    place: Tensor
    rising: Tensor

    def __init__(self, learner: Linear) -> None:
        super().__init__()
        # Two empty buffers cannot be written by torch.export: without covariates there are no weights of them.
        weights = {name: one for name, one in learner.coef_.items() if one.size}
        self.names, self.classes = tuple(weights), learner.n_classes
        for name, one in weights.items():
            self.register_buffer(f"weights_{name}", _double(one))
        self.register_buffer("intercept", _double(learner.intercept_))
        if self.classes:
            # More classes than two know their base rates already.
            self.register_buffer("base_rates", _double(learner.base_rates_ if self.classes == 2 else np.ones(1)))
            return
        self.low, self.high = learner.range_
        middles = (learner.thresholds_ + np.append(learner.thresholds_[1:], self.high)) / 2
        place = np.concatenate([[self.low - (middles[0] - self.low) / 2], middles, [self.high]])
        self.register_buffer("place", _double(place))
        self.register_buffer("rising", _double(np.arange(len(place)) * 1e-9))

    def forward(self, features: Features) -> Tensor:
        """Return what `Linear.outputs` returns."""
        total = self.intercept
        for name in self.names:
            weights = getattr(self, f"weights_{name}")
            total = total + (features[name](weights) if name == "kmers" else features[name] @ weights)
        return self._shares(total) if self.classes else self._median(total)

    def _shares(self, scores: Tensor) -> Tensor:
        """Return scores of classes as probabilities, as `Linear.published` does."""
        shares = scores.clamp(SMALLEST, 1)
        shares = shares / shares.sum(dim=1, keepdim=True) * self.base_rates
        return shares / shares.sum(dim=1, keepdim=True)

    def _median(self, distribution: Tensor) -> Tensor:
        """Return the median of predicted distributions ``[B, q]``, as `Thresholds.quantile` does."""
        number = distribution.shape[1]
        before = torch.ones(number, number, dtype=torch.bool).tril()
        repeated = distribution[:, None, :]
        rising = repeated.masked_fill(~before, -torch.inf).amax(dim=2)
        falling = repeated.masked_fill(~before.T, torch.inf).amin(dim=2)
        steps = ((rising + falling) / 2).clamp(0, 1)
        ends = torch.zeros_like(steps[:, :1])
        steps = torch.cat([ends, steps, ends + 1], dim=1) + self.rising
        at = ((steps <= 0.5).sum(dim=1, keepdim=True) - 1).clamp(0, number)
        low, high = steps.gather(1, at), steps.gather(1, at + 1)
        share = (0.5 - low) / (high - low)
        return (self.place[at] + share * (self.place[at + 1] - self.place[at])).clamp(self.low, self.high)


def _depth(trees: Trees) -> int:
    """Return the number of comparisons from a root to the deepest leaf."""
    nodes, depth = np.unique(trees.root), 0
    while len(nodes := nodes[trees.left[nodes] != nodes]):
        nodes, depth = np.concatenate([trees.left[nodes], trees.right[nodes]]), depth + 1
    return depth


class ExportedForest(nn.Module):
    """A `Forest`: its features to numbers ``[B, 1]`` or probabilities ``[B, K]``."""

    root: Tensor
    left: Tensor
    right: Tensor
    feature: Tensor
    threshold: Tensor
    value: Tensor

    def __init__(self, learner: Forest) -> None:
        super().__init__()
        trees = Trees(**learner.trees_)
        self.names, self.classes, self.median = learner.reads, learner.n_classes, learner.median
        self.depth = _depth(trees)
        for name in ("root", "left", "right", "feature"):
            self.register_buffer(name, torch.from_numpy(getattr(trees, name).astype(np.int64)))
        self.register_buffer("threshold", _double(trees.threshold))
        self.register_buffer("value", _double(trees.value))

    def forward(self, features: Features) -> Tensor:
        """Return what `Forest.outputs` returns."""
        # Trees were grown on float32.
        values = torch.cat([features[name] for name in self.names], dim=1).float().double()
        node = self.root.expand(values.shape[0], -1)
        for _ in range(self.depth):
            goes_left = values.gather(1, self.feature[node]) <= self.threshold[node]
            node = torch.where(goes_left, self.left[node], self.right[node])
        said = self.value[node]
        if self.classes or not self.median:
            return said.mean(dim=1)
        ordered, trees = said[:, :, 0].sort(dim=1).values, said.shape[1]
        return (ordered[:, (trees - 1) // 2] + ordered[:, trees // 2])[:, None] / 2


class ExportedLearners(nn.Module):
    """All learners of a model, blended, with targets in their own units: numbers ``[B]``, probabilities ``[B, K]``."""

    bucket: Tensor
    sign: Tensor

    def __init__(self, saved: SavedModel) -> None:
        super().__init__()
        self.targets, self.fitted = saved.targets, saved.blend.fitted
        kinds = {Linear: ExportedLinear, Forest: ExportedForest}
        self.learners = nn.ModuleList(
            nn.ModuleDict({name: kinds[type(one)](one) for name, one in target.learners.items()})
            for target in self.fitted
        )
        self.known, self.covariates = known_asvs(saved), saved.blend.features.get("covariates")
        hashed = splitmix64(torch.arange(1, 4**K + 1)).numpy()
        # The last is of words with N.
        self.register_buffer("bucket", torch.from_numpy(np.append(hashed & (BUCKETS - 1), 0)))
        self.register_buffer("sign", _double(np.append(np.where(hashed & BUCKETS, 1.0, -1.0), 0.0)))

    def forward(
        self,
        tokens: Tensor,
        asv: Tensor,
        counts: Tensor,
        place: Tensor,
        category: Tensor | None = None,
        covariate: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return one tensor for each target, numbers first."""
        present = (counts > 0).double()
        at = torch.where((counts > 0) & (place[asv] >= 0), place[asv], self.known)
        presence = torch.zeros(asv.shape[0], self.known + 1, dtype=torch.float64).scatter_add(1, at, present)

        def kmers(weights: Tensor) -> Tensor:
            return (self._sketched(tokens, weights)[asv] * present[:, :, None]).sum(dim=1)

        features: dict[str, Any] = {"presence": presence[:, : self.known], "kmers": kmers}
        features["covariates"] = self._covariates(present, category, covariate)
        outputs = []
        for number, (one, learners) in enumerate(zip(self.fitted, self.learners, strict=True)):
            values, spec = _blended(one, learners, features), specs_in_order(self.targets)[number]  # type: ignore[arg-type]
            outputs.append(decoded(values[:, 0], spec) if spec.kind == "numeric" else values)
        return tuple(outputs)

    def _sketched(self, tokens: Tensor, weights: Tensor) -> Tensor:
        """Return the sketch of the 8-mers of each ASV ``[U, L]`` times weights ``[BUCKETS, C]``: ``[U, C]``."""
        words = kmer_words(tokens, K).sort(dim=1).values
        first = torch.cat([torch.ones_like(words[:, :1], dtype=torch.bool), words[:, 1:] != words[:, :-1]], dim=1)
        distinct = (first & (words < 4**K)).double()
        sums: Tensor = (weights[self.bucket[words]] * (self.sign[words] * distinct)[:, :, None]).sum(dim=1)
        return sums / torch.sqrt(distinct.sum(dim=1, keepdim=True).clamp(min=1))

    def _covariates(self, present: Tensor, category: Tensor | None, covariate: Tensor | None) -> Tensor:
        """Return categories as columns of 0 and 1, then numbers, 0 where unknown: ``[B, P]``."""
        parts = [present[:, :0]]
        if category is not None and covariate is not None:
            for column, levels in enumerate(self.covariates.levels_):  # type: ignore[union-attr]
                parts.append((category[:, column, None] == torch.arange(1, levels + 1)).double())
            parts.append(torch.nan_to_num(covariate).double())
        return torch.cat(parts, dim=1)


def decoded(values: Tensor, spec: TargetSpec) -> Tensor:
    """Return a number in its own units, as `Targets.decode` does."""
    scaled = values * spec.scale.spread + spec.scale.center
    return torch.expm1(scaled) if spec.transform.startswith("log-") else scaled


def _blended(one: TargetBlend, learners: Mapping[str, nn.Module], features: Features) -> Tensor:
    """Return the weighted mean of what the learners say, probabilities to the power, as `TargetBlend.blend` does."""
    mean: Tensor = torch.stack([w * learners[name](features) for name, w in one.weights.items() if w > 0]).sum(dim=0)
    return mean if one.power == 1 else torch.softmax(one.power * torch.log(mean.clamp(min=1e-12)), dim=1)


def known_asvs(saved: SavedModel) -> int:
    """Return how many ASVs the learners know by name."""
    return len(saved.blend.features["presence"].sequences_)  # type: ignore[attr-defined]


def learner_outputs(saved: SavedModel, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Return what the learners themselves predict of the inputs of `ExportedLearners`, in the targets' own units."""
    asv, present = inputs["asv"].numpy(), inputs["counts"].numpy() > 0
    samples, slots = np.nonzero(present)
    shape = (len(asv), len(inputs["tokens"]))
    counts = sparse.csr_matrix((np.ones(len(samples)), (samples, asv[samples, slots])), shape=shape)
    known = np.flatnonzero(inputs["place"].numpy() >= 0)
    columns = (known, inputs["place"].numpy()[known])
    select = sparse.csr_matrix((np.ones(len(known)), columns), shape=(shape[1], known_asvs(saved)))
    covariates = np.zeros((len(asv), 0))
    if "category" in inputs:
        category = inputs["category"].numpy()
        levels = enumerate(saved.blend.features["covariates"].levels_)  # type: ignore[attr-defined]
        parts = [category[:, [column]] == np.arange(1, number + 1) for column, number in levels]
        covariates = np.concatenate([*parts, np.nan_to_num(inputs["covariate"].numpy())], axis=1).astype(np.float64)
    computed: dict[str, tuple[Matrix, ...]] = {
        "presence": (sparse.csr_matrix(counts @ select),),
        "kmers": (Product(counts, kmer_sketch(inputs["tokens"].numpy())),),
        "covariates": (covariates,),
    }
    X = Inputs({}, None, np.arange(len(asv)), (0,), computed)  # type: ignore[arg-type]
    blended = saved.blend.blend(saved.blend.scores(X))
    numbers = len(saved.targets.numeric)
    decoded = saved.targets.decode(np.concatenate([np.zeros((len(asv), 0)), *blended[:numbers]], axis=1))
    return [torch.from_numpy(np.ascontiguousarray(one)) for one in (*decoded.T, *blended[numbers:])]
