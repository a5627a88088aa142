"""How an option is declared, read from a file, written to one and checked: nothing here knows any
option.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from aam.errors import InputError, shown
from aam.files.output_folder import check_output_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Config = TypeVar("Config")
Value = TypeVar("Value")

Number = float | int

MAX_BYTES = 4 << 20

# What an option names, in place of a path, where the input of a function of the Python API is no
# file.
IN_MEMORY = Path("(in memory)")


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that an option takes: bounds that it may reach (`ge`, `le`) or may not (`gt`,
    `lt`).
    """

    ge: Number | None = None
    gt: Number | None = None
    le: Number | None = None
    lt: Number | None = None

    def __contains__(self, value: Number) -> bool:
        """Whether `value` is finite, small enough for 64 bits where it is an integer, and within
        the bounds.
        """
        if isinstance(value, int) and abs(value) > sys.maxsize:
            return False
        return (
            math.isfinite(value)
            and (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )

    def __str__(self) -> str:
        """Return the range in words, as help and messages show it."""
        if self.ge is not None and self.le is not None:
            highest = f"{self.le:g}" if self.le < 1e6 else f"2^{math.log2(self.le + 1):g} - 1"
            return f"{self.ge:g} to {highest}"
        if self.ge is not None and self.lt is not None:
            return f"from {self.ge:g} to below {self.lt:g}"
        low = (
            f"{self.ge:g} or more"
            if self.ge is not None
            else f"above {self.gt:g}"
            if self.gt is not None
            else ""
        )
        high = (
            f"at most {self.le:g}"
            if self.le is not None
            else f"below {self.lt:g}"
            if self.lt is not None
            else ""
        )
        return " and ".join(filter(None, (low, high)))


@dataclasses.dataclass(frozen=True)
class About:
    """The properties of an option beside its default.

    Attributes
    ----------
    help : str
        What it means, in whole sentences.
    range : Range or None
        The numbers that it takes; for a tuple those of each item.
    rare : bool
        Whether only ``--help-all`` lists it.
    metavar : str or None
        What stands for its value in the help.
    positional : bool
        Whether it is given by place, without its name.
    aliases : tuple of str
        Other spellings, of other programs and of earlier versions.
    commas : bool
        Whether its values may also be one word with commas.
    required : bool
        Whether every command that has it needs it; `section` asks for it in one command.
    unless : str
        The option of the same section, where that has it, which makes a required one needless.
    reads, writes : bool
        Whether it names files that must exist, or a file that must not exist yet.
    suffixes : tuple of str
        How the name of its file may end; any way where empty.
    named : callable or None
        Explains why a name is no installed encoder, '' if it is one: its files may be named so.
    changes : {"results", "last bits", "nothing"}
        What another value changes in a run that is resumed.
    searched : bool
        Whether `aam tune` may try values of it, where it is not of a command.
    selects_samples : bool
        Whether it decides which samples are read, so that a file of options may not name it in
        vain.
    memory : str
        What to do with it where memory is full, such as "lower".
    of : str
        The one purpose that it serves: "studies" (several at once), "pretraining", a "run" with its
        processes and checkpoints, or a "command" (what it reads and compares). Commands without the
        purpose omit it; estimators in Python omit those of a run or a command.
    """

    help: str
    range: Range | None = None
    rare: bool = False
    metavar: str | None = None
    positional: bool = False
    aliases: tuple[str, ...] = ()
    commas: bool = False
    required: bool = False
    unless: str = ""
    reads: bool = False
    writes: bool = False
    suffixes: tuple[str, ...] = ()
    named: Callable[[str], str] | None = None
    changes: typing.Literal["results", "last bits", "nothing"] = "results"
    searched: bool = True
    selects_samples: bool = False
    memory: str = ""
    of: str = ""


def option(default: Any, help: str, metavar: str | None = None, **about: Any) -> Any:
    """Declare an option as a dataclass field: its default, its help and what else `About` and
    `Range` know.

    ``option(64, "Samples per batch.", ge=1)`` takes 1 or more.
    """
    bounds = {name: about.pop(name) for name in ("ge", "gt", "le", "lt") if name in about}
    properties = About(help, Range(**bounds) if bounds else None, metavar=metavar, **about)
    return field(default=default, metadata=vars(properties))


def rare(default: Any, help: str, metavar: str | None = None, **about: Any) -> Any:
    """Declare an option that only ``--help-all`` lists."""
    return option(default, help, metavar, rare=True, **about)


def section(default: Any, *, required: tuple[str, ...] = (), omitted: tuple[str, ...] = ()) -> Any:
    """Declare a group of options in the configuration of a command.

    Parameters
    ----------
    default : dataclass instance
        The options with their defaults in this command.
    required, omitted : tuple of str
        Options of the group that this command needs, and those that it does not take.
    """
    return field(default=default, metadata={"required": required, "omitted": omitted})


class Option(NamedTuple):
    """An option of a configuration with its value, and the section that has it."""

    field: dataclasses.Field[Any]
    value: Any
    required: bool
    section: Any

    @property
    def about(self) -> About:
        """Its properties."""
        return About(**self.field.metadata)

    @property
    def name(self) -> str:
        """How the command line calls it."""
        return str(self.about.metavar) if self.about.positional else spelled(self.field.name)

    @property
    def hint(self) -> Any:
        """Its annotated type."""
        section: Any = type(self.section)
        return _type_hints(section)[self.field.name]

    @property
    def kind(self) -> Any:
        """Its type where it is given."""
        return without_none(self.hint)

    @property
    def values(self) -> tuple[Any, ...]:
        """Its values: the items of a tuple, nothing where it is not given."""
        return (
            self.value
            if isinstance(self.value, tuple)
            else ()
            if self.value is None
            else (self.value,)
        )


def spelled(name: str) -> str:
    """Return the name of a field as the command line spells it."""
    return "--" + name.replace("_", "-")


_type_hints = functools.cache(typing.get_type_hints)


def options_of(
    config: Any, required: tuple[str, ...] = (), omitted: tuple[str, ...] = ()
) -> Iterator[Option]:
    """Yield every option that the command of `config` takes, those of its sections too."""
    for item in dataclasses.fields(config):
        value, about = getattr(config, item.name), item.metadata
        if dataclasses.is_dataclass(value):
            yield from options_of(value, about.get("required", ()), about.get("omitted", ()))
        elif item.name not in omitted:
            yield Option(item, value, about["required"] or item.name in required, config)


def names(section: Any, **properties: Any) -> tuple[str, ...]:
    """Return the fields of a section whose options have these properties: ``names(RunConfig,
    changes="nothing")``.
    """
    return tuple(
        item.name
        for item in dataclasses.fields(section)
        if all(item.metadata[name] == value for name, value in properties.items())
    )


def given(value: Value | None) -> Value:
    """Return the value of a required option; `InputError` where nothing has checked that it is
    given.
    """
    if value is None:
        raise InputError("a required option is not given")
    return value


def files_read(config: Any) -> dict[str, Path]:
    """Return the files and folders that the options of a command name to be read, and that exist,
    by option.
    """
    return {
        f"{each.field.name} {number}" if isinstance(each.value, tuple) else each.field.name: path
        for each in options_of(config)
        if each.about.reads
        for number, path in enumerate(each.values, 1)
        if path.exists()
    }


def broken(rules: Mapping[str, bool]) -> list[str]:
    """Return the problems that hold, of some that are written beside the condition under which they
    do.
    """
    return [problem for problem, holds in rules.items() if holds]


def to_dict(config: Any) -> dict[str, Any]:
    """Return the configuration tree as plain JSON data; paths become text."""
    return {item.name: _plain(getattr(config, item.name)) for item in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    """Return a value of Python, numpy (a scalar) or pathlib as JSON and TOML would hold it."""
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if getattr(value, "ndim", None) == 0:
        return value.item()
    return str(value) if isinstance(value, Path) else value


def to_toml(data: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sections of options as TOML, which `read_toml` reads; what is None is left out."""
    sections = [
        "\n".join(
            [
                f"[{name}]",
                *(f"{key} = {_toml(value)}" for key, value in options.items() if value is not None),
            ]
        )
        for name, options in data.items()
        if options
    ]
    return "\n\n".join(sections) + "\n"


def _toml(value: Any) -> str:
    """Return a value as TOML: as JSON, but for tables."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


def from_dict(default: Config, data: Mapping[str, Any], where: str) -> Config:
    """Return `default` with the values of `data` laid over it.

    Raises
    ------
    InputError
        Lists every unknown key (with its nearest known one) and every value of a wrong type.
    """
    problems: list[str] = []
    config = _merge(default, data, where, problems)
    if problems:
        raise InputError(*problems)
    return config  # type: ignore[no-any-return]


def keyword_options(config: Any) -> dict[str, Any]:
    """Return the defaults of the options of a command that are parameters in Python, by name."""
    return {
        each.field.name: each.value
        for each in options_of(config)
        if each.about.of not in ("command", "run")
    }


def configured(default: Config, options: Mapping[str, Any], where: str) -> Config:
    """Return the configuration `default` with some options, given by name without their sections.

    Raises
    ------
    InputError
        Names every option that there is not, with the nearest one, and every value of a wrong type;
        `where` begins the messages.
    """
    taken = {each.field.name: each for each in options_of(default)}
    names = {id(getattr(default, item.name)): item.name for item in dataclasses.fields(default)}  # type: ignore[arg-type]
    sections: dict[str, Any] = {}
    problems = []
    for name, value in options.items():
        if name not in taken:
            near = difflib.get_close_matches(name, taken, n=1)
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else "--help-all of the command lists the options"
            )
            problems.append(f"{where}: unknown option {name!r}; {hint}")
            continue
        part = taken[name].section
        values = sections if part is default else sections.setdefault(names[id(part)], {})
        values[name] = _plain(value)
    if problems:
        raise InputError(*problems)
    return from_dict(default, sections, where)


def _merge(default: Any, data: Mapping[str, Any], where: str, problems: list[str]) -> Any:
    hints = typing.get_type_hints(type(default))
    changes: dict[str, Any] = {}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1)
            expected = (
                f"did you mean {near[0]!r}?" if near else f"expected one of {shown(hints, 40)}"
            )
            problems.append(f"{where}: unknown key {key!r}; {expected}")
        elif dataclasses.is_dataclass(hints[name]):
            if isinstance(value, dict):
                changes[name] = _merge(
                    getattr(default, name), value, f"{where}, [{name}]", problems
                )
            else:
                problems.append(f"{where}: {key!r} is {value!r}, expected a section")
        else:
            try:
                changes[name] = typed(value, hints[name])
            except (TypeError, ValueError):
                problems.append(
                    f"{where}: {key!r} is {value!r}, expected {_type_name(hints[name])}"
                )
    return dataclasses.replace(default, **changes)


def without_none(hint: Any) -> Any:
    """Return the type behind ``X | None``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(argument for argument in typing.get_args(hint) if argument is not type(None))
    return hint


def _type_name(hint: Any) -> str:
    hint = without_none(hint)
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + shown(typing.get_args(hint), 20)
    if typing.get_origin(hint) is tuple:
        return f"a list, of {_type_name(typing.get_args(hint)[0])} each"
    return getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)


def typed(value: Any, hint: Any) -> Any:
    """Return `value` from JSON or TOML as the annotated type; TypeError or ValueError when it is
    not one.
    """
    if without_none(hint) is not hint:
        return None if value is None else typed(value, without_none(hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(value)
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(value)
        return tuple(typed(item, arguments[0]) for item in value)
    if origin is dict and isinstance(value, dict):
        return {typed(key, arguments[0]): typed(item, arguments[1]) for key, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        hints = typing.get_type_hints(hint)
        return hint(**{name: typed(item, hints.get(name)) for name, item in value.items()})  # type: ignore[operator]
    if hint is float and type(value) is int:
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if type(value) is not hint:
        raise TypeError(value)
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Return the sections of a TOML file, or of the ``config`` of a run.json; `InputError` for any
    other file.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); --config takes TOML or run.json"
        ) from None
    if len(content) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES >> 20} MiB, expected a configuration")
    try:
        text = content.decode("utf-8-sig")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid TOML or JSON ({error})") from None
    if path.suffix == ".json" and isinstance(data, dict) and "config" in data:
        data = data["config"]
        data = _without_overwrite(data) if isinstance(data, dict) else data
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds {type(data).__name__}, expected sections of options")
    return data


def writer_of(path: Path) -> str:
    """Return the command that wrote a run.json, which `read_toml` has read; no text for any other
    file.
    """
    data = json.loads(path.read_text(encoding="utf-8-sig")) if path.suffix == ".json" else {}
    return str(data.get("command", ""))


def _without_overwrite(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run.json without ``overwrite``: what one call may replace, a later
    one may not.
    """
    runtime = options.get("runtime")
    kept = {name: value for name, value in options.items() if name != "overwrite"}
    if isinstance(runtime, dict):
        kept["runtime"] = {name: value for name, value in runtime.items() if name != "overwrite"}
    return kept


# --- checks ------------------------------------------------------------------------------------


def check(config: Any) -> None:
    """Refuse, in one message, everything that is wrong with the options of a command before any
    work.

    Raises
    ------
    InputError
        Required options that are not given, files that do not exist, an output that does, numbers
        out of range, and options that contradict each other.
    """
    problems = [
        f"{each.name}: not given, and it is required: {each.about.help}"
        for each in options_of(config)
        if each.required and each.value in (None, ())
        if not (each.about.unless and getattr(each.section, each.about.unless, None))
    ]
    problems += option_problems(config)
    overwrite, inputs = (
        getattr(getattr(config, "runtime", config), "overwrite", False),
        files_read(config).values(),
    )
    for each in options_of(config):
        if each.about.writes and each.value is not None:
            try:
                check_output_file(each.value, overwrite, inputs)
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(*problems)


def option_problems(config: Any) -> list[str]:
    """Return what is wrong with the values of options: each alone, then by the rules of sections
    and command.

    A section or command has its rules as a method `problems`, which returns those that are broken.
    """
    problems = [problem for each in options_of(config) for problem in _value_problems(each)]
    parts = [getattr(config, item.name) for item in dataclasses.fields(config)]
    for part in (*filter(dataclasses.is_dataclass, parts), config):
        problems += part.problems() if hasattr(part, "problems") else []
    return problems


def _value_problems(each: Option) -> Iterator[str]:
    """Yield what is wrong with the value of an option: its range (NaN is outside all), its files
    and their names.
    """
    about = each.about
    if about.range is not None and any(number not in about.range for number in each.values):
        value = shown(each.value, 20) if isinstance(each.value, tuple) else each.value
        yield f"{each.name} is {value}, expected {about.range}"
    if about.reads:
        for path in each.values:
            if path.exists() or path == IN_MEMORY:
                continue
            why = "no such file or folder" if about.named is None else about.named(str(path))
            if why:
                yield f"{each.name}: {path}: {why}"
    for path in each.values if about.suffixes else ():
        if path.suffix not in about.suffixes:
            expected = " or ".join(about.suffixes)
            yield f"{each.name} is {path}, which ends in {path.suffix!r}; expected {expected}"
