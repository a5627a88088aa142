"""`make lock`: resolves pyproject.toml into locks with hashes, with uv; `make pin` has its own module."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from parts.pins import PROJECT, Pins, inputs_digest, lock_problems, read_pins, record
from parts.wheels import wheel_folders
from parts.whole import ROOT, FailedError, InputError, sha256, write_text

LOWEST_PYTHON = "3.11"
REST = "# --- from pip's own index\n"
HASH = re.compile(r"sha256:([0-9a-f]{64})")


def uv(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run uv's resolver for all Pythons from the lowest on, with hashes and nothing about this machine."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--universal", "--python-version", LOWEST_PYTHON]
    command += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    command += ["--python", sys.executable, "--no-config", *arguments]
    environment = {**os.environ, "UV_HTTP_RETRIES": os.environ.get("UV_HTTP_RETRIES", "1")}
    return subprocess.run(command, cwd=ROOT, env=environment, input=given, capture_output=True, text=True)


def resolve(pins: Pins) -> str:
    """All requirements but the vendor's wheels, as uv pins them."""
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder) / "requires.in"
        asked.write_text("\n".join(pins.requires) + "\n", encoding="utf-8")
        left_out = Path(folder) / "excludes.txt"
        left_out.write_text("torch\n" if pins.wheels else "", encoding="utf-8")
        extras = [word for extra in pins.extras for word in ("--extra", extra)]
        done = uv(str(PROJECT), str(asked), *extras, "--excludes", str(left_out))
    if done.returncode:
        raise FailedError(
            f"{pins.lock.name}: uv found no solution, or no network:", *done.stderr.strip().splitlines()[-12:]
        )
    return done.stdout


def look_up(pins: Pins) -> set[str]:
    """Hashes of the vendor's wheels that its index or a wheel file on this machine shows."""
    shown = set()
    for requirement in pins.wheels:
        done = uv("--no-deps", "--default-index", pins.index, "-", given=requirement + "\n")
        found = set(HASH.findall(done.stdout))
        if done.returncode == 0:
            refuse_other(pins, requirement, found)
        shown |= found
    files = (path for folder in wheel_folders() for path in folder.glob("*.whl"))
    names = tuple(re.sub(r"\W", "_", re.split("==", requirement)[0]) for requirement in pins.wheels)
    return shown | {sha256(path) for path in files if path.name.startswith(names)}


def refuse_other(pins: Pins, requirement: str, found: set[str]) -> None:
    """Stop when the index does not hold a file that is pinned."""
    missing = sorted(set(pins.wheels[requirement]) - found)
    if missing:
        raise InputError(
            f"containers/pins.toml: [{pins.flavour}.wheels] {requirement}: {pins.index} holds no file with SHA-256",
            *(f"  {each}" for each in missing),
            "and it holds these; check them and correct the pin:",
            *(f"  {each}" for each in sorted(found)),
        )


def vendor_lines(pins: Pins) -> str:
    """The vendor's wheels in the form of a lock, with those hashes named that nobody has seen at their source."""
    text = ""
    for requirement, hashes in pins.wheels.items():
        unseen = [each[:12] for each in hashes if each not in pins.seen]
        text += f"# unverified until a networked make lock has seen it: {', '.join(unseen)}\n" if unseen else ""
        text += " \\\n    ".join([requirement, *(f"--hash=sha256:{each}" for each in hashes)]) + "\n"
    return text


def highest_python() -> str:
    """The newest Python that the project supports."""
    bound = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["requires-python"]
    above = re.findall(r"<3\.(\d+)", bound)[0]
    return f"3.{int(above) - 1}"


def lock(flavour: str) -> str:
    """Bring the lock of a flavour up to date; returns what was done."""
    pins = read_pins(flavour)
    wanted = {each for hashes in pins.wheels.values() for each in hashes}
    news = (look_up(pins) & wanted) - set(pins.seen) if wanted - set(pins.seen) else set()
    if news:
        record(flavour, "seen", sorted({*pins.seen, *news}))
        pins = read_pins(flavour)
    if not lock_problems(pins):
        return f"{pins.lock.name}: up to date"
    head = "# Made by `make lock` with uv from pyproject.toml and containers/pins.toml; not edited by hand.\n"
    head += f"# inputs: {inputs_digest(pins)}\n# python: {LOWEST_PYTHON} to {highest_python()}\n"
    head += f"# runtime: {pins.runtime}\n# index: {pins.index}\n"
    write_text(pins.lock, head + vendor_lines(pins) + REST + resolve(pins))
    problems = lock_problems(pins)
    if problems:
        raise FailedError(*problems)
    return f"{pins.lock.name}: written"


def lock_all(flavours: tuple[str, ...]) -> None:
    """Bring locks up to date and say which were written."""
    if importlib.util.find_spec("uv") is None:
        raise InputError(f"{sys.executable} has no uv: make setup installs it, or name another Python that has it")
    for flavour in flavours:
        print(lock(flavour), flush=True)
