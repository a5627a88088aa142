from __future__ import annotations

from pathlib import Path

import biom
import h5py
import numpy as np
import pytest
from scipy import sparse

import aam
from aam.errors import InputError
from aam.io.biom import CREATED, write_hdf5

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
    write_hdf5(path, [counts], samples, features)
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
        write_hdf5(tmp_path / "table.biom", [sparse.csr_matrix(np.eye(2))], ["s", "s"], ["a", "b"])


def test_the_bytes_are_those_of_biom_format(tmp_path, counts):
    samples, features = (
        [f"{kind}{number}" for number in range(size)] for size, kind in zip(counts.shape, "sf", strict=True)
    )
    table = biom.Table(sparse.csc_matrix(counts).T, features, samples, type="OTU table")
    with (tmp_path / "biom").open("w+b") as target, h5py.File(target, "w") as file:
        table.to_hdf5(file, f"aam {aam.__version__}", creation_date=CREATED)
    assert write(tmp_path / "table.biom", counts).read_bytes() == (tmp_path / "biom").read_bytes()


def test_parts_change_no_byte_and_leave_nothing_behind(tmp_path, counts):
    expected = write(tmp_path / "whole", counts).read_bytes()
    parts = [counts[start : start + 37] for start in range(0, SAMPLES, 37)]
    names = ([f"s{row}" for row in range(SAMPLES)], [f"f{column}" for column in range(FEATURES)])
    write_hdf5(tmp_path / "parts", parts, *names)
    assert (tmp_path / "parts").read_bytes() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "whole"]
