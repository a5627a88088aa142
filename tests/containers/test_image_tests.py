"""containers/test and `nox -s test_rocm`: what is copied, which tests count as run, and refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from containers.lib import image_tests
from containers.lib.wheels import source_digest
from tests.containers.conftest import record
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


def test_other_words_go_to_pytest():
    words = ["rocm", "--no-gpu", "--rocm", "--bind=/x", "-k", "name", "-x"]
    options, rest = image_tests.parse(words)
    assert (options.no_gpu, options.rocm, options.nv, options.bind) == (True, True, False, ["/x"])
    assert rest == ["-k", "name", "-x"]


@pytest.mark.parametrize("has_image", [False, True])
def test_image_and_controller_are_checked_before_a_node_is_asked_for(
    tmp_path, monkeypatch, has_image
):
    """On a login node whose controller of SLURM does not answer."""
    write_program(tmp_path / "bin" / "srun", f"touch {tmp_path}/called")
    write_program(tmp_path / "bin" / "scontrol", "echo 'Slurmctld(primary) at cosmos is DOWN'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    image = tmp_path / "image.sif"
    if has_image:
        image.touch()
        record(image, aam_sha256=source_digest())
    command = [sys.executable, "-m", "nox", "-s", "test_rocm", "--", "--image", str(image)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    printed = done.stdout + done.stderr
    assert done.returncode == 1
    assert not (tmp_path / "called").exists(), "no node is asked for"
    if has_image:
        said = "no controller of SLURM answers (scontrol ping: Slurmctld(primary) at cosmos"
        assert said in printed
        assert "nox -s test_rocm -- --no-gpu" in printed
    else:
        assert "image.sif: is missing; make container-rocm builds it" in printed
