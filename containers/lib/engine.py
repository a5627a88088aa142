"""The container engine: which one is installed, what it can do, and how it is called."""

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

from containers.lib.errors import FailedError, InputError

NAMES = ("apptainer", "singularity")
PREFIXES = ("APPTAINER", "SINGULARITY")
HOW_TO_INSTALL = "load its module (Cosmos: module load singularitypro) or install Apptainer"
PROBE_SECONDS = 120

# What the engine, apt and pip print, and what it means for the user.
EXPLANATIONS = (
    (
        r"no space left on device|disk quota exceeded",
        "no space is left: name a larger disk with AAM_SCRATCH=FOLDER",
    ),
    (
        r"DO NOT MATCH THE HASHES|Hashes are required",
        "a package differs from the one in the lock and was not installed: check containers/lock "
        "and make lock",
    ),
    (
        r"manifest unknown|MANIFEST_UNKNOWN|does not match (the )?(expected )?digest|requested "
        r"access .* denied",
        "the registry has no image with this digest: make pin asks it, and BASE=NAME@sha256:... "
        "names another",
    ),
    (
        r"(?i)no such host|could not resolve|temporary failure (in name )?resol|network is "
        r"unreachable"
        r"|connection refused|i/o timeout|TLS handshake "
        r"timeout|NewConnectionError|NameResolutionError",
        "no network, or not to that host: build where there is one, or name a local root folder "
        "or SIF with BASE=PATH",
    ),
    (
        r"(?m)^(E|W|Err)\b.*snapshot\.ubuntu\.com",
        "the archive of snapshots is not reached or lacks this date: SNAPSHOT=none takes the "
        "packages of today",
    ),
    (
        r"fake(root|d).*GLIBC_",
        "this machine's fakeroot does not run in the base: ROUTE=layer builds without it, or "
        "build as root",
    ),
    (
        r"cgroups in hybrid mode not supported",
        "crun cannot run on this host's cgroups: install runc, and BUILDAH_RUNTIME=runc in front "
        "of the command",
    ),
    (
        r"(?i)exec format error|image.s architecture .* could not run",
        "the base is for another architecture than this machine: name the digest for this one "
        "with DIGEST=sha256:...",
    ),
    (
        r"Unable to locate package python3",
        "the base has no packages for this Python: name a version that it has, such as "
        "IMAGE_PYTHON=3.11",
    ),
    (
        r"no wheel for Python",
        "the lock has no PyTorch for this Python: choose another IMAGE_PYTHON, or run make lock "
        "on a network",
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
        return subprocess.run(
            [self.command, "build", "--help"], capture_output=True, text=True
        ).stdout

    @property
    def builds_reproducibly(self) -> bool:
        """Whether the engine can build the same bytes from the same sources."""
        return "--reproducible" in self._build_help

    @property
    def takes_arguments(self) -> bool:
        """Whether a definition can take arguments."""
        return "--build-arg" in self._build_help


def find_engine(requested: str = "") -> Engine:
    """Return the requested engine, or else the first of `NAMES` on PATH."""
    names = (requested,) if requested else NAMES
    command = next(filter(None, map(shutil.which, names)), None)
    if command is None:
        raise InputError(
            f"ENGINE: {' and '.join(names)} not found on PATH; {HOW_TO_INSTALL}, or name one "
            "with ENGINE=PATH"
        )
    done = subprocess.run([command, "--version"], capture_output=True, text=True)
    match = re.search(r"(?i)\b((?:apptainer|singularity)\S*) version v?(\d+\.\d+\S*)", done.stdout)
    if done.returncode or not match:
        printed = (done.stdout + done.stderr).strip()[:200]
        raise InputError(
            f"ENGINE: {command} is not Apptainer or Singularity (--version prints {printed!r}); "
            "name one with"
            " ENGINE=PATH,",
            f"  or {HOW_TO_INSTALL}",
        )
    return Engine(command, name=match[1], version=match[2])


def scratch_folder() -> Path:
    """Return a folder of this user for large temporary files, outside the home folder; make it if
    needed.
    """
    requested = os.environ.get("AAM_SCRATCH")
    folder = (
        Path(requested) if requested else Path(tempfile.gettempdir()) / f"aam-{getpass.getuser()}"
    )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"AAM_SCRATCH: {folder}: {error.strerror}; name a folder that can be written"
        ) from error
    if folder.stat().st_uid != os.getuid():
        raise InputError(
            f"AAM_SCRATCH: {folder} belongs to another user; name a folder of your own"
        )
    return folder


def engine_environment() -> dict[str, str]:
    """Return the environment for the engine: temporary files and caches outside home, and no
    settings of Python.

    PYTHONPATH would let a program in the image import modules of this machine.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    for name in ("TMPDIR", "CACHEDIR"):
        requested = next(
            filter(None, (os.environ.get(f"{prefix}_{name}") for prefix in PREFIXES)), None
        )
        folder = Path(requested) if requested else scratch_folder() / name.lower()
        folder.mkdir(parents=True, exist_ok=True)
        environment |= {f"{prefix}_{name}": str(folder) for prefix in PREFIXES}
    return environment


def explain(output: str) -> list[str]:
    """Return explanations of the output of a failed build."""
    return [explanation for pattern, explanation in EXPLANATIONS if re.search(pattern, output)]


def stop_process_group(process: subprocess.Popen[str]) -> None:
    """End a process and everything that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(timeout=15)


def run_engine(
    command: list[str], what: str, folder: Path | None = None, extra: dict[str, str] | None = None
) -> str:
    """Run the engine, print its output and return it; after a failure raise `FailedError` with an
    explanation.

    When this process is interrupted, the engine is ended too.
    """
    print(f"+ {' '.join(command)}", file=sys.stderr, flush=True)
    environment = {**engine_environment(), **(extra or {})}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        errors="replace",
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines: list[str] = []
    try:
        for line in process.stdout or ():
            sys.stderr.write(line)
            lines.append(line)
        status = process.wait()
    except BaseException:
        stop_process_group(process)
        raise
    if status:
        reasons = explain("".join(lines)) or [line.strip() for line in lines[-5:] if line.strip()]
        raise FailedError(
            f"{what} failed (exit status {status}):", *(f"  {reason}" for reason in reasons)
        )
    return "".join(lines)


# --- whether this user may build a definition --------------------------------------------------

PROBE = """Bootstrap: localimage
From: {root}
%post
    : > /probe
    chown 1:1 /probe
"""
# `sh` and `chown` for the probe; the others are for the script fakeroot, which some engines use.
PROBE_PROGRAMS = (
    "sh",
    "chown",
    "cat",
    "cut",
    "env",
    "expr",
    "getopt",
    "id",
    "rm",
    "sed",
    "tr",
    "uname",
)


def make_small_root(folder: Path) -> Path:
    """Make a root folder with a few programs of this machine and their libraries, and return it."""
    root = folder / "root"
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "usr", "var/tmp", "root"):
        (root / name).mkdir(parents=True)
    for program in filter(None, map(shutil.which, PROBE_PROGRAMS)):
        shutil.copy(program, root / "bin")
        linked = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        for library in re.findall(r"(/\S+) \(0x", linked):
            copy = root / library.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, copy)
    return root


def why_not_build(engine: Engine) -> str:
    """Return why this user cannot build a definition here, or an empty text when a small one could
    be built.

    Like a package manager, the small definition gives a file to another user. That needs root,
    subordinate ids or fakeroot.
    """
    if not engine.takes_arguments:
        return (
            f"{engine.name} {engine.version} takes no arguments for a definition (no build "
            "--build-arg)"
        )
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="probe-") as name:
        folder = Path(name)
        try:
            (folder / "probe.def").write_text(PROBE.format(root=make_small_root(folder)))
        except OSError as error:
            return f"the test of a small definition could not be prepared: {error}"
        command = [engine.command, "build", "--sandbox", f"{name}/out", f"{name}/probe.def"]
        try:
            done = subprocess.run(
                command,
                env=engine_environment(),
                capture_output=True,
                text=True,
                timeout=PROBE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"building a definition of three lines took longer than {PROBE_SECONDS} s"
        subprocess.run(["chmod", "-R", "u+rwX", name], capture_output=True)
    if done.returncode == 0:
        return ""
    reasons = [
        line.partition(":")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith(("FATAL", "ERROR"))
    ]
    return " / ".join(reasons) or done.stderr.strip()[-200:] or "unknown"
