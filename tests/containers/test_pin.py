"""`make pin` against a registry of the test's own, and through the tools that ask one."""

from __future__ import annotations

import http.server
import importlib
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "5" * 64


class Registry(http.server.BaseHTTPRequestHandler):
    """Wants an anonymous token, as public registries do."""

    def log_message(self, *words: object) -> None:
        pass

    def do_GET(self) -> None:
        assert "scope=repository" in self.path
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"token": "t"}).encode())

    def do_HEAD(self) -> None:
        if self.headers.get("Authorization") != "Bearer t":
            self.send_response(401)
            place = f"http://localhost:{self.server.server_port}/token"
            challenge = f'Bearer realm="{place}",service="s",scope="repository:rocm/dev:pull"'
            self.send_header("WWW-Authenticate", challenge)
        elif self.path == "/v2/rocm/dev/manifests/6.3":
            assert "application/vnd.oci.image.index.v1+json" in self.headers["Accept"]
            self.send_response(200)
            self.send_header("Docker-Content-Digest", DIGEST)
        else:
            self.send_response(404)
        self.end_headers()


@pytest.fixture
def registry() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("localhost", 0), Registry)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"localhost:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_registrys_own_protocol(registry):
    ask = importlib.import_module("parts.registry").ask_registry
    assert ask(f"{registry}/rocm/dev:6.3", scheme="http") == DIGEST
    with pytest.raises(OSError, match="404"):
        ask(f"{registry}/rocm/dev:7", scheme="http")


@pytest.fixture
def pinned(tmp_path, monkeypatch):
    """A copy of pins.toml that `make pin` may change."""
    copy = tmp_path / "pins.toml"
    shutil.copy(ROOT / "containers" / "pins.toml", copy)
    pins, module = importlib.import_module("parts.pins"), importlib.import_module("parts.registry")
    monkeypatch.setattr(module, "read_pins", lambda flavour: pins.read_pins(flavour, copy))
    monkeypatch.setattr(module, "record", lambda *words: pins.record(*words, copy))
    return copy


@pytest.mark.parametrize("tool", ["crane", "skopeo"])
def test_a_tool_is_asked_and_its_answer_recorded_once(pinned, tmp_path, monkeypatch, capsys, tool):
    module, pins = importlib.import_module("parts.registry"), importlib.import_module("parts.pins")
    program = tmp_path / "bin" / tool
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho {DIGEST}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    module.pin_all(("rocm", "cuda", "cpu"))
    assert all(pins.read_pins(flavour, pinned).digest == DIGEST for flavour in ("rocm", "cuda", "cpu"))
    assert len((tmp_path / "asked").read_text().splitlines()) == 2, "each base is asked for once"
    assert "rocm/dev-ubuntu-24.04:6.3.4" in (tmp_path / "asked").read_text()
    before = pinned.stat().st_mtime_ns
    capsys.readouterr()
    module.pin_all(("rocm",))
    assert "as recorded" in capsys.readouterr().out
    assert pinned.stat().st_mtime_ns == before


def test_a_tool_that_fails_changes_nothing(pinned, tmp_path, monkeypatch):
    module, whole = importlib.import_module("parts.registry"), importlib.import_module("parts.whole")
    program = tmp_path / "bin" / "crane"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'no such host' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    before = pinned.read_text()
    with pytest.raises(whole.FailedError, match="gave no digest: no such host"):
        module.pin_all(("rocm",))
    assert pinned.read_text() == before
