"""Manifest of a folder: size and SHA-256 of each of its files."""

from __future__ import annotations

import json
from pathlib import Path

from aam.device.files import file_digest, read_json
from aam.errors import InputError

FORMAT = 1
MANIFEST = "manifest.json"


def write_manifest(folder: Path) -> None:
    """Write the manifest of `folder`, after all of its files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": file_digest(path)} for path in files
    }
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": entries}, indent=1) + "\n")


def _matches(folder: Path, name: str, size: object, digest: object) -> bool:
    """Return whether the file `name` lies inside `folder` and has this size and digest."""
    path = folder / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return False
    try:
        return path.is_file() and path.stat().st_size == size and file_digest(path) == digest
    except (OSError, ValueError):
        return False


def verify_manifest(folder: Path) -> None:
    """Check every file of `folder` against its manifest.

    Raises
    ------
    InputError
        There is no manifest, or it has another format; or names every file that is missing or differs.
    """
    manifest = read_json(folder / MANIFEST)
    try:
        version = manifest["format"]  # type: ignore[index]
        entries = {n: (e["bytes"], e["sha256"]) for n, e in manifest["files"].items()}  # type: ignore[index]
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{folder}/{MANIFEST}: damaged, expected sizes and checksums of files") from None
    if version != FORMAT:
        raise InputError(f"{folder}: format {version}, this aam reads {FORMAT}")
    damaged = [name for name, expected in entries.items() if not _matches(folder, name, *expected)]
    if damaged:
        raise InputError(*(f"{folder}/{name}: missing or damaged (its checksum differs)" for name in damaged))
