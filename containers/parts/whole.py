"""Errors that say what to do, and files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "containers"
PARTIAL = ".partial-"

BAD_INPUT, FAILED = 2, 1


class InputError(Exception):
    """Everything that is wrong, one line each, with the exit status it means."""

    def __init__(self, *problems: str, status: int = BAD_INPUT) -> None:
        super().__init__("\n".join(problems))
        self.problems, self.status = problems, status


class FailedError(InputError):
    """Something that was asked for rightly did not work."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems, status=FAILED)


def refuse(problems: list[str]) -> None:
    """Raise `InputError` when there are any."""
    if problems:
        raise InputError(*problems)


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path) -> str:
    """SHA-256 over names, modes, links and contents of all that lies in a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = ""
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = sha256(path)
        total.update(f"{path.relative_to(folder)}\0{status.st_mode:o}\0{content}\n".encode("utf-8", "surrogateescape"))
    return f"sha256:{total.hexdigest()}"


def sync(path: Path) -> None:
    """Make sure that a file or the names in a folder are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def running(process: int) -> bool:
    """Whether a process of this machine is alive."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def sweep(folder: Path) -> None:
    """Remove what killed runs left in a folder: temporary files whose process is gone."""
    for path in folder.glob(f"{PARTIAL}*"):
        number = path.name.removeprefix(PARTIAL).partition("-")[0]
        if number.isdigit() and not running(int(number)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success sync it and rename it, else remove it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    temporary = path.with_name(f"{PARTIAL}{os.getpid()}-{path.name}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file, whole or not at all; an equal one is left as it is."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
