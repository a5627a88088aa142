"""The metadata reader against scikit-bio's port of QIIME 2's, damaged files, and what align
keeps.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import skbio.metadata
from skbio.metadata import NumericMetadataColumn, SampleMetadata

from aam.errors import InputError
from aam.io.metadata import Metadata, align, read_metadata
from aam.io.missing import is_missing, is_no_class
from aam.io.text import is_number
from tests.archives import write_artifact
from tests.refusals import refusal

QIIME2_FILES = Path(skbio.metadata.__file__).parent / "tests" / "data"
# Files that QIIME 2 refuses and that are read here: nothing in them is ambiguous.
LENIENT = {"column-name-conflicts-with-id-header.tsv", "directive-after-directives-section.tsv"}

TABLE = "sample-id\tage\tsite\ns1\t1.5\tgut\ns2\t\toral\ns3\t3\tNA\n"


@pytest.fixture
def read(tmp_path):
    def read(content: str | bytes, **options) -> Metadata:
        path = tmp_path / "metadata.tsv"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_metadata(path, **options)

    return read


def cells(metadata: Metadata) -> dict[str, tuple[str | None, ...]]:
    """All values by column."""
    return {name: metadata.values(name, metadata.ids) for name in metadata.columns}


@pytest.fixture
def table(read):
    return read(TABLE)


def test_a_small_table(table):
    assert table.ids == ("s1", "s2", "s3")
    assert table.columns == ("age", "site")
    assert table.words == {"age": [], "site": ["NA"]}
    assert table.kinds == {"age": "numeric", "site": "categorical"}
    assert "s2" in table
    assert "s4" not in table
    assert table.values("site", ["s3", "s1"]) == (None, "gut")
    np.testing.assert_array_equal(table.numbers("age", ["s3", "s2", "s1"]), [3, np.nan, 1.5])
    some = table.at(["s3", "s1"])
    assert (some.ids, some.values("site"), some.groups("site")) == (
        ("s3", "s1"),
        (None, "gut"),
        ["sample s3", "gut"],
    )
    np.testing.assert_array_equal(some.numbers("age"), [3, 1.5])


@pytest.mark.parametrize("name", ["id", "Sample-ID", "sample_name", "#OTU ID", ""])
def test_ids_and_values_stay_text(read, name):
    metadata = read(f"{name}\tplate\n007\t01\n7\t1e2\n1.0\t1.\n")
    assert metadata.ids == ("007", "7", "1.0")
    assert metadata.values("plate", metadata.ids) == ("01", "1e2", "1.")
    np.testing.assert_array_equal(metadata.numbers("plate", metadata.ids), [1, 100, 1])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_byte_order_mark_quotes_comments(read, end, mark):
    text = '# made by hand\n\n  id \t"a ""b"""\n#q2:types\tcategorical\n#x\n s1 \t"1\t2"\n\t\n'
    text += 's2\t"x\ny"\n'
    metadata = read(mark + text.replace("\n", end).encode())
    assert metadata.ids == ("s1", "s2")
    assert cells(metadata) == {'a "b"': ("1\t2", f"x{end}y")}
    assert metadata.kinds == {'a "b"': "categorical"}


@pytest.mark.parametrize(
    "text",
    [
        'sample-id,age,site\ns1,1.5,"gut, oral"\n',
        "#SampleID;age;site\ns1;1.5;gut, oral\n",
        '"","age","site"\n"s1",1.5,"gut, oral"\n',
        "id\tage\tsite\t\t\ns1\t1.5\tgut, oral\t\t\t\n",
    ],
)
def test_delimiters_row_names_of_r_and_trailing_columns(read, text):
    metadata = read(text)
    assert metadata.ids == ("s1",)
    assert cells(metadata) == {"age": ("1.5",), "site": ("gut, oral",)}


def test_decimal_commas(read):
    text = "id\tph\tcity\tboth\ns1\t0,5\ta,b\t1\ns2\t-1,5e3\t1,5\t1,5\ns3\tNA\tx\n"
    both, ph = refusal(read(text).require, ["ph", "city", "both"]).split("\n")[::-1]
    assert "column 'ph' has numbers with decimal commas, such as '-1,5e3'; pass --decimal ," in ph
    assert "'both'" in both
    metadata = read(text, decimal=",")
    np.testing.assert_array_equal(metadata.numbers("ph", metadata.ids), [0.5, -1500, np.nan])
    np.testing.assert_array_equal(metadata.numbers("both", metadata.ids), [1, 1.5, np.nan])
    assert metadata.kinds == {"ph": "numeric", "city": "categorical", "both": "numeric"}
    read("id\tph\n#q2:types\tcategorical\ns1\t0,5\n").require(["ph"])


