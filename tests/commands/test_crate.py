"""`aam report --crate`: a run as an RO-Crate, opened by the format's own library, and what is
refused.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import aam
from aam.cli.main import main
from aam.files.atomic import file_digest
from aam.report.crate import AUTHORS, TITLE
from tests.engine.test_logger import needs

needs_rocrate = needs("rocrate", "crate")
RESULTS = [
    "metrics.json",
    "metrics.jsonl",
    "predictions.tsv",
    "report.html",
    "run.json",
    "split.tsv",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of a network, as in an image, whose digest a launcher names in the
    environment.
    """
    folder = tmp_path_factory.mktemp("crate")
    assert (
        main(
            f"simulate --output-dir {folder}/study --samples 40 --asvs 50 --length 50 --depth 600".split()
        )
        == 0
    )
    words = (
        f"train --table {folder}/study/table.biom --metadata {folder}/study/metadata.tsv "
        "--metadata-column ph"
    )
    words += (
        " --group-column subject --rarefy-depth 200 --embedding-dim 16 --attention-layers 1 "
        "--attention-heads 2"
    )
    words += f" --members deep --epochs 1 --no-rf-baseline --threads 1 --output-dir {folder}/run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AAM_IMAGE", f"sha256:{'ab' * 32}")
        assert main(words.split()) == 0
    return folder / "run"


def call(*words: object) -> int:
    return main(["report", *map(str, words)])


def opened(path: Path) -> Any:
    from rocrate.rocrate import ROCrate

    return ROCrate(path)


@needs_rocrate
def test_the_crate_says_what_was_computed_from_what_and_by_what(run, tmp_path):
    assert call(run, "--crate", tmp_path / "run.zip") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["run.zip"]
    crate, record = opened(tmp_path / "run.zip"), json.loads((run / "run.json").read_text())
    action = crate.get("#run")
    assert crate.name == "aam train: run"
    assert crate.root_dataset["mentions"] == action
    assert crate.root_dataset["conformsTo"].id == "https://w3id.org/ro/wfrun/process/0.5"
    software = action["instrument"]
    assert crate.root_dataset["citation"] == software
    assert (software["name"], software["author"]["name"]) == (TITLE, AUTHORS)
    assert (software["softwareVersion"], software.get("identifier")) == (
        aam.__version__,
        record["commit"],
    )
    versions = {
        entity["name"]: entity["softwareVersion"] for entity in software["softwareRequirements"]
    }
    assert {"aam": aam.__version__, **versions} == record["versions"]
    inputs = {entity.id: (entity["name"], entity["sha256"]) for entity in action["object"]}
    assert inputs == {
        f"#input-{name}": (each["path"], each["sha256"]) for name, each in record["inputs"].items()
    }
    assert {Path(path).name for path, _ in inputs.values()} == {"table.biom", "metadata.tsv"}
    assert action["containerImage"]["sha256"] == "ab" * 32
    assert "aam train --config run.json --output-dir" in action["description"]
    start, end = (datetime.fromisoformat(action[name]) for name in ("startTime", "endTime"))
    assert start == datetime.strptime(record["started"], "%Y-%m-%dT%H:%M:%S%z")
    assert start <= end


@needs_rocrate
def test_the_crate_holds_the_files_of_the_run_with_their_checksums(run, tmp_path):
    assert call(run, "--crate", tmp_path / "run.zip") == 0
    crate = opened(tmp_path / "run.zip")
    model = sorted(f"model/{path.name}" for path in (run / "model").iterdir())
    files = {entity.id: entity for entity in crate.data_entities}
    assert sorted(files) == sorted([*RESULTS, *model])
    assert {entity.id for entity in crate.get("#run")["result"]} == files.keys()
    with zipfile.ZipFile(tmp_path / "run.zip") as archive:
        assert sorted(archive.namelist()) == sorted([*files, "ro-crate-metadata.json"])
        for name, entity in files.items():
            assert archive.read(name) == (run / name).read_bytes(), name
            assert entity["sha256"] == file_digest(run / name)
            assert int(entity["contentSize"]) == (run / name).stat().st_size
    assert files["split.tsv"]["encodingFormat"] == "text/tab-separated-values"
    assert files["report.html"]["encodingFormat"] == "text/html"


@needs_rocrate
def test_a_crate_is_replaced_only_when_asked(run, tmp_path, refused):
    (tmp_path / "run.zip").write_text("mine")
    assert "exists already" in refused(call, run, "--crate", tmp_path / "run.zip")
    assert (tmp_path / "run.zip").read_text() == "mine"
    assert call(run, "--crate", tmp_path / "run.zip", "--overwrite") == 0
    assert zipfile.is_zipfile(tmp_path / "run.zip")


def _unfinished(run: Path) -> None:
    (run / "metrics.json").unlink()


def _damaged(run: Path) -> None:
    os.truncate(next((run / "model").glob("*.safetensors")), 10)


def _changed(**values: object) -> Any:
    def change(run: Path) -> None:
        record = json.loads((run / "run.json").read_text())
        (run / "run.json").write_text(json.dumps({**record, **values}))

    return change


@needs_rocrate
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _unfinished,
            "the run is not finished (no metrics.json); go on with it by --resume-from auto",
        ),
        (_damaged, "missing or damaged (its checksum differs)"),
        (lambda run: (run / "run.json").unlink(), "run.json: cannot be read"),
        (
            _changed(command="evaluate"),
            "written by aam evaluate; --crate takes a run of aam train or pretrain",
        ),
        (_changed(started="yesterday"), "run.json: damaged, expected what aam writes there"),
        (_changed(versions=3), "run.json: damaged, expected what aam writes there"),
        (_changed(inputs={"table": 3}), "run.json: damaged, expected what aam writes there"),
    ],
)
def test_what_is_no_finished_run_is_refused(run, tmp_path, refused, change, message):
    shutil.copytree(run, tmp_path / "copy")
    change(tmp_path / "copy")
    error = refused(call, tmp_path / "copy", "--crate", tmp_path / "run.zip")
    assert message in error
    assert "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_options_of_the_page_are_refused_all_at_once(run, tmp_path, refused):
    error = refused(call, run, run, "--crate", tmp_path / "x.tar", "--output", tmp_path / "x.html")
    assert "2 runs are given; a crate is of one run" in error
    assert "leave out --output, --metadata and --group-column" in error
    assert "expected .zip" in error
    assert "--output" in refused(call, run)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_library_is_said_in_one_line(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rocrate", None)
    monkeypatch.setitem(sys.modules, "rocrate.rocrate", None)
    assert call(run, "--crate", tmp_path / "run.zip") == 2
    expected = (
        "aam report --crate needs rocrate, which is not installed: pip install "
        "'attention-all-microbes[crate]'"
    )
    assert expected in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_citation_is_that_of_the_repository():
    text = (Path(__file__).parents[2] / "CITATION.cff").read_text()
    assert re.findall(r'(?m)^title: "(.*)"$|^  - name: (.*)$', text) == [(TITLE, ""), ("", AUTHORS)]
