"""Tables of text and sequences from FASTA: what is read, and what is refused with its line."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest

from aam.data.table import read_table
from aam.files.atomic import MAX_BYTES
from aam.io import text
from aam.io.packed import write_artifact
from tests.data.small_tables import COUNTS, ORDER, biom_table, dense, refused, save_hdf5
from tests.data.small_tables import SEQUENCES as SEQUENCES_OF_TABLE

R_OBJECTS = [gzip.compress(blob, mtime=0) for blob in (b"X\n\0\0\0\3\0\4\1\2", b"RDX3\nX\n")]
BLANKS = """cells of '"s1" "s2"' are separated by blanks, as write.table of R"""
TSV = "# Constructed from biom file\n#OTU ID\ts1\ts2\nACGT\t1\t2\nGG\t3\t{}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            TSV.format("0.5") + "TT\t-1\tnan\nA\t-2\t1e11\n",
            [
                "-1 at sample 's1', feature 'TT', expected whole reads from 0 to 4294967295 (values",
                "reads: 5); pass raw counts, not normalised, scaled or logarithmic ones and 0 for mis",
            ],
        ),
        (
            TSV.format("0.5"),
            ["0.5 at sample 's2', feature 'GG', expected whole", "logarithmic ones"],
        ),
        (TSV.format("-1"), ["-1 at sample 's2', feature 'GG', expected whole"]),
        (
            TSV.format("nan"),
            ["feature 'GG', expected whole", "reads: 1); pass 0 for missing reads"],
        ),
        (TSV.format("4294967296"), ["feature 'GG', expected whole"]),
        (
            TSV.format("x") + "TT\t\t1\n",
            [
                "line 4 (sample 's2' has 'x'): expected a count",
                "5 (sample 's1' has ''): expected a",
            ],
        ),
        (TSV.format("1_0"), ["line 4 (sample 's2' has '1_0'): expected a count"]),
        (TSV.format("1\t2"), ["line 4 (4 cells): more cells than the 3"]),
        (TSV.format("1") + "\nTT\t1\n", ["line 6 (2 cells): fewer cells than the 3"]),
        (TSV.format('"1'), ["the row that begins on line 4 cannot be read"]),
        (TSV.format("1").replace("GG", "ACGT"), ["1 feature ids occur more than once: 'ACGT'"]),
        (TSV.format("1").replace("GG", ""), ["1 feature ids are empty, the first is feature 2"]),
        (TSV.format("1").replace("s2", " "), ["column 3 has values and no name"]),
        (TSV.format("1").replace("s2", "s\x07"), ["cannot be printed"]),
        (TSV.format("1").replace("s2", "s\x00"), ["line 2: byte 0x00", "UTF-8"]),
        (TSV.format("1").encode("utf-16"), ["UTF-16"]),
        (TSV.format("1").replace("s2", "é").encode("latin-1"), ["line 2: byte 0xe9", "iconv"]),
        ("#OTU ID\ts1\n", ["the table is empty, it has no features"]),
        ("#OTU ID\nACGT\n", ["the table is empty, it has no samples"]),
        ("#OTU ID\ts1\nACGT\t0\n", ["the table is empty, all counts are 0"]),
        ("\n \n", ["empty or nothing but comments", "#OTU ID"]),
        ("name|ACGT\ns1|1\n", ["line 1 begins with 'name|ACGT'", "#OTU ID", "features in rows"]),
        ("O1,1,2\nACGT,1,0\n", ["line 1 begins with 'O1' (cells separated by commas)"]),
        ('"s1" "s2"\n"ACGT" 1 0\n', [BLANKS]),
        ("#OTU s1 s2\nACGT 1 0\nACGA 1 0\n", ["cells of 'ACGT 1 0' are separated by blanks"]),
        (R_OBJECTS[0], ["an object of R (.rds or .RData), expected text"]),
        (R_OBJECTS[1], ["an object of R"]),
        ('{"rows": [], "columns": [], "shape": [0, 0]}', ["BIOM 1.0 without 'data'"]),
        ("#OTU ID\ts1\ts2\ts3\nA\tx\ty\tz\n", ["2 (sample 's1' has 'x'), 2 (sample 's2' has 'y')"]),
    ],
)
def test_bad_tsv(tmp_path, text, expected):
    path = tmp_path / "t.tsv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refused(path)
    for part in expected:
        assert part in message


def test_text_that_is_too_large_can_be_hdf5(tmp_path):
    with (tmp_path / "t.tsv").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    expected = f"at most {MAX_BYTES} are read; a table of this size can be BIOM HDF5"
    assert refused(tmp_path / "t.tsv").endswith(expected)


SEQUENCES = ("ACGT" * 8, "CCGT" * 8)
READS = "{0}\t1\t0\n{1}\t2\t3\n"
HEADERS = [
    *("OTU_ID", "OTU", "ASV", "ASV_ID", "FeatureID", "Feature.ID", "X.OTU.ID", "# OTU ID", "zOTU"),
    *("Geneid", "clade_name", "#NAME", "Species", "ESV", "taxonomy", "name", "Clusters", "# Taxa"),
    *("Row.names", "sequence", "otu id", "#ASV", "features", "OTU IDs", "Unnamed: 0", "seq_id"),
]


# One table as spreadsheets save it, and as write.table and write.csv of R and DADA2 write it.
SPELLINGS = {header: f"{header}\ts1\ts2\n{READS}" for header in HEADERS} | {
    "trailing tabs": "#OTU ID\ts1\ts2\t\t\n{0}\t1\t0\t\t\n{1}\t2\t3\t\t\n",
    "trailing tabs of rows": "#OTU ID\ts1\ts2\n{0}\t1\t0\t\t\n{1}\t2\t3\n",
    "blank rows": "#OTU ID\ts1\ts2\n\t\t\n{0}\t1\t0\n{1}\t2\t3\n\t\t\n\t\t\t\t\n",
    "empty column of commas": "#OTU ID,s1,s2,\n{0},1,0,\n{1},2,3,\n,,,\n",
    "a semicolon in a name": '#OTU ID,"s1","s;2"\n{0},1,0\n{1},2,3\n',
    "a semicolon in a name without quotes": "#OTU ID,s1,s;2\n{0},1,0\n{1},2,3\n",
    "both in quotes": '#OTU ID,s1,"s;2",taxonomy\n{0},1,0,"a, b, c; d"\n{1},2,3,"a, b, c; d"\n',
    "semicolons in quotes": '#OTU ID;s1;"s, 2";taxonomy\n{0};1;0;"a;b;c, d"\n{1};2;3;"a;b;c, d"\n',
    "a comma in a name": "#OTU ID\ts1\ts,2\n{0}\t1\t0\n{1}\t2\t3\n",
    "blanks around ids": "#OTU ID\t s1\ts2 \n {0} \t1\t0\n{1}\t2\t3\n",
    "semicolons": "feature-id;s1;s2;taxonomy\n{0};1;0;k__B, p__é\n{1};2;3;k__B\n",
    "write.table": '"s1"\t"s2"\n"{0}"\t1\t0\n"{1}"\t2\t3\n',
    "write.csv": '"","s1","s2"\n"{0}",1,0\n"{1}",2,3\n',
    "DADA2 csv": '"","{0}","{1}"\n"s1",1,2\n"s2",0,3\n',
    "DADA2 table": '"{0}"\t"{1}"\n"s1"\t1\t2\n"s2"\t0\t3\n',
    "ranks": "#OTU ID\tKingdom\ts1\tSpecies\ts2\n{0}\tB\t1\tNA\t0\n{1}\tA\t2\t\t3\n",
    "confidence": "id\ts1\ts2\tConfidence\tTaxon\n{0}\t1\t0\t0.98\tB\n{1}\t2\t3\t1\tB\n",
    "taxonomy first": "#OTU ID,taxonomy,s1,s2,Sequence\n{0},B,1,0,ACG\n{1},A,2,3,AC\n",
    "featureCounts": "Geneid\tChr\tStart\tEnd\tStrand\tLength\ts1\ts2\n"
    "{0}\tc\t1\t9\t+\t9\t1\t0\n{1}\tc\t1\t9\t+\t9\t2\t3\n",
    "shared of mothur": "label\tGroup\tnumOtus\t{0}\t{1}\n0.03\ts1\t2\t1\t2\n0.03\ts2\t2\t0\t3\n",
    "groups of mothur": "Group\t{0}\t{1}\ns1\t1\t2\ns2\t0\t3\n",
    "count_table of mothur": "Representative_Sequence\ttotal\ts1\ts2\n{0}\t1\t1\t0\n{1}\t5\t2\t3\n",
    "samples in rows": "sample-id\t{0}\t{1}\ns1\t1\t2\ns2\t0\t3\n",
}


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    path = tmp_path / "t.qza"
    os.mkfifo(path)
    assert "a pipe or device, expected a file" in refused(path)
    assert "cannot be read" in refused(tmp_path)
    assert "no such file" in refused(tmp_path / "missing.biom")


def test_whole_numbers_with_a_point_and_samples_without_reads_are_fine(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("#OTU ID\ts1\ts2\ts3\nACGT\t1.0\t0\t2e3\nGG\t0\t0.0\t 5\n")
    assert dense(read_table(path)).tolist() == [[1, 0], [0, 0], [2000, 5]]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_a_table_packed_by_gzip(tmp_path, spelling):
    path = tmp_path / "t.csv"
    path.write_bytes(gzip.compress(SPELLINGS[spelling].format(*SEQUENCES).encode()))
    table = read_table(path)
    assert (table.sample_ids[0], table.sequences) == ("s1", SEQUENCES)
    assert dense(table).tolist() == [[1, 2], [0, 3]]


@pytest.mark.parametrize("need_sequences", [True, False])
def test_a_turned_biom_table_is_recognized(tmp_path, caplog, need_sequences):
    turned = biom_table(COUNTS[:2, :2], SEQUENCES, ["s1", "s2"])
    with caplog.at_level("INFO"):
        table = read_table(save_hdf5(turned, tmp_path / "t.biom"), need_sequences=need_sequences)
    assert "samples are in rows and features in columns; the table was transposed" in caplog.text
    assert (table.sample_ids, table.feature_ids) == (("s1", "s2"), SEQUENCES)
    assert dense(table).tolist() == COUNTS[:2, :2].T.tolist()


def test_what_both_have_is_not_turned(tmp_path):
    """Samples called by DNA too were taken for ASVs in a table of text."""
    path, asvs, samples = tmp_path / "t.tsv", ("ACGT" * 10, "CCGT" * 10), ("TTGA" * 8, "GGAA" * 8)
    rows = ["\t".join(("#OTU ID", *samples)), *(f"{asv}\t1\t2" for asv in asvs)]
    path.write_text("\n".join(rows) + "\n")
    table = read_table(path)
    assert (table.sample_ids, table.sequences) == (samples, asvs)


def test_sequences_tell_which_names_are_asvs(tmp_path):
    fasta = tmp_path / "seqs.fasta"
    fasta.write_text(">f2\nTTGA\n>f1\nACGT\n")
    barcodes = ["ACGTACGTAC" * 2, "TTGATTGATT" * 2]
    for asvs, samples in (["f1", "f2"], barcodes), (barcodes, ["f1", "f2"]):
        path = save_hdf5(biom_table(COUNTS[:2, :2], asvs, samples), tmp_path / "t.biom")
        table = read_table(path, fasta)
        assert (set(table.sample_ids), table.sequences) == (set(barcodes), ("ACGT", "TTGA"))


@pytest.mark.parametrize("kind", ["plain", "gzip", "qza"])
def test_sequences_from_a_file(tmp_path, kind):
    ids = ["f1", "f2", "f3", "f4", "f5"]
    path = save_hdf5(biom_table(features=ids), tmp_path / "t")
    pairs = list(zip(ids, SEQUENCES_OF_TABLE, strict=True))[::-1]
    records = [f">{name} some text\n{s[:2]}\n{s[2:].lower()}\n" for name, s in pairs]
    text = "".join([*records, ">unused\nACXX--\n"]).encode()
    fasta = tmp_path / "rep-seqs"
    if kind == "qza":
        write_artifact(fasta, "FeatureData[Sequence]", "F", {"dna-sequences.fasta": text})
    else:
        fasta.write_bytes(gzip.compress(text, mtime=0) if kind == "gzip" else text)
    table = read_table(path, sequences=fasta)
    assert table.sequences == tuple(sorted(SEQUENCES_OF_TABLE))
    assert table.feature_ids == tuple(ids[i] for i in ORDER)
    np.testing.assert_array_equal(dense(table), COUNTS[:, ORDER])


@pytest.mark.parametrize(
    ("fasta", "expected"),
    [
        (
            b">f1\nAC\n>f2\nA-T\n>f3\nAXT\n",
            ["3 ('f2'): holds '-'", "not aligned", "5 ('f3'): holds"],
        ),
        (b">f1\nAC\n>f1\nAC\n", ["line 3 ('f1'): an id that occurs a second time"]),
        (b">f1\n>f2\nA\n", ["line 1 ('f1'): no sequence"]),
        (b">f1\nACGT\n", ["no sequence for 2 of the 3 features", "'f2', 'f3'", "--sequences"]),
        (b"\nACGT\n", ["line 2 is 'ACGT'", "FASTA"]),
        (b"\x1f\x8b\x08junk", ["damaged gzip"]),
        (gzip.compress(b">f1\n" + b"A" * 90_000, mtime=0), ["unpacks to more than"]),
    ],
)
def test_bad_fasta(tmp_path, monkeypatch, fasta, expected):
    monkeypatch.setattr(text, "EXEMPT", 1000)
    path = save_hdf5(biom_table([[1, 2, 3]], ["s"], ["f1", "f2", "f3"]), tmp_path / "t")
    fasta_path = tmp_path / "x.fasta"
    fasta_path.write_bytes(fasta)
    message = refused(path, sequences=fasta_path)
    assert str(fasta_path) in message
    for part in expected:
        assert part in message


R_TABLE = "V1\tV2\tV3\n#OTU ID\ts1\ts2\nACGT\t1\t2\n"
LABELS = "label\tGroup\tnumOtus\tO1\n0.03\ts1\t1\t5\n0.05\ts1\t1\t6\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (R_TABLE, "the header is V1, V2 and so on, as R names columns"),
        ("\tV1\tV2\n1\t#OTU ID\ts1\n2\tACGT\t1\n", "the names stand on line 2 ('1', '#OTU ID'"),
        (LABELS, "a .shared of mothur with 2 labels: '0.03', '0.05'"),
        ("Representative_Sequence\ttotal\nO1\t5\n", "a .count_table of mothur without samples"),
        ("#Compressed Format: groupIndex,abundance\n#1,s1\nx\t1\t1,5\n", "compress=f"),
        (",sample-id,O1\n0,s1,3\n1,s2,4\n", "the ids are in column 'sample-id'"),
        ("id\ts1\ts2\t\nO1\t1\t2\t7\nO2\t0\t3\t8\n", "column 4 has values and no name"),
        ("id\ts1\ts2\nO1\t1\t2\t7\nO2\t0\t3\n", "line 2 (4 cells): more cells than the 3"),
        (
            "id\ts1\thit\n" + "".join(f"O{row}\t{row}\tStreptococcus\n" for row in range(9)),
            "1 columns hold text: 'hit' (such as 'Streptococcus' in 'hit' on line 2)",
        ),
        (
            "id\ts1\ts2\n" + "".join(f"O{row}\t\t{row}\n" for row in range(9)),
            "and 1 more: expected a count; write 0 where there are no reads",
        ),
        (
            "id\ts1\n" + "".join(f"O{row}\t{row}\n" for row in range(40)) + "P\tx\n" * 12,
            "and 4 more: expected a count",
        ),
    ],
)
def test_one_message_for_each_cause(tmp_path, text, expected):
    path = tmp_path / "t.tsv"
    path.write_text(text)
    message = refused(path)
    assert expected in message
    assert "\n" not in message


@pytest.mark.parametrize("header", ["Geneid", "#NAME", "Species"])
def test_samples_may_be_called_by_numbers(tmp_path, header):
    (tmp_path / "t.tsv").write_text(f"{header}\t101\t102\nO1\t1\t2\n")
    assert read_table(tmp_path / "t.tsv").sample_ids == ("101", "102")


def test_samples_called_1_0_stand_above_counts(tmp_path):
    (tmp_path / "t.tsv").write_text("taxon of mine\t1_0\t1_2\nO1\t1\t2\n")
    assert read_table(tmp_path / "t.tsv").sample_ids == ("1_0", "1_2")


def test_visits_called_v1_are_samples(tmp_path):
    (tmp_path / "t.tsv").write_text("\tV1\tV2\nO1\t1\t2\n")
    assert read_table(tmp_path / "t.tsv").sample_ids == ("V1", "V2")
