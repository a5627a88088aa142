"""Folders of results: run.json lists what a command writes there, and only that is ever removed. A
folder with other files is refused.

A listed name is the path of a file below the folder. Its parts may hold ``*``, as in
``figures/*.svg``, and a last part ``**`` stands for all files below. A folder itself is no listed
name: it goes when it is left empty. The first part is a name, or its beginning up to a hyphen, as
in ``fold-*``. A name that says less, in a run.json of others, is ignored.

A lock says which process writes there.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import IO, Any

from aam.errors import InputError, problem, refuse, shown
from aam.files import atomic
from aam.files.atomic import PARTIAL, REPLACED

log = logging.getLogger("aam")

# The description of what a command has done, in the folder of its results.
RUN = "run.json"
LIST = "outputs"

# What ``--memory-profile`` adds.
MEMORY_FILES = ("memory.json",)

# The answers to DOME, next to a report, and what its page shows.
DOME, PAGE = "dome.json", "report.json"

# The figures of a report, and of each of its targets.
FIGURES = tuple(f"figures/{name}.{kind}" for name in ("*", "[0-9]*-*/*") for kind in ("svg", "png"))

LOCK = ".lock"

# What `aam explain` writes about a run goes with the run.
EXPLANATION = "explanation"

# Names that `aam` keeps for itself.
HIDDEN = (LOCK, PARTIAL, REPLACED)

# The first part of a listed name, so that not all files match.
FIRST_PART = re.compile(r"[^*?\[\]]+(?<=-)\*|[^*?\[\]]+")


def _entries(folder: Path) -> list[PurePath]:
    """Return the relative paths of files and links; locks are left out."""
    paths = atomic.files_below(folder)
    return [path for path in paths if path.name != LOCK and not path.name.startswith(f"{LOCK}-")]


def _matches(path: PurePath, name: str) -> bool:
    """Return whether a listed name stands for a path."""
    parts, pattern = path.parts, name.split("/")
    if pattern[-1] == "**" and len(parts) >= len(pattern):
        parts, pattern = parts[: len(pattern) - 1], pattern[:-1]
    return len(parts) == len(pattern) and all(map(fnmatchcase, parts, pattern))


def _listed(folder: Path) -> tuple[str, list[str]] | None:
    """Return the command that wrote to a folder and the names that it listed; None without such a
    list.
    """
    with contextlib.suppress(InputError, LookupError, TypeError, AttributeError):
        record: Any = atomic.read_json(folder / RUN)
        command, names = record["command"], record[LIST]
        if not isinstance(command, str) or not isinstance(names, list):
            return None
        parts = {name: name.split("/") for name in names}
        safe = [n for n, p in parts.items() if FIRST_PART.fullmatch(p[0]) and ".." not in p]
        return command, safe
    return None


def _is_listed(path: PurePath, lists: Mapping[PurePath, Sequence[str]]) -> bool:
    """Return whether a path is listed, by the folders above it that have lists; what a killed
    process left is listed by the name that it was to get.
    """
    final = PurePath(*(atomic.final_name(part).name for part in path.parts))
    return any(
        final.is_relative_to(place) and _matches(final.relative_to(place), name)
        for place, names in lists.items()
        for name in names
    )


def check_output_file(path: Path, overwrite: bool, inputs: Iterable[Path] = ()) -> None:
    """Refuse an output file that exists unless it is to be overwritten, that is read too, or that
    belongs to results.

    Raises
    ------
    InputError
        The file cannot be written, is a folder or one of `inputs`, or is listed in the run.json of
        a folder above it.
    """
    atomic.check_writable(path, overwrite)
    if not path.exists():
        return
    if path.is_dir():
        raise InputError(f"{path} is a folder, expected a file; name one in it")
    if any(source.exists() and path.samefile(source) for source in inputs):
        raise InputError(f"{path}: is read by the same command; choose another output")
    file = path.parent.resolve() / path.name
    for folder in file.parents:
        command, names = _listed(folder) or ("", [])
        if any(_matches(file.relative_to(folder), name) for name in names):
            owner = f"belongs to the results of `aam {command}` in {folder}"
            raise InputError(f"{path}: {owner}; choose another output")


def check_replaced_file(path: Path, command: str, is_result: Callable[[Path], bool]) -> None:
    """Refuse to replace a file that is no earlier result of the same command; an empty file holds
    nothing.

    Raises
    ------
    InputError
        The file exists, and `is_result` says that the command did not write it.
    """
    if path.exists() and path.stat().st_size and not is_result(path):
        foreign = f"is not empty and was not written by `aam {command}`, so it was left untouched"
        raise InputError(problem(path, foreign, remedy="choose another output"))


@dataclass(frozen=True)
class OutputFolder:
    """The folder that a command writes results to.

    Attributes
    ----------
    folder : Path
    command : str
        Name of the command; it replaces only what the same command wrote.
    outputs : sequence of str
        Names that the command may write, as run.json lists them.
    inputs : sequence of Path
        What the command reads.
    overwrite : bool
        Whether results of an earlier call are replaced; a folder with other files is refused.
    resumable : bool
        Whether the command has ``--resume-from``.
    """

    folder: Path
    command: str
    outputs: Sequence[str]
    inputs: Sequence[Path] = ()
    overwrite: bool = False
    resumable: bool = False

    def check(self) -> list[PurePath]:
        """Return the files of an earlier call that are to be removed, as relative paths; nothing is
        removed yet.

        Raises
        ------
        InputError
            Results may not be written there; the message says everything that stands against it.
        """
        folder = self.folder
        atomic.check_writable(folder, overwrite=True)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file, expected a folder")
        if folder.is_dir() and not os.access(folder, os.W_OK):
            raise InputError(f"{folder}: no permission to write there")
        if not folder.exists() or all(path.name.startswith(HIDDEN) for path in folder.iterdir()):
            return []
        if (listed := _listed(folder)) is None:
            foreign = "is not empty and was not created by this version of aam, so it was left"
            remedy = "Choose another folder or clear it yourself."
            raise InputError(f"{folder} {foreign} untouched. {remedy}")
        command, names = listed
        if command == self.command and not self.overwrite:
            more = ", or continue an interrupted run with --resume-from auto"
            remedy = f"choose another folder, or pass --overwrite{more if self.resumable else ''}"
            raise InputError(f"{folder} holds results already; {remedy}")
        entries, lists = _entries(folder), {PurePath(): names}
        author, explained = _listed(folder / EXPLANATION) or ("", [])
        if author == "explain" and not (folder / EXPLANATION).is_symlink():
            lists[PurePath(EXPLANATION)] = explained
        unlisted = [str(path) for path in entries if not _is_listed(path, lists)]
        place = folder.resolve()
        read = [str(x) for x in self.inputs if x.resolve().is_relative_to(place)]
        others = f"holds results of `aam {command}`, which are left alone; choose another folder"
        deleted = f"--overwrite would delete what is read: {shown(read)}; choose another folder"
        foreign = f"holds {len(unlisted)} files that `aam {self.command}` did not write: "
        foreign += f"{shown(unlisted)}; move them or choose another folder"
        rules = {others: command != self.command, deleted: bool(read), foreign: bool(unlisted)}
        refuse(folder, rules)
        return entries

    def begin(self, record: Mapping[str, Any]) -> None:
        """Remove the results of an earlier call and write run.json, in a folder that exists."""
        self._remove(self.check())
        self._write_record(self.folder, record)

    def _remove(self, paths: Iterable[PurePath]) -> None:
        """Remove files and links, but no run.json, which is replaced, and the folders that this
        leaves empty.
        """
        for path in paths:
            if path == PurePath(RUN):
                continue
            (self.folder / path).unlink()
            with contextlib.suppress(OSError):
                for above in [*path.parents][:-1]:
                    (self.folder / above).rmdir()

    def _write_record(self, folder: Path, content: Mapping[str, Any]) -> None:
        record = {**content, "command": self.command, LIST: list(self.outputs)}
        atomic.write_text(folder / RUN, json.dumps(record, indent=1) + "\n")

    @contextlib.contextmanager
    def replaced(self, about: Mapping[str, Any]) -> Iterator[Path]:
        """Yield a new folder that takes the place of this one on success; on an error this one
        stays as it was.

        Where the user works in the folder, it stays, and results are moved in one by one, run.json
        first.
        """
        place = self.folder.resolve()
        with atomic.partial_folder(place) as partial:
            self._write_record(partial, about)
            yield partial
            removed = self.check()
            if not Path.cwd().is_relative_to(place):
                atomic.put_folder(partial, place)
                return
            self._remove(removed)
            for path in sorted(_entries(partial), key=lambda path: path != PurePath(RUN)):
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (partial / path).replace(place / path)


# --- lock --------------------------------------------------------------------------------------


def _try_lock(file: IO[str], kind: int) -> bool:
    """Take a lock, and return whether no other process stood against it; a file system without
    locks is warned of.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        folder = Path(file.name).parent
        advice = "start one process there at a time"
        log.warning("%s: this file system has no locks (%s); %s", folder, error, advice)
    return True


def check_unlocked(folder: Path) -> None:
    """Raise `InputError` where another process has locked `folder`; writes nothing, not even a new
    lock.
    """
    if (folder / LOCK).exists():
        with lock_folder(folder, shared=True, mode="r"):
            pass


@contextlib.contextmanager
def lock_folder(folder: Path, shared: bool = False, mode: str = "a") -> Iterator[None]:
    """Lock `folder` for this process, or for all that share it; the system releases the lock when
    the process ends, however it ends.

    Raises
    ------
    InputError
        Another process holds the lock.
    """
    with (folder / LOCK).open(mode) as file:
        if not _try_lock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            remedy = "wait for it, or choose another"
            raise InputError(f"{folder}: another process is writing there; {remedy}")
        yield


@contextlib.contextmanager
def claim(folder: Path, part: str, wait: bool = False) -> Iterator[bool]:
    """Claim a part of the work in a shared folder; yield whether this process has it.

    With `wait` it has it once no other process does. A killed process has no claims.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{LOCK}-{part}").open("a") as file:
        if wait:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield wait or _try_lock(file, fcntl.LOCK_EX)
