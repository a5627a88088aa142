"""Tests of the plugin run where it is installed: its entry points must be found."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not entry_points(group="aam.encoders", name="16s-v4"):
    collect_ignore_glob = ["test_*.py"]


# A release has this folder as a file of its own.
ANY_REGION = Path(__file__).parents[1] / "16s"


@pytest.fixture(scope="session")
def bench_data() -> Path:
    """Folder of the real studies, one folder each."""
    named = os.environ.get("AAM_BENCH_DATA")
    if not named:
        pytest.skip("AAM_BENCH_DATA is unset: it names the folder that holds the real studies")
    return Path(named)


@pytest.fixture(scope="session")
def tree() -> Any:
    """The reference tree of any region."""
    from aam_16s.reference import tree_of_model

    return tree_of_model(ANY_REGION)


@pytest.fixture(scope="session")
def v4_tree() -> Any:
    """The reference tree of 16s-v4."""
    from aam_16s.encoders import V4
    from aam_16s.reference import tree_of_model

    return tree_of_model(V4.folder)


@pytest.fixture(scope="session")
def placing() -> Any:
    """The model of any region, loaded once."""
    import aam

    return aam.load(ANY_REGION)


@pytest.fixture(scope="session")
def letters() -> Callable[[Any], list[str]]:
    """Makes sequences of tokens."""
    return lambda tokens: ["".join(".ACGT"[token] for token in row).strip(".") for row in tokens]


@pytest.fixture
def table_of(tmp_path: Path) -> Callable[..., Path]:
    """Writes a table of reads; every third of its samples has the same composition."""

    def write(reads: list[str], name: str = "table", samples: int = 6) -> Path:
        shown = "\t".join(f"s{sample}" for sample in range(samples))
        counts = ("300", "900", "901")
        rows = [
            "\t".join([read, *(counts[(at + sample) % 3] for sample in range(samples))])
            for at, read in enumerate(reads)
        ]
        path = tmp_path / f"{name}.tsv"
        path.write_text("\n".join([f"#OTU ID\t{shown}", *rows]) + "\n")
        return path

    return write


@pytest.fixture(scope="session")
def samples_of() -> Callable[..., Any]:
    """Makes a table of samples with neighbouring reads, 4,000 to 9,000 reads each."""
    import pandas as pd

    def make(reads: list[str], samples: int = 12) -> pd.DataFrame:
        rng = np.random.default_rng(0)
        centre = np.linspace(0, len(reads), samples)[:, None]
        counts = rng.poisson(400 * np.exp(-(((np.arange(len(reads)) - centre) / 12) ** 2)))
        return pd.DataFrame(counts, [f"s{row}" for row in range(samples)], reads)

    return make
