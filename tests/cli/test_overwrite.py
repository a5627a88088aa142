"""`--overwrite` replaces what the same command wrote, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from aam.cli import main
from aam.errors import InputError
from aam.files.output_folder import OutputFolder


@pytest.fixture(scope="module")
def study(simulate_study) -> Path:
    return simulate_study(samples=40, asvs=60, depth=2000)


MEMBERS = "--members deep presence"


def train(study: Path, output: Path, more: str = "--members presence") -> int:
    words = f"train --table {study}/table.biom --metadata {study}/metadata.tsv --metadata-column "
    words += "biome --threads 1"
    words += " --rarefy-depth 200 --device cpu --epochs 1 --embedding-dim 8 --attention-layers 1 "
    words += "--attention-heads 2"
    return main([*words.split(), *more.split(), "--output-dir", str(output)])


@pytest.fixture(scope="module")
def run(study):
    folder = study.parent / "run"
    assert train(study, folder, MEMBERS) == 0
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def unlisted(folder: Path) -> set[str]:
    """What stands against replacing a folder of results: files that its run.json does not list."""
    record = json.loads((folder / "run.json").read_text())
    try:
        OutputFolder(folder, record["command"], record["outputs"], overwrite=True).check()
    except InputError as error:
        return {str(error)}
    return set()


@pytest.mark.slow
def test_a_run_is_replaced_and_one_with_files_of_others_is_not(study, tmp_path, refused):
    folder, more = tmp_path / "run", "--members deep presence --cv 2 --memory-profile"
    assert train(study, folder, more) == 0
    assert unlisted(folder) == set()
    assert "nearest neighbours on 8-mers" not in (folder / "report.html").read_text(), "of"
    (folder / "figures" / "old.svg").write_text("of an earlier run")
    (folder / "explanation").mkdir()
    (folder / "explanation" / "explain.html").write_text("of the earlier run")
    explained = {"command": "explain", "outputs": ["run.json", "explain.html"]}
    (folder / "explanation" / "run.json").write_text(json.dumps(explained))
    assert train(study, folder, "--members deep presence --overwrite") == 0
    assert unlisted(folder) == set()
    assert not (folder / "figures" / "old.svg").exists()
    (folder / "model" / "notes.txt").write_text("mine")
    (folder / "explanation").mkdir()
    (folder / "explanation" / "explain.html").write_text("of aam explain")
    before = contents(folder)
    error = refused(train, study, folder, f"{more} --overwrite")
    assert "did not write: 'explanation/explain.html', 'model/notes.txt'" in error
    assert contents(folder) == before


def test_a_run_of_an_earlier_version_goes_on_but_is_not_replaced(study, run, tmp_path, refused):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    record = json.loads((folder / "run.json").read_text())
    del record["outputs"]
    (folder / "run.json").write_text(json.dumps(record))
    assert "was left untouched" in refused(train, study, folder, f"{MEMBERS} --overwrite")
    (folder / "metrics.json").unlink()
    assert train(study, folder, f"{MEMBERS} --resume-from auto") == 0
    assert (folder / "metrics.json").is_file()
    assert unlisted(folder) == set()


def test_a_run_is_no_earlier_result_of_other_commands(study, run, refused):
    before, given = contents(run), f"--output-dir {run} --overwrite"
    applied = f"--model {run} --table {study}/table.biom --threads 1"
    for words in (
        f"evaluate --predictions {run}/predictions.tsv --metadata {study}/metadata.tsv",
        f"evaluate {applied} --metadata {study}/metadata.tsv",
        f"embed {applied}",
        f"explain {applied}",
        f"profile --table {study}/table.biom",
        f"pretrain --table {study}/table.biom --tree {study}/tree.nwk --rarefy-depth 200 "
        "--epochs 1",
    ):
        assert "holds results of `aam train`" in refused(main, f"{words} {given}".split()), words
        assert contents(run) == before, words
    for words in (
        f"export --model {run} --output {run}",
        f"predict {applied} --output {run}/predictions.tsv",
    ):
        assert main([*words.split(), "--overwrite"]) == 2, words
        assert contents(run) == before, words


def test_what_is_applied_or_evaluated_lists_its_results_and_replaces_them(
    study, run, tmp_path, refused
):
    applied = f"--model {run} --table {study}/table.biom --threads 1"
    commands = {
        "evaluate": f"evaluate {applied} --metadata {study}/metadata.tsv",
        "embed": f"embed --model {run}/last --table {study}/table.biom --threads 1",
        "explain": f"explain {applied} --prediction-passes 1",
    }
    for name, words in commands.items():
        folder = tmp_path / name
        asked = [*words.split(), "--output-dir", str(folder)]
        assert main(asked) == 0
        assert unlisted(folder) == set(), name
        assert json.loads((folder / "run.json").read_text())["command"] == name
        assert "--resume-from" not in refused(main, asked), name
        assert main([*asked, "--overwrite"]) == 0
        assert unlisted(folder) == set(), name
        (folder / "notes.txt").write_text("mine")
        assert "did not write: 'notes.txt'" in refused(main, [*asked, "--overwrite"]), name
        (folder / "notes.txt").unlink()
    words = f"evaluate --predictions {tmp_path}/evaluate/predictions.tsv --metadata "
    words += f"{study}/metadata.tsv --overwrite"
    said = refused(main, [*words.split(), "--output-dir", str(tmp_path / "evaluate")])
    assert "--overwrite would delete what is read" in said


def test_a_single_file_does_not_replace_what_is_read(study, tmp_path, refused):
    table = tmp_path / "table.tsv"
    words = f"unifrac --table {study}/table.biom --tree {study}/tree.nwk --output {table}"
    assert main(words.split()) == 0
    before = table.read_bytes()
    words = f"unifrac --table {table} --tree {study}/tree.nwk --output {table} --overwrite"
    assert "is read by the same command" in refused(main, words.split())
    assert table.read_bytes() == before


def test_a_single_file_replaces_only_a_result_of_the_same_command(study, run, tmp_path, refused):
    made = tmp_path / "made"
    tables = f"--table {study}/table.biom --tree {study}/tree.nwk --output {made}"
    commands = {
        ".txt": f"predict --table {study}/table.biom --model {run} --threads 1 --output {made}.txt",
        ".h5": f"unifrac {tables}.h5",
        ".tsv": f"unifrac {tables}.tsv --unifrac-metric faith_pd",
    }
    for suffix, words in commands.items():
        assert main(words.split()) == 0
        assert main([*words.split(), "--overwrite"]) == 0, suffix
    mine = {name: made.with_suffix(name) for name in commands}
    predicted = mine[".txt"].read_text()
    texts = {
        ".txt": ["my only copy", "sample-id\tweight\tnote\ns1\t4.5\theavy\n", predicted[9:]],
        ".h5": ["notes"],
        ".tsv": ["sample-id\tph\ns1\t7\n", predicted],
    }
    for suffix, contents_of_others in texts.items():
        words = commands[suffix]
        for text in contents_of_others:
            mine[suffix].write_text(text)
            assert "so it was left untouched" in refused(main, [*words.split(), "--overwrite"])
            assert mine[suffix].read_text() == text
        mine[suffix].write_text("")
        assert main([*words.split(), "--overwrite"]) == 0, suffix
        mine[suffix].unlink()
