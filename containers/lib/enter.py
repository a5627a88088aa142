"""Run a command in an image: the one way into an image for make, nox and SLURM.

The environment inside is clean. Variables that a job needs (SLURM, ranks, threads, visible devices,
NCCL, AAM_*) are passed on; all others are not. The current folder, the data, and the shared and
local storage of the site are bound under their own paths. Caches lie on the local disk of the job.
The program ends in exec, so exit status and signals are those of the command. Needs Python 3.11 or
newer and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from aam.device.environment import CACHES, SHARED_CACHES, VISIBLE, usable_shared_cache
from containers.lib.engine import PREFIXES, find_engine
from containers.lib.errors import InputError, error_message, raise_if_any
from containers.lib.sidecar import Sidecar, read_sidecar, sidecar_path

PROGRAM = "containers/run"
# Folders that are bound if they exist, and the paths they have on Cosmos where the variable is not
# set. A variable that is set must name a folder that exists.
STORAGE = {
    "AAM_DATA": "",
    "AAM_BENCH_DATA": "",
    "AAM_SHARED": "/cosmos/vast/scratch/{USER}",
    "AAM_LOCAL": "/scratch/{USER}/job_{SLURM_JOB_ID}",
}
# Variables that are passed on: names, and beginnings of names with a star at the end.
PASSED = """
    MASTER_ADDR MASTER_PORT RANK LOCAL_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE
    CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES
    TERM COLUMNS TZ http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY
    PYTHONHASHSEED SOURCE_DATE_EPOCH AAM_* SLURM_* PYTEST_*
    NCCL_* RCCL_* GLOO_* FI_* OMP_* MKL_* OPENBLAS_* TORCH_* PYTORCH_* MIOPEN_* HSA_* TRITON_*
    TORCHINDUCTOR_* TORCHDYNAMO_* ROCBLAS_* HIPBLASLT_* AMD_LOG_LEVEL AMD_SERIALIZE_*
    HIP_LAUNCH_BLOCKING CUDA_LAUNCH_BLOCKING GPU_MAX_HW_QUEUES
