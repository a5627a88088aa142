"""run.json: what it records of the command and its inputs, and what of it may differ."""

from __future__ import annotations

import json

import pytest

from aam.engine.run import check_same, describe, differences
from aam.errors import InputError


def test_inputs_are_recorded_with_their_sizes(tmp_path):
    table, model = tmp_path / "my table.biom", tmp_path / "model"
    table.write_bytes(b"123456789")
    model.mkdir()
    (model / "manifest.json").write_text("{}")
    (model / "weights").write_bytes(b"12345")
    record = describe("fit", {}, {"table": table, "model": model}, {}, None, {"tree": "cafe"})
    assert [entry.get("bytes") for entry in record["inputs"].values()] == [9, 7, None]
    assert record["versions"]["scikit-learn"]


def test_a_run_without_sizes_is_the_same(tmp_path):
    table = tmp_path / "t.biom"
    table.write_bytes(b"reads")
    now = {**describe("fit", {"runtime": {}, "train": {"batch_size": 1}}, {"table": table}, {})}
    before = {**now, "inputs": {"table": {**now["inputs"]["table"]}}}
    del before["inputs"]["table"]["bytes"]
    check_same(before, now)
    before["inputs"]["table"]["sha256"] = "0"
    with pytest.raises(InputError, match=r"inputs\.table\.sha256"):
        check_same(before, now)


def test_an_option_and_the_fact_that_follows_from_it_are_one_line(caplog):
    before, now = (
        {
            **describe("fit", {"runtime": {"threads": option}, "train": {"batch_size": 1}}, {}, {}),
            "threads": number,
        }
        for option, number in ((1, 1), (None, 2))
    )
    with caplog.at_level("WARNING", "aam"):
        check_same(before, now)
    (line,) = caplog.messages
    assert line.startswith("--threads was 1 and is unset: ")
    now["config"]["runtime"]["threads"] = 1
    check_same(before, now)
    assert caplog.messages[1].startswith("threads was 1 and is 2: ")


def test_a_record_that_was_written_is_the_same_run(tmp_path):
    facts = {"excluded_samples": (), "left_out_classes": {"site": ("ear", "nose")}, "depth": 7}
    options = {"runtime": {}, "train": {"batch_size": 4}}
    record = describe("fit", options, {}, facts)
    written = json.loads(json.dumps(record))
    assert differences(written, record) == {}
    facts["left_out_classes"] = {"site": ("ear",)}
    expected = {"left_out_classes.site": (["ear", "nose"], ["ear"])}
    assert differences(written, describe("fit", options, {}, facts)) == expected
