"""The JSON beside an image that says what it was made of, and the check that it still is that."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parts.engine import Engine, engine_environment
from parts.pins import Pins, lock_problems, unverified
from parts.whole import FailedError, InputError, sha256, write_text

SCHEMA = 1


@dataclass(frozen=True)
class Sidecar:
    """Proof of what is in an image.

    `base` holds name, digest and whether it is the pinned one; `route` is "definition" or, where a user may not
    build, "layer", with the file that is laid over the base; `unverified` names packages whose hash is second-hand.
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
    schema: int = SCHEMA


def sidecar_path(image: Path) -> Path:
    """Where the sidecar of an image lies."""
    return image.with_name(image.name + ".json")


def described(path: Path) -> dict[str, Any]:
    """Name, size and SHA-256 of a file."""
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}


def write_sidecar(sidecar: Sidecar, image: Path) -> None:
    """Write it whole, in an order that does not change."""
    write_text(sidecar_path(image), json.dumps(asdict(sidecar), indent=1, sort_keys=True) + "\n")


def read_sidecar(image: Path) -> Sidecar:
    """The sidecar of an image."""
    path = sidecar_path(image)
    if not path.exists():
        raise InputError(f"{path}: is missing: nothing proves what is in {image.name}; build the image again")
    try:
        return Sidecar(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: is no sidecar of this version ({error}); build the image again") from error


def inside(engine: Engine, image: Path, layer: Path | None, command: list[str]) -> bytes:
    """What a command prints inside an image."""
    overlay = ["--overlay", f"{layer}:ro"] if layer else []
    words = [engine.command, "exec", "--cleanenv", "--no-home", "--pwd", "/", *overlay, str(image), *command]
    done = subprocess.run(words, env=engine_environment(), capture_output=True)
    if done.returncode:
        raise FailedError(
            f"{image.name}: {' '.join(command)} failed:", done.stderr.decode(errors="replace").strip()[-500:]
        )
    return done.stdout


def _compare(what: str, found: object, recorded: object, mend: str) -> list[str]:
    return [] if found == recorded else [f"{what}: is {found}, the sidecar says {recorded}; {mend}"]


def verify(pins: Pins, image: Path, engine: Engine | None) -> list[str]:
    """Check an image against its sidecar, the lock and, with an engine, its inside; returns remarks.

    Raises
    ------
    InputError
        Everything that does not agree.
    """
    sidecar = read_sidecar(image)
    again = f"make container-{pins.flavour} builds the image anew"
    problems = lock_problems(pins)
    layer = image.with_name(sidecar.layer["file"]) if sidecar.layer else None
    for path, recorded in ((image, sidecar.image), (layer, sidecar.layer)):
        if path and recorded:
            found = sha256(path) if path.exists() else "missing"
            problems += _compare(f"{path.name}: SHA-256", found, recorded["sha256"], again)
    if pins.lock.exists():
        problems += _compare(f"{pins.lock.name}: SHA-256", sha256(pins.lock), sidecar.lock["sha256"], again)
    if sidecar.base["pinned"]:
        problems += _compare("base digest in pins.toml", pins.digest, sidecar.base["digest"], again)
    if engine and not problems:
        for name, digest in (("lock.txt", sidecar.lock["sha256"]), ("sbom.json", sidecar.sbom_sha256)):
            printed = inside(engine, image, layer, ["sha256sum", f"/opt/aam/{name}"]).split()[0].decode()
            problems += _compare(f"/opt/aam/{name} in the image: SHA-256", printed, digest, again)
    if problems:
        raise InputError(*problems, status=1)
    return remarks(pins, sidecar)


def remarks(pins: Pins, sidecar: Sidecar) -> list[str]:
    """What whoever trusts an image should know."""
    said = []
    if sidecar.git["dirty"]:
        said.append(f"built from a changed tree on top of commit {sidecar.git['commit']}")
    if not sidecar.base["pinned"]:
        said.append(f"its base is {sidecar.base['name']}@{sidecar.base['digest']}, not the pinned {pins.base}")
    if unverified(pins):
        said.append(f"second-hand hashes that pip checked but no networked make lock has seen: {unverified(pins)}")
    if not sidecar.reproducible:
        said.append(f"{sidecar.engine['name']} {sidecar.engine['version']} does not build the same bytes twice")
    return said
