"""Provenance in a report: whatever run.json holds or lacks, and safe as HTML."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

from aam.report.files import with_record
from aam.report.provenance import provenance
from tests.report.test_figures import report_html
from tests.report.test_report import HOSTILE, Page, data

RECORD = {
    "command": "train",
    "config": {
        "data": {"table": "my table.biom", "rarefy_depth": 750, "cv": None, "trim": True},
        "train": {"lr": 0.003, "epochs": 10},
        "runtime": {"output_dir": "out", "seed": 0},
    },
    "inputs": {"table": {"path": "my table.biom", "bytes": 123456, "sha256": "a" * 64}},
    "versions": {"aam": "7.8.9", "torch": "2.7.1", "numpy": "2.2.0", "python": "3.12.1"},
    "commit": "c0ffee+",
    "image": "sha256:feed",
    "machine": "sparc",
    "threads": 3,
    "device": "cuda:0",
    "ranks": 4,
    "started": "2026-02-03T04:05:06+0000",
}


def facts(record: dict, seconds: float = 3725.0) -> dict[str, str]:
    return {row[0]: row[1] for table in provenance(record, seconds)[0] for row in table.rows}


def test_a_report_says_with_what_a_run_was_made():
    shown = facts(RECORD)
    assert shown["version"] == "aam 7.8.9"
    assert shown["commit"] == "c0ffee+"
    assert shown["started"] == "2026-02-03T04:05:06+0000, 1 h 2 min until this report"
    assert shown["command"] == (
        "aam train --table 'my table.biom' --rarefy-depth 750 --trim --lr 0.003 --output-dir out"
    )
    assert shown["versions"] == (
        "torch 2.7.1, scikit-learn not recorded, numpy 2.2.0, python 3.12.1"
    )
    assert shown["container image"] == "sha256:feed"
    assert shown["device"] == "cuda:0 x 4; sparc, 3 threads"
    assert shown["table"] == f"my table.biom; 123,456 bytes; SHA-256 {'a' * 64}"


def test_an_older_or_resumed_run_is_shown_with_what_it_recorded():
    older = {"command": "train", "config": {}, "inputs": {"table": {"path": "t.biom"}}}
    shown = facts(older)
    assert shown["table"] == "t.biom; SHA-256 not recorded"
    assert shown["commit"] == "not recorded"
    assert "sha256sum" not in provenance(older)[1]
    assert "resumed (calls: 2)" in facts({**RECORD, "resumed": [{}, {}]})["started"]
    assert provenance({}) == ([], "")
    assert "How to repeat" not in report_html(data())


def test_the_check_of_inputs_passes_for_the_same_bytes_only(tmp_path):
    path = tmp_path / "o'clock $x.biom"
    path.write_bytes(b"reads")
    entry = {"path": path.name, "sha256": hashlib.sha256(b"reads").hexdigest()}
    lines = provenance({**RECORD, "inputs": {"table": entry}, "commit": None})[1].splitlines()
    assert lines.pop() == "aam train --config run.json --output-dir repeated"
    check = ["bash", "-c", "\n".join(lines)]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, timeout=60).returncode == 0
    path.write_bytes(b"other")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, timeout=60).returncode == 1


def test_names_and_paths_with_html_stay_text(tmp_path):
    hostile = {**RECORD, "commit": HOSTILE, "machine": HOSTILE, "image": HOSTILE}
    hostile["inputs"] = {HOSTILE: {"path": HOSTILE, "bytes": 1, "sha256": HOSTILE}}
    hostile["config"] = {"data": {"table": HOSTILE}}
    (tmp_path / "run.json").write_text(json.dumps(hostile))
    text = report_html(with_record(data(), tmp_path))
    assert "with run.json of this run copied there" in text
    tags = {tag for tag, _, _ in Page(text).attributes}
    assert "script" not in tags, "the page's script has no attribute"
    assert text.count("<script") == report_html(data()).count("<script")
    assert "example.org" in Page(text).text


def test_explained_words_stand_on_the_page():
    text = report_html(data())
    words = set(re.findall('<abbr data-tip="[^"]*">([^<]*)</abbr>', text))
    listed = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    assert listed.keys() == words
    assert "MAE" in words
    assert "Words of this page" not in report_html(replace(data(), targets=(), tables=()))


def test_a_folder_without_a_record_changes_nothing(tmp_path: Path):
    assert report_html(with_record(data(), tmp_path)) == report_html(data())
