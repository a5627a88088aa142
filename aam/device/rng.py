"""Random numbers keyed by names, and the state of torch's own generators."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from aam.typing import Hashes, Ints

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
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_key(names), "little")))


def _key(names: tuple[int | str, ...]) -> bytes:
    return hashlib.blake2b("\x1f".join(map(str, names)).encode(), digest_size=16).digest()


class _OneGenerator(threading.local):
    """The generator of a thread, whose key is set anew for each use."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.start: Any = self.bits.state
        self.generator = np.random.Generator(self.bits)


_one = _OneGenerator()


def subsample(samples: int, number: int, limit: int, codes: Ints | None = None) -> Ints:
    """Samples that part `number` learns from, ascending: all, or `limit` at random.

    With the `codes` of their classes, one or more of each class is among them.
    """
    if samples <= limit:
        return np.arange(samples)
    order = generator("training samples", number).permutation(samples)
    if codes is not None:
        first = np.unique(codes[order], return_index=True)[1]
        order = np.concatenate([order[first], np.delete(order, first)])
    return np.sort(order[:limit])


def next_generator(*names: int | str) -> np.random.Generator:
    """Same as `generator` in a quarter of the time, for use before the next call.

    It is one object per thread. A new Philox asks the kernel for entropy that its key replaces.
    """
    _one.start["state"]["key"] = np.frombuffer(_key(names), np.uint64)
    _one.bits.state = _one.start
    return _one.generator


# The increment of SplitMix64: 2**64 divided by the golden ratio, as int64.
GOLDEN = -7046029254386353131


def splitmix64(x: Tensor) -> Tensor:
    """Apply the finalizer of SplitMix64 (Steele, Lea and Flood 2014) to int64, whose products
    wrap.
    """
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def mix_bits(x: Hashes) -> Hashes:
    """Apply `splitmix64` to arrays: the same bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(-4658895280553007687 & (2**64 - 1))
    x = (x ^ (x >> np.uint64(27))) * np.uint64(-7723592293110705685 & (2**64 - 1))
    return x ^ (x >> np.uint64(31))
