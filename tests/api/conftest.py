"""A small study in memory, and options of a small network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import biom
import pandas as pd
import pytest

SMALL = {
    "rarefy_depth": 300, "embedding_dim": 16, "attention_layers": 1, "attention_heads": 2, "batch_size": 32,
    "threads": 1, "epochs": 1, "device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="session")
def study_folder(simulate_study) -> Path:
    return simulate_study()


@pytest.fixture(scope="session")
def metadata(study_folder: Path) -> pd.DataFrame:
    return pd.read_csv(study_folder / "metadata.tsv", sep="\t", index_col=0)


@pytest.fixture(scope="session")
def biom_table(study_folder: Path) -> biom.Table:
    return biom.load_table(str(study_folder / "table.biom"))


@pytest.fixture(scope="session")
def small() -> dict[str, Any]:
    return dict(SMALL)


@pytest.fixture(scope="session")
def frame(biom_table: biom.Table) -> pd.DataFrame:
    counts = biom_table.matrix_data.T.toarray().astype(int)
    return pd.DataFrame(counts, biom_table.ids(), biom_table.ids(axis="observation"))
