"""What a machine is, what is wrong with it and what follows; free of torch, so that it comes before torch."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from aam.errors import InputError
from aam.runtime.files import read_json, write_text

log = logging.getLogger("aam")

Facts = dict[str, Any]
# A recorded machine (tests/golden/platforms): shows what would be decided there, while this one computes.
RECORDED = "AAM_PLATFORM"
# Devices that are seen; two of them set compose to none. The first that is set stays.
VISIBLE = {
    "AMD": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "NVIDIA": ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
}
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
OVERRIDE, HIPBLASLT = "HSA_OVERRIDE_GFX_VERSION", "TORCH_BLAS_PREFER_HIPBLASLT"
AOTRITON = "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"
CACHES = {
    "MIOPEN_USER_DB_PATH": "miopen", "MIOPEN_CUSTOM_CACHE_DIR": "miopen", "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor", "XDG_CACHE_HOME": "xdg", "TORCH_HOME": "torch",
}  # fmt: skip
WATCHED = (*VISIBLE["AMD"], *ALLOCATOR, OVERRIDE, HIPBLASLT, AOTRITON, "HSA_XNACK", "AAM_OPERATIONS", *CACHES)
# Chips without hipBLASLt kernels, operations that a chip does badly, and chips with bf16 in hardware.
NO_HIPBLASLT = ("gfx1010",)
ELSEWHERE = {"gfx1010": ("fft",)}
BF16 = re.compile(r"gfx(90a|908|94\w|95\w|11\w\w|12\w\w)|sm_([89]\d|1\d\d)")
# Share of memory that CPU and GPU have in common which torch may take; the page cache lives there too.
UNIFIED_SHARE = 0.8
Level = Literal["wrong", "mended", "note"]


@dataclass(frozen=True)
class Platform:
    """What computes: `memory` in bytes, `memory_share` the part of it that torch may take, `elsewhere` on the CPU."""

    vendor: Literal["AMD", "NVIDIA", "Apple", "CPU"]
    architecture: str
    name: str
    memory: int
    unified: bool
    bf16: bool
    fp16: bool
    versions: dict[str, str | None]
    memory_share: float | None
    elsewhere: tuple[str, ...]


class Finding(NamedTuple):
    """What is wrong, was mended or is worth knowing, and what mends it."""

    level: Level
    what: str
    mend: str


class Change(NamedTuple):
    """A variable to set, or with None to unset, and why."""

    name: str
    value: str | None
    why: str


# What `mend_environment` changed in this process, for the doctor.
MENDED: list[Change] = []


def platform_of(facts: Facts) -> Platform:
    """The platform that these properties describe; decides from them alone.

    `facts` is what `aam.runtime.device.facts_of` reads or a recorded file: ``system``, ``torch`` (version, hip, cuda,
    triton, aotriton) and ``device`` (properties as torch names them; none for a CPU).
    """
    device, system, torch = facts["device"], facts["system"], facts["torch"]
    versions = {name: torch.get(name) for name in ("torch", "hip", "cuda", "triton", "aotriton")}
    if device is None or device["type"] == "mps":
        apple = device is not None
        memory = int(system["memory"])
        return Platform(
            "Apple" if apple else "CPU", system["machine"], system["name"], memory, True, False, apple, versions,
            UNIFIED_SHARE if apple else None, (),
        )  # fmt: skip
    amd = torch.get("hip") is not None
    architecture = device["gcnArchName"].split(":")[0] if amd else f"sm_{device['major']}{device['minor']}"
    unified = bool(device.get("is_integrated")) or "MI300A" in device["name"]
    return Platform(
        vendor="AMD" if amd else "NVIDIA",
        architecture=architecture,
        name=device["name"],
        memory=int(device["total_memory"]),
        unified=unified,
        bf16=BF16.fullmatch(architecture) is not None,
        fp16=True,
        versions=versions,
        memory_share=UNIFIED_SHARE if unified else None,
        elsewhere=ELSEWHERE.get(architecture, ()),
    )


# --- environment ---------------------------------------------------------------------------------------------


def _expandable(environment: Mapping[str, str], hip: str) -> list[Change]:
    """Without expandable segments, which hang on ROCm below 7."""
    changes = []
    for name in ALLOCATOR if int(hip.split(".")[0]) < 7 else ():
        kept = [word for word in environment.get(name, "").split(",") if not word.startswith("expandable_segments")]
        if name in environment and ",".join(kept) != environment[name]:
            why = f"expandable_segments hangs on ROCm below 7 (this is {hip})"
            changes.append(Change(name, ",".join(kept) or None, why))
    return changes


def changes_of(
    environment: Mapping[str, str], architectures: Sequence[str], hip: str | None, job: Path | None = None
) -> list[Change]:
    """What to change in `environment` before torch is imported.

    Parameters
    ----------
    environment : mapping
    architectures : sequence of str
        AMD chips of the machine, such as gfx942.
    hip : str, optional
        ROCm version that torch is built for.
    job : Path, optional
        The job's own folder on a local disk; caches that are set nowhere go there.
    """
    changes = []
    names = [name for name in VISIBLE["NVIDIA" if hip is None else "AMD"] if name in environment]
    why = f"composes with {names[0]} to no device at all" if names else ""
    changes += [Change(name, None, why) for name in names[1:]]
    if hip is not None:
        changes += _expandable(environment, hip)
        if OVERRIDE in environment and "gfx942" in architectures:
            changes.append(Change(OVERRIDE, None, "gfx942 has kernels of its own, those of another chip compute wrong"))
        if set(NO_HIPBLASLT) & set(architectures) and environment.get(HIPBLASLT) != "0":
            changes.append(Change(HIPBLASLT, "0", f"hipBLASLt has no kernels for {', '.join(architectures)}"))
    if job is not None:
        missing = {name: str(job / folder) for name, folder in CACHES.items() if name not in environment}
        changes += [Change(name, path, "caches lie on the job's own disk") for name, path in missing.items()]
    return changes


def _architectures() -> list[str]:
    """AMD chips that the kernel knows, such as gfx942; torch is not needed to tell."""
    found = set()
    for path in Path("/sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        version = re.search(r"^gfx_target_version (\d+)$", path.read_text(), re.MULTILINE)
        if version and int(version[1]):
            major, minor, step = int(version[1]) // 10_000, int(version[1]) // 100 % 100, int(version[1]) % 100
            found.add(f"gfx{major}{minor:x}{step:x}")
    return sorted(found)


def _hip() -> str | None:
    """The ROCm version that the installed torch is built for, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    found = re.search(r"^hip\b.*= '([\d.]+)", text, re.MULTILINE)
    return found[1] if found else None


