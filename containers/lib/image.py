"""Building an image: from a definition or, where the user may not build one, from the base and a
layer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import signal
import sys
import tempfile
from datetime import date
from pathlib import Path

from aam.files.atomic import atomic_file, file_digest
from containers.lib.definition import fill, packages
from containers.lib.engine import Engine, find_engine, run_engine, scratch_folder, why_not_build
from containers.lib.errors import raise_if_any
from containers.lib.files import IS_INSTALLED, commit_time, revision
from containers.lib.layer import build_layer
from containers.lib.pins import REST, read_pins, record, unverified
from containers.lib.plan import Plan, Request, collect, disk_problems, disks, make_plan
from containers.lib.sidecar import (
    Sidecar,
    file_record,
    remarks,
    run_in_image,
    sidecar_path,
    write_papers,
    write_sidecar,
)
from containers.lib.wheels import copy_sources, source_digest, version, wheel_folders

ROUTES = ("auto", "definition", "layer")


def build_command(plan: Plan, engine: Engine, out: Path) -> list[str]:
    """Return the engine's command that builds a definition."""
    base = plan.base.local
    command = [engine.command, "build", *(["--reproducible"] if engine.builds_reproducibly else [])]
    command += ["--mksquashfs-args", plan.pins.squashfs] if plan.pins.squashfs else []
    # A folder can be bound into a build only where it exists in the base.
    wheels = (path for path in wheel_folders() if base and (base / str(path)[1:]).is_dir())
    command += [word for path in wheels for word in ("--bind", f"{path}:{path}:ro")]
    values = (f"{key}={value}" for key, value in plan.values.items())
    command += [word for value in values for word in ("--build-arg", value)]
    return [*command, str(out), str(plan.definition)]


def build_definition(plan: Plan, engine: Engine, out: Path) -> str:
    """Build the SIF with the engine, in a folder that the relative paths of the plan start from;
    return its output.
    """
    base = plan.base
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="build-") as name:
        folder = Path(name)
        copy_sources(folder)
        if base.local:
            (folder / plan.values["BASE"]).symlink_to(base.local)
        command = build_command(plan, engine, out)
        epoch = {"SOURCE_DATE_EPOCH": str(commit_time())} if engine.builds_reproducibly else None
        return run_engine(command, f"building {plan.definition.name}", folder, epoch)


def show_plan(plan: Plan, image: Path, engine: Engine | None, route: str) -> str:
    """Describe what a build would run, need and fetch."""
    pins, base, values = plan.pins, plan.base, plan.values
    as_of = f" as of {values['SNAPSHOT']}" if values["SNAPSHOT"] else ""
    parts = pins.lock.read_text(encoding="utf-8").split(REST)
    vendor, own = (re.findall(r"(?m)^(\w\S*==[^\s\\]+)", part) for part in parts)
    origin = base.local or f"docker://{base.name}@{base.digest}, pulled from its registry"
    debian = " ".join(packages(plan.definition, values))
    rows = [
        ("image", f"{image} and {sidecar_path(image).name}"),
        ("route", route),
        ("base", f"{origin} ({'pinned' if base.pinned else 'not the pinned one'})"),
        ("apt", f"{debian}, from the archive of the base{as_of}"),
        ("pip", f"{', '.join(vendor)} from {pins.index}" if vendor else ""),
        ("pip", f"{len(own)} packages of {values['LOCK']} from pip's own index, by hash"),
    ]
    never = "never from its pinned base, as far as containers/pins.toml records"
    rows.append(("built", pins.built or never))
    unconfirmed = ", ".join(unverified(pins))
    if unconfirmed:
        rows.append(("hashes", f"of {unconfirmed} are second-hand: no download has confirmed them"))
    for folder, free, needed, _ in disks(pins, image):
        rows.append(("disk", f"{needed} GB in {folder}, {free:.1f} GB are free"))
    if engine and route.startswith("definition"):
        rows.append(("command", shlex.join(build_command(plan, engine, image))))
    return "\n".join(f"{name:<12}{text}" for name, text in rows if text)


def choose_route(requested: str, engine: Engine | None) -> tuple[str, str]:
    """Return the route of a build, and why it is not a definition."""
    if requested != "auto" or engine is None:
        return requested, ""
    reason = why_not_build(engine)
    return ("layer", reason) if reason else ("definition", "")


def image_path(request: Request) -> Path:
    """Return the path of the image that a request names, or else that of its flavour."""
    return Path(request.output).absolute() if request.output else read_pins(request.flavour).image


def build(request: Request) -> Path | str:
    """Build an image with its sidecar and return the path of the image; or only return what would
    be done.

    Raises
    ------
    InputError
        All problems that can be seen before the build, or a failure of the build.
    """
    problems: list[str] = []
    absences: list[str] = []
    if request.route not in ROUTES:
        problems.append(f"ROUTE={request.route}: expected one of {', '.join(ROUTES)}")
    plan = make_plan(request, problems)
    image = image_path(request)
    engine = collect(lambda: find_engine(request.engine), absences)
    absences += disk_problems(read_pins(request.flavour), image)
    is_shown = request.submit == "0"
    raise_if_any(problems if is_shown else [*problems, *absences])
    assert plan is not None
    route, reason = choose_route(request.route, engine)
    if is_shown:
        warning = "containers/build: warning: nothing could be built here"
        for absence in absences:
            print(f"{warning}: {absence}", file=sys.stderr)
        why = f"{route}: this user cannot build a definition here: {reason}" if reason else route
        return show_plan(plan, image, engine, why)
    if reason:
        print(f"This user cannot build a definition here: {reason}")
        print("Building a layer over the base instead.")
    assert engine is not None
    write_image(plan, engine, image, route)
    return image


def write_image(plan: Plan, engine: Engine, image: Path, route: str) -> None:
    """Write the files of an image and its sidecar, and print remarks about it."""
    layer = image.with_suffix(".squashfs")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with contextlib.ExitStack() as files:
        new_image = files.enter_context(atomic_file(image))
        new_layer = files.enter_context(atomic_file(layer)) if route == "layer" else None
        if new_layer:
            log = build_layer(plan, engine, new_image, new_layer)
        else:
            log = build_definition(plan, engine, new_image)
        sbom = run_in_image(engine, new_image, new_layer, ["cat", "/opt/aam/sbom.json"])
        for outdated in (sidecar_path(image), *([] if new_layer else [layer])):
            outdated.unlink(missing_ok=True)
    pins, base, values = plan.pins, plan.base, plan.values
    commit, dirty = revision()
    papers = {
        "definition": fill(plan.definition.read_text(encoding="utf-8"), values),
        "lock": pins.lock.read_text(encoding="utf-8"),
        "sbom": sbom,
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
        sbom_sha256=hashlib.sha256(sbom.encode()).hexdigest(),
        definition_sha256=file_digest(plan.definition),
        git={"commit": commit, "dirty": dirty},
        engine={"name": engine.name, "version": engine.version},
        python=values["PYTHON"],
        route=route,
        reproducible=engine.builds_reproducibly and route == "definition",
        papers=write_papers(image, papers),
        version=version(),
        snapshot=values["SNAPSHOT"],
    )
    write_sidecar(sidecar, image)
    if base.pinned and not IS_INSTALLED:
        by = f"{engine.name} {engine.version}, {route}"
        record(pins.flavour, "built", f"{date.today()}, commit {commit[:12]}, {by}")
        # make compares the times of the image and of pins.toml.
        os.utime(image)
    for remark in remarks(read_pins(pins.flavour), sidecar):
        print(f"{image.name}: {remark}")
