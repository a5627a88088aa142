"""The entry point: picks the command, prints errors, returns the exit status."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence

from aam import __version__
from aam.errors import BAD_INPUT, FAILED, FINISHED, InputError

COMMANDS = {
    "simulate": "write a synthetic study with known signal",
    "unifrac": "UniFrac matrix or Faith PD of a table",
    "pretrain": "pretrain an encoder on a table and a tree",
    "train": "fine-tune on metadata columns",
    "predict": "predict new samples",
    "embed": "vectors of samples and ASVs",
    "evaluate": "compare predictions with the truth",
    "bench": "measure speed and memory on this device",
}


def _usage() -> str:
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    return "\n".join(["usage: aam COMMAND [OPTIONS]    (aam COMMAND --help lists the options)", "", *lines])


def _configure_log() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("aam")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


def _out_of_disk(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}; nothing was written half: free space or choose another output"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 finished, 2 bad input, 1 failed."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return FINISHED
    if words[0] == "--version":
        print(f"aam {__version__}")
        return FINISHED
    if words[0] not in COMMANDS:
        print(f"aam: unknown command {words[0]!r}\n\n{_usage()}", file=sys.stderr)
        return BAD_INPUT
    _configure_log()
    debug = "--debug" in words
    try:
        commands = importlib.import_module("aam.cli.commands")
        getattr(commands, words[0])(words[1:])
    except InputError as error:
        if debug:
            raise
        plural = f"{len(error.problems)} problems" if len(error.problems) > 1 else "problem"
        print(f"aam {words[0]}: {plural}", *(f"  - {p}" for p in error.problems), sep="\n", file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        if debug:
            raise
        print(f"aam {words[0]}: {_out_of_disk(error)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(f"aam {words[0]}: interrupted", file=sys.stderr)
        return FAILED
    return FINISHED