def _job_folder() -> Path | None:
    number = os.environ.get("SLURM_JOB_ID", "")
    own = Path(os.environ.get("AAM_NVME") or f"/scratch/{os.environ.get('USER', '')}/job_{number}")
    return own / f"aam-cache-{os.getuid()}-{number}" if number and own.is_dir() else None


def mend_environment(expandable: bool = False) -> None:
    """Set and unset what must be before torch is imported, and say so; `expandable` asks for expandable segments."""
    hip = _hip()
    # DDP tells each rank that every parameter was used, which is as it should be.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if expandable:
        name = ALLOCATOR[2 if hip is None else 1]
        words = [*filter(None, [os.environ.get(name, "")]), "expandable_segments:True"]
        os.environ[name] = ",".join(words)
    for change in changes_of(os.environ, _architectures(), hip, _job_folder()):
        if change.value is None:
            del os.environ[change.name]
        else:
            os.environ[change.name] = change.value
        MENDED.append(change)
        if change.name not in CACHES:
            log.warning("%s: %s, because %s", change.name, _done(change), change.why)


def _done(change: Change) -> str:
    return "unset" if change.value is None else f"set to {change.value}"


# --- recorded machines and caches ----------------------------------------------------------------------------


def recorded() -> Facts | None:
    """The machine that the file named by ``AAM_PLATFORM`` records; `InputError` where it is none."""
    path = os.environ.get(RECORDED)
    if not path:
        return None
    facts = read_json(Path(path))
    named = ("system", "torch", "device", "environment", "gates")
    if not isinstance(facts, dict) or any(not isinstance(facts.get(name), dict) for name in named):
        raise InputError(f"{RECORDED}={path}: no recorded machine; expected system, torch, device, environment, gates")
    return facts


