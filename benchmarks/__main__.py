"""The program: ``python -m benchmarks rivals``."""

from __future__ import annotations

import sys

from aam.cli import Command, Program, main

PROGRAM = Program(
    "benchmarks",
    {
        "rivals": Command(
            "RivalsConfig",
            "rivals:compare_with_rivals",
            "aam compared with other programs",
            "benchmarks",
        )
    },
)

if __name__ == "__main__":
    sys.exit(main(program=PROGRAM))
