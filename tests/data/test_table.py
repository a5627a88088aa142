from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path

import biom
import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.stats import hypergeom

from aam.data.artifact import write_artifact
from aam.data.rarefaction import choose_depth, rarefied_row, rarefy
from aam.data.table import SampleTable, check_length, make_table, read_table, select_samples, trim, write_biom
from aam.errors import InputError
from aam.runtime.rng import generator

SEQUENCES = ["GGTA", "ACGT", "TTTT", "ACGA", "CCCC"]
SAMPLES = ["s10", "007", "s1"]
COUNTS = np.array([[0, 3, 0, 70000, 1], [5, 0, 0, 0, 2], [1, 1, 0, 0, 0]])
ORDER = np.argsort(SEQUENCES)


def biom_table(counts=COUNTS, samples=SAMPLES, features=SEQUENCES) -> biom.Table:
    return biom.Table(np.asarray(counts, float).T, list(features), list(samples), type="OTU table")


def save_hdf5(table: biom.Table, path: Path) -> Path:
    with h5py.File(path, "w") as file:
        table.to_hdf5(file, "test")
    return path


def save_dense_json(table: biom.Table, path: Path) -> Path:
    document = json.loads(table.to_json("test")) | {"matrix_type": "dense"}
    document["data"] = table.matrix_data.toarray().tolist()
    path.write_text(json.dumps(document))
    return path


def save_json(table: biom.Table, path: Path) -> Path:
    path.write_text(table.to_json("test"))
    return path


def save_tsv(table: biom.Table, path: Path) -> Path:
    path.write_text(table.to_tsv() + "\n")
    return path


def save_tsv_with_taxonomy(table: biom.Table, path: Path) -> Path:
    lines = table.to_tsv().split("\n")
    lines = [lines[0], f"{lines[1]}\ttaxonomy", *(f"{line}\tk__Bacteria; p__é" for line in lines[2:])]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def save_qza(table: biom.Table, path: Path) -> Path:
    blob = save_hdf5(table, path.with_suffix(".inner")).read_bytes()
    write_artifact(path, "FeatureTable[Frequency]", "BIOMV210DirFmt", {"feature-table.biom": blob})
    return path


def save_old_qza(table: biom.Table, path: Path) -> Path:
    blob = table.to_json("test").encode()
    write_artifact(path, "FeatureTable[Frequency]", "BIOMV100DirFmt", {"feature-table.biom": blob})
    return path


WRITERS = [save_hdf5, save_json, save_dense_json, save_tsv, save_tsv_with_taxonomy, save_qza, save_old_qza]


def dense(table: SampleTable) -> np.ndarray:
    return table.counts.toarray().astype(np.int64)


def refused(path: Path, **options) -> str:
    with pytest.raises(InputError) as caught:
        read_table(path, **options)
    assert str(path) in str(caught.value) or "sequences" in options
    return str(caught.value)


# --- reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", WRITERS)
def test_every_format_gives_the_same_table(tmp_path, save):
    # The name tells nothing: formats are told by their content.
    table = read_table(save(biom_table(), tmp_path / "table.txt"))
    assert table.sequences == tuple(sorted(SEQUENCES)) == table.feature_ids
    assert table.sample_ids == tuple(SAMPLES)
    assert table.counts.dtype == np.uint32
    np.testing.assert_array_equal(dense(table), COUNTS[:, ORDER])
    np.testing.assert_array_equal(table.depths, COUNTS.sum(axis=1))
    assert table.depths.dtype == np.int64
    columns, values = table.row(1)
    assert dict(zip(columns.tolist(), values.tolist(), strict=True)) == {2: 2, 3: 5}


