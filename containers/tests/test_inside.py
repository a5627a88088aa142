"""The programs inside an image: links of packages, the bill of materials, the self-test."""

from __future__ import annotations

import json
import runpy
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest
import torch

from aam.device import attention
from tests.programs import write_program

ROOT = Path(__file__).parents[2]
LINKS, SBOM, SELFTEST, ENVIRONMENT = (
    runpy.run_path(str(ROOT / "containers" / "inside" / f"{name}.py"))
    for name in ("links", "sbom", "selftest", "environment")
)
DEVICE_NAMES = "opt/venv/lib/python3.12/site-packages/torch/share/libdrm/amdgpu.ids"
CPU = torch.device("cpu")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_path_of_libdrm_leads_to_the_file_of_the_wheel(tmp_path):
    LINKS["main"](tmp_path)
    assert list(tmp_path.iterdir()) == [], "without the wheel nothing is linked"
    write(tmp_path / DEVICE_NAMES, "names")
    LINKS["main"](tmp_path)
    link = tmp_path / "opt/amdgpu/share/libdrm/amdgpu.ids"
    assert str(link.readlink()) == f"/{DEVICE_NAMES}", "inside the image the root folder is /"
    LINKS["main"](tmp_path)
    link.unlink()
    write(link, "the vendor's base has its own")
    LINKS["main"](tmp_path)
    assert not link.is_symlink()


def test_certificates_are_joined_where_no_install_script_ran(tmp_path):
    write(tmp_path / "usr/share/ca-certificates/mozilla/B.crt", "second\n")
    write(tmp_path / "usr/share/ca-certificates/mozilla/A.crt", "first")
    LINKS["main"](tmp_path)
    bundle = tmp_path / "etc/ssl/certs/ca-certificates.crt"
    assert bundle.read_text() == "first\nsecond\n"
    bundle.write_text("the install script's")
    LINKS["main"](tmp_path)
    assert bundle.read_text() == "the install script's"


def test_files_of_a_checkout_that_is_closed_to_others_are_readable_in_an_image(tmp_path):
    closed = write(tmp_path / "opt/aam/inside/build.py", "")
    closed.chmod(0o600)
    closed.parent.chmod(0o700)
    (closed.parent / "link").symlink_to("nowhere")
    LINKS["main"](tmp_path)
    assert (closed.stat().st_mode & 0o777, closed.parent.stat().st_mode & 0o777) == (0o644, 0o755)


MIT = "License :: OSI Approved :: MIT License"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"License-Expression": "BSD-3-Clause AND MIT"}, {"expression": "BSD-3-Clause AND MIT"}),
        ({"Classifier": MIT, "License": "long text"}, {"license": {"name": "MIT License"}}),
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
License: Zlib

Files: debian/*
License: GPL-2+ or Artistic
 .
 License: none of a field, as it is indented

License: Zlib
"""
FREE = "under /usr/share/common-licenses/LGPL-2.1, its\ntools `/usr/share/common-licenses/GPL-3'.\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (DEP5, ["GPL-2+ or Artistic", "Zlib"]),
        (FREE + "Again: /usr/share/common-licenses/GPL-3.\n", ["GPL-3", "LGPL-2.1"]),
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


@pytest.mark.parametrize(
    "result", [{}, {"forward": 1.73, "backward": 0.0, "seconds": 0.0}, {"refused": "no kernel"}]
)
def test_the_self_test_judges_attention_by_the_gate(monkeypatch, result):
    monkeypatch.setitem(
        SELFTEST["attention_errors"].__globals__, "ATTENTION_SHAPES", [(4, 2, 9, 8)]
    )
    if result:
        monkeypatch.setattr(attention, "try_backends", lambda *_: {attention.SDPA: result})
        with pytest.raises(AssertionError, match="attention on cpu, float32, unmasked"):
            SELFTEST["attention_errors"](CPU)
        return
    errors = SELFTEST["attention_errors"](CPU)
    kinds = (f"{dtype}, {mask}" for dtype in ("float32", "bfloat16") for mask in ("", "un"))
    assert set(errors) == {f"{kind}masked" for kind in kinds}
    assert all(results[attention.SDPA]["forward"] >= 0 for results in errors.values())


# A Python whose pip has the settings of `settings` and installs a uv that runs the lines of `uv`.
PYTHON = """
case "$*" in
    *"config list"*) cat settings ;;
    *--target*) [ -e uv ] || exit 1
        while [ "$1" != --target ]; do shift; done
        mkdir -p "$2/bin"; cp uv "$2/bin/uv"; chmod +x "$2/bin/uv" ;;
    *) echo "pip $*" >>calls ;;
esac"""
UV_LOCK = "# uv: uv==1.2.3 --hash=sha256:00\n"
CALLED = 'echo "uv $*" >>calls; echo "$UV_DEFAULT_INDEX|$SSL_CERT_FILE|$ALL_PROXY" >>calls'


@pytest.mark.parametrize(
    ("settings", "uv", "calls", "said"),
    [
        ("", CALLED, ["uv pip install", "||"], ""),
        ("", None, ["pip -m pip"], "pip finds no uv==1.2.3; pip installs instead"),
        ("", "echo no route >&2; exit 2", ["pip -m pip"], "uv failed (no route); pip installs"),
        (":env:.no-index='1'", CALLED, ["pip -m pip"], "pip's settings say no-index; pip installs"),
        (
            "global.index-url='file:///old'\n:env:.index-url='file:///a'\nglobal.cert='/c.pem'\n"
            "install.proxy='proxy:1'",
            CALLED,
            ["uv pip install", "file:///a|/c.pem|proxy:1"],
            "",
        ),
    ],
    ids=["uv", "no uv", "uv fails", "no index", "settings"],
)
def test_uv_installs_a_lock_and_pip_where_uv_cannot(
    settings, uv, calls, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for variable in ENVIRONMENT["UV_SETTINGS"].values():
        monkeypatch.delenv(variable, raising=False)
    write(tmp_path / "settings", settings)
    if uv:
        write(tmp_path / "uv", f"#!/bin/sh\n{uv}\n")
    python = write_program(tmp_path / "python", PYTHON)
    assert ENVIRONMENT["install_rest"](python, UV_LOCK, "six==1\n", False, "--no-compile")
    lines = (tmp_path / "calls").read_text().splitlines()
    assert len(lines) == len(calls)
    assert all(line.startswith(call) for line, call in zip(lines, calls, strict=True))
    assert said in capsys.readouterr().err
