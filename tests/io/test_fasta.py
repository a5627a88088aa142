"""Sequences from FASTA in every wrapping, and files that are none."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from aam.data.table import read_table
from aam.io.qza import write_artifact
from tests.data.small_tables import COUNTS, ORDER, SEQUENCES, biom_table, dense, refused, save_hdf5


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
