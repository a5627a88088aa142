"""The Containerfile does what the definition does, and a simulated Podman gets the files that it
names.
"""

from __future__ import annotations

import re
import shlex
import tarfile
from pathlib import Path

import pytest

from containers.lib.layer import fill, packages, section
from containers.lib.pins import read_pins
from tests.programs import write_program

ROOT = Path(__file__).parents[2]
FLAVOURS = ("rocm", "cuda", "cpu")
PODMAN = r"""#!/bin/sh
echo "$@" >>"$0.calls"
for word; do last=$word; done
cp -r "$last" "$0.context"
echo "$@" | sed 's/.* oci-archive:\([^:]*\):.*/\1/' | xargs touch
"""


@pytest.fixture
def containerfile(script):
    """Prints the Containerfile of a flavour."""

    def text(flavour: str, *words: object) -> str:
        digest = ("--digest", "sha256:" + "1" * 64)
        return script("build", "oci", flavour, "--print", *digest, *words, status=0).stdout

    return text


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_it_does_what_the_definition_does(containerfile, flavour):
    pins = read_pins(flavour)
    definition = ROOT / "containers" / pins.definition
    text = containerfile(flavour)
    values = {"PYTHON": pins.python, "INDEX": pins.index, "SNAPSHOT": "", "PACKAGES": ""}
    assert "{{" not in text
    assert f"FROM {pins.base.partition(':')[0]}@sha256:1111" in text
    assert f"COPY containers/lock/{flavour}.txt /opt/aam/lock.txt\n" in text
    assert " ".join(packages(definition, values)) in text
    # Without a date: the digest is not the pinned one.
    post = fill(section(definition, "post"), values)
    at = 0
    for line in post.splitlines():
        if not line.strip().startswith("#"):
            at = text.index(line.strip().removesuffix("\\").rstrip(), at)
    variables = "ENV PYTHONNOUSERSITE=1\nENV LC_ALL=C.UTF-8\nENV LD_LIBRARY_PATH=/opt/fabric/lib\n"
    assert variables in text
    assert text.count("LABEL org.opencontainers.image.") == 7
    # The image is tested while it is built.
    assert text.endswith('/opt/venv/bin/python /opt/aam/selftest.py\nENTRYPOINT ["aam"]\n')


def test_files_of_the_build(script, tmp_path):
    podman = write_program(tmp_path / "podman", PODMAN)
    base = tmp_path / "base"
    (base / "etc").mkdir(parents=True)
    (base / "etc" / "os-release").write_text("ID=debian\n")
    words = ("oci", "cpu", "--engine", podman, "--base", base, "--output", tmp_path / "out.oci.tar")
    script("build", *words, status=0)
    assert (tmp_path / "out.oci.tar").exists()
    context = tmp_path / "podman.context"
    text = (context / "Containerfile").read_text()
    assert text.splitlines()[1:3] == ["FROM scratch", "ADD base.tar /"]
    copied = [shlex.split(line)[1] for line in text.splitlines() if line.startswith("COPY")]
    assert len(copied) == 7
    assert all((context / name).exists() for name in copied)
    wheels = sorted(path.name.partition("-")[0] for path in (context / "wheels").iterdir())
    assert wheels == ["aam_16s", "attention_all_microbes"]
    assert [path.name for path in (context / copied[-1]).iterdir()] == ["build.py"]
    assert (context / copied[0]).read_bytes() == (ROOT / "containers/lock/cpu.txt").read_bytes()
    with tarfile.open(context / "base.tar") as file:
        assert "./etc/os-release" in file.getnames()
    (call,) = (tmp_path / "podman.calls").read_text().splitlines()
    options = "build --format oci --layers=false --force-rm --disable-compression=false "
    assert call.startswith(options)
    assert re.search(r"--tag oci-archive:\S+~out\.oci\.tar:aam-cpu:[\d.]+ ", call)


def test_all_problems_are_in_one_message(script, tmp_path):
    words = ("--engine", "docker9", "--definition", "arm", "--digest", "latest")
    done = script("build", "oci", "cpu", *words, "--output", tmp_path / "out.oci.tar", status=2)
    for part in ("ENGINE: docker9 not found", "DEFINITION=arm", "DIGEST=latest"):
        assert part in done.stderr
    assert not list(tmp_path.glob("*out*"))
    done = script("build", "oci", "cpu", "--output", tmp_path / "a:b.tar", status=2)
    assert "an OCI archive has no colon in its path; OUTPUT=FILE names another" in done.stderr
