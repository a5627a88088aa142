"""From the words of a command line to the configuration of a command."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from aam.config import ALIASES, PLURALS, PretrainConfig
from aam.config_studies import with_studies
from aam.errors import InputError, shown
from aam.options import Range, options_of, read_config, without_none, without_omitted, writer_of

log = logging.getLogger("aam")

Config = TypeVar("Config")

# Options of a file that say which samples are read: never left out in silence.
SAMPLES = frozenset(f"[data] {name}" for name in ("table", "tables", "tree", "trees", "hold_out_study", "cv"))

METAVARS = {Path: "PATH", int: "INT", float: "NUMBER", str: "TEXT"}


def parse(command: str, default: Config, arguments: Sequence[str]) -> Config:
    """Return the configuration of `command`: `default`, overlaid by ``--config FILE``, then by `arguments`.

    ``--help`` shows the usual options and ``--help-all`` every one; tyro exits with status 2 on a value that is none.

    Raises
    ------
    InputError
        Names every option that the command does not have, with the nearest one, and what is wrong with the file.
    """
    names = [each.name for each in options_of(default) if each.name.startswith("--")]
    words = _split_lists([_standard_spelling(word, names) for word in arguments], _list_options(default))
    words, config_file = _take_config(words)
    problems = list(_unknown_options(words, names, default))
    if problems:
        raise InputError(*problems)
    if config_file is not None:
        default = _from_file(config_file, default, command)
    help_short = "--help" in words or "-h" in words
    if not help_short and "--help-all" not in words and (problems := _without_values(words, default)):
        raise InputError(*problems)
    words = ["--help" if word == "--help-all" else word for word in words]
    shadow = _shadow(default, show_all=not help_short)
    description = f"{type(default).__doc__}\n\n--config FILE reads TOML or a run.json; the command line wins."
    if help_short:
        description += " --help-all shows the rarely used options too."
    parsed = tyro.cli(
        type(shadow),
        prog=command,
        default=shadow,
        args=words,
        description=description,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return _real(default, parsed)  # type: ignore[no-any-return]


def _from_file(path: Path, usual: Config, command: str) -> Config:
    """Return the options of a file, as in `usual` where the `command` has them not; which these are is logged.

    Raises
    ------
    InputError
        What is wrong with the file, or which other command wrote it, and each option that says which samples are read
        and that the command has not.
    """
    try:
        read = read_config(path, usual, with_studies if isinstance(usual, PretrainConfig) else None)
    except InputError as error:
        writer = writer_of(path)
        if len(error.problems) == 1 or writer in ("", command.rpartition(" ")[2]):
            raise
        raise InputError(
            f"{path}: written by `aam {writer}`, and holds {len(error.problems)} options that `{command}` does not "
            f"have; pass the run.json of `{command}`, or its options in TOML"
        ) from None
    config, left_out = without_omitted(read, usual)
    problems = [
        f"{path}: {name} is {shown(value) if isinstance(value, tuple) else value}, and this command has no such "
        "option; leave it out"
        for name, value in left_out.items()
        if name in SAMPLES
    ]
    if problems:
        raise InputError(*problems)
    if left_out:
        log.info("%s: %s not used, this command has no such options", path, shown(left_out, 20))
    return config


def _standard_spelling(word: str, names: Iterable[str]) -> str:
    """Return an option under the name that the command has it by, with hyphens."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    name = name.replace("_", "-")
    alias = ALIASES.get(name, PLURALS.get(name, name))
    return (alias if alias in names else name) + equals + value


def _unknown_options(words: Iterable[str], names: Sequence[str], default: Any) -> Iterator[str]:
    """Yield a problem for each word that looks like an option and is none, with the one that is meant."""
    switches = ["--no-" + each.name[2:] for each in options_of(default) if isinstance(each.value, bool)]
    option_names = {*names, *switches, "--help", "--help-all", "--debug"}
    spellings = {
        **dict.fromkeys(option_names - {"--help"}),
        **{a: name for a, name in ALIASES.items() if name in option_names},
    }
    for word in words:
        name = word.partition("=")[0]
        if word.startswith("--") and len(word) > 2 and name not in option_names:
            near = difflib.get_close_matches(name, spellings, n=1)
            hint = f"did you mean {spellings[near[0]] or near[0]}?" if near else "--help-all lists the options"
            yield f"{name}: unknown option; {hint}"