@pytest.mark.parametrize("save", WRITERS)
def test_the_order_of_columns_in_the_file_changes_nothing(tmp_path, save):
    shuffle = np.random.default_rng(1).permutation(5)
    shuffled = biom_table(COUNTS[:, shuffle], features=[SEQUENCES[i] for i in shuffle])
    first = read_table(save(biom_table(), tmp_path / "a"))
    second = read_table(save(shuffled, tmp_path / "b"))
    np.testing.assert_array_equal(first.counts.data, second.counts.data)
    np.testing.assert_array_equal(first.counts.indices, second.counts.indices)
    assert first.sequences == second.sequences
    for row, depth in ((0, 1000), (1, 3)):
        for one, other in zip(
            rarefied_row(first, row, depth, 7, 2), rarefied_row(second, row, depth, 7, 2), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_counts_take_the_narrowest_type(tmp_path):
    for largest, dtype in ((255, np.uint8), (256, np.uint16), (65536, np.uint32), (2**32 - 1, np.uint32)):
        table = read_table(save_hdf5(biom_table([[largest, 1]], ["s"], ["A", "C"]), tmp_path / str(largest)))
        assert table.counts.dtype == dtype
        assert table.depths.tolist() == [largest + 1]


def test_a_table_without_sequences_is_sorted_by_id(tmp_path):
    path = save_hdf5(biom_table(features=["t9", "t10", "007", "7", "x y"]), tmp_path / "t")
    table = read_table(path, need_sequences=False)
    assert table.feature_ids == ("007", "7", "t10", "t9", "x y")
    assert table.sequences == ()
    np.testing.assert_array_equal(dense(table), COUNTS[:, [2, 3, 1, 0, 4]])


def test_sequences_become_upper_case_dna(tmp_path):
    path = save_hdf5(biom_table(features=["acgu", "RYSWKMBDHV", "N", "gg", "UU"]), tmp_path / "t")
    table = read_table(path)
    assert table.sequences == ("ACGT", "GG", "N", "NNNNNNNNNN", "TT")
    assert table.feature_ids == ("acgu", "gg", "N", "RYSWKMBDHV", "UU")


def test_identical_sequences_are_merged(tmp_path, caplog):
    counts = [[200, 0, 100, 7, 0], [0, 1, 2, 0, 4]]
    path = save_hdf5(biom_table(counts, ["a", "b"], ["ACGT", "CC", "ACGU", "GG", "acgt"]), tmp_path / "t")
    with caplog.at_level(logging.INFO, logger="aam"):
        table = read_table(path)
    assert table.sequences == ("ACGT", "CC", "GG")
    assert table.feature_ids == ("ACGT", "CC", "GG")
    assert dense(table).tolist() == [[300, 0, 7], [6, 1, 0]]
    assert table.counts.dtype == np.uint16
    assert "merged 2 ASVs" in caplog.text
    too_many = save_hdf5(biom_table([[2**32 - 1, 1]], ["s"], ["ACGT", "ACGU"]), tmp_path / "u")
    assert f"have {2**32} reads" in refused(too_many)


@pytest.mark.parametrize("kind", ["plain", "gzip", "qza"])
def test_sequences_from_a_file(tmp_path, kind):
    ids = ["f1", "f2", "f3", "f4", "f5"]
    path = save_hdf5(biom_table(features=ids), tmp_path / "t")
    records = [f">{name} some text\n{s[:2]}\n{s[2:].lower()}\n" for name, s in zip(ids, SEQUENCES, strict=True)]
    text = "".join([*records[::-1], ">unused\nACXX--\n"]).encode()
    fasta = tmp_path / "rep-seqs"
    if kind == "qza":
        write_artifact(fasta, "FeatureData[Sequence]", "DNASequencesDirectoryFormat", {"dna-sequences.fasta": text})
    else:
        fasta.write_bytes(gzip.compress(text, mtime=0) if kind == "gzip" else text)
    table = read_table(path, sequences=fasta)
    assert table.sequences == tuple(sorted(SEQUENCES))
    assert table.feature_ids == tuple(ids[i] for i in ORDER)
    np.testing.assert_array_equal(dense(table), COUNTS[:, ORDER])


@pytest.mark.parametrize(
    ("fasta", "expected"),
    [
        (">f1\nACGT\n>f2\nAC-T\n>f3\nACXT\n", ["line 3: 'f2' holds '-'", "not aligned", "line 5: 'f3' holds 'X'"]),
        (">f1\nAC\n>f1\nAC\n", ["line 3: the id 'f1' occurs a second time"]),
        (">f1\n>f2\nA\n", ["line 1: 'f1' has no sequence"]),
        (">f1\nACGT\n", ["no sequence for 2 of the 3 features", "'f2', 'f3'", "--sequences"]),
        ("ACGT\n", ["line 1 is 'ACGT'", "FASTA"]),
        (">f1\nAC\n".encode("utf-16"), ["UTF-16"]),
        (b"\x1f\x8b\x08junk", ["damaged gzip"]),
        (gzip.compress(b">f1\n" + b"A" * 90_000_000, 9, mtime=0), ["unpacks to more than"]),
    ],
)
def test_bad_fasta(tmp_path, fasta, expected):
    path = save_hdf5(biom_table([[1, 2, 3]], ["s"], ["f1", "f2", "f3"]), tmp_path / "t")
    fasta_path = tmp_path / "x.fasta"
    fasta_path.write_bytes(fasta if isinstance(fasta, bytes) else fasta.encode())
    message = refused(path, sequences=fasta_path)
    assert str(fasta_path) in message
    for part in expected:
        assert part in message


def test_ids_that_are_not_dna_say_how_to_pass_sequences(tmp_path):
    message = refused(save_hdf5(biom_table(features=["ACGT", "ac-gt", "b5eeb3", "GG", "Zea"]), tmp_path / "t"))
    assert "3 of 5 feature ids are not DNA: 'ac-gt', 'b5eeb3', 'Zea'" in message
    assert "--sequences rep-seqs.fasta|.qza" in message


# --- bad tables --------------------------------------------------------------------------------------------


TSV = "# Constructed from biom file\n#OTU ID\ts1\ts2\nACGT\t1\t2\nGG\t3\t{}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TSV.format("0.5"), ["0.5 at line 4, sample 's2' is fractional", "normalised"]),
        (TSV.format("-1"), ["-1 at line 4, sample 's2' is negative"]),
        (TSV.format("nan"), ["nan at line 4, sample 's2' is not a finite number"]),
        (TSV.format("inf"), ["inf at line 4, sample 's2' is not a finite number"]),
        (TSV.format("4294967296"), ["sample 's2' is above 4294967295"]),
        (TSV.format("x") + "TT\t\t1\n", ["line 4: sample 's2' has 'x'", "line 5: sample 's1' has ''"]),
        (TSV.format("1_0"), ["line 4: sample 's2' has '1_0'"]),
        (TSV.format("1\t2"), ["line 4 has 4 columns, expected 3"]),
        (TSV.format("1") + "\nTT\t1\t1\n", ["line 5 has 1 columns, expected 3"]),
        (TSV.format("1").replace("GG", "ACGT"), ["1 feature ids occur more than once: 'ACGT'"]),
        (TSV.format("1").replace("GG", ""), ["1 feature ids are empty, the first is feature 2"]),
        (TSV.format("1").replace("s2", "s1"), ["1 sample ids occur more than once: 's1'"]),
        (TSV.format("1").replace("s2", " "), ["1 sample ids are empty, the first is sample 2"]),
        (TSV.format("1").replace("s2", "s\x07"), ["cannot be printed"]),
        (TSV.format("1").replace("s2", "s\x00"), ["line 2: byte 0x00", "UTF-8"]),
        (TSV.format("1").encode("utf-16"), ["UTF-16"]),
        (TSV.format("1").replace("s2", "café").encode("latin-1"), ["line 2: byte 0xe9", "not UTF-8", "iconv"]),
        ("#OTU ID\ts1\n", ["the table is empty, it has no features"]),
        ("#OTU ID\nACGT\n", ["the table is empty, it has no samples"]),
        ("#OTU ID\ts1\nACGT\t0\n", ["the table is empty, all counts are 0"]),
        ("", ["the file is empty"]),
        ("\n \n", ["the file is empty"]),
        ("sample\tACGT\ns1\t1\n", ["line 1 begins with 'sample'", "#OTU ID", "features in rows"]),
        (gzip.compress(b"x", mtime=0), ["gunzip"]),
    ],
)
def test_bad_tsv(tmp_path, text, expected):
    path = tmp_path / "t.tsv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refused(path)
    for part in expected:
        assert part in message


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path, end, mark):
    (tmp_path / "t").write_bytes(mark + b"#OTU ID\tx\ty\nf1\t1\t0\nf2\t0\t7\n".replace(b"\n", end.encode()))
    (tmp_path / "f").write_bytes(mark + b">f1\nAC\nGT\n>f2 x\nTT\n".replace(b"\n", end.encode()))
    table = read_table(tmp_path / "t", tmp_path / "f")
    assert table.sample_ids == ("x", "y")
    assert table.sequences == ("ACGT", "TT")
    assert dense(table).tolist() == [[1, 0], [0, 7]]


