"""Files: where the repository is, checksums, and files that appear complete or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "containers"
# A temporary file is called .partial-PROCESS-NAME.
PARTIAL = ".partial-"


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(folder: Path) -> str:
    """Return ``sha256:`` and a digest of the names, modes, links and contents of everything in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = ""
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = sha256(path)
        digest.update(f"{path.relative_to(folder)}\0{mode:o}\0{content}\n".encode("utf-8", "surrogateescape"))
    return f"sha256:{digest.hexdigest()}"


def fsync_path(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_running(process: int) -> bool:
    """Return whether a process with this number runs on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder."""
    for path in folder.glob(f"{PARTIAL}*"):
        number = path.name.removeprefix(PARTIAL).partition("-")[0]
        if number.isdigit() and not is_running(int(number)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and rename it to `path` when the block ends without an error.

    After an error the temporary file is removed and the old file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent)
    temporary = path.with_name(f"{PARTIAL}{os.getpid()}-{path.name}")
    try:
        yield temporary
        fsync_path(temporary)
        temporary.replace(path)
        fsync_path(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically; a file that holds this text already is not touched."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
