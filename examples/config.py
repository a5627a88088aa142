"""The options that all examples have in common."""

from __future__ import annotations

from dataclasses import dataclass

from aam.device.options import ObservedConfig
from aam.options import option


@dataclass(frozen=True)
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
    devices: int = option(1, "Devices of a node, a process for each.", ge=1)
    hours: float | None = option(None, "Time limit; unset: that of the site.", gt=0.1)