def test_whole_numbers_with_a_point_and_samples_without_reads_are_fine(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("#OTU ID\ts1\ts2\ts3\nACGT\t1.0\t0\t2e3\nGG\t0\t0.0\t 5\n")
    assert dense(read_table(path)).tolist() == [[1, 0], [0, 0], [2000, 5]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"shape": [3, 3]}, "'shape' is [3, 3], expected [2, 2]"),
        ({"shape": [10**12, 10**12]}, "'shape' is"),
        ({"matrix_type": "odd"}, "'matrix_type' is 'odd'"),
        ({"matrix_type": ["dense"] * 1000}, "'matrix_type' is"),
        ({"rows": [{"id": 7}, {"id": "C"}]}, "rows[0] has the id 7, expected text"),
        ({"columns": None}, "no list 'columns'"),
        ({"data": [[0, 0, 1], [2, 0, 1]]}, "data[1] names row 2, expected 0 to 1"),
        ({"data": [[0, 0, 1], [0, -1, 1]]}, "data[1] names column -1"),
        ({"data": [[0, 0.5, 1]]}, "data[0] names column 0.5"),
        ({"data": [[0, 0, 1], [0, 0, 1]]}, "sample 's1', feature 'A' has two counts"),
        ({"data": [[0, 0, 1], [0, 0]]}, "data[1] has 2 entries, expected 3"),
        ({"data": [[0, 0, "1"]]}, "not a number"),
        ({"data": [[0, 0, True]]}, "not a number"),
        ({"data": [[0, 0, 10**400]]}, "above 4294967295"),
        ({"data": [[1, 0, 2**32]]}, "4.29497e+09 at sample 's1', feature 'C' is above 4294967295"),
        ({"data": [[1, 1, float("nan")]]}, "nan at sample 's2', feature 'C' is not a finite number"),
        ({"data": [[1, 1, -2]]}, "-2 at sample 's2', feature 'C' is negative"),
        ({"data": 3}, "not a list of lists"),
        ({"matrix_type": "dense", "data": [[1, 2]]}, "'data' has 1 rows, expected 2"),
        ({"matrix_type": "dense", "data": [[1, 2], [1, 0.25]]}, "0.25 at sample 's2', feature 'C' is fractional"),
        ({"rows": [{"id": "A"}, {"id": "A"}]}, "1 feature ids occur more than once"),
        ({"columns": [{"id": "\ud800"}, {"id": "b"}]}, "cannot be printed"),
    ],
)
def test_bad_json(tmp_path, change, expected):
    good = {
        "matrix_type": "sparse",
        "shape": [2, 2],
        "rows": [{"id": "A"}, {"id": "C"}],
        "columns": [{"id": "s1"}, {"id": "s2"}],
        "data": [[0, 0, 1], [1, 1, 2]],
    }
    path = tmp_path / "t.biom"
    path.write_text(json.dumps(good))
    assert dense(read_table(path)).tolist() == [[1, 0], [0, 2]]
    path.write_text(json.dumps(good | change))
    assert expected in refused(path)


