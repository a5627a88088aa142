"""The commands, their command lines generated from the configuration classes, and the exit status."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib
import logging
import os
import re
import signal
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import tyro

from aam import __version__
from aam.config import FineTuneConfig, PretrainConfig
from aam.config_commands import (
    BenchConfig,
    CompareConfig,
    DoctorConfig,
    EmbedConfig,
    EvaluateConfig,
    PredictConfig,
    ProfileConfig,
    RfBaselineConfig,
    SimulateConfig,
    UnifracConfig,
)
from aam.errors import BAD_INPUT, CALL_AGAIN, FAILED, FINISHED, CallAgain, InputError, RunError
from aam.options import read_config, to_dict
from aam.runtime.environment import prepare_environment
from aam.runtime.files import final_name

Config = TypeVar("Config")


def _plain(hint: Any) -> Any:
    """The type behind `X | None`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(a for a in typing.get_args(hint) if a is not type(None))
    return hint


def _metavar(hint: Any, given: str | None) -> str | None:
    if given is not None:
        return given
    plain = _plain(hint)
    return {Path: "PATH", int: "INT", float: "NUMBER", str: "TEXT"}.get(plain)


def _shadow(default: Any, show_all: bool) -> Any:
    """An instance of a class like `default`'s whose annotations tell tyro what to print."""
    hints = typing.get_type_hints(type(default))
    members: list[tuple[str, Any, Any]] = []
    for item in dataclasses.fields(default):
        value = getattr(default, item.name)
        if dataclasses.is_dataclass(value):
            inner = _shadow(value, show_all)
            members.append((item.name, type(inner), dataclasses.field(default=inner)))
            continue
        metavar = _metavar(hints[item.name], item.metadata["metavar"])
        markers = [tyro.conf.arg(help=item.metadata["help"], metavar=metavar)]
        if item.metadata["rare"] and not show_all:
            markers.append(tyro.conf.Suppress)
        if item.metadata["positional"]:
            markers.append(tyro.conf.Positional)
        annotated: Any = Annotated[(hints[item.name], *markers)]
        members.append((item.name, annotated, dataclasses.field(default=value)))
    shadow = dataclasses.make_dataclass(type(default).__name__, members, frozen=True)
    shadow.__doc__ = type(default).__doc__
    return shadow()


def _real(default: Any, parsed: Any) -> Any:
    values = {item.name: getattr(parsed, item.name) for item in dataclasses.fields(default)}
    for name, value in values.items():
        if dataclasses.is_dataclass(value):
            values[name] = _real(getattr(default, name), value)
    return type(default)(**values)


