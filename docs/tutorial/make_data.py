"""Makes the study of the tutorial from the artifacts that its authors published: fewer samples and
ASVs, nothing else.

python docs/tutorial/make_data.py PUBLISHED docs/tutorial/qiime2-crc

PUBLISHED holds table.qza, rep-seqs.qza, rooted-tree.qza, taxonomy.qza and metadata.tsv of the
study.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
import skbio

from aam.data.table import read_table
from aam.io.tables import write_hdf5
from aam.io.text import read_text
from tests.archives import write_artifact

# ASVs of fewer samples are left out.
LEAST_SAMPLES = 10

METADATA = ["sample-id", "subject", "sex", "age", "bmi", "visit", "arm", "run"]


def main(source: Path, target: Path) -> None:
    """Write samples that have metadata, ASVs of at least `LEAST_SAMPLES` of them, their sequences,
    tips and taxa.
    """
    target.mkdir(parents=True, exist_ok=True)
    with (source / "metadata.tsv").open() as file:
        rows = list(csv.DictReader(file, dialect="excel-tab"))
    table = read_table(source / "table.qza", need_sequences=False)
    described = {row["sample-id"] for row in rows}
    samples = [at for at, name in enumerate(table.sample_ids) if name in described]
    counts = table.counts[samples]
    features = np.flatnonzero((counts > 0).sum(axis=0) >= LEAST_SAMPLES)
    names = [table.feature_ids[at] for at in features]
    kept = counts[:, features]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "feature-table.biom"
        write_hdf5(path, kept, [table.sample_ids[at] for at in samples], names)
        write_artifact(
            target / "table.qza",
            "FeatureTable[Frequency]",
            "BIOMV210DirFmt",
            {"feature-table.biom": path.read_bytes()},
        )
    wanted = set(names)
    text = read_text(source / "rep-seqs.qza", {"FeatureData[Sequence]": "dna-sequences.fasta"})
    lines = text.split(">")[1:]
    fasta = "".join(f">{line}" for line in lines if line.split()[0] in wanted)
    write_artifact(
        target / "rep-seqs.qza",
        "FeatureData[Sequence]",
        "DNASequencesDirectoryFormat",
        {"dna-sequences.fasta": fasta.encode()},
    )
    newick = read_text(source / "rooted-tree.qza", {"Phylogeny[Rooted]": "tree.nwk"})
    tree = skbio.TreeNode.read([newick], convert_underscores=False).shear(wanted)
    tree.prune()
    write_artifact(
        target / "rooted-tree.qza",
        "Phylogeny[Rooted]",
        "NewickDirectoryFormat",
        {"tree.nwk": str(tree).encode()},
    )
    text = read_text(source / "taxonomy.qza", {"FeatureData[Taxonomy]": "taxonomy.tsv"})
    header, *taxa = text.splitlines(keepends=True)
    text = header + "".join(line for line in taxa if line.partition("\t")[0] in wanted)
    write_artifact(
        target / "taxonomy.qza",
        "FeatureData[Taxonomy]",
        "TSVTaxonomyDirectoryFormat",
        {"taxonomy.tsv": text.encode()},
    )
    with (target / "metadata.tsv").open("w", newline="") as file:
        writer = csv.DictWriter(
            file, METADATA, dialect="excel-tab", lineterminator="\n", extrasaction="ignore"
        )
        writer.writeheader()
        writer.writerows(rows)
    reads = np.asarray(kept.sum(axis=1)).ravel() / np.asarray(counts.sum(axis=1)).ravel()
    print(
        f"{kept.shape[0]} samples, {kept.shape[1]} of {counts.shape[1]} ASVs, "
        f"{100 * reads.mean():.1f} % of the reads"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
