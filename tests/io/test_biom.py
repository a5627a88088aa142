"""BIOM files: damaged and hostile ones are refused with the place of the fault; written ones have
equal bytes.
"""

from __future__ import annotations

import json

import biom
import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy import sparse

import aam
from aam.io.tables import CREATED, write_hdf5
from tests.data.small_tables import biom_table, read_or_refused, refused, save_hdf5

GOOD_JSON = {
    "id": None,
    "format": "Biological Observation Matrix 1.0.0",
    "format_url": "http://biom-format.org",
    "type": "OTU table",
    "generated_by": "test",
    "date": "2024-01-01T00:00:00",
    "matrix_element_type": "int",
    "matrix_type": "sparse",
    "shape": [2, 2],
    "rows": [{"id": "A", "metadata": None}, {"id": "C", "metadata": None}],
    "columns": [{"id": "s1", "metadata": None}, {"id": "s2", "metadata": None}],
    "data": [[0, 0, 1], [1, 1, 2]],
}


@pytest.mark.parametrize("before", ["", "\ufeff", " \n"])
def test_json_is_refused_with_what_converts_it(tmp_path, before):
    path = tmp_path / "t.biom"
    path.write_text(before + json.dumps(GOOD_JSON))
    assert "is BIOM 1.0 (JSON); `biom convert -i FILE -o table.biom --to-hdf5`" in refused(path)


def replaced(name, **options):
    def change(file):
        del file[name]
        file.create_dataset(name, **options)

    return change


def assigned(name, place, value):
    def change(file):
        file[name][place] = value

    return change


def deleted(name):
    return lambda file: file.__delitem__(name)


DATA, INDICES, INDPTR = (f"sample/matrix/{name}" for name in ("data", "indices", "indptr"))
IDS = "sample/ids"
# What a file claims to hold and does not.
HUGE, HUGE_IDS = ({"shape": (10**9,), "dtype": dtype, "chunks": (1000,)} for dtype in ("f8", "S9"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (assigned(DATA, 1, 0.5), "0.5 at sample 's10', feature 'ACGAACGA"),
        (assigned(INDICES, 1, 5), "sample/matrix is damaged"),
        (assigned(INDICES, 1, -1), "sample/matrix is damaged"),
        (assigned(INDICES, 1, 1), "has two counts"),
        (assigned(INDPTR, 1, 6), "sample/matrix is damaged"),
        (assigned(INDPTR, 3, 6), "does not end at 7"),
        (assigned(INDPTR, 0, 1), "sample/matrix is damaged"),
        (replaced(INDPTR, data=[0, 7]), "sample/matrix is damaged"),
        (replaced(INDPTR, data=np.array([0, 2**63, 3, 7], np.uint64)), "sample/matrix is damaged"),
        (replaced(DATA, data=[1.0]), "does not end at 1"),
        (replaced(DATA, data=[[1.0]]), "expected a list"),
        (replaced(DATA, data=["a"] * 7), "expected a list"),
        (replaced(INDICES, data=[0.0] * 7), "expected a list"),
        (replaced(DATA, **HUGE), "claims 8000000000 bytes and stores 0"),
        (replaced(DATA, shape=(2**40,), dtype="u1", chunks=(1000,)), "expected at most"),
        (replaced(IDS, **HUGE_IDS), "claims 9000000000 bytes"),
        (replaced(IDS, data=[1, 2, 3]), "sample/ids is"),
        (replaced(IDS, data=[b"a", b"\xe9", b"c"]), "not a readable HDF5 file ('utf-8' codec"),
        (replaced(IDS, data=[b"a", b"", b"c"]), "1 sample ids are empty, the first is sample 2"),
        (replaced(IDS, data=[b"a", b"c"]), "attribute 'shape' is [5, 3], expected [5, 2]"),
        (deleted("sample"), "no dataset 'sample/ids'"),
        (deleted(DATA), "`biom convert --to-hdf5` writes: no dataset 'sample/matrix/data'"),
        (lambda file: file.attrs.__setitem__("format-version", (3, 0)), "format-version is [3, 0]"),
        (lambda file: file.attrs.__delitem__("shape"), "'shape' is []"),
    ],
)
def test_bad_hdf5(tmp_path, change, expected):
    path = save_hdf5(biom_table(), tmp_path / "t.biom")
    with h5py.File(path, "r+") as file:
        change(file)
    assert expected in refused(path)


def test_damaged_hdf5_is_an_input_error(tmp_path):
    blob = save_hdf5(biom_table(), tmp_path / "t.biom").read_bytes()
    path = tmp_path / "damaged.biom"
    for length in (9, 100, len(blob) // 2, len(blob) - 100):
        path.write_bytes(blob[:length])
        assert "HDF5" in refused(path)


def test_an_empty_biom_table(tmp_path):
    message = refused(save_hdf5(biom.Table(np.zeros((0, 0)), [], []), tmp_path / "t.biom"))
    assert "it has no samples" in message
    assert "it has no features" in message


words = st.sampled_from(["A", "C", "", "sparse"])
atoms = st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | words
lists = st.recursive(atoms, lambda inner: st.lists(inner, max_size=3), max_leaves=8)
id_of = st.sampled_from(["A", "C", "\ud800", "", 1])
axes = st.lists(st.fixed_dictionaries({"id": id_of, "metadata": st.none()}) | lists, max_size=2)
places = st.integers(-1, 2)
triples = st.lists(st.tuples(places, places, st.integers(-1, 3) | st.floats()), max_size=3)
fields = {"matrix_type": st.sampled_from(["sparse", "dense"]), "rows": axes, "columns": axes}
fields |= {"shape": st.lists(st.integers(0, 2), min_size=2, max_size=2)}
fields |= {"data": triples | st.lists(st.lists(st.integers(0, 3), max_size=2))}
json_tables = st.fixed_dictionaries({name: value | lists for name, value in fields.items()})


@hypothesis_settings(max_examples=300)
@given(document=json_tables, cut=st.integers(0, 3), need_sequences=st.booleans())
def test_any_json_is_read_or_refused(tmp_path_factory, document, cut, need_sequences):
    text = json.dumps(GOOD_JSON | document)
    path = tmp_path_factory.getbasetemp() / "any.json"
    result = read_or_refused(path, text[: len(text) - cut].encode(), need_sequences)
    assert result in ("read", "refused")


# --- writing -----------------------------------------------------------------------------------


def test_the_bytes_are_those_of_biom_format_on_every_day(tmp_path):
    rng = np.random.default_rng(0)
    counts = rng.poisson(30, (500, 90)) * (rng.random((500, 90)) < 0.6)
    counts[7], counts[:, 5] = 0, 0
    samples, features = [f"s{i}" for i in range(500)], [f"f{i}" for i in range(90)]
    table = biom_table(counts, samples, features)
    with (tmp_path / "biom").open("w+b") as target, h5py.File(target, "w") as file:
        table.to_hdf5(file, f"aam {aam.__version__}", creation_date=CREATED)
    path = tmp_path / "table.biom"
    write_hdf5(path, sparse.csr_matrix(counts), samples, features)
    assert path.read_bytes() == (tmp_path / "biom").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["biom", "table.biom"]
