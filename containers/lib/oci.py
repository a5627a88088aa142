"""OCI images: a Containerfile made from the sections of a definition, and its build with Buildah or
Podman.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from aam.files.atomic import atomic_file
from containers.lib.engine import run_engine, scratch_folder
from containers.lib.errors import InputError, raise_if_any
from containers.lib.fabric import Fabric, choose_fabric, fill_fabric
from containers.lib.files import CONTAINERS
from containers.lib.image import (
    Base,
    Request,
    choose_base,
    choose_python,
    choose_snapshot,
    collect,
    definition_arguments,
    definition_path,
    disk_problems,
)
from containers.lib.layer import fill, section
from containers.lib.pins import Pins, lock_problems, read_pins
from containers.lib.wheels import make_wheel, version, wheel_folders, wheel_path, wheel_problems

PROGRAMS = ("buildah", "podman")


def shell_steps(text: str) -> str:
    """Return the commands of a section as one instruction, which stops at the first that fails."""
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    commands = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    return "RUN " + " && \\\n    ".join(commands)


def containerfile(definition: Path, values: dict[str, str], first: str) -> str:
    """Return the Containerfile that does what a definition does.

    Parameters
    ----------
    values
        The arguments of the definition.
    first
        The instructions that bring the base.
    """
    parts = {
        name: fill(section(definition, name), values)
        for name in ("files", "post", "environment", "labels")
    }
    test, runscript = (fill(section(definition, name), values) for name in ("test", "runscript"))
    copies = [f"COPY {line.strip()}" for line in parts["files"].splitlines() if line.strip()]
    # Nothing of the host's environment reaches a container, so what a definition unsets is not set.
    exports = re.findall(r"(?m)^ +export (.*)$", parts["environment"])
    variables = [f"ENV {assignment}" for line in exports for assignment in shlex.split(line)]
    labels = [
        f'LABEL {name}="{value}"'
        for name, value in re.findall(r"(?m)^ +(\S+) (.+)$", parts["labels"])
    ]
    program = re.fullmatch(r'\s*exec (\S+) "\$@"\s*', runscript)
    if not program:
        raise InputError(f'{definition}: %runscript: expected exec PROGRAM "$@"')
    lines = [
        f"# Made by containers/build oci from {definition.name} and containers/pins.toml.",
        first,
        *copies,
    ]
    lines += [
        shell_steps(parts["post"]),
        *variables,
        *labels,
        shell_steps(test),
        f'ENTRYPOINT ["{program[1]}"]',
    ]
    return "\n".join(lines)


def base_instructions(base: Base) -> str:
    """Return the instructions that bring the base: from a registry by digest, or a local root
    folder as an archive.
    """
    if base.local is None:
        return f"FROM {base.name}@{base.digest}"
    return "FROM scratch\nADD base.tar /"


def find_program(requested: str) -> str:
    """Return the requested program, or else the first of `PROGRAMS` on PATH."""
    names = (requested,) if requested else PROGRAMS
    command = next(filter(None, map(shutil.which, names)), None)
    if command is None:
        hint = (
            "install one (the packages of these names in Debian, Ubuntu, Fedora), or name it "
            "with ENGINE=PATH"
        )
        raise InputError(f"ENGINE: {' and '.join(names)} not found on PATH; {hint}")
    return command


def fill_context(folder: Path, text: str, pins: Pins, base: Base, fabric: Fabric) -> None:
    """Copy what a Containerfile names into the folder of a build."""
    sources = {
        f"containers/inside/{path.name}": path for path in (CONTAINERS / "inside").glob("*.py")
    }
    sources |= {
        f"containers/lock/{pins.lock.name}": pins.lock,
        f"dist/{wheel_path().name}": make_wheel(),
    }
    for name, path in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / name)
    fill_fabric(folder / "fabric", fabric)
    (folder / "Containerfile").write_text(text + "\n", encoding="utf-8")
    if base.local:
        subprocess.run(
            ["tar", "-cf", str(folder / "base.tar"), "-C", str(base.local), "."], check=True
        )


def build_oci(request: Request, only_text: bool) -> Path | str:
    """Build an image, whose last step is the self-test, and return its OCI archive; or only return
    its Containerfile.

    Raises
    ------
    InputError
        All problems that can be seen before the build, or a failure of the build.
    """
    pins = read_pins(request.flavour)
    archive = (
        Path(request.output).absolute() if request.output else pins.image.with_suffix(".oci.tar")
    )
    problems = lock_problems(pins)
    definition = collect(lambda: definition_path(request, pins), problems)
    base = collect(lambda: choose_base(request, pins), problems)
    fabric = collect(lambda: choose_fabric(request.fabric), problems)
    snapshot = collect(lambda: choose_snapshot(request, pins, base), problems)
    python = (
        collect(lambda: choose_python(request, pins, base), problems)
        if base and pins.lock.exists()
        else ""
    )
    command = "" if only_text else collect(lambda: find_program(request.engine), problems)
    problems += [] if only_text else [*disk_problems(pins, archive), *wheel_problems()]
    if ":" in str(archive):
        problems.append(
            f"OUTPUT={archive}: an OCI archive has no colon in its path; OUTPUT=FILE names another"
        )
    if base and base.local and base.local.is_file():
        problems.append(
            f"BASE={base.local}: is a file; expected a root folder or NAME@sha256:DIGEST"
        )
    raise_if_any(problems)
    values = definition_arguments(pins, base, python, snapshot, fabric)
    text = containerfile(definition, values, base_instructions(base))
    if only_text:
        return text
    name = f"aam-{pins.flavour}:{version()}"
    with (
        tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="oci-") as folder,
        atomic_file(archive) as new,
    ):
        fill_context(Path(folder), text, pins, base, fabric)
        wheels = [path for path in wheel_folders() if base.local]
        binds = [word for path in wheels for word in ("--volume", f"{path}:{path}:ro")]
        # Tagged as an archive, the image is written there and no copy of it stays in the user's
        # storage. Layers that are built are not compressed by default, unlike those that are
        # pushed.
        build = [
            command,
            "build",
            "--format",
            "oci",
            "--layers=false",
            "--force-rm",
            "--disable-compression=false",
        ]
        build += [
            *binds,
            "--tag",
            f"oci-archive:{new}:{name}",
            "--file",
            f"{folder}/Containerfile",
            folder,
        ]
        run_engine(build, f"building {name}", extra={"TMPDIR": folder})
    return archive
