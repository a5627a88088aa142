"""The command line: its commands and their options, and how an error becomes a message and an exit
status.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import logging
import os
import re
import runpy
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from aam import __version__
from aam.engine.logger import TerminalHandler, write_line
from aam.engine.signals import Signals, interrupts_as_in_python
from aam.errors import (
    BAD_INPUT,
    CALL_AGAIN,
    FAILED,
    FINISHED,
    KILLED,
    OUT_OF_MEMORY,
    CallAgain,
    InputError,
    RunError,
    UnlikeTrainingWarning,
)

if TYPE_CHECKING:
    from aam.typing import OptionValue

Config = TypeVar("Config")

# --- commands ------------------------------------------------------------------------------------


class Command(NamedTuple):
    """A command: its configuration in config.py, ``module:name`` of its function, and its help.

    Both are imported from `package` when the command is called.
    """

    config: str
    function: str
    help: str
    package: str = "aam"

    def default(self) -> Any:
        """The configuration without any option given."""
        return getattr(importlib.import_module(f"{self.package}.config"), self.config)()

    def load(self) -> Callable[[Any], Any]:
        """The function that runs a configuration."""
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(f"{self.package}.{module}"), name)  # type: ignore[no-any-return]


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


COMMANDS = {
    "audit": Command("AuditConfig", "api.audit:audit_study", "what gives a target away"),
    "pretrain": Command("PretrainConfig", "api.training:run_pretraining", "pretrain an encoder"),
    "train": Command(
        "FineTuneConfig", "api.training:run_training", "learn to predict metadata columns"
    ),
    "predict": Command("PredictConfig", "api.apply:predict_table", "predict new samples"),
    "evaluate": Command("EvaluateConfig", "api.evaluation:evaluate_table", "judge predictions"),
    "explain": Command("ExplainConfig", "api.explanation:explain_model", "ASVs that matter"),
    "embed": Command("EmbedConfig", "api.apply:embed_table", "vectors of samples and ASVs"),
    "unifrac": Command("UnifracConfig", "api.unifrac:write_unifrac", "UniFrac or Faith PD"),
    "export": Command("ExportConfig", "api.export:export_model", "a model for other programs"),
    "doctor": Command("DoctorConfig", "api.doctor:doctor", "check this machine"),
    "profile": Command("ProfileConfig", "api.profile:profile", "time and memory of a step"),
}

# They have options of their own, and run where only Python is installed.
BUNDLED = {
    "slurm": Bundled("slurm/generate", "write and submit job scripts"),
    "image": Bundled("containers/build", "build and run images", {"run": "containers/run"}),
}

AAM = Program("aam", COMMANDS, ("pretrain", "train"), BUNDLED)


def run(command: str, **options: OptionValue) -> int:
    """Run a command with its options by keyword, as ``aam COMMAND`` does.

    Parameters
    ----------
    command : str
        Such as ``train`` or ``unifrac``.
    **options
        Of the command, with underscores: ``rarefy_depth=500``.

    Returns
    -------
    int
        0, or the exit status of the command.

    Raises
    ------
    InputError
        Another command, or wrong options or inputs, with every problem.

    Examples
    --------
    >>> aam.run("unifrac", table="table.biom", tree="tree.nwk", output="unifrac.tsv")
    0
    """
    from aam.options import check, configured

    if command not in COMMANDS:
        raise InputError(f"aam.run: command is {command!r}, expected one of {', '.join(COMMANDS)}")
    config = configured(COMMANDS[command].default(), options, f"aam.run({command!r})")
    check(config)
    with interrupts_as_in_python():
        status = COMMANDS[command].load()(config)
    return status if isinstance(status, int) else FINISHED


# --- options -------------------------------------------------------------------------------------

# Width of the column of names in the help.
NAME_WIDTH = 34


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of `aam`."""

    def error(self, message: str) -> NoReturn:
        """Raise `InputError`."""
        raise InputError(message.removeprefix("argument "))


