"""The options of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aam.config_commands import BenchConfig
from aam.options import option

Rival = Literal["dense", "dense-nucleotide", "unifrac", "processes", "unlabelled", "report"]


@dataclass(frozen=True)
class RivalsConfig(BenchConfig):
    """Measure aam beside what it is compared with: the plain implementation, scikit-bio, ssu,
    several processes.
    """

    cases: tuple[Rival, ...] = option(  # type: ignore[assignment]
        ("dense", "dense-nucleotide", "unifrac"),
        "What is measured, each in a process of its own; processes (two and four beside one) and "
        "unlabelled (of "
        "AAM_BENCH_DATA) take long; report is the time from predictions to their page.",
    )
