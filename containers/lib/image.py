"""Building an image: from a definition or, where the user may not build one, from the base and a
layer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aam.files.atomic import atomic_file, file_digest
from containers.lib.architecture import machine_problems
from containers.lib.engine import Engine, find_engine, run_engine, scratch_folder, why_not_build
from containers.lib.errors import InputError, raise_if_any
from containers.lib.fabric import Fabric, choose_fabric, describe, fill_fabric
from containers.lib.files import CONTAINERS, folder_digest
from containers.lib.git import commit_time, revision
from containers.lib.layer import build_layer, fill, packages
from containers.lib.pins import DIGEST, REST, Pins, lock_problems, read_pins, unverified
from containers.lib.sidecar import (
    Sidecar,
    file_record,
    has_key,
    remarks,
    run_in_image,
    sidecar_path,
    sign,
    write_papers,
    write_sidecar,
)
from containers.lib.wheels import (
    make_wheel,
    source_digest,
    version,
    wheel_folders,
    wheel_path,
    wheel_problems,
)

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
    fabric: str = ""  # 1, or a folder with the archives: the layer of communication too
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
        The base has no digest, or not the requested one, or is for another machine.
    """
    local = Path(request.base) if request.base else None
    if local and local.exists():
        raise_if_any(machine_problems(local))
        digest = folder_digest(local) if local.is_dir() else f"sha256:{file_digest(local)}"
        if request.digest and request.digest != digest:
            raise InputError(
                f"DIGEST={request.digest}: {local} is {digest}; nothing is built from another base"
            )
        return Base(
            re.sub(r"[^\w.-]", "-", local.resolve().name), digest, local.resolve(), pinned=False
        )
    name, _, digest = (request.base or pins.base).partition("@")
    digest = request.digest or digest or ("" if request.base else pins.digest)
    if request.base.startswith(("/", ".")) or os.sep * 2 in request.base:
        raise InputError(
            f"BASE={request.base}: no such folder or file; expected a path or NAME@sha256:DIGEST"
        )
    if not digest:
        ask = f"`skopeo inspect --no-tags --format {{{{.Digest}}}} docker://{name}` prints it"
        hint = (
            "make pin asks its registry"
            if not request.base
            else f"write BASE=NAME@sha256:DIGEST; {ask}"
        )
        raise InputError(
            f"BASE={name}: has no digest, so the same image could not be built again; {hint}"
        )
    if not DIGEST.fullmatch(digest):
        raise InputError(f"DIGEST={digest}: expected sha256: and 64 hexadecimal digits")
    # An engine takes either a tag or a digest; the digest is exact.
    return Base(
        re.sub(r":[\w.-]+$", "", name),
        digest,
        None,
        pinned=(name, digest) == (pins.base, pins.digest),
    )


def choose_python(request: Request, pins: Pins, base: Base) -> str:
    """Return the requested Python version, or else that of a local root folder, or else the pinned
    one.

    Raises
    ------
    InputError
        The lock is not for it.
    """
    program = base.local / "usr/bin/python3" if base.local else None
    match = (
        re.search(r"3\.\d+", str(program.readlink())) if program and program.is_symlink() else None
    )
    python = request.python or (match[0] if match else pins.python)
    first, last = re.findall(
        r"(?m)^# python: 3\.(\d+) to 3\.(\d+)$", pins.lock.read_text(encoding="utf-8")
    )[0]
    if python not in {f"3.{minor}" for minor in range(int(first), int(last) + 1)}:
        raise InputError(
            f"IMAGE_PYTHON={python}: {pins.lock.name} is for Python 3.{first} to 3.{last}; name "
            "one of these"
        )
    return python


def definition_path(request: Request, pins: Pins) -> Path:
    """Return the requested definition, or else the pinned one."""
    path = CONTAINERS / (f"aam-{request.definition}.def" if request.definition else pins.definition)
    if not path.exists():
        raise InputError(
            f"DEFINITION={request.definition}: {path.name} does not exist; expected rocm or cuda"
        )
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
    return [
        (folder, shutil.disk_usage(folder).free / 1e9, needed, remedy)
        for folder, needed, remedy in rows
    ]


