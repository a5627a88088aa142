"""From the words of a command line to the configuration of a command."""

from __future__ import annotations

import dataclasses
import difflib
import shutil
import textwrap
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from aam.errors import FINISHED, InputError
from aam.options import Option, options_of, overlaid, read_config, removed, spelled

Config = TypeVar("Config")

HELP = ("--help", "-h")
# Width of the column of names in the help.
NAME_WIDTH = 34


def parse(
    command: str,
    default: Config,
    arguments: Sequence[str],
    judge: Callable[[Config], list[str]] = lambda config: [],
) -> Config:
    """Lay ``--config FILE``, then `arguments`, over the defaults of `command`.

    tyro exits with status 2 on a value of a wrong type. `judge` returns further problems.

    Raises
    ------
    InputError
        Names every unknown option with the nearest one, and all that is wrong with options.
    """
    words, config_file = _take_config([_with_hyphens(word) for word in arguments])
    if config_file is not None:
        default = read_config(config_file, default)
    options = {each.name: each for each in options_of(default)}
    if problems := [*_unknown_options(words, options, default), *_without_values(words, options)]:
        raise InputError(*problems)
    if any(word in HELP for word in words):
        print(help_text(command, default))
        raise SystemExit(FINISHED)
    values = tyro.cli(
        type(default),
        prog=command,
        default=default,
        args=list(_switched(words, options)),
        add_help=False,
        config=(tyro.conf.OmitArgPrefixes,),
        registry=_registry(default),
    )
    config, problems = overlaid(default, values, "")  # type: ignore[arg-type]
    if problems := [*problems, *judge(config)]:
        raise InputError(*problems)
    return config


def _registry(default: Any) -> ConstructorRegistry:
    """Let tyro read a configuration as a dict of the options that the command takes."""
    registry = ConstructorRegistry()
    options: dict[type, list[Option]] = {}
    for each in options_of(default):
        options.setdefault(type(each.section), []).append(each)

    @registry.struct_rule
    def rule(info: StructTypeInfo) -> StructConstructorSpec | None:
        if not dataclasses.is_dataclass(info.default) or isinstance(info.default, type):
            return None
        fields = [
            StructFieldSpec(
                each.field.name, _annotated(each), getattr(info.default, each.field.name)
            )
            for each in options.get(info.type, ())
        ]
        for item in dataclasses.fields(info.default):
            value = getattr(info.default, item.name)
            if dataclasses.is_dataclass(value):
                fields.append(StructFieldSpec(item.name, type(value), value))
        return StructConstructorSpec(lambda **values: values, tuple(fields))

    return registry


def _annotated(each: Option) -> Any:
    """The type of an option with its name on the command line."""
    name = each.name[2:] if each.about.name else None
    markers = [tyro.conf.Positional] if each.about.positional else []
    return Annotated[(each.hint, tyro.conf.arg(name=name), *markers)]


def help_text(command: str, default: Any) -> str:
    """The options of a command by section, one line each where it fits."""
    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    lines = [f"usage: {command} [OPTIONS]", "", str(type(default).__doc__)]
    lines += ["", "--config FILE reads options from TOML or a run.json; the command line wins."]
    section = None
    for each in options_of(default):
        if type(each.section) is not section:
            section = type(each.section)
            title = "Options" if each.section is default else str(section.__doc__)
            lines += ["", f"{title}:"]
        name = f"  {each.name} {metavar(each)}".rstrip()
        text = f"{name:<{NAME_WIDTH}} {each.about.help}{_hint(each)}"
        lines += textwrap.wrap(text, width, subsequent_indent=" " * (NAME_WIDTH + 1))
    return "\n".join(lines)


def metavar(each: Option) -> str:
    """The placeholder of a value in the help; empty for a switch."""
    if each.about.metavar:
        return "" if each.about.positional else each.about.metavar
    several = typing.get_origin(each.kind) is tuple
    item = typing.get_args(each.kind)[0] if several else each.kind
    words = {Path: "PATH", int: "INT", float: "NUMBER", bool: ""}
    return words.get(item, "NAME" if _choices(each) else "TEXT") + " ..." * several


def _choices(each: Option) -> tuple[Any, ...]:
    kind = typing.get_args(each.kind)[0] if typing.get_origin(each.kind) is tuple else each.kind
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def _hint(each: Option) -> str:
    """What the help says after the text of an option: choices, default, range."""
    default = " ".join(map(str, each.values))
    parts = [
        "|".join(map(str, _choices(each))),
        each.range,
        "required" if each.required and not default else "",
        f"default {default}" if default and each.value is not False else "",
    ]
    shown = "; ".join(filter(None, parts))
    return f" ({shown})" if shown else ""


def _with_hyphens(word: str) -> str:
    """An option with hyphens for underscores."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _is_switch(each: Option) -> bool:
    """Whether an option is on, off, or decided by the command."""
    return each.kind is bool and each.hint is not bool


def _switched(words: Sequence[str], options: dict[str, Option]) -> Iterator[str]:
    """Yield the words with the value of each switch behind it: ``--no-NAME`` is NAME and False."""
    switches = {name for name, each in options.items() if _is_switch(each)}
    for word in words:
        name = word.replace("--no-", "--", 1)
        yield from [name, str(name == word)] if name in switches else [word]


def _unknown_options(
    words: Sequence[str], options: dict[str, Option], default: Any
) -> Iterator[str]:
    """Yield a problem for each word that looks like an option and is not one."""
    flags = [name for name, each in options.items() if each.kind is bool]
    known = {*options, *HELP, *(f"--no-{name[2:]}" for name in flags)}
    omitted = {
        spelled(name): getattr(getattr(default, part.name), name)
        for part in dataclasses.fields(default)
        for name in part.metadata.get("omitted", ())
    }
    for word in words:
        name = word.partition("=")[0]
        if not word.startswith("--") or len(word) == 2 or name in known:
            continue
        if sentence := removed("options", name.replace("--no-", "--", 1)):
            yield f"{name} was removed: {sentence}"
        elif omitted.get(name) not in (None, ()):
            taken = f"this command has no such option, and takes {omitted[name]}"
            yield f"{name}: {taken}; leave it out"
        else:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "--help lists the options"
            yield f"{name}: unknown option; {hint}"


def _without_values(words: Sequence[str], options: dict[str, Option]) -> list[str]:
    """Name each option of several values that has none, unless it removes those of a file."""
    empty = {name for name, each in options.items() if each.value == ()}
    followed = zip(words, [*words, "--"][1:], strict=True)
    return [
        f"{word}: no value follows it; give one or more, or leave it out"
        for word, following in followed
        if word in empty and following.startswith("--") and following not in HELP
    ]


def _take_config(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """Split off ``--config FILE``, the last of several."""
    words = [part for word in arguments for part in _parts(word)]
    config_file = None
    while "--config" in words:
        place = words.index("--config")
        name = words[place + 1 : place + 2]
        if not name:
            raise InputError("--config: no file follows it")
        words, config_file = words[:place] + words[place + 2 :], Path(*name)
    return words, config_file


def _parts(word: str) -> list[str]:
    return word.split("=", 1) if word.startswith("--config=") else [word]
