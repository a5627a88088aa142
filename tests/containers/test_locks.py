"""The locks are complete, pinned, hashed and up to date for every Python, and a lock that is not is
refused.
"""

from __future__ import annotations

import dataclasses
import re
import runpy
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from containers.lib import pins

ROOT = Path(__file__).parents[2]
FLAVOURS = ("rocm", "cuda", "cpu", "runtime")
each_flavour = pytest.mark.parametrize("flavour", FLAVOURS)


def requirements(text: str) -> list[Requirement]:
    return [Requirement(line) for line in re.findall(r"(?m)^(\w\S*==[^\\\n]+)", text)]


@each_flavour
def test_lock_is_right_up_to_date_and_names_no_path_and_no_registry(flavour):
    read = pins.read_pins(flavour)
    assert pins.lock_problems(read) == []
    lines = [line for line in read.lock.read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if re.search(r"://|file:|/|find-links|index-url|@ ", line)] == []


@each_flavour
@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_lock_resolves_each_dependency_once(flavour, python):
    read = pins.read_pins(flavour)
    where = {"python_version": python, "python_full_version": f"{python}.4"}
    where |= {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    where |= {"implementation_name": "cpython"}
    locked = requirements(read.lock.read_text())
    locked = [line for line in locked if line.marker is None or line.marker.evaluate(where)]
    versions = {canonicalize_name(line.name): str(line.specifier)[2:] for line in locked}
    assert len(versions) == len(locked)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["dependencies"]
    listed += project["optional-dependencies"]["test"] if read.extras else []
    for requirement in map(Requirement, listed):
        if requirement.marker is None or requirement.marker.evaluate(where):
            version = versions[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement}: {version}"
    vendors = {"pytorch-triton-rocm": "rocm", "nvidia-cublas-cu12": "cuda"}
    assert [vendors[name] for name in vendors if name in versions] == [flavour] * (
        flavour in vendors.values()
    )


def test_the_runtime_lock_holds_no_tool_of_developers_and_no_other_version():
    runtime, cpu = (
        set(map(str, requirements(pins.read_pins(name).lock.read_text())))
        for name in ("runtime", "cpu")
    )
    assert runtime < cpu
    tools = {"pytest", "ruff", "mypy", "nox", "uv", "scikit-bio"}
    assert tools.isdisjoint(Requirement(line).name for line in runtime)


def test_rocm_is_what_the_pins_say():
    read = pins.read_pins("rocm")
    text = read.lock.read_text()
    assert "torch==2.7.1+rocm6.3" in text
    for requirement, hashes in read.wheels.items():
        block = text[text.index(requirement) :].split("\n\n")[0]
        assert all(digest in block for digest in hashes)
        above = text[: text.index(requirement)].splitlines()[-1]
        assert above.startswith("# unverified") == (not set(hashes) <= set(read.seen)), above


NOT_PINNED = "is not pinned to one version"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("numpy==", "numpy>=", NOT_PINNED),
        ("", "pytest\n", NOT_PINNED),
        ("", "-e .\n", NOT_PINNED),
        ("", "thing @ file:///wheels/thing.whl\n", NOT_PINNED),
        ("", "thing==1.0\n", "has no hash"),
        ("", "thing==1.0 --hash=md5:abc\n", "has no hash"),
        ("# inputs: ", "# inputs: 0", "is older than pyproject.toml"),
    ],
)
def test_a_wrong_lock_is_refused(old, new, problem):
    read = pins.read_pins("cpu")
    right = read.lock.read_text()
    wrong = right.replace(old, new, 1) if old else right + new
    assert pins.lock_text_problems(read, right) == []
    found = pins.lock_text_problems(read, wrong)
    assert any(problem in line and "make lock" in line for line in found)


def test_a_lock_is_out_of_date_when_the_project_or_the_pins_change(tmp_path, monkeypatch):
    read = pins.read_pins("cpu")
    before = pins.inputs_digest(read)
    assert pins.inputs_digest(dataclasses.replace(read, runtime="hip 6.3")) != before
    other_base = dataclasses.replace(read, digest="sha256:" + "0" * 64)
    assert pins.inputs_digest(other_base) == before, "a base is no package"
    project = tmp_path / "pyproject.toml"
    project.write_text((ROOT / "pyproject.toml").read_text().replace('"numpy>=', '"numpy>1,>='))
    monkeypatch.setattr(pins, "PROJECT", project)
    assert pins.inputs_digest(read) != before


def test_recording_changes_one_value(tmp_path):
    copy = tmp_path / "pins.toml"
    original = (ROOT / "containers" / "pins.toml").read_text()
    copy.write_text(original)
    digest = "sha256:" + "1" * 64
    pins.record("rocm", "digest", digest, copy)
    assert pins.read_pins("rocm", copy).digest == digest
    pins.record("cpu", "seen", ["a", "b"], copy)
    assert pins.read_pins("cpu", copy).seen == ("a", "b")
    others = [line for line in copy.read_text().splitlines() if line not in original.splitlines()]
    assert len(others) == 2
    assert pins.read_pins("cuda", copy) == pins.read_pins("cuda")


def test_the_environment_script_splits_a_lock_and_refuses_other_pythons(capsys):
    script = runpy.run_path(str(ROOT / "containers" / "inside" / "environment.py"))
    text = pins.read_pins("rocm").lock.read_text()
    vendor, rest = script["split_lock"](text)
    assert [line.name for line in requirements(vendor)] == ["torch", "pytorch-triton-rocm"]
    assert {"torch", "pytorch-triton-rocm"}.isdisjoint(line.name for line in requirements(rest))
    assert script["header_value"](text, "index") == pins.read_pins("rocm").index
    script["check_python"](text)
    with pytest.raises(SystemExit, match=r"the lock is for Python 2.0 to 2.7, this is 3"):
        script["check_python"]("# python: 2.0 to 2.7\n")