def test_types_directive(read):
    head = "id\tplate\tage\tfree\n#q2:types\tCategorical\tnumeric\t\n"
    metadata = read(head + "s1\t1\t2\t3\n")
    assert metadata.kinds == {"plate": "categorical", "age": "numeric", "free": "numeric"}


def test_the_missing_directive_makes_a_term_a_class(read):
    text = "id\tdrug\n{}s1\tNA\ns2\t\ns3\tyes\n"
    assert read(text.format("")).values("drug", ["s1", "s2", "s3"]) == (None, None, "yes")
    assert read(text.format("#q2:missing\tblank\n")).values("drug", ["s1", "s2"]) == ("NA", None)
    dash = text.replace("NA", "-")
    assert "'drug' are '-' (samples 's1')" in refusal(read(dash.format("")).require, ["drug"])
    read(dash.format("#q2:missing\tblank\n")).require(["drug"])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("# only\n", "empty or nothing but comments"),
        ("sample-id\tage\n#q2:types\tnumeric\n", "no samples below"),
        ("name\tage\ns1\t1\n", "line 1 is 'name\\tage', expected a header whose first cell"),
        ("name;age\ns1;1\n", "ids below it and tabs or commas between cells"),
        ("sample-id age\ns1 1\n", "line 1 is 'sample-id age'"),
        ("#q2:types\tnumeric\nid\ta\ns1\t1\n", "line 1 is '#q2:types"),
        ("id\ta\ta\n\t1\t2\n", "line 2: no sample id"),
        ("id\ta\ns1\t1\nid\ta\ns2\t1\n", "line 3: repeats the header"),
        ("id\ta\n" + "\t1\n" * 14, "line 2, 3, 4, 5, 6, 7, 8, 9 and 6 more: no sample id"),
        ("id\ta\n" + "\t1\n" * 14 + "s1\t1\t2\n", "line 16 (3 cells): expected 2 cells"),
        ("id\ta\n#q2:kinds\tnumeric\ns1\t1\n", "line 2: unknown directive"),
        ("id\ta\ns1\t1\n#q2:types\tnumeric\n", "line 3: a directive that stands twice or below"),
        ('id\ta\ns1\t1\ns2\t"1\ns3\t2\n', "row that begins on line 3 cannot be read"),
        ('id\ta\ns1\t"1"2\n', "double quote"),
        (b"id\tcity\ns1\tM\xe1laga\n", "line 2: byte 0xe1 at byte position 12 is not UTF-8 text"),
        (b"\xef\xbb\xbfid\tcity\ns1\tM\xe1laga\n", "byte position 15"),
        ("id\ta\ns1\t1\n".encode("utf-16"), "UTF-16"),
        ("id\ta\ns1\t1\n".encode("utf-16-le"), "byte 0x00 at byte position 1"),
        (b"PK\x03\x04....", "if it is an Excel workbook, save it as tab-separated text"),
        (b"\xd0\xcf\x11\xe0....", "is an Excel workbook (.xls, or with a password); save it as"),
        (
            b"Run\ta\ns1\t1\n",
            "line 1 is 'Run\\ta', expected a header whose first cell is sample-id",
        ),
    ],
)
def test_damaged_files_say_what_is_wrong(read, content, expected):
    assert expected in refusal(read, content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("id\tb\ta\n#q2:types\t\tnumber\ns1\t0\t1\n", "'number', expected numeric or cat"),
        ("id\tb\ta\n#q2:types\t\tnumeric\ns1\t0\tNA\ns2\t1\told\n", "'s2' has 'old'"),
        ("id\tb\ta\n#q2:missing\t\tempty\ns1\t0\t1\n", "'empty', expected INSDC:missing"),
        ("id\tb\ta\n#q2:missing\t\tno-missing\ns1\t0\t\n", "but sample 's1' is empty"),
        ("id\tb\ta\ns1\t0\t26,9\n", "decimal commas, such as '26,9'"),
        ("id\ta\tb\ta\ns1\t1\t2\t3\n", "2 columns are called 'a': column 2, column 4"),
    ],
)
def test_a_damaged_column_is_refused_only_by_name(read, content, expected):
    metadata = read(content)
    metadata.require(["b"])
    assert metadata.values("b", metadata.ids)
    assert expected in refusal(metadata.require, ["a"])
    if "a" in metadata.columns:
        metadata.values("a", metadata.ids)
        assert expected in "".join(metadata.read_as_text(["b", "a"]))


def test_columns_without_a_name_are_left_out(read, caplog):
    metadata = read("id\tx\t\t\ty\ns1\t1\t2\t4\t3\n")
    assert cells(metadata) == {"x": ("1",), "y": ("3",)}
    assert "header: 2 columns have no name: column 3, column 4; left out" in caplog.text
    assert metadata.values("y", ["s1"]) == ("3",)


