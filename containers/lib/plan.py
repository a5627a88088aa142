"""What an image is made of: the request, and what pins.toml says where it says nothing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aam.files.atomic import file_digest
from containers.lib.engine import scratch_folder
from containers.lib.errors import InputError
from containers.lib.files import CONTAINERS, commit_label, folder_digest
from containers.lib.pins import DIGEST, Pins, lock_problems, read_pins
from containers.lib.wheels import version


@dataclass(frozen=True)
class Request:
    """The options of a build; empty values are taken from the definition and pins.toml."""

    flavour: str
    base: str = ""
    digest: str = ""
    python: str = ""
    definition: str = ""
    engine: str = ""
    route: str = "auto"
    output: str = ""
    snapshot: str = ""
    submit: str = ""  # "0": only show what would be done


@dataclass(frozen=True)
class Base:
    """The base of an image: a registry's image by digest, or a local root folder or SIF."""

    name: str
    digest: str
    local: Path | None
    pinned: bool


def choose_base(request: Request, pins: Pins) -> Base:
    """Return the requested base, or else the pinned one, with its digest.

    Raises
    ------
    InputError
        The base has no digest, or not the requested one.
    """
    local = Path(request.base) if request.base else None
    if local and local.exists():
        digest = folder_digest(local) if local.is_dir() else f"sha256:{file_digest(local)}"
        if request.digest and request.digest != digest:
            wrong = f"{local} is {digest}; nothing is built from another base"
            raise InputError(f"DIGEST={request.digest}: {wrong}")
        name = re.sub(r"[^\w.-]", "-", local.resolve().name)
        return Base(name, digest, local.resolve(), pinned=False)
    name, _, digest = (request.base or pins.base).partition("@")
    digest = request.digest or digest
    if request.base.startswith(("/", ".")) or os.sep * 2 in request.base:
        wrong = "no such folder or file; expected a path or NAME@sha256:DIGEST"
        raise InputError(f"BASE={request.base}: {wrong}")
    if not digest:
        ask = f"`skopeo inspect --no-tags --format {{{{.Digest}}}} docker://{name}` prints it"
        own = f"write BASE=NAME@sha256:DIGEST; {ask}"
        hint = own if request.base else f"make pin asks its registry ({pins.definition.name})"
        wrong = "has no digest, so the same image could not be built again"
        raise InputError(f"BASE={name}: {wrong}; {hint}")
    if not DIGEST.fullmatch(digest):
        raise InputError(f"DIGEST={digest}: expected sha256: and 64 hexadecimal digits")
    # An engine takes either a tag or a digest; the digest is exact.
    name = re.sub(r":[\w.-]+$", "", name)
    return Base(name, digest, None, f"{name}@{digest}" == pins.base)


def choose_python(request: Request, pins: Pins, base: Base) -> str:
    """Return the requested Python version, or else that of a local root folder, or else the pinned
    one.

    Raises
    ------
    InputError
        The lock is not for it.
    """
    program = base.local / "usr/bin/python3" if base.local else None
    link = str(program.readlink()) if program and program.is_symlink() else ""
    match = re.search(r"3\.\d+", link)
    python = request.python or (match[0] if match else pins.python)
    header = r"(?m)^# python: 3\.(\d+) to 3\.(\d+)$"
    first, last = re.findall(header, pins.lock.read_text(encoding="utf-8"))[0]
    if python not in {f"3.{minor}" for minor in range(int(first), int(last) + 1)}:
        expected = f"{pins.lock.name} is for Python 3.{first} to 3.{last}; name one of these"
        raise InputError(f"IMAGE_PYTHON={python}: {expected}")
    return python


def definition_path(request: Request, pins: Pins) -> Path:
    """Return the requested definition, or else the pinned one."""
    own = CONTAINERS / f"aam-{request.definition}.def"
    path = own if request.definition else pins.definition
    if not path.exists():
        wrong = f"{path.name} does not exist; expected rocm or cuda"
        raise InputError(f"DEFINITION={request.definition}: {wrong}")
    return path


def disks(pins: Pins, image: Path) -> list[tuple[Path, float, float, str]]:
    """Return each folder that a build writes: with the GB it has free, those it needs, and what to
    do about it.
    """
    image_disk = next(folder for folder in image.parents if folder.exists())
    rows = (
        (scratch_folder(), pins.disk_gb[0], "name a larger disk with AAM_SCRATCH=FOLDER"),
        (image_disk, pins.disk_gb[1], "free some, or write elsewhere with OUTPUT=FILE"),
    )
    return [(disk, shutil.disk_usage(disk).free / 1e9, gb, remedy) for disk, gb, remedy in rows]


def disk_problems(pins: Pins, image: Path) -> list[str]:
    """Return the folders with less free space than a build needs."""
    return [
        f"{folder}: {free:.1f} GB are free, {needed} GB are needed; {remedy}"
        for folder, free, needed, remedy in disks(pins, image)
        if free < needed
    ]


def collect(check: Callable[[], Any], problems: list[str]) -> Any:
    """Return the result of a check; when it raises `InputError`, add its problems to the others and
    return None.
    """
    try:
        return check()
    except InputError as error:
        problems.extend(error.problems)
        return None


def choose_snapshot(request: Request, pins: Pins, base: Base | None) -> str:
    """Return the date of the archive of packages: the requested one, that of the pinned base, or
    none.

    A base that is not pinned may be of a later date, or of a distribution without snapshots.
    """
    if request.snapshot and not re.fullmatch(r"\d{8}T\d{6}Z|none", request.snapshot):
        expected = f"expected a date such as {pins.snapshot}, or none"
        raise InputError(f"SNAPSHOT={request.snapshot}: {expected}")
    if request.snapshot:
        return request.snapshot.removesuffix("none")
    return pins.snapshot if base and base.pinned else ""


def definition_arguments(pins: Pins, base: Base, python: str, snapshot: str) -> dict[str, str]:
    """Return the values of the definition's %arguments."""
    return {
        "BOOTSTRAP": "localimage" if base.local else "docker",
        "BASE": f"{base.name}@{base.digest}",
        "PYTHON": python,
        "SNAPSHOT": snapshot,
        "LOCK": f"containers/lock/{pins.lock.name}",
        "INDEX": pins.index,
        "TORCH": locked_torch(pins),
        "VERSION": version(),
        "REVISION": commit_label(),
    }


def locked_torch(pins: Pins) -> str:
    """Return the version of PyTorch in a lock, on Linux."""
    return str(re.findall(r"(?m)^torch==([^\s;]+)", pins.lock.read_text(encoding="utf-8"))[0])


@dataclass(frozen=True)
class Plan:
    """What an image is built from; `values` are the arguments of the definition."""

    pins: Pins
    definition: Path
    base: Base
    values: dict[str, str]


def make_plan(request: Request, problems: list[str]) -> Plan | None:
    """Return the plan of a request, or add its problems to `problems` and return None."""
    pins = read_pins(request.flavour)
    found = lock_problems(pins)
    definition = collect(lambda: definition_path(request, pins), found)
    base = collect(lambda: choose_base(request, pins), found)
    snapshot = collect(lambda: choose_snapshot(request, pins, base), found)
    python = ""
    if base and pins.lock.exists():
        python = collect(lambda: choose_python(request, pins, base), found)
    problems += found
    if found:
        return None
    values = definition_arguments(pins, base, python, snapshot)
    return Plan(pins, definition, base, values)
