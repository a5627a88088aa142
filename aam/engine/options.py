"""Options of training that any model has."""

from __future__ import annotations

from dataclasses import dataclass

from aam.options import option
from aam.runtime.options import ProcessConfig


@dataclass(frozen=True)
class RunConfig(ProcessConfig):
    """Machine, precision, output and checkpoints"""

    resume_from: str | None = option(
        None, "auto: go on from the newest checkpoint of --output-dir, if any; or the folder of one checkpoint."
    )
    checkpoint_minutes: float = option(10.0, "Minutes between checkpoints; SIGTERM and SIGUSR2 save one too.", ge=0)
    keep_checkpoints: int = option(
        2, "How many of the newest checkpoints are kept while the run lasts.", rare=True, ge=1
    )
