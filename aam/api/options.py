"""Options of the commands as keyword arguments of Python, with the defaults of the commands."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from aam.errors import Problems
from aam.options import from_dict, options_of, to_dict

Config = TypeVar("Config")


def keyword_options(config: Any) -> dict[str, Any]:
    """Return the defaults of the options of a command that are parameters in Python, by name."""
    return {each.field.name: each.value for each in options_of(config) if each.about.python}


def _plain(value: Any) -> Any:
    """Return a value of Python, numpy or pathlib as JSON and TOML would hold it."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _sections(config: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in the sections of a configuration that have them."""
    in_sections: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            if inner := _sections(value, options):
                in_sections[item.name] = inner
        elif item.name in options:
            in_sections[item.name] = _plain(options[item.name])
    return in_sections


def _names(in_sections: Mapping[str, Any]) -> set[str]:
    """Return the names of the options in nested sections."""
    return {
        name for key, value in in_sections.items() for name in (_names(value) if isinstance(value, dict) else {key})
    }


def configured(default: Config, options: Mapping[str, Any], where: str) -> Config:
    """Return the configuration `default` with some options, given by name without their sections.

    Raises
    ------
    InputError
        Names every option that there is not, with the nearest one, and every value of a wrong type; `where` begins
        the messages.
    """
    in_sections = _sections(default, options)
    names, problems = _names(to_dict(default)), Problems()
    for name in options.keys() - _names(in_sections):
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "--help-all of the command lists the options"
        problems.add(f"{where}: unknown option {name!r}; {hint}")
    problems.raise_if_any()
    return from_dict(default, in_sections, where)
