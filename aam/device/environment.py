"""Machine, job and ranks of a process, read without torch, and variables to set before torch is
imported.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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
THREADS = tuple(f"{pool}_NUM_THREADS" for pool in ("OMP", "OPENBLAS", "MKL", "BLIS"))
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
# Those that a requeued job needs again. MIOpen's is SQLite, which fails on some shared disks.
SHARED_CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")

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
    shared: Path | None = None,
) -> Iterator[Change]:
    """Yield the changes of `environment` to make before torch is imported.

    Parameters
    ----------
    environment : mapping
    architectures : sequence of str
        AMD chips of the machine, such as gfx942.
    hip : str, optional
        ROCm version that torch is built for.
    job : Path, optional
        Folder of the job on a local disk; caches that are set nowhere go there.
    shared : Path, optional
        Folder that outlives the job; `SHARED_CACHES` that are set nowhere go there.
    """
    variable, *later = [n for n in VISIBLE["AMD" if hip else "NVIDIA"] if n in environment] or [""]
    for name in later:
        yield Change(name, None, f"composes with {variable} to no device at all")
    if hip:
        yield from _rocm_changes(environment, architectures, hip)
    for name, folder in CACHES.items():
        kept = shared is not None and name in SHARED_CACHES
        place, reason = (shared, "outlives the job") if kept else (job, "is the job's own disk")
        if place is not None and name not in environment:
            yield Change(name, f"{place}/{folder}", f"{place} {reason}")


def _rocm_changes(
    environment: Mapping[str, str], architectures: Sequence[str], hip: str
) -> Iterator[Change]:
    for name in ALLOCATOR if int(hip.split(".")[0]) < 7 else ():
        words = environment.get(name, "").split(",")
        settings = [word for word in words if not word.startswith("expandable_segments")]
        if settings != words:
            reason = f"expandable_segments hangs on ROCm below 7 (this is {hip})"
            yield Change(name, ",".join(settings) or None, reason)
    if OVERRIDE in environment and "gfx942" in architectures:
        reason = "gfx942 has kernels of its own, those of another chip compute wrong"
        yield Change(OVERRIDE, None, reason)
    if environment.get(TUNABLE) == "1" and environment.get(TUNING) != "0":
        crashes = "a search in a run has crashed on ROCm (pytorch #159070, #139116)"
        yield Change(TUNING, "0", f"{crashes}; results of a file are still used")
    if set(NO_HIPBLASLT) & set(architectures) and environment.get(HIPBLASLT) != "0":
        yield Change(HIPBLASLT, "0", f"hipBLASLt has no kernels for {', '.join(architectures)}")


# The kernel's list of processors and AMD GPUs.
TOPOLOGY = Path("/sys/class/kfd/kfd/topology/nodes")


def amd_gpus(nodes: Path = TOPOLOGY) -> list[dict[str, int]]:
    """Return the properties of the AMD GPUs that the kernel lists, in the order of ROCm.

    The kernel refuses to say anything about GPUs of other jobs (EPERM): they have no properties.
    """
    gpus: list[dict[str, int]] = []
    for path in sorted(nodes.glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            pairs = re.findall(r"(?m)^(\w+) (\d+)$", (path / "properties").read_text())
        except OSError:
            gpus.append({})
            continue
        properties = {name: int(value) for name, value in pairs}
        gpus += [properties] if properties.get("gfx_target_version") else []
    return gpus


def _architectures() -> list[str]:
    """Return the AMD chips that the kernel lists, such as gfx942, without torch."""
    versions = {gpu["gfx_target_version"] for gpu in amd_gpus() if gpu}
    parts = ((version // 10_000, version // 100 % 100, version % 100) for version in versions)
    return sorted(f"gfx{major}{minor:x}{step:x}" for major, minor, step in parts)


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
    number, user = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("USER", "")
    disk = Path(os.environ.get("AAM_LOCAL") or f"/scratch/{user}/job_{number}")
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
    shared = usable_shared_cache(os.environ)
    changes = required_changes(os.environ, _architectures(), hip_version(), _job_folder(), shared)
    # All changes are found before the first one is made.
    for change in list(changes):
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


def watched_variables() -> dict[str, str]:
    """Return the variables that change what a device computes, or how fast."""
    return {name: os.environ[name] for name in WATCHED if name in os.environ}


def container() -> dict[str, str | None]:
    """Return path and digest of the container image in which this process runs."""
    path = os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER")
    return {"path": path, "digest": os.environ.get("AAM_IMAGE")}


def driver_version() -> str:
    """Return the version of the GPU's driver, or the kernel's release where that brings it."""
    for name in ("nvidia", "amdgpu"):
        with contextlib.suppress(OSError):
            return f"{name} {Path(f'/sys/module/{name}/version').read_text().strip()}"
    return os.uname().release


def shared_cache(environment: Mapping[str, str]) -> Path | None:
    """Return the folder of caches that outlives a job: ``AAM_CACHE``, or ``aam-cache`` in
    ``AAM_SHARED`` (jobs set that); None without either.
    """
    if folder := environment.get("AAM_CACHE"):
        return Path(folder)
    shared = environment.get("AAM_SHARED")
    return Path(shared) / "aam-cache" if shared and Path(shared).is_dir() else None


def usable_shared_cache(environment: Mapping[str, str]) -> Path | None:
    """Return `shared_cache`, which may still have to be made; None where it cannot be written."""
    folder = shared_cache(environment)
    with contextlib.suppress(OSError):
        if folder is not None:
            existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
            return folder if existing.is_dir() and os.access(existing, os.W_OK) else None
    return None


def cache_folder() -> Path:
    """Return the cache of verdicts: `shared_cache`, or ``aam`` below ``XDG_CACHE_HOME`` or
    ~/.cache.
    """
    if (shared := shared_cache(os.environ)) is not None:
        return shared
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "aam"
    try:
        return Path.home() / ".cache" / "aam"
    except RuntimeError:
        # The user of this process has no home.
        return Path(tempfile.gettempdir()) / f"aam-cache-{os.getuid()}"


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


def numa_nodes(system: Path = Path("/sys")) -> list[int]:
    """Return the NUMA node of each GPU, in the order of ROCm or else of PCI addresses; -1 where the
    system does not say.
    """
    kernel = system / TOPOLOGY.relative_to("/sys")
    addresses = [_pci_address(gpu) for gpu in amd_gpus(kernel) if gpu]
    cards = (path.resolve().name for path in system.glob("class/drm/renderD*/device"))
    nodes = []
    for address in addresses or sorted(cards):
        nodes.append(-1)
        with contextlib.suppress(OSError, ValueError):
            nodes[-1] = int((system / "bus/pci/devices" / address / "numa_node").read_text())
    return nodes


def _pci_address(gpu: Mapping[str, int]) -> str:
    # The highest four bits of the location number the parts of a divided GPU.
    location = gpu.get("location_id", 0)
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 7
    return f"{gpu.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function}"


def numa_cpus(system: Path = Path("/sys")) -> dict[int, set[int]]:
    """Return the CPUs of each NUMA node that has any."""
    cpus: dict[int, set[int]] = {}
    for path in system.glob("devices/system/node/node[0-9]*/cpulist"):
        with contextlib.suppress(OSError):
            ranges = re.findall(r"(\d+)(?:-(\d+))?", path.read_text())
            numbers = {n for a, b in ranges for n in range(int(a), int(b or a) + 1)}
            cpus |= {int(path.parent.name.removeprefix("node")): numbers} if numbers else {}
    return cpus


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
        if all(environment.get(name, "").isdecimal() for name in names):
            return Rank(*(int(environment[name]) for name in names))
    return None


def is_rank(runtime: Any) -> bool:
    """Return whether this process is one of the ranks of a run, which check its options when they
    have met.

    Then an error of one of them is the error of all, and is printed once.
    """
    return rank_of(os.environ) is not None and bool(process_options(runtime))


def is_launcher(runtime: Any) -> bool:
    """Whether this process is to start those of ``--data-parallel``."""
    return bool(runtime.data_parallel) and rank_of(os.environ) is None


def is_later_rank(words: Sequence[str]) -> bool:
    """Whether this process is a rank but the first, by words of the command line as they came."""
    place = rank_of(os.environ)
    names = {f"--{name.replace('_', '-')}" for name in MULTI_PROCESS_OPTIONS}
    return place is not None and place.rank > 0 and not names.isdisjoint(words)


def process_options(runtime: Any) -> list[str]:
    """Return the options given that ask for several processes."""
    names = [name for name in MULTI_PROCESS_OPTIONS if getattr(runtime, name, False)]
    return [f"--{name.replace('_', '-')}" for name in names]


# --- the first tensor on a GPU, in a child process ------------------------------------------------

# Some installations of torch list a GPU and die at its first tensor, so each tensor is made in a
# process of its own.
FIRST_TENSOR = (
    "import torch; x = torch.ones(1024, device={!r}); assert float((x + x).sum()) == 2048"
)
# A cold read of torch from a busy shared disk takes a minute or two.
FIRST_TENSOR_SECONDS = 600
# How long a child that was killed may take to end.
KILL_SECONDS = 10
OWN_ROCM = "without --rocm the image's own ROCm is used"
HIP_HINT = f"{OWN_ROCM}; see Known failures in docs/rocm.md (apptainer #3261)"
OWN_CUDA = "aam doctor which one this torch was built for"
CUDA_HINT = f"nvidia-smi says which CUDA the driver knows, {OWN_CUDA}"


class ChildEnd(NamedTuple):
    """The end of a child process: its exit status, None where it took too long, and what it
    wrote.
    """

    status: int | None
    output: str
    errors: str

    def __str__(self) -> str:
        """Return the status in words."""
        if self.status is None or self.status >= 0:
            return f"ended with status {self.status}"
        # A real-time signal has no name.
        with contextlib.suppress(ValueError):
            return f"ended with {signal.Signals(-self.status).name}"
        return f"ended with signal {-self.status}"


def run_child(
    program: str, seconds: float, request: str = "", environment: Mapping[str, str] | None = None
) -> ChildEnd:
    """Run a program of Python in a process of its own, which reads `request`, for at most so many
    seconds; then end all that it started.
    """
    # Files, as a process that the child started may hold a pipe open for ever.
    file = tempfile.TemporaryFile
    with file() as given, file() as output, file() as errors:
        given.write(request.encode())
        given.seek(0)
        # A group of its own, so that the processes of a compiler end with it.
        streams: dict[str, Any] = {"stdin": given, "stdout": output, "stderr": errors}
        command = [sys.executable, "-c", program]
        child = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            # One that waits for a broken device cannot be killed.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(KILL_SECONDS)
        output.seek(0)
        errors.seek(0)
        texts = (written.read().decode(errors="replace") for written in (output, errors))
        return ChildEnd(status, *texts)


def first_tensor(
    device: str, program: str = FIRST_TENSOR, seconds: float = FIRST_TENSOR_SECONDS
) -> str:
    """Allocate and add a small tensor on `device` in a child process; return how it failed, or an
    empty text.
    """
    end = run_child(program.format(device), seconds)
    if end.status is None:
        return f"took longer than {seconds:g} s"
    lines = end.errors.strip().splitlines() if end.status > 0 else []
    return (lines or [str(end)])[-1] if end.status else ""
