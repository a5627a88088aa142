"""OCI images: a Containerfile made from the sections of a definition, and its build with Buildah or
Podman.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from pathlib import Path

from aam.files.atomic import atomic_file
from containers.lib.definition import fill, section
from containers.lib.engine import find_program, run_engine, scratch_folder
from containers.lib.errors import InputError, raise_if_any
from containers.lib.pins import read_pins
from containers.lib.plan import Base, Plan, Request, collect, disk_problems, make_plan
from containers.lib.wheels import copy_sources, version, wheel_folders

PROGRAMS = ("buildah", "podman")
HOW_TO_INSTALL = "install one (the packages of these names in Debian, Ubuntu, Fedora)"


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
    names = ("files", "post", "environment", "labels", "test", "runscript")
    parts = {name: fill(section(definition, name), values) for name in names}
    copies = [f"COPY {line.strip()}" for line in parts["files"].splitlines() if line.strip()]
    # Nothing of the host's environment reaches a container, so what a definition unsets is not set.
    exports = re.findall(r"(?m)^ +export (.*)$", parts["environment"])
    variables = [f"ENV {assignment}" for line in exports for assignment in shlex.split(line)]
    pairs = re.findall(r"(?m)^ +(\S+) (.+)$", parts["labels"])
    labels = [f'LABEL {name}="{value}"' for name, value in pairs]
    program = re.fullmatch(r'\s*exec (\S+) "\$@"\s*', parts["runscript"])
    if not program:
        raise InputError(f'{definition}: %runscript: expected exec PROGRAM "$@"')
    head = f"# Made by containers/build oci from {definition.name} and containers/pins.toml."
    steps = [shell_steps(parts["post"]), *variables, *labels, shell_steps(parts["test"])]
    return "\n".join([head, first, *copies, *steps, f'ENTRYPOINT ["{program[1]}"]'])


def base_instructions(base: Base) -> str:
    """Return the instructions that bring the base: from a registry by digest, or a local root
    folder as an archive.
    """
    if base.local is None:
        return f"FROM {base.name}@{base.digest}"
    return "FROM scratch\nADD base.tar /"


def fill_context(folder: Path, text: str, plan: Plan) -> None:
    """Copy what a Containerfile names into the folder of a build."""
    copy_sources(folder)
    (folder / "Containerfile").write_text(text + "\n", encoding="utf-8")
    if plan.base.local:
        tar = ["tar", "-cf", str(folder / "base.tar"), "-C", str(plan.base.local), "."]
        subprocess.run(tar, check=True)


def archive_problems(archive: Path, plan: Plan | None) -> list[str]:
    """List the problems of the path of the archive and the base, for an OCI image."""
    problems = []
    if ":" in str(archive):
        hint = "an OCI archive has no colon in its path; OUTPUT=FILE names another"
        problems.append(f"OUTPUT={archive}: {hint}")
    local = plan.base.local if plan else None
    if local and local.is_file():
        problems.append(f"BASE={local}: is a file; expected a root folder or NAME@sha256:DIGEST")
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
    command = (
        ""
        if only_text
        else collect(lambda: find_program(request.engine, PROGRAMS, HOW_TO_INSTALL), problems)
    )
    problems += [] if only_text else disk_problems(pins, archive)
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
