"""containers/build with a simulated engine: what is refused, recorded and left behind."""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from containers.lib import plan
from containers.lib.engine import explain
from containers.lib.errors import InputError
from containers.lib.pins import read_pins
from containers.lib.sidecar import PAPERS, verify
from tests.programs import absent, run_program

ROOT = Path(__file__).parents[2]


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "base"
    (folder / "usr" / "bin").mkdir(parents=True)
    (folder / "usr" / "bin" / "python3").symlink_to("python3.11")
    (folder / "etc").mkdir()
    (folder / "etc" / "os-release").write_text("ID=debian\n")
    return folder


@pytest.fixture
def make(script, base, tmp_path):
    """Builds the cpu image from the small base into the test's folder, by the definition."""
    words = ["--base", base, "--output", tmp_path / "out.sif", "--route", "definition"]
    return lambda *more, **options: script("build", "cpu", *words, *more, **options)


def sidecar(folder: Path) -> dict:
    return json.loads((folder / "out.sif.json").read_text())


def test_an_image_and_its_sidecar(make, tmp_path):
    """For a user with a strict umask: others can read the image too."""
    done = make(status=0, umask=0o077)
    recorded = sidecar(tmp_path)
    assert (tmp_path / "out.sif").read_text() == "complete"
    assert (recorded["base"]["name"], recorded["base"]["pinned"]) == ("base", False)
    assert recorded["python"] == "3.11", "the Python of the local root folder"
    assert (recorded["route"], recorded["reproducible"]) == ("definition", False)
    assert recorded["image"]["bytes"] == len("complete")
    assert {"commit", "dirty"} <= set(recorded["git"])
    assert "not the pinned" in done.stdout
    arguments = ("--build-arg BOOTSTRAP=localimage ", "--build-arg LOCK=containers/lock/cpu.txt ")
    assert absent(done.stderr, *arguments) == []
    papers = {name: f"out.sif{end}" for name, end in PAPERS.items()}
    files = {path.name: path for path in tmp_path.glob("*out*")}
    assert set(files) == {"out.sif", "out.sif.json", *papers.values()}
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o644}
    assert {name: record["file"] for name, record in recorded["papers"].items()} == papers
    rendered = files[papers["definition"]].read_text()
    assert f"From: base@{recorded['base']['digest']}\n" in rendered
    assert "{{" not in rendered
    lock = ROOT / "containers/lock/cpu.txt"
    assert files[papers["lock"]].read_bytes() == lock.read_bytes()
    assert recorded["papers"]["sbom"]["sha256"] == recorded["sbom_sha256"]
    make("--definition", "rocm", status=0, FAKE_HELP="--build-arg --reproducible")
    assert sidecar(tmp_path)["reproducible"]


@pytest.mark.parametrize(
    ("words", "variables", "problem"),
    [
        ("rocm --fabric=1", {}, "--fabric: was removed; bind the site's libfabric"),
        ("rocm", {"FABRIC": "1", "MAKELEVEL": "1"}, "FABRIC: was removed; bind the site's"),
        ("cpu --pull 0", {}, "--pull: was removed; copy the SIF of a release"),
        ("cpu", {"PULL": "0", "MAKELEVEL": "1"}, "PULL: was removed; copy the SIF"),
        ("wheel", {}, "wheel: was removed; make release builds the wheels"),
    ],
)
def test_what_was_removed_is_answered(script, words, variables, problem):
    assert problem in script("build", *words.split(), status=2, **variables).stderr


VENDOR = "docker.io/rocm/dev-ubuntu-24.04:6.3.4"

