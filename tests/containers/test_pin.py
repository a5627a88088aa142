"""`make pin` with a simulated skopeo."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from containers.lib import pins, registry
from containers.lib.errors import FailedError, InputError
from tests.programs import write_program

ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "5" * 64


@pytest.fixture
def pinned(tmp_path, monkeypatch) -> Path:
    """A copy of pins.toml that `make pin` may change."""
    copy = tmp_path / "pins.toml"
    shutil.copy(ROOT / "containers" / "pins.toml", copy)
    monkeypatch.setattr(registry, "read_pins", lambda flavour: pins.read_pins(flavour, copy))
    monkeypatch.setattr(registry, "record", lambda *words: pins.record(*words, copy))
    return copy


@pytest.fixture
def skopeo(tmp_path, monkeypatch) -> Callable[[str], Path]:
    """Puts a skopeo on PATH that runs shell lines and writes its arguments to a file, which is
    returned.
    """
    folder = tmp_path / "bin"
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def install(lines: str) -> Path:
        write_program(folder / "skopeo", f'echo "$@" >> {tmp_path}/arguments\n{lines}')
        return tmp_path / "arguments"

    return install


def test_skopeo_is_asked_once_for_each_base_and_its_digest_recorded(pinned, skopeo, capsys):
    arguments = skopeo(f"echo {DIGEST}")
    registry.pin_all(pins.FLAVOURS)
    read = [pins.read_pins(flavour, pinned) for flavour in pins.FLAVOURS]
    assert {each.digest for each in read} == {DIGEST}
    (date,) = {each.snapshot for each in read}
    assert date > pins.read_pins("rocm").snapshot, "packages are not older than the base"
    (call,) = arguments.read_text().splitlines()  # all have the same base
    assert call.startswith("inspect ")
    assert call.endswith("docker://docker.io/library/ubuntu:24.04")
    before = pinned.stat().st_mtime_ns
    capsys.readouterr()
    registry.pin_all(("rocm",))
    assert "as recorded" in capsys.readouterr().out
    assert pinned.stat().st_mtime_ns == before


@pytest.mark.parametrize("lines", ["echo 'no such host' >&2; exit 1", "echo latest"])
def test_an_answer_without_a_digest_changes_nothing(pinned, skopeo, lines):
    skopeo(lines)
    before = pinned.read_text()
    reason = r"(no such host|skopeo printed 'latest')"
    with pytest.raises(FailedError, match=f"the registry gave no digest: {reason}"):
        registry.pin_all(("rocm",))
    assert pinned.read_text() == before


def test_without_skopeo_the_message_says_what_to_install(pinned, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="skopeo not found on PATH; install the package skopeo"):
        registry.pin_all(("rocm",))
