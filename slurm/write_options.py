#!/usr/bin/env python3
"""Write slurm/options.json: the options of each command that a job can run, for slurm/generate.

slurm/generate needs nothing but Python, so it cannot import the package. Run this with the Python
that aam is installed in, after a change of the options; a test compares the file with them.
"""

from __future__ import annotations

import json
from pathlib import Path

import aam.options
from aam import config

FILE = Path(__file__).with_name("options.json")
COMMANDS = {
    "pretrain": config.PretrainConfig,
    "train": config.FineTuneConfig,
    "predict": config.PredictConfig,
    "unifrac": config.UnifracConfig,
    "doctor": config.DoctorConfig,
}


# What slurm/jobs/options.py checks of a number: its kind and range.
NUMBERS = {
    "PositiveInt": "a whole number, 1 or more",
    "NonNegativeInt": "a whole number, 0 or more",
    "Seed": "a whole number, 0 or more",
    "PositiveFloat": "a number above 0",
    "NonNegativeFloat": "a number, 0 or more",
    "Share": "a number from 0 to 1",
    "ShareBelowOne": "a number from 0 to 1",
}


def kind_of(option_type: str) -> str:
    """Kind of an option: flag, one value or several, or the kind and range of a number."""
    if option_type == "bool":
        return "flag"
    if option_type.removesuffix(" | None") in NUMBERS:
        return NUMBERS[option_type.removesuffix(" | None")]
    return "several" if option_type.startswith("tuple") else "one"


def options_of(command: str) -> dict[str, str]:
    """Return the names of the options of a command, with what follows each."""
    kinds: dict[str, str] = {}
    for option in aam.options.options_of(COMMANDS[command]()):
        kind = kind_of(str(option.field.type))
        names = [option.name]
        names += [f"--no-{option.name[2:]}"] if kind == "flag" else []
        kinds |= dict.fromkeys(names, kind)
    return dict(sorted(kinds.items()))


def paths_of(command: str) -> list[str]:
    """Return the names of the options of a command whose values are paths."""
    options = aam.options.options_of(COMMANDS[command]())
    return [option.name for option in options if "Path" in str(option.field.type)]


def as_text() -> str:
    """Return the text of the file."""
    return json.dumps({command: options_of(command) for command in COMMANDS}, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(as_text(), encoding="utf-8")