@pytest.mark.parametrize(
    ("blob", "expected"),
    [
        (b'{"rows": ' + b"[" * 100_000, "not valid JSON"),
        (b'{"rows": [}', "not valid JSON"),
        (b'{"rows": "\xe9"}', "not UTF-8"),
        (b"{}", "no list 'rows'"),
        (b'{"rows": [' + b"9" * 10_000 + b"]}", "not valid JSON"),
    ],
)
def test_json_that_is_no_table(tmp_path, blob, expected):
    path = tmp_path / "t.biom"
    path.write_bytes(blob)
    assert expected in refused(path)


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


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (assigned(DATA, 1, 0.5), "0.5 at sample 's10', feature 'ACGA' is fractional"),
        (assigned(DATA, 3, -1), "-1 at sample '007', feature 'GGTA' is negative"),
        (assigned(DATA, 0, np.nan), "nan at sample 's10', feature 'ACGT' is not a finite number"),
        (assigned(DATA, 0, 2.0**32), "above 4294967295"),
        (assigned(INDICES, 1, 5), "indices holds 5, expected 0 to 4"),
        (assigned(INDICES, 1, -1), "indices holds -1"),
        (assigned(INDICES, 1, 1), "sample 's10', feature 'ACGT' has two counts"),
        (assigned(INDPTR, 1, 6), "does not rise from 0 to 7"),
        (assigned(INDPTR, 3, 6), "does not rise from 0 to 7"),
        (assigned(INDPTR, 0, 1), "does not rise from 0 to 7"),
        (replaced(INDPTR, data=[0, 7]), "indptr has 2 entries, expected 4"),
        (replaced(INDPTR, data=np.array([0, 2**63, 3, 7], np.uint64)), "does not rise"),
        (replaced(DATA, data=[1.0]), "1 counts and 7 indices"),
        (replaced(DATA, data=[[1.0]]), "expected a list"),
        (replaced(DATA, data=["a"] * 7), "expected a list"),
        (replaced(INDICES, data=[0.0] * 7), "expected a list"),
        (replaced(DATA, shape=(10**9,), dtype="f8", chunks=(1000,)), "claims 8000000000 bytes and stores 0"),
        (replaced(DATA, shape=(2**40,), dtype="u1", chunks=(1000,)), "expected at most"),
        (replaced("sample/ids", shape=(10**9,), dtype="S9", chunks=(1000,)), "claims 9000000000 bytes"),
        (replaced("sample/ids", data=[1, 2, 3]), "sample/ids is"),
        (replaced("sample/ids", data=[b"a", b"\xe9", b"c"]), "sample/ids[1] is not UTF-8"),
        (replaced("sample/ids", data=[b"a", b"", b"c"]), "1 sample ids are empty, the first is sample 2"),
        (replaced("sample/ids", data=[b"a", b"a", b"c"]), "1 sample ids occur more than once: 'a'"),
        (replaced("sample/ids", data=[b"a", b"c"]), "attribute 'shape' is [5, 3], expected [5, 2]"),
        (deleted("sample"), "no dataset 'sample/ids'"),
        (deleted(DATA), "no dataset 'sample/matrix/data'"),
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


