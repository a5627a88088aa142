"""Tables of every format: the same table, columns in the order of sequences, or an error that says
why not.
"""

from __future__ import annotations

import logging
from pathlib import Path

import biom
import numpy as np
import pytest
from scipy.sparse import csr_array

from aam.data.primers import fit_length
from aam.data.table import make_table, read_table, select_samples, write_biom
from tests.archives import write_artifact
from tests.data import small_tables
from tests.data.small_tables import COUNTS, SAMPLES, SEQUENCES, biom_table, dense, save_hdf5
from tests.refusals import refusal

ORDER, refused = small_tables.ORDER, small_tables.refused
START = "TACG" * 8


def dna(*ends: str) -> list[str]:
    """Sequences of more than 30 letters that end so."""
    return [START + end for end in ends]


def read(path: Path, counts=COUNTS, samples=SAMPLES, features=SEQUENCES, **options):
    return read_table(save_hdf5(biom_table(counts, samples, features), path), **options)


def as_qza(table: biom.Table, path: Path) -> None:
    blob = save_hdf5(table, path.with_suffix(".inner")).read_bytes()
    write_artifact(path, "FeatureTable[Frequency]", "F", {"feature-table.biom": blob})


FORMATS = {
    "hdf5": lambda table, path: save_hdf5(table, path),
    "tsv": lambda table, path: path.write_text(table.to_tsv() + "\n"),
    "qza": as_qza,
}


@pytest.mark.parametrize("save", FORMATS.values(), ids=FORMATS)
def test_every_format_and_order_of_columns_gives_the_same_table(tmp_path, save):
    # The name tells nothing: formats are told by their content.
    path, shuffle = tmp_path / "table.txt", np.random.default_rng(1).permutation(5)
    for order in (np.arange(5), shuffle):
        save(biom_table(COUNTS[:, order], features=[SEQUENCES[i] for i in order]), path)
        table = read_table(path)
        assert table.sequences == tuple(sorted(SEQUENCES)) == table.feature_ids
        assert table.sample_ids == tuple(SAMPLES)
        assert (table.counts.dtype, table.depths.dtype) == (np.uint32, np.int64)
        np.testing.assert_array_equal(dense(table), COUNTS[:, ORDER])
        np.testing.assert_array_equal(table.depths, COUNTS.sum(axis=1))
        assert [values.tolist() for values in table.row(1)] == [[2, 3], [2, 5]]


@pytest.mark.parametrize(
    ("largest", "dtype"),
    [(255, np.uint8), (256, np.uint16), (65536, np.uint32), (2**32 - 1, np.uint32)],
)
def test_counts_take_the_narrowest_type(tmp_path, largest, dtype):
    table = read(tmp_path / "t", [[largest, 1]], ["s"], ["A", "C"])
    assert table.counts.dtype == dtype
    assert table.depths.tolist() == [largest + 1]


def test_a_table_without_sequences_is_sorted_by_id(tmp_path):
    features = ["t9", "t10", "007", "7", "x y"]
    table = read(tmp_path / "t", features=features, need_sequences=False)
    assert table.feature_ids == ("007", "7", "t10", "t9", "x y")
    assert table.sequences == ()
    np.testing.assert_array_equal(dense(table), COUNTS[:, [2, 3, 1, 0, 4]])


def test_sequences_become_upper_case_dna(tmp_path):
    table = read(tmp_path / "t", features=dna("acgu", "RYSWKMBDHV", "N", "gg", "UU"))
    assert table.sequences == tuple(dna("ACGT", "GG", "N", "NNNNNNNNNN", "TT"))
    assert table.feature_ids == tuple(dna("acgu", "gg", "N", "RYSWKMBDHV", "UU"))


def test_identical_sequences_are_merged_only_when_asked(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="aam")
    counts = [[200, 0, 100, 7, 0], [0, 1, 2, 0, 4]]
    features = dna("ACGT", "CC", "ACGU", "GG", "acgt")
    path = save_hdf5(biom_table(counts, ["a", "b"], features), tmp_path / "t")
    message = refused(path)
    assert "2 of 5 features have the sequence of another feature, such as 'TACG" in message
    assert "pass --trim to merge" in message
    table = read_table(path, merge=True)
    assert table.sequences == table.feature_ids == tuple(dna("ACGT", "CC", "GG"))
    assert dense(table).tolist() == [[300, 0, 7], [6, 1, 0]]
    assert table.counts.dtype == np.uint16
    assert "merged 2 ASVs" in caplog.text
    too_many = save_hdf5(biom_table([[2**32 - 1, 1]], ["s"], dna("ACGT", "ACGU")), tmp_path / "u")
    assert f"have {2**32} reads" in refused(too_many, merge=True)


