"""How well predicted UniFrac agrees with exact UniFrac: ``python -m aam_16s.recipe.agreement MODEL
STUDY ...``

Each STUDY is ``NAME=TABLE,TREE`` or ``NAME=TABLE,TREE,SEQUENCES``; a tree whose file is called
``unrooted...`` is rooted at its midpoint. Its samples are rarefied to 1,000 reads
once; what ``aam embed --distances`` makes of this table is compared with UniFrac on the study's own
tree. In brackets stand the
2.5th and 97.5th percentiles of 200 draws of samples with replacement: of the correlation of the
model, and of how much it is above that of 8-mers or ASVs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.spatial.distance import pdist, squareform

import aam
from aam.config import DataConfig
from aam.data.inputs import read_inputs
from aam.data.rarefaction import rarefied_table
from aam.data.study import Study, make_study
from aam.data.table import make_table, write_biom
from aam.data.tokens import kmer_counts
from aam.diversity.distances import jaccard, unifrac_matrix
from aam.diversity.unifrac import UnifracOptions
from aam.errors import FINISHED
from aam.evaluate.metrics import mantel, pearson, upper_triangle

Floats = npt.NDArray[np.floating]

DEPTH, SAMPLES = 1000, 1000
DRAWS = 200


def read_study(files: Sequence[str], depth: int) -> Study:
    """Read a table, a tree and, if its ids are not DNA, sequences; drop ASVs without a tip."""
    table, tree, *sequences = map(Path, files)
    config = DataConfig(
        table=table, tree=tree, sequences=sequences[0] if sequences else None, rarefy_depth=depth,
        missing_tips="drop", midpoint_root=tree.name.startswith("unrooted"),
    )  # fmt: skip
    return make_study(read_inputs(config), config, None, 0)


def bray_curtis(counts: sparse.csr_matrix) -> Floats:
    """Return half the sum of the differences between shares (Bray and Curtis 1957), float64 [N, N],
    from the reads of samples that have some.
    """
    shares = counts[:, np.unique(counts.indices)].toarray() / np.asarray(counts.sum(axis=1))
    return np.asarray(squareform(pdist(shares, "braycurtis")))


def correlations(exact: Floats, compared: Sequence[Floats]) -> list[str]:
    """Return the correlation of each distance [N, N] with the exact one, the others beside how much
    the first is above.

    Pairs of a sample with itself, which a draw of samples with replacement has, do not count.
    """
    rng = np.random.default_rng(0)
    drawn = np.empty((DRAWS, len(compared)))
    for draw in range(DRAWS):
        rows = rng.integers(len(exact), size=len(exact))
        pairs = upper_triangle(rows[:, None] != rows) > 0
        true = upper_triangle(exact[np.ix_(rows, rows)])[pairs]
        drawn[draw] = [
            pearson(upper_triangle(one[np.ix_(rows, rows)])[pairs], true) for one in compared
        ]
    drawn[:, 1:] = drawn[:, :1] - drawn[:, 1:]
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    cells = [
        f"{mantel(one, exact):.3f} ({a:+.3f} to {b:+.3f})"
        for one, a, b in zip(compared, low, high, strict=True)
    ]
    return [cells[0].replace("+", ""), *cells[1:]]


def agreement(model: aam.Model, name: str, files: list[str]) -> str:
    """Return one line of correlations with exact UniFrac: of the model, and of what needs no
    model.
    """
    study = read_study(files, DEPTH)
    rows = np.sort(np.random.default_rng(0).permutation(len(study.table.sample_ids))[:SAMPLES])
    counts = rarefied_table(study)[rows]
    part = study.parts[0]
    if part.tree is None:
        raise ValueError(f"{name} has no tree")
    words = kmer_counts(study.tokens.numpy())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.biom"
        ids = [study.table.sample_ids[row] for row in rows]
        write_biom(make_table(sparse.csr_array(counts), ids, study.table.sequences), path)
        cells = [name, str(len(rows))]
        for metric in ("unifrac", "weighted-normalized"):
            exact = unifrac_matrix(part.tree, part.tips, counts, UnifracOptions(metric))
            predicted = model.distances(path, metric)
            without: list[Floats]
            if metric == "unifrac":
                without = [jaccard(sparse.csr_matrix(counts @ words))]
            else:
                without = [bray_curtis(sparse.csr_matrix(counts @ words)), bray_curtis(counts)]
            compared = [predicted.filter(ids).data, *without]
            cells += correlations(exact, compared)
    return "\t".join(cells)


def run(name: str, studies: list[str]) -> int:
    """Print a line for each study as it is measured."""
    model = aam.load(name)
    print(
        "study",
        "samples",
        "unweighted",
        "8-mers, Jaccard",
        "weighted",
        "8-mers, Bray-Curtis",
        "ASVs, Bray-Curtis",
        sep="\t",
    )
    for word in studies:
        study, _, files = word.partition("=")
        print(agreement(model, study, files.split(",")), flush=True)
    return FINISHED


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
