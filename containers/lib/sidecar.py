"""The JSON next to an image that records what it was made of, and the check of the image
against it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aam.files.atomic import file_digest
from containers.lib.engine import Engine, capture, exec_words
from containers.lib.errors import FAILED, FailedError, InputError
from containers.lib.files import write_text
from containers.lib.pins import Pins, lock_problems, unverified

SCHEMA = 1
# The files next to an image, by their content.
PAPERS = {"definition": ".def", "lock": ".lock.txt", "sbom": ".cdx.json", "log": ".log"}


@dataclass(frozen=True)
class Sidecar:
    """What an image was made of.

    `base` holds name, digest and whether it is the pinned one. `route` is "definition", or "layer"
    where the user may not build; then `layer` describes the file that is mounted over the base.
    `unverified` names the packages whose hash comes from a second-hand source. `papers` describes
    the files next to the image: the definition with its arguments filled in, the lock, the bill of
    materials and the log of the build.
    """

    flavour: str
    image: dict[str, Any]
    layer: dict[str, Any] | None
    base: dict[str, Any]
    lock: dict[str, Any]
    unverified: list[str]
    aam_sha256: str
    sbom_sha256: str
    definition_sha256: str
    git: dict[str, Any]
    engine: dict[str, str]
    python: str
    route: str
    reproducible: bool
    papers: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: str = ""  # of aam
    snapshot: str = ""  # date of the archive of the Debian packages; empty: that of the build
    schema: int = SCHEMA


def sidecar_path(image: Path) -> Path:
    """Return the path of the sidecar of an image."""
    return image.with_name(image.name + ".json")


def file_record(path: Path) -> dict[str, Any]:
    """Return name, size and SHA-256 of a file."""
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": file_digest(path)}


def write_papers(image: Path, texts: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Write the papers of an image next to it, and return name, size and SHA-256 of each."""
    records = {}
    for name, text in texts.items():
        path = image.with_name(image.name + PAPERS[name])
        write_text(path, text)
        records[name] = file_record(path)
    return records


def write_sidecar(sidecar: Sidecar, image: Path) -> None:
    """Write the sidecar of an image, with sorted keys."""
    write_text(sidecar_path(image), json.dumps(asdict(sidecar), indent=1, sort_keys=True) + "\n")


def read_sidecar(image: Path) -> Sidecar:
    """Return the sidecar of an image."""
    path = sidecar_path(image)
    if not path.exists():
        unknown = f"nothing proves what is in {image.name}"
        raise InputError(f"{path}: is missing: {unknown}; build the image again")
    try:
        return Sidecar(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        problem = f"is not a sidecar of this version ({error}); build the image again"
        raise InputError(f"{path}: {problem}") from error


def run_in_image(engine: Engine, image: Path, layer: Path | None, command: list[str]) -> str:
    """Run a command inside an image and return what it prints."""
    done = capture(exec_words(engine, image, command, overlay=layer))
    if done.returncode:
        raise FailedError(f"{image.name}: {' '.join(command)} failed:", done.stderr.strip()[-500:])
    return done.stdout


def differences(pins: Pins, compared: list[tuple[str, str, str]]) -> list[str]:
    """Return a problem for each value that is not the one in the sidecar."""
    remedy = f"make container-{pins.flavour} builds the image anew"
    return [
        f"{what}: is {value}, the sidecar has {recorded}; {remedy}"
        for what, value, recorded in compared
        if value != recorded
    ]


def verify(pins: Pins, image: Path, engine: Engine | None) -> list[str]:
    """Check an image against its sidecar, its lock and, with an engine, its contents; return
    remarks.

    Raises
    ------
    InputError
        All differences at once.
    """
    sidecar = read_sidecar(image)
    layer = image.with_name(sidecar.layer["file"]) if sidecar.layer else None
    # What is compared: its name, its value now, and the value in the sidecar.
    compared = []
    for record in filter(None, (sidecar.image, sidecar.layer, *sidecar.papers.values())):
        path = image.with_name(record["file"])
        digest = file_digest(path) if path.exists() else "missing"
        compared.append((f"{path.name}: SHA-256", digest, record["sha256"]))
    if pins.lock.exists():
        digest = file_digest(pins.lock)
        compared.append((f"{pins.lock.name}: SHA-256", digest, sidecar.lock["sha256"]))
    if sidecar.base["pinned"]:
        base = f"{sidecar.base['name']}@{sidecar.base['digest']}"
        compared.append((f"base in {pins.definition.name}", pins.base, base))
    problems = [*lock_problems(pins), *differences(pins, compared)]
    if engine and not problems:
        inside = {"lock.txt": sidecar.lock["sha256"], "sbom.json": sidecar.sbom_sha256}
        printed = {
            name: run_in_image(engine, image, layer, ["sha256sum", f"/opt/aam/{name}"]).split()[0]
            for name in inside
        }
        problems += differences(
            pins, [(f"/opt/aam/{name}: SHA-256", printed[name], inside[name]) for name in inside]
        )
    if problems:
        raise InputError(*problems, status=FAILED)
    return remarks(pins, sidecar)


def remarks(pins: Pins, sidecar: Sidecar) -> list[str]:
    """Remarks for a user of the image."""
    notes = []
    engine, base = sidecar.engine, sidecar.base
    if sidecar.git["dirty"]:
        notes.append(f"built from changed files on top of commit {sidecar.git['commit']}")
    if not base["pinned"]:
        notes.append(f"its base is {base['name']}@{base['digest']}, not the pinned {pins.base}")
    if unverified(pins):
        seen_by = "checked by pip, which no download has confirmed yet"
        notes.append(f"second-hand hashes, {seen_by}: {unverified(pins)}")
    if not sidecar.reproducible:
        notes.append(f"{engine['name']} {engine['version']} does not build the same bytes twice")
    return notes
