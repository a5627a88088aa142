"""Random trees as Newick text, the tree that scikit-bio reads, and the depths of its tips."""

from __future__ import annotations

import io

import numpy as np
from skbio import TreeNode

from aam.io.phylogeny import Phylogeny


def random_newick(rng: np.random.Generator, tips: int, single: float = 0.1) -> str:
    """A tree with polytomies and chains of single children, as Newick text without the final
    ';'.
    """
    parts = [f"t{index}:{rng.integers(0, 9) / 4}" for index in range(tips)]
    while len(parts) > 1 or rng.random() < single:
        size = 1 if rng.random() < single else min(len(parts), int(rng.integers(2, 5)))
        start = int(rng.integers(0, len(parts) - size + 1))
        joined = (
            f"({','.join(parts[start : start + size])}){rng.integers(100)}:{rng.integers(0, 9) / 4}"
        )
        parts[start : start + size] = [joined]
    return parts[0]


def skbio_tree(text: str) -> TreeNode:
    return TreeNode.read(io.StringIO(text), format="newick", convert_underscores=False)


def depths(tree: Phylogeny) -> dict[str, float]:
    """Distance of each tip from the root, by walking up from each."""
    tip_nodes = [node for node in range(len(tree.parent)) if node not in set(tree.parent.tolist())]
    result = {}
    for name, tip in zip(tree.tips, tip_nodes, strict=True):
        total, node = 0.0, tip
        while tree.parent[node] >= 0:
            total += tree.length[node]
            node = tree.parent[node]
        result[name] = total
    return result
