"""Samples with a signal in which features they have, and models that are not trained."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from aam.config import ModelConfig
from aam.data.targets import Targets
from aam.model.aam import HeadConfig
from aam.predict.blend import DEFAULT_MEMBERS, Blend, columns_of
from aam.predict.description import InputOptions, Notes
from aam.predict.estimator import Samples
from aam.predict.members import Forest
from aam.predict.network import Network
from aam.predict.saved_model import SavedModel


def saved_model(network=None, heads=HeadConfig(), targets=Targets(()), **more: Any) -> SavedModel:  # noqa: B008
    """A model that is not trained, of depth 40."""
    usual = {
        "data": InputOptions(),
        "model": ModelConfig(),
        "depth": 40,
        "seed": 0,
        "profile": None,
    }
    usual |= {"targets": targets, "notes": Notes()}
    saved = SavedModel(**{**usual, **more})
    return saved if network is None else saved.with_network(network, heads)


def fit_blend(study, targets, samples, members=DEFAULT_MEMBERS, groups=None, studies=None) -> Blend:
    """A blend of members that has learned from some samples of a study."""
    blend = Blend.of(members, targets, study.depth, study.seed, Network())
    for member in blend.members.values():
        member.fit(samples, columns_of(study, study.rows(samples.sample_ids)), groups, studies)
    return blend


def keep_trees(blend: Blend, number: int) -> None:
    """Leave the first trees of each forest of a blend alone, so that its files are small."""
    for trees in blend.members["forest"].estimators:
        grown = trees.trees_
        nodes = int(grown.node_count[:number].sum())
        parts = {name: values[:nodes] for name, values in vars(grown).items()}
        trees.trees_ = Forest(**{**parts, "node_count": grown.node_count[:number]})


def samples_of(seed: int = 0, n: int = 150, features: int = 60) -> tuple[Samples, np.ndarray]:
    """Raw counts of samples, and a number that moves a third of the features in and out."""
    rng = np.random.default_rng(seed)
    age = rng.normal(size=n)
    logits = np.full((n, features), -1.0)
    logits[:, : features // 3] += 2 * age[:, None] * np.tile([-1, 1], features)[: features // 3]
    counts = rng.poisson(20, (n, features)) * (
        rng.random((n, features)) < 1 / (1 + np.exp(-logits))
    )
    counts[:, -1] += 200
    names = tuple(f"feature {place}" for place in range(features))
    ids = tuple(f"s{row}" for row in range(n))
    return Samples(sparse.csr_matrix(counts), ids, names, np.zeros((n, 0))), age
