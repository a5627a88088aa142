"""`aam unifrac`: samples without reads on the tree are named, and kept."""

from __future__ import annotations

import logging

import numpy as np
from scipy.sparse import csr_array

import aam
from aam.data.table import make_table, write_biom
from aam.io.matrices import read_distances

COUNTS = np.array([[4, 3, 0], [0, 0, 9], [1, 0, 0], [0, 0, 0], [0, 5, 0]], np.uint32)


def test_empty_samples_are_named(tmp_path, caplog):
    """Issue 15, point 15: 0 between two empty samples, without a word."""
    # Feature x has no tip, so that samples b and d have no reads on the tree.
    write_biom(make_table(csr_array(COUNTS), "abcde", ["f", "g", "x"]), tmp_path / "table.biom")
    (tmp_path / "tree.nwk").write_text("(f:1,g:2);")
    files = {"table": tmp_path / "table.biom", "tree": tmp_path / "tree.nwk"}
    with caplog.at_level(logging.WARNING, "aam"):
        aam.run("unifrac", **files, output=tmp_path / "d.h5", missing_tips="drop")
    assert (
        "2 of 5 samples have no reads on the tree, so their distances mean nothing (0 to each "
        "other): 'b', 'd'"
    ) in caplog.text
    assert read_distances(tmp_path / "d.h5").values[1, 3] == 0
