"""Building an image: from a definition or, where the user may not build one, from the base and a layer."""

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

from aam.files.atomic import atomic_file, file_digest
from containers.lib.engine import Engine, find_engine, run_engine, scratch_folder, why_not_build
from containers.lib.errors import InputError, raise_if_any
from containers.lib.files import CONTAINERS, folder_digest
from containers.lib.git import commit_time, revision
from containers.lib.layer import build_layer
from containers.lib.pins import DIGEST, Pins, lock_problems, read_pins, unverified
from containers.lib.sidecar import Sidecar, file_record, remarks, run_in_image, sidecar_path, write_sidecar
from containers.lib.wheels import make_wheel, source_digest, version, wheel_folders, wheel_path

ROUTES = ("auto", "definition", "layer")


@dataclass(frozen=True)
class Request:
    """The options of a build; empty values are taken from pins.toml."""

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
            raise InputError(f"DIGEST={request.digest}: {local} is {digest}; nothing is built from another base")
        return Base(re.sub(r"[^\w.-]", "-", local.resolve().name), digest, local.resolve(), pinned=False)
    name, _, digest = (request.base or pins.base).partition("@")
    digest = request.digest or digest or ("" if request.base else pins.digest)
    if request.base.startswith(("/", ".")) or os.sep * 2 in request.base:
        raise InputError(f"BASE={request.base}: no such folder or file; expected a path or NAME@sha256:DIGEST")
    if not digest:
        hint = "make pin asks its registry" if not request.base else "write BASE=NAME@sha256:DIGEST"
        raise InputError(f"BASE={name}: has no digest, so the same image could not be built again; {hint}")
    if not DIGEST.fullmatch(digest):
        raise InputError(f"DIGEST={digest}: expected sha256: and 64 hexadecimal digits")
    # An engine takes either a tag or a digest; the digest is exact.
    return Base(re.sub(r":[\w.-]+$", "", name), digest, None, pinned=(name, digest) == (pins.base, pins.digest))


def choose_python(request: Request, pins: Pins, base: Base) -> str:
    """Return the requested Python version, or else that of a local root folder, or else the pinned one."""
    if request.python or base.local is None:
        return request.python or pins.python
    program = base.local / "usr/bin/python3"
    match = re.search(r"3\.\d+", str(program.readlink())) if program.is_symlink() else None
    return match[0] if match else pins.python


def definition_path(request: Request, pins: Pins) -> Path:
    """Return the requested definition, or else the pinned one."""
    path = CONTAINERS / (f"aam-{request.definition}.def" if request.definition else pins.definition)
    if not path.exists():
        raise InputError(f"DEFINITION={request.definition}: {path.name} does not exist; expected rocm or cuda")
    return path


def disk_problems(pins: Pins, image: Path) -> list[str]:
    """Return the folders with less free space than a build needs."""
    problems = []
    image_disk = next(folder for folder in image.parents if folder.exists())
    for folder, needed, remedy in (
        (scratch_folder(), pins.disk_gb[0], "name a larger disk with AAM_SCRATCH=FOLDER"),
        (image_disk, pins.disk_gb[1], "free some, or write elsewhere with OUTPUT=FILE"),
    ):
        free = shutil.disk_usage(folder).free / 1e9
        if free < needed:
            problems.append(f"{folder}: {free:.1f} GB are free, {needed} GB are needed; {remedy}")
    return problems


def collect(check: Callable[[], Any], problems: list[str]) -> Any:
    """Return the result of a check; when it raises `InputError`, add its problems to the others and return None."""
    try:
        return check()
    except InputError as error:
        problems.extend(error.problems)
        return None


def definition_arguments(pins: Pins, base: Base, python: str) -> dict[str, str]:
    """Return the values of the definition's %arguments."""
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
    """Build the SIF with the engine, in a folder that the relative paths in `values` start from."""
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="build-") as name:
        folder = Path(name)
        (folder / "containers").symlink_to(CONTAINERS)
        (folder / "dist").symlink_to(wheel_path().parent)
        command = [engine.command, "build", *(["--reproducible"] if engine.builds_reproducibly else [])]
        command += ["--mksquashfs-args", pins.squashfs] if pins.squashfs else []
        if base.local:
            (folder / f"{base.name}@{base.digest}").symlink_to(base.local)
            # A folder can be bound into a build only where it exists in the base.
            folders = [path for path in wheel_folders() if (base.local / str(path).lstrip("/")).is_dir()]
            command += [word for path in folders for word in ("--bind", f"{path}:{path}:ro")]
        command += [word for key, value in values.items() for word in ("--build-arg", f"{key}={value}")]
        epoch = {"SOURCE_DATE_EPOCH": str(commit_time())} if engine.builds_reproducibly else None
        run_engine([*command, str(out), str(definition)], f"building {definition.name}", folder, epoch)


def build(request: Request) -> Path:
    """Build an image with its sidecar and return the path of the image.

    Raises
    ------
    InputError
        All problems that can be seen before the build, or a failure of the build.
    """
    pins = read_pins(request.flavour)
    image = Path(request.output).absolute() if request.output else pins.image
    problems = lock_problems(pins)
    if request.route not in ROUTES:
        problems.append(f"ROUTE={request.route}: expected one of {', '.join(ROUTES)}")
    definition = collect(lambda: definition_path(request, pins), problems)
    engine = collect(lambda: find_engine(request.engine), problems)
    base = collect(lambda: choose_base(request, pins), problems)
    problems += collect(lambda: disk_problems(pins, image), problems) or []
    raise_if_any(problems)
    python = choose_python(request, pins, base)
    route = request.route
    if route == "auto":
        reason = why_not_build(engine)
        route = "layer" if reason else "definition"
        if reason:
            print(f"This user cannot build a definition here: {reason}\nBuilding a layer over the base instead.")
    write_image(pins, engine, base, definition, python, image, route)
    return image


def write_image(pins: Pins, engine: Engine, base: Base, definition: Path, python: str, image: Path, route: str) -> None:
    """Write the files of an image and its sidecar, and print remarks about it."""
    make_wheel()
    values = definition_arguments(pins, base, python)
    layer = image.with_suffix(".squashfs")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with contextlib.ExitStack() as files:
        new_image = files.enter_context(atomic_file(image))
        new_layer = files.enter_context(atomic_file(layer)) if route == "layer" else None
        if new_layer:
            build_layer(pins, engine, definition, base.local, values, new_image, new_layer)
        else:
            build_definition(pins, engine, definition, base, values, new_image)
        sbom = run_in_image(engine, new_image, new_layer, ["cat", "/opt/aam/sbom.json"])
        for outdated in (sidecar_path(image), *([] if new_layer else [layer])):
            outdated.unlink(missing_ok=True)
    commit, dirty = revision()
    sidecar = Sidecar(
        flavour=pins.flavour,
        image=file_record(image),
        layer=file_record(layer) if route == "layer" else None,
        base={"name": base.name, "digest": base.digest, "pinned": base.pinned},
        lock={"file": pins.lock.name, "sha256": file_digest(pins.lock)},
        unverified=unverified(pins),
        aam_sha256=source_digest(),
        sbom_sha256=hashlib.sha256(sbom).hexdigest(),
        definition_sha256=file_digest(definition),
        git={"commit": commit, "dirty": dirty},
        engine={"name": engine.name, "version": engine.version},
        python=python,
        route=route,
        reproducible=engine.builds_reproducibly and route == "definition",
    )
    write_sidecar(sidecar, image)
    for remark in remarks(pins, sidecar):
        print(f"{image.name}: {remark}")
