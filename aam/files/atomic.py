"""Files and folders: written whole or not at all, read within limits, checked against a
manifest.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, NoReturn

from aam.errors import InputError, refuse, reworded, shown

# Largest text and JSON that are read, in bytes.
MAX_BYTES, MAX_JSON = 2 << 30, 64 << 20
READ_BLOCK = 1 << 20
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


def relative_to_cwd(path: Path) -> Path:
    """Return a path as a person types it: without the working folder where it lies in that."""
    folder = Path.cwd()
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fail(error: OSError) -> NoReturn:
    raise error


def files_below(folder: Path) -> list[PurePath]:
    """Relative paths of the files below a folder, and of links, which are not followed; `OSError`
    where a folder cannot be read.
    """
    entries = list[PurePath]()
    for place, folders, files in os.walk(folder, onerror=_fail):
        links = (name for name in folders if Path(place, name).is_symlink())
        entries += [Path(place, name).relative_to(folder) for name in (*files, *links)]
    return sorted(entries)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists; what cannot be removed stays."""
    # Files and links are none of the first, folders none of the second.
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink()


def _is_running(host: str, process: str) -> bool:
    """Return whether a process may still run; True for other hosts."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return host != socket.gethostname()
    except (ValueError, OSError):
        pass
    return True


def remove_partial(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left half written, and put back what they had moved aside.

    With `name`, what was to become `folder`/`name`, unless its process still runs; else everything
    in `folder` and below it, where no other process writes.
    """
    pattern = "~*~*" if name is None else f"~*~{glob.escape(name)}"
    for prefix in (REPLACED, PARTIAL):
        stale = folder.glob(f"{'**/' if name is None else ''}{prefix}{pattern}")
        for path in sorted(stale):
            if name is not None and _is_running(*path.name.split("~", 3)[1:3]):
                continue
            if prefix == REPLACED and not final_name(path).exists():
                path.replace(final_name(path))
            remove(path)


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
    target, longest = path if path.name else path.resolve(), os.statvfs(parent).f_namemax
    length = len(os.fsencode(_temporary(target).name)) if target.name else 0
    rules = {
        "exists already; choose another output or pass --overwrite": exists and not overwrite,
        f"{link} is a link that leads nowhere; remove it": link.is_symlink() and not link.exists(),
        f"{parent} is a file, expected a folder": not parent.is_dir(),
        f"no permission to write in {parent}": not os.access(parent, os.W_OK),
        "is the root of all folders; choose another output": not target.name,
        "the name is too long for a file; choose a shorter one": length > longest,
    }
    refuse(path, rules)


@contextlib.contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; it is removed at the end, unless it was
    renamed.

    An error without a file name, such as that of a full disk, gets that of the temporary path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_partial(path.parent, path.name)
    temporary = _temporary(path)
    try:
        yield temporary
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(temporary)
        raise
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


def read_bytes(path: Path, limit: int = MAX_BYTES, head: int = -1, remedy: str = "") -> bytes:
    """Return the content of a file of at most `limit` bytes, or its first `head`; `InputError` if
    unreadable, with the remedy for too large a file.
    """
    try:
        status = path.stat()
        # To open a pipe waits for who writes to it, and a device may never end.
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            instead = "write its content to a file and pass that"
            raise InputError(f"{path}: a pipe or device, expected a file; {instead}")
        if head < 0 and status.st_size > limit:
            raise InputError(f"{path}: {status.st_size} bytes, at most {limit} are read{remedy}")
        with path.open("rb") as file:
            return file.read(head)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path, limit: int = MAX_JSON) -> object:
    """Return the content of a JSON file of at most `limit` bytes (`MAX_JSON`).

    Raises
    ------
    InputError
        The file cannot be read, is too large, or is not JSON.
    """
    content = read_bytes(path, limit)
    with reworded((ValueError, RecursionError), f"{path}: not valid JSON"):
        return json.loads(content.decode("utf-8"))


def bytes_of(path: Path) -> int:
    """Return the number of bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(READ_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _about(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


# --- manifest ----------------------------------------------------------------------------------

MANIFEST_FORMAT = 1
MANIFEST = "manifest.json"


def _listed_names(folder: Path) -> list[str]:
    """Names that the manifest of a folder lists."""
    return sorted(str(path) for path in files_below(folder) if str(path) != MANIFEST)


def write_manifest(folder: Path) -> None:
    """Write the manifest of `folder`, after all of its files."""
    entries = {name: _about(folder / name) for name in _listed_names(folder)}
    text = json.dumps({"format": MANIFEST_FORMAT, "files": entries}, indent=1)
    (folder / MANIFEST).write_text(f"{text}\n")


def verify_manifest(folder: Path) -> None:
    """Check that `folder` contains the files of its manifest, unchanged, and no others.

    Raises
    ------
    InputError
        There is no manifest, or it has another format; or names every file that is missing,
        differs, or is not listed.
    """
    manifest: Any = read_json(folder / MANIFEST)
    damaged = f"{folder}/{MANIFEST}: damaged, expected sizes and checksums of files"
    with reworded((KeyError, TypeError, AttributeError), damaged):
        version, entries = manifest["format"], dict(manifest["files"].items())
        sizes = {name: entry["bytes"] for name, entry in entries.items()}
    if version != MANIFEST_FORMAT:
        raise InputError(f"{folder}: format {version}, this aam reads {MANIFEST_FORMAT}")
    problems = []
    for name, entry in entries.items():
        path, is_same = folder / name, False
        leads_out = Path(name).is_absolute() or ".." in Path(name).parts
        with contextlib.suppress(OSError, ValueError):
            # What is no file may never end, and what has another size need not be read.
            has_size = not leads_out and path.is_file() and path.stat().st_size == sizes[name]
            is_same = has_size and entry == _about(path)
        if not is_same:
            problems.append(f"{folder}/{name}: missing or damaged (its checksum differs)")
    if unlisted := sorted(set(_listed_names(folder)) - set(entries)):
        problem = f"contains files that {MANIFEST} does not list: {shown(unlisted)}"
        problems.append(
            f"{folder}: {problem}; remove them, or copy the folder again from its source"
        )
    if problems:
        raise InputError(*problems)
