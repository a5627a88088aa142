"""The layer of communication: libfabric and the plugin of NCCL and RCCL for it, built from pinned
sources.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
import urllib.request
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from aam.files.atomic import atomic_file, file_digest
from containers.lib.engine import scratch_folder
from containers.lib.errors import InputError, raise_if_any
from containers.lib.files import CONTAINERS
from containers.lib.pins import PINS

SCRIPT = CONTAINERS / "inside" / "fabric" / "build.py"
SECONDS = 60


@dataclass(frozen=True)
class Source:
    """An archive of sources, as containers/pins.toml names it."""

    url: str
    sha256: str
    licence: str

    @property
    def file(self) -> str:
        """The name of the archive."""
        return self.url.rpartition("/")[2]

    @property
    def name_and_version(self) -> tuple[str, str]:
        """Name and version in the name of the archive."""
        name, version = re.findall(r"^(.+)-(\d[\w.]*?)\.tar\.\w+$", self.file)[0]
        return name, version


@dataclass(frozen=True)
class Fabric:
    """What a build adds for several nodes: nothing, or archives and the packages that building them
    needs.
    """

    sources: tuple[Source, ...] = ()
    packages: tuple[str, ...] = ()
    folder: Path | None = None  # where the archives lie on this machine; None: they are fetched


def choose_fabric(requested: str, path: Path = PINS) -> Fabric:
    """Choose the layer of ``FABRIC=``: nothing, 1 (fetch the pinned archives), or their folder."""
    if requested in ("", "0"):
        return Fabric()
    table = tomllib.loads(path.read_text(encoding="utf-8"))["fabric"]
    sources = tuple(Source(**source) for source in table["sources"])
    folder = None if requested == "1" else Path(requested)
    fabric = Fabric(sources, tuple(table["packages"]), folder)
    if folder and not folder.is_dir():
        expected = "expected 1 (fetch the sources), or a folder that holds their archives"
        raise InputError(f"FABRIC={requested}: {expected}")
    for_folder = sources if folder else ()
    checks = (archive_problems(Path(requested, source.file), source) for source in for_folder)
    raise_if_any([problem for problems in checks for problem in problems])
    return fabric


def archive_problems(archive: Path, source: Source) -> list[str]:
    """List the problems of an archive on this machine."""
    if not archive.is_file():
        return [f"{archive}: is missing; fetch it from {source.url}"]
    digest = file_digest(archive)
    if digest != source.sha256:
        wrong = f"SHA-256 is {digest}, containers/pins.toml has {source.sha256}"
        return [f"{archive}: {wrong}: fetch {source.url} anew"]
    return []


def fetch(source: Source, folder: Path) -> Path:
    """Return an archive in a folder, fetched unless it is there; another content than the pinned
    one is refused.
    """
    archive = folder / source.file
    if not archive_problems(archive, source):
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (
            atomic_file(archive) as new,
            urllib.request.urlopen(source.url, timeout=SECONDS) as answer,
        ):
            new.write_bytes(answer.read())
            # A refused file is not kept under its name.
            problems = archive_problems(new, source)
            raise_if_any([problem.replace(str(new), source.url) for problem in problems])
    except OSError as error:
        hint = "fetch the archives elsewhere and name their folder: FABRIC=FOLDER"
        raise InputError(f"FABRIC=1: {source.url}: {error}; {hint}") from error
    return archive


def fill_fabric(target: Path, fabric: Fabric) -> None:
    """Write the folder that becomes /opt/aam/fabric: the script that builds, and the archives if
    there are any.
    """
    target.mkdir(parents=True)
    shutil.copy(SCRIPT, target)
    if not fabric.sources:
        return
    for source in fabric.sources:
        folder = fabric.folder
        store = scratch_folder() / "fabric"
        shutil.copy(folder / source.file if folder else fetch(source, store), target)
    text = json.dumps(describe(fabric.sources), indent=1) + "\n"
    (target / "sources.json").write_text(text, encoding="utf-8")


def describe(sources: Iterable[Source]) -> list[dict[str, str]]:
    """Records of the archives for the image, its bill of materials and its sidecar."""
    names = ("name", "version")
    return [
        {**dict(zip(names, source.name_and_version, strict=True)), "file": source.file}
        | asdict(source)
        for source in sources
    ]
