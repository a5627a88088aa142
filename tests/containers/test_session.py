"""The tests inside an image: what is copied, and what counts as having run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JUNIT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.runtime.test_device" name="test_gpu[float32]"/>
<testcase classname="tests.runtime.test_device" name="test_gpu[bfloat16]"><skipped message="no"/></testcase>
<testcase classname="tests.runtime.test_device.TestGpu" name="test_speed"/>
</testsuite></testsuites>"""


@pytest.fixture
def session():
    return importlib.import_module("session")


def test_every_gpu_test_must_have_run(session, tmp_path):
    junit = tmp_path / "junit.xml"
    junit.write_text(JUNIT)
    place = "tests/runtime/test_device.py"
    ran = {f"{place}::test_gpu[float32]", f"{place}::TestGpu::test_speed"}
    assert session.missing_gpu_tests(ran, junit) == []
    others = {f"{place}::test_gpu[bfloat16]", "tests/test_x.py::test_never_collected"}
    assert session.missing_gpu_tests(ran | others, junit) == sorted(others)


def test_the_copy_holds_the_tests_and_no_images(session, tmp_path):
    session.sources(tmp_path)
    assert (tmp_path / "tests" / "conftest.py").exists()
    assert (tmp_path / "pyproject.toml").read_bytes() == (ROOT / "pyproject.toml").read_bytes()
    assert [path.name for path in tmp_path.rglob("*.sif")] == []
    assert not (tmp_path / ".venv").exists()


def test_an_image_that_is_not_there(session, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["session.py", "cpu", "--image", str(tmp_path / "no.sif")])
    assert session.main() == 2
    assert "make container-cpu builds it" in capsys.readouterr().err


def test_words_that_are_not_its_own_go_to_pytest(session):
    options, rest = session.parse(["rocm", "--no-gpu", "--rocm", "--bind=/x", "-k", "name", "-x"])
    assert (options.no_gpu, options.rocm, options.nv, options.bind) == (True, True, False, ["/x"])
    assert rest == ["-k", "name", "-x"]
