"""`make lock`: resolve pyproject.toml and pins.toml with uv into locks with hashes."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

from aam.files.atomic import file_digest
from containers.lib.errors import FailedError, InputError
from containers.lib.files import ROOT, write_text
from containers.lib.pins import PROJECT, REST, Pins, inputs_digest, lock_problems, read_pins, record
from containers.lib.wheels import wheel_folders

LOWEST_PYTHON = "3.11"
HASH = re.compile(r"sha256:([0-9a-f]{64})")


def run_uv(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run uv's resolver for all supported Pythons, with hashes and nothing about this machine."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--universal", "--no-config"]
    command += ["--python-version", LOWEST_PYTHON, "--python", sys.executable, "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    environment = {"UV_HTTP_RETRIES": "1", **os.environ}
    options: dict[str, Any] = {"cwd": ROOT, "env": environment, "input": stdin}
    return subprocess.run([*command, *arguments], capture_output=True, text=True, **options)


def resolve(pins: Pins) -> str:
    """Return the requirements that pip's own index has, as uv pins them."""
    with tempfile.TemporaryDirectory() as folder:
        requires = Path(folder) / "requires.in"
        requires.write_text("\n".join(pins.requires) + "\n", encoding="utf-8")
        excludes = Path(folder) / "excludes.txt"
        excludes.write_text("torch\n" if pins.wheels else "", encoding="utf-8")
        extras = [word for extra in pins.extras for word in ("--extra", extra)]
        done = run_uv(str(PROJECT), str(requires), *extras, "--excludes", str(excludes))
    if done.returncode:
        last_lines = done.stderr.strip().splitlines()[-12:]
        raise FailedError(f"{pins.lock.name}: uv found no solution, or no network:", *last_lines)
    return done.stdout


def confirmed_hashes(pins: Pins) -> set[str]:
    """Return the hashes of the vendor's wheels that its index, or a wheel file on this machine,
    confirms.
    """
    confirmed = set()
    for requirement in pins.wheels:
        done = run_uv("--no-deps", "--default-index", pins.index, "-", stdin=requirement + "\n")
        index_hashes = set(HASH.findall(done.stdout))
        if done.returncode == 0:
            check_index_has_pins(pins, requirement, index_hashes)
        confirmed |= index_hashes
    files = (path for folder in wheel_folders() for path in folder.glob("*.whl"))
    names = tuple(re.sub(r"\W", "_", re.split("==", requirement)[0]) for requirement in pins.wheels)
    return confirmed | {file_digest(path) for path in files if path.name.startswith(names)}


def check_index_has_pins(pins: Pins, requirement: str, index_hashes: set[str]) -> None:
    """Raise `InputError` when the index does not hold a file that is pinned."""
    missing = sorted(set(pins.wheels[requirement]) - index_hashes)
    if missing:
        table = f"containers/pins.toml: [{pins.flavour}.wheels] {requirement}"
        raise InputError(
            f"{table}: {pins.index} holds no file with SHA-256",
            *(f"  {digest}" for digest in missing),
            "it holds these; check them and correct the pin:",
            *(f"  {digest}" for digest in sorted(index_hashes)),
        )


def uv_line() -> str:
    """Return the requirement, with hashes, of the uv that installs a lock: the one that resolves
    it.
    """
    done = run_uv("--no-deps", "-", stdin=f"uv=={metadata.version('uv')}\n")
    if done.returncode:
        raise FailedError("uv: it cannot be pinned:", *done.stderr.strip().splitlines()[-12:])
    return re.sub(r"\s*\\\n\s*", " ", done.stdout.strip())


def vendor_lines(pins: Pins) -> str:
    """Return the lines of a lock for the vendor's wheels; a comment names the hashes that nothing
    has confirmed.
    """
    lines = []
    for requirement, hashes in pins.wheels.items():
        unseen = ", ".join(digest[:12] for digest in hashes if digest not in pins.seen)
        lines += [f"# unverified until a networked make lock has seen it: {unseen}"] * bool(unseen)
        lines += [" \\\n    ".join([requirement, *(f"--hash=sha256:{each}" for each in hashes)])]
    return "".join(f"{line}\n" for line in lines)


def highest_python() -> str:
    """Return the newest Python that the project supports."""
    bound = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["requires-python"]
    above = re.findall(r"<3\.(\d+)", bound)[0]
    return f"3.{int(above) - 1}"


def record_confirmed(pins: Pins) -> Pins:
    """Look for pinned hashes that nothing has confirmed yet, record those that are confirmed now,
    return the pins.
    """
    unseen = {digest for hashes in pins.wheels.values() for digest in hashes} - set(pins.seen)
    newly_seen = confirmed_hashes(pins) & unseen if unseen else set()
    if newly_seen:
        record(pins.like or pins.flavour, "seen", sorted({*pins.seen, *newly_seen}))
    return read_pins(pins.flavour)


def lock(flavour: str) -> str:
    """Bring the lock of a flavour up to date and return a line that says what was done."""
    pins = record_confirmed(read_pins(flavour))
    if not lock_problems(pins):
        return f"{pins.lock.name}: up to date"
    made_from = "with uv from pyproject.toml and containers/pins.toml; not edited by hand."
    head = f"# Made by `make lock` {made_from}\n"
    head += f"# inputs: {inputs_digest(pins)}\n# python: {LOWEST_PYTHON} to {highest_python()}\n"
    head += f"# runtime: {pins.runtime}\n# index: {pins.index}\n# uv: {uv_line()}\n"
    write_text(pins.lock, head + vendor_lines(pins) + REST + resolve(pins))
    problems = lock_problems(pins)
    if problems:
        raise FailedError(*problems)
    return f"{pins.lock.name}: written"


def lock_all(flavours: tuple[str, ...]) -> None:
    """Bring the locks of several flavours up to date and print which were written."""
    if importlib.util.find_spec("uv") is None:
        hint = "make setup installs it, or name another Python that has it"
        raise InputError(f"{sys.executable} has no uv: {hint}")
    for flavour in flavours:
        print(lock(flavour), flush=True)
