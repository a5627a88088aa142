"""The options that all examples have in common."""

from __future__ import annotations

from typing import Annotated

from annotated_types import Gt
from pydantic.dataclasses import dataclass

from aam.options import STRICT, ObservedConfig, PositiveInt, option


@dataclass(frozen=True, config=STRICT)
class SubmitConfig(ObservedConfig):
    """Print a job script for a command of this program; `sbatch` takes it."""

    words: str | None = option(
        None,
        "The command and its options, quoted as one word, such as 'train --output-dir run'.",
        required=True,
    )
    site: str = option(
        "", "A profile of slurm/sites, or a .toml file; unset: AAM_SITE, or else cosmos."
    )
    devices: PositiveInt = option(1, "Devices of a node, a process for each.")
    hours: Annotated[float, Gt(0.1)] | None = option(None, "Time limit; unset: that of the site.")
