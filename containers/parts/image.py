"""Builds an image from a definition, or, where this user may not, from the base and a layer."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts import layer
from parts.engine import Engine, call, find_engine, may_build, scratch
from parts.git import commit_time, revision
from parts.pins import DIGEST, Pins, lock_problems, read_pins, unverified
from parts.sidecar import Sidecar, described, inside, remarks, sidecar_path, write_sidecar
from parts.wheels import make_wheel, source_digest, version, wheel_folders, wheel_path
from parts.whole import CONTAINERS, InputError, folder_digest, refuse, sha256, whole

ROUTES = ("auto", "definition", "layer")


@dataclass(frozen=True)
class Request:
    """What a build was asked for; empty values are taken from pins.toml."""

    flavour: str
    base: str = ""
    digest: str = ""
    python: str = ""
    definition: str = ""
    engine: str = ""
    route: str = "auto"
    output: str = ""


@dataclass(frozen=True)
class Base:
    """What an image starts from: a registry's image by digest, or a local root folder or SIF."""

    name: str
    digest: str
    local: Path | None
    pinned: bool


def choose_base(request: Request, pins: Pins) -> Base:
    """The base that was asked for, else the pinned one; its digest is known in any case.

    Raises
    ------
    InputError
        It has no digest, or another than was asked for.
    """
    local = Path(request.base) if request.base else None
    if local and local.exists():
        found = folder_digest(local) if local.is_dir() else f"sha256:{sha256(local)}"
        if request.digest and request.digest != found:
            raise InputError(f"DIGEST={request.digest}: {local} is {found}; nothing is built from another base")
        return Base(re.sub(r"[^\w.-]", "-", local.resolve().name), found, local.resolve(), pinned=False)
    name, _, digest = (request.base or pins.base).partition("@")
    digest = request.digest or digest or ("" if request.base else pins.digest)
    if request.base.startswith(("/", ".")) or os.sep * 2 in request.base:
        raise InputError(f"BASE={request.base}: no such folder or file; expected a path or NAME@sha256:DIGEST")
    if not digest:
        hint = "make pin asks its registry" if not request.base else "write BASE=NAME@sha256:DIGEST"
        raise InputError(f"BASE={name}: has no digest, so nobody could build the same image again; {hint}")
    if not DIGEST.fullmatch(digest):
        raise InputError(f"DIGEST={digest}: expected sha256: and 64 hexadecimal digits")
    # An engine takes a name with a tag or with a digest; the digest says more.
    return Base(re.sub(r":[\w.-]+$", "", name), digest, None, pinned=(name, digest) == (pins.base, pins.digest))


def choose_python(request: Request, pins: Pins, base: Base) -> str:
    """The Python version that was asked for, else that of a local root folder, else the pinned one."""
    if request.python or base.local is None:
        return request.python or pins.python
    program = base.local / "usr/bin/python3"
    found = re.search(r"3\.\d+", str(program.readlink())) if program.is_symlink() else None
    return found[0] if found else pins.python


def disk_problems(pins: Pins, image: Path) -> list[str]:
    """Where less is free than a build needs."""
    problems = []
    for folder, needed, mend in (
        (scratch(), pins.disk_gb[0], "name a larger disk with AAM_SCRATCH=FOLDER"),
        (image.parent, pins.disk_gb[1], "free some, or write elsewhere with OUTPUT=FILE"),
    ):
        free = shutil.disk_usage(folder).free / 1e9
        if free < needed:
            problems.append(f"{folder}: {free:.1f} GB are free, {needed} GB are needed; {mend}")
    return problems


def gather(check: Callable[[], Any], problems: list[str]) -> Any:
    """The result of a check, or none after its problems were added to the others."""
    try:
        return check()
    except InputError as error:
        problems.extend(error.problems)
        return None


def arguments(pins: Pins, base: Base, python: str) -> dict[str, str]:
    """The definition's arguments."""
    commit, dirty = revision()
    return {
        "BOOTSTRAP": "localimage" if base.local else "docker",
        "BASE": base.name,
        "DIGEST": base.digest,
        "PYTHON": python,
        "LOCK": f"containers/lock/{pins.lock.name}",
        "INDEX": pins.index,
        "WHEEL": f"dist/{wheel_path().name}",
        "VERSION": version(),
        "REVISION": commit + ("-dirty" if dirty else ""),
    }


