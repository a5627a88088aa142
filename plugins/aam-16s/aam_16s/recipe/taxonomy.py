"""Genus and place of reads by the reference ``16s``, without a study: ``python -m
aam_16s.recipe.taxonomy GG FOLDER``.

GG is the folder as in `aam_16s.recipe.reference`, FOLDER what that writes. Reads are crops of
sequences that are no reference. The first table compares genera with naive Bayes on the same
references, where some reference has the genus; the second says how far from its place a read of
each phylum is put.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from sklearn.naive_bayes import MultinomialNB

from aam.data.tokens import K, encode, kmer_words
from aam.errors import FINISHED
from aam.io.phylogeny import Phylogeny
from aam.typing import Tokens
from aam_16s.presence import WORDS
from aam_16s.recipe.reference import LONGEST, SHORTEST, read_greengenes, read_taxonomy
from aam_16s.reference import RANKS, ReferenceTree, tree_of_model

# Where crops begin on their sequence (within 20 bases; anywhere where it is not given), and how
# long they are.
CROPS = {
    "V4": (510, 150),
    "V3-V4": (337, 250),
    "V1-V2": (10, 250),
    "anywhere": (None, 100),
    "V4, short": (510, 50),
}

READS, GENUS, SEED = 1500, RANKS.index("genus"), 5

# Phyla with fewer sequences are not shown.
LEAST_OF_PHYLUM = 1000


def genus(lineage: str) -> str:
    """Return the lineage down to the genus, '' where that has no name."""
    cells = [cell.strip() for cell in lineage.split(";")]
    return ";".join(cells[: GENUS + 1]) if cells[GENUS] != "g__" else ""


def word_counts(tokens: Tokens) -> sparse.csr_matrix:
    """Return how often sequences ``[F, L]`` have each 8-mer, [F, 4^8]."""
    words = kmer_words(torch.from_numpy(tokens), K).numpy()
    rows, places = np.nonzero(words < WORDS)
    return sparse.csr_matrix((np.ones(len(rows)), (rows, words[rows, places])), (len(words), WORDS))


def accuracy(
    reference: ReferenceTree, bayes: MultinomialNB, reads: Tokens, truth: list[str]
) -> tuple[float, float]:
    """Return the share of reads whose genus is right: by placement, and by naive Bayes."""
    placed = {rank: names for rank, names, _ in reference.taxa(reference.place_softly(reads))}[
        "genus"
    ]
    others = bayes.predict(word_counts(reads)).tolist()
    right = [
        [one == true for one, true in zip(names, truth, strict=True)] for names in (placed, others)
    ]
    return float(np.mean(right[0])), float(np.mean(right[1]))


def crops(sequences: list[str], first: int | None, length: int, rng: np.random.Generator) -> Tokens:
    """Return reads of `length` bases of `sequences`, which begin within 20 bases of `first`, or
    anywhere.
    """
    starts = rng.integers(*((0, 1100) if first is None else (first, first + 20)), len(sequences))
    return encode(
        [
            sequence[at : at + length]
            for sequence, at in zip(sequences, starts.tolist(), strict=True)
        ]
    )


def print_genera(
    reference: ReferenceTree,
    lineage_of: dict[str, str],
    sequence_of: dict[str, str],
    rng: np.random.Generator,
) -> None:
    """Print the accuracy of the genus for each kind of crop of the first `READS` sequences whose
    genus is known.
    """
    of_tips = np.array([genus(reference.lineages[at]) for at in reference.taxon.tolist()])
    named = np.flatnonzero(of_tips != "")
    bayes = MultinomialNB(alpha=0.001, fit_prior=False).fit(
        word_counts(reference.tokens[named]), of_tips[named]
    )
    known = set(of_tips[named])
    chosen = [name for name in sequence_of if genus(lineage_of[name]) in known][:READS]
    truth, sequences = (
        [genus(lineage_of[name]) for name in chosen],
        [sequence_of[name] for name in chosen],
    )
    print("crop", "length", "placement", "naive Bayes", sep="\t")
    for crop, (first, length) in CROPS.items():
        shares = accuracy(reference, bayes, crops(sequences, first, length, rng), truth)
        print(crop, length, *(f"{share:.3f}" for share in shares), sep="\t", flush=True)


def distances(
    tree: Phylogeny, ones: npt.NDArray[np.int64], others: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return the length of the way between pairs of nodes of a tree ``[P]``, in substitutions per
    site [P].
    """
    ways = np.zeros(len(ones))
    ones, others = ones.copy(), others.copy()
    # Children stand before their parents, so the node of the smaller number is not above the other.
    while len(apart := np.flatnonzero(ones != others)):
        for nodes, lower in ((ones, others), (others, ones)):
            up = apart[nodes[apart] < lower[apart]]
            ways[up] += tree.length[nodes[up]]
            nodes[up] = tree.parent[nodes[up]]
    return ways