def cache_folder() -> Path:
    """Where verdicts of this machine are kept: ``AAM_CACHE``, or ``aam`` below ``XDG_CACHE_HOME`` or ~/.cache."""
    own = os.environ.get("AAM_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aam"


def remembered(
    name: str, of: Facts, make: Callable[[], Facts], valid: Callable[[Any], bool], anew: bool = False
) -> Facts:
    """What `make` found out of this machine about `of`, now or (unless `anew`) in an earlier process.

    Kept in a file of its own, which appears whole; one that is damaged, or not `valid`, is made again.
    """
    digest = hashlib.blake2b(json.dumps(of).encode(), digest_size=8).hexdigest()
    path = cache_folder() / f"{name}-{digest}.json"
    with contextlib.suppress(InputError):
        content = None if anew else read_json(path)
        if isinstance(content, dict) and content.get("of") == of and valid(content.get("found")):
            return content["found"]  # type: ignore[no-any-return]
    found = make()
    try:
        write_text(path, json.dumps({"of": of, "found": found}) + "\n")
    except OSError as error:
        log.info("%s: not kept (%s); it is found out again next time", path, error.strerror)
    return found


# --- what is wrong -------------------------------------------------------------------------------------------


def findings_of(platform: Platform, facts: Facts, report: Facts) -> list[Finding]:
    """What is wrong, was mended or is worth knowing, from the platform, its facts and what was measured on it."""
    environment, hip = facts["environment"], facts["torch"].get("hip")
    changes = changes_of(environment, [platform.architecture], hip)
    changes += [change for change in facts.get("mended", []) if change.name not in CACHES]
    found = [
        Finding("mended", f"{c.name}: {c.why}", f"aam has it {_done(c)}; leave it out of your scripts") for c in changes
    ]
    for family, results in report["attention"]["results"].items():
        for name, result in results.items():
            if result.get("wrong"):
                error = max(result["forward"], result["backward"])
                instead = report["attention"]["chosen"].get(family, "none")
                said = f"attention {name}, {family}: off by {error:.3g} against float64"
                found.append(Finding("wrong", said, f"aam takes {instead}; upgrade PyTorch (2.7 or newer on ROCm)"))
    for name, error in report["operations"].items():
        if error["wrong"]:
            mend = "aam runs it on the CPU" if name in report["elsewhere"] else f"AAM_OPERATIONS={name}=cpu"
            found.append(Finding("wrong", f"operation {name}: {error['said']}", mend))
        elif name in report["elsewhere"]:
            found.append(Finding("note", f"operation {name} runs on the CPU", f"AAM_OPERATIONS={name}=device"))
    tried = report["compile"].get("tried", {})
    found += [
        Finding("note", f"torch.compile with {name}: {said}", f"--compile-model takes {report['compile']['backend']}")
        for name, said in tried.items()
        if said != "right"
    ]
    if platform.vendor == "AMD" and platform.architecture.startswith("gfx11") and AOTRITON not in environment:
        mend = f"{AOTRITON}=1 offers flash and memory-efficient attention, to be judged by the gates"
        found.append(Finding("note", f"{AOTRITON} is unset", mend))
    if report["unseen"]:
        mend = "check the driver, the devices bound into the container (/dev/kfd, /dev/dri; --nv) and torch's build"
        found.append(Finding("wrong", "a GPU is there or asked for, and torch sees none", mend))
    return found


def environment_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that concern this."""
    return {name: environment[name] for name in WATCHED if name in environment}


def surroundings() -> Facts:
    """Container and job in which this process runs."""
    container = os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER")
    names = ("JOB_ID", "JOB_PARTITION", "NNODES", "NTASKS", "PROCID", "CPUS_PER_TASK", "JOB_GPUS")
    slurm = {name.lower(): os.environ[f"SLURM_{name}"] for name in names if f"SLURM_{name}" in os.environ}
    caches = {name: os.environ[name] for name in CACHES if name in os.environ}
    image = {"path": container, "digest": os.environ.get("AAM_IMAGE")}
    return {"container": image, "slurm": slurm, "caches": {"aam": str(cache_folder()), **caches}}


def _printed(value: Any) -> str:
    """A value of the report for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def show(report: Facts) -> None:
    """Print the report on one screen."""
    console, platform = Console(), report["platform"]
    table = Table(title=f"aam doctor: {platform['name']}", show_header=False, title_justify="left")
    facts = {k: v for k, v in platform.items() if k != "versions"} | {
        k: v for k, v in platform["versions"].items() if v
    }
    facts |= {"devices": report["devices"], "runs on the CPU": report["elsewhere"]}
    facts |= report["memory"]
    facts |= {name: f"{rate / 1e9:.3g} G/s" for name, rate in report["rates"].items()}
    facts |= {**report["environment"], **report["caches"], **report["slurm"], "container": report["container"]["path"]}
    facts["compile"] = report["compile"].get("backend", "not tried")
    for name, value in facts.items():
        if value not in (None, [], ()):
            table.add_row(name, _printed(value))
    console.print(table)
    table = Table("attention", "back end", "error", "backward", "ms", "", title="attention against float64")
    for column in table.columns:
        column.no_wrap = True
    for kind, found in report["attention"]["results"].items():
        for name, result in found.items():
            if "refused" in result:
                table.add_row(kind, name, "", "", "", "does not serve")
                continue
            said = "wrong" if result["wrong"] else "taken" if report["attention"]["chosen"].get(kind) == name else ""
            errors = [f"{result[each]:.2g}" for each in ("forward", "backward")]
            table.add_row(kind, name, *errors, f"{1e3 * result['seconds']:.3g}" if result["seconds"] else "", said)
    console.print(table)
    for finding in report["findings"]:
        console.print(f"{finding['level']}: {finding['what']}\n    {finding['mend']}", markup=False, highlight=False)
    if not any(finding["level"] == "wrong" for finding in report["findings"]):
        console.print("Nothing is wrong.")