def parse(command: str, default: Config, arguments: Sequence[str]) -> Config:
    """The configuration of `command`: `default`, overlaid by ``--config FILE``, then by `arguments`.

    ``--help`` shows the usual options and ``--help-all`` every one; tyro exits with status 2 on an
    option it does not know.
    """
    rest, config_file = _take_config(_split_lists([_respelled(word) for word in arguments]))
    if config_file is not None:
        default = read_config(config_file, default)
    help_short = "--help" in rest or "-h" in rest
    rest = ["--help" if word == "--help-all" else word for word in rest]
    shadow = _shadow(default, show_all=not help_short)
    description = f"{type(default).__doc__}\n\n--config FILE reads TOML or a run.json; the command line wins."
    if help_short:
        description += " --help-all shows the rarely used options too."
    parsed = tyro.cli(
        type(shadow),
        prog=f"aam {command}",
        default=shadow,
        args=rest,
        description=description,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return _real(default, parsed)  # type: ignore[no-any-return]


# Spellings of earlier programs, and ours.
ALIASES = {"--random-seed": "--seed"}


def _respelled(word: str) -> str:
    name, equals, value = word.partition("=")
    return ALIASES.get(name, name) + equals + value


LISTS = ("--quantiles", "--regressor-hidden-dims", "--categorical-columns", "--conditional-output-scaling")


def _split_lists(words: Sequence[str]) -> list[str]:
    """Lists with commas, as scripts for the predecessor have them, as one word for each item."""
    found, option = [], ""
    for word in words:
        option, _, first = word.partition("=") if word.startswith("--") else (option, "", word)
        listed = [item for item in first.split(",") if item]
        found += [word] if option not in LISTS else [*([option] if word.startswith("--") else []), *listed]
    return found


def _take_config(arguments: list[str]) -> tuple[list[str], Path | None]:
    rest, found, position = [], None, 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--config":
            if position + 1 == len(arguments):
                raise InputError("--config: no file follows it")
            found, position = Path(arguments[position + 1]), position + 1
        elif word.startswith("--config="):
            found = Path(word.removeprefix("--config="))
        else:
            rest.append(word)
        position += 1
    return rest, found


# --- commands --------------------------------------------------------------------------------------------


# How a full memory is said: by numpy, by torch of a CPU, by torch of a GPU.
FULL = re.compile(r"MemoryError|can't allocate memory|out of memory", re.IGNORECASE)


def _lower(options: dict[str, Any]) -> str:
    """What to lower when memory is full, with the values that were too much."""
    options = {**options, **{name: value for part in options.values() if isinstance(part, dict) for name, value in
               part.items()}}  # fmt: skip
    words = {"batch_size": "lower", "token_limit": "lower", "asv_chunk_size": "set or lower", "memory_limit": "lower"}
    said = [f"{word} --{name.replace('_', '-')} ({options[name]})" for name, word in words.items() if name in options]
    said += ["pass --gradient-checkpointing"] if options.get("gradient_checkpointing") is False else []
    said += ["--auto-batch-size finds what fits"] if "auto_batch_size" in options else []
    return ", or ".join(said or ["use a machine with more memory"])


class Command(NamedTuple):
    """Its defaults, the function ``module:name`` that runs a configuration, and what it does."""

    default: Any
    runs: str
    help: str

    def run(self, name: str, words: Sequence[str]) -> int:
        """Parse `words`, then import and run; facts that are returned are printed, a status is passed on."""
        config = parse(name, self.default, words)
        asked = to_dict(config)
        asked |= asked.get("runtime", {})
        # Before torch is imported, which reads them.
        prepare_environment(asked.get("use_expandable_segments", False))
        module, _, function = self.runs.partition(":")
        run = getattr(importlib.import_module(module), function)
        try:
            if asked["memory_profile"]:
                result = importlib.import_module("aam.commands.memory_profile").memory_profiled(run, config)
            else:
                result = run(config)
        except (MemoryError, RuntimeError) as error:
            if asked["debug"] or not FULL.search(f"{type(error).__name__}: {error}"):
                raise
            raise RunError(f"memory is full ({str(error).splitlines()[0]}); {_lower(to_dict(config))}") from error
        if isinstance(result, int):
            return result
        for title, value in (result or {}).items():
            print(f"{title}: {value}")
        return FINISHED


COMMANDS = {
    "simulate": Command(SimulateConfig(), "aam.data.simulate:simulate", "write a synthetic study with known signal"),
    "unifrac": Command(UnifracConfig(), "aam.commands.unifrac:write_unifrac", "UniFrac matrix or Faith PD of a table"),
    "pretrain": Command(PretrainConfig(), "aam.commands.train:pretrain", "pretrain an encoder on a table and a tree"),
    "train": Command(FineTuneConfig(), "aam.commands.train:train", "fine-tune on metadata columns"),
    "predict": Command(PredictConfig(), "aam.commands.predict:predict_table", "predict new samples"),
    "embed": Command(EmbedConfig(), "aam.commands.embed:embed_table", "vectors of samples and ASVs"),
    "evaluate": Command(EvaluateConfig(), "aam.commands.evaluate:evaluate_table", "compare predictions with the truth"),
    "rf-baseline": Command(
        RfBaselineConfig(), "aam.commands.baselines:rf_baseline", "forests, nearest neighbours and trivial baselines"
    ),
    "compare": Command(CompareConfig(), "aam.commands.compare:compare", "how two runs, machines or benchmarks differ"),
    "doctor": Command(DoctorConfig(), "aam.commands.doctor:doctor", "is this machine right and fast, what mends it"),
    "profile": Command(ProfileConfig(), "aam.commands.profile:profile", "where the time of a step goes; what fits"),
    "bench": Command(BenchConfig(), "aam.commands.bench:bench", "measure speed and memory on this device"),
}


RESUMABLE = ("pretrain", "train")


def _usage() -> str:
    lines = [f"  {name:<11} {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: aam COMMAND [OPTIONS]    (aam COMMAND --help lists the options)", "", *lines])


def _configure_log() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log = logging.getLogger("aam")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


MENDS = {errno.ENOSPC: "free space", errno.EDQUOT: "free space in your quota"}
MENDS |= dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "choose an output where you may write")


def _refused(error: OSError) -> str:
    """What a file system refused, and what mends it."""
    place = f"{final_name(error.filename)}: " if error.filename else ""
    mend = MENDS.get(error.errno or 0)
    return f"{place}{error.strerror or error}; nothing was written half{f': {mend}' if mend else ''}"


@contextlib.contextmanager
def _early_signals() -> Iterator[None]:
    """Until a run listens itself, and after, a warning ends it with the status that calls it again."""

    def catch(number: int, frame: types.FrameType | None) -> None:
        raise CallAgain(f"{signal.Signals(number).name} came where there is nothing to save")

    before = {one: signal.signal(one, catch) for one in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 finished, 2 bad input, 85 call again, 1 failed."""
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
        with _early_signals() if words[0] in RESUMABLE else contextlib.nullcontext():
            return COMMANDS[words[0]].run(words[0], words[1:])
    except InputError as error:
        if debug:
            raise
        plural = f"{len(error.problems)} problems" if len(error.problems) > 1 else "problem"
        print(f"aam {words[0]}: {plural}", *(f"  - {p}" for p in error.problems), sep="\n", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        return FAILED
    except (OSError, RunError) as error:
        if debug:
            raise
        said = _refused(error) if isinstance(error, OSError) else error
        print(f"aam {words[0]}: {said}", file=sys.stderr)
        return FAILED
    except CallAgain as stop:
        if os.environ.get("RANK", "0") == "0":
            print(f"aam {words[0]}: {stop}; the same command with --resume-from auto goes on", file=sys.stderr)
        return CALL_AGAIN
    except KeyboardInterrupt:
        print(f"aam {words[0]}: interrupted", file=sys.stderr)
        return FAILED
