from __future__ import annotations

import functools

import h5py
import numpy as np
import pytest
import skbio

from aam.config import MATRIX_SUFFIXES
from aam.errors import InputError
from aam.io import matrices
from aam.io.matrices import (
    DistanceMatrix,
    is_written,
    read_distances,
    write_distances,
    write_faith_pd,
)
from aam.io.text import HDF5_MAGIC
from tests.archives import write_artifact
from tests.refusals import refusal

IDS = ("s1", "007", "a b", "é,x")
VALUES = np.array(
    [[0, 0.1, 1 / 3, 1], [0.1, 0, 2e-9, 0.7], [1 / 3, 2e-9, 0, 12.5], [1, 0.7, 12.5, 0]]
)
PLAIN = "\ts1\ts2\ns1\t0\t1\ns2\t1\t0\n"


def tiles(values: np.ndarray, size: int = 3):
    """Tiles on and above the diagonal, as UniFrac yields them."""
    parts = [slice(start, start + size) for start in range(0, len(values), size)]
    for i, rows in enumerate(parts):
        yield from ((rows, columns, values[rows, columns]) for columns in parts[i:])


def write_h5(path, ids, values):
    """The layout of ssu, written by hand."""
    with h5py.File(path, "w") as file:
        file["format"], file["version"] = np.array([b"BDSM"]), np.array([b"2020.12"])
        file.create_dataset("order", data=ids, dtype=h5py.string_dtype())
        file["matrix"] = values


# --- there and back ----------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", MATRIX_SUFFIXES)
def test_what_is_written_is_read_again(tmp_path, suffix):
    path = tmp_path / "new" / f"D{suffix}"
    write_distances(path, IDS, tiles(VALUES))
    matrix = read_distances(path)
    assert matrix.ids == IDS
    np.testing.assert_array_equal(matrix.values.astype(np.float32), VALUES.astype(np.float32))
    assert {entry.name for entry in path.parent.iterdir()} == {path.name}


@pytest.mark.parametrize(("suffix", "form"), [(".tsv", "lsmat"), (".h5", "binary_dm")])
def test_scikit_bio_reads_what_is_written_and_the_reverse(tmp_path, suffix, form):
    ours, theirs = tmp_path / f"ours{suffix}", tmp_path / f"theirs{suffix}"
    write_distances(ours, ("s1", "s2", "s3", "s4"), tiles(VALUES))
    matrix = skbio.DistanceMatrix.read(str(ours), format=form)
    assert matrix.ids == ("s1", "s2", "s3", "s4")
    np.testing.assert_array_equal(matrix.data.astype(np.float32), VALUES.astype(np.float32))
    skbio.DistanceMatrix(VALUES, IDS).write(str(theirs), format=form)
    assert read_distances(theirs).ids == IDS
    np.testing.assert_array_equal(read_distances(theirs).values, VALUES)


def test_tables_with_comments_byte_order_mark_and_windows_lines(tmp_path):
    path = tmp_path / "D.csv"
    path.write_bytes(
        b'\xef\xbb\xbf# made by hand\r\n# twice\r\n"",#1,"b,c"\r\n#1,0,.5\r\n\r\n"b,c",5e-1,0.0\r\n'
    )
    matrix = read_distances(path)
    assert matrix.ids == ("#1", "b,c")
    assert matrix.values.tolist() == [[0, 0.5], [0.5, 0]]


def test_selecting_reorders_and_misses_none():
    matrix = DistanceMatrix(IDS, VALUES)
    chosen = matrix.select(["é,x", "s1"])
    assert chosen.ids == ("é,x", "s1")
    assert chosen.values.tolist() == [[0, 1], [1, 0]]
    with pytest.raises(InputError, match=r"--unifrac-matrix: 2 of 3 samples .* 'x', 'y'"):
        matrix.select(["x", "s1", "y"])


def test_a_failure_leaves_the_old_file(tmp_path):
    def failing():
        yield from tiles(VALUES)
        raise RuntimeError("stopped")

    for suffix in MATRIX_SUFFIXES:
        path = tmp_path / f"D{suffix}"
        write_distances(path, IDS, tiles(VALUES))
        before = path.read_bytes()
        with pytest.raises(RuntimeError, match="stopped"):
            write_distances(path, IDS, failing())
        assert path.read_bytes() == before
        assert read_distances(path).ids == IDS
    assert len(list(tmp_path.iterdir())) == len(MATRIX_SUFFIXES)


