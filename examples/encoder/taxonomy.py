"""Genus of reads by ``16s`` and by naive Bayes on the same references: ``python -m examples.encoder.taxonomy GG``.

GG is the folder as in `examples.encoder.reference`. Reads are crops of sequences that are no reference and
whose genus some reference has.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from sklearn.naive_bayes import MultinomialNB

from aam.data.placement import RANKS, WORDS, K, ReferenceTree
from aam.data.tokens import Tokens, encode, kmer_words
from aam.errors import FINISHED
from aam.predict.saved_model import load_models
from examples.encoder.reference import LONGEST, SHORTEST, read_greengenes, read_taxonomy

# Where crops begin on their sequence (within 20 bases; anywhere where it is not given), and how long they are.
CROPS = {"V4": (510, 150), "V3-V4": (337, 250), "V1-V2": (10, 250), "anywhere": (None, 100), "V4, short": (510, 50)}

READS, GENUS, SEED = 1500, RANKS.index("genus"), 5


def genus(lineage: str) -> str:
    """Return the lineage down to the genus, '' where that has no name."""
    cells = [cell.strip() for cell in lineage.split(";")]
    return ";".join(cells[: GENUS + 1]) if cells[GENUS] != "g__" else ""


def word_counts(tokens: Tokens) -> sparse.csr_matrix:
    """Return how often sequences ``[F, L]`` have each 8-mer, [F, 4^8]."""
    words = kmer_words(torch.from_numpy(tokens), K).numpy()
    rows, places = np.nonzero(words < WORDS)
    return sparse.csr_matrix((np.ones(len(rows)), (rows, words[rows, places])), (len(words), WORDS))


def accuracy(reference: ReferenceTree, bayes: MultinomialNB, reads: Tokens, truth: list[str]) -> tuple[float, float]:
    """Return the share of reads whose genus is right: by placement, and by naive Bayes."""
    placed = {rank: names for rank, names, _ in reference.taxa(reference.place_softly(reads))}["genus"]
    others = bayes.predict(word_counts(reads)).tolist()
    right = [[one == true for one, true in zip(names, truth, strict=True)] for names in (placed, others)]
    return float(np.mean(right[0])), float(np.mean(right[1]))


def run(folder: Path) -> int:
    """Print a line for each kind of crop."""
    (saved,) = load_models([Path("16s")], torch.device("cpu"))
    reference = saved.reference
    if reference is None:
        raise ValueError("16s has no reference")
    tree, sequence_of = read_greengenes(folder)
    genus_of = {name: genus(lineage) for name, lineage in read_taxonomy(folder).items()}
    of_tips = np.array([genus(reference.lineages[at]) for at in reference.taxon.tolist()])
    named = np.flatnonzero(of_tips != "")
    bayes = MultinomialNB(alpha=0.001, fit_prior=False).fit(word_counts(reference.tokens[named]), of_tips[named])
    known, seen = set(of_tips[named]), {row.tobytes() for row in reference.tokens}
    width, rng = reference.tokens.shape[1], np.random.default_rng(SEED)
    usable = [n for n in tree.tips if SHORTEST <= len(sequence_of[n]) <= LONGEST and set(sequence_of[n]) <= set("ACGT")]
    others = []
    for name in (usable[at] for at in rng.permutation(len(usable))):
        row = np.pad(encode([sequence_of[name]])[0], (0, LONGEST))[:width]
        if genus_of[name] in known and row.tobytes() not in seen:
            others.append(name)
        if len(others) == READS:
            break
    truth = [genus_of[name] for name in others]
    print("crop", "length", "placement", "naive Bayes", sep="\t")
    for crop, (first, length) in CROPS.items():
        starts = rng.integers(0, 1100 if first is None else 20, len(others)) + (first or 0)
        reads = encode([sequence_of[n][at : at + length] for n, at in zip(others, starts.tolist(), strict=True)])
        print(
            crop, length, *(f"{share:.3f}" for share in accuracy(reference, bayes, reads, truth)), sep="\t", flush=True
        )
    return FINISHED


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1])))
