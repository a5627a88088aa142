"""Files that appear whole or not at all: written under a temporary name, synced, then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from aam.errors import InputError

TEMPORARY = ".partial-"


def _temporary(path: Path) -> Path:
    return path.with_name(f"{TEMPORARY}{uuid.uuid4().hex[:8]}-{path.name}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(path: Path, overwrite: bool = False) -> None:
    """Refuse an output path that exists already or whose folder cannot be made.

    Raises
    ------
    InputError
        The path exists and `overwrite` is false, or its parent is not a folder.
    """
    if path.exists() and not overwrite:
        raise InputError(f"{path}: exists already; choose another output or pass --overwrite")
    parent = path.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise InputError(f"{path}: {parent} is a file, expected a folder")
    if not os.access(parent, os.W_OK):
        raise InputError(f"{path}: no permission to write in {parent}")


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success sync it and rename it to `path`.

    Whoever stands at `path` is replaced in one step; on an error it stays as it was and the
    temporary file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success sync its files and rename it to `path`.

    A folder that stands at `path` is moved aside first and removed last, so that at every moment one of
    the two is whole; on an error it is there as before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, aside = _temporary(path), _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
        for entry in sorted(temporary.rglob("*")):
            _sync(entry)
        _sync(temporary)
        if path.exists():
            path.replace(aside)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        if aside.exists() and not path.exists():
            aside.replace(path)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
