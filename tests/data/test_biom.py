from __future__ import annotations

from pathlib import Path

import biom
import h5py
import numpy as np
import pytest
from scipy import sparse

from aam.data.biom import BiomWriter
from aam.errors import InputError

SAMPLES, FEATURES = 500, 90


@pytest.fixture(scope="module")
def counts() -> sparse.csr_matrix:
    rng = np.random.default_rng(0)
    dense = rng.poisson(30, (SAMPLES, FEATURES)) * (rng.random((SAMPLES, FEATURES)) < 0.6)
    dense[7] = 0
    dense[:, 5] = 0
    return sparse.csr_matrix(dense)


def write(path: Path, counts: sparse.csr_matrix, step: int = SAMPLES, **options: int) -> Path:
    with BiomWriter(path, [f"f{column}" for column in range(counts.shape[1])], **options) as writer:
        for start in range(0, counts.shape[0], step):
            part = counts[start : start + step]
            writer.append(part, [f"s{start + row}" for row in range(part.shape[0])])
    return path


@pytest.mark.parametrize("axis", ["observation", "sample"])
@pytest.mark.parametrize(("step", "entries"), [(SAMPLES, 1 << 22), (7, 1), (101, 5_000)])
def test_biom_reads_what_was_appended(tmp_path, counts, step, entries, axis):
    path = write(tmp_path / "table.biom", counts, step, entries_in_memory=entries)
    with h5py.File(path) as file:
        table = biom.Table.from_hdf5(file, axis=axis)
    assert list(table.ids()) == [f"s{row}" for row in range(SAMPLES)]
    assert list(table.ids("observation")) == [f"f{column}" for column in range(FEATURES)]
    assert (counts != table.matrix_data.T).nnz == 0
    assert table.nnz == counts.nnz


def test_the_layout_is_that_of_biom_itself(tmp_path, counts):
    ours, theirs = write(tmp_path / "ours.biom", counts), tmp_path / "theirs.biom"
    table = biom.load_table(str(ours))
    with h5py.File(theirs, "w") as file:
        table.to_hdf5(file, "biom")

    def layout(path: Path) -> dict[str, object]:
        with h5py.File(path) as file:
            found: dict[str, object] = {name: type(value) for name, value in file.attrs.items()}
            for axis in ("observation", "sample"):
                for name in ("ids", "matrix/data", "matrix/indices", "matrix/indptr"):
                    place = f"{axis}/{name}"
                    values = file[place][:]
                    found[place] = (file[place].dtype, file[place].compression, values.tolist())
                found[axis] = sorted(file[axis])
        return found

    assert layout(ours) == layout(theirs)


def test_bytes_depend_on_neither_the_cuts_nor_the_clock(tmp_path, counts):
    whole = write(tmp_path / "whole.biom", counts)
    assert write(tmp_path / "cut.biom", counts, 13, entries_in_memory=777).read_bytes() == whole.read_bytes()
    times: list[int] = []
    with h5py.File(whole) as file:
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
    writer = BiomWriter(tmp_path / "table.biom", ["a", "b"])
    writer.append(sparse.csr_matrix(np.eye(2)), ["s", "s"])
    with pytest.raises(InputError, match=r"table.biom: sample ids found more than once: 's'"):
        writer.close()


def test_counts_fit_the_ids(tmp_path):
    with (
        pytest.raises(InputError, match="expected 1 samples x 2 features"),
        BiomWriter(tmp_path / "table.biom", ["a", "b"]) as writer,
    ):
        writer.append(sparse.csr_matrix(np.eye(2)), ["s"])