# The words for containers/build, and all that is said.
REFUSED = [
    (
        "cpu --base nowhere:1 --route fast --definition arm --engine docker9 --snapshot 2026",
        *("BASE=nowhere", "ROUTE=fast", "DEFINITION=arm", "sha256:DIGEST", "SNAPSHOT=2026"),
        *("ENGINE: docker9 not found", "module load singularitypro", "a date such as 2026"),
    ),
    *[
        (
            f"cpu --python {shlex.quote(python)}",
            f"IMAGE_PYTHON={python}: cpu.txt is for Python 3.11 to 3.13; name one of these",
        )
        for python in ("3.10", "3.12; touch x")
    ],
    *[
        (f"cpu --base docker.io/a/b@{digest}x", "expected sha256: and 64 hexadecimal digits")
        for digest in ("sha256:" + "0" * 64, "latest", "sha256:12")
    ],
    (f"rocm --base {VENDOR}", "has no digest", f"docker://{VENDOR}` prints it"),
    # Without a digest in the definition: none is invented.
    (
        "unpinned",
        "BASE=docker.io/library/ubuntu: has no digest",
        "make pin asks its registry (aam-",
    ),
]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[0])
def test_all_problems_are_in_one_message(script, tree, tmp_path, row):
    words, *problems = row
    if words == "unpinned":
        copy = shutil.copytree(tree, tmp_path / "copy", symlinks=True)
        definition = copy / "containers" / "aam-rocm.def"
        definition.write_text(re.sub(r"@sha256:\w+", "", definition.read_text()))
        script, words = functools.partial(script, root=copy), "rocm"
    out = ("--output", tmp_path / "out.sif")
    done = script("build", *shlex.split(words), *out, status=2)
    assert absent(done.stderr, *problems) == []
    assert not list(tmp_path.glob("*out.sif*"))


def test_the_rocm_image_builds_on_the_pinned_base(script, make, tmp_path):
    """A fresh clone has all that `make container-rocm` needs; another base needs its digest."""
    out = ("--output", tmp_path / "out.sif")
    done = script("build", "rocm", "--route", "definition", *out, status=0)
    assert sidecar(tmp_path)["base"]["pinned"] is True
    assert "BASE=docker.io/library/ubuntu@sha256:" in done.stderr
    digest = "sha256:" + "0" * 64
    assert f"DIGEST={digest}" in make("--digest", digest, status=2).stderr


def test_engines_of_the_family_and_others(make, tmp_path):
    make(FAKE_VERSION="SingularityPRO version 4.1.3-1.el9", status=0)
    assert sidecar(tmp_path)["engine"]["version"].startswith("4.1.3")
    for printed in ("Docker version 28.2.2", ""):
        done = make(FAKE_VERSION=printed, status=2)
        assert "is not Apptainer or Singularity" in done.stderr
        assert "ENGINE=PATH" in done.stderr


HASHES = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE"
EXPLAINED = {
    "FATAL: write /x: no space left on device": "AAM_SCRATCH",
    "dial tcp: lookup index.docker.io: no such host": "no network",
    "reading manifest sha256:00: manifest unknown": "no image with this digest",
    "Err:1 https://snapshot.ubuntu.com/ubuntu/2026 noble InRelease\n  Could": "SNAPSHOT=none",
    "/.singularity.d/libs/faked: /lib/libc.so.6: version `GLIBC_2.38' not found": "ROUTE=layer",
    "FATAL: the image's architecture (arm64) could not run on the host's": "another architecture",
}


@pytest.mark.parametrize("printed", EXPLAINED)
def test_what_an_engine_prints_is_explained(printed):
    (line,) = explain(printed)
    assert EXPLAINED[printed] in line


@pytest.mark.parametrize(
    ("printed", "explanation"), [(HASHES, "differs from the one"), ("something else",) * 2]
)
def test_a_failed_build_is_explained_and_leaves_the_old_image(make, tmp_path, printed, explanation):
    (tmp_path / "out.sif").write_text("old")
    done = make(FAKE_OUTPUT=printed, FAKE_STATUS="255", status=1)
    assert explanation in done.stderr.partition("containers/build:")[2]
    assert (tmp_path / "out.sif").read_text() == "old"
    assert [path.name for path in tmp_path.glob("*out*")] == ["out.sif"]
    assert list((tmp_path / "scratch").glob("build-*")) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_build_leaves_nothing(
    engine, base, tree, tmp_path, number, said_by_processes
):
    environment = {**os.environ, "PATH": f"{engine}:{os.environ['PATH']}", "FAKE_SLEEP": "60"}
    environment["AAM_SCRATCH"] = str(tmp_path / "s")
    command = [sys.executable, tree / "containers" / "build", "cpu", "--route", "definition"]
    command += ["--base", base, "--output", tmp_path / "out.sif"]

    def handle_sigint() -> None:
        # Tests that run in the background ignore SIGINT, and so would their children.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with subprocess.Popen(
        command, env=environment, stderr=subprocess.DEVNULL, preexec_fn=handle_sigint
    ) as process:
        while not list(tmp_path.glob(".partial~*~out.sif")):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(number)
    assert process.returncode in (130, 128 + signal.SIGTERM)
    assert list(tmp_path.glob("*out.sif*")) == []
    assert str(engine).encode() not in said_by_processes(), "the engine ends with the build"


