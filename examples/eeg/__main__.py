"""The program: ``python -m examples.eeg COMMAND``."""

from __future__ import annotations

import sys

from aam.cli import Command, Program, main

PACKAGE = "examples.eeg"

PROGRAM = Program(
    PACKAGE,
    {
        "simulate": Command(
            "SimulateConfig", "cohort:simulate", "write a simulated cohort", PACKAGE
        ),
        "pretrain": Command(
            "PretrainConfig", "commands:pretrain", "pretrain an encoder without labels", PACKAGE
        ),
        "train": Command(
            "TrainConfig", "commands:train", "train, and judge held-out subjects", PACKAGE
        ),
        "find": Command(
            "FindConfig", "commands:find", "the best learning rate, the largest batch", PACKAGE
        ),
        "challenge": Command(
            "ChallengeConfig", "challenge:challenge", "write or check a challenge file", PACKAGE
        ),
        "submit": Command(
            "SubmitConfig", "submit:submit_eeg", "print a job script for a cluster", "examples"
        ),
    },
    resumable=("pretrain", "train"),
)

if __name__ == "__main__":
    sys.exit(main(program=PROGRAM))
