"""The entry point: the commands, and how an error becomes a message and an exit status."""

from __future__ import annotations

import contextlib
import difflib
import errno
import logging
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aam import __version__
from aam.api.commands import COMMANDS, Command
from aam.engine.logger import TerminalHandler, write_line
from aam.engine.signals import Signals
from aam.errors import (
    BAD_INPUT,
    CALL_AGAIN,
    FAILED,
    FINISHED,
    OUT_OF_MEMORY,
    CallAgain,
    InputError,
    RunError,
)

# --- programs ------------------------------------------------------------------------------------


class Bundled(NamedTuple):
    """A command that is a program of its own: its file, its help, and programs of first words."""

    path: str
    help: str
    others: Mapping[str, str] = {}


class Program(NamedTuple):
    """A program: its name, its commands, and those that save their state at a signal."""

    name: str
    commands: Mapping[str, Command]
    resumable: tuple[str, ...] = ()
    bundled: Mapping[str, Bundled] = {}


# They have options of their own, and run where only Python is installed.
BUNDLED = {
    "slurm": Bundled("slurm/generate", "write and submit job scripts"),
    "image": Bundled("containers/build", "build and run images", {"run": "containers/run"}),
}

AAM = Program("aam", COMMANDS, ("pretrain", "train"), BUNDLED)

# --- how one is run ------------------------------------------------------------------------------

# What a file system answers if another output must be chosen: bad input. A full or faulty disk is
# a failure.
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
# The same, if it is said of the file that is to be made.
NO_SUCH_PLACE = (errno.ENOENT, errno.ENOTDIR)

ANOTHER_PLACE = "choose an input that you may read, or an output where you may write"
REMEDIES = {errno.ENOSPC: "free space", errno.EDQUOT: "free space in your quota"}
REMEDIES |= dict.fromkeys((*REFUSED, *NO_SUCH_PLACE), ANOTHER_PLACE)


def main(arguments: Sequence[str] | None = None, program: Program = AAM) -> int:
    """Run one command of a program.

    Returns the exit status: 0 finished, 2 bad input, 85 call again, 1 failed. A process that was
    one of several ranks ends with it instead.
    """
    name, *words = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help", "--version"):
        print(f"{program.name} {__version__}" if name == "--version" else _usage(program))
        return FINISHED
    if name in program.bundled:
        return run_bundled(program.bundled[name], words)
    if name not in program.commands:
        return _unknown_command(program, name)
    _configure_log()
    status = FAILED
    try:
        # Before a run handles signals itself, and after, a warning ends it with the status that
        # calls it again.
        with Signals() if name in program.resumable else contextlib.nullcontext():
            status = run(name, words, program)
    except (InputError, RunError, OSError, CallAgain, KeyboardInterrupt) as error:
        expected = isinstance(error, (CallAgain, KeyboardInterrupt, BrokenPipeError))
        if "--debug" in words and not expected:
            raise
        status = _exit_status(f"{program.name} {name}", error)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else FAILED
        raise
    finally:
        if "aam.device.distributed" in sys.modules:
            from aam.device.distributed import end_rank

            end_rank(status)
    return status


def _unknown_command(program: Program, name: str) -> int:
    """Report an unknown command, with a suggestion."""
    from aam.options import removed

    if sentence := removed("commands", name):
        print(f"{program.name} {name} was removed: {sentence}", file=sys.stderr)
        return BAD_INPUT
    near = difflib.get_close_matches(name, [*program.commands, *program.bundled], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    print(f"{program.name}: unknown command {name!r}{hint}\n\n{_usage(program)}", file=sys.stderr)
    return BAD_INPUT


def run(name: str, words: Sequence[str], program: Program = AAM) -> int:
    """Parse `words` and check them, then import and run the command; returns the exit status.

    What a command needs (torch, scikit-learn, pandas) is imported after its options are found to be
    right.
    """
    from aam.cli.command_line import parse
    from aam.device.environment import is_later_rank, is_rank, prepare_environment
    from aam.options import check_problems

    def judge(config: Any) -> list[str]:
        return [] if is_rank(getattr(config, "runtime", None)) else check_problems(config)

    command = program.commands[name]
    try:
        config = parse(f"{program.name} {name}", command.default(), words, judge)
    except InputError as error:
        if is_later_rank(words):
            raise InputError("wrong options; rank 0, which has the same, lists them") from error
        raise
    machine = getattr(config, "runtime", config)
    # Before torch is imported, which reads them.
    prepare_environment(getattr(machine, "threads", None))
    function = command.load()
    try:
        if machine.memory_profile and not getattr(machine, "dry_run", False):
            from aam.device.memory import memory_profiled

            result = memory_profiled(function, config)
        else:
            result = function(config)
    except (MemoryError, RuntimeError) as error:
        if machine.debug or not OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}"):
            raise
        advice = _memory_advice(config)
        raise RunError(f"memory is full ({str(error).splitlines()[0]}); {advice}") from error
    if isinstance(result, int):
        return result
    for title, value in (result or {}).items():
        print(f"{title}: {value}")
    return FINISHED


