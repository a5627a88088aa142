"""Effects drawn at random, for tests of what is made of them."""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse

from aam.data.targets import TargetSpec
from aam.explain.effects import TargetEffects
from aam.explain.results import Asvs

SAMPLES, ASVS = 60, 6
GROUPS = np.array([f"g{row // 4}" for row in range(SAMPLES)], object)
LINEAGES = (
    ("k__B", "p__F", "g__X"),
    ("k__B", "p__F", "g__X"),
    ("k__B", "p__F"),
    ("k__A",),
    (),
    ("k__B", "p__G"),
)


def make_asvs(lineages=LINEAGES) -> Asvs:
    """The ASVs of these effects."""
    sequences = tuple("ACGT"[c % 4] * (c + 1) for c in range(ASVS))
    return Asvs(tuple(f"id{c}" for c in range(ASVS)), sequences, tuple(lineages))


def make_effects(outputs: int = 1, mean: float = 0.0, truth: bool = True) -> TargetEffects:
    """Effects drawn at random: the first ASV raises and matters, the second lowers and matters,
    others do not.
    """
    rng = np.random.default_rng(5)
    carriers = sparse.csr_matrix((rng.random((SAMPLES, ASVS)) < 0.5).astype(float))

    def drawn(scale: float, means) -> sparse.csr_matrix:
        values = rng.normal(size=(SAMPLES, ASVS)) * scale + means
        return sparse.csr_matrix(carriers.toarray() * values)

    classes = TargetSpec("site", "class", ("a", "b", "c"))
    spec = TargetSpec("age", "numeric") if outputs == 1 else classes
    first = np.r_[1.0, -1.0, np.zeros(ASVS - 2)]
    means = [first, *[-0.5 * first] * (outputs - 1)]
    effects = tuple(drawn(0.1, each) for each in means)
    loss = drawn(0.3, np.r_[0.5, 0.5, np.full(ASVS - 2, mean)])
    return TargetEffects(
        spec=spec,
        sample_ids=tuple(f"s{row}" for row in range(SAMPLES)),
        truth=rng.integers(0, 3, SAMPLES).astype(float) if truth else np.full(SAMPLES, math.nan),
        prediction=rng.random((SAMPLES, 1 if outputs == 1 else 3)),
        carriers=carriers,
        losses=loss,
        effects=effects,
        attention=carriers,
    )
