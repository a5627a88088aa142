"""Machine, job and ranks of a process, read without torch, and variables to set before torch is
imported.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

log = logging.getLogger("aam")


# Lists of visible devices; two of them compose to no device. The first that is set stays.
VISIBLE = {
    "AMD": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "NVIDIA": ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
}

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

# Chips without hipBLASLt kernels.
NO_HIPBLASLT, HIPBLASLT = ("gfx1010",), "TORCH_BLAS_PREFER_HIPBLASLT"

OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"

# A waiting OpenMP thread spins: 1.4 times faster at rest, twice the processor time under load.
WAITING = ("OMP_WAIT_POLICY", "PASSIVE")

# TunableOp, off by default, and its search for faster products, which has crashed runs.
TUNABLE, TUNING = "PYTORCH_TUNABLEOP_ENABLED", "PYTORCH_TUNABLEOP_TUNING"

# The pools of OpenMP (torch, scikit-learn) and of the libraries of linear algebra below NumPy and
# SciPy.
THREADS: tuple[str, ...] = tuple(
    f"{pool}_NUM_THREADS" for pool in ("OMP", "OPENBLAS", "MKL", "BLIS")
)
THREADS += ("VECLIB_MAXIMUM_THREADS",)

# Caches of compiled kernels, and the folder of each below that of a job.
CACHES = {
    "MIOPEN_USER_DB_PATH": "miopen",
    "MIOPEN_CUSTOM_CACHE_DIR": "miopen",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "XDG_CACHE_HOME": "xdg",
    "TORCH_HOME": "torch",
}

WATCHED: tuple[str, ...] = (*VISIBLE["AMD"], *ALLOCATOR, OVERRIDE, TUNABLE, TUNING, *CACHES)
WATCHED += (HIPBLASLT, "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL", "HSA_XNACK")


class Change(NamedTuple):
    """A variable to set, or with None to unset, and the reason."""

    name: str
    value: str | None
    reason: str


# What `prepare_environment` changed in this process, for the doctor.
APPLIED: list[Change] = []


def required_changes(
    environment: Mapping[str, str],
    architectures: Sequence[str],
    hip: str | None,
    job: Path | None = None,
) -> list[Change]:
    """Changes of `environment` to make before torch is imported.

    Parameters
    ----------
    environment : mapping
    architectures : sequence of str
        AMD chips of the machine, such as gfx942.
    hip : str, optional
        ROCm version that torch is built for.
    job : Path, optional
        Folder of the job on a local disk; caches that are set nowhere go there.
    """
    names = [name for name in VISIBLE["NVIDIA" if hip is None else "AMD"] if name in environment]
    changes = [
        Change(name, None, f"composes with {names[0]} to no device at all") for name in names[1:]
    ]
    if hip is not None:
        changes += _rocm_changes(environment, architectures, hip)
    for name in CACHES if job is not None else ():
        if name not in environment:
            folder = str(Path(job or "", CACHES[name]))
            changes.append(Change(name, folder, "caches lie on the job's own disk"))
    return changes


def _rocm_changes(
    environment: Mapping[str, str], architectures: Sequence[str], hip: str
) -> list[Change]:
    changes = []
    for name in ALLOCATOR if int(hip.split(".")[0]) < 7 else ():
        setting = environment.get(name, "")
        words = setting.split(",")
        kept = ",".join(word for word in words if not word.startswith("expandable_segments"))
        if kept != setting:
            reason = f"expandable_segments hangs on ROCm below 7 (this is {hip})"
            changes.append(Change(name, kept or None, reason))
    if OVERRIDE in environment and "gfx942" in architectures:
        reason = "gfx942 has kernels of its own, those of another chip compute wrong"
        changes.append(Change(OVERRIDE, None, reason))
    if environment.get(TUNABLE) == "1" and environment.get(TUNING) != "0":
        reason = (
            "a search in a run has crashed on ROCm (pytorch #159070, #139116); results of a file "
            "are still used"
        )
        changes.append(Change(TUNING, "0", reason))
    if set(NO_HIPBLASLT) & set(architectures) and environment.get(HIPBLASLT) != "0":
        reason = f"hipBLASLt has no kernels for {', '.join(architectures)}"
        changes.append(Change(HIPBLASLT, "0", reason))
    return changes


def _architectures() -> list[str]:
    """Return the AMD chips that the kernel lists, such as gfx942, without torch."""
    chips = set()
    for path in Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        match = re.search(r"^gfx_target_version (\d+)$", path.read_text(), re.MULTILINE)
        if version := int(match[1]) if match else 0:
            major, minor, step = version // 10_000, version // 100 % 100, version % 100
            chips.add(f"gfx{major}{minor:x}{step:x}")
    return sorted(chips)


def hip_version() -> str | None:
    """Return the ROCm version that the installed torch is built for, without importing it; None for
    other builds.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    match = re.search(r"^hip\b.*= '([\d.]+)", text, re.MULTILINE)
    return match[1] if match else None


