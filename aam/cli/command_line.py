"""From the words of a command line to the configuration of a command."""

from __future__ import annotations

import argparse
import difflib
import re
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from aam.errors import InputError
from aam.options import Option, options_of, overlaid, read_config, removed

Config = TypeVar("Config")

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
    parser = _parser(command, default)
    # --batch_size is --batch-size.
    words = [re.sub("^--[^=]+", lambda name: name[0].replace("_", "-"), word) for word in arguments]
    found, unknown = parser.parse_known_args(words)
    values = vars(found)
    if (path := values.pop("config", None)) is not None:
        default = read_config(path, default)
    config, problems = overlaid(default, values, "")
    problems += _unknown(unknown, list(parser._option_string_actions))
    if problems := [*problems, *judge(config)]:
        raise InputError(*problems)
    return config


def _parser(command: str, default: Any) -> argparse.ArgumentParser:
    """The parser of a command, which returns the words of each option that is there."""
    parser = _Parser(
        prog=command,
        usage=f"{command} [OPTIONS]",
        description=f"{type(default).__doc__} --config FILE reads options from TOML or a run.json; "
        "the command line wins.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=NAME_WIDTH),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, help=argparse.SUPPRESS)
    groups: dict[type, Any] = {type(default): parser.add_argument_group("Options")}
    for option in options_of(default):
        kind = type(option.section)
        group = groups.get(kind) or groups.setdefault(kind, parser.add_argument_group(kind.__doc__))
        _add(group, option)
    return parser


def _add(group: Any, option: Option) -> None:
    """Add an option to a group of a parser."""
    about = {"help": (option.about.help + _hint(option)).replace("%", "%%")}
    if option.about.positional:
        group.add_argument(option.field.name, nargs="?", metavar=option.name, **about)
        return
    about["dest"] = option.field.name
    if option.kind is bool:
        off = f"--no-{option.name[2:]}"
        group.add_argument(option.name, action="store_const", const=True, **about)
        about["help"] = argparse.SUPPRESS
        group.add_argument(off, action="store_const", const=False, **about)
        return
    nargs = "+" if typing.get_origin(option.kind) is tuple else None
    name = metavar(option).removesuffix(" ...")
    group.add_argument(option.name, nargs=nargs, metavar=name, **about)


def metavar(option: Option) -> str:
    """The placeholder of a value in the help; empty for a switch."""
    if option.about.metavar:
        return option.about.metavar
    several = typing.get_origin(option.kind) is tuple
    item = typing.get_args(option.kind)[0] if several else option.kind
    words = {Path: "PATH", int: "INT", float: "NUMBER", bool: ""}
    return words.get(item, "NAME" if _choices(option) else "TEXT") + " ..." * several


def _choices(option: Option) -> tuple[Any, ...]:
    kind = (
        typing.get_args(option.kind)[0] if typing.get_origin(option.kind) is tuple else option.kind
    )
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def _hint(option: Option) -> str:
    """End of the help of an option: choices, range, default."""
    default = " ".join(map(str, option.values))
    parts = [
        "|".join(map(str, _choices(option))),
        option.range,
        "required" if option.required and not default else "",
        f"default {default}" if default and option.value is not False else "",
    ]
    shown = "; ".join(filter(None, parts))
    return f" ({shown})" if shown else ""


def _unknown(words: Sequence[str], known: Sequence[str]) -> list[str]:
    """A problem for each word that looks like an option, else for each word."""
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    problems = [] if flags else [f"{word}: unexpected; --help lists the options" for word in words]
    for flag in flags:
        if sentence := removed("options", flag.replace("--no-", "--", 1)):
            problems.append(f"{flag} was removed: {sentence}")
            continue
        near = difflib.get_close_matches(flag, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "--help lists the options"
        problems.append(f"{flag}: unknown option; {hint}")
    return problems