IDS = {
    "letters of the alphabet": "A B C D n N k",
    "words of IUPAC letters": "BAD CAT DAY DAB BAB bad cat day",
    "short DNA": f"ACGT ACGA TTTT UUU {'A' * 29} {'C' * 29}",
    "numbers": "1 2 3",
    "MD5": "b5eeb3ae b5eeb3af 00ff",
    "names": "OTU_1 OTU_2 denovo3 Dasya B.subtilis DSM-10",
    "taxa": "k__Bacteria;g__Blautia k__Bacteria;__;__ Unassigned",
    "gaps": "AC-GT AC.GT --",
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_ids_that_are_not_sequences_stay_features_of_their_own(tmp_path, ids):
    """Ids of IUPAC letters alone were taken for DNA and merged."""
    features = ids.split()
    counts = np.arange(1, 2 * len(features) + 1).reshape(2, -1)
    table = read(tmp_path / "t", counts, ["a", "b"], features)
    assert table.feature_ids == table.names == tuple(sorted(features))
    assert table.sequences == ()
    np.testing.assert_array_equal(dense(table), counts[:, np.argsort(features)])


def test_some_ids_that_are_not_dna_say_how_to_pass_sequences(tmp_path):
    features = [*dna("A", "C"), "ac-gt", "b5eeb3", "Zea"]
    message = refused(save_hdf5(biom_table(features=features), tmp_path / "t"))
    assert "3 of 5 feature ids are not DNA of 30 letters or more: 'ac-gt', 'b5eeb3'" in message
    assert "pass sequences without gaps with --sequences rep-seqs.fasta|.qza" in message
    aligned = dna("-A", "C-", "--", "G.", "T-T")
    message = refused(save_hdf5(biom_table(features=aligned), tmp_path / "u"))
    assert "5 of 5 feature ids are not DNA" in message


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path, end, mark):
    texts = {"t": b"#OTU ID\tx\ty\nf1\t1\t0\nf2\t0\t7\n", "f": b">f1\nAC\nGT\n>f2 x\nTT\n"}
    for name, text in texts.items():
        (tmp_path / name).write_bytes(mark + text.replace(b"\n", end.encode()))
    table = read_table(tmp_path / "t", tmp_path / "f")
    assert table.sample_ids == ("x", "y")
    assert table.sequences == ("ACGT", "TT")
    assert dense(table).tolist() == [[1, 0], [0, 7]]


def test_other_artifacts_are_refused_with_the_reason(tmp_path):
    path = tmp_path / "t.qza"
    write_artifact(path, "FeatureTable[RelativeFrequency]", "F", {"feature-table.biom": b"x"})
    message = refused(path)
    assert "holds FeatureTable[RelativeFrequency], expected FeatureTable[Frequency]" in message
    assert "rarefaction needs counts" in message


def test_trim_merges_and_adds(tmp_path):
    features = dna("ACGTAA", "ACGTCC", "ACG", "TTTTTT", "ACGTAC")
    table = read(tmp_path / "t", features=features)
    message = refusal(fit_length, table, 36)
    assert "4 of 5 ASVs are longer than --max-bp 36, the longest has 38" in message
    assert "--trim" in message
    before = table.counts.copy()
    cut = fit_length(table, 36, trimmed=True)
    assert fit_length(cut, 36) is cut
    assert cut.sequences == tuple(dna("ACG", "ACGT", "TTTT"))
    assert cut.feature_ids == tuple(dna("ACG", "ACGTAA", "TTTTTT"))
    assert dense(cut).tolist() == [[0, 4, 70000], [0, 7, 0], [0, 2, 0]]
    np.testing.assert_array_equal(cut.depths, table.depths)
    assert fit_length(table, 38, trimmed=True) is table
    assert (table.counts != before).nnz == 0


def test_select_samples(tmp_path):
    table = read(tmp_path / "t")
    chosen = select_samples(table, ["s1", "s10"])
    assert chosen.sample_ids == ("s1", "s10")
    assert chosen.sequences == table.sequences
    np.testing.assert_array_equal(dense(chosen), COUNTS[[2, 0]][:, ORDER])


def test_what_is_written_is_what_biom_format_reads(tmp_path):
    features = ["f1", "f2", "f3", "f4", "f5"]
    table = make_table(csr_array(COUNTS.astype(np.uint32)), SAMPLES, features, SEQUENCES)
    write_biom(table, tmp_path / "a.biom")
    loaded = biom.load_table(str(tmp_path / "a.biom"))
    assert loaded == biom_table(COUNTS[:, ORDER], features=sorted(SEQUENCES))
    for need_sequences in (True, False):
        write_biom(read_table(tmp_path / "a.biom", None, need_sequences), tmp_path / "b.biom")
        assert (tmp_path / "a.biom").read_bytes() == (tmp_path / "b.biom").read_bytes()


def test_a_real_table_is_that_of_biom_format(bench_data):
    path = bench_data / "infant-age" / "table.biom"
    table, oracle = read_table(path), biom.load_table(str(path))
    order = np.argsort(oracle.ids("observation"))
    assert (table.counts.astype(float) != oracle.matrix_data.T.tocsr()[:, order]).nnz == 0
    assert table.sample_ids == tuple(oracle.ids())
    hashed = read_table(bench_data / "unifrac-truth" / "moving_pictures_q2mlab" / "table.biom")
    assert (len(hashed.feature_ids), hashed.sequences) == (533, ())
