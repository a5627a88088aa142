"""How options are declared, read from files and Python, saved and checked; it knows no option."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ConfigDict, TypeAdapter, ValidationError

from aam.errors import InputError, shown
from aam.files.output_folder import check_output_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Config = TypeVar("Config")
Value = TypeVar("Value")

MAX_BYTES = 4 << 20
LARGEST = sys.maxsize

# The value of an option for an input of the Python API that is not a file.
IN_MEMORY = Path("(in memory)")

# Sections and commands are pydantic dataclasses: `@dataclass(frozen=True, config=STRICT)`.
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)

PositiveInt = Annotated[int, Ge(1), Le(LARGEST)]
NonNegativeInt = Annotated[int, Ge(0), Le(LARGEST)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
ShareBelowOne = Annotated[float, Ge(0), Lt(1)]
Seed = Annotated[int, Ge(0), Le(2**32 - 1)]

# --- declaration ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class About:
    """What is known of an option beside its type and default.

    Attributes
    ----------
    help : str
        A noun phrase with unit, shown by ``--help``.
    metavar : str
        Stands for the value in the help.
    name : str
        Name on the command line, if it is not that of the field.
    positional, required : bool
        Whether the value stands without a name; whether every command with the option needs it.
    unless : str
        Option of the same section that makes a required one unnecessary.
    reads, writes : bool
        Whether it names files that must exist, or a file that must not exist yet.
    suffixes : tuple of str
        Allowed endings of the file; empty for any.
    named : callable or None
        Explains why a name is not an installed encoder; empty if it is one.
    changes : {"results", "last bits", "nothing"}
        What another value changes in a run that is resumed.
    memory : str
        What to do with it when memory is full, such as "lower".
    of : str
        Purpose: "studies", "pretraining", "run" or "command"; estimators omit the last two.
    """

    help: str
    metavar: str = ""
    name: str = ""
    positional: bool = False
    required: bool = False
    unless: str = ""
    reads: bool = False
    writes: bool = False
    suffixes: tuple[str, ...] = ()
    named: Callable[[str], str] | None = None
    changes: Literal["results", "last bits", "nothing"] = "results"
    memory: str = ""
    of: str = ""


def option(default: Any, help: str, metavar: str = "", **about: Any) -> Any:
    """Declare an option: its default, its help and what else `About` holds."""
    return dataclasses.field(default=default, metadata=vars(About(help, metavar, **about)))


def section(default: Any, *, required: tuple[str, ...] = (), omitted: tuple[str, ...] = ()) -> Any:
    """Declare a section of a command: its defaults, and the options that the command requires or
    omits.
    """
    return dataclasses.field(default=default, metadata={"required": required, "omitted": omitted})


def spelled(name: str) -> str:
    """Name of a field on the command line."""
    return "--" + name.replace("_", "-")


def without_none(hint: Any) -> Any:
    """The type behind ``X | None``."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [each for each in typing.get_args(hint) if each is not type(None)]
        return rest[0] if len(rest) == 1 else hint
    return hint


_cached_hints = functools.cache(typing.get_type_hints)


def _hints(section: Any, extras: bool = False) -> dict[str, Any]:
    return _cached_hints(section, include_extras=extras)


class Option(NamedTuple):
    """An option of a configuration with its value, and the section that holds it."""

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
        """Its name on the command line."""
        about = self.about
        return about.metavar if about.positional else about.name or spelled(self.field.name)

    @property
    def hint(self) -> Any:
        """Its type without ranges."""
        return _hints(type(self.section))[self.field.name]

    @property
    def kind(self) -> Any:
        """Its type without ranges and None."""
        return without_none(self.hint)

    @property
    def annotation(self) -> Any:
        """Its type with ranges."""
        return _hints(type(self.section), True)[self.field.name]

    @property
    def range(self) -> str:
        """Its range in words; empty without one."""
        return _range(self.annotation)

    @property
    def values(self) -> tuple[Any, ...]:
        """The items of a tuple, or the one value; empty without a value."""
        if isinstance(self.value, tuple):
            return self.value
        return () if self.value is None else (self.value,)


def bounds_of(hint: Any) -> dict[str, float]:
    """The bounds ``ge``, ``gt``, ``le`` and ``lt`` that stand in an annotated type."""
    bounds: dict[str, float] = {}
    for bound in getattr(hint, "__metadata__", ()):
        if isinstance(bound, (Ge, Gt, Le, Lt)) and bound != Le(LARGEST):
            bounds |= dataclasses.asdict(bound)
    for part in typing.get_args(hint):
        bounds |= bounds_of(part)
    return bounds


def _range(hint: Any) -> str:
    """Describe the bounds of an annotated type."""
    bounds = bounds_of(hint)
    if "ge" in bounds and "le" in bounds:
        return f"{bounds['ge']} to {bounds['le']:,}"
    words = {"ge": "{} or more", "gt": "above {}", "le": "at most {}", "lt": "below {}"}
    return " and ".join(text.format(bounds[name]) for name, text in words.items() if name in bounds)