def parse(
    command: str,
    default: Config,
    arguments: Sequence[str],
    judge: Callable[[Config], list[str]] = lambda config: [],
) -> Config:
    """Lay ``--config FILE``, then `arguments`, over the defaults of `command`.

    `judge` returns further problems. ``--help`` ends the process with status 0.

    Raises
    ------
    InputError
        Names every unknown option with the nearest one, and all that is wrong with options.
    """
    from aam.options import overlaid, read_config, unknown

    parser = _parser(command, default)
    # --batch_size is --batch-size.
    words = [re.sub("^--[^=]+", lambda name: name[0].replace("_", "-"), word) for word in arguments]
    namespace, unexpected = parser.parse_known_args(words)
    values = vars(namespace)
    if (path := values.pop("config", None)) is not None:
        default = read_config(path, default)
    config, problems = overlaid(default, values, "")
    flags = [word.partition("=")[0] for word in unexpected if word.startswith("--")]
    problems += [unknown("option", flag, parser._option_string_actions) for flag in flags]
    # The values of an unknown option are no words of their own.
    problems += [unknown("word", word) for word in unexpected if not flags]
    if problems := [*problems, *judge(config)]:
        raise InputError(*problems)
    return config


def _parser(command: str, default: Any) -> argparse.ArgumentParser:
    """The parser of a command, which returns the words of each option that is there."""
    from aam.options import options_of

    options = list(options_of(default))
    required = [f"{x.name} " * (not x.about.positional) + x.metavar for x in options if x.required]
    parser = _Parser(
        prog=command,
        usage=" ".join([command, *required, "[OPTIONS]"]).replace("%", "%%"),
        description=f"{type(default).__doc__} --config FILE reads options from TOML or a run.json; "
        "the command line wins.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=NAME_WIDTH),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, help=argparse.SUPPRESS)
    groups: dict[type, Any] = {type(default): parser.add_argument_group("Options")}
    for option in options:
        kind = type(option.section)
        if kind not in groups:
            groups[kind] = parser.add_argument_group(kind.__doc__)
        _add(groups[kind], option)
    return parser


def _add(group: Any, option: Any) -> None:
    """Add an option (`aam.options.Option`) to a group of a parser."""
    default = " ".join(map(str, option.values))
    hints = ["|".join(map(str, option.choices)), option.range]
    hints += ["required"] if option.required and not default else []
    hints += [f"default {default}"] if default and option.value is not False else []
    hint = "; ".join(filter(None, hints))
    properties = {"help": (option.about.help + f" ({hint})" * bool(hint)).replace("%", "%%")}
    if option.about.positional:
        is_named = bool(option.about.name)
        hidden = {"help": argparse.SUPPRESS} if is_named else properties
        place = option.about.metavar
        group.add_argument(option.field.name, nargs="?", metavar=place, **hidden)
        if not is_named:
            return
    properties["dest"] = option.field.name
    if option.kind is bool:
        group.add_argument(option.name, action="store_const", const=True, **properties)
        properties["help"], off = argparse.SUPPRESS, f"--no-{option.name[2:]}"
        group.add_argument(off, action="store_const", const=False, **properties)
        return
    nargs, name = "+" if option.several else None, option.metavar.removesuffix(" ...")
    group.add_argument(option.name, nargs=nargs, metavar=name, **properties)


# --- a run ---------------------------------------------------------------------------------------

# What a file system answers if another output must be chosen: bad input. A full or faulty disk is
# a failure.
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
# The same, if it is said of the file that is to be made.
NO_SUCH_PLACE = (errno.ENOENT, errno.ENOTDIR)

REMEDIES = {errno.ENOSPC: "free space", errno.EDQUOT: "free space in your quota"}
ANOTHER_PLACE = "choose an input that you may read, or an output where you may write"


def _version(program: Program) -> str:
    """The version of a program, the commit of its code and torch, for reports of problems."""
    from importlib import metadata

    from aam.files.revision import code_commit

    try:
        torch = f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        torch = "no torch"
    return f"{program.name} {__version__} (commit {code_commit() or 'unknown'}, {torch})"


def main(arguments: Sequence[str] | None = None, program: Program = AAM) -> int:
    """Run one command of a program.

    Returns the exit status: 0 finished, 2 bad input, 85 call again, 1 failed. A process that was
    one of several ranks ends with it instead.
    """
    name, *words = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help", "--version"):
        print(_version(program) if name == "--version" else _usage(program))
        return FINISHED
    if name in program.bundled:
        return _run_bundled(program.bundled[name], words)
    if name not in program.commands:
        from aam.options import unknown

        known = [*program.commands, *program.bundled, "--help", "--version"]
        print(f"{program.name}: {unknown('command', name, known)}", file=sys.stderr)
        return BAD_INPUT
    log = logging.getLogger("aam")
    # Standard error, above a progress bar.
    log.handlers[:], log.propagate = [TerminalHandler()], False
    log.setLevel(logging.INFO)
    status = FAILED
    try:
        # Before a run handles signals itself, and after, a warning ends it with the status that
        # calls it again.
        signals = Signals() if name in program.resumable else contextlib.nullcontext()
        with signals, warnings.catch_warnings():
            warnings.simplefilter("always", UnlikeTrainingWarning)
            # As lines above a progress bar.
            warnings.showwarning = lambda message, *_, **__: log.warning("warning: %s", message)
            status = _run(name, words, program)
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


def _run(name: str, words: Sequence[str], program: Program) -> int:
    """Parse `words` and check them, then import and run the command; returns the exit status.

    What a command needs (torch, scikit-learn, pandas) is imported after its options are found to be
    right.
    """
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
            from aam.device.measure import memory_profiled

            result = memory_profiled(function, config)
        else:
            result = function(config)
    except (MemoryError, RuntimeError) as error:
        if "DataLoader worker" in str(error):
            raise RunError(f"{KILLED} ({error}); lower --num-workers") from error
        if machine.debug or not OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}"):
            raise
        line, *_ = str(error).splitlines() or [type(error).__name__]
        raise RunError(f"memory is full ({line}); {_memory_advice(config)}") from error
    if isinstance(result, int):
        return result
    for title, value in (result or {}).items():
        print(f"{title}: {value}")
    return FINISHED


