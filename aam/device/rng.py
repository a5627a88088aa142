"""Random numbers keyed by names, and the state of torch's own generators."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the states of torch's generators that a run on `device` draws from."""
    # Rarefaction needs `generator` only, and `aam unifrac` no torch.
    import torch

    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["device"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["device"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Set torch's generators to the states that `random_state` returned."""
    import torch

    torch.set_rng_state(state["cpu"])
    if "device" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["device"], device)
    elif "device" in state and device.type == "mps":
        torch.mps.set_rng_state(state["device"])


def generator(*names: int | str) -> np.random.Generator:
    """Return a Philox generator keyed by `names`, e.g. ``generator(seed, "rarefy", epoch,
    sample_id)``.

    The same names give the same stream on every worker, rank and machine.
    """
    text = "\x1f".join(str(name) for name in names)
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


# The increment of SplitMix64: 2**64 divided by the golden ratio, as int64.
GOLDEN = -7046029254386353131


def splitmix64(x: Tensor) -> Tensor:
    """Apply the finalizer of SplitMix64 (Steele, Lea and Flood 2014) to int64, whose products
    wrap.
    """
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)
