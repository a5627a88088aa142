"""Options of the commands as keyword arguments of Python, with the defaults of the commands."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from aam.errors import Problems
from aam.options import from_dict, options_of

Config = TypeVar("Config")


def keyword_options(config: Any) -> dict[str, Any]:
    """Return the defaults of the options of a command that are parameters in Python, by name."""
    return {each.field.name: each.value for each in options_of(config) if each.about.of not in ("command", "run")}


def _plain(value: Any) -> Any:
    """Return a value of Python, numpy or pathlib as JSON and TOML would hold it."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def configured(default: Config, options: Mapping[str, Any], where: str) -> Config:
    """Return the configuration `default` with some options, given by name without their sections.

    Raises
    ------
    InputError
        Names every option that there is not, with the nearest one, and every value of a wrong type; `where` begins
        the messages.
    """
    taken = {each.field.name: each for each in options_of(default)}
    names = {id(getattr(default, item.name)): item.name for item in dataclasses.fields(default)}  # type: ignore[arg-type]
    sections: dict[str, Any] = {}
    problems = Problems()
    for name, value in options.items():
        if name not in taken:
            near = difflib.get_close_matches(name, taken, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "--help-all of the command lists the options"
            problems.add(f"{where}: unknown option {name!r}; {hint}")
            continue
        section = taken[name].section
        part = sections if section is default else sections.setdefault(names[id(section)], {})
        part[name] = _plain(value)
    problems.raise_if_any()
    return from_dict(default, sections, where)
