"""The options that a search tries: declared as data, checked, and laid over the options of a training."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aam.config import FineTuneConfig
from aam.errors import InputError, Problems, shown
from aam.options import from_dict, names, option_problems, read_toml, to_dict

# Lists are values to choose from; others are numbers between two ends, on a logarithmic scale where log is true.
DEFAULT_SPACE: dict[str, dict[str, Any]] = {
    "targets": {
        "members": [
            ["deep", "presence", "kernel", "forest"], ["presence", "kernel", "forest"], ["deep", "kernel"], ["deep"],
            ["kernel"], ["forest"],
        ]
    },
    "train": {
        "lr": {"low": 1e-5, "high": 1e-3, "log": True}, "epochs": {"low": 5, "high": 40},
    },
    "model": {"dropout": {"low": 0.0, "high": 0.3}},
}  # fmt: skip

SECTIONS = ("targets", "regressor", "covariates", "model", "train")

RANGE_KEYS = {"low", "high", "log"}


@dataclasses.dataclass(frozen=True)
class Searched:
    """An option that is searched: one of `choices`, or where there are none a number from `low` to `high`."""

    section: str
    option: str
    choices: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False

    @property
    def name(self) -> str:
        """Section and option, as ``train.lr``."""
        return f"{self.section}.{self.option}"

    @property
    def ends(self) -> tuple[Any, ...]:
        """The choices, or the ends of the range."""
        return self.choices or (self.low, self.high)

    def label(self, value: Any) -> Any:
        """Return a value as the storage of trials holds it: lists as JSON."""
        return json.dumps(value) if isinstance(value, list) else value

    def value(self, label: Any) -> Any:
        """Return the value of what the storage of trials holds."""
        return next((value for value in self.choices if self.label(value) == label), label)

    def suggest(self, trial: Any) -> Any:
        """Return the value that a trial of Optuna takes."""
        if self.choices:
            return self.value(trial.suggest_categorical(self.name, [self.label(value) for value in self.choices]))
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        return (trial.suggest_int if whole else trial.suggest_float)(self.name, self.low, self.high, log=self.log)

    def __contains__(self, value: Any) -> bool:
        """Whether the search can take this value."""
        if self.choices:
            return value in self.choices
        return isinstance(value, (int, float)) and self.low <= value <= self.high


def overlaid(config: FineTuneConfig, values: Mapping[str, Any]) -> FineTuneConfig:
    """Return the options of a training with values by ``section.option``."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, _, option = name.partition(".")
        sections.setdefault(section, {})[option] = value
    return from_dict(config, sections, "search space")


def value_of(config: FineTuneConfig, option: Searched) -> Any:
    """Return the value of an option as a file holds it."""
    return to_dict(config)[option.section][option.option]


def default_space(config: FineTuneConfig) -> dict[str, dict[str, Any]]:
    """Return the default search space without what `config` gives another value than its default.

    A pretrained encoder has its shape already, and its options of the network are left out.
    """
    asked, usual = to_dict(config), to_dict(FineTuneConfig())
    left_out = {"model"} if config.train.pretrained_encoder is not None else set()
    space = {
        section: {name: values for name, values in options.items() if asked[section][name] == usual[section][name]}
        for section, options in DEFAULT_SPACE.items()
        if section not in left_out
    }
    return {section: options for section, options in space.items() if options}


def search_space(config: FineTuneConfig, path: Path | None) -> tuple[Searched, ...]:
    """Return the options that are searched: those of a TOML file, or of the default space.

    Raises
    ------
    InputError
        Everything that is wrong with the file: options that there are not or that cannot be searched, values that
        are none, numbers out of range, and values that contradict other options of `config`.
    """
    space = default_space(config) if path is None else read_toml(path)
    problems, known = Problems(), to_dict(config)
    options: list[Searched] = []
    for section, entries in space.items():
        if section not in SECTIONS or not isinstance(entries, dict):
            problems.add(f"{path}: {section!r} is no section that is searched; expected {shown(SECTIONS)}")
            continue
        for name, values in entries.items():
            option, part = name.replace("-", "_"), getattr(config, section)
            if option not in known[section]:
                near = difflib.get_close_matches(option, known[section], n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"aam train --help-all lists those of {section}"
                problems.add(f"{path}: [{section}] has no option {name!r}; {hint}")
            elif option in (*names(part, searched=False), *names(part, of="command")):
                problems.add(f"{path}: {name!r} changes what is compared, and cannot be searched; give it as an option")
            else:
                problems.messages += _add(options, section, option, values)
    problems.messages += [problem for one in options for value in one.ends for problem in _wrong(config, one, value)]
    if not options and not problems.messages:
        problems.add("nothing is left to search: every option of the default space is given; pass --search-space")
    problems.raise_if_any()
    return tuple(options)


def _wrong(config: FineTuneConfig, option: Searched, value: Any) -> list[str]:
    """Return what is wrong with a value of an option, beside what is wrong without it."""
    before = option_problems(config)
    try:
        after = option_problems(overlaid(config, {option.name: value}))
    except InputError as error:
        return list(error.problems)
    return [f"search space: {problem}" for problem in after if problem not in before]


def _add(options: list[Searched], section: str, option: str, values: Any) -> list[str]:
    """Add an option with its values to those that are searched; return what is wrong with them."""
    expected = "expected a list of values, or a table of low, high and log"
    if isinstance(values, list) and len(values) > 1:
        options.append(Searched(section, option, tuple(values)))
        return []
    if not isinstance(values, dict) or not {"low", "high"} <= values.keys() <= RANGE_KEYS:
        return [f"search space: {section}.{option} is {values!r}, {expected}"]
    low, high, log = values["low"], values["high"], values.get("log", False)
    numbers = all(type(value) in (int, float) for value in (low, high)) and isinstance(log, bool)
    if not numbers or not low < high or (log and low <= 0):
        return [f"search space: {section}.{option} is {values!r}, {expected}: low below high, above 0 with log"]
    options.append(Searched(section, option, (), low, high, log))
    return []
