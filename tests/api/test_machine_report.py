"""Reports of a machine next to earlier ones."""

from __future__ import annotations

from aam.api.machine_report import compare_reports
from aam.cli import main


def test_a_comparison_names_what_differs_and_by_how_much():
    before = {"speed": 100.0, "torch": "2.7", "same": 1, "noise": 10.0, "date": "a", "list": [1]}
    now = {"speed": 250.0, "torch": "2.8", "same": 1, "noise": 10.1, "date": "b", "list": [2]}
    assert compare_reports({**now, "new": {"a": 2}}, before) == [
        "speed: 100 -> 250 (2.50 times)",
        "torch: 2.7 -> 2.8",
        "new.a: None -> 2",
    ]
    assert compare_reports(before, before) == ["no difference from the baseline"]


def test_a_baseline_that_is_no_report_is_refused(tmp_path, refused):
    path = tmp_path / "before.json"
    path.write_text("[]")
    words = f"profile --table {path} --baseline {path} --output-dir {tmp_path}/out"
    assert "is not a report of this command" in refused(main, words.split())
