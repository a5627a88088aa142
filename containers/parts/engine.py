"""The container engine: which one is here, what it can do, and how it is called."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from parts.whole import FailedError, InputError

NAMES = ("apptainer", "singularity")
PREFIXES = ("APPTAINER", "SINGULARITY")
GET_ONE = "load its module (Cosmos: module load singularitypro) or install Apptainer"
PROBE_SECONDS = 120

# What the engine, apt and pip say, and what it means to whoever started the build.
MEANINGS = (
    (r"no space left on device|disk quota exceeded", "no space is left: name a larger disk with AAM_SCRATCH=FOLDER"),
    (
        r"DO NOT MATCH THE HASHES|Hashes are required",
        "a package is not the one that the lock names; nothing of it was used: check containers/lock and make lock",
    ),
    (
        r"manifest unknown|MANIFEST_UNKNOWN|does not match (the )?(expected )?digest|requested access .* denied",
        "the registry has no image with this digest: make pin asks it, and BASE=NAME@sha256:... names another",
    ),
    (
        r"(?i)no such host|could not resolve|temporary failure (in name )?resol|network is unreachable"
        r"|connection refused|i/o timeout|TLS handshake timeout|NewConnectionError|NameResolutionError",
        "no network, or not to that host: build where it is, or name a local root folder or SIF with BASE=PATH",
    ),
    (
        r"Unable to locate package python3",
        "the base has no packages of this Python: name one that it has, IMAGE_PYTHON=3.11",
    ),
    (
        r"no wheel for Python",
        "the lock has no PyTorch for this Python: another IMAGE_PYTHON, or make lock on a network",
    ),
)


@dataclass(frozen=True)
class Engine:
    """A container engine on this machine."""

    command: str
    name: str
    version: str

    @functools.cached_property
    def _build_help(self) -> str:
        return subprocess.run([self.command, "build", "--help"], capture_output=True, text=True).stdout

    @property
    def builds_reproducibly(self) -> bool:
        """Whether it can make the same bytes from the same sources."""
        return "--reproducible" in self._build_help

    @property
    def takes_arguments(self) -> bool:
        """Whether a definition can be given arguments."""
        return "--build-arg" in self._build_help


def find_engine(asked: str = "") -> Engine:
    """The engine that was asked for, or the first of those that are known."""
    names = (asked,) if asked else NAMES
    command = next(filter(None, map(shutil.which, names)), None)
    if command is None:
        raise InputError(f"ENGINE: {' and '.join(names)} not found on PATH; {GET_ONE}, or name one with ENGINE=PATH")
    said = subprocess.run([command, "--version"], capture_output=True, text=True)
    found = re.search(r"(?i)\b((?:apptainer|singularity)\S*) version v?(\d+\.\d+\S*)", said.stdout)
    if said.returncode or not found:
        shown = (said.stdout + said.stderr).strip()[:200]
        raise InputError(
            f"ENGINE: {command} is no Apptainer or Singularity (--version says {shown!r}); name one with ENGINE=PATH,",
            f"  or {GET_ONE}",
        )
    return Engine(command, found[1], found[2])


def scratch() -> Path:
    """A folder of this user's for large temporary files, off the home folder."""
    named = os.environ.get("AAM_SCRATCH")
    folder = Path(named) if named else Path(tempfile.gettempdir()) / f"aam-{getpass.getuser()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"AAM_SCRATCH: {folder}: {error.strerror}; name a folder that can be written") from error
    if folder.stat().st_uid != os.getuid():
        raise InputError(f"AAM_SCRATCH: {folder} belongs to another user; name a folder of your own")
    return folder


def engine_environment() -> dict[str, str]:
    """This process's environment with the engine's temporary files and caches off home, under both its names."""
    environment = dict(os.environ)
    for name in ("TMPDIR", "CACHEDIR"):
        chosen = next(filter(None, (os.environ.get(f"{prefix}_{name}") for prefix in PREFIXES)), None)
        folder = Path(chosen) if chosen else scratch() / name.lower()
        folder.mkdir(parents=True, exist_ok=True)
        environment |= {f"{prefix}_{name}": str(folder) for prefix in PREFIXES}
    return environment


def meaning(output: str) -> list[str]:
    """What a failed build's output says in plain words."""
    return [said for pattern, said in MEANINGS if re.search(pattern, output)]


def stop(process: subprocess.Popen[str]) -> None:
    """End a process and everything it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(timeout=15)


def call(command: list[str], what: str, folder: Path | None = None, extra: dict[str, str] | None = None) -> None:
    """Run the engine, showing what it says; when it fails, say what that means.

    Its process is ended with ours, so that whoever interrupts a build leaves nothing behind.
    """
    print(f"+ {' '.join(command)}", file=sys.stderr, flush=True)
    environment = {**engine_environment(), **(extra or {})}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, text=True, errors="replace", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    lines: list[str] = []
    try:
        for line in process.stdout or ():
            sys.stderr.write(line)
            lines.append(line)
        status = process.wait()
    except BaseException:
        stop(process)
        raise
    if status:
        output = "".join(lines)
        said = meaning(output) or [line.strip() for line in lines[-5:] if line.strip()]
        raise FailedError(f"{what} failed (exit status {status}):", *(f"  {each}" for each in said))


# --- may this user build? ------------------------------------------------------------------------------------

PROBE = """Bootstrap: localimage
From: {root}
%post
    : > /probe
    chown 1:1 /probe
"""


# Beyond sh and chown they are what the fakeroot script calls, where an engine uses that.
PROBE_PROGRAMS = ("sh", "chown", "cat", "cut", "env", "expr", "getopt", "id", "rm", "sed", "tr", "uname")


def small_root(folder: Path) -> Path:
    """A root folder with a few programs of this machine and the libraries they need."""
    root = folder / "root"
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "usr", "var/tmp", "root"):
        (root / name).mkdir(parents=True)
    for origin in filter(None, map(shutil.which, PROBE_PROGRAMS)):
        shutil.copy(origin, root / "bin")
        linked = subprocess.run(["ldd", origin], capture_output=True, text=True).stdout
        for library in re.findall(r"(/\S+) \(0x", linked):
            place = root / library.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, place)
    return root


def may_build(engine: Engine) -> str:
    """Why this user cannot build a definition here; empty when a tiny one could really be built.

    As a package manager would, it gives a file to another user, which takes root, subordinate ids or fakeroot.
    """
    if not engine.takes_arguments:
        return f"{engine.name} {engine.version} takes no arguments for a definition (no build --build-arg)"
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="probe-") as name:
        folder = Path(name)
        try:
            (folder / "probe.def").write_text(PROBE.format(root=small_root(folder)))
        except OSError as error:
            return f"no definition could be tried: {error}"
        command = [engine.command, "build", "--sandbox", f"{name}/out", f"{name}/probe.def"]
        try:
            done = subprocess.run(
                command, env=engine_environment(), capture_output=True, text=True, timeout=PROBE_SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"building three lines took longer than {PROBE_SECONDS} s"
        subprocess.run(["chmod", "-R", "u+rwX", name], capture_output=True)
    said = [line.partition(":")[2].strip() for line in done.stderr.splitlines() if line.startswith(("FATAL", "ERROR"))]
    return "" if done.returncode == 0 else " / ".join(said) or done.stderr.strip()[-200:] or "unknown"
