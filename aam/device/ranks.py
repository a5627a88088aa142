"""Which process of a run this is, by the environment and the options; free of torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

# Options that ask for several processes.
MULTI_PROCESS_OPTIONS = ("distributed", "data_parallel", "fsdp", "fsdp_sharded_checkpoint")

# Variables of rank, number of ranks and rank on the node: those of torchrun, and those of SLURM.
RANK_VARIABLES = (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"))


class Rank(NamedTuple):
    """The rank of this process, the number of ranks, and the rank on its node."""

    rank: int
    size: int
    local_rank: int


def rank_of(environment: Mapping[str, str]) -> Rank | None:
    """Return the place of this process among the ranks, or None where neither torchrun nor SLURM started it."""
    for names in RANK_VARIABLES:
        if all(environment.get(name, "").isdigit() for name in names):
            return Rank(*(int(environment[name]) for name in names))
    return None


def is_rank(runtime: Any) -> bool:
    """Return whether this process is one of the ranks of a run, which check its options when they have met.

    Then an error of one of them is the error of all, and is printed once.
    """
    return rank_of(os.environ) is not None and bool(process_options(runtime))


def process_options(runtime: Any) -> list[str]:
    """Return the options given that ask for several processes."""
    names = [name for name in MULTI_PROCESS_OPTIONS if getattr(runtime, name, False)]
    return [f"--{name.replace('_', '-')}" for name in names]
