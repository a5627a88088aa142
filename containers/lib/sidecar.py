"""The JSON beside an image that records what it was made of, and the check of the image
against it.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aam.files.atomic import file_digest
from containers.lib.engine import Engine, engine_environment
from containers.lib.errors import FAILED, FailedError, InputError
from containers.lib.files import write_text
from containers.lib.pins import Pins, lock_problems, unverified

SCHEMA = 1
# The files beside an image, by what they hold.
PAPERS = {"definition": ".def", "lock": ".lock.txt", "sbom": ".cdx.json", "log": ".log"}


@dataclass(frozen=True)
class Sidecar:
    """What an image was made of.

    `base` holds name, digest and whether it is the pinned one. `route` is "definition", or "layer"
    where the user may not build; then `layer` describes the file that is mounted over the base.
    `unverified` names the packages whose hash comes from a second-hand source. `papers` describes
    the files beside the image: the definition with its arguments filled in, the lock, the bill of
    materials and the log of the build. A signature changes the bytes of an image: `unsigned_sha256`
    is that of a signed image before it, which a second build gives where it is `reproducible`.
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
    signed: bool = False
    unsigned_sha256: str = ""  # empty: not signed, or an image of before it was recorded
    version: str = ""  # of aam; empty: an image of before it was recorded
    snapshot: str = (
        ""  # the date of the archive that the Debian packages are from; empty: that of the build
    )
    fabric: list[dict[str, str]] = field(
        default_factory=list
    )  # sources of the layer of communication; empty: none
    schema: int = SCHEMA


def sidecar_path(image: Path) -> Path:
    """Return the path of the sidecar of an image."""
    return image.with_name(image.name + ".json")


def file_record(path: Path) -> dict[str, Any]:
    """Return name, size and SHA-256 of a file."""
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": file_digest(path)}


