"""A local base of another architecture is refused before anything is built."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from containers.lib.architecture import machine_of

ARM64 = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00" + bytes(44)
POWER = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x15\x00" + bytes(44)
S390X = b"\x7fELF\x02\x02\x01" + bytes(9) + b"\x00\x03\x00\x16" + bytes(44)


def root(folder: Path, shell: bytes) -> Path:
    """Make a root folder as Debian has it: /bin and the shell are links, of which one is
    absolute.
    """
    (folder / "usr" / "bin").mkdir(parents=True)
    (folder / "bin").symlink_to("/usr/bin")
    (folder / "usr" / "bin" / "sh").symlink_to("dash")
    (folder / "usr" / "bin" / "dash").write_bytes(shell)
    return folder


def sif(path: Path, code: bytes) -> Path:
    path.write_bytes(
        b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0")
        + b"SIF_MAGIC\0"
        + b"01\0"
        + code
        + bytes(80)
    )
    return path


@pytest.mark.parametrize(
    ("shell", "machine"),
    [(ARM64, "aarch64"), (POWER, "ppc64le"), (S390X, "s390x"), (b"#!/bin/false\n", ""), (b"", "")],
)
def test_the_machine_of_a_root_folder(tmp_path, shell, machine):
    assert machine_of(root(tmp_path / "base", shell)) == machine


def test_the_machine_of_this_one(tmp_path):
    shutil.copy(shutil.which("sh"), tmp_path / "sh")
    assert machine_of(root(tmp_path / "base", (tmp_path / "sh").read_bytes())) == platform.machine()


def test_links_that_lead_nowhere(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    (tmp_path / "usr").symlink_to("../../../usr")
    assert machine_of(tmp_path) == "", "the host's own programs are not looked at"


@pytest.mark.parametrize(
    ("code", "machine"),
    [(b"02\0", "x86_64"), (b"04\0", "aarch64"), (b"12\0", "riscv64"), (b"00\0", "")],
)
def test_the_machine_of_a_sif(tmp_path, code, machine):
    assert machine_of(sif(tmp_path / "base.sif", code)) == machine


@pytest.mark.parametrize("kind", ["folder", "sif"])
@pytest.mark.parametrize(
    "words", [("cpu", "--route", "definition"), ("cpu", "--submit", "0"), ("oci", "cpu", "--print")]
)
def test_another_architecture_is_refused_before_anything_is_built(script, tmp_path, kind, words):
    other, shell, code = (
        ("s390x", S390X, b"11\0")
        if platform.machine() == "aarch64"
        else ("aarch64", ARM64, b"04\0")
    )
    base = root(tmp_path / "base", shell) if kind == "folder" else sif(tmp_path / "base.sif", code)
    done = script("build", *words, "--base", base, "--output", tmp_path / "out.sif", status=2)
    assert (
        done.stderr.count(f"BASE={base}: is for {other}, this machine is {platform.machine()}") == 1
    )
    assert "name a base for" in done.stderr
    assert not list(tmp_path.glob("*out.sif*"))
