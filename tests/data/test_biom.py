from __future__ import annotations

from pathlib import Path

import biom
import h5py
import numpy as np
import pytest
from scipy import sparse

from aam.data.biom import write_hdf5
from aam.errors import InputError

SAMPLES, FEATURES = 500, 90


@pytest.fixture(scope="module")
def counts() -> sparse.csr_matrix:
    rng = np.random.default_rng(0)
    dense = rng.poisson(30, (SAMPLES, FEATURES)) * (rng.random((SAMPLES, FEATURES)) < 0.6)
    dense[7] = 0
    dense[:, 5] = 0
    return sparse.csr_matrix(dense)


def write(path: Path, counts: sparse.csr_matrix) -> Path:
    samples, features = (
        [f"{kind}{number}" for number in range(size)] for size, kind in zip(counts.shape, "sf", strict=True)
    )
    write_hdf5(path, counts, samples, features)
    return path


@pytest.mark.parametrize("axis", ["observation", "sample"])
def test_biom_reads_what_was_written(tmp_path, counts, axis):
    path = write(tmp_path / "table.biom", counts)
    with h5py.File(path) as file:
        table = biom.Table.from_hdf5(file, axis=axis)
    assert list(table.ids()) == [f"s{row}" for row in range(SAMPLES)]
    assert list(table.ids("observation")) == [f"f{column}" for column in range(FEATURES)]
    assert (counts != table.matrix_data.T).nnz == 0


def test_bytes_do_not_depend_on_the_clock(tmp_path, counts):
    path = write(tmp_path / "table.biom", counts)
    assert write(tmp_path / "again.biom", counts).read_bytes() == path.read_bytes()
    times: list[int] = []
    with h5py.File(path) as file:
        file.visit(lambda name: times.append(h5py.h5g.get_objinfo(file.id, name.encode()).mtime))
        assert file.attrs["creation-date"] == "1970-01-01T00:00:00"
    assert set(times) == {0}


def test_stored_zeros_and_duplicates_are_merged_without_changing_the_argument(tmp_path):
    counts = sparse.csr_matrix((np.array([1, 0, 2, 5]), np.array([2, 0, 2, 1]), np.array([0, 3, 4])), shape=(2, 3))
    path = write(tmp_path / "table.biom", counts)
    assert counts.nnz == 4
    table = biom.load_table(str(path))
    assert table.nnz == 2
    assert table.matrix_data.toarray().T.tolist() == [[0, 0, 3], [0, 5, 0]]


def test_a_table_may_be_empty(tmp_path):
    table = biom.load_table(str(write(tmp_path / "table.biom", sparse.csr_matrix((0, 3)))))
    assert table.shape == (3, 0)


def test_ids_occur_once(tmp_path):
    with pytest.raises(InputError, match=r"table.biom: Duplicate"):
        write_hdf5(tmp_path / "table.biom", sparse.csr_matrix(np.eye(2)), ["s", "s"], ["a", "b"])