def test_other_artifacts_are_refused_with_the_reason(tmp_path):
    path = tmp_path / "t.qza"
    write_artifact(path, "FeatureTable[RelativeFrequency]", "BIOMV210DirFmt", {"feature-table.biom": b"x"})
    message = refused(path)
    assert "holds FeatureTable[RelativeFrequency], expected FeatureTable[Frequency]" in message
    assert "rarefaction needs counts" in message


def test_files_that_cannot_be_read(tmp_path):
    assert "no such file" in refused(tmp_path / "missing.biom")
    assert "cannot be read" in refused(tmp_path)
    path = save_hdf5(biom_table(), tmp_path / "t")
    assert "no such file" in refused(path, sequences=tmp_path / "missing.fasta")


# --- fuzzing -----------------------------------------------------------------------------------------------


def read_or_refused(path: Path, blob: bytes, need_sequences: bool) -> str:
    """ "read" for a sound table, "refused" with a message that names the file, else what is wrong."""
    path.write_bytes(blob)
    try:
        table = read_table(path, need_sequences=need_sequences)
    except InputError as error:
        return "refused" if str(path) in str(error) else f"refused without its name: {error}"
    sound = table.counts.shape == (len(table.sample_ids), len(table.feature_ids)) and table.counts.nnz > 0
    return "read" if sound else f"read as {table}"


