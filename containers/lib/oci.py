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
from containers.lib.fabric import fill_fabric
from containers.lib.files import CONTAINERS
from containers.lib.layer import fill, section
from containers.lib.pins import read_pins
from containers.lib.plan import Base, Plan, Request, collect, disk_problems, make_plan
from containers.lib.wheels import copy_wheels, version, wheel_folders, wheel_problems

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


def fill_context(folder: Path, text: str, plan: Plan) -> None:
    """Copy what a Containerfile names into the folder of a build."""
    lock, base = plan.pins.lock, plan.base
    sources = {
        f"containers/inside/{path.name}": path for path in (CONTAINERS / "inside").glob("*.py")
    }
    sources |= {f"containers/lock/{lock.name}": lock}
    for name, path in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / name)
    copy_wheels(folder / "wheels")
    fill_fabric(folder / "fabric", plan.fabric)
    (folder / "Containerfile").write_text(text + "\n", encoding="utf-8")
    if base.local:
        subprocess.run(
            ["tar", "-cf", str(folder / "base.tar"), "-C", str(base.local), "."], check=True
        )


def archive_problems(archive: Path, plan: Plan | None) -> list[str]:
    """Return what is wrong with the path of the archive and the base, for an OCI image."""
    problems = []
    if ":" in str(archive):
        problems.append(
            f"OUTPUT={archive}: an OCI archive has no colon in its path; OUTPUT=FILE names another"
        )
    if plan and plan.base.local and plan.base.local.is_file():
        problems.append(
            f"BASE={plan.base.local}: is a file; expected a root folder or NAME@sha256:DIGEST"
        )
    return problems


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
    problems: list[str] = []
    plan = make_plan(request, problems)
    command = "" if only_text else collect(lambda: find_program(request.engine), problems)
    problems += [] if only_text else [*disk_problems(pins, archive), *wheel_problems()]
    raise_if_any([*problems, *archive_problems(archive, plan)])
    assert plan is not None
    text = containerfile(plan.definition, plan.values, base_instructions(plan.base))
    if only_text:
        return text
    run_build(command, text, plan, archive)
    return archive


def run_build(command: str, text: str, plan: Plan, archive: Path) -> None:
    """Build a Containerfile with Buildah or Podman into an archive.

    Tagged as an archive, the image is written there and no copy of it stays in the user's storage.
    Layers that are built are not compressed by default, unlike those that are pushed.
    """
    name = f"aam-{plan.pins.flavour}:{version()}"
    with (
        tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="oci-") as folder,
        atomic_file(archive) as new,
    ):
        fill_context(Path(folder), text, plan)
        wheels = wheel_folders() if plan.base.local else []
        build = [command, "build", "--format", "oci", "--layers=false", "--force-rm"]
        build += ["--disable-compression=false"]
        build += [word for path in wheels for word in ("--volume", f"{path}:{path}:ro")]
        build += ["--tag", f"oci-archive:{new}:{name}", "--file", f"{folder}/Containerfile", folder]
        run_engine(build, f"building {name}", extra={"TMPDIR": folder})