def test_all_problems_at_once(read):
    messages = refusal(read, "id\ta\ns1\tx\ns1\t1\n\t2\ns2\t1\t2\n")
    for expected in ("several rows", "line 4: no sample id", "line 5 (3 cells): expected 2 cells"):
        assert expected in messages


def test_artifacts(tmp_path, table):
    path = tmp_path / "metadata.qza"
    write_artifact(path, "ImmutableMetadata", "F", {"metadata.tsv": TABLE.encode()})
    assert cells(read_metadata(path)) == cells(table)
    write_artifact(
        path, "SampleData[AlphaDiversity]", "F", {"alpha-diversity.tsv": b"\tpd\ns1\t2\n"}
    )
    assert cells(read_metadata(path)) == {"pd": ("2",)}
    write_artifact(path, "FeatureTable[Frequency]", "F", {"feature-table.biom": b""})
    assert "expected ImmutableMetadata or SampleData" in refusal(read_metadata, path)


def _read_all_columns(path):
    metadata = read_metadata(path)
    metadata.require([*metadata.columns, *metadata.faults])


@pytest.mark.skipif(
    not QIIME2_FILES.is_dir(), reason="scikit-bio is installed without its test data"
)
@pytest.mark.filterwarnings("ignore:Downcasting behavior:FutureWarning")
def test_agrees_with_qiime2_on_its_own_files():
    valid = sorted((QIIME2_FILES / "valid").iterdir())
    assert len(valid) > 30
    for path in valid:
        ours, theirs = read_metadata(path), SampleMetadata.load(str(path))
        assert ours.ids == theirs.ids, path.name
        assert list(ours.columns) == list(theirs.columns), path.name
        for name, properties in theirs.columns.items():
            column = theirs.get_column(name).to_series()
            if isinstance(theirs.get_column(name), NumericMetadataColumn):
                np.testing.assert_array_equal(
                    ours.numbers(name, ours.ids), column.to_numpy(), err_msg=path.name
                )
            elif ours.kinds[name] == properties.type:
                words = ours.words[name]
                expected = [None if pd.isna(cell) or cell in words else cell for cell in column]
                assert list(ours.values(name, ours.ids)) == expected, path.name
    for path in sorted((QIIME2_FILES / "invalid").iterdir()):
        if path.name not in LENIENT:
            with pytest.raises(InputError):
                _read_all_columns(path)


def test_problems_of_columns_and_samples_are_named(table):
    message = refusal(table.require, ["Agee", "age", "y"])
    assert "no column 'Agee'. Columns: 'age', 'site'" in message
    assert "no column 'y'" in message
    assert table.values("site", ["s9", "s1"]) == (None, "gut")
    found = "2 of 2 values that are no numbers of at most 1e+20: 'gut' (sample 's1')"
    assert found in refusal(table.numbers, "site", ["s1", "s2"])


GAPS = ["", "NA", "NaN", "n/a", "N/A", "NaT", "NULL", "<NA>", "#N/A", "missing", "not provided"]
GAPS += ["Not Applicable", "missing: control sample", "not collected: lost", "restricted access"]
ODD = ["-", "--", "?", ".", "...", "*", "/", "_", "\u2013", "(?)", "- -"]
ODD += ["#REF!", "#VALUE!", "#DIV/0!", "#NAME?", "#SPILL!", "#BEZUG!", "#NV", "Err:502"]
CLASSES = ["0", "nah", "none", "unknown", "k.A.", "ND", "99", "+", "++", "-1", "#1", "A-", "<5"]
CLASSES += ["\u2640", "not detected", "control", "missing values", "nan.", "not collecteds"]


@pytest.mark.parametrize("value", GAPS + ODD + CLASSES)
def test_missing_words_and_cells_that_are_no_class(value):
    assert is_missing(value) == (value in GAPS)
    assert is_no_class(value) == (value in ODD)


@pytest.mark.parametrize("name", ["site", "age"])
@pytest.mark.parametrize("cell", ODD)
def test_a_cell_that_was_missing_in_earlier_versions_is_no_class(read, name, cell):
    """It ends a command only where the column is named, also as a group among numbers."""
    text = "id\tsite\tage\ns1\tgut\t1\ns2\toral\t2\ns3\tgut\t3\n"
    line = f"s4\t{cell}\t4\n" if name == "site" else f"s4\tgut\t{cell}\n"
    metadata = read(text + line)
    (other,) = {"site", "age"} - {name}
    metadata.require([other])
    assert not metadata.read_as_text(metadata.columns)
    message = refusal(metadata.require, ["site", "age"])
    assert f": cells of column {name!r} are {cell!r} (samples 's4'); empty them" in message
    metadata = read(text + line, missing_values=[cell])
    metadata.require([name])
    assert metadata.values(name, ["s4"]) == (None,)


