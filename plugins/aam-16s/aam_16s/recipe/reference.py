"""How the reference ``16s`` was made: ``python -m aam_16s.recipe.reference GG_13_8_OTUS CARD
OUTPUT [NUMBER]``.

GG_13_8_OTUS is the folder of that name in the Python package qiime-default-reference 0.1.3
(Greengenes 13_8, CC BY-SA 3.0), CARD the text of the model card, next to its LICENSE.txt, OUTPUT
the folder to write. A clone has the result in plugins/aam-16s/16s, and a release as a file.
"""

from __future__ import annotations

import gzip
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from aam.config import ModelConfig
from aam.data.region import RegionProfile
from aam.data.targets import Targets
from aam.data.tokens import encode
from aam.errors import FINISHED
from aam.io.phylogeny import Phylogeny, parse_newick, prune
from aam.predict.description import InputOptions, Notes
from aam.predict.saved_model import SavedModel
from aam_16s.recipe.ship import ship_model
from aam_16s.reference import ReferenceTree

# How many sequences are drawn, of which lengths, and the depth to which samples are rarefied.
REFERENCES, SHORTEST, LONGEST, DEPTH, SEED = 10_000, 1250, 1650, 1000, 0


def read_greengenes(folder: Path) -> tuple[Phylogeny, dict[str, str]]:
    """Return the tree of the 97 % OTUs, with length 0 where it gives none (below the root), and
    their sequences.
    """
    with gzip.open(folder / "trees/97_otus.tree.gz", "rt") as file:
        tree = parse_newick(file.read(), "97_otus.tree.gz")
    with gzip.open(folder / "rep_set/97_otus.fasta.gz", "rt") as file:
        lines = file.read().split("\n")
    names = [line[1:].split()[0] for line in lines[:-1:2]]
    return replace(tree, length=np.nan_to_num(tree.length)), dict(
        zip(names, lines[1::2], strict=True)
    )


def read_taxonomy(folder: Path) -> dict[str, str]:
    """Return the lineage of each 97 % OTU."""
    with gzip.open(folder / "taxonomy/97_otu_taxonomy.txt.gz", "rt") as file:
        return dict(line.rstrip("\n").split("\t") for line in file)


def drawn_reference(
    tree: Phylogeny, sequence_of: dict[str, str], number: int, lineage_of: dict[str, str]
) -> ReferenceTree:
    """Return the tree above `number` tips, drawn at random from those of usual length that hold
    only A, C, G and T.
    """
    usable = [
        tip
        for tip, name in enumerate(tree.tips)
        if SHORTEST <= len(sequence_of[name]) <= LONGEST
        and not set(sequence_of[name]) - set("ACGT")
    ]
    tips = np.sort(np.random.default_rng(SEED).choice(usable, number, replace=False))
    pruned = prune(tree, tips)
    tokens = encode([sequence_of[name] for name in pruned.tips])
    lineages, taxon = np.unique([lineage_of[name] for name in pruned.tips], return_inverse=True)
    return ReferenceTree(
        pruned.parent.astype(np.int32),
        pruned.length.astype(np.float32),
        tokens,
        tuple(lineages.tolist()),
        taxon.astype(np.int32),
    )


def run(folder: Path, card: Path, output: Path, number: int = REFERENCES) -> int:
    """Draw the references and write them as a model without a network."""
    tree, sequence_of = read_greengenes(folder)
    reference = drawn_reference(tree, sequence_of, number, read_taxonomy(folder))
    sequences = [
        "".join(".ACGT"[token] for token in row).rstrip(".") for row in reference.tokens.tolist()
    ]
    saved = SavedModel(
        data=InputOptions(),
        model=ModelConfig(max_bp=LONGEST),
        depth=DEPTH,
        seed=SEED,
        targets=Targets(()),
        profile=RegionProfile.fit(sequences),
        notes=Notes(),
        reference=reference,
    )
    paths = {"card.md": card, "LICENSE.txt": card.with_name("LICENSE.txt")}
    texts = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    ship_model(saved, output, texts)
    return FINISHED


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(run(Path(given[0]), Path(given[1]), Path(given[2]), *map(int, given[3:])))
