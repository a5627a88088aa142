"""Which device computes, with how many threads, in which precision and from which random numbers."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aam.config import RuntimeConfig
from aam.errors import InputError, shown
from aam.runtime import attention
from aam.runtime.doctor import MENDED, Facts, Platform, environment_of, platform_of, recorded
from aam.runtime.timing import device_name

log = logging.getLogger("aam")


def choose_device(name: str) -> torch.device:
    """The torch device meant by `name`; ``hip`` is another name of ``cuda`` and ``auto`` takes the best.

    Raises
    ------
    InputError
        The device is unknown or not there.
    """
    kind, _, index = name.partition(":")
    kind = {"hip": "cuda"}.get(kind, kind)
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind == "auto" and not index:
        return torch.device(next(k for k in ("cuda", "mps", "cpu") if present[k]))
    if kind not in present or (index and not index.isdigit()):
        raise InputError(f"--device: {name!r} is unknown, expected auto, cpu, cuda[:N], hip[:N] or mps")
    if not present[kind]:
        raise InputError(f"--device: {name!r} is not available here; --device auto takes what is")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise InputError(f"--device: {name!r} does not exist, {torch.cuda.device_count()} device(s) are visible")
    return torch.device(f"{kind}:{index}" if index else kind)


def facts_of(device: torch.device) -> Facts:
    """What `platform_of` decides from, read here: properties as torch names them, versions, the environment."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    facts: Facts = {
        "system": {"machine": platform.machine(), "name": device_name(torch.device("cpu")), "memory": memory},
        "torch": {"torch": torch.__version__, "hip": torch.version.hip, "cuda": torch.version.cuda},
        "device": None,
        "environment": environment_of(os.environ),
        "mended": MENDED,
    }
    for name in ("triton", "pytorch-triton-rocm"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts["torch"]["triton"] = metadata.version(name)
    for path in Path(torch.__file__).parent.glob("lib/libaotriton*.so.*"):
        facts["torch"]["aotriton"] = path.name.partition(".so.")[2]
    if device.type == "mps":
        facts["device"] = {"type": "mps"}
    elif device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        names = ("name", "gcnArchName", "major", "minor", "total_memory", "is_integrated", "multi_processor_count")
        facts["device"] = {"type": "cuda", **{name: getattr(found, name, None) for name in names}}
    return facts


@functools.cache
def platform_here(device: torch.device) -> Platform:
    """What computes here."""
    return platform_of(facts_of(device))


def precision(config: RuntimeConfig, device: torch.device) -> torch.dtype:
    """The precision of the network on `device`."""
    # Every step asks; only a GPU needs its properties for the answer.
    return _precision(config, device.type == "cuda" and platform_here(device).bf16)


def _precision(config: RuntimeConfig, in_hardware: bool) -> torch.dtype:
    """What is asked for or, on ``auto``, bf16 where a GPU has it in hardware; else float32."""
    if config.mixed_precision == "fp16":
        return torch.float16
    wanted = config.mixed_precision == "bf16" or (config.mixed_precision == "auto" and in_hardware)
    return torch.bfloat16 if wanted else torch.float32


def decide(
    config: RuntimeConfig, device: torch.device, width: int, before: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What is computed with here, as plain data; attention with heads of `width` takes its back ends from now on.

    `before` is what an earlier call of the same run, or rank 0, decided: it is taken over where it answers the same
    question. Where a recorded machine is named, what it would take is said, and this one takes its own.

    Raises
    ------
    InputError
        ``--attn-implementation`` names a back end that computes wrong or does not serve.
    """
    facts, wanted, inexact = recorded(), config.attn_implementation, config.allow_inexact_attention
    if facts is not None:
        there = platform_of(facts)
        dtype = _precision(config, there.bf16 and there.vendor != "Apple")
        kinds = [attention.family(dtype, masked) for masked in (True, False)]
        results = {kind: facts["gates"][kind] for kind in kinds if kind in facts["gates"]}
        chosen = attention.choose(results, wanted, inexact, there.vendor in ("AMD", "NVIDIA"))
        log.info("recorded: %s would take attention %s; this machine computes with its own", there.name, chosen)
        attention.use({})
        return {"recorded": there.name, "attention": chosen}
    dtype = precision(config, device)
    question: dict[str, Any] = {
        "asked": wanted,
        "inexact": inexact,
        "on": device_name(device),
        "torch": torch.__version__,
    }
    question |= {"precision": str(dtype), "width": width, "tf32": config.tf32}
    earlier = before or {}
    if earlier.get("question") == question and attention.known(earlier.get("attention"), dtype):
        chosen = earlier["attention"]
    else:
        results = attention.gates(device, (dtype,), width)
        chosen = attention.choose(results, wanted, inexact, device.type == "cuda")
    attention.use(chosen)
    if set(chosen.values()) != {attention.SDPA}:
        log.info("attention: %s", chosen)
    return {"question": question, "attention": chosen}


def _cores() -> int:
    """Cores that this process may use; macOS does not say which, so there it is all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def prepare(config: RuntimeConfig) -> torch.device:
    """Choose the device and set threads and product precision for this process."""
    device = choose_device(config.device)
    if config.deterministic:
        # Read by cuBLAS when it starts, hence here and not later.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(config.deterministic)
    torch.set_num_threads(config.threads or _cores())
    torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
    share = platform_here(device).memory_share
    if share is not None and device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share, device)
    return device


@contextlib.contextmanager
def autocast(config: RuntimeConfig, device: torch.device) -> Iterator[None]:
    """The context in which the network runs: in the precision of `precision`, each operation where it is right."""
    dtype, names = precision(config, device), elsewhere(device)
    with contextlib.ExitStack() as stack:
        if dtype != torch.float32:
            stack.enter_context(torch.autocast(device.type, dtype=dtype))
        if names:
            stack.enter_context(Elsewhere(names))
        yield


# --- operations that a platform does badly ---------------------------------------------------------------------

# By name: the functions that are routed, and a use of them that is judged, from a matrix.
OPERATIONS: dict[str, tuple[tuple[Callable[..., Any], ...], Callable[[Tensor], Tensor]]] = {
    "fft": (
        (torch.fft.fft, torch.fft.ifft, torch.fft.rfft, torch.fft.irfft),
        lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2),
    ),
    "cumsum": ((torch.cumsum, Tensor.cumsum), lambda x: x.cumsum(0)),
    "softmax": ((torch.softmax, Tensor.softmax, torch.nn.functional.softmax), lambda x: torch.softmax(x, -1)),
    "layer_norm": ((torch.nn.functional.layer_norm,), lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:])),
    "gelu": ((torch.nn.functional.gelu,), torch.nn.functional.gelu),
    "product": ((torch.mm, torch.matmul, Tensor.matmul, torch.nn.functional.linear), lambda x: x @ x.mT),
    "scatter_add": (
        (Tensor.scatter_add_, Tensor.scatter_add),
        lambda x: torch.zeros_like(x).scatter_add(1, torch.arange(x.shape[1], device=x.device).expand_as(x) // 2, x),
    ),
}
OPERATION_TOLERANCE = 1e-3


