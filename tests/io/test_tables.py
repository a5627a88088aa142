"""Tables of text and sequences from FASTA: what is read, and what is refused with its line."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from aam.data.table import read_table
from aam.files.atomic import MAX_BYTES
from aam.io import text
from tests.archives import write_artifact
from tests.data.small_tables import COUNTS, ORDER, biom_table, dense, refused, save_hdf5
from tests.data.small_tables import SEQUENCES as SEQUENCES_OF_TABLE

R_OBJECTS = [gzip.compress(blob, mtime=0) for blob in (b"X\n\0\0\0\3\0\4\1\2", b"RDX3\nX\n")]
CONVERT = "pandas.read_csv(sys.argv[1], sep={!r}, dtype=str, index_col=0)"
TSV = "# Constructed from biom file\n#OTU ID\ts1\ts2\nACGT\t1\t2\nGG\t3\t{}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            TSV.format("0.5") + "TT\t-1\tinf\nA\t-2\t1\n",
            [
                "-1 at sample 's1', feature 'TT', expected whole reads from 0 to 4294967295 (values",
                "reads: 4); pass raw counts, not normalised, scaled or logarithmic ones, and 0 for mi",
            ],
        ),
        (TSV.format("0.5"), ["0.5 at sample 's2', feature 'GG', expected whole"]),
        (TSV.format("nan"), ["line 4 (sample 's2' has 'nan'): expected a count, 0 where"]),
        (TSV.format("4294967296"), ["feature 'GG', expected whole"]),
        (
            TSV.format("x") + "TT\t\t1\n",
            ["line 4 (sample 's2' has 'x'), 5 (sample 's1' has ''): expected a count, 0 where"],
        ),
        (TSV.format("1_0"), ["line 4 (sample 's2' has '1_0'): expected a count"]),
        (TSV.format("1\t2"), ["line 4 (4): expected 3 cells, as in the header"]),
        (TSV.format("1") + "\nTT\t1\n", ["line 6 (2): expected 3 cells"]),
        (TSV.format('"1'), ["""line 4 (sample 's2' has '"1'): expected a count"""]),
        (TSV.format("1").replace("GG", "ACGT"), ["1 feature ids occur more than once: 'ACGT'"]),
        (
            TSV.format("1").replace("s2", "s1"),
            ["once: 's1'; keep one; ids that were numbers (2.10"],
        ),
        (TSV.format("1").replace("GG", ""), ["1 feature ids are empty, the first is feature 2"]),
        (TSV.format("1").replace("s2", " "), ["1 sample ids are empty, the first is sample 2"]),
        (TSV.format("1").replace("s2", "s\x07"), ["cannot be printed"]),
        (TSV.format("1").replace("s2", "s\x00"), ["line 2: byte 0x00", "UTF-8"]),
        (TSV.format("1").encode("utf-16"), ["UTF-16"]),
        (TSV.format("1").replace("s2", "é").encode("latin-1"), ["line 2: byte 0xe9", "iconv"]),
        ("#OTU ID\ts1\n", ["the table is empty, it has no features"]),
        ("#OTU ID\nACGT\n", ["the table is empty, it has no samples"]),
        ("id\tACGT\n", ["begins with 'id\\tACGT', expected BIOM"]),
        ("#OTU ID\ts1\nACGT\t0\n", ["the table is empty, all counts are 0"]),
        ("\n \n", ["empty or nothing but comments", "#OTU ID"]),
        (
            "O1\t1\t2\nACGT\t1\t0\n",
            ["begins with 'O1", CONVERT.format("\t"), "index_label='#OTU ID'"],
        ),
        (R_OBJECTS[0], ["an object of R (.rds or .RData), expected text"]),
        (R_OBJECTS[1], ["an object of R"]),
        ('{"rows": [], "columns": [], "shape": [0, 0]}', ["is BIOM 1.0 (JSON); `biom convert"]),
        ("#OTU ID\ts1\ts2\ts3\nA\tx\ty\tz\n", ["2 (sample 's1' has 'x'), 2 (sample 's2' has 'y')"]),
        ("#OTU ID\ts1\ts2\t\nO1\t1\t2\t7\n", ["1 sample ids are empty, the first is sample 3"]),
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
HEADERS = ("#OTU ID", "# OTU ID", "OTU ID", "#OTUID", "feature-id", "Feature ID", "featureid")

# The one form of text: what biom convert writes, and what spreadsheets make of it.
SPELLINGS = {header: f"{header}\ts1\ts2\n{READS}" for header in HEADERS} | {
    "biom convert": f"# Constructed from biom file\n#OTU ID\ts1\ts2\n{READS}",
    "taxonomy": "#OTU ID\ts1\ts2\ttaxonomy\n{0}\t1\t0\tk__B; p__F\n{1}\t2\t3\t\n",
    "blank rows": "\n#OTU ID\ts1\ts2\n\t\t\n{0}\t1\t0\n{1}\t2\t3\n\t\t\n\n",
    "blanks around ids": "#OTU ID\t s1\ts2 \n {0} \t1\t0\n{1}\t2\t3\n",
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
def test_a_turned_table_is_refused(tmp_path, need_sequences):
    turned = biom_table(COUNTS[:2, :2], SEQUENCES, ["s1", "s2"])
    message = refused(save_hdf5(turned, tmp_path / "t.biom"), need_sequences=need_sequences)
    assert "are sequences, and feature ids such as 's1' are none: the table is turned" in message
    assert "transpose it (t(x) in R, .T in pandas" in message


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
    names, barcodes = ["f1", "f2"], ["ACGTACGTAC" * 2, "TTGATTGATT" * 2]
    path = save_hdf5(biom_table(COUNTS[:2, :2], barcodes, names), tmp_path / "t.biom")
    table = read_table(path, fasta)
    assert (set(table.sample_ids), table.sequences) == (set(barcodes), ("ACGT", "TTGA"))
    path = save_hdf5(biom_table(COUNTS[:2, :2], names, barcodes), tmp_path / "t.biom")
    assert "the table is turned" in refused(path, sequences=fasta)


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


# Other forms, and what the one message about the header says of them.
OTHER_FORMS = {
    "write.csv": ('"","s1","s2"\n"O1",1,0\n', CONVERT.format(",")),
    "commas": ("#OTU ID,s1,s2\nO1,1,0\n", CONVERT.format(",")),
    "semicolons": ("#OTU ID;s1;s2\nO1;1;0\n", CONVERT.format(";")),
    "write.table": ('"s1" "s2"\n"O1" 1 0\n', CONVERT.format(" ")),
    "row names": ("\ts1\ts2\nO1\t1\t0\n", CONVERT.format("\t")),
    "quotes": ('"#OTU ID"\t"s1"\t"s2"\nO1\t1\t0\n', CONVERT.format("\t")),
    "samples in rows": ("sample-id\tO1\ns1\t3\n", "write .T before .to_csv if its samples are"),
    "DADA2": ('"","{0}","{1}"\n"s1",1,2\n', "write .T before .to_csv"),
    "shared": (
        "label\tGroup\tnumOtus\tO1\n0.03\ts1\t1\t5\n",
        "of mothur, pass what make.biom writes",
    ),
    "count_table": ("Representative_Sequence\ttotal\ts1\nO1\t5\t5\n", "make.biom writes"),
    "MetaPhlAn": ("#mpa_v31\nclade_name\ts1\nk__B\t1.5\n", CONVERT.format("\t")),
    "featureCounts": ("Geneid\tChr\tStart\ts1\nO1\tc\t1\t9\n", CONVERT.format("\t")),
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_other_forms_are_refused_with_what_converts_them(tmp_path, form):
    content, remedy = OTHER_FORMS[form]
    (tmp_path / "t.csv").write_text(content.format(*SEQUENCES))
    message = refused(tmp_path / "t.csv")
    assert "\n" not in message
    assert "t.csv: begins with" in message
    assert remedy in message


@pytest.mark.parametrize(
    "form", ["write.csv", "commas", "semicolons", "write.table", "row names", "quotes", "DADA2"]
)
def test_the_command_of_the_message_converts(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a table's.csv"
    path.write_text(OTHER_FORMS[form][0].format(*SEQUENCES))
    command = re.search("convert it with (python3 .*); write .T", refused(path))[1]
    if form == "DADA2":
        command = command.replace(").to_csv", ").T.to_csv")
    subprocess.run(["bash", "-c", command.replace("python3", sys.executable, 1)], check=True)
    counts = dense(read_table(tmp_path / "table.tsv")).tolist()
    assert counts == ([[1, 2]] if form == "DADA2" else [[1], [0]])


@pytest.mark.parametrize("names", [("101", "102"), ("V1", "V2"), ("1_0", "1_2"), ("2.10", "2.1")])
def test_ids_stay_text(tmp_path, names):
    (tmp_path / "t.tsv").write_text("#OTU ID\t{}\t{}\nO1\t1\t2\n".format(*names))
    assert read_table(tmp_path / "t.tsv").sample_ids == names