cells = st.sampled_from(["0", "1", "2.0", "-1", "0.5", "nan", "1e400", "", "A", "ACGT", "GG", "#OTU ID", "taxonomy"])
tsv_lines = st.lists(st.lists(cells, max_size=4).map("\t".join), max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.sampled_from(["A", "C", "", "sparse"]),
    lambda inner: st.lists(inner, max_size=3) | st.fixed_dictionaries({"id": inner}),
    max_leaves=8,
)
entry = st.fixed_dictionaries({"id": st.sampled_from(["A", "C", "\ud800", "", 1])}) | json_values
triple = st.tuples(st.integers(-1, 2), st.integers(-1, 2), st.integers(-1, 3) | st.floats())
json_tables = st.fixed_dictionaries(
    {
        "matrix_type": st.sampled_from(["sparse", "dense"]) | json_values,
        "shape": st.lists(st.integers(0, 2), min_size=2, max_size=2) | json_values,
        "rows": st.lists(entry, max_size=2) | json_values,
        "columns": st.lists(entry, max_size=2) | json_values,
        "data": st.lists(triple, max_size=3) | st.lists(st.lists(st.integers(0, 3), max_size=2)) | json_values,
    }
)


@hypothesis_settings(max_examples=300)
@given(lines=tsv_lines, header=st.booleans(), tail=st.binary(max_size=8), need_sequences=st.booleans())
def test_any_tsv_is_read_or_refused(tmp_path_factory, lines, header, tail, need_sequences):
    text = "\n".join((["#OTU ID\ts1\ts2"] if header else []) + lines)
    path = tmp_path_factory.getbasetemp() / "any.tsv"
    assert read_or_refused(path, text.encode() + tail, need_sequences) in ("read", "refused")


@hypothesis_settings(max_examples=300)
@given(document=json_tables, cut=st.integers(0, 3), need_sequences=st.booleans())
def test_any_json_is_read_or_refused(tmp_path_factory, document, cut, need_sequences):
    text = json.dumps(document)
    path = tmp_path_factory.getbasetemp() / "any.json"
    assert read_or_refused(path, text[: len(text) - cut].encode(), need_sequences) in ("read", "refused")


@hypothesis_settings(max_examples=200)
@given(blob=st.binary(max_size=200), head=st.sampled_from([b"", b"{", b"PK\x03\x04", b"\x89HDF\r\n\x1a\n"]))
def test_any_bytes_are_refused(tmp_path_factory, blob, head):
    assert read_or_refused(tmp_path_factory.getbasetemp() / "any.bin", head + blob, False) == "refused"


# --- changing and writing ----------------------------------------------------------------------------------


