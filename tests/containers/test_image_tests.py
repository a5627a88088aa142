"""containers/test: what is copied, and which tests count as run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from containers.lib import image_tests
from containers.lib.sidecar import Sidecar, write_sidecar
from containers.lib.wheels import source_digest
from tests.programs import write_program

ROOT = Path(__file__).parents[2]
JUNIT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.device.test_device" name="test_gpu[float32]"/>
<testcase classname="tests.device.test_device" name="test_gpu[bfloat16]"><skipped message="no"/></testcase>
<testcase classname="tests.device.test_device.TestGpu" name="test_speed"/>
</testsuite></testsuites>"""


def test_every_gpu_test_must_have_run(tmp_path):
    junit = tmp_path / "junit.xml"
    junit.write_text(JUNIT)
    module = "tests/device/test_device.py"
    executed = {f"{module}::test_gpu[float32]", f"{module}::TestGpu::test_speed"}
    assert image_tests.missing_tests(executed, junit) == []
    missing = {f"{module}::test_gpu[bfloat16]", "tests/test_x.py::test_never_collected"}
    assert image_tests.missing_tests(executed | missing, junit) == sorted(missing)


def test_the_copy_holds_the_tests_and_no_images(tmp_path):
    image_tests.copy_sources(tmp_path, image_tests.INSTALLED)
    assert not (tmp_path / "aam").exists(), "the image's own aam is imported"
    assert (tmp_path / "tests" / "conftest.py").exists()
    assert (tmp_path / "pyproject.toml").read_bytes() == (ROOT / "pyproject.toml").read_bytes()
    assert [path.name for path in tmp_path.rglob("*.sif")] == []
    assert not (tmp_path / ".venv").exists()


def test_a_missing_image(tmp_path, refused):
    assert "make container-cpu builds it" in refused(
        image_tests.main, ["cpu", "--image", str(tmp_path / "no.sif")]
    )


def test_other_words_go_to_pytest():
    options, rest = image_tests.parse(
        ["rocm", "--no-gpu", "--rocm", "--bind=/x", "-k", "name", "-x"]
    )
    assert (options.no_gpu, options.rocm, options.nv, options.bind) == (True, True, False, ["/x"])
    assert rest == ["-k", "name", "-x"]


@pytest.fixture
def test_rocm(tmp_path, monkeypatch) -> Callable[..., str]:
    """Runs `nox -s test_rocm` on a login node whose controller of SLURM does not answer; returns
    what it prints.
    """
    write_program(tmp_path / "bin" / "srun", f"touch {tmp_path}/called")
    write_program(tmp_path / "bin" / "scontrol", "echo 'Slurmctld(primary) at cosmos is DOWN'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def run(*words: object) -> str:
        command = [sys.executable, "-m", "nox", "-s", "test_rocm", "--", *map(str, words)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 1
        assert not (tmp_path / "called").exists(), "no node is asked for"
        return done.stdout + done.stderr

    return run


def test_the_image_is_looked_for_before_a_node_is_asked_for(test_rocm, tmp_path):
    missing = test_rocm("--image", tmp_path / "no.sif")
    assert "no.sif: is missing; make container-rocm builds it" in missing


def test_a_controller_that_does_not_answer_is_explained(test_rocm, tmp_path):
    image = tmp_path / "image.sif"
    image.touch()
    digests = {name: source_digest() for name in ("aam_sha256", "sbom_sha256", "definition_sha256")}
    empty: dict = {"image": {}, "base": {}, "lock": {}, "git": {}, "engine": {}}
    words = {"flavour": "rocm", "python": "3.12", "route": "definition"}
    write_sidecar(
        Sidecar(**digests, **empty, **words, layer=None, unverified=[], reproducible=False), image
    )
    printed = test_rocm("--image", image)
    assert "no controller of SLURM answers (scontrol ping: Slurmctld(primary) at cosmos" in printed
    assert "nox -s test_rocm -- --no-gpu" in printed
