"""The bill of materials: CycloneDX, with a version, a package URL and the licences."""

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
        ({"License-Expression": "BSD-3-Clause AND MIT"}, {"expression": "BSD-3-Clause AND MIT"}),
        (
            {"Classifier": "License :: OSI Approved :: MIT License", "License": "long text"},
            {"license": {"name": "MIT License"}},
        ),
        ({"License": "Apache 2.0\nand a long text"}, {"license": {"name": "Apache 2.0"}}),
        ({}, None),
    ],
)
def test_licences_of_a_python_package(fields, expected):
    package = Message()
    for name, value in fields.items():
        package[name] = value
    assert SBOM["licences"](package) == ([expected] if expected else [])


DEP5 = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: zlib
License: Zlib

Files: debian/*
Copyright: 2000 A. Packager
License: GPL-2+ or Artistic
 On Debian systems see /usr/share/common-licenses/GPL-2.
 .
 License: none of a field, as it is indented

License: Zlib
 This software is provided 'as-is'.
"""
FREE = (
    "The library is under /usr/share/common-licenses/LGPL-2.1, its\ntools under "
    "`/usr/share/common-licenses/GPL-3'.\n"
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (DEP5, ["GPL-2+ or Artistic", "Zlib"]),
        (FREE + "Again: /usr/share/common-licenses/GPL-3.\n", ["GPL-3", "LGPL-2.1"]),
        ("License: of a file that is in no known format\n", []),
        ("Format: 1.0\nCopyright: \xe9\n", []),
        (None, []),
    ],
)
def test_licences_of_a_debian_package(tmp_path, text, names):
    if text is not None:
        (tmp_path / "zlib1g").mkdir()
        (tmp_path / "zlib1g" / "copyright").write_text(text, encoding="latin-1")
    expected = [{"license": {"name": name}} for name in names]
    assert SBOM["debian_licences"]("zlib1g", tmp_path) == expected


def test_the_bill_of_this_environment(monkeypatch, capsys):
    packages = [["gcc", "4:12.2.0-3", "amd64"]]
    monkeypatch.setitem(SBOM["main"].__globals__, "debian_packages", lambda path: packages)
    SBOM["main"](ROOT / "containers" / "lock" / "cpu.txt")
    bill = json.loads(capsys.readouterr().out)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    by_name = {component["name"]: component for component in bill["components"]}
    assert by_name["numpy"]["purl"] == f"pkg:pypi/numpy@{metadata.version('numpy')}"
    assert by_name["numpy"]["licenses"]
    (gcc,) = (component for name, component in by_name.items() if name.endswith("/gcc"))
    assert "@4%3A12.2.0-3?arch=amd64" in gcc["purl"]
    assert isinstance(gcc["licenses"], list)
