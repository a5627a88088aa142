"""What the inputs of a job hold, checked before it is queued: headers and first rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm.jobs.inputs import content_problems
from slurm.jobs.options import parse_options
from slurm.jobs.request import Request

HEADER = "sample-id\tAge (days)\tsubject\tfold\n"
ROWS = "s1\t1\ta\t0\ns2\t2\tb\t1\n"
TABLE = "# Constructed from biom file\n#OTU ID\ts1\ts9\nACGT\t1\t2\n"
TRAIN = "--table table.tsv --metadata metadata.tsv"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "metadata.tsv").write_text(HEADER + "#q2:types\tnumeric\t\t\n" + ROWS)
    (tmp_path / "comma.csv").write_text("\ufeff" + HEADER.replace("\t", ",") + "s1,1,a,0\n")
    (tmp_path / "utf16.tsv").write_text(HEADER + ROWS, encoding="utf-16")
    (tmp_path / "other.tsv").write_text(HEADER + ROWS.replace("s", "t"))
    (tmp_path / "table.tsv").write_text(TABLE)
    (tmp_path / "table.biom").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / "tree.nwk").write_text("((A:1,B:1):1,C:1);")
    (tmp_path / "tree.qza").write_bytes(b"PK\x03\x04x")
    (tmp_path / "empty").touch()
    for name in ("run/model", "folds/fold-a/model", "other"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("run", "folds/fold-a"):
        (tmp_path / name / "model/model.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        ([*TRAIN.split(), "--metadata-column", "Age (days)", "--group-column", "subject"], []),
        ([*TRAIN.split(), "--cv", "fold"], []),
        ([*TRAIN.split(), "--cv", "5"], []),
        ("--table table.biom --metadata other.tsv --study-column fold", []),
        ("--table table.tsv --metadata comma.csv --metadata-column subject", []),
        ("--table table.tsv --metadata utf16.tsv --metadata-column what", []),
        ("--table table.biom --tree tree.nwk", []),
        ("--table table.biom --tree tree.qza", []),
        ("--table table.biom --model run run/model", []),
        ("--table missing.biom --metadata missing.tsv --metadata-column age", []),
        (
            [*TRAIN.split(), "--metadata-column", "Age (day)", "ph", "--group-column", "Subject"],
            [
                "--metadata-column 'Age (day)': METADATA has no such column; 'Age (days)'?",
                "--metadata-column 'ph': METADATA has no such column; it has 'Age (days)', 'subj",
                "--group-column 'Subject': METADATA has no such column; 'subject'?",
            ],
        ),
        (
            f"{TRAIN} --batch-column a --study-column b --split-column c --cv d",
            [
                "--batch-column 'a': METADATA has no",
                "--study-column 'b': METADATA has no",
                "--split-column 'c': METADATA has no",
                "--cv 'd': METADATA has no",
            ],
        ),
        (
            "--table table.tsv --metadata other.tsv --metadata-column fold",
            ["--metadata: none of its first 2 ids is a sample of --table: "],
        ),
        ("--table table.biom --tree /dev/null", ["--tree: /dev/null is a device and no file"]),
        ("--table table.biom --tree empty", ["--tree: TMP/empty is empty"]),
        ("--table empty", ["--table: TMP/empty is empty"]),
        ("--table table.biom --tree table.tsv", ["--tree: TMP/table.tsv is no tree in Newick"]),
        ("--table table.biom --model other", ["--model: TMP/other holds no model.json"]),
        ("--pretrained-encoder other", ["--pretrained-encoder: TMP/other holds no model.json"]),
        ("--pretrained-encoder 16s-v4", []),
        ("--pretrained-encoder folds", []),
    ],
    ids=str,
)
def test_what_headers_and_first_rows_show(study, words, problems):
    words = words.split() if isinstance(words, str) else words
    request = Request("train", tuple(words), data=study)
    found = content_problems(parse_options(words), request)
    texts = [text.replace(f"{study}/metadata.tsv", "METADATA") for text in found]
    texts = [text.replace(str(study), "TMP") for text in texts]
    assert len(texts) == len(problems), texts
    for text, expected in zip(texts, problems, strict=True):
        assert text.startswith(expected)
