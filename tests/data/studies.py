"""Studies in memory, from dense counts, and the counts, ASVs and trees of small ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from aam.config import DataConfig
from aam.data import study as studies
from aam.data.inputs import read_inputs
from aam.data.study import MetadataColumns, Study, StudyPart, sample_frame
from aam.data.table import make_table
from aam.data.targets import Labels
from aam.io.metadata import Metadata, make_metadata
from aam.io.phylogeny import match_tips, parse_newick


def make_study(counts, sequences, *, names=None, depth=40, seed=0, newick=None, **config) -> Study:
    """The study of dense counts [N, F], whose rows are called s0, s1, ... unless named."""
    names = [f"s{row}" for row in range(len(counts))] if names is None else names
    table = make_table(csr_array(np.asarray(counts, np.uint32)), names, sequences, sequences)
    part = StudyPart()
    if newick is not None:
        tree = parse_newick(newick)
        part = StudyPart("", tree, match_tips(tree, table.feature_ids))
    labels, origin = Labels.none(len(names)), np.zeros(len(names), np.int64)
    return Study(table, depth, seed, DataConfig(**config), labels, (part,), origin)


def metadata_of(**columns: Sequence[object]) -> Metadata:
    """Metadata of samples s0, s1, ... with kinds as the reader infers them."""
    cells = {name: tuple(map(str, values)) for name, values in columns.items()}
    ids = [f"s{row}" for row in range(len(next(iter(cells.values()))))]
    return typed_metadata(ids, cells, {})


def typed_metadata(ids: Sequence[str], columns: dict, kinds: dict) -> Metadata:
    """Metadata of cells whose kinds are declared."""
    kinds, schemes = [kinds.get(name, "") for name in columns], [""] * len(columns)
    return make_metadata(ids, [*columns], [*columns.values()], kinds, schemes, "metadata")


def samples_in(**states: Sequence[str]) -> pd.DataFrame:
    """Samples of a file in these states, with 3 reads; "few_reads" is "few reads"."""
    samples = sample_frame([name for names in states.values() for name in names])
    for state, names in states.items():
        samples.loc[list(names)] = state.replace("_", " "), 3
    return samples


def load_study(config: DataConfig, max_bp: int | None = None, columns=None, **more) -> Study:
    """The study of the files that `config` names, with seed 0."""
    columns = MetadataColumns() if columns is None else columns
    return studies.make_study(
        read_inputs(config, columns.names), config, max_bp, 0, columns, **more
    )


def random_counts(samples=9, asvs=24, lengths=(20,), seed=1, tree=True) -> dict[str, Any]:
    """Arguments of `make_study`: sparse counts of at least 40 reads a sample, random ASVs, a
    tree.
    """
    rng = np.random.default_rng(seed)
    sizes = [lengths[asv % len(lengths)] for asv in range(asvs)]
    sequences = ["".join(rng.choice(list("ACGT"), size)) for size in sizes]
    counts = rng.poisson(30, (samples, asvs)) * (rng.random((samples, asvs)) < 0.4)
    counts[:, 0] += 50
    newick = random_tree(rng, sequences) if tree else None
    return {"counts": counts, "sequences": sequences, "newick": newick}


def random_tree(rng: np.random.Generator, names: Sequence[str]) -> str:
    """A tree of these tips, in which every node has two children, as Newick text."""
    lengths = rng.random(len(names))
    nodes = [f"{name}:{length:.3f}" for name, length in zip(names, lengths, strict=True)]
    while len(nodes) > 2:
        left, right = (nodes.pop(rng.integers(len(nodes))) for _ in range(2))
        nodes.append(f"({left},{right}):{rng.random():.3f}")
    return f"({','.join(nodes)});"
