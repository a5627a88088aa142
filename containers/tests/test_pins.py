"""Pins and locks: complete, pinned, hashed and up to date for every Python; `make pin` with a
simulated skopeo.
"""

from __future__ import annotations

import dataclasses
import re
import runpy
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from containers.lib import pins
from containers.lib.errors import FailedError, InputError
from tests.programs import write_program

ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "5" * 64


def requirements(text: str) -> list[Requirement]:
    return [Requirement(line) for line in re.findall(r"(?m)^(\w\S*==[^\\\n]+)", text)]


@pytest.mark.parametrize("flavour", pins.LOCKS)
def test_a_lock_is_up_to_date_names_no_registry_and_resolves_each_dependency_once(flavour):
    read = pins.read_pins(flavour)
    assert pins.lock_problems(read) == []
    text = read.lock.read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in lines if re.search(r"://|file:|/|find-links|index-url|@ ", line)] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["dependencies"]
    listed += project["optional-dependencies"]["test"] if read.extras else []
    for python in ("3.11", "3.12"):
        where = {"python_version": python, "python_full_version": f"{python}.4"}
        where |= {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
        taken = lambda line: line.marker is None or line.marker.evaluate(where)  # noqa: B023, E731
        locked = list(filter(taken, requirements(text)))
        versions = {canonicalize_name(line.name): str(line.specifier)[2:] for line in locked}
        assert len(versions) == len(locked)
        for requirement in filter(taken, map(Requirement, listed)):
            version = versions[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement}: {version}"
        vendors = {"rocm": {"pytorch-triton-rocm"}, "cuda": {"nvidia-cublas-cu12"}}
        assert versions.keys() & set.union(*vendors.values()) == vendors.get(flavour, set())


def test_the_runtime_lock_holds_no_tool_of_developers_and_no_other_version():
    texts = (pins.read_pins(name).lock.read_text() for name in ("runtime", "cpu"))
    runtime, cpu = (set(map(str, requirements(text))) for text in texts)
    assert runtime < cpu
    tools = {"pytest", "ruff", "mypy", "nox", "uv"}
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
        ("", "-e .\n", NOT_PINNED),
        ("", "thing @ file:///wheels/thing.whl\n", NOT_PINNED),
        ("", "thing==1.0\n", "has no hash"),
        ("", "thing==1.0 --hash=md5:abc\n", "has no hash"),
        ("# inputs: ", "# inputs: 0", "is older than pyproject.toml"),
        ("# uv: ", "# ub: ", "has no pinned uv with hashes"),
        ("# uv: uv==", "# uv: uv>=", "has no pinned uv with hashes"),
    ],
)
def test_a_wrong_lock_is_refused(old, new, problem):
    read = pins.read_pins("cpu")
    right = read.lock.read_text()
    wrong = right.replace(old, new, 1) if old else right + new
    assert pins.lock_text_problems(read, right) == []
    found = pins.lock_text_problems(read, wrong)
    assert any(problem in line and "make lock" in line for line in found)


def test_a_lock_is_out_of_date_when_the_project_or_the_pins_change(tmp_path):
    read = pins.read_pins("cpu")
    before = pins.inputs_digest(read)
    assert pins.inputs_digest(dataclasses.replace(read, runtime="hip 6.3")) != before
    assert pins.inputs_digest(dataclasses.replace(read, base=DIGEST)) == before, "no package"
    project = tmp_path / "pyproject.toml"
    project.write_text((ROOT / "pyproject.toml").read_text().replace('"numpy>=', '"numpy>1,>='))
    assert pins.inputs_digest(read, project) != before


def test_the_environment_script_splits_a_lock_and_refuses_other_pythons():
    script = runpy.run_path(str(ROOT / "containers" / "inside" / "environment.py"))
    text = pins.read_pins("rocm").lock.read_text()
    vendor, rest = ({line.name for line in requirements(t)} for t in script["split_lock"](text))
    assert vendor == {"torch", "pytorch-triton-rocm"}
    assert vendor.isdisjoint(rest)
    assert script["header_value"](text, "index") == pins.read_pins("rocm").index
    script["check_python"](text)
    with pytest.raises(SystemExit, match=r"the lock is for Python 2.0 to 2.7, this is 3"):
        script["check_python"]("# python: 2.0 to 2.7\n")


# --- make pin ----------------------------------------------------------------------------------


@pytest.fixture
def pinned(tmp_path, monkeypatch) -> Path:
    """A copy of the definitions and pins.toml that `make pin` may change."""
    for path in (pins.PINS, *pins.CONTAINERS.glob("aam-*.def")):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(pins, "CONTAINERS", tmp_path)
    monkeypatch.setattr(pins, "PINS", tmp_path / "pins.toml")
    return tmp_path


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in [*folder.glob("*.def"), folder / "pins.toml"]}


@pytest.fixture
def skopeo(tmp_path, monkeypatch) -> Callable[[str], Path]:
    """Puts a skopeo on PATH that runs shell lines and writes its arguments to a file, which is
    returned.
    """
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")

    def install(lines: str) -> Path:
        write_program(tmp_path / "bin" / "skopeo", f'echo "$@" >> {tmp_path}/arguments\n{lines}')
        return tmp_path / "arguments"

    return install


def test_recording_changes_one_value(pinned):
    file, cuda = pinned / "pins.toml", pins.read_pins("cuda")
    original = file.read_text().splitlines()
    pins.record("rocm", "built", "today")
    pins.record("cpu", "seen", ["a", "b"])
    assert pins.read_pins("rocm").built == "today"
    assert pins.read_pins("cpu").seen == ("a", "b")
    assert len([line for line in file.read_text().splitlines() if line not in original]) == 2
    assert pins.read_pins("cuda") == cuda


def test_skopeo_is_asked_once_and_its_digest_written_into_the_definitions(pinned, skopeo, capsys):
    arguments, before = skopeo(f"echo {DIGEST}"), texts(pinned)
    dates = {flavour: pins.read_pins(flavour).snapshot for flavour in pins.FLAVOURS}
    pins.pin_all(pins.FLAVOURS)
    for flavour in pins.FLAVOURS:
        read = pins.read_pins(flavour)
        assert read.base == f"docker.io/library/ubuntu@{DIGEST}"
        assert read.snapshot > dates[flavour], "packages are not older than the base"
    (call,) = arguments.read_text().splitlines()  # all have the same base
    assert re.fullmatch(r"inspect .* docker://docker.io/library/ubuntu:24.04", call)
    after = texts(pinned)
    assert after["pins.toml"] == before["pins.toml"]
    for name in ("aam-rocm.def", "aam-cuda.def"):
        changed = set(after[name].splitlines()) - set(before[name].splitlines())
        assert sorted(line.strip().partition("=")[0] for line in changed) == ["BASE", "SNAPSHOT"]
    pins.pin_all(("rocm",))
    assert "already pinned in aam-rocm.def" in capsys.readouterr().out
    assert texts(pinned) == after


@pytest.mark.parametrize("lines", ["echo 'no such host' >&2; exit 1", "echo latest"])
def test_an_answer_without_a_digest_changes_nothing(pinned, skopeo, lines, monkeypatch):
    skopeo(lines)
    before = texts(pinned)
    reason = r"(no such host|skopeo printed 'latest')"
    with pytest.raises(FailedError, match=f"the registry gave no digest: {reason}"):
        pins.pin_all(("rocm",))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match="skopeo not found on PATH; install the package skopeo"):
        pins.pin_all(("rocm",))
    assert texts(pinned) == before
