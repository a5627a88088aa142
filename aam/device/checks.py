"""Whether the options of a command can be used: everything that needs no data and no torch, asked once in a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from aam.errors import InputError, shown
from aam.files.output_folder import check_output_file
from aam.options import Option, files_read, options_of


def check(config: Any) -> None:
    """Refuse, in one message, everything that is wrong with the options of a command before any work.

    Raises
    ------
    InputError
        Required options that are not given, files that do not exist, an output that does, numbers out of range,
        and options that contradict each other.
    """
    problems = [*missing(config), *option_problems(config)]
    overwrite, inputs = getattr(getattr(config, "runtime", config), "overwrite", False), files_read(config).values()
    for each in options_of(config):
        if each.about.writes and each.value is not None:
            try:
                check_output_file(each.value, overwrite, inputs)
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(*problems)


def missing(config: Any) -> list[str]:
    """Return a problem for each required option that is not given, with its help text."""
    return [
        f"{each.name}: not given, and it is required: {each.about.help}"
        for each in options_of(config)
        if each.required and each.value in (None, ())
        if not (each.about.unless and getattr(each.section, each.about.unless))
    ]


def option_problems(config: Any) -> list[str]:
    """Return what is wrong with the values of options: each alone, then by the rules of sections and command.

    A section or command has its rules as a method `problems`, which returns those that are broken.
    """
    problems = [problem for each in options_of(config) for problem in _value_problems(each)]
    parts = [getattr(config, item.name) for item in dataclasses.fields(config)]
    for part in (*filter(dataclasses.is_dataclass, parts), config):
        problems += part.problems() if hasattr(part, "problems") else []
    return problems


def _value_problems(each: Option) -> Iterator[str]:
    """Yield what is wrong with the value of an option: its range (NaN is outside all), its files and their names."""
    about = each.about
    if about.range is not None and any(number not in about.range for number in each.values):
        value = shown(each.value, 20) if isinstance(each.value, tuple) else each.value
        yield f"{each.name} is {value}, expected {about.range}"
    if about.reads:
        shipped = about.shipped() if about.shipped is not None else ()
        hint = f", and no encoder that comes with aam ({shown(shipped)})" if shipped else ""
        for path in each.values:
            if not path.exists() and str(path) not in shipped:
                yield f"{each.name}: {path}: no such file or folder{hint}"
    for path in each.values if about.suffixes else ():
        if path.suffix not in about.suffixes:
            expected = " or ".join(about.suffixes)
            yield f"{each.name} is {path}, which ends in {path.suffix!r}; expected {expected}"