def programs_folder() -> Path:
    """The folder of containers/ and slurm/: in an installed package (setup.py), or the checkout."""
    package = Path(__file__).parents[1]
    return package / "bundled" if (package / "bundled").is_dir() else package.parent


def run_bundled(program: Bundled, words: Sequence[str]) -> int:
    """Run a program in this process; it ends with `SystemExit`, which has its exit status."""
    path = program.path
    if words and words[0] in program.others:
        path, words = program.others[words[0]], words[1:]
    sys.argv[1:] = words
    runpy.run_path(str(programs_folder() / path), run_name="__main__")
    return FINISHED


def _usage(program: Program) -> str:
    commands: dict[str, Command | Bundled] = {**program.commands, **program.bundled}
    usage = "usage: {0} COMMAND [OPTIONS]    ({0} COMMAND --help lists the options)\n"
    lines = [f"  {name:<11} {command.help}" for name, command in commands.items()]
    return "\n".join([usage.format(program.name), *lines])


def _configure_log() -> None:
    """Send the log of the package to standard error, above a progress bar."""
    log = logging.getLogger("aam")
    log.handlers[:] = [TerminalHandler()]
    log.setLevel(logging.INFO)
    log.propagate = False


def _exit_status(name: str, error: BaseException) -> int:
    """Print what ended the command `name` of a program and return its exit status."""
    if isinstance(error, InputError):
        plural = f"{len(error.problems)} problems" if len(error.problems) > 1 else "problem"
        for line in (f"{name}: {plural}", *(f"  - {problem}" for problem in error.problems)):
            write_line(line)
        return BAD_INPUT
    if isinstance(error, CallAgain):
        if os.environ.get("RANK", "0") == "0":
            write_line(f"{name}: {error}; the same command with --resume-from auto continues")
        return CALL_AGAIN
    if isinstance(error, KeyboardInterrupt):
        write_line(f"{name}: interrupted")
    elif not isinstance(error, BrokenPipeError):
        write_line(f"{name}: {_refused(error) if isinstance(error, OSError) else error}")
    return BAD_INPUT if isinstance(error, OSError) and _is_bad_output(error) else FAILED


def _is_bad_output(error: OSError) -> bool:
    """Whether a file system takes no output at this place, whatever its state."""
    from aam.files.atomic import final_name

    name = error.filename
    is_new = isinstance(name, str) and final_name(name) != Path(name)
    return error.errno in REFUSED or (is_new and error.errno in NO_SUCH_PLACE)


def _refused(error: OSError) -> str:
    """Message about a refusal of the file system, with the remedy."""
    from aam.files.atomic import final_name

    place = f"{final_name(error.filename)}: " if error.filename else ""
    remedy = REMEDIES.get(error.errno or 0)
    advice = f": {remedy}" if remedy else ""
    return f"{place}{error.strerror or error}; no partial files were left behind{advice}"


def _memory_advice(config: Any) -> str:
    """Advice on options when memory is full."""
    from aam.options import options_of

    advice = [
        f"{option.about.memory} {option.name}"
        + ("" if option.value is False else f" ({option.value})")
        for option in options_of(config)
        if option.about.memory and option.value is not True
    ]
    return ", or ".join(advice or ["use a machine with more memory"])
