"""How an encoder like ``16s-v4`` is made, from tables to weights: ``python -m aam_16s.recipe DATA
OUTPUT [CARD]``.

DATA holds a folder for each study (`SOURCES`). OUTPUT gets tables, a tree and runs; a stopped run
goes on. With CARD, the text of the model card, the encoder replaces ``16s-v4`` in this package.

The weights of ``16s-v4`` were trained by the same steps with aam 0.1.0 (commit afbb84f9),
which could also freeze the ASV encoder in the second step and mask every ASV in the first.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_array

from aam.cli import main
from aam.data.rarefaction import EVALUATION, rarefied_row
from aam.data.region import RegionProfile
from aam.data.table import read_table, write_biom
from aam.errors import FINISHED, InputError
from aam.files.atomic import atomic_file
from aam.io.phylogeny import read_tree
from aam.io.tables import AmpliconTable
from aam.model.aam import Aam
from aam.options import not_none
from aam.predict.saved_model import SavedModel, load_model, save_model
from aam_16s.encoders import MODELS
from aam_16s.recipe.ship import ship_model
from aam_16s.reference import read_reference

CPU = torch.device("cpu")

FOLDER = MODELS / "16s-v4"

DEPTH = 1000

# Samples with fewer reads are not asked for their ASVs, and an ASV that fewer samples hold stands
# on no tree.
LEAST_READS, LEAST_SAMPLES = 500, 2

MAFFT = ("mafft", "--thread", "1", "--retree", "1", "--maxiterate", "0", "--quiet")
FASTTREE = ("fasttree", "-nt", "-fastest", "-nosupport", "-quiet")

SIZES = ("--embedding-dim", "96", "--attention-layers", "2", "--max-bp", "250")

# Masked bases first, in random sets of ASVs: samples would show common ASVs a hundred times as
# often as rare ones.
ASVS_OF_A_SET = 128
SET = "random-set-"

# Then distances and counts of samples.
COMMON = ("--validation-size", "0.05", "--threads", "1")
BASES = (
    "--epochs",
    "25",
    "--penalty",
    "0",
    "--count-penalty",
    "0",
    "--nuc-mask-ratio",
    "0.2",
    "--rarefy-depth",
    str(ASVS_OF_A_SET),
    "--batch-size",
    "1",
    "--lr",
    "3e-3",
    *COMMON,
)
DISTANCES = (
    "--rarefy-depth",
    str(DEPTH),
    "--epochs",
    "1",
    "--nuc-penalty",
    "0",
    "--batch-size",
    "48",
    *COMMON,
)


@dataclass(frozen=True)
class Source:
    """A study of the training data: its folder below the data, and whether a tree comes with it."""

    folder: str
    has_tree: bool = False

    @property
    def name(self) -> str:
        """The name of the study."""
        return Path(self.folder).name


# The first names the region. Studies of other regions (iga, tonsillitis) have no ASV that fits it.
SOURCES = (
    Source("unlabelled"),
    *(
        Source(f"pretraining/{name}")
        for name in (
            "cfs",
            "cron",
            "dogwolf",
            "dust",
            "griffon",
            "horse",
            "moving-pictures",
            "nasopharynx",
            "pancreatitis",
        )
    ),
    Source("oral-age", has_tree=True),
    Source("ibd", has_tree=True),
)


def select_features(table: AmpliconTable, kept: np.ndarray) -> AmpliconTable:
    """Return the features of a table where `kept`, bool [F], is true."""
    columns = np.flatnonzero(kept)
    return replace(
        table,
        counts=csr_array(table.counts.tocsc()[:, columns].tocsr()),
        feature_ids=tuple(table.feature_ids[column] for column in columns.tolist()),
        sequences=tuple(table.sequences[column] for column in columns.tolist()),
    )


def prevalent(tables: Sequence[AmpliconTable]) -> list[str]:
    """Return the ASVs of `LEAST_SAMPLES` samples of all tables or more, rarefied to `DEPTH` reads,
    sorted.
    """
    samples: Counter[str] = Counter()
    for table in tables:
        for row in np.flatnonzero(table.depths >= LEAST_READS).tolist():
            columns, _ = rarefied_row(table, row, min(DEPTH, int(table.depths[row])), 0, EVALUATION)
            samples.update(table.sequences[column] for column in columns)
    return sorted(sequence for sequence, number in samples.items() if number >= LEAST_SAMPLES)


def make_tree(sequences: Sequence[str], folder: Path) -> Path:
    """Return a Newick tree of the sequences, by MAFFT and FastTree; it has no root. One that is
    there is kept.
    """
    tree = folder / "tree.nwk"
    if tree.is_file():
        return tree
    for program in (MAFFT[0], FASTTREE[0]):
        if shutil.which(program) is None:
            raise InputError(
                f"{program}: not found; install it (Debian: apt-get install mafft fasttree)"
            )
    fasta, aligned = folder / "sequences.fasta", folder / "aligned.fasta"
    fasta.write_text(
        "".join(f">{sequence}\n{sequence}\n" for sequence in sequences), encoding="ascii"
    )
    with aligned.open("wb") as file:
        subprocess.run([*MAFFT, str(fasta)], stdout=file, check=True)
    with atomic_file(tree) as temporary, temporary.open("wb") as file:
        subprocess.run([*FASTTREE, str(aligned)], stdout=file, check=True)
    return tree


def random_sets(sequences: Collection[str]) -> AmpliconTable:
    """Return a table whose samples are random sets of `ASVS_OF_A_SET` ASVs of like length, one read
    of each.

    ASVs that do not fill a set are in none.
    """
    names = sorted(sequences)
    order = np.random.default_rng(0).permutation(len(names))
    order = order[np.argsort([len(names[column]) for column in order.tolist()], kind="stable")]
    sets = len(order) // ASVS_OF_A_SET
    columns = order[: sets * ASVS_OF_A_SET]
    starts = np.arange(0, len(columns) + 1, ASVS_OF_A_SET)
    counts = csr_array((np.ones(len(columns), np.uint8), columns, starts), shape=(sets, len(names)))
    counts.sort_indices()
    return AmpliconTable(
        counts, tuple(f"{SET}{number}" for number in range(sets)), tuple(names), tuple(names)
    )


def prepare(data: Path, output: Path) -> None:
    """Write random sets of the ASVs of one region (``asvs/sets.biom``), and tables of those on a
    tree (``tree/``).
    """
    tables = {source.name: read_table(data / source.folder / "table.biom") for source in SOURCES}
    profile = RegionProfile.fit(tables[SOURCES[0].name].sequences)
    for source in SOURCES:
        flags = profile.flags(tables[source.name].sequences)
        fits = ~(flags["elsewhere"] | flags["reversed"])
        tables[source.name] = select_features(tables[source.name], fits)
        print(f"{source.name}: {fits.sum()} of {len(fits)} ASVs are of the region", flush=True)
    for folder in ("asvs", "tree"):
        (output / folder).mkdir(parents=True, exist_ok=True)
    of_region = {sequence for table in tables.values() for sequence in table.sequences}
    write_biom(random_sets(of_region), output / "asvs" / "sets.biom")
    on_tree = set(prevalent([tables[source.name] for source in SOURCES if not source.has_tree]))
    tree = make_tree(sorted(on_tree), output)
    for source in SOURCES:
        table = tables[source.name]
        path = data / source.folder / "tree.nwk" if source.has_tree else tree
        tips = set(read_tree(path, midpoint=not source.has_tree).tips)
        kept = np.array([sequence in tips for sequence in table.sequences])
        write_biom(select_features(table, kept), output / "tree" / f"{source.name}.biom")


def _pretrain(output: Path, name: str, *options: str) -> None:
    """Run `aam pretrain`, which goes on where it was stopped."""
    words = ["pretrain", "--resume-from", "auto", *options]
    if status := main([*words, "--output-dir", str(output / name)]):
        raise SystemExit(status)


def train(data: Path, output: Path) -> None:
    """Pretrain on the tables of `prepare`: masked bases, then distances and counts from that
    encoder.
    """
    tables = [str(output / "tree" / f"{source.name}.biom") for source in SOURCES]
    trees = [
        str(data / source.folder / "tree.nwk" if source.has_tree else output / "tree.nwk")
        for source in SOURCES
    ]
    _pretrain(output, "bases", "--table", str(output / "asvs" / "sets.biom"), *SIZES, *BASES)
    start = output / "start"
    if not start.exists():
        save_model(start, on_tree(load_model(output / "bases" / "model", CPU), output / "tree.nwk"))
    files = ("--table", *tables, "--tree", *trees, "--midpoint-root")
    _pretrain(output, "distances", *files, "--pretrained-encoder", str(start), *DISTANCES)


def on_tree(saved: SavedModel, tree: Path) -> SavedModel:
    """An encoder whose network also reads samples on a tree of sequences, not trained to yet."""
    reference, trained = read_reference(tree), saved.require_network()
    heads = not_none(saved.heads)
    network = Aam(saved.model, saved.depth, heads, reference.width)
    network.load_state_dict(trained.state_dict(), strict=False)
    return replace(saved, reference=reference).with_network(network, heads)


def without_distances(saved: SavedModel) -> SavedModel:
    """An encoder without a UniFrac head: its distances are those of the reference tree."""
    if saved.reference is None:
        raise ValueError("the encoder has no reference tree")
    heads = replace(not_none(saved.heads), metric=None)
    network = Aam(saved.model, saved.depth, heads, saved.reference.width)
    weights = saved.require_network().state_dict()
    network.load_state_dict({n: w for n, w in weights.items() if not n.startswith("distance.")})
    return saved.with_network(network, heads)


def ship(output: Path, text: str, folder: Path) -> Path:
    """Write the trained encoder to `folder` with a model card: `text`, and what it has seen."""
    saved = without_distances(load_model(output / "distances" / "model", CPU))
    # Sets of ASVs are no samples.
    seen = tuple(name for name in saved.notes.seen_samples if not name.startswith(SET))
    saved = replace(saved, notes=replace(saved.notes, seen_samples=seen))
    weights = sum(tensor.numel() for tensor in saved.require_network().state_dict().values())
    shortest, *_, longest = saved.profile.length_quantiles
    facts = (
        f"Weights: {weights:,} numbers in half precision. Seen: {len(seen):,} samples, "
        f"{len(saved.profile.hashes):,} ASVs on trees, {shortest:.0f} to {longest:.0f} "
        f"nucleotides long; rarefied to {saved.depth} reads. Checksums are in manifest.json.\n"
    )
    ship_model(saved, folder, {"card.md": text.rstrip() + "\n\n" + facts})
    return folder


def run(data: Path, output: Path, card: Path | None = None, folder: Path = FOLDER) -> int:
    """Prepare and train, where that is not done yet; with a `card` write the encoder to
    `folder`.
    """
    if not (output / "tree" / f"{SOURCES[-1].name}.biom").is_file():
        prepare(data, output)
    train(data, output)
    if card is not None:
        print(ship(output, card.read_text(encoding="utf-8"), folder), flush=True)
    return FINISHED


if __name__ == "__main__":
    sys.exit(run(*map(Path, sys.argv[1:])))
