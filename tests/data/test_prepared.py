"""Prepared tables: the same table as the file that they were made from, or one clear error."""

from __future__ import annotations

import dataclasses
import logging
import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors

from aam.commands.prepare import prepare
from aam.commands.unifrac import write_unifrac
from aam.config import DataConfig
from aam.config_commands import PrepareConfig, SimulateConfig, UnifracConfig
from aam.data.prepare import write_prepared
from aam.data.prepared import SUFFIX, map_prepared
from aam.data.simulate import simulate
from aam.data.study import load_study
from aam.data.table import SampleTable, deep_enough, read_table, select_samples
from aam.data.tokens import encode
from aam.errors import InputError
from aam.io.newick import pruned_tree
from tests.data.small_tables import biom_table, dense, save_hdf5
from tests.data.test_table import save_json, save_qza, save_tsv

# Two features of one sequence, one of them in lower case; ambiguous letters; different lengths.
MIXED = ["GGTAN", "acgu", "TTTT", "ACGT", "CCCCR"]
HASHES = ["h5", "h4", "h3", "h2", "h1"]


def prepared(path: Path, **options) -> Path:
    prepare(PrepareConfig(table=path, **options))
    return path.with_name(path.name + SUFFIX)


def assert_same(one: SampleTable, other: SampleTable) -> None:
    assert one.sample_ids == other.sample_ids
    assert list(one.feature_ids) == list(other.feature_ids)
    assert list(one.sequences) == list(other.sequences)
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(one.counts, name), getattr(other.counts, name))
        assert getattr(one.counts, name).dtype == getattr(other.counts, name).dtype
    np.testing.assert_array_equal(one.depths, other.depths)
    np.testing.assert_array_equal(one.lengths, other.lengths)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "study"
    simulate(SimulateConfig(folder, samples=40, asvs=120, length=60, depth=900))
    return folder


# --- the same table ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", [None, MIXED])
@pytest.mark.parametrize("save", [save_hdf5, save_json, save_qza, save_tsv])
def test_a_prepared_table_is_the_table(tmp_path, save, features):
    table = biom_table() if features is None else biom_table(features=features)
    path = save(table, tmp_path / "table")
    plain = read_table(path)
    file = prepared(path)
    for source in (path, file):
        read = read_table(source)
        assert read.prepared is not None
        assert_same(read, plain)
        np.testing.assert_array_equal(read.prepared.tokens, encode(plain.sequences))


def test_ids_that_are_no_sequences_come_with_them(tmp_path):
    path = save_hdf5(biom_table(features=HASHES), tmp_path / "table.biom")
    fasta = tmp_path / "sequences.fasta"
    fasta.write_text("".join(f">{name}\n{dna}\n" for name, dna in zip(HASHES, MIXED, strict=True)), encoding="utf-8")
    plain = read_table(path, fasta)
    file = prepared(path, sequences=fasta)
    assert_same(read_table(path, fasta), plain)
    assert_same(read_table(file), plain)
    with pytest.raises(InputError, match="prepared by sequences, and ids are asked for"):
        read_table(file, need_sequences=False)
    # Without --sequences the table beside it has no sequences, and says so as before.
    with pytest.raises(InputError, match="are not DNA"):
        read_table(path)
    fasta.write_text(fasta.read_text(encoding="utf-8") + ">more\nACGT\n", encoding="utf-8")
    with pytest.raises(InputError, match="prepared with other --sequences"):
        read_table(file, fasta)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_how_many_samples_are_read_at_once_changes_no_byte(tmp_path, study, monkeypatch, size):
    write_prepared(tmp_path / "at once", study / "table.biom", tree=study / "tree.nwk")
    monkeypatch.setattr("aam.io.biom.OpenTable.blocks.__defaults__", (size,))
    write_prepared(tmp_path / "in parts", study / "table.biom", tree=study / "tree.nwk")
    assert (tmp_path / "at once").read_bytes() == (tmp_path / "in parts").read_bytes()


def test_the_file_is_one_that_safetensors_reads(tmp_path, study):
    write_prepared(tmp_path / "file", study / "table.biom")
    with safetensors.safe_open(tmp_path / "file", "np") as file:
        assert file.metadata()["source"] == "table.biom"
        np.testing.assert_array_equal(file.get_tensor("columns"), read_table(study / "table.biom").counts.indices)


