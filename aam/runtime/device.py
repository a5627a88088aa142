"""Which device computes, with how many threads, in which precision and from which random numbers."""

from __future__ import annotations

import contextlib
import hashlib
import os

import numpy as np
import torch

from aam.config import RuntimeConfig
from aam.errors import InputError


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
    return device


def autocast(config: RuntimeConfig, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """The context in which the network runs: bf16 where asked for or, on ``auto``, where in hardware."""
    wanted = config.mixed_precision == "bf16"
    if config.mixed_precision == "auto" and device.type == "cuda":
        wanted = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.autocast(device.type, dtype=torch.bfloat16) if wanted else contextlib.nullcontext()


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