def _run_bundled(program: Bundled, words: Sequence[str]) -> int:
    """Run a program in this process; it ends with `SystemExit`, which has its exit status."""
    path = program.path
    if words and words[0] in program.others:
        path, words = program.others[words[0]], words[1:]
    sys.argv[1:] = words
    # An installed package holds containers/ and slurm/ (setup.py); so does a checkout.
    package = Path(__file__).parent
    folder = package / "bundled" if (package / "bundled").is_dir() else package.parent
    runpy.run_path(str(folder / path), run_name="__main__")
    return FINISHED


def _usage(program: Program) -> str:
    commands: dict[str, Command | Bundled] = {**program.commands, **program.bundled}
    usage = "usage: {0} COMMAND [OPTIONS]    ({0} COMMAND --help lists the options)\n"
    lines = [f"  {name:<11} {command.help}" for name, command in commands.items()]
    lines.append(f"  {'--version':<11} version, commit and torch, for reports of problems")
    return "\n".join([usage.format(program.name), *lines])


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
    if isinstance(error, BrokenPipeError):
        return FAILED
    if isinstance(error, OSError):
        return _refused(name, error)
    write_line(f"{name}: {'interrupted' if isinstance(error, KeyboardInterrupt) else error}")
    return FAILED


def _refused(name: str, error: OSError) -> int:
    """Print that the file system refused, with the remedy; bad input if it takes no output at this
    place, whatever its state.
    """
    from aam.files.atomic import final_name

    path, code = error.filename, error.errno or 0
    place = f"{final_name(path)}: " if path else ""
    remedy = REMEDIES.get(code, ANOTHER_PLACE if code in (*REFUSED, *NO_SUCH_PLACE) else "")
    message = f"{place}{error.strerror or error}; no partial files were left behind"
    write_line(f"{name}: {message}{remedy and ': '}{remedy}")
    is_new = isinstance(path, str) and final_name(path) != Path(path)
    is_bad = code in REFUSED or (is_new and code in NO_SUCH_PLACE)
    return BAD_INPUT if is_bad else FAILED


def _memory_advice(config: Any) -> str:
    """Advice on options when memory is full."""
    from aam.options import options_of

    advice = []
    for option in options_of(config):
        if option.about.memory and option.value is not True:
            value = "" if option.value is False else f" ({option.value})"
            advice.append(f"{option.about.memory} {option.name}{value}")
    return ", or ".join(advice or ["use a machine with more memory"])
