"""Files and folders that appear whole or not at all: written under a temporary name, synced, then renamed."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import io
import json
import logging
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aam.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Buffer

log = logging.getLogger("aam")

FORMAT = 1
MANIFEST = "manifest.json"
MAX_JSON = 64 << 20
# A temporary name says who writes it, or whom it stands in for: PREFIX~host~process~name.
PARTIAL, REPLACED = ".partial", ".replaced"
LOCK = ".lock"


def _temporary(path: Path, prefix: str = PARTIAL) -> Path:
    return path.with_name(f"{prefix}~{socket.gethostname()}~{os.getpid()}~{path.name}")


def final_name(path: str | Path) -> Path:
    """What a path is called when it is whole."""
    path = Path(path)
    return path.with_name(path.name.split("~", 3)[-1] if path.name.startswith((PARTIAL, REPLACED)) else path.name)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


def _abandoned(host: str, process: str) -> bool:
    """Whether a process of this host no longer runs."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return host == socket.gethostname()
    except (ValueError, OSError):
        return False
    return False


def sweep(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left half written, and put back what they had moved aside.

    With `name`, what was to become `folder`/`name`, unless its process still runs; else everything in `folder`
    and below it, where nobody else writes.
    """
    for prefix in (REPLACED, PARTIAL):
        pattern = f"{prefix}~*~{'*' if name is None else glob.escape(name)}"
        for stale in sorted(folder.rglob(pattern) if name is None else folder.glob(pattern)):
            _, host, process, _ = stale.name.split("~", 3)
            if name is not None and not _abandoned(host, process):
                continue
            if prefix == REPLACED and not final_name(stale).exists():
                stale.replace(final_name(stale))
            remove(stale)


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
    sweep(path.parent, path.name)
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
    sweep(path.parent, path.name)
    temporary, aside = _temporary(path), _temporary(path, REPLACED)
    try:
        temporary.mkdir()
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
        remove(temporary)
        remove(aside)


class PatientFile(io.FileIO):
    """A file to write for a library that a failing write would crash, as HDF5 is: `close` raises the first error."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self.error: OSError | None = None

    def _kept(self, change: Callable[[Any], int], argument: Any) -> int | None:
        """What `change` returns; nothing once a change has failed."""
        if self.error is None:
            try:
                return change(argument)
            except OSError as error:
                self.error = error
        return None

    def write(self, data: Buffer, /) -> int:
        """Write all of `data`, or keep the error and say that it was written."""
        view = memoryview(data).cast("B")
        done: int | None = 0
        while done is not None and done < len(view):
            written = self._kept(super().write, view[done:])
            done = None if written is None else done + written
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Cut or extend, or keep the error and say that it was done."""
        size = self.tell() if size is None else size
        self._kept(super().truncate, size)
        return size

    def close(self) -> None:
        """Close, then raise the first error of a write."""
        super().close()
        error, self.error = self.error, None
        if error is not None:
            raise error


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: Path, most: int | None = None) -> object:
    """Content of a JSON file of at most `most` bytes (`MAX_JSON`); `InputError` where it cannot be read."""
    most = MAX_JSON if most is None else most
    try:
        with path.open("rb") as file:
            # A read of many bytes takes their memory at once, whatever the file holds.
            blob = file.read(min(os.fstat(file.fileno()).st_size, most) + 1)
        if len(blob) > most:
            raise InputError(f"{path}: larger than {most >> 20} MiB")
        return json.loads(blob.decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not valid JSON ({error})") from None


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_manifest(folder: Path) -> None:
    """Record name, size and SHA-256 of every file in `folder`, last of all."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {str(p.relative_to(folder)): {"bytes": p.stat().st_size, "sha256": file_digest(p)} for p in files}
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": entries}, indent=1) + "\n")


def _recorded(folder: Path, name: str, size: object, digest: object) -> bool:
    """Whether the file `name` inside `folder` is as its manifest says."""
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
        No manifest, or of another format; names every file that is missing or differs.
    """
    manifest = read_json(folder / MANIFEST)
    try:
        found = manifest["format"]  # type: ignore[index]
        entries = {n: (e["bytes"], e["sha256"]) for n, e in manifest["files"].items()}  # type: ignore[index]
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{folder}/{MANIFEST}: damaged, expected sizes and checksums of files") from None
    if found != FORMAT:
        raise InputError(f"{folder}: format {found}, this aam reads {FORMAT}")
    damaged = [name for name, expected in entries.items() if not _recorded(folder, name, *expected)]
    if damaged:
        raise InputError(*(f"{folder}/{name}: missing or damaged (its checksum differs)" for name in damaged))


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; the system lets go of it when the process dies, however it does.

    Raises
    ------
    InputError
        Another process holds it.
    """
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder}: another process is writing there; wait for it, or choose another") from None
        except OSError as error:
            log.warning("%s: this file system locks nothing (%s); start one process there at a time", folder, error)
        yield
