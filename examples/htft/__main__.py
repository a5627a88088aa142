"""The program: ``python -m examples.htft COMMAND``."""

from __future__ import annotations

import sys

from aam.cli import Command, Program, main

PACKAGE = "examples.htft"

PROGRAM = Program(
    PACKAGE,
    {
        "teach": Command(
            "TeachConfig", "commands:teach", "train or load a teacher, write its windows", PACKAGE
        ),
        "train": Command("TrainConfig", "commands:train", "train the two stages", PACKAGE),
        "evaluate": Command(
            "EvaluateConfig", "commands:compare_students", "compare students with others", PACKAGE
        ),
        "benchmark": Command(
            "BenchmarkConfig",
            "benchmark:benchmark",
            "measure steps on one and two processes",
            PACKAGE,
        ),
        "submit": Command(
            "SubmitConfig", "submit:submit_htft", "print a job script for a cluster", "examples"
        ),
    },
    resumable=("teach", "train"),
)

if __name__ == "__main__":
    sys.exit(main(program=PROGRAM))
