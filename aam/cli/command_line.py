"""From the words of a command line to the configuration of a command."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from aam.config import REMOVED, read_config
from aam.errors import InputError
from aam.options import Option, options_of, spelled, writer_of

Config = TypeVar("Config")

METAVARS = {Path: "PATH", int: "INT", float: "NUMBER", str: "TEXT"}

HELP = ("--help", "-h", "--help-all")


def parse(command: str, default: Config, arguments: Sequence[str]) -> Config:
    """Return the configuration of `command`: `default`, overlaid by ``--config FILE``, then by
    `arguments`.

    ``--help`` shows the usual options and ``--help-all`` every one; tyro exits with status 2 on a
    value that is none.

    Raises
    ------
    InputError
        Names every option that the command does not have, with the nearest one, and what is wrong
        with the file.
    """
    options = {each.name: each for each in options_of(default)}
    words, config_file = _take_config(
        _split_lists([_standard_spelling(word, options) for word in arguments], options)
    )
    if problems := list(_unknown_options(words, options, default)):
        raise InputError(*problems)
    if config_file is not None:
        default = _from_file(config_file, default, command)
    asks_help = any(word in HELP for word in words)
    if not asks_help and (problems := _without_values(words, default)):
        raise InputError(*problems)
    show_all = not asks_help or "--help-all" in words
    description = (
        f"{type(default).__doc__}\n\n--config FILE reads TOML or a run.json; the command line wins."
    )
    if not show_all:
        description += " --help-all shows the rarely used options too."
    return tyro.cli(
        type(default),
        prog=command,
        default=default,
        args=["--help" if word == "--help-all" else word for word in _switched(words, options)],
        description=description,
        config=(tyro.conf.OmitArgPrefixes,),
        registry=_registry(default, show_all),
    )


def _from_file(path: Path, default: Config, command: str) -> Config:
    """Return the options of a file as `read_config`; a run.json of another command than `command`
    is named as such.
    """
    try:
        return read_config(path, default)
    except InputError as error:
        # A file that is no JSON at all has one problem.
        writer = writer_of(path) if len(error.problems) > 1 else ""
        if writer in ("", command.rpartition(" ")[2]):
            raise
        raise InputError(
            f"{path}: written by `aam {writer}`, and has {len(error.problems)} options that "
            f"`{command}` does not take; "
            f"pass the run.json of `{command}`, or its options in TOML"
        ) from None


def _registry(default: Any, show_all: bool) -> ConstructorRegistry:
    """Return how tyro reads a configuration: with the options that the command takes, each as it is
    declared.
    """
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
                each.field.name, _annotated(each, show_all), getattr(info.default, each.field.name)
            )
            for each in options.get(info.type, ())
        ]
        sections = {
            item.name: getattr(info.default, item.name) for item in dataclasses.fields(info.default)
        }
        fields += [
            StructFieldSpec(name, type(value), value)
            for name, value in sections.items()
            if dataclasses.is_dataclass(value)
        ]
        # No partial: tyro's help would show what dataclasses.replace says of itself above each
        # section.
        return StructConstructorSpec(
            lambda **values: dataclasses.replace(info.default, **values), tuple(fields)
        )

    return registry


def _annotated(each: Option, show_all: bool) -> Any:
    """Return the type of an option with what tyro's help shows of it."""
    about = each.about
    metavar = (
        about.metavar
        or METAVARS.get(each.kind)
        or (f"| --no-{each.name[2:]}" if _is_switch(each) else None)
    )
    markers: list[Any] = [
        tyro.conf.arg(help=about.help, metavar=metavar, help_behavior_hint=_hint(each))
    ]
    markers += [tyro.conf.Suppress] if about.rare and not show_all else []
    markers += [tyro.conf.Positional] if about.positional else []
    return Annotated[(each.hint, *markers)]