def disk_problems(pins: Pins, image: Path) -> list[str]:
    """Return the folders with less free space than a build needs."""
    problems = []
    for folder, free, needed, remedy in disks(pins, image):
        if free < needed:
            problems.append(f"{folder}: {free:.1f} GB are free, {needed} GB are needed; {remedy}")
    return problems


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
        raise InputError(
            f"SNAPSHOT={request.snapshot}: expected a date such as {pins.snapshot}, or none"
        )
    if request.snapshot:
        return request.snapshot.removesuffix("none")
    return pins.snapshot if base and base.pinned else ""


def definition_arguments(
    pins: Pins, base: Base, python: str, snapshot: str, fabric: Fabric
) -> dict[str, str]:
    """Return the values of the definition's %arguments."""
    commit, dirty = revision()
    return {
        "BOOTSTRAP": "localimage" if base.local else "docker",
        "BASE": base.name,
        "DIGEST": base.digest,
        "PYTHON": python,
        "SNAPSHOT": snapshot,
        "LOCK": f"containers/lock/{pins.lock.name}",
        "INDEX": pins.index,
        "WHEEL": f"dist/{wheel_path().name}",
        "FABRIC": "fabric",
        "PACKAGES": " ".join(fabric.packages),
        "VERSION": version(),
        "REVISION": commit + ("-dirty" if dirty else ""),
    }


def build_command(
    pins: Pins, engine: Engine, definition: Path, base: Base, values: dict[str, str], out: Path
) -> list[str]:
    """Return the engine's command that builds a definition."""
    command = [engine.command, "build", *(["--reproducible"] if engine.builds_reproducibly else [])]
    command += ["--mksquashfs-args", pins.squashfs] if pins.squashfs else []
    if base.local:
        # A folder can be bound into a build only where it exists in the base.
        folders = [
            path for path in wheel_folders() if (base.local / str(path).lstrip("/")).is_dir()
        ]
        command += [word for path in folders for word in ("--bind", f"{path}:{path}:ro")]
    command += [word for key, value in values.items() for word in ("--build-arg", f"{key}={value}")]
    return [*command, str(out), str(definition)]


def build_definition(
    pins: Pins,
    engine: Engine,
    definition: Path,
    base: Base,
    values: dict[str, str],
    fabric: Fabric,
    out: Path,
) -> str:
    """Build the SIF with the engine, in a folder that the relative paths in `values` start from;
    return its output.
    """
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="build-") as name:
        folder = Path(name)
        (folder / "containers").symlink_to(CONTAINERS)
        (folder / "dist").symlink_to(wheel_path().parent)
        fill_fabric(folder / "fabric", fabric)
        if base.local:
            (folder / f"{base.name}@{base.digest}").symlink_to(base.local)
        command = build_command(pins, engine, definition, base, values, out)
        epoch = {"SOURCE_DATE_EPOCH": str(commit_time())} if engine.builds_reproducibly else None
        return run_engine(command, f"building {definition.name}", folder, epoch)


def show_plan(
    pins: Pins,
    image: Path,
    definition: Path,
    base: Base,
    values: dict[str, str],
    fabric: Fabric,
    engine: Engine | None,
    route: str,
) -> str:
    """Return what a build would run, need and fetch."""
    as_of = f" as of {values['SNAPSHOT']}" if values["SNAPSHOT"] else ""
    parts = pins.lock.read_text(encoding="utf-8").split(REST)
    vendor, own = (re.findall(r"(?m)^(\w\S*==[^\s\\]+)", part) for part in parts)
    origin = (
        f"{base.local}"
        if base.local
        else f"docker://{base.name}@{base.digest}, pulled from its registry"
    )
    rows = [("image", f"{image} and {sidecar_path(image).name}"), ("route", route)]
    rows += [("base", f"{origin} ({'pinned' if base.pinned else 'not the pinned one'})")]
    rows += [
        ("apt", f"{' '.join(packages(definition, values))}, from the archive of the base{as_of}")
    ]
    rows += [("pip", f"{', '.join(vendor)} from {pins.index}")] if vendor else []
    rows += [("pip", f"{len(own)} packages of {values['LOCK']} from pip's own index, by hash")]
    rows += [
        ("fabric", f"{source.file} from {fabric.folder or source.url}, built in the image")
        for source in fabric.sources
    ]
    rows += [("wheel", f"{values['WHEEL']}, made of these sources where they have changed")]
    rows += [
        ("disk", f"{needed} GB in {folder}, {free:.1f} GB are free")
        for folder, free, needed, _ in disks(pins, image)
    ]
    if engine:
        rows += [
            (
                "signature",
                "with your key"
                if has_key(engine)
                else f"none: `{engine.name} key newpair` makes a key",
            )
        ]
    if engine and route.startswith("definition"):
        rows += [
            ("command", shlex.join(build_command(pins, engine, definition, base, values, image)))
        ]
    return "\n".join(f"{name:<12}{text}" for name, text in rows)