def test_counts_are_mapped_and_not_copied(tmp_path, study):
    write_prepared(tmp_path / "file", study / "table.biom")
    table, depth = read_table(tmp_path / "file"), 900
    kept, dropped = deep_enough(table, depth)
    assert dropped
    for array in (kept.stored.indices, kept.stored.data, table.prepared.tokens, table.sequences.letters):
        while isinstance(array.base, np.ndarray):
            array = array.base
        assert isinstance(array.base, mmap.mmap)


def test_selected_samples_are_those_of_the_table(study):
    table = read_table(study / "table.biom")
    names = [table.sample_ids[row] for row in (7, 3, 20, 3 + 8)]
    twice = select_samples(select_samples(table, [*names, table.sample_ids[0]]), names)
    expected = table.counts[[7, 3, 20, 11]]
    np.testing.assert_array_equal(twice.counts.toarray(), expected.toarray())
    np.testing.assert_array_equal(twice.depths, expected.sum(axis=1))
    np.testing.assert_array_equal(twice.columns_of(np.array([0, 2])), np.unique(expected[[0, 2]].indices))
    for row in range(4):
        np.testing.assert_array_equal(twice.row(row)[0], expected[[row]].indices)
        np.testing.assert_array_equal(twice.row(row)[1], expected[[row]].data)


# --- the tree ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("midpoint", [False, True])
def test_the_tree_is_pruned_once(study, midpoint, monkeypatch):
    table, tree = study / "table.biom", study / "tree.nwk"
    ids = read_table(table).feature_ids
    expected, tips = pruned_tree(tree, ids, "error", midpoint)
    file = study / f"with-tree-{midpoint}"
    write_prepared(file, table, tree=tree, midpoint=midpoint)
    monkeypatch.setattr("aam.data.study.pruned_tree", None)
    loaded = load_study(DataConfig(table=file, tree=tree, midpoint_root=midpoint), None, 0)
    for name in ("parent", "length", "lo", "hi"):
        np.testing.assert_array_equal(getattr(loaded.tree, name), getattr(expected, name))
    assert list(loaded.tree.tips) == list(expected.tips)
    np.testing.assert_array_equal(loaded.tips, tips)


def test_another_tree_is_read(study, tmp_path):
    table, tree = study / "table.biom", study / "tree.nwk"
    write_prepared(tmp_path / "file", table, tree=tree)
    longer = tmp_path / "longer.nwk"
    longer.write_text(tree.read_text(encoding="utf-8").replace(":0.0", ":0.1"), encoding="utf-8")
    loaded = load_study(DataConfig(table=tmp_path / "file", tree=longer), None, 0)
    expected, _ = pruned_tree(longer, read_table(table).feature_ids, "error", False)
    np.testing.assert_array_equal(loaded.tree.length, expected.length)
    assert load_study(DataConfig(table=tmp_path / "file"), None, 0).tree is None


def test_missing_tips_are_refused_as_without_it(tmp_path):
    path = save_hdf5(biom_table(), tmp_path / "table.biom")
    tree = tmp_path / "tree.nwk"
    tree.write_text("((GGTA:1,ACGT:1):1,TTTT:2);", encoding="utf-8")
    config = DataConfig(table=path, tree=tree, rarefy_depth=1)
    with pytest.raises(InputError) as without:
        load_study(config, None, 0)
    dropping = dataclasses.replace(config, missing_tips="drop")
    tips = load_study(dropping, None, 0).tips
    prepared(path, tree=tree)
    with pytest.raises(InputError) as caught:
        load_study(config, None, 0)
    assert str(caught.value) == str(without.value)
    np.testing.assert_array_equal(load_study(dropping, None, 0).tips, tips)


def test_unifrac_of_a_prepared_table(study, tmp_path):
    write_prepared(tmp_path / "file", study / "table.biom", tree=study / "tree.nwk")
    for name, table in (("plain", study / "table.biom"), ("prepared", tmp_path / "file")):
        write_unifrac(UnifracConfig(table=table, tree=study / "tree.nwk", output=tmp_path / f"{name}.npy", threads=1))
    assert (tmp_path / "plain.npy").read_bytes() == (tmp_path / "prepared.npy").read_bytes()


# --- what is no prepared form of this table ----------------------------------------------------------------