def _without_values(words: Sequence[str], default: Any) -> list[str]:
    """Return a problem for each option of several values that has none, unless it takes away those of a file."""
    empty = {each.name for each in options_of(default) if each.value == ()}
    return [
        f"{word}: no value follows it; give one or more, or leave it out"
        for word, following in zip(words, [*words, "--"][1:], strict=True)
        if word in empty and following.startswith("--")
    ]


def _list_options(default: Any) -> set[str]:
    """Return the options of several values, except names of columns and files, which may hold commas."""
    hints = {"--quantiles", "--regressor-hidden-dims", "--categorical-columns", "--conditional-output-scaling"}
    return {each.name for each in options_of(default)} & hints


def _split_lists(words: Sequence[str], lists: set[str]) -> list[str]:
    """Return lists with commas, as scripts for the predecessor have them, as one word for each item."""
    split: list[str] = []
    option = ""
    for word in words:
        option, _, first = word.partition("=") if word.startswith("--") else (option, "", word)
        items = [item for item in first.split(",") if item]
        split += [word] if option not in lists else [*([option] if word.startswith("--") else []), *items]
    return split


def _take_config(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """Return the words without ``--config FILE``, and the file."""
    words: list[str] = []
    config_file = None
    remaining = iter(arguments)
    for word in remaining:
        if word == "--config":
            name = next(remaining, None)
            if name is None:
                raise InputError("--config: no file follows it")
            config_file = Path(name)
        elif word.startswith("--config="):
            config_file = Path(word.removeprefix("--config="))
        else:
            words.append(word)
    return words, config_file


def _hint(allowed: Range | None, required: bool, default: Any) -> Any:
    """Return what the help says after the text of an option: whether it is required, its default, its range."""
    bounds = "" if allowed is None else f"; {allowed}"
    if required and default in (None, ()):
        return f"(required{bounds})"
    if default in (None, ()):
        return f"({allowed!s})" if allowed else ""
    return lambda text: f"(default: {text}{bounds})"


def _shadow(default: Any, show_all: bool, required: Iterable[str] = (), omitted: Iterable[str] = ()) -> Any:
    """Return an instance of a class like `default`'s whose annotations tell tyro what to print."""
    hints = typing.get_type_hints(type(default))
    members: list[tuple[str, Any, Any]] = []
    for item in dataclasses.fields(default):
        value, about = getattr(default, item.name), item.metadata
        if dataclasses.is_dataclass(value):
            inner = _shadow(value, show_all, about.get("required", ()), about.get("omitted", ()))
            members.append((item.name, type(inner), dataclasses.field(default=inner)))
            continue
        if item.name in omitted:
            continue
        needed = about["required"] or item.name in required
        metavar = about["metavar"] or METAVARS.get(without_none(hints[item.name]))
        hint = _hint(about["range"], needed, value)
        markers: list[Any] = [tyro.conf.arg(help=about["help"], metavar=metavar, help_behavior_hint=hint)]
        if about["rare"] and not show_all:
            markers.append(tyro.conf.Suppress)
        if about["positional"]:
            markers.append(tyro.conf.Positional)
        annotated: Any = Annotated[(hints[item.name], *markers)]
        members.append((item.name, annotated, dataclasses.field(default=value)))
    shadow = dataclasses.make_dataclass(type(default).__name__, members, frozen=True)
    shadow.__doc__ = type(default).__doc__
    return shadow()


def _real(default: Any, parsed: Any) -> Any:
    """Return a configuration of the class of `default` with the parsed values."""
    values = {item.name: getattr(default, item.name) for item in dataclasses.fields(default)}
    for name, value in values.items():
        # The parsed class lacks what the command does not take.
        given = getattr(parsed, name, value)
        values[name] = _real(value, given) if dataclasses.is_dataclass(value) else given
    return type(default)(**values)
