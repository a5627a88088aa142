"""Debian packages of one date: what apt is asked for by a definition, a Containerfile and a
layer.
"""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from containers.lib.files import CONTAINERS
from containers.lib.layer import UNPACK_PACKAGES, fill, section
from containers.lib.oci import shell_steps
from containers.lib.pins import read_pins
from containers.lib.plan import Request, choose_base, choose_snapshot
from tests.programs import write_program

DATE = "20260601T000000Z"
# A list of packages that is not reached ends the update: apt would go on with an older one.
DATED = f"--snapshot {DATE} -o APT::Update::Error-Mode=any"
VALUES = {"PYTHON": "3.12", "INDEX": "", "PACKAGES": ""}
# Writes what it is asked for; `download` leaves a package of certificates, which dpkg-deb unpacks.
APT = """#!/bin/sh
echo "$@" >>"$CALLS"
for word; do
    case $word in download) : >ca-certificates_1_all.deb;; Acquire::https::CaInfo=*) cat "${word#*=}";; esac
done
case "$*" in *"$FAIL"*) exit 100;; esac
"""
DPKG = """#!/bin/sh
[ "$1" = -x ] || exit 1
mkdir -p "$3/usr/share/ca-certificates/mozilla"
echo "a certificate" >"$3/usr/share/ca-certificates/mozilla/a.crt"
"""


@pytest.fixture
def run(tmp_path):
    """Runs shell lines with a simulated apt-get; returns what apt was asked for, without the
    options of folders.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("apt-get", APT), ("dpkg-deb", DPKG)):
        write_program(programs / name, text)

    def calls(text: str, *words: str, fail: str = "nothing") -> list[str]:
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
        environment |= {"CALLS": f"{tmp_path}/calls", "FAIL": fail}
        command = ["sh", "-c", text, "sh", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (done.returncode == 0) == (fail == "nothing"), done.stderr
        asked = (tmp_path / "calls").read_text().splitlines()
        assert done.stdout.count("a certificate") == sum("CaInfo" in line for line in asked)
        return [re.sub(r"-q |-o (Debug|Dir|APT::Sandbox)\S+ | -q|-y ", "", line) for line in asked]

    return calls


def post(tmp_path, snapshot: str, joined: bool) -> str:
    """Return the steps of a definition up to the packages, or the one instruction of a
    Containerfile.
    """
    (tmp_path / "aam").mkdir()
    text = fill(section(CONTAINERS / "aam-rocm.def", "post"), VALUES | {"SNAPSHOT": snapshot})
    text = text.partition("\n    # pip")[0].replace("/opt/aam", f"{tmp_path}/aam")
    return shell_steps(text).removeprefix("RUN ") if joined else text


@pytest.mark.parametrize("joined", [False, True], ids=["definition", "Containerfile"])
@pytest.mark.parametrize("snapshot", ["", DATE])
def test_what_a_definition_asks_for(run, tmp_path, snapshot, joined):
    asked = run(post(tmp_path, snapshot, joined))
    dated = f"{DATED} -o Acquire::https::CaInfo={tmp_path}/aam/certificates/all.crt"
    expected = ["update", "download ca-certificates", f"update {dated}"] if snapshot else ["update"]
    assert asked[:-1] == expected
    install = f"install {dated} --no-install" if snapshot else "install --no-install"
    assert asked[-1].startswith(install)
    assert " ca-certificates gcc g++ " in asked[-1]


@pytest.mark.parametrize("joined", [False, True], ids=["definition", "Containerfile"])
@pytest.mark.parametrize("step", ["download", f"update -q --snapshot {DATE}"])
def test_a_step_of_a_snapshot_that_fails_ends_the_build(run, tmp_path, step, joined):
    asked = run(post(tmp_path, DATE, joined), fail=step)
    assert not any(line.startswith("install") for line in asked)


@pytest.mark.parametrize("snapshot", ["", DATE])
def test_what_a_layer_asks_for(run, tmp_path, snapshot):
    asked = run(UNPACK_PACKAGES, str(tmp_path / "layer"), snapshot, "gcc", "g++")
    install = "install --no-install-recommends --download-only gcc g++"
    if not snapshot:
        assert asked == ["update", install]
        return
    assert asked[:2] == ["update", "download ca-certificates"]
    dated = rf"{DATED} -o Acquire::https::CaInfo={tmp_path}/\S+/all.crt"
    assert re.fullmatch(f"{dated} update", asked[2])
    assert re.fullmatch(f"{dated} {re.escape(install)}", asked[3])


def test_the_pinned_base_has_a_date_and_another_the_one_that_is_named(tmp_path):
    pins = read_pins("rocm")
    assert re.fullmatch(r"\d{8}T\d{6}Z", pins.snapshot)
    other = f"{pins.base}@sha256:{'1' * 64}"
    cases = [("", "", pins.snapshot), (str(tmp_path), "", ""), (other, "", "")]
    cases += [("", "none", ""), (other, DATE, DATE), (str(tmp_path), DATE, DATE)]
    for base, requested, snapshot in cases:
        request = Request("rocm", base=base, snapshot=requested)
        assert choose_snapshot(request, pins, choose_base(request, pins)) == snapshot