"""
IS_PASSED = re.compile("|".join(PASSED.split()).replace("*", r"\w*"))
GPU_DEVICES = ("/dev/kfd", "/dev/dri")
# Several of these variables together can hide all devices; only the first that is set is kept.
VISIBLE_DEVICES = {"rocm": VISIBLE["AMD"], "cuda": VISIBLE["NVIDIA"]}


# --- the command -------------------------------------------------------------------------------


def parse(words: list[str]) -> argparse.Namespace:
    """Return the parsed command line; everything after the image is the command."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, engine = parser.add_argument, os.environ.get("ENGINE", "")
    add("--engine", default=engine, help="a path, or none: no container (ENGINE)")
    switches = {
        "--nv": "use the host's NVIDIA driver; needed for NVIDIA GPUs",
        "--rocm": "use the host's ROCm libraries; the images have their own",
        "--contain": "hide home, /tmp and most of /dev of the host",
        "--print": "print the environment and the command, run nothing",
    }
    for name, text in switches.items():
        add(name, action="store_true", help=text)
    repeated = {
        "--bind": ("PATH[:TARGET[:ro]]", "bind this too"),
        "--env": ("NAME=VALUE", "set this variable inside too"),
    }
    for name, (metavar, text) in repeated.items():
        add(name, action="append", default=[], metavar=metavar, help=text)
    add("image", type=Path)
    add("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    if options.command[:1] == ["--"]:
        options.command = options.command[1:]
    return options


def default_storage(name: str, environment: Mapping[str, str]) -> str:
    """Return the path that a variable of `STORAGE` stands for where it is not set."""
    names = {key: environment.get(key, "") for key in ("USER", "SLURM_JOB_ID")}
    return STORAGE[name].format(**names)


def storage_folders(environment: Mapping[str, str], problems: list[str]) -> list[str]:
    """Return the folders of `STORAGE` that exist."""
    folders = []
    for name in STORAGE:
        path = environment.get(name, default_storage(name, environment))
        if path and Path(path).is_dir():
            folders.append(str(Path(path).absolute()))
        elif environment.get(name):
            problems.append(f"{name}={path}: no such folder; unset it or name one that exists")
    return folders


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return a folder of this job for caches: on its local disk, else among temporary files, never
    at home.
    """
    local = Path(environment.get("AAM_LOCAL") or default_storage("AAM_LOCAL", environment))
    parent = local if local.is_dir() else Path(environment.get("TMPDIR") or "/tmp")
    return parent / f"aam-cache-{os.getuid()}-{environment.get('SLURM_JOB_ID', 'local')}"


def inner_environment(
    environment: Mapping[str, str], flavour: str, caches: Path, assignments: list[str]
) -> dict[str, str]:
    """Return the variables that are set inside.

    Parameters
    ----------
    environment
        The variables outside, from which some are passed on.
    flavour
        The flavour of the image; it decides which name of visible devices is kept.
    caches
        The folder of all caches.
    assignments
        ``NAME=VALUE`` from ``--env``.
    """
    inside = {name: value for name, value in environment.items() if IS_PASSED.fullmatch(name)}
    visible = VISIBLE_DEVICES.get(flavour, VISIBLE_DEVICES["cuda"])
    for name in [name for name in visible if name in inside][1:]:
        del inside[name]
    kept = usable_shared_cache(environment)
    places = dict.fromkeys(SHARED_CACHES, caches if kept is None else kept)
    for name, folder in CACHES.items():
        inside.setdefault(name, str(places.get(name, caches) / folder))
    return {**inside, **dict(assignment.split("=", 1) for assignment in assignments)}


def bind_options(
    options: argparse.Namespace, folders: list[str], caches: Path, problems: list[str]
) -> list[str]:
    """Return everything that is bound, each once; the current folder first."""
    requested = list(options.bind)
    paths = [str(Path.cwd()), *folders, str(caches)]
    if options.contain:
        # A contained /tmp is 64 MB in memory, and the host's devices are missing unless they are
        # bound.
        requested.append(f"{caches}/tmp:/tmp")
        paths += [device for device in GPU_DEVICES if Path(device).exists()]
    sources = {bind: bind for bind in paths} | {bind: bind.split(":")[0] for bind in requested}
    for bind, source in sources.items():
        if "," in bind or ":" in source:
            wrong = "an engine cannot bind a path with a comma or a colon; rename it"
            problems.append(f"{bind}: {wrong}")
        elif not Path(source).exists() and not source.startswith(str(caches)):
            problems.append(f"--bind {bind}: {source} does not exist")
    return list(sources)


# The words of a command, and the environment that it runs in.
Command = tuple[list[str], dict[str, str]]


def without_container(options: argparse.Namespace, caches: Path) -> Command:
    """Return the command itself with the same caches and devices: for a site that has the
    environment as modules.
    """
    dropped = ("PYTHONSTARTUP", *VISIBLE_DEVICES["cuda"])
    outside = {name: value for name, value in os.environ.items() if name not in dropped}
    inside = inner_environment(os.environ, "cuda", caches, options.env)
    return options.command, {**outside, "PYTHONNOUSERSITE": "1", **inside}


def provenance(sidecar: Sidecar) -> dict[str, str]:
    """Return the variables from which aam records image and commit in run.json."""
    commit = f"{sidecar.git['commit']}{'+' if sidecar.git['dirty'] else ''}"
    return {"AAM_IMAGE": f"sha256:{sidecar.image['sha256']}", "AAM_REVISION": commit}


def in_container(options: argparse.Namespace, binds: list[str], caches: Path) -> Command:
    """Return the command that enters the image, and the environment for the engine."""
    engine = find_engine(options.engine)
    sidecar = read_sidecar(options.image) if sidecar_path(options.image).exists() else None
    layer = options.image.with_name(sidecar.layer["file"]) if sidecar and sidecar.layer else None
    if layer and not layer.is_file():
        raise InputError(f"{layer}: is missing; it holds the environment of {options.image.name}")
    # Without --no-eval an engine runs values such as $(x) through a shell.
    command = [engine.command, "exec", "--cleanenv", "--no-eval", "--pwd", str(Path.cwd())]
    command += [flag for flag in ("--nv", "--rocm", "--contain") if getattr(options, flag[2:])]
    command += ["--overlay", f"{layer}:ro"] if layer else []
    command += [word for bind in binds for word in ("--bind", bind)]
    inside = inner_environment(os.environ, sidecar.flavour if sidecar else "", caches, options.env)
    inside |= provenance(sidecar) if sidecar else {}
    # Both engines read their own prefix; what the caller set under them is not passed on.
    prefixes = tuple(f"{prefix}ENV_" for prefix in PREFIXES)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(prefixes)}
    for prefix in prefixes:
        environment |= {f"{prefix}{name}": value for name, value in inside.items()}
    return [*command, str(options.image), *options.command], environment


def command_and_environment(options: argparse.Namespace) -> Command:
    """Check the options, make the folders of the caches, and return the command with its
    environment.

    Raises
    ------
    InputError
        All problems at once.
    """
    problems: list[str] = []
    caches = cache_folder(os.environ)
    if not options.command:
        problems.append(f"COMMAND: is missing; for example: {PROGRAM} IMAGE aam --help")
    problems += [f"--env {word}: expected NAME=VALUE" for word in options.env if "=" not in word]
    folders = storage_folders(os.environ, problems)
    if (kept := usable_shared_cache(os.environ)) is not None:
        # What is bound must exist; where that fails the list of problems says so.
        with contextlib.suppress(OSError):
            kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        folders.append(str(kept.absolute()))
    binds = bind_options(options, folders, caches, problems)
    if options.engine != "none" and not options.image.is_file():
        hint = "make container-rocm, -cuda or -cpu builds one"
        problems.append(f"{options.image}: no such image; {hint}")
    raise_if_any(problems)
    for folder in {*CACHES.values(), *(["tmp"] if options.contain else [])}:
        (caches / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    if caches.stat().st_uid != os.getuid():
        hint = "name a folder of your own with TMPDIR or AAM_LOCAL"
        raise InputError(f"{caches}: belongs to another user; {hint}")
    if options.engine == "none":
        return without_container(options, caches)
    return in_container(options, binds, caches)


def main(words: list[str]) -> int:
    """Replace this process by the command; return an exit status only when that fails."""
    options = parse(words)
    try:
        command, environment = command_and_environment(options)
        if options.print:
            shown = sorted(name for name in environment if name.startswith(PREFIXES))
            print(*(f"{name}={shlex.quote(environment[name])}" for name in shown), sep="\n")
            print(shlex.join(command))
            return 0
        os.execvpe(command[0], command, environment)
    except InputError as error:
        print(error_message(PROGRAM, error), file=sys.stderr)
        return error.status
    except OSError as error:
        print(f"{PROGRAM}: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