def print_phyla(
    reference: ReferenceTree,
    tree: Phylogeny,
    lineage_of: dict[str, str],
    sequence_of: dict[str, str],
    references: list[str],
) -> None:
    """Print how V4 crops of each phylum are placed; ``references`` are the names of the tips of
    `reference`.
    """
    node_of = dict(zip(tree.tips, tree.tip_nodes.tolist(), strict=True))
    phylum = np.array([lineage_of[name].split(";")[1].strip() for name in sequence_of])
    true, tips = (
        np.array([node_of[name] for name in names]) for names in (sequence_of, references)
    )
    placement = reference.place_softly(
        crops(list(sequence_of.values()), *CROPS["V4"], np.random.default_rng(SEED))
    )
    on_tips = placement.tips.tocoo()
    away = on_tips.data * distances(tree, true[on_tips.row], tips[on_tips.col])
    expected = np.bincount(on_tips.row, away, len(true))
    print(
        "phylum",
        "crops",
        "taken for 16S",
        "median shared 8-mers",
        "median distance",
        "90th percentile",
        sep="\t",
    )
    names, numbers = np.unique(phylum, return_counts=True)
    for at in np.argsort(-numbers).tolist():
        if numbers[at] >= LEAST_OF_PHYLUM:
            of_it = phylum == names[at]
            taken = of_it & placement.is_16s
            shared, far = (
                np.median(placement.similarity[of_it]),
                np.quantile(expected[taken], (0.5, 0.9)),
            )
            shown = (taken.sum() / of_it.sum(), shared, *far)
            print(
                names[at], numbers[at], *(f"{number:.3f}" for number in shown), sep="\t", flush=True
            )


def run(folder: Path, model: Path) -> int:
    """Print both tables."""
    reference = tree_of_model(model)
    tree, sequence_of = read_greengenes(folder)
    lineage_of = read_taxonomy(folder)
    usable = [
        n
        for n in tree.tips
        if SHORTEST <= len(sequence_of[n]) <= LONGEST and set(sequence_of[n]) <= set("ACGT")
    ]
    width = reference.tokens.shape[1]
    rows = {
        name: np.pad(encode([sequence_of[name]])[0], (0, LONGEST))[:width].tobytes()
        for name in usable
    }
    name_of = {row: name for name, row in rows.items()}
    references = [name_of[row.tobytes()] for row in reference.tokens]
    seen = {rows[name] for name in references}
    rng = np.random.default_rng(SEED)
    shuffled = (usable[at] for at in rng.permutation(len(usable)).tolist())
    others = {name: sequence_of[name] for name in shuffled if rows[name] not in seen}
    print_genera(reference, lineage_of, others, rng)
    print_phyla(reference, tree, lineage_of, others, references)
    return FINISHED


if __name__ == "__main__":
    sys.exit(run(*map(Path, sys.argv[1:])))
