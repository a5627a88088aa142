"""`aam.run`: a command from Python, from file to file."""

from __future__ import annotations

import pytest

import aam
from tests.refusals import refusal


def test_a_command_runs_with_its_options_by_keyword(simulate_study, tmp_path):
    study = simulate_study(samples=12, asvs=20)
    files = {name: study / file for name, file in (("table", "table.biom"), ("tree", "tree.nwk"))}
    assert aam.run("unifrac", **files, output=tmp_path / "d.tsv", unifrac_metric="weighted") == 0
    ids = (tmp_path / "d.tsv").read_text().splitlines()[0].split("\t")[1:]
    expected = aam.unifrac(files["table"], files["tree"], "weighted")
    assert ids == list(expected.ids)


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("trian", {}, "command is 'trian', expected one of audit, pretrain, train"),
        ("train", {"epoch": 3}, "unknown option 'epoch'; did you mean 'epochs'?"),
        ("train", {"epochs": "3"}, "'epochs' is '3': Input should be a valid integer"),
        ("unifrac", {"table": "no.biom"}, "--table: no.biom: no such file or folder"),
        ("audit", {"metadata_column": "ph"}, "--metadata: not given, and it is required"),
    ],
)
def test_wrong_commands_and_options_are_named(command, options, message):
    assert message in refusal(aam.run, command, **options)


def test_an_audit_names_columns_that_are_not_there_and_writes_a_whole_file(
    simulate_study, tmp_path
):
    study = simulate_study(samples=30, asvs=20)
    files = {"table": study / "table.biom", "metadata": study / "metadata.tsv"}
    columns = {"metadata_column": "biome", "group_column": "subjct", "study_column": "stdy"}
    message = refusal(aam.run, "audit", **files, **columns)
    assert "no column 'subjct'" in message
    assert "no column 'stdy'" in message
    output = tmp_path / "new" / "audit"
    assert aam.run("audit", **files, metadata_column="biome", output=output) == 0
    assert (output / "columns.tsv").read_text().splitlines()[0].startswith("column\t")
    assert "expected a folder" in refusal(
        aam.run, "audit", **files, output=tmp_path / "columns.tsv"
    )


def test_doctor_replaces_only_a_report_of_its_own(tmp_path):
    other = tmp_path / "notes.json"
    biom = '{"id": null, "format": "Biological Observation Matrix 1.0.0"}'
    for text in ("[]", "{}", "notes", biom, '{"format": 1, "files": {}}'):
        other.write_text(text)
        assert "was not written by `aam doctor`" in refusal(aam.run, "doctor", output=other)
        assert other.read_text() == text
