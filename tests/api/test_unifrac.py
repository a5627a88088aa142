"""`aam unifrac`: samples without reads on the tree are named, and kept, written as NaN or left
out.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from aam.api.unifrac import write_unifrac
from aam.config import UnifracConfig
from aam.data.table import make_table, write_biom
from aam.io.matrices import read_distances

COUNTS = np.array([[4, 3, 0], [0, 0, 9], [1, 0, 0], [0, 0, 0], [0, 5, 0]], np.uint32)


@pytest.fixture
def config(tmp_path) -> UnifracConfig:
    """Feature x has no tip, so that samples b and d have no reads on the tree."""
    write_biom(make_table(csr_array(COUNTS), "abcde", ["f", "g", "x"]), tmp_path / "table.biom")
    (tmp_path / "tree.nwk").write_text("(f:1,g:2);")
    return UnifracConfig(
        table=tmp_path / "table.biom",
        tree=tmp_path / "tree.nwk",
        output=tmp_path / "d.h5",
        missing_tips="drop",
    )


def run(config: UnifracConfig, **options) -> Path:
    config = replace(config, **options)
    write_unifrac(config)
    return config.output


def test_empty_samples_are_named(config, caplog):
    """Issue 15, point 15: 0 between two empty samples, without a word."""
    with caplog.at_level(logging.WARNING, "aam"):
        values = read_distances(run(config)).values
    assert (
        "2 of 5 samples have no reads on the tree, so their distances mean nothing (0 to each "
        "other): 'b', 'd'"
    ) in caplog.text
    assert values[1, 3] == 0