def test_trim_merges_and_adds(tmp_path):
    features = ["ACGTAA", "ACGTCC", "ACG", "TTTTTT", "ACGTAC"]
    table = read_table(save_hdf5(biom_table(features=features), tmp_path / "t"))
    with pytest.raises(InputError, match="4 of 5 ASVs are longer than --max-bp 4, the longest has 6") as caught:
        check_length(table, 4)
    assert "--trim" in str(caught.value)
    before = table.counts.copy()
    cut = trim(table, 4)
    check_length(cut, 4)
    assert cut.sequences == ("ACG", "ACGT", "TTTT")
    assert cut.feature_ids == ("ACG", "ACGTAA", "TTTTTT")
    assert dense(cut).tolist() == [[0, 4, 70000], [0, 7, 0], [0, 2, 0]]
    np.testing.assert_array_equal(cut.depths, table.depths)
    assert trim(table, 6) is table
    # Cutting that merges nothing may reorder columns; it must leave the table it came from alone.
    other = make_table(csr_array(COUNTS.astype(np.uint32)), SAMPLES, features, ["CA", "CC", "CG", "CT", "GA"])
    trim(other, 1)
    assert (table.counts != before).nnz == 0


def test_select_samples(tmp_path):
    table = read_table(save_hdf5(biom_table(), tmp_path / "t"))
    chosen = select_samples(table, ["s1", "s10"])
    assert chosen.sample_ids == ("s1", "s10")
    assert chosen.sequences == table.sequences
    np.testing.assert_array_equal(dense(chosen), COUNTS[[2, 0]][:, ORDER])
    with pytest.raises(InputError, match="2 samples are not in the table: '7', 'x'"):
        select_samples(table, ["7", "s1", "x"])


def test_what_is_written_is_what_biom_format_reads(tmp_path):
    features = ["f1", "f2", "f3", "f4", "f5"]
    table = make_table(csr_array(COUNTS.astype(np.uint32)), SAMPLES, features, SEQUENCES)
    write_biom(table, tmp_path / "a.biom")
    loaded = biom.load_table(str(tmp_path / "a.biom"))
    assert loaded == biom_table(COUNTS[:, ORDER], features=sorted(SEQUENCES))
    write_biom(read_table(tmp_path / "a.biom"), tmp_path / "b.biom")
    assert (tmp_path / "a.biom").read_bytes() == (tmp_path / "b.biom").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.biom", "b.biom"]
    write_biom(read_table(tmp_path / "a.biom", need_sequences=False), tmp_path / "c.biom")
    assert biom.load_table(str(tmp_path / "c.biom")) == loaded


# --- rarefying ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "depth"),
    [
        ([10, 3, 0, 87], 20),
        ([10, 3, 0, 87], 95),
        ([150_000, 30_000, 1, 20_000], 50),
        ([2**32 - 1, 2**31, 7, 2**30], 12),
        ([10**9, 5 * 10**8, 0, 2], 10),
    ],
    ids=["shuffled", "nearly all", "marginal", "enumerated", "enumerated too"],
)
def test_each_count_is_hypergeometric(values, depth):
    values = np.array(values, dtype=np.uint32)
    total = int(values.sum(dtype=np.int64))
    rng = generator(0, "test")
    draws = np.array([rarefy(values, depth, rng) for _ in range(2000)])
    assert (draws.sum(axis=1) == depth).all()
    assert (draws >= 0).all()
    assert (draws <= values.astype(np.int64)).all()
    share = values / total
    spread = np.sqrt(depth * share * (1 - share) * (total - depth) / (total - 1))
    assert (np.abs(draws.mean(axis=0) - depth * share) <= 4 * spread / np.sqrt(2000) + 1e-4).all()
    assert (np.abs(draws.std(axis=0) - spread) <= 0.06 * spread + 2e-2).all()
    levels, found = np.unique(draws[:, 0], return_counts=True)
    np.testing.assert_allclose(found / 2000, hypergeom.pmf(levels, total, int(values[0]), depth), atol=0.035)


def test_a_draw_of_nearly_all_of_many_reads():
    values = np.array([2**32 - 1, 1, 2**31], dtype=np.uint32)
    total = int(values.sum(dtype=np.int64))
    draw = rarefy(values, total - 5, generator(1))
    assert draw.sum() == total - 5
    assert (values - draw >= 0).all()


