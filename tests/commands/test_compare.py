"""Two doctors or two benchmarks compared: what is slower, larger, wrong or apart fails, the rest
does not.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from aam.cli.main import main

PRETRAIN = {"samples_per_s": {"p50": 100.0, "p5": 50.0}, "step_s": {"p50": 1.0, "p95": 2.0}}
PRETRAIN |= {"peak_bytes": 1000, "losses": [2.0, 1.5]}
UNIFRAC = {"metrics": {"unifrac": {"seconds": 1.0, "difference": 1e-7}}}
BENCH = {"device": "here", "cases": {"pretrain": PRETRAIN, "unifrac": UNIFRAC}}
DOCTOR = {
    "format": 1,
    "platform": {"vendor": "AMD"},
    "rates": {"product": 1e12},
    "attention": {"results": {"float32, masked": {"math": {"forward": 1e-6, "wrong": False}}}},
    "activations": {"asv.0": {"mean": 0.5, "std": 1.0, "largest": 3.0, "error": 1e-7}},
}


def changed(report: dict, *path: object, value: object) -> dict:
    report = copy.deepcopy(report)
    inner = report
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return report


def compared(folder: Path, one: object, other: object, *words: str) -> int:
    for name, report in (("a.json", one), ("b.json", other)):
        (folder / name).write_text(json.dumps(report))
    return main(["compare", str(folder / "a.json"), str(folder / "b.json"), *words])


@pytest.mark.parametrize(
    ("report", "path", "value", "status"),
    [
        (BENCH, ("cases", "pretrain", "samples_per_s", "p50"), 92.0, 0),
        (BENCH, ("cases", "pretrain", "samples_per_s", "p50"), 90.0, 1),
        (BENCH, ("cases", "pretrain", "samples_per_s", "p50"), 900.0, 0),
        (BENCH, ("cases", "pretrain", "samples_per_s", "p5"), 1.0, 0),
        (BENCH, ("cases", "pretrain", "step_s", "p50"), 1.2, 1),
        (BENCH, ("cases", "pretrain", "peak_bytes"), 1101, 1),
        (BENCH, ("cases", "pretrain", "peak_bytes"), 500, 0),
        (BENCH, ("cases", "pretrain", "losses", 1), 1.53, 1),
        (BENCH, ("cases", "pretrain", "losses", 1), 1.501, 0),
        (BENCH, ("cases", "unifrac", "metrics", "unifrac", "seconds"), 1.2, 1),
        (BENCH, ("device",), "there", 0),
        (DOCTOR, ("platform", "vendor"), "CPU", 0),
        (DOCTOR, ("rates", "product"), 5e11, 1),
        (DOCTOR, ("attention", "results", "float32, masked", "math", "wrong"), True, 1),
        (DOCTOR, ("activations", "asv.0", "std"), 1.1, 1),
        (DOCTOR, ("activations", "asv.0", "error"), 2e-6, 0),
        (DOCTOR, ("activations", "asv.0", "error"), 2e-2, 1),
    ],
)
def test_what_is_worse(tmp_path, capsys, report, path, value, status):
    assert compared(tmp_path, report, changed(report, *path, value=value)) == status
    stdout = capsys.readouterr().out
    assert ("1 figures are worse" in stdout) == bool(status)
    assert compared(tmp_path, report, report) == 0


def test_the_tolerance_is_an_option(tmp_path, capsys):
    slower = changed(BENCH, "cases", "pretrain", "step_s", "p50", value=1.2)
    assert compared(tmp_path, BENCH, slower, "--tolerance", "0.3") == 0
    assert compared(tmp_path, BENCH, slower, "--tolerance", "0.01") == 1
    assert compared(tmp_path, BENCH, slower, "--tolerance", "nan") == 2


@pytest.mark.parametrize(
    "other", [DOCTOR, {"cases": {}}, {"cases": {"unifrac": {"seconds": float("nan")}}}]
)
def test_reports_that_share_no_figure_are_refused(tmp_path, refused, other):
    assert "nothing is measured in it that" in refused(compared, tmp_path, BENCH, other)


def test_figures_of_one_report_only_are_counted(tmp_path, capsys):
    less = {**BENCH, "cases": {"unifrac": BENCH["cases"]["unifrac"]}}
    assert compared(tmp_path, BENCH, less) == 0
    assert "5 figures are in one of the two only" in capsys.readouterr().out


def test_what_is_no_report(tmp_path, capsys):
    assert compared(tmp_path, BENCH, {"a": 1}) == 2
    assert (
        "expected the JSON of aam doctor, aam bench or aam profile step" in capsys.readouterr().err
    )
    (tmp_path / "b.json").write_text("{")
    assert main(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