def test_numbers_lie_where_hdf5_puts_them(tmp_path, monkeypatch):
    aligned = functools.partial(h5py.File, alignment_threshold=1, alignment_interval=4096)
    monkeypatch.setattr(matrices.h5py, "File", aligned)
    write_distances(tmp_path / "D.h5", IDS, tiles(VALUES))
    monkeypatch.undo()
    np.testing.assert_array_equal(read_distances(tmp_path / "D.h5").values, VALUES.astype("<f4"))


def test_faith_pd_is_a_table(tmp_path):
    values = np.array([1 / 3, 2.0])
    write_faith_pd(tmp_path / "pd.tsv", ("007", "b"), values)
    assert (tmp_path / "pd.tsv").read_text() == f"sample-id\tfaith_pd\n007\t{1 / 3!r}\nb\t2.0\n"


# --- refusals ----------------------------------------------------------------------------------


def changed(*changes: tuple[int, int, float]) -> np.ndarray:
    values = VALUES.copy()
    for row, column, value in changes:
        values[row, column] = value
    return values


NEGATIVE, AWAY = "1 distances are negative", "'é,x' is 1 away from itself"
OTHER_SIZE = "sample ids; expected floating-point numbers"


@pytest.mark.parametrize(
    ("values", "messages", "ids"),
    [
        (changed((0, 1, 0.2)), ["differs from its transpose by up to 0.1"], IDS),
        (changed((0, 1, np.nan), (1, 0, np.nan)), ["not finite"], IDS),
        (changed((0, 1, np.inf), (1, 0, np.inf)), ["not finite"], IDS),
        (changed((0, 1, -1), (3, 3, 1)), [NEGATIVE, "transpose", AWAY], IDS),
        (VALUES, ["more than once: 'a'"], ("a", "b", "a", "c")),
        (VALUES, ["a sample id is empty"], ("a", "b", "", "c")),
        (VALUES, [OTHER_SIZE], IDS[:3]),
        (VALUES[:, :3], [OTHER_SIZE], IDS),
        (VALUES.astype(int), ["of kind 'f'"], IDS),
    ],
)
def test_values_that_are_no_distances(tmp_path, values, messages, ids):
    write_h5(tmp_path / "D.h5", ids, values)
    problems = refusal(read_distances, tmp_path / "D.h5").split("\n")
    assert len(problems) == len(messages)
    for message, problem in zip(messages, problems, strict=True):
        assert message in problem


def test_a_type_of_number_that_numpy_lacks(tmp_path):
    """As damage of a few bits leaves it; found by fuzzing."""
    odd = h5py.h5t.IEEE_F32LE.copy()
    odd.set_ebias(1 << 20)
    with h5py.File(tmp_path / "D.h5", "w") as file:
        file.create_dataset("order", data=IDS, dtype=h5py.string_dtype())
        h5py.h5d.create(file.id, b"matrix", odd, h5py.h5s.create_simple((len(IDS), len(IDS))))
    message = refusal(read_distances, tmp_path / "D.h5")
    assert "D.h5: not a readable HDF5 file of distances" in message


def test_a_header_that_promises_more_than_the_file_allocates_nothing(tmp_path):
    ids = [str(number) for number in range(200_000)]
    with h5py.File(tmp_path / "D.h5", "w") as file:
        file.create_dataset("order", data=ids, dtype=h5py.string_dtype())
        file.create_dataset("matrix", (len(ids), len(ids)), np.float64, chunks=(1000, 1000))
    message = refusal(read_distances, tmp_path / "D.h5")
    assert "matrix claims 320000000000 bytes and stores 0" in message
    (tmp_path / "D.tsv").write_text("\t" + "\t".join(ids) + "\n0\t0\n")
    assert "expected 200000 distances" in refusal(read_distances, tmp_path / "D.tsv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n", "empty or nothing but comments"),
        ("x\n", "line 1 is 'x', expected an empty cell"),
        (
            PLAIN.replace("\ts1\ts2", "\ts2\ts1"),
            "another sample than in the header is 's1', expected 's2'; write rows",
        ),
        (PLAIN.replace("s2\t1\t0", "s2\t1"), "line 3 (''): expected 2 distances"),
        (PLAIN.replace("s1\t0\t1", "s1\t\t1"), "line 2 (''): expected 2 distances"),
        (PLAIN + "s3\t1\t1\n", "another sample than in the header is 's3', expected 'no row'"),
        (PLAIN.replace("s2\t1\t0\n", ""), "is 'no row', expected 's2'"),
        (PLAIN.replace("s1\t0\t1", "s1\t0\tx"), "line 2 ('x'): expected 2 distances"),
        (PLAIN.replace("s1\t0\t1", "s1\t0\t0_1"), "line 2 ('0_1'): expected 2"),
        (PLAIN.replace("\t1", "\t1\t2"), "line 2 (4 cells), 3 (4 cells): expected 3 cells"),
        (PLAIN.replace("\t1\n", "\t1\t2\n"), "line 2 (4 cells): expected 3 cells"),
        (PLAIN.replace("s1\t0\t1", 's1\t0\t"1'), "line 2 cannot be read"),
    ],
)
def test_broken_tables(tmp_path, text, message):
    (tmp_path / "D.tsv").write_text(text)
    assert message in refusal(read_distances, tmp_path / "D.tsv")


