"""The program: ``python -m benchmarks speed``, ``rivals`` and ``network``."""

from __future__ import annotations

import sys

from aam.cli import Command, Program, main

PROGRAM = Program(
    "benchmarks",
    {
        "speed": Command(
            "SpeedConfig", "speed:compare_speed", "speed of aam and of other programs", "benchmarks"
        ),
        "step": Command(
            "StepConfig", "step:count_step", "what a training step costs the host", "benchmarks"
        ),
        "rivals": Command(
            "RivalsConfig",
            "rivals:compare_with_rivals",
            "predictions of aam and of other programs",
            "benchmarks",
        ),
        "network": Command(
            "NetworkConfig",
            "network:compare_settings",
            "settings of the network as a further member",
            "benchmarks",
        ),
    },
)

if __name__ == "__main__":
    sys.exit(main(program=PROGRAM))
