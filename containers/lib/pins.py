"""What an image is pinned to, from its definition and containers/pins.toml; the locks: reading,
checking and recording values. `make pin` asks the registry, through skopeo, for the digest of each
base.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from containers.lib.definition import arguments, set_argument
from containers.lib.errors import FailedError, InputError
from containers.lib.files import CONTAINERS, OUTPUT, ROOT, write_text

PINS = CONTAINERS / "pins.toml"
PROJECT = ROOT / "pyproject.toml"
FLAVOURS = ("rocm", "cuda", "cpu")
# Locks that no image is made from are added.
LOCKS = (*FLAVOURS, "runtime")
# In a lock, the wheels of the vendor's index stand above this line;
# containers/inside/environment.py reads it too.
REST = "# --- from pip's own index\n"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Pins:
    """One table of pins.toml, with the values of its definition; the head of that file explains
    them.
    """

    flavour: str
    definition: Path
    base: str  # NAME@sha256:DIGEST
    tag: str
    python: str
    extras: tuple[str, ...]
    index: str
    requires: tuple[str, ...]
    seen: tuple[str, ...]
    runtime: str
    disk_gb: tuple[float, float]
    squashfs: str
    wheels: dict[str, list[str]]
    snapshot: str = ""
    like: str = ""
    built: str = ""

    @property
    def lock(self) -> Path:
        """The path of the lock."""
        return CONTAINERS / "lock" / f"{self.flavour}.txt"

    @property
    def image(self) -> Path:
        """The path of the image."""
        return OUTPUT / "containers" / f"aam-{self.flavour}.sif"


def read_pins(flavour: str) -> Pins:
    """Return the pins of one flavour."""
    if flavour not in LOCKS:
        expected = f"expected one of {', '.join(LOCKS)}"
        raise InputError(f"{flavour!r} is not a flavour of the image: {expected}")
    tables = tomllib.loads(PINS.read_text(encoding="utf-8"))
    table: dict[str, Any] = {**tables.get(tables[flavour].get("like"), {}), **tables[flavour]}
    table["definition"] = definition = CONTAINERS / table["definition"]
    defaults = arguments(definition)
    pinned = {name: defaults[name.upper()] for name in ("base", "python", "snapshot", "index")}
    torch = defaults["TORCH"]
    table["requires"] = [text.replace("{TORCH}", torch) for text in table["requires"]]
    wheels = table.get("wheels", {}).items()
    table["wheels"] = {name.replace("{TORCH}", torch): hashes for name, hashes in wheels}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in (pinned | table).items()
    }
    return Pins(flavour=flavour, **values)


def record(flavour: str, name: str, value: str | list[str]) -> None:
    """Set one value in the table of a flavour and leave the rest of the file as it is."""
    text = PINS.read_text(encoding="utf-8")
    pattern = rf"(?ms)(^\[{flavour}\]\n(?:(?!^\[).)*?^{name} = )(\[[^\]]*\]|\"[^\"]*\")"
    changed, count = re.subn(pattern, lambda match: match[1] + json.dumps(value), text, count=1)
    if not count:
        raise InputError(f"{PINS}: [{flavour}] has no line {name!r}")
    write_text(PINS, changed)


def inputs_digest(pins: Pins, project_file: Path = PROJECT) -> str:
    """Return a digest of everything that decides what the lock holds; when it differs, the lock is
    out of date.
    """
    project = tomllib.loads(project_file.read_text(encoding="utf-8"))["project"]
    names: tuple[str, ...] = ("requires-python", "dependencies", "optional-dependencies")
    requested = {name: project[name] for name in names}
    names = ("extras", "index", "requires", "seen", "runtime", "wheels")
    pinned = {name: getattr(pins, name) for name in names}
    text = json.dumps([requested, pinned], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def lock_problems(pins: Pins) -> list[str]:
    """List the problems of the lock of a flavour: missing, out of date, not pinned or not
    hashed.
    """
    name = pins.lock.relative_to(ROOT)
    if not pins.lock.exists():
        return [f"{name}: is missing; make lock writes it"]
    return lock_text_problems(pins, pins.lock.read_text(encoding="utf-8"))


def lock_text_problems(pins: Pins, text: str) -> list[str]:
    """List the problems of the text of a lock."""
    name = pins.lock.relative_to(ROOT)
    problems = []
    if f"# inputs: {inputs_digest(pins)}\n" not in text:
        older = "is older than pyproject.toml or containers/pins.toml"
        problems.append(f"{name}: {older}; make lock brings it up to date")
    if not re.search(r"(?m)^# uv: uv==[\d.]+( --hash=sha256:[0-9a-f]{64})+$", text):
        problems.append(f"{name}: has no pinned uv with hashes; make lock writes the file anew")
    joined = re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", text))
    for line in filter(None, map(str.strip, joined.splitlines())):
        requirement = line.partition("--hash")[0].strip()
        if not re.fullmatch(r"[\w.-]+==[\w.+]+( ; .+)?", requirement):
            wrong = "is not pinned to one version"
        elif not re.search(r"--hash=sha256:[0-9a-f]{64}", line):
            wrong = "has no hash"
        else:
            continue
        problems.append(f"{name}: {requirement!r} {wrong}; make lock writes the file anew")
    return problems


def unverified(pins: Pins) -> list[str]:
    """Return the vendor's packages with a hash that no index, file or build has confirmed."""
    return (
        []
        if pins.built
        else [name for name, hashes in pins.wheels.items() if not set(hashes) <= set(pins.seen)]
    )


SKOPEO = ("skopeo", "inspect", "--no-tags", "--format", "{{.Digest}}")


def registry_digest(image: str) -> str:
    """Return the digest that the registry has now for an image such as
    ``docker.io/library/ubuntu:24.04``; nothing is changed where there is none.
    """
    if shutil.which("skopeo") is None:
        hint = "or write the digest that `crane digest` shows into BASE of the definitions"
        raise InputError(f"make pin: skopeo not found on PATH; install the package skopeo, {hint}")
    done = subprocess.run([*SKOPEO, f"docker://{image}"], capture_output=True, text=True)
    digest = done.stdout.strip()
    if not DIGEST.fullmatch(digest):
        reason = done.stderr.strip()[-300:] or f"skopeo printed {digest!r}"
        hint = "  make pin needs a network; nothing was changed"
        raise FailedError(f"{image}: the registry gave no digest: {reason}", hint)
    return digest


def pin_all(flavours: tuple[str, ...]) -> None:
    """Write the current digest of the base of each flavour into its definition, and now as the date
    of its packages.
    """
    pins = {read.definition: read for read in map(read_pins, flavours)}
    tags = {path: f"{read.base.partition('@')[0]}:{read.tag}" for path, read in pins.items()}
    digests = {tag: registry_digest(tag) for tag in set(tags.values())}
    for path, tag in tags.items():
        base, found = f"{tag.rpartition(':')[0]}@{digests[tag]}", "already pinned in"
        if pins[path].base != base:
            set_argument(path, "BASE", base)
            # Packages that are older than the base's own could not be installed with them.
            set_argument(path, "SNAPSHOT", f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
            found = "written into"
        print(f"{tag} is {digests[tag]}, {found} {path.name}")
