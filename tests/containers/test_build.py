"""containers/build with a simulated engine: what is refused, what is recorded, what is left
behind.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from containers.lib import image, plan, wheels
from containers.lib.engine import engine_environment, explain, find_engine
from containers.lib.errors import FailedError, InputError
from containers.lib.oci import build_oci
from containers.lib.pins import read_pins
from containers.lib.sidecar import PAPERS, signature_problems, verify

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
    """Builds the cpu image from the small base into the test's folder, by the definition's
    route.
    """
    words = ["--base", base, "--output", tmp_path / "out.sif", "--route", "definition"]
    return lambda *more, **variables: script("build", "cpu", *words, *more, **variables)


def test_an_image_and_its_sidecar(make, base, tmp_path):
    done = make(status=0)
    sidecar = json.loads((tmp_path / "out.sif.json").read_text())
    assert (tmp_path / "out.sif").read_text() == "complete"
    assert sidecar["base"]["name"] == "base"
    assert sidecar["base"]["digest"].startswith("sha256:")
    assert sidecar["base"]["pinned"] is False
    assert sidecar["python"] == "3.11", "the Python of the local root folder"
    assert sidecar["route"] == "definition"
    assert sidecar["reproducible"] is False
    assert sidecar["image"]["bytes"] == len("complete")
    assert {"commit", "dirty"} <= set(sidecar["git"])
    assert "not the pinned" in done.stdout
    assert "it is not signed: `apptainer key newpair` makes a key" in done.stdout
    arguments = done.stderr.split("--build-arg ")[1:]
    assert "BOOTSTRAP=localimage " in arguments
    assert any(word.startswith("LOCK=containers/lock/cpu.txt") for word in arguments)
    papers = {name: f"out.sif{end}" for name, end in PAPERS.items()}
    assert {path.name for path in tmp_path.glob("*out*")} == {
        "out.sif",
        "out.sif.json",
        *papers.values(),
    }
    assert {name: record["file"] for name, record in sidecar["papers"].items()} == papers
    rendered = (tmp_path / papers["definition"]).read_text()
    assert f"From: base@{sidecar['base']['digest']}\n" in rendered
    assert "{{" not in rendered
    assert (tmp_path / papers["lock"]).read_bytes() == (
        ROOT / "containers/lock/cpu.txt"
    ).read_bytes()
    assert sidecar["papers"]["sbom"]["sha256"] == sidecar["sbom_sha256"]


def test_an_image_is_signed_where_there_is_a_key(make, tmp_path):
    done = make(FAKE_KEY="locked", FAKE_OUTPUT="devices: {}")
    assert "the image is not signed: FATAL: wrong passphrase" in done.stdout
    assert json.loads((tmp_path / "out.sif.json").read_text())["signed"] is False
    assert "devices: {}" in (tmp_path / "out.sif.log").read_text(), (
        "the log holds the lines of the self-test"
    )
    assert json.loads((tmp_path / "out.sif.json").read_text())["unsigned_sha256"] == ""
    done = make(FAKE_KEY="good", FAKE_HELP="--build-arg --reproducible", status=0)
    sidecar = json.loads((tmp_path / "out.sif.json").read_text())
    assert sidecar["signed"] is True
    assert (tmp_path / "out.sif").read_text() == "complete and signed"
    signed, unsigned = (
        hashlib.sha256(text).hexdigest() for text in (b"complete and signed", b"complete")
    )
    assert sidecar["image"]["sha256"] == signed
    assert sidecar["unsigned_sha256"] == unsigned, "what a second build gives"
    assert f"the same bytes but for the signature; SHA-256 before it: {unsigned}" in done.stdout
    assert any(
        unsigned in remark for remark in verify(read_pins("cpu"), tmp_path / "out.sif", None)
    )


@pytest.mark.parametrize(("key", "problems"), [("good", 0), ("lost", 1)])
def test_a_signature_is_verified(engine, monkeypatch, tmp_path, key, problems):
    monkeypatch.setenv("AAM_SCRATCH", str(tmp_path))
    monkeypatch.setenv("FAKE_KEY", key)
    found = signature_problems(find_engine(str(engine / "apptainer")), tmp_path / "out.sif")
    assert len(found) == problems
    assert all(
        "verify refuses its signature (FATAL: wrong passphrase)" in problem for problem in found
    )


def test_an_image_of_a_user_with_a_strict_umask_is_readable_by_others(make, tmp_path):
    assert make(umask=0o077).returncode == 0
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("out.sif*")} == {0o644}


def test_either_definition_builds_it(make):
    for definition in ("rocm", "cuda"):
        done = make("--definition", definition, status=0)
        assert f"aam-{definition}.def" in done.stderr


def test_a_reproducible_engine_builds_reproducibly(make, tmp_path):
    assert make(FAKE_HELP="--build-arg --reproducible").returncode == 0
    assert json.loads((tmp_path / "out.sif.json").read_text())["reproducible"] is True


def test_all_problems_are_in_one_message(script, tmp_path):
    words = [
        "--base",
        "nowhere:1",
        "--route",
        "fast",
        "--definition",
        "arm",
        "--engine",
        "docker9",
        "--snapshot",
        "x",
    ]
    done = script("build", "cpu", *words, "--output", tmp_path / "out.sif", status=2)
    parts = (
        "BASE=nowhere",
        "ROUTE=fast",
        "DEFINITION=arm",
        "ENGINE: docker9 not found",
        "sha256:DIGEST",
        "SNAPSHOT=x",
    )
    assert [part for part in parts if part not in done.stderr] == []
    for python in ("2.7", "3.10", "3.14", "3.12; touch x"):
        done = script(
            "build", "cpu", "--python", python, "--route", "fast", "--output", tmp_path / "out.sif"
        )
        assert (
            f"IMAGE_PYTHON={python}: cpu.txt is for Python 3.11 to 3.13; name one of these"
            in done.stderr
        )
        assert done.returncode == 2
        assert "ROUTE=fast" in done.stderr
    assert not list(tmp_path.glob("*out.sif*"))


def test_the_rocm_image_builds_on_the_pinned_base(script, tmp_path):
    """A fresh clone has all that `make container-rocm` needs; the vendor's base needs its
    digest.
    """
    done = script(
        "build", "rocm", "--route", "definition", "--output", tmp_path / "out.sif", status=0
    )
    assert json.loads((tmp_path / "out.sif.json").read_text())["base"]["pinned"] is True
    assert "BASE=docker.io/library/ubuntu " in done.stderr
    done = script(
        "build",
        "rocm",
        "--output",
        tmp_path / "b.sif",
        "--base",
        "docker.io/rocm/dev-ubuntu-24.04:6.3.4",
    )
    assert done.returncode == 2
    assert "has no digest" in done.stderr
    assert "docker://docker.io/rocm/dev-ubuntu-24.04:6.3.4` prints it" in done.stderr


@pytest.mark.parametrize("digest", ["sha256:" + "0" * 64, "latest", "sha256:12"])
def test_a_wrong_digest_is_refused(make, script, digest, tmp_path):
    done = make("--digest", digest, status=2)
    assert f"DIGEST={digest}" in done.stderr
    done = script(
        "build",
        "cpu",
        "--base",
        f"docker.io/a/b@{digest}x",
        "--output",
        tmp_path / "out.sif",
        status=2,
    )
    assert "expected sha256: and 64 hexadecimal digits" in done.stderr


@pytest.mark.parametrize("printed", ["Docker version 28.2.2", "apptainer: broken", ""])
def test_a_wrong_engine_is_named(make, printed):
    done = make(FAKE_VERSION=printed, status=2)
    assert "is not Apptainer or Singularity" in done.stderr
    assert "ENGINE=PATH" in done.stderr


@pytest.mark.parametrize(
    "printed", ["SingularityPRO version 4.1.3-1.el9", "singularity-ce version 4.1.3"]
)
def test_other_engines_of_the_family(make, printed, tmp_path):
    assert make(FAKE_VERSION=printed).returncode == 0
    assert json.loads((tmp_path / "out.sif.json").read_text())["engine"]["version"].startswith(
        "4.1.3"
    )


def test_the_engine_gets_no_settings_of_python(monkeypatch, tmp_path):
    monkeypatch.setenv("AAM_SCRATCH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert not [name for name in engine_environment() if name.startswith("PYTHON")]


def test_no_engine_at_all(make, engine):
    (engine / "apptainer").rename(engine / "other")
    done = make(PATH=f"{engine}:/usr/bin:/bin", status=2)
    assert "module load singularitypro" in done.stderr


HASHES = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE"


@pytest.mark.parametrize(
    ("printed", "explanation"),
    [
        ("FATAL: write /x: no space left on device", "AAM_SCRATCH"),
        ("dial tcp: lookup index.docker.io: no such host", "no network"),
        ("E: Temporary failure resolving 'mirror'", "no network"),
        (HASHES, "differs from the one in the lock"),
        ("reading manifest sha256:00: manifest unknown", "no image with this digest"),
        (
            "E: Failed to fetch https://snapshot.ubuntu.com/ubuntu/2026/InRelease  404",
            "SNAPSHOT=none takes",
        ),
        (
            "Err:1 https://snapshot.ubuntu.com/ubuntu/2026 noble InRelease\n  Could not connect",
            "SNAPSHOT=none takes",
        ),
        (
            "/.singularity.d/libs/faked: /lib/libc.so.6: version `GLIBC_2.38' not found",
            "ROUTE=layer builds without it",
        ),
        ("error running container: cgroups in hybrid mode not supported", "BUILDAH_RUNTIME=runc"),
        (
            "FATAL: the image's architecture (arm64) could not run on the host's (amd64)",
            "another architecture",
        ),
    ],
)
def test_what_an_engine_prints_is_explained(printed, explanation):
    (line,) = explain(printed)
    assert explanation in line


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
    environment = {
        **os.environ,
        "PATH": f"{engine}:{os.environ['PATH']}",
        "AAM_SCRATCH": str(tmp_path / "s"),
    }
    command = [
        sys.executable,
        tree / "containers" / "build",
        "cpu",
        "--base",
        base,
        "--output",
        tmp_path / "out.sif",
    ]
    environment |= {"FAKE_SLEEP": "60"}
    # Tests that run in the background ignore SIGINT, and so would their children.
    handle_sigint = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    with subprocess.Popen(
        [*command, "--route", "definition"],
        env=environment,
        stderr=subprocess.DEVNULL,
        preexec_fn=handle_sigint,
    ) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".partial~*~out.sif")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(number)
    assert process.returncode in (130, 128 + signal.SIGTERM)
    assert list(tmp_path.glob("*out.sif*")) == []
    assert str(engine).encode() not in said_by_processes(), "the engine ends with the build"


def test_files_of_a_killed_build_are_removed(make, tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    abandoned = tmp_path / f".partial~{socket.gethostname()}~{ended.pid}~out.sif"
    abandoned.write_text("incomplete")
    in_progress = tmp_path / f".partial~{socket.gethostname()}~{os.getpid()}~out.sif"
    in_progress.write_text("another build, still running")
    elsewhere = tmp_path / f".partial~another-host~{ended.pid}~out.sif"
    elsewhere.write_text("the build of another machine, which may still run")
    assert make().returncode == 0
    assert not abandoned.exists()
    assert in_progress.exists()
    assert elsewhere.exists()


def test_too_little_disk_is_found_before_the_build(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "scratch_folder", lambda: tmp_path)
    pins = dataclasses.replace(read_pins("cpu"), disk_gb=(1e9, 2e9))
    problems = plan.disk_problems(pins, tmp_path / "out.sif")
    assert len(problems) == 2
    assert "AAM_SCRATCH=FOLDER" in problems[0]
    assert "OUTPUT=FILE" in problems[1]
    assert issubclass(FailedError, InputError)


def test_a_python_without_pip_is_named_before_the_build(engine, base, tmp_path, monkeypatch):
    """As that of a minimal Ubuntu; a wheel of these sources that is there already needs none."""
    monkeypatch.setenv("AAM_SCRATCH", str(tmp_path))
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(wheels, "wheel_path", lambda: tmp_path / "aam.whl")
    ways = (
        (image.build, engine / "apptainer"),
        (lambda request: build_oci(request, False), "/bin/sh"),
    )
    for make, engine_path in ways:
        with pytest.raises(
            InputError,
            match="has no pip, which builds the wheel of aam; apt-get install python3-pip",
        ):
            make(
                plan.Request(
                    "cpu", base=str(base), engine=str(engine_path), output=str(tmp_path / "out.sif")
                )
            )
    (tmp_path / "aam.whl").touch()
    wheels.stamp_path(tmp_path / "aam.whl").write_text(
        wheels.digest_of_files(wheels.source_files())
    )
    assert wheels.wheel_problems() == []


@pytest.mark.parametrize("name", ["build", "run", "test", "inside/environment.py"])
def test_an_old_python_is_told_which_it_must_be(name, tmp_path):
    """The lines above the check run on every Python 3, and 3.6 (SLES 15) can parse the whole
    file.
    """
    text = (ROOT / "containers" / name).read_text()
    head = text[: text.index("    sys.exit(")]
    ast.parse(text, feature_version=(3, 6))
    assert "sys.version_info < (3, 11)" in head
    assert "__future__" not in head
    (tmp_path / "old.py").write_text("import sys\nsys.version_info = (3, 6)\n" + text)
    done = subprocess.run([sys.executable, tmp_path / "old.py"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Python 3.11 or newer" in done.stderr


def test_a_dry_run_says_what_would_be_run_needed_and_fetched(script, make, engine, tmp_path):
    words = ("build", "rocm", "--output", tmp_path / "out.sif", "--route", "definition")
    shown = script(*words, "--dry-run", root=ROOT, AAM_SCRATCH=str(tmp_path)).stdout
    for part in (
        f"image       {tmp_path}/out.sif and out.sif.json",
        "docker://docker.io/library/ubuntu@sha256:",
        "torch==2.7.1+rocm6.3, pytorch-triton-rocm==3.3.1 from "
        "https://download.pytorch.org/whl/rocm6.3",
        "ca-certificates gcc g++",
        "60 GB in ",
        "signature   none: `apptainer key newpair` makes a key",
        "build --build-arg BOOTSTRAP=docker",
    ):
        assert part in shown
    assert not list(tmp_path.glob("*out*"))
    assert "(not the pinned one)" in make("--submit", "0").stdout
    (engine / "apptainer").rename(engine / "other")
    done = script(*words, "--dry-run", PATH=f"{engine}:/usr/bin:/bin")
    assert done.returncode == 0, "a plan can be shown on any machine"
    assert (
        "warning: nothing could be built here: ENGINE: apptainer and singularity not found"
        in done.stderr
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="no make is installed, as in an image")
def test_make_asks_for_the_engine_before_it_builds_a_wheel():
    command = [
        "make",
        "--no-print-directory",
        "-n",
        "-B",
        "container-cpu",
        "SUBMIT=0",
        "PYTHON=python3",
    ]
    lines = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith('python3 containers/build cpu --submit "0" --engine ""')


# --- verify ------------------------------------------------------------------------------------


CHANGES = [
    ("out.sif", lambda old: old + "x", "out.sif: SHA-256"),
    ("out.sif", lambda old: None, "is missing, the sidecar has"),
    ("out.sif.log", lambda old: old + "x", "out.sif.log: SHA-256"),
    ("out.sif.cdx.json", lambda old: None, "out.sif.cdx.json: SHA-256: is missing"),
    ("out.sif.json", lambda old: None, "nothing proves what is in out.sif"),
    ("out.sif.json", lambda old: old[:40], "is not a sidecar"),
    ("out.sif.json", lambda old: old.replace('"sha256": "', '"sha256": "0', 2), "cpu.txt: SHA-256"),
    (
        "out.sif.json",
        lambda old: old.replace('"pinned": false', '"pinned": true'),
        "base digest in pins.toml",
    ),
]


def test_an_untouched_image_is_verified_and_a_changed_one_or_its_papers_refused(make, tmp_path):
    assert make().returncode == 0
    for name, change, problem in CHANGES:
        path = tmp_path / name
        right = path.read_text()
        text = change(right)
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(InputError, match=problem):
            verify(read_pins("cpu"), tmp_path / "out.sif", None)
        path.write_text(right)
    assert any(
        "not the pinned" in remark
        for remark in verify(read_pins("cpu"), tmp_path / "out.sif", None)
    )
