"""The command line generated from the configuration classes."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from aam.config_file import read_config
from aam.errors import InputError

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
    rest, config_file = _take_config(list(arguments))
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