def choose_route(requested: str, engine: Engine | None) -> tuple[str, str]:
    """Return the route of a build, and why it is not a definition."""
    if requested != "auto" or engine is None:
        return requested, ""
    reason = why_not_build(engine)
    return ("layer", reason) if reason else ("definition", "")


def build(request: Request) -> Path | str:
    """Build an image with its sidecar and return the path of the image; or only return what would
    be done.

    Raises
    ------
    InputError
        All problems that can be seen before the build, or a failure of the build.
    """
    pins = read_pins(request.flavour)
    image = Path(request.output).absolute() if request.output else pins.image
    problems = lock_problems(pins)
    absences: list[str] = []
    if request.route not in ROUTES:
        problems.append(f"ROUTE={request.route}: expected one of {', '.join(ROUTES)}")
    definition = collect(lambda: definition_path(request, pins), problems)
    engine = collect(lambda: find_engine(request.engine), absences)
    base = collect(lambda: choose_base(request, pins), problems)
    fabric = collect(lambda: choose_fabric(request.fabric), problems)
    snapshot = collect(lambda: choose_snapshot(request, pins, base), problems)
    python = (
        collect(lambda: choose_python(request, pins, base), problems)
        if base and pins.lock.exists()
        else ""
    )
    absences += [*(collect(lambda: disk_problems(pins, image), problems) or []), *wheel_problems()]
    is_shown = request.submit == "0"
    raise_if_any(problems if is_shown else [*problems, *absences])
    values = definition_arguments(pins, base, python, snapshot, fabric)
    route, reason = choose_route(request.route, engine)
    if is_shown:
        for absence in absences:
            print(
                f"containers/build: warning: nothing could be built here: {absence}",
                file=sys.stderr,
            )
        why = f"{route}: this user cannot build a definition here: {reason}" if reason else route
        return show_plan(pins, image, definition, base, values, fabric, engine, why)
    if reason:
        print(
            f"This user cannot build a definition here: {reason}\nBuilding a layer over the base "
            "instead."
        )
    write_image(pins, engine, base, definition, values, fabric, image, route)
    return image


def write_image(
    pins: Pins,
    engine: Engine,
    base: Base,
    definition: Path,
    values: dict[str, str],
    fabric: Fabric,
    image: Path,
    route: str,
) -> None:
    """Write the files of an image and its sidecar, and print remarks about it."""
    make_wheel()
    layer = image.with_suffix(".squashfs")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with contextlib.ExitStack() as files:
        new_image = files.enter_context(atomic_file(image))
        new_layer = files.enter_context(atomic_file(layer)) if route == "layer" else None
        if new_layer:
            log = build_layer(
                pins, engine, definition, base.local, values, fabric, new_image, new_layer
            )
        else:
            log = build_definition(pins, engine, definition, base, values, fabric, new_image)
        sbom = run_in_image(engine, new_image, new_layer, ["cat", "/opt/aam/sbom.json"])
        unsigned = sign(engine, new_image)
        for outdated in (sidecar_path(image), *([] if new_layer else [layer])):
            outdated.unlink(missing_ok=True)
    commit, dirty = revision()
    papers = {
        "definition": fill(definition.read_text(encoding="utf-8"), values),
        "lock": pins.lock.read_text(encoding="utf-8"),
        "sbom": sbom.decode(),
        "log": log,
    }
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
        python=values["PYTHON"],
        route=route,
        reproducible=engine.builds_reproducibly and route == "definition",
        papers=write_papers(image, papers),
        signed=bool(unsigned),
        unsigned_sha256=unsigned,
        version=version(),
        snapshot=values["SNAPSHOT"],
        fabric=describe(fabric.sources),
    )
    write_sidecar(sidecar, image)
    for remark in remarks(pins, sidecar):
        print(f"{image.name}: {remark}")
