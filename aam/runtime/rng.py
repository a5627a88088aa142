"""Counter-based randomness: a stream is named by what it is for, never by who draws first."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(*names: int | str) -> np.random.Generator:
    """A Philox generator keyed by `names`, e.g. ``generator(seed, "rarefy", epoch, sample_id)``.

    The same names give the same stream on every worker, rank and machine.
    """
    text = "\x1f".join(str(name) for name in names)
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
