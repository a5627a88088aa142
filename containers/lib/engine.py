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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers.lib.errors import FailedError, InputError

NAMES = ("apptainer", "singularity")
PREFIXES = ("APPTAINER", "SINGULARITY")
HOW_TO_INSTALL = "load its module (Cosmos: module load singularitypro) or install Apptainer"
PROBE_SECONDS = 120

NO_NETWORK = (
    "no such host|could not resolve|temporary failure (in name )?resol|TLS handshake timeout"
)
NO_NETWORK += "|network is unreachable|connection refused|i/o timeout"
NO_NETWORK += "|(NewConnection|NameResolution)Error"
NO_DIGEST = "manifest unknown|does not match (the )?(expected )?digest|requested access .* denied"
ARCHITECTURE = "exec format error|image.s architecture .* could not run"
# What the engine, apt and pip print, and what it means for the user.
EXPLANATIONS = {
    "no space left on device|disk quota exceeded": "no space is left: AAM_SCRATCH=FOLDER",
    "DO NOT MATCH THE HASHES|Hashes are required": "a package differs from the one in the lock",
    NO_DIGEST: "the registry has no image with this digest: make pin, or BASE=NAME@sha256:...",
    NO_NETWORK: "no network: build where there is one, or BASE=PATH (a local root folder or SIF)",
    r"(?-i:^(E|W|Err)\b).*snapshot\.ubuntu\.com": "no packages of this date: SNAPSHOT=none",
    "fake(root|d).*GLIBC_": "fakeroot does not run in the base: ROUTE=layer, or build as root",
    "cgroups in hybrid mode not supported": "install runc and set BUILDAH_RUNTIME=runc",
    ARCHITECTURE: "the base is for another architecture than this machine: BASE or DIGEST",
    "Unable to locate package python3": "the base has no such Python: IMAGE_PYTHON=3.11",
    "no wheel for Python": "the lock has no PyTorch for this Python: IMAGE_PYTHON, or make lock",
}


@dataclass(frozen=True)
class Engine:
    """A container engine on this machine."""

    command: str
    name: str
    version: str

    @functools.cached_property
    def _build_help(self) -> str:
        command = [self.command, "build", "--help"]
        return subprocess.run(command, capture_output=True, text=True).stdout

    @property
    def builds_reproducibly(self) -> bool:
        """Whether the engine can build the same bytes from the same sources."""
        return "--reproducible" in self._build_help

    @property
    def takes_arguments(self) -> bool:
        """Whether a definition can take arguments."""
        return "--build-arg" in self._build_help


def find_program(requested: str, names: tuple[str, ...], hint: str) -> str:
    """Return the requested program, or else the first of `names` on PATH."""
    names = (requested,) if requested else names
    command = next(filter(None, map(shutil.which, names)), None)
    if command is None:
        found = f"ENGINE: {' and '.join(names)} not found on PATH"
        raise InputError(f"{found}; {hint}, or name one with ENGINE=PATH")
    return command


def find_engine(requested: str = "") -> Engine:
    """Return the requested engine, or else the first of `NAMES` on PATH."""
    command = find_program(requested, NAMES, HOW_TO_INSTALL)
    done = subprocess.run([command, "--version"], capture_output=True, text=True)
    match = re.search(r"(?i)\b((?:apptainer|singularity)\S*) version v?(\d+\.\d+\S*)", done.stdout)
    if done.returncode or not match:
        printed = (done.stdout + done.stderr).strip()[:200]
        wrong = f"{command} is not Apptainer or Singularity (--version prints {printed!r})"
        raise InputError(f"ENGINE: {wrong}; name one with ENGINE=PATH, or {HOW_TO_INSTALL}")
    return Engine(command, name=match[1], version=match[2])


def scratch_folder() -> Path:
    """Return a folder of this user for large temporary files, outside the home folder; make it if
    needed.
    """
    default = f"{tempfile.gettempdir()}/aam-{getpass.getuser()}"
    folder = Path(os.environ.get("AAM_SCRATCH") or default)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        problem = f"{folder}: {error.strerror}; name a folder that can be written"
        raise InputError(f"AAM_SCRATCH: {problem}") from error
    if folder.stat().st_uid != os.getuid():
        raise InputError(f"AAM_SCRATCH: {folder} belongs to another user; name one of your own")
    return folder


def engine_environment() -> dict[str, str]:
    """Return the environment for the engine: temporary files and caches outside home, and no
    settings of Python.

    PYTHONPATH would let a program in the image import modules of this machine.
    """
    environment = {k: value for k, value in os.environ.items() if not k.startswith("PYTHON")}
    for name in ("TMPDIR", "CACHEDIR"):
        requested = (os.environ.get(f"{prefix}_{name}") for prefix in PREFIXES)
        folder = Path(next(filter(None, requested), scratch_folder() / name.lower()))
        folder.mkdir(parents=True, exist_ok=True)
        environment |= {f"{prefix}_{name}": str(folder) for prefix in PREFIXES}
    return environment


def capture(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the engine without a terminal and return what it prints.

    Without a terminal it does not wait for a passphrase.
    """
    environment = engine_environment()
    options |= {"stdin": subprocess.DEVNULL, "errors": "replace"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, **options)


def exec_words(
    engine: Engine,
    image: Path,
    command: list[str],
    binds: Iterable[str] = (),
    overlay: Path | None = None,
) -> list[str]:
    """Return the engine's command that runs another one in an image, below /."""
    words = [engine.command, "exec", "--cleanenv", "--no-home", "--pwd", "/"]
    words += ["--overlay", f"{overlay}:ro"] if overlay else []
    return [*words, *(w for bind in binds for w in ("--bind", bind)), str(image), *command]


def explain(output: str) -> list[str]:
    """Return explanations of the output of a failed build."""
    return [text for pattern, text in EXPLANATIONS.items() if re.search(f"(?im){pattern}", output)]


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
    options: dict[str, Any] = {"cwd": folder, "env": environment, "start_new_session": True}
    options |= {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "errors": "replace"}
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, **options)
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
        head = f"{what} failed (exit status {status}):"
        raise FailedError(head, *(f"  {reason}" for reason in reasons))
    return "".join(lines)


# --- whether this user may build a definition --------------------------------------------------

PROBE = """Bootstrap: localimage
From: {root}
%post
    : > /probe
    chown 1:1 /probe
"""
# `sh` and `chown` for the probe; the others are for the script fakeroot, which some engines use.
PROBE_PROGRAMS = "sh chown cat cut env expr getopt id rm sed tr uname".split()  # noqa: SIM905


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
        return f"{engine.name} {engine.version} has no build --build-arg"
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="probe-") as name:
        folder = Path(name)
        try:
            (folder / "probe.def").write_text(PROBE.format(root=make_small_root(folder)))
        except OSError as error:
            return f"the test of a small definition could not be prepared: {error}"
        command = [engine.command, "build", "--sandbox", f"{name}/out", f"{name}/probe.def"]
        try:
            done = capture(command, timeout=PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            return f"building a definition of three lines took longer than {PROBE_SECONDS} s"
        subprocess.run(["chmod", "-R", "u+rwX", name], capture_output=True)
    if done.returncode == 0:
        return ""
    lines = (line.partition(":") for line in done.stderr.splitlines())
    reasons = [text.strip() for word, _, text in lines if word in ("FATAL", "ERROR")]
    return " / ".join(reasons) or done.stderr.strip()[-200:] or "unknown"
