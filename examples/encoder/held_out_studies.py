"""An encoder on studies it has not seen: ``python -m examples.encoder.held_out_studies MODEL OUTPUT
SEEN STUDY ...``

SEEN is the folder of the training tables. Each STUDY is ``NAME=TABLE,TREE`` or
``NAME=TABLE,TREE,SEQUENCES``; a tree whose file is called ``unrooted...`` is rooted at its
midpoint. OUTPUT gets the results as text.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from aam.config import DataConfig
from aam.data.rarefaction import rarefied_table
from aam.data.splits import Split, Subset
from aam.data.study import Study, load_study
from aam.data.table import read_table
from aam.data.tokens import encode
from aam.device.options import RuntimeConfig
from aam.errors import FINISHED
from aam.files.atomic import write_text
from aam.predict.saved_model import SavedModel, load_models
from aam.report.encoder_quality import MAX_ASVS, base_table, evaluate_encoder
from aam.report.tables import Table

CPU = torch.device("cpu")


def read_study(files: Sequence[str], depth: int) -> Study:
    """Return a study of a table, a tree and, where its ids are not DNA, sequences; ASVs without a
    tip leave UniFrac.
    """
    table, tree, *sequences = map(Path, files)
    config = DataConfig(
        table=table,
        tree=tree,
        sequences=sequences[0] if sequences else None,
        rarefy_depth=depth,
        missing_tips="drop",
        midpoint_root=tree.name.startswith("unrooted"),
    )
    return load_study(config, None, 0)


def unseen_asvs(study: Study, seen: set[str]) -> torch.Tensor:
    """Return the tokens of the ASVs that the rarefied samples hold and that are not among
    `seen`.
    """
    columns = np.unique(rarefied_table(study).indices)
    return study.tokens[
        [column for column in columns.tolist() if study.table.sequences[column] not in seen]
    ]


def quality(saved: SavedModel, name: str, study: Study, seen: Sequence[str]) -> list[Table]:
    """Return the tables of one study: distances of its samples, masked bases of its ASVs that are
    not among `seen`.
    """
    ids = study.table.sample_ids
    tested: Subset = "test"
    split = Split(ids, tuple(tested for _ in ids), ("",) * len(ids))
    tables, _, _ = evaluate_encoder(saved, study, split, RuntimeConfig(), CPU)
    unseen, seen_tokens = unseen_asvs(study, set(seen)), torch.from_numpy(encode(seen))
    longest = max(unseen.shape[1], seen_tokens.shape[1])
    unseen, seen_tokens = (
        torch.nn.functional.pad(t, (0, longest - t.shape[1]))
        for t in (unseen[:MAX_ASVS], seen_tokens)
    )
    if len(unseen):
        tables.append(base_table(saved, unseen, seen_tokens, CPU))
    return [Table(f"{name}: {table.title}", table.header, table.rows) for table in tables]


def as_text(table: Table) -> str:
    """Return a table as tab-separated text below its title."""
    return "\n".join([f"# {table.title}", *("\t".join(row) for row in (table.header, *table.rows))])


def run(model: str, output: Path, seen: Path, studies: Sequence[str]) -> int:
    """Write the tables of all studies; `seen` is the folder of the training tables (``*.biom``)."""
    (saved,) = load_models([Path(model)], CPU)
    sequences = sorted(
        {
            sequence
            for path in sorted(seen.glob("*.biom"))
            for sequence in read_table(path).sequences
        }
    )
    texts: list[str] = []
    for word in studies:
        name, _, files = word.partition("=")
        texts += map(
            as_text, quality(saved, name, read_study(files.split(","), saved.depth), sequences)
        )
        write_text(output, "\n\n".join(texts) + "\n")
        print("\n".join(texts[-2:]), flush=True)
    return FINISHED


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]))