def test_too_little_disk_is_found_before_the_build(tmp_path, monkeypatch):
    monkeypatch.setenv("AAM_SCRATCH", str(tmp_path))
    pins = dataclasses.replace(read_pins("cpu"), disk_gb=(1e9, 2e9))
    first, second = plan.disk_problems(pins, tmp_path / "out.sif")
    assert "AAM_SCRATCH=FOLDER" in first
    assert "OUTPUT=FILE" in second


@pytest.mark.parametrize("name", ["build", "run", "test", "inside/environment.py"])
def test_an_old_python_is_told_which_it_must_be(name, tmp_path):
    """Python 3.6 (SLES 15) can parse the file."""
    text = (ROOT / "containers" / name).read_text()
    ast.parse(text, feature_version=(3, 6))
    (tmp_path / "old.py").write_text("import sys\nsys.version_info = (3, 6)\n" + text)
    done = run_program(sys.executable, tmp_path / "old.py", status=1)
    assert "Python 3.11 or newer" in done.stderr


def test_a_dry_run_says_what_would_be_run_needed_and_fetched(script, make, engine, tmp_path):
    words = ("build", "rocm", "--output", tmp_path / "out.sif", "--route", "definition")
    shown = script(*words, "--dry-run", root=ROOT, AAM_SCRATCH=str(tmp_path)).stdout
    index = "https://download.pytorch.org/whl/rocm6.3"
    parts = [f"image       {tmp_path}/out.sif and out.sif.json", "60 GB in "]
    parts += [f"torch==2.7.1+rocm6.3, pytorch-triton-rocm==3.3.1 from {index}"]
    parts += ["docker://docker.io/library/ubuntu@sha256:", "build --build-arg BOOTSTRAP=docker"]
    parts += [
        "built       never from its pinned base",
        "are second-hand: no download has confirmed",
    ]
    assert absent(shown, *parts, "ca-certificates gcc g++") == []
    assert not list(tmp_path.glob("*out*"))
    assert "(not the pinned one)" in make("--submit", "0").stdout
    (engine / "apptainer").rename(engine / "other")
    # A plan can be shown on any machine.
    done = script(*words, "--dry-run", PATH=f"{engine}:/usr/bin:/bin", status=0)
    missing = "ENGINE: apptainer and singularity not found"
    assert f"warning: nothing could be built here: {missing}" in done.stderr


CHANGES = [
    ("out.sif", lambda old: old + "x", "out.sif: SHA-256"),
    ("out.sif", lambda old: None, "is missing, the sidecar has"),
    ("out.sif.log", lambda old: old + "x", "out.sif.log: SHA-256"),
    ("out.sif.cdx.json", lambda old: None, "out.sif.cdx.json: SHA-256: is missing"),
    ("out.sif.json", lambda old: None, "nothing proves what is in out.sif"),
    ("out.sif.json", lambda old: old[:40], "is not a sidecar"),
    ("out.sif.json", lambda old: old.replace('"sha256": "', '"sha256": "0', 2), "cpu.txt: SHA-256"),
    ("out.sif.json", lambda old: old.replace('"pinned": false', '"pinned": true'), "base in aam-"),
]


def test_an_untouched_image_is_verified_and_a_changed_one_or_its_papers_refused(make, tmp_path):
    make(status=0)
    for name, change, problem in CHANGES:
        path = tmp_path / name
        right = path.read_text()
        text = change(right)
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(InputError, match=problem):
            verify(read_pins("cpu"), tmp_path / "out.sif", None)
        path.write_text(right)
    assert "not the pinned" in "".join(verify(read_pins("cpu"), tmp_path / "out.sif", None))
