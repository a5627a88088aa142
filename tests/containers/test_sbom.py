"""The bill of materials: CycloneDX, with a version, a package URL and, for Python, the licences."""

from __future__ import annotations

import json
import runpy
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SBOM = runpy.run_path(str(ROOT / "containers" / "inside" / "sbom.py"))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("License-Expression", "BSD-3-Clause AND MIT")], [{"expression": "BSD-3-Clause AND MIT"}]),
        (
            [("Classifier", "License :: OSI Approved :: MIT License"), ("License", "long text")],
            [{"license": {"name": "MIT License"}}],
        ),
        ([("License", "Apache 2.0\nand a long text")], [{"license": {"name": "Apache 2.0"}}]),
        ([], []),
    ],
)
def test_licences_of_a_python_package(fields, expected):
    package = Message()
    for name, value in fields:
        package[name] = value
    assert SBOM["licences"](package) == expected


def test_the_bill_of_this_environment(monkeypatch, capsys):
    monkeypatch.setitem(SBOM["main"].__globals__, "debian_packages", lambda path: [["gcc", "4:12.2.0-3", "amd64"]])
    SBOM["main"](ROOT / "containers" / "lock" / "cpu.txt")
    bill = json.loads(capsys.readouterr().out)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    by_name = {component["name"]: component for component in bill["components"]}
    assert by_name["numpy"]["purl"] == f"pkg:pypi/numpy@{metadata.version('numpy')}"
    assert by_name["numpy"]["licenses"]
    (gcc,) = (component for name, component in by_name.items() if name.endswith("/gcc"))
    assert "@4%3A12.2.0-3?arch=amd64" in gcc["purl"]