def elsewhere(device: torch.device) -> tuple[str, ...]:
    """Operations that run on the CPU: by the platform's rules, changed by ``AAM_OPERATIONS=fft=cpu,cumsum=device``."""
    facts = recorded()
    names: dict[str, None] = dict.fromkeys((platform_of(facts) if facts else platform_here(device)).elsewhere)
    for word in filter(None, os.environ.get("AAM_OPERATIONS", "").split(",")):
        name, _, place = word.partition("=")
        if name not in OPERATIONS or place not in ("cpu", "device"):
            expected = f"NAME=cpu or NAME=device of {shown(OPERATIONS, 20)}"
            raise InputError(f"AAM_OPERATIONS: {word!r} is unknown, expected {expected}")
        names.pop(name, None)
        names |= {name: None} if place == "cpu" else {}
    return tuple(names)


class Elsewhere(TorchFunctionMode):
    """Runs the operations `names` on the CPU and brings their results back to where the tensors came from."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.functions = {function for name in names for function in OPERATIONS[name][0]}

    def __torch_function__(self, function: Any, types: Any, given: Any = (), options: Any = None) -> Any:
        """Called by torch in place of each of its functions."""
        options = options or {}
        place = next((each.device for each in (*given, *options.values()) if isinstance(each, Tensor)), None)
        if function not in self.functions or place is None:
            return function(*given, **options)
        there = {name: each.cpu() if isinstance(each, Tensor) else each for name, each in options.items()}
        return function(*(each.cpu() if isinstance(each, Tensor) else each for each in given), **there).to(place)


def judge_operation(name: str, device: torch.device) -> dict[str, Any]:
    """How far an operation, forward and backward in float32, is from float64 on the CPU."""
    use = OPERATIONS[name][1]
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    found = []
    try:
        for leaf in (x.double().requires_grad_(), x.to(device, copy=True).requires_grad_()):
            result = use(leaf)
            (gradient,) = torch.autograd.grad(result.square().sum(), leaf)
            found.append(torch.cat([result.detach().flatten(), gradient.flatten()]).double().cpu())
    except RuntimeError as error:
        return {"wrong": True, "said": str(error).splitlines()[0]}
    apart = float((found[1] - found[0]).abs().max() / found[0].abs().max())
    return {"wrong": not apart < OPERATION_TOLERANCE, "said": f"off by {apart:.3g}"}


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of torch's generators that a run on `device` draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["device"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["device"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Put back what `random_state` gave."""
    torch.set_rng_state(state["cpu"])
    if "device" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["device"], device)
    elif "device" in state and device.type == "mps":
        torch.mps.set_rng_state(state["device"])


def generator(*names: int | str) -> np.random.Generator:
    """A Philox generator keyed by `names`, e.g. ``generator(seed, "rarefy", epoch, sample_id)``.

    The same names give the same stream on every worker, rank and machine.
    """
    text = "\x1f".join(str(name) for name in names)
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
