"""Features of samples that stand in no table, and models that are not trained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import sparse

from aam.config import DataConfig, ModelConfig
from aam.data.targets import Targets
from aam.data.tokens import encode
from aam.model.heads import HeadConfig
from aam.predict.features import Inputs, Product, kmer_sketch
from aam.predict.saved_model import SavedModel


def saved_model(network=None, heads=HeadConfig(), targets=Targets(()), **more: Any) -> SavedModel:  # noqa: B008
    """A model that is not trained, of depth 40."""
    usual = {"data": DataConfig(), "model": ModelConfig(), "depth": 40, "seed": 0, "profile": None}
    given = {"network": network, "heads": heads, "targets": targets, "notes": {"seen_samples": []}}
    return SavedModel(**{**usual, **given, **more})


def inputs_of(*rarefactions: dict) -> Inputs:
    """Return the inputs of samples s0, s1, ... whose features in each rarefaction are known."""
    (samples, *_) = {one["presence"].shape[0] for one in rarefactions}
    table = SimpleNamespace(sample_ids=[f"s{row}" for row in range(samples)])
    computed = {name: tuple(one[name] for one in rarefactions) for name in rarefactions[0]}
    rows = np.arange(samples)
    study = SimpleNamespace(rows=rows, study=SimpleNamespace(table=table))
    return Inputs({}, study, rows, tuple(range(len(rarefactions))), computed)


def features_of(rng: np.random.Generator, samples=80, asvs=60, covariates=0, clades=4) -> dict:
    """Return presence of ASVs of a few clades, of which the first half is known by name."""
    parents = [rng.choice(list("ACGT"), 120) for _ in range(clades)]
    sequences = []
    for number in range(asvs):
        child = parents[number % clades].copy()
        child[rng.choice(120, 4, replace=False)] = "A"
        sequences.append("".join(child))
    everything = sparse.csr_matrix((rng.random((samples, asvs)) < 0.3).astype(float))
    return {
        "presence": everything[:, : asvs // 2],
        "kmers": Product(everything, kmer_sketch(encode(sequences))),
        "covariates": rng.normal(size=(samples, covariates)),
    }
