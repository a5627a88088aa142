"""containers/test: what is copied, and which tests count as run."""

from __future__ import annotations

from pathlib import Path

from containers.lib import image_tests

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
    image_tests.copy_sources(tmp_path)
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
