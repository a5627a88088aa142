"""Files and folders: written whole or not at all, read within limits, checked against a
manifest.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aam.errors import InputError, refuse

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Largest JSON file that is read, in bytes.
MAX_JSON = 64 << 20
BLOCK = 1 << 20
# A temporary name says who writes it, or for what it stands in: PREFIX~host~process~name.
PARTIAL = ".partial"
REPLACED = ".replaced"


def _temporary(path: Path, prefix: str = PARTIAL) -> Path:
    return path.with_name(f"{prefix}~{socket.gethostname()}~{os.getpid()}~{path.name}")


def final_name(path: str | Path) -> Path:
    """Return the path that a temporary file or folder gets when it is complete; other paths as they
    are.
    """
    path = Path(path)
    is_temporary = path.name.startswith((f"{PARTIAL}~", f"{REPLACED}~"))
    return path.with_name(path.name.split("~", 3)[-1]) if is_temporary else path


def seen_from_here(path: Path) -> Path:
    """Return a path as a person types it: without the working folder where it lies in that."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists; what cannot be removed stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


def _is_dead(host: str, process: str) -> bool:
    """Return whether a process of this host no longer runs; False for other hosts."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return host == socket.gethostname()
    except (ValueError, OSError):
        return False
    return False


def remove_partial(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left half written, and put back what they had moved aside.

    With `name`, what was to become `folder`/`name`, unless its process still runs; else everything
    in `folder` and below it, where no other process writes.
    """
    for prefix in (REPLACED, PARTIAL):
        pattern = f"{prefix}~*~{'*' if name is None else glob.escape(name)}"
        for stale in sorted(folder.rglob(pattern) if name is None else folder.glob(pattern)):
            _, host, process, _ = stale.name.split("~", 3)
            if name is not None and not _is_dead(host, process):
                continue
            if prefix == REPLACED and not final_name(stale).exists():
                stale.replace(final_name(stale))
            remove(stale)


def check_writable(path: Path, overwrite: bool = False) -> None:
    """Refuse an output path that exists already or whose folder cannot be made.

    Raises
    ------
    InputError
        The path exists and `overwrite` is false, its name is too long, or its parent is no folder
        that takes files.
    """
    try:
        exists, parent = path.exists(), path.parent
        link = path
        while not parent.exists():
            link, parent = parent if parent.is_symlink() else link, parent.parent
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another") from None
    # The folder in which the user works has no name of its own.
    named = path if path.name else path.resolve()
    rules = {
        "exists already; choose another output or pass --overwrite": exists and not overwrite,
        f"{link} is a link that leads nowhere; remove it": link.is_symlink() and not link.exists(),
        f"{parent} is a file, expected a folder": not parent.is_dir(),
        f"no permission to write in {parent}": not os.access(parent, os.W_OK),
        # The administrator may write everywhere, but not into a virtual file system such as /proc.
        f"{parent} is of the system and takes no files; choose another output": (
            not exists and not os.statvfs(parent).f_blocks and not parent.stat().st_mode & 0o222
        ),
        "is the root of all folders; choose another output": not named.name,
        "the name is too long for a file; choose a shorter one": named.name != ""
        and len(os.fsencode(_temporary(named).name)) > os.statvfs(parent).f_namemax,
    }
    refuse(path, rules)


@contextlib.contextmanager
def _place_of_errors(path: Path) -> Iterator[None]:
    """Add `path` to an error without a file name, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; it is removed at the end, unless it was
    renamed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_partial(path.parent, path.name)
    temporary = _temporary(path)
    try:
        with _place_of_errors(temporary):
            yield temporary
    finally:
        remove(temporary)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; on success sync it and rename it to `path`.

    A file at `path` is replaced in one step; on an error it stays as it was and the temporary file
    is removed.
    """
    with _partial(path) as temporary:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)


@contextlib.contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path`; it is removed at the end, unless it was renamed."""
    with _partial(path) as temporary:
        temporary.mkdir()
        yield temporary


def put_folder(temporary: Path, path: Path) -> None:
    """Sync the files of a temporary folder and rename it to `path`; where that fails, what stood
    there stays.
    """
    aside = _temporary(path, REPLACED)
    try:
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
        remove(aside)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `path`; on success sync its files and rename it to `path`.

    A folder at `path` is moved aside first and removed last, so that at every moment one of the two
    is complete; on an error it stands there as before.
    """
    with partial_folder(path) as temporary:
        yield temporary
        put_folder(temporary, path)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: Path, limit: int = MAX_JSON) -> object:
    """Return the content of a JSON file of at most `limit` bytes (`MAX_JSON`).

    Raises
    ------
    InputError
        The file cannot be read, is too large, or is not JSON.
    """
    try:
        if path.stat().st_size > limit:
            raise InputError(f"{path}: larger than {limit >> 20} MiB")
        return json.loads(path.read_bytes().decode("utf-8"))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from None


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


# --- manifest ----------------------------------------------------------------------------------

FORMAT = 1
MANIFEST = "manifest.json"


def write_manifest(folder: Path) -> None:
    """Write the manifest of `folder`, after all of its files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": file_digest(path)}
        for path in files
    }
    (folder / MANIFEST).write_text(
        json.dumps({"format": FORMAT, "files": entries}, indent=1) + "\n"
    )


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
        There is no manifest, or it has another format; or names every file that is missing or
        differs.
    """
    manifest = read_json(folder / MANIFEST)
    try:
        version = manifest["format"]  # type: ignore[index]
        entries = {n: (e["bytes"], e["sha256"]) for n, e in manifest["files"].items()}  # type: ignore[index]
    except (KeyError, TypeError, AttributeError):
        raise InputError(
            f"{folder}/{MANIFEST}: damaged, expected sizes and checksums of files"
        ) from None
    if version != FORMAT:
        raise InputError(f"{folder}: format {version}, this aam reads {FORMAT}")
    damaged = [name for name, expected in entries.items() if not _matches(folder, name, *expected)]
    if damaged:
        raise InputError(
            *(f"{folder}/{name}: missing or damaged (its checksum differs)" for name in damaged)
        )


# --- libraries that a failing write would crash ------------------------------------------------


class DeferredErrorFile(io.FileIO):
    """A file to write for HDF5 and the like: after an error it writes nothing more, and `close`
    raises the error.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self.error: OSError | None = None

    def _attempt(self, change: Callable[[Any], int], argument: Any) -> int | None:
        """Result of `change`, or None once a change has failed."""
        if self.error is None:
            try:
                return change(argument)
            except OSError as error:
                self.error = error
        return None

    def write(self, data: Buffer, /) -> int:
        """Write all of `data`, or keep the error; the length of `data` is returned in both
        cases.
        """
        view = memoryview(data).cast("B")
        done: int | None = 0
        while done is not None and done < len(view):
            written = self._attempt(super().write, view[done:])
            done = None if written is None else done + written
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        """Change the size, or keep the error; the new size is returned in both cases."""
        size = self.tell() if size is None else size
        self._attempt(super().truncate, size)
        return size

    def close(self) -> None:
        """Close the file, then raise the first error of a write.

        Raises
        ------
        OSError
            A write failed.
        """
        super().close()
        error, self.error = self.error, None
        if error is not None:
            raise error