def test_the_ends_of_rarefaction():
    values = np.array([4, 0, 2], dtype=np.uint8)
    assert rarefy(values, 6, generator(0)).tolist() == [4, 0, 2]
    assert rarefy(values, 0, generator(0)).tolist() == [0, 0, 0]
    for depth in (7, -1):
        with pytest.raises(ValueError, match="is not between 0 and the 6 reads"):
            rarefy(values, depth, generator(0))


def test_a_sample_is_rarefied_by_itself(tmp_path):
    table = read_table(save_hdf5(biom_table(), tmp_path / "t"))
    columns, values = rarefied_row(table, 0, 500, seed=3, epoch=1)
    assert values.sum() == 500
    assert (values > 0).all()
    assert (np.diff(columns) > 0).all()
    again = rarefied_row(select_samples(table, ["s1", "s10"]), 1, 500, seed=3, epoch=1)
    np.testing.assert_array_equal(columns, again[0])
    np.testing.assert_array_equal(values, again[1])
    many = make_table(csr_array(np.full((1, 300), 60, np.uint32)), ["s"], [f"f{i}" for i in range(300)])
    draws = {rarefied_row(many, 0, 500, seed, epoch)[1].tobytes() for seed in (1, 2) for epoch in (1, 2)}
    assert len(draws) == 4


@pytest.mark.parametrize(
    ("depths", "classes", "expected"),
    [
        (range(1, 11), None, 2),
        (range(1, 10), None, 1),
        (range(1, 101), None, 11),
        (range(1, 11), ["a"] * 9 + ["b"], 1),
        (range(1, 41), ["a"] * 20 + ["b"] * 20, 3),
        (range(1, 11), ["a"] * 5 + [None] * 5, 1),
        ([5] + [100] * 19, ["a", *"b" * 19], 5),
        ([5] + [100] * 19, [-1, *[0] * 19], 100),
        ([0] + [7] * 9, None, 7),
    ],
)
def test_choose_depth(depths, classes, expected):
    depths = np.array(depths)
    assert choose_depth(depths, classes) == expected
    for name in {*(classes or []), "all"} - {None, -1}:
        members = depths if name == "all" else depths[[label == name for label in classes]]
        assert (members >= expected).mean() >= 0.9


def test_choose_depth_without_reads():
    with pytest.raises(InputError, match="a tenth of all samples have no reads; pass --rarefy-depth"):
        choose_depth(np.array([0, 0, 5]))
    with pytest.raises(InputError, match="the samples of class 'x'"):
        choose_depth(np.array([0, *[5] * 20]), ["x"] + ["y"] * 20)


# --- real tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("study", "samples", "asvs", "length", "median_depth"),
    [
        ("infant-age", 699, 2085, 150, 14800),
        ("mackerel-type", 639, 23253, 150, 5657),
        ("oral-age", 2537, 5574, 100, 1000),
        ("ibd", 449, 10074, 100, None),
        ("unlabelled", 1635, 55474, 150, 21000),
    ],
)
def test_real_tables(bench_data, study, samples, asvs, length, median_depth):
    path = bench_data / study / "table.biom"
    table = read_table(path)
    assert table.counts.shape == (samples, asvs)
    assert set(map(len, table.sequences)) == {length}
    assert median_depth is None or np.median(table.depths) == pytest.approx(median_depth, rel=0.02)
    if study == "infant-age":
        oracle = biom.load_table(str(path))
        order = np.argsort(oracle.ids("observation"))
        assert (table.counts.astype(float) != oracle.matrix_data.T.tocsr()[:, order]).nnz == 0
        assert table.sample_ids == tuple(oracle.ids())


def test_real_ids_that_are_not_dna(bench_data):
    path = bench_data / "unifrac-truth" / "moving_pictures_q2mlab" / "table.biom"
    assert "533 of 533 feature ids are not DNA" in refused(path)
    assert read_table(path, need_sequences=False).counts.shape == (31, 533)
    classic = read_table(bench_data / "unifrac-truth" / "skbio_qiime191_tt" / "otu-table.tsv", need_sequences=False)
    assert classic.sample_ids[:2] == ("f2", "f1")