def write_papers(image: Path, texts: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Write the papers of an image beside it, and return name, size and SHA-256 of each."""
    records = {}
    for name, text in texts.items():
        path = image.with_name(image.name + PAPERS[name])
        write_text(path, text)
        records[name] = file_record(path)
    return records


def has_key(engine: Engine) -> bool:
    """Return whether the engine has a secret key of this user."""
    done = subprocess.run(
        [engine.command, "key", "list", "--secret"],
        env=engine_environment(),
        capture_output=True,
        text=True,
    )
    return done.returncode == 0 and "Fingerprint" in done.stdout


def sign(engine: Engine, image: Path) -> str:
    """Sign an image with the user's key, where there is one without a passphrase.

    Return the SHA-256 that the image had before, or an empty text: it is not signed.
    """
    if not has_key(engine):
        return ""
    unsigned = file_digest(image)
    command = [engine.command, "sign", str(image)]
    # Without a terminal a key with a passphrase does not wait for it.
    done = subprocess.run(
        command, env=engine_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        print(f"the image is not signed: {' '.join(done.stderr.strip().splitlines()[-1:])}")
        return ""
    return unsigned


def signature_problems(engine: Engine, image: Path) -> list[str]:
    """Return what is wrong with the signature of an image."""
    done = subprocess.run(
        [engine.command, "verify", "--local", str(image)],
        env=engine_environment(),
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return []
    last_lines = " ".join(done.stderr.strip().splitlines()[-1:])
    return [
        (
            f"{image.name}: {engine.name} verify refuses its signature ({last_lines}); is its "
            "key in "
            "your keyring?"
        )
    ]


def write_sidecar(sidecar: Sidecar, image: Path) -> None:
    """Write the sidecar of an image, with sorted keys."""
    write_text(sidecar_path(image), json.dumps(asdict(sidecar), indent=1, sort_keys=True) + "\n")


def read_sidecar(image: Path) -> Sidecar:
    """Return the sidecar of an image."""
    path = sidecar_path(image)
    if not path.exists():
        raise InputError(
            f"{path}: is missing: nothing proves what is in {image.name}; build the image again"
        )
    try:
        return Sidecar(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{path}: is not a sidecar of this version ({error}); build the image again"
        ) from error


def run_in_image(engine: Engine, image: Path, layer: Path | None, command: list[str]) -> bytes:
    """Run a command inside an image and return what it prints."""
    overlay = ["--overlay", f"{layer}:ro"] if layer else []
    words = [
        engine.command,
        "exec",
        "--cleanenv",
        "--no-home",
        "--pwd",
        "/",
        *overlay,
        str(image),
        *command,
    ]
    done = subprocess.run(words, env=engine_environment(), capture_output=True)
    if done.returncode:
        last_lines = done.stderr.decode(errors="replace").strip()[-500:]
        raise FailedError(f"{image.name}: {' '.join(command)} failed:", last_lines)
    return done.stdout


def _difference(what: str, value: object, recorded: object, remedy: str) -> list[str]:
    return (
        [] if value == recorded else [f"{what}: is {value}, the sidecar has {recorded}; {remedy}"]
    )


def verify(pins: Pins, image: Path, engine: Engine | None) -> list[str]:
    """Check an image against its sidecar, its lock and, with an engine, its contents; return
    remarks.

    Raises
    ------
    InputError
        All differences at once.
    """
    sidecar = read_sidecar(image)
    remedy = f"make container-{pins.flavour} builds the image anew"
    problems = lock_problems(pins)
    layer = image.with_name(sidecar.layer["file"]) if sidecar.layer else None
    papers = [(image.with_name(record["file"]), record) for record in sidecar.papers.values()]
    for path, recorded in ((image, sidecar.image), (layer, sidecar.layer), *papers):
        if path and recorded:
            digest = file_digest(path) if path.exists() else "missing"
            problems += _difference(f"{path.name}: SHA-256", digest, recorded["sha256"], remedy)
    if pins.lock.exists():
        problems += _difference(
            f"{pins.lock.name}: SHA-256", file_digest(pins.lock), sidecar.lock["sha256"], remedy
        )
    if sidecar.base["pinned"]:
        problems += _difference(
            "base digest in pins.toml", pins.digest, sidecar.base["digest"], remedy
        )
    if engine and sidecar.signed and not problems:
        problems += signature_problems(engine, image)
    if engine and not problems:
        for name, recorded_digest in (
            ("lock.txt", sidecar.lock["sha256"]),
            ("sbom.json", sidecar.sbom_sha256),
        ):
            printed = run_in_image(engine, image, layer, ["sha256sum", f"/opt/aam/{name}"])
            digest = printed.split()[0].decode()
            problems += _difference(
                f"/opt/aam/{name} in the image: SHA-256", digest, recorded_digest, remedy
            )
    if problems:
        raise InputError(*problems, status=FAILED)
    return remarks(pins, sidecar)


def remarks(pins: Pins, sidecar: Sidecar) -> list[str]:
    """Return what a user of the image should know."""
    notes = []
    if sidecar.git["dirty"]:
        notes.append(f"built from changed files on top of commit {sidecar.git['commit']}")
    if not sidecar.base["pinned"]:
        notes.append(
            f"its base is {sidecar.base['name']}@{sidecar.base['digest']}, not the pinned "
            f"{pins.base}"
        )
    if not sidecar.signed:
        notes.append(
            f"it is not signed: `{sidecar.engine['name']} key newpair` makes a key, and the next "
            "build signs with it"
        )
    if unverified(pins):
        notes.append(
            "second-hand hashes, checked by pip but not yet by make lock on a network: "
            f"{unverified(pins)}"
        )
    if not sidecar.reproducible:
        notes.append(
            f"{sidecar.engine['name']} {sidecar.engine['version']} does not build the same bytes "
            "twice"
        )
    elif sidecar.signed:
        digest = sidecar.unsigned_sha256 or "not recorded"
        notes.append(
            "a second build gives the same bytes but for the signature; SHA-256 before it: "
            f"{digest}"
        )
    return notes