def test_a_bad_row_is_no_fault_of_the_rows_below(tmp_path):
    (tmp_path / "D.tsv").write_text("\ta\tb\tc\na\t0\t1\t2\nb\t1\nc\t2\tz\t0\n")
    message = refusal(read_distances, tmp_path / "D.tsv")
    assert message.endswith("line 3 (''), 4 ('z'): expected 3 distances; is the file cut off?")


def test_data_of_another_file_is_not_followed(tmp_path):
    write_h5(tmp_path / "secret.h5", IDS, VALUES)
    layout = h5py.VirtualLayout(VALUES.shape, VALUES.dtype)
    layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "matrix", VALUES.shape)
    path = tmp_path / "D.h5"
    for link in (h5py.ExternalLink("secret.h5", "matrix"), None):
        with h5py.File(path, "w") as file:
            file.create_dataset("order", data=list(IDS), dtype=h5py.string_dtype())
            if link is None:
                file.create_virtual_dataset("matrix", layout)
            else:
                file["matrix"] = link
        assert "matrix lies in another file; copy it into this one" in refusal(read_distances, path)


def test_broken_hdf5_files(tmp_path):
    path = tmp_path / "D.h5"
    path.write_bytes(HDF5_MAGIC + b"nothing of the kind")
    assert "not a readable HDF5 file" in refusal(read_distances, path)
    with h5py.File(path, "w") as file:
        file.create_group("matrix")
    message = refusal(read_distances, path)
    assert "expected what ssu writes with --format hdf5: no dataset 'order'" in message


def test_other_archives_endings_and_absent_files(tmp_path):
    write_artifact(tmp_path / "D.qza", "Phylogeny[Rooted]", "F", {"tree.nwk": b"(a:1,b:1);"})
    assert "expected DistanceMatrix" in refusal(read_distances, tmp_path / "D.qza")
    np.save(tmp_path / "D.npy", VALUES)
    assert "is not UTF-8 text" in refusal(read_distances, tmp_path / "D.npy")
    for suffix in MATRIX_SUFFIXES:
        assert "no such file" in refusal(read_distances, tmp_path / f"absent{suffix}")


def test_symmetry_is_checked_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(matrices, "ROWS", 3)
    values = np.random.default_rng(0).random((10, 10))
    values = np.triu(values, 1) + np.triu(values, 1).T
    values[5, 0] += 5e-7
    write_h5(tmp_path / "D.h5", list("abcdefghij"), values)
    np.testing.assert_array_equal(read_distances(tmp_path / "D.h5").values, values)
    values[9, 0] += 0.25
    write_h5(tmp_path / "D.h5", list("abcdefghij"), values)
    assert "by up to 0.25" in refusal(read_distances, tmp_path / "D.h5")


# --- earlier results ---------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", MATRIX_SUFFIXES)
def test_a_matrix_that_was_written_is_told_from_others(tmp_path, suffix):
    ours, theirs = tmp_path / f"ours{suffix}", tmp_path / f"theirs{suffix}"
    write_distances(ours, IDS, tiles(VALUES))
    assert is_written(ours)
    if suffix == ".h5":
        write_h5(theirs, IDS, VALUES)
    else:
        text = ours.read_text()
        theirs.write_text(text.replace("0", "0.0"))
        ours.write_text(text[1:])
        assert not is_written(ours)
    assert not is_written(theirs)


def test_faith_pd_that_was_written_is_told_from_others(tmp_path):
    path = tmp_path / "pd.tsv"
    write_faith_pd(path, IDS, VALUES[0])
    assert is_written(path)
    path.write_bytes(path.read_bytes()[1:])
    assert not is_written(path)