def test_punctuation_is_a_class_next_to_a_plus_sign(read):
    metadata = read("id\tcase\ttest\ns1\tyes\t+\ns2\t-\t-\ns3\tno\t++\n")
    assert "'case' are '-'" in refusal(metadata.require, ["case", "test"])
    metadata.require(["test"])
    assert metadata.values("test", metadata.ids) == ("+", "-", "++")


def test_further_missing_values_are_those_that_are_named(read):
    text = "id\tsite\tage\ns1\tUnknown\t-9\ns2\tgut\t3\ns3\toral\t4\n"
    metadata = read(text, missing_values=("unknown", "-9"))
    assert metadata.values("site", metadata.ids) == (None, "gut", "oral")
    np.testing.assert_array_equal(metadata.numbers("age", metadata.ids), [np.nan, 3, 4])


@pytest.mark.parametrize(
    ("subjects", "studies", "expected"),
    [
        ("1 2 1 2", "a a b b", "a: 1|a: 2|b: 1|b: 2"),
        ("1 2 3 2", "a a b b", "1|a: 2|3|b: 2"),
        ("1 1 2 2", "a a b b", "1|1|2|2"),
        ("1 1 NA 1", "a b a NA", "a: 1|b: 1|sample s2|1"),
    ],
)
def test_groups_are_nested_in_studies(read, subjects, studies, expected):
    """Subject 1 of two studies was one subject, or refused as one in two folds."""
    rows = zip(subjects.split(), studies.split(), strict=True)
    lines = [f"s{at}\t{subject}\t{study}\n" for at, (subject, study) in enumerate(rows)]
    metadata = read("id\twho\tstudy\n" + "".join(lines))
    nested = metadata.nested("who", "study")
    assert "|".join(nested.groups("who", metadata.ids)) == expected
    for columns in (("who", None), (None, "study"), ("study", "study"), ("who", "absent")):
        assert metadata.nested(*columns) is metadata


NUMBERS = ["1", "-1.5", "+2", ".5", "3.", "1e-3", "2E+4", "007"]
NO_NUMBERS = ["", "1_000", "1,5", "inf", "1e999", "1e21", "0x1", "1 2", "\u0661", "9" * 9999 + "x"]


@pytest.mark.parametrize("value", NUMBERS + NO_NUMBERS)
def test_numbers(value):
    assert is_number(value) == (value in NUMBERS)


def test_align_refuses_with_counts_and_examples(table):
    assert align(table, ["s3", "s1"], ["age"]) == ("s3", "s1")
    message = refusal(align, table, ["s3", "s9", "s2", "s1"], ["age", "site"])
    rows, age, site = message.split("\n")
    assert "1 of 4 samples of the table have no row: 's9'" in rows
    assert "1 of 4 samples have no value in 'age': 's2'" in age
    assert "1 of 4 samples have no value in 'site' (read as missing: 'NA'): 's3'" in site
    assert all("--missing drop" in problem for problem in (rows, age, site))
    line = "if such a word is a class, add a second line '#q2:missing' with blank below it"
    assert [(line in problem) for problem in (rows, age, site)] == [False, False, True]


def test_align_drops_and_says_so(table, caplog):
    with caplog.at_level("WARNING"):
        assert align(table, ["s3", "s9", "s2", "s1"], ["age"], missing="drop") == ("s3", "s1")
    assert [record.getMessage().split(": ", 1)[1] for record in caplog.records] == [
        "1 of 4 samples of the table have no row: 's9' (its own ids look like 's1', 's2', 's3'); "
        "left out",
        "1 of 4 samples have no value in 'age': 's2'; left out",
    ]


@pytest.mark.parametrize("missing", ["error", "drop"])
def test_align_never_keeps_nothing(table, missing):
    assert "its own ids look like 's1', 's2', 's3'" in refusal(
        align, table, ["x1", "x2"], ["age"], missing=missing
    )
    assert "no column 'ag'" in refusal(align, table, ["s1"], ["ag"], missing=missing)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Unnamed: 0,SampleID,age\n1,s1,3\n2,s2,4\n", "line 1 is 'Unnamed: 0,SampleID,age'"),
        ("id\tage\n#s1\t3\n#s2\t4\n", "rows that begin with # are comments"),
        ("id\tage\n" + "s1\t3\t4\n" * 2, "line 2 (3 cells), 3 (3 cells): expected 2 cells"),
    ],
)
def test_the_cause_is_named(read, text, expected):
    assert expected in refusal(read, text)


def test_a_data_column_without_a_name_at_the_end_is_left_out(read, caplog):
    metadata = read("id\tage\t\ns1\t3\tx\ns2\t4\ty\n")
    assert cells(metadata) == {"age": ("3", "4")}
    assert "1 columns have no name: column 3; left out" in caplog.text