def build_definition(
    pins: Pins, engine: Engine, definition: Path, base: Base, values: dict[str, str], out: Path
) -> None:
    """Build the SIF through the engine, in a folder where the arguments' relative paths hold."""
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="build-") as name:
        folder = Path(name)
        (folder / "containers").symlink_to(CONTAINERS)
        (folder / "dist").symlink_to(wheel_path().parent)
        command = [engine.command, "build", *(["--reproducible"] if engine.builds_reproducibly else [])]
        command += ["--mksquashfs-args", pins.squashfs] if pins.squashfs else []
        if base.local:
            (folder / f"{base.name}@{base.digest}").symlink_to(base.local)
            # What is bound into a build must exist in its base.
            folders = [each for each in wheel_folders() if (base.local / str(each).lstrip("/")).is_dir()]
            command += [word for each in folders for word in ("--bind", f"{each}:{each}:ro")]
        command += [word for key, value in values.items() for word in ("--build-arg", f"{key}={value}")]
        epoch = {"SOURCE_DATE_EPOCH": str(commit_time())} if engine.builds_reproducibly else None
        call([*command, str(out), str(definition)], f"building {definition.name}", folder, epoch)


def build(request: Request) -> Path:
    """Build an image and the sidecar beside it; returns the image.

    Raises
    ------
    InputError
        Everything that is wrong before the build, in one; or what went wrong in it.
    """
    pins = read_pins(request.flavour)
    image = Path(request.output).absolute() if request.output else pins.image
    definition = CONTAINERS / (f"aam-{request.definition}.def" if request.definition else pins.definition)
    problems = lock_problems(pins)
    if request.route not in ROUTES:
        problems.append(f"ROUTE={request.route}: expected one of {', '.join(ROUTES)}")
    if not definition.exists():
        problems.append(f"DEFINITION={request.definition}: there is no {definition.name}; expected rocm or cuda")
    engine = gather(lambda: find_engine(request.engine), problems)
    base = gather(lambda: choose_base(request, pins), problems)
    problems += gather(lambda: disk_problems(pins, image), problems) or []
    refuse(problems)
    python = choose_python(request, pins, base)
    route = request.route
    if route == "auto":
        reason = may_build(engine)
        route = "layer" if reason else "definition"
        if reason:
            print(f"This user cannot build a definition here: {reason}\nThe environment becomes a layer over the base.")
    return pack(pins, engine, base, definition, python, image, route)


def pack(pins: Pins, engine: Engine, base: Base, definition: Path, python: str, image: Path, route: str) -> Path:
    """Make the files of an image, put them in place together, then say what they are."""
    make_wheel()
    values = arguments(pins, base, python)
    laid = image.with_suffix(".squashfs")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with contextlib.ExitStack() as files:
        partial = files.enter_context(whole(image))
        packed = files.enter_context(whole(laid)) if route == "layer" else None
        if packed:
            layer.build(pins, engine, definition, base.local, values, (partial, packed))
        else:
            build_definition(pins, engine, definition, base, values, partial)
        bill = inside(engine, partial, packed, ["cat", "/opt/aam/sbom.json"])
        for old in (sidecar_path(image), *([] if packed else [laid])):
            old.unlink(missing_ok=True)
    commit, dirty = revision()
    sidecar = Sidecar(
        flavour=pins.flavour,
        image=described(image),
        layer=described(laid) if route == "layer" else None,
        base={"name": base.name, "digest": base.digest, "pinned": base.pinned},
        lock={"file": pins.lock.name, "sha256": sha256(pins.lock)},
        unverified=unverified(pins),
        aam_sha256=source_digest(),
        sbom_sha256=hashlib.sha256(bill).hexdigest(),
        definition_sha256=sha256(definition),
        git={"commit": commit, "dirty": dirty},
        engine={"name": engine.name, "version": engine.version},
        python=python,
        route=route,
        reproducible=engine.builds_reproducibly and route == "definition",
    )
    write_sidecar(sidecar, image)
    for said in remarks(pins, sidecar):
        print(f"{image.name}: {said}")
    return image