def _expected(hint: Any) -> str:
    """Describe the values that an annotated type allows."""
    hint = without_none(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _range(hint)
    if origin is Literal:
        return "one of " + shown(arguments, 20)
    if origin is tuple:
        return f"a list, each {_expected(arguments[0])}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_expected, arguments))
    words = {int: "an integer", float: "a number", bool: "true or false", Path: "a path"}
    return words.get(hint, "text")


def options_of(
    config: Any, required: tuple[str, ...] = (), omitted: tuple[str, ...] = ()
) -> Iterator[Option]:
    """Yield every option that a command takes, those of its sections too."""
    for item in dataclasses.fields(config):
        value, about = getattr(config, item.name), item.metadata
        if dataclasses.is_dataclass(value):
            yield from options_of(value, about.get("required", ()), about.get("omitted", ()))
        elif item.name not in omitted:
            yield Option(item, value, about["required"] or item.name in required, config)


def names(section: Any, **properties: Any) -> tuple[str, ...]:
    """Fields whose options have these properties: ``names(RunConfig, changes="nothing")``."""
    fields = dataclasses.fields(section)
    return tuple(
        item.name
        for item in fields
        if all(item.metadata[name] == value for name, value in properties.items())
    )


def given(value: Value | None) -> Value:
    """The value of a required option; `InputError` if nothing has checked that it is given."""
    if value is None:
        raise InputError("a required option is not given")
    return value


def files_read(config: Any) -> dict[str, Path]:
    """Existing files and folders that a command reads, by option."""
    return {
        f"{each.field.name} {number}" if isinstance(each.value, tuple) else each.field.name: path
        for each in options_of(config)
        if each.about.reads
        for number, path in enumerate(each.values, 1)
        if path.exists()
    }


# --- saving and reading --------------------------------------------------------------------------


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration as plain JSON data; paths become text."""
    return {item.name: _plain(getattr(config, item.name)) for item in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    """Convert a value of Python, numpy (a scalar) or pathlib to what JSON and TOML hold."""
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if getattr(value, "ndim", None) == 0:
        return value.item()
    return str(value) if isinstance(value, Path) else value


def typed(value: Any, hint: Any) -> Any:
    """Convert plain JSON data to an annotated type; ValueError if it does not fit."""
    return TypeAdapter(hint).validate_json(json.dumps(value, default=str), strict=True)


def from_dict(default: Config, data: Mapping[str, Any], where: str) -> Config:
    """Lay plain data over a configuration.

    Raises
    ------
    InputError
        Lists every unknown key (with the nearest known one) and every value that is not allowed.
    """
    config, problems = overlaid(default, data, where)
    if problems:
        raise InputError(*problems)
    return config


def overlaid(default: Config, data: Mapping[str, Any], where: str) -> tuple[Config, list[str]]:
    """Lay plain data over a configuration; where a value is wrong, the default stays.

    Problems name a key as in a file that `where` names, or as on the command line if it is empty.
    """
    problems: list[str] = []
    usual, merged = to_dict(default), to_dict(default)
    for key, value in data.items():
        name = key.replace("-", "_")
        if isinstance(value, dict) and isinstance(usual.get(name), dict):
            part = {inner.replace("-", "_"): item for inner, item in value.items()}
            merged[name] = {**usual[name], **part}
        else:
            merged[name] = value
    try:
        return typed(merged, type(default)), problems
    except ValidationError as error:
        wrong = dict.fromkeys(_place(default, each["loc"]) for each in error.errors())
    for section, name in wrong:
        inside = getattr(default, section) if section else default
        target, known = (merged[section], usual[section]) if section else (merged, usual)
        place = f"{where}, [{section}]" if section and where else where
        problems.append(_problem(inside, name, target[name], place))
        if name in known:
            target[name] = known[name]
        else:
            del target[name]
    return typed(merged, type(default)), problems


def _place(default: Any, location: tuple[int | str, ...]) -> tuple[str, str]:
    """Section, empty for none, and name of a wrong value."""
    first = str(location[0])
    if len(location) > 1 and dataclasses.is_dataclass(getattr(default, first, None)):
        return first, str(location[1])
    return "", first


def _problem(section: Any, name: str, value: Any, where: str) -> str:
    """Say what is wrong with a value of a section."""
    hints = _hints(type(section), True)
    if name not in hints:
        if sentence := removed("options", spelled(name)):
            return f"{where}: {name!r} was removed: {sentence}"
        near = difflib.get_close_matches(name, hints, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {shown(hints, 40)}"
        return f"{where}: unknown key {name!r}; {hint}"
    if dataclasses.is_dataclass(hints[name]):
        return f"{where}: {name!r} is {value!r}, expected a section"
    text = shown(value, 20) if isinstance(value, list) else value
    expected = _expected(hints[name])
    if where:
        return f"{where}: {name!r} is {text!r}, expected {expected}"
    field = next(item for item in dataclasses.fields(section) if item.name == name)
    return f"{Option(field, value, False, section).name} is {text}, expected {expected}"


@functools.cache
def _removed() -> Any:
    return tomllib.loads(Path(__file__).with_name("removed.toml").read_text(encoding="utf-8"))


def removed(kind: Literal["commands", "options"], name: str) -> str:
    """What to use instead of a removed command or option; empty if it was not removed."""
    return str(_removed()[kind].get(name, ""))


def configured(default: Config, options: Mapping[str, Any], where: str) -> Config:
    """The configuration `default` with options given by name, without their sections.

    Raises
    ------
    InputError
        Names every unknown option with the nearest one, and every value that is not allowed.
    """
    taken = {each.field.name: each for each in options_of(default)}
    parts = {id(getattr(default, item.name)): item.name for item in dataclasses.fields(default)}  # type: ignore[arg-type]
    sections: dict[str, Any] = {}
    problems = []
    for name, value in options.items():
        if name in taken:
            part = parts.get(id(taken[name].section))
            (sections.setdefault(part, {}) if part else sections)[name] = _plain(value)
            continue
        near = difflib.get_close_matches(name, taken, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "--help of the command lists the options"
        sentence = removed("options", spelled(name))
        problems.append(
            f"{where}: {name!r} was removed: {sentence}"
            if sentence
            else f"{where}: unknown option {name!r}; {hint}"
        )
    if problems:
        raise InputError(*problems)
    return from_dict(default, sections, where)


def keyword_options(config: Any) -> dict[str, Any]:
    """Defaults of the options of a command that are parameters in Python, by name."""
    taken = options_of(config)
    return {
        each.field.name: each.value for each in taken if each.about.of not in ("command", "run")
    }


def read_toml(path: Path) -> dict[str, Any]:
    """Sections of a TOML file, or of the ``config`` of a run.json; `InputError` for other files."""
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
        # What one call may replace, a later one may not.
        for part in (data, data.get("runtime")) if isinstance(data, dict) else ():
            if isinstance(part, dict):
                part.pop("overwrite", None)
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds {type(data).__name__}, expected sections of options")
    return data


def read_config(path: Path, default: Config) -> Config:
    """Lay a TOML file, or the ``config`` of a run.json, over a configuration.

    Raises
    ------
    InputError
        The file cannot be read, or holds unknown keys, wrong values, or options that the command
        does not take.
    """
    config, problems = overlaid(default, read_toml(path), str(path))
    for part in dataclasses.fields(default):  # type: ignore[arg-type]
        for name in part.metadata.get("omitted", ()):
            value = getattr(getattr(config, part.name), name)
            if value != getattr(getattr(default, part.name), name):
                where = f"{path}: [{part.name}] {name} is {_plain(value)}"
                problems.append(f"{where}, and this command has no such option; leave it out")
    if problems:
        raise InputError(*problems)
    return config


# --- checks --------------------------------------------------------------------------------------


def broken(rules: Mapping[str, bool]) -> list[str]:
    """The problems whose condition holds."""
    return [problem for problem, holds in rules.items() if holds]


def check(config: Any) -> None:
    """Refuse everything that is wrong with the options of a command in one message.

    Raises
    ------
    InputError
        Required options that are not given, files that do not exist, an output that does, and
        options that contradict each other.
    """
    if problems := check_problems(config):
        raise InputError(*problems)


def check_problems(config: Any) -> list[str]:
    """The problems of which `check` raises."""
    problems = [
        f"{each.name}: not given, and it is required: {each.about.help}"
        for each in options_of(config)
        if each.required and each.value in (None, ())
        if not (each.about.unless and getattr(each.section, each.about.unless, None))
    ]
    problems += option_problems(config)
    overwrite = getattr(getattr(config, "runtime", config), "overwrite", False)
    for each in options_of(config):
        if each.about.writes and each.value is not None:
            try:
                check_output_file(each.value, overwrite, files_read(config).values())
            except InputError as error:
                problems += error.problems
    return problems


def option_problems(config: Any) -> list[str]:
    """What is wrong with files, and what the rules of sections and command refuse.

    A section or command holds its rules in a method `problems`, which returns those that are
    broken.
    """
    problems = [problem for each in options_of(config) for problem in _file_problems(each)]
    parts = [getattr(config, item.name) for item in dataclasses.fields(config)]
    for part in (*filter(dataclasses.is_dataclass, parts), config):
        problems += part.problems() if hasattr(part, "problems") else []
    return problems


def _file_problems(each: Option) -> Iterator[str]:
    """Yield what is wrong with the files that an option names."""
    about = each.about
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
