"""A table of three samples, written as BIOM, read as dense counts, or refused."""

from __future__ import annotations

from pathlib import Path

import biom
import h5py
import numpy as np

from aam.data.table import read_table
from aam.errors import InputError
from aam.io.tables import AmpliconTable
from tests.refusals import refusal

SEQUENCES = [bases * 8 for bases in ("GGTA", "ACGT", "TTTT", "ACGA", "CCCC")]
SAMPLES = ["s10", "007", "s1"]
COUNTS = np.array([[0, 3, 0, 70000, 1], [5, 0, 0, 0, 2], [1, 1, 0, 0, 0]])
ORDER = np.argsort(SEQUENCES)


def biom_table(counts=COUNTS, samples=SAMPLES, features=SEQUENCES) -> biom.Table:
    return biom.Table(np.asarray(counts, float).T, list(features), list(samples), type="OTU table")


def save_hdf5(table: biom.Table, path: Path) -> Path:
    with h5py.File(path, "w") as file:
        table.to_hdf5(file, "test")
    return path


def dense(table: AmpliconTable) -> np.ndarray:
    return table.counts.toarray().astype(np.int64)


def refused(path: Path, **options) -> str:
    message = refusal(read_table, path, **options)
    assert str(path) in message or "sequences" in options
    return message


def read_or_refused(path: Path, blob: bytes, need_sequences: bool) -> str:
    """ "read" for a sound table, "refused" with a message that names the file, else what is
    wrong.
    """
    path.write_bytes(blob)
    try:
        table = read_table(path, need_sequences=need_sequences)
    except InputError as error:
        return "refused" if str(path) in str(error) else f"refused without its name: {error}"
    sound = table.counts.shape == table.shape and table.counts.nnz > 0
    return "read" if sound else f"read as {table}"
