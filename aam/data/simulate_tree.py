"""The tree of a synthetic study, and what evolves along it: sequences and traits of ASVs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.preprocessing import StandardScaler

from aam.device.rng import generator

# Base composition of the 150 nt after primer 515F in public tables of the V4 region.
BASES = np.frombuffer(b"ACGT", np.uint8)
BASE_FREQUENCIES = np.array([0.25, 0.18, 0.35, 0.22])
# Heights in substitutions per site: two tips whose common ancestor is this high differ by twice as much.
ASVS_PER_CLUSTER = 5
CLUSTER_HEIGHT = (0.004, 0.03)
DEEPEST = 0.18
BRANCH_RATE_SD = 0.25

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tree:
    """A rooted binary tree, tips first, children before parents: `parent` and branch `length` [nodes]."""

    parent: Ints
    length: Floats

    def newick(self, names: list[str]) -> Iterator[str]:
        """Yield the tree as Newick text, piece by piece, tips called by `names`."""
        tips, root = len(names), len(self.parent) - 1
        children = np.argsort(self.parent[:-1], kind="stable").reshape(-1, 2).tolist()
        todo: list[int | str] = [root]
        while todo:
            node = todo.pop()
            if isinstance(node, str):
                yield node
                continue
            behind = f":{self.length[node]:.6f}" if node < root else ";\n"
            if node < tips:
                yield names[node] + behind
            else:
                first, second = children[node - tips]
                todo += [f"){behind}", second, ",", first]
                yield "("


def draw_tree(asvs: int, seed: int) -> Tree:
    """Draw a random tree whose `asvs` tips form clusters of uneven size; rates vary between branches.

    Neighbours in a row of tips part at random heights (Popovic 2004), low ones within a cluster.
    """
    rng = generator(seed, "simulate", "tree")
    clusters = max(2, asvs // ASVS_PER_CLUSTER)
    share = rng.dirichlet(np.full(clusters, 0.7))
    cluster = np.sort(np.concatenate([np.arange(clusters), rng.choice(clusters, asvs - clusters, p=share)]))
    lowest, highest = CLUSTER_HEIGHT
    low = (lowest * (highest / lowest) ** rng.random(clusters))[cluster[1:]] * rng.uniform(0.2, 1, asvs - 1)
    high = highest + (DEEPEST - highest) * rng.beta(2, 1.5, asvs - 1)
    parted = np.where(np.diff(cluster) == 0, low, high)
    parent, top, other_end = np.arange(2 * asvs - 1), np.arange(asvs), np.arange(asvs)
    # Blocks of neighbours join from low to high; both ends of a block know its top and each other.
    for new, left in enumerate(np.argsort(parted), start=asvs):
        first, last = other_end[[left, left + 1]]
        parent[top[[left, left + 1]]] = new
        top[[first, last]], other_end[first], other_end[last] = new, last, first
    height = np.concatenate([np.zeros(asvs), np.sort(parted)])
    return Tree(parent, (height[parent] - height) * rng.lognormal(0, BRANCH_RATE_SD, len(parent)))


def evolve_sequences(tree: Tree, length: int, seed: int) -> list[str]:
    """Return distinct sequences of the tips: positions change at their own rate (Felsenstein 1981).

    Conserved and variable stretches take turns; the later one of two equal tips is changed.
    """
    rng = generator(seed, "simulate", "sequences")
    rates = np.repeat(np.tile((0.1, 1.0), length), rng.integers(8, 24, 2 * length))[:length]
    rates *= rng.gamma(1.0, size=length)
    rates /= rates.mean()
    scaled = rates / (1 - np.sum(BASE_FREQUENCIES**2))
    sequence = np.empty((len(tree.parent), length), np.uint8)
    sequence[-1] = rng.choice(4, length, p=BASE_FREQUENCIES)
    for node in range(len(tree.parent) - 2, -1, -1):
        changes = np.flatnonzero(rng.random(length) < -np.expm1(-scaled * tree.length[node]))
        sequence[node] = sequence[tree.parent[node]]
        sequence[node, changes] = rng.choice(4, len(changes), p=BASE_FREQUENCIES)
    seen: set[bytes] = set()
    tips = sequence[: len(sequence) // 2 + 1]
    for tip in tips:
        while tip.tobytes() in seen:
            place = rng.choice(length, p=rates / length)
            tip[place] = (tip[place] + rng.integers(1, 4)) % 4
        seen.add(tip.tobytes())
    return [BASES[tip].tobytes().decode("ascii") for tip in tips]


def evolve_traits(tree: Tree, traits: int, seed: int) -> Floats:
    """Return traits [tips, traits] with mean 0 and sd 1: Brownian motion along the tree (Felsenstein 1985)."""
    value = generator(seed, "simulate", "traits").standard_normal((len(tree.parent), traits))
    value *= np.sqrt(tree.length)[:, None]
    for node in range(len(tree.parent) - 2, -1, -1):
        value[node] += value[tree.parent[node]]
    return np.asarray(StandardScaler().fit_transform(value[: len(value) // 2 + 1]))