def _job_folder() -> Path | None:
    number = os.environ.get("SLURM_JOB_ID", "")
    disk = Path(
        os.environ.get("AAM_LOCAL") or f"/scratch/{os.environ.get('USER', '')}/job_{number}"
    )
    return disk / f"aam-cache-{os.getuid()}-{number}" if number and disk.is_dir() else None


def limit_threads(threads: int) -> None:
    """Let no thread pool of this process, or of a process that it starts, have more than `threads`
    threads.

    A library reads its variable when it is loaded; those that are loaded already are told. Only
    torch's own setting is left to `aam.device.platform.prepare_device`.
    """
    # `containers/` imports this module without any library.
    from threadpoolctl import threadpool_limits

    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    threadpool_limits(threads)


def prepare_environment(threads: int | None = None) -> None:
    """Apply `required_changes` to this process, and log them; `threads` limits all thread pools."""
    if threads is not None:
        limit_threads(threads)
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        os.environ.setdefault(*WAITING)
    hip = hip_version()
    for change in required_changes(os.environ, _architectures(), hip, _job_folder()):
        if change.value is None:
            del os.environ[change.name]
        else:
            os.environ[change.name] = change.value
        APPLIED.append(change)
        if change.name not in CACHES:
            log.warning("%s: %s, because %s", change.name, describe_change(change), change.reason)


def describe_change(change: Change) -> str:
    """Description of the change of a variable, for a message."""
    return "unset" if change.value is None else f"set to {change.value}"


def watched_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change what a device computes, or how fast."""
    return {name: environment[name] for name in WATCHED if name in environment}


def container() -> dict[str, str | None]:
    """Return path and digest of the container image in which this process runs."""
    path = os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER")
    return {"path": path, "digest": os.environ.get("AAM_IMAGE")}


def cache_folder() -> Path:
    """Return the cache of verdicts: ``AAM_CACHE``, or ``aam`` below ``XDG_CACHE_HOME`` or
    ~/.cache.
    """
    if folder := os.environ.get("AAM_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aam"


# --- processors and ranks ----------------------------------------------------------------------


def available_cores() -> int:
    """Return the number of cores that this process may use; macOS does not say, so there it is all
    of them.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def may_have_gpu() -> bool:
    """Return whether the system lists an NVIDIA or AMD GPU, which torch may still be unable to
    use.
    """
    return Path("/dev/kfd").exists() or any(Path("/dev").glob("nvidia[0-9]*"))


def numa_nodes(cards: Path = Path("/sys/class/drm")) -> list[int]:
    """Return the NUMA node of each GPU in the order of PCI addresses; -1 where the system does not
    say.
    """
    nodes: dict[str, int] = {}
    for path in cards.glob("renderD*/device/numa_node"):
        with contextlib.suppress(OSError, ValueError):
            nodes[path.parent.resolve().name] = int(path.read_text())
    return [nodes[address] for address in sorted(nodes)]


# Options that ask for several processes.
MULTI_PROCESS_OPTIONS = ("distributed", "data_parallel", "fsdp")

# Variables of rank, number of ranks and rank on the node: those of torchrun, and those of SLURM.
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


class Rank(NamedTuple):
    """The rank of this process, the number of ranks, and the rank on its node."""

    rank: int
    size: int
    local_rank: int


def rank_of(environment: Mapping[str, str]) -> Rank | None:
    """Return the place of this process among the ranks, or None where neither torchrun nor SLURM
    started it.
    """
    for names in RANK_VARIABLES:
        if all(environment.get(name, "").isdigit() for name in names):
            return Rank(*(int(environment[name]) for name in names))
    return None


def is_rank(runtime: Any) -> bool:
    """Return whether this process is one of the ranks of a run, which check its options when they
    have met.

    Then an error of one of them is the error of all, and is printed once.
    """
    return rank_of(os.environ) is not None and bool(process_options(runtime))


def is_later_rank(words: Sequence[str]) -> bool:
    """Whether this process is a rank but the first, by words of the command line as they came."""
    place = rank_of(os.environ)
    names = {f"--{name.replace('_', '-')}" for name in MULTI_PROCESS_OPTIONS}
    return place is not None and place.rank > 0 and not names.isdisjoint(words)


def process_options(runtime: Any) -> list[str]:
    """Return the options given that ask for several processes."""
    names = [name for name in MULTI_PROCESS_OPTIONS if getattr(runtime, name, False)]
    return [f"--{name.replace('_', '-')}" for name in names]
