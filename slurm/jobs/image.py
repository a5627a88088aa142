"""The image of a job: where it is, and whether it is what its sidecar says, before it is queued."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from aam.files.atomic import file_digest
from containers.lib.errors import InputError
from containers.lib.files import IS_INSTALLED, OUTPUT
from containers.lib.sidecar import Sidecar, read_sidecar, sidecar_path
from slurm.jobs.options import expand_home
from slurm.jobs.request import Request
from slurm.jobs.site import Site

# A SIF has this text after a line that makes it a program.
MAGIC, MAGIC_AT = b"SIF_MAGIC", 32
HINT = "make container-rocm or container-cuda builds one (IMAGE=PATH)"


@dataclass(frozen=True)
class JobImage:
    """The image of a job: its path, its files with their SHA-256, and those that each node copies
    because they lie at home.
    """

    path: Path
    files: tuple[Path, ...] = ()
    sha256: tuple[str, ...] = ()
    copied: tuple[Path, ...] = ()


def python_without_image(request: Request, problems: list[str]) -> str:
    """Return the Python that runs aam on a site without containers."""
    default = request.python if IS_INSTALLED else str(request.root / ".venv/bin/python")
    python = os.environ.get("AAM_PYTHON") or default
    if request.check and not os.access(python, os.X_OK):
        hint = "make setup makes it, or name a Python by AAM_PYTHON"
        problems.append(f"ENGINE=none: {python} is missing; {hint}")
    return python


def image_path(site: Site, request: Request) -> Path:
    """Return the path of the image of a site or of the caller."""
    root = OUTPUT if IS_INSTALLED else request.root
    return Path(os.path.normpath(root / expand_home(site.image))) if site.image else Path("unset")


def is_sif(path: Path) -> bool:
    """Return whether a file begins as a SIF."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(MAGIC_AT + len(MAGIC))[MAGIC_AT:] == MAGIC
    return False


def digests(image: Path, sidecar: Sidecar | None, problems: list[str]) -> dict[Path, str]:
    """Return the SHA-256 of the files of an image, and compare them with its sidecar."""
    recorded = {image: sidecar.image["sha256"] if sidecar else ""}
    if sidecar and sidecar.layer:
        recorded[image.with_name(sidecar.layer["file"])] = sidecar.layer["sha256"]
    found = {path: file_digest(path) if path.is_file() else "missing" for path in recorded}
    problems += [
        f"--image: {path} has the SHA-256 {found[path][:12]}..., its sidecar has "
        f"{digest[:12]}...: the file is damaged, or belongs to another build; {HINT}"
        for path, digest in recorded.items()
        if digest and found[path] != digest
    ]
    return found


def resolve_image(site: Site, request: Request, problems: list[str]) -> JobImage:
    """Return the image of a job. Before a submission its files are read and compared with its
    sidecar; a script that is only shown gets the digests that the sidecar records.
    """
    image = image_path(site, request)
    # ci_rocm builds its own image.
    if not request.check or request.job == "ci_rocm":
        return JobImage(image)
    if not image.is_file():
        problems.append(f"--image: {image} is missing; {HINT}")
        return JobImage(image)
    if not is_sif(image):
        size = f"({image.stat().st_size} bytes)"
        problems.append(f"--image: {image} {size} is not a SIF image; {HINT}")
        return JobImage(image)
    sidecar = None
    if sidecar_path(image).exists():
        try:
            sidecar = read_sidecar(image)
        except InputError as error:
            problems += error.problems
    if request.dry_run:
        recorded = {image: sidecar.image["sha256"]} if sidecar else {}
    else:
        recorded = digests(image, sidecar, problems)
    home = Path(site.path("home", request.user)) if site.home else None
    copied: tuple[Path, ...] = ()
    if home and image.is_relative_to(home):
        beside = (sidecar_path(image), image.with_suffix(".squashfs"))
        copied = (image, *(path for path in beside if path.is_file()))
    return JobImage(image, tuple(recorded), tuple(recorded.values()), copied)