def test_a_changed_table_is_noticed(tmp_path, caplog):
    path = save_hdf5(biom_table(), tmp_path / "table.biom")
    file = prepared(path)
    counts = dense(read_table(path))[:, [0, 1, 2, 3, 4]] + 1
    save_hdf5(biom_table(counts, features=sorted(biom_table().ids("observation"))), path)
    with caplog.at_level(logging.WARNING, "aam"):
        table = read_table(path)
    assert table.prepared is None
    np.testing.assert_array_equal(dense(table), counts)
    assert "prepared from another table.biom" in caplog.text
    with pytest.raises(InputError, match=r"prepared from another table.biom .* run `aam prepare --overwrite` again"):
        read_table(file)
    with pytest.raises(InputError, match="exists already"):
        prepared(path)
    assert_same(read_table(prepared(path, overwrite=True)), table)


@pytest.mark.parametrize("name", ["mine.prepared", "mine.safetensors"])
def test_a_table_that_happens_to_lie_beside_a_prepared_one_is_no_source_of_it(tmp_path, name):
    for folder, features in (("a", ["ACGTACGT", "ACGTACGA"]), ("b", ["TTTTACGT"])):
        (tmp_path / folder).mkdir()
        rows = "".join(f"{feature}\t3\n" for feature in features)
        (tmp_path / folder / "table.tsv").write_text(f"#OTU ID\ts1\n{rows}")
    write_prepared(tmp_path / "b" / name, tmp_path / "a" / "table.tsv")
    assert len(read_table(tmp_path / "b" / name).feature_ids) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda blob: blob[:-1], "is cut off"),
        (lambda blob: blob + b"0", "is cut off"),
        (lambda blob: blob[:100], "no readable prepared table"),
        (lambda blob: blob[:4], "no readable prepared table"),
        (lambda blob: b"", "no readable prepared table"),
        (lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]), "damaged"),
        (lambda blob: blob.replace(b'"aam-table": "1"', b'"aam-table": "0"'), "format 0, this aam reads 1"),
        (lambda blob: blob.replace(b'"indptr"', b'"indptR"'), "damaged"),
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, caplog, change, message):
    path = save_hdf5(biom_table(), tmp_path / "table.biom")
    file = prepared(path)
    blob = file.read_bytes()
    assert change(blob) != blob
    file.write_bytes(change(blob))
    with pytest.raises(InputError, match=message) as caught:
        read_table(file)
    assert len(caught.value.problems) == 1
    assert "aam prepare" in str(caught.value)
    with caplog.at_level(logging.WARNING, "aam"):
        assert read_table(path).prepared is None
    assert message in caplog.text


def test_a_bad_table_leaves_nothing_behind(tmp_path):
    path = save_hdf5(biom_table(np.array([[0.5, 1], [1, 1]]), ["a", "b"], ["ACGT", "GG"]), tmp_path / "table.biom")
    with pytest.raises(InputError, match="fractional"):
        prepared(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.biom"]


KILLED = """
import os, signal, sys
from pathlib import Path
from aam.commands.prepare import prepare
from aam.config_commands import PrepareConfig
from aam.data import prepare as module

def killed(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(*{"columns": (module, "_write_columns"), "end": (module.shutil, "copyfileobj")}[sys.argv[2]], killed)
prepare(PrepareConfig(table=Path(sys.argv[1])))
"""


@pytest.mark.parametrize("moment", ["columns", "end"])
def test_a_killed_process_leaves_nothing_that_is_loaded(tmp_path, moment):
    path = save_hdf5(biom_table(), tmp_path / "table.biom")
    done = subprocess.run([sys.executable, "-c", KILLED, path, moment], capture_output=True)
    assert done.returncode == -9, done.stderr
    assert len(list(tmp_path.iterdir())) > 1
    assert read_table(path).prepared is None
    assert read_table(prepared(path)).prepared is not None
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["table.biom", "table.biom.prepared"]


def test_what_cannot_be_prepared(tmp_path):
    path = save_hdf5(biom_table(), tmp_path / "table.biom")
    file = prepared(path)
    with pytest.raises(InputError, match="is prepared already"):
        prepare(PrepareConfig(table=file))
    with pytest.raises(InputError, match="no --tree is given"):
        prepared(path, midpoint_root=True)


def test_a_mapped_table_is_not_written_to(tmp_path, study):
    write_prepared(tmp_path / "file", study / "table.biom")
    before = (tmp_path / "file").read_bytes()
    one = map_prepared(tmp_path / "file")
    one.counts.data[:] = 0
    one.tokens[:] = 0
    assert (tmp_path / "file").read_bytes() == before
    assert map_prepared(tmp_path / "file").counts.data.all()
