"""The model reads the DNA: where held-out samples hold relatives of the training ASVs, permuted
sequences cost R2.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aam.cli import main
from aam.data.simulate import simulate
from aam.data.table import make_table, read_table, write_biom

pytestmark = pytest.mark.slow


def held_out_r2(table: Path, metadata: Path, folder: Path) -> float:
    words = (
        f"train --table {table} --metadata {metadata} --metadata-column ph --output-dir "
        f"{folder} --rarefy-depth 1000"
    )
    words += (
        " --members deep --cv fold --group-column subject --epochs 1 --patience 1 --threads "
        "1 --attention-layers 1"
    )
    assert main(words.split()) == 0
    return json.loads((folder / "metrics.json").read_text())["targets"]["ph"]["metrics"]["r2"][
        "value"
    ]


def test_permuted_sequences_cost_what_relatives_would_tell(tmp_path: Path):
    study = tmp_path / "study"
    simulate(study, samples=150, asvs=600, length=100, depth=3000, turnover=1)
    table = read_table(study / "table.biom")
    sequences = np.random.default_rng(0).permutation(np.array(table.sequences)).tolist()
    write_biom(
        make_table(table.counts, table.sample_ids, sequences, sequences), tmp_path / "permuted.biom"
    )
    seen = [set(sample.indices) for sample in table.counts]
    folds = dict(
        line.split("\t")[:1] + line.split("\t")[-1:]
        for line in (study / "metadata.tsv").read_text().splitlines()
    )
    test = [row for row, name in enumerate(table.sample_ids) if folds[name] == "0"]
    train = set().union(*(seen[row] for row in range(len(seen)) if row not in test))
    unseen = np.mean([len(seen[row] - train) / len(seen[row]) for row in test])
    assert unseen > 0.5, "the ASVs of held-out samples are mostly new"
    real = held_out_r2(study / "table.biom", study / "metadata.tsv", tmp_path / "real")
    permuted = held_out_r2(
        tmp_path / "permuted.biom", study / "metadata.tsv", tmp_path / "permuted"
    )
    assert real > 0.1
    assert permuted < real - 0.2, (real, permuted)