def _hint(each: Option) -> Any:
    """Return what the help says after the text of an option: whether it is required, its default,
    its range.
    """
    allowed = each.about.range
    bounds = "" if allowed is None else f"; {allowed}"
    if each.value not in (None, ()):
        return lambda text: f"(default: {text}{bounds})"
    if each.required:
        return f"(required{bounds})"
    return f"({allowed!s})" if allowed else ""


def _standard_spelling(word: str, options: Mapping[str, Option]) -> str:
    """Return an option under the name that the command has it by, with hyphens."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    name = name.replace("_", "-")
    return (
        next((each.name for each in options.values() if name in each.about.aliases), name)
        + equals
        + value
    )


def _is_switch(each: Option) -> bool:
    """Return whether an option is on, off, or decided by the command where neither is said."""
    return each.kind is bool and each.hint is not bool


def _switched(words: Sequence[str], options: Mapping[str, Option]) -> Iterator[str]:
    """Yield the words with the value of each switch behind it: ``--no-NAME`` is NAME and False."""
    switches = {each.name for each in options.values() if _is_switch(each)}
    for word in words:
        name = word.replace("--no-", "--", 1)
        yield from [name, str(name == word)] if name in switches else [word]


def _unknown_options(
    words: Sequence[str], options: Mapping[str, Option], default: Any
) -> Iterator[str]:
    """Yield a problem for each word that looks like an option and is none, with the one that is
    meant.
    """
    meant = {name: name for name in (*options, *HELP, "--debug") if name.startswith("--")}
    meant |= {
        f"--no-{each.name[2:]}": f"--no-{each.name[2:]}"
        for each in options.values()
        if each.kind is bool
    }
    aliases = {alias: each.name for each in options.values() for alias in each.about.aliases}
    omitted = {
        spelled(name): getattr(getattr(default, part.name), name)
        for part in dataclasses.fields(default)
        for name in part.metadata.get("omitted", ())
    }
    for word in words:
        name = word.partition("=")[0]
        if not word.startswith("--") or len(word) == 2 or name in meant:
            continue
        if name in REMOVED:
            yield f"{name}: no option any more: {REMOVED[name]}; leave it out"
        elif omitted.get(name) not in (None, ()):
            yield (
                f"{name}: this command has no such option, and takes {omitted[name]}; leave it out"
            )
        else:
            near = difflib.get_close_matches(name, [*meant, *aliases], n=1)
            hint = (
                f"did you mean {(meant | aliases)[near[0]]}?"
                if near
                else "--help-all lists the options"
            )
            yield f"{name}: unknown option; {hint}"


def _without_values(words: Sequence[str], default: Any) -> list[str]:
    """Return a problem for each option of several values that has none, unless it takes away those
    of a file.
    """
    empty = {each.name for each in options_of(default) if each.value == ()}
    return [
        f"{word}: no value follows it; give one or more, or leave it out"
        for word, following in zip(words, [*words, "--"][1:], strict=True)
        if word in empty and following.startswith("--")
    ]


def _split_lists(words: Sequence[str], options: Mapping[str, Option]) -> list[str]:
    """Return lists with commas, as scripts for the predecessor have them, as one word for each
    item.
    """
    split: list[str] = []
    option = ""
    for word in words:
        option, _, first = word.partition("=") if word.startswith("--") else (option, "", word)
        items = [item for item in first.split(",") if item]
        several = option in options and options[option].about.commas
        split += [*([option] if word.startswith("--") else []), *items] if several else [word]
    return split


def _take_config(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """Return the words without ``--config FILE``, and the file, the last of several."""
    options = [word.split("=", 1) if word.startswith("--config=") else [word] for word in arguments]
    words = [*itertools.chain.from_iterable(options)]
    config_file = None
    while "--config" in words:
        place = words.index("--config")
        name = words[place + 1 : place + 2]
        if not name:
            raise InputError("--config: no file follows it")
        words, config_file = words[:place] + words[place + 2 :], Path(*name)
    return words, config_file
