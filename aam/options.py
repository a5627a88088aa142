"""Options: declaration, the sections that every model has, reading, saving and checking."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import json
import math
import shlex
import sys
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import to_jsonable_python

from aam.errors import InputError, Problems, reworded
from aam.files.atomic import read_bytes
from aam.files.output_folder import check_output_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Config = TypeVar("Config")
Value = TypeVar("Value")

MAX_CONFIG_BYTES = 4 << 20
LARGEST = sys.maxsize

# The value of an option for an input of the Python API that is not a file.
IN_MEMORY = Path("(in memory)")

# Sections and commands are pydantic dataclasses: `@dataclass(frozen=True, config=STRICT)`.
STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)

# pydantic's names of what is outside a range.
BOUNDS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}

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
    """Properties of an option, next to its type and default.

    Attributes
    ----------
    help : str
        A noun phrase with unit, shown by ``--help``.
    metavar : str
        Stands for the value in the help.
    name : str
        Name on the command line, if it is not that of the field.
    positional, required : bool
        Whether the value may stand without a name, and must if `name` is empty; whether every
        command with the option needs it.
    reads, writes : bool
        Whether it names files that must exist, or a file that must not exist yet.
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
    reads: bool = False
    writes: bool = False
    named: Callable[[str], str] | None = None
    changes: Literal["results", "last bits", "nothing"] = "results"
    memory: str = ""
    of: str = ""


def option(default: Any, help: str, metavar: str = "", **about: Any) -> Any:
    """Declare an option: its default, its help and what else `About` holds."""
    return dataclasses.field(default=default, metadata=vars(About(help, metavar, **about)))


def path(help: str, metavar: str = "", default: Any = None, **about: Any) -> Any:
    """Declare an option that names a file to read, or files if the default is a tuple."""
    return option(default, help, metavar, reads=True, **about)


def section(default: Any, required: tuple[str, ...] = (), omitted: tuple[str, ...] = ()) -> Any:
    """Declare a section of a command: its defaults, and the options that the command requires or
    omits.
    """
    return dataclasses.field(default=default, metadata={"required": required, "omitted": omitted})


def spelled(name: str) -> str:
    """Name of a field on the command line."""
    return "--" + name.replace("_", "-")


def command_line(command: str, **options: Any) -> str:
    """A line for a shell that runs a command of `aam`; options without a value are left out."""
    words = ["aam", command]
    for name, value in options.items():
        values = value if isinstance(value, (tuple, list)) else (value,)
        texts = [str(each) for each in values if each is not None and not isinstance(each, bool)]
        if len(texts) == 1 and texts[0].startswith("-"):
            # It would look like another option.
            words.append(f"{spelled(name)}={texts[0]}")
        elif texts or value is True:
            words += [spelled(name), *texts]
    return shlex.join(words)


# --- sections that every model has ---------------------------------------------------------------

Attention = Literal["auto", "sdpa", "flash", "mem_efficient", "math"]

# What another value changes in a run that is resumed.
NO_CHANGE: dict[str, Any] = {"changes": "nothing"}
LAST_BITS: dict[str, Any] = {"changes": "last bits"}
PROCESSES: dict[str, Any] = {**LAST_BITS, "of": "run"}
PER_RUN: dict[str, Any] = {**NO_CHANGE, "of": "run"}
COMMAND: dict[str, Any] = {**NO_CHANGE, "of": "command"}

# Help that is too long for the line of its option.
PRECISION = "Precision; auto: bf16 from width 256 on, if the GPU has it, else float32."
KERNEL = "Attention kernel; auto: the fastest correct one; sdpa: the choice of torch."
CHUNK = "Number of ASVs encoded at a time; unset: all of the batch."
COMPILED = "torch.compile of the network, if it works here."
RECOMPUTED = "Recomputation of activations: less memory, more time."
ONE_PER_GPU = "One process per GPU of this node, or per --threads cores."
RESUMED = "Checkpoint to resume from; auto: the newest, if there is one."
BATCH_HELP = "Number of samples per batch and device; auto: the largest that fits."
WARM_UP_HELP = "Number of warm-up steps; unset: a tenth of the run, at most 1,000."
CORES = "Number of CPU threads; unset: all cores of this process."


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ObservedConfig:
    """Reports of every command"""

    memory_profile: bool = option(False, "Maximum memory of each stage, as memory.json.", **COMMAND)
    debug: bool = option(False, "Traceback of an error.", **COMMAND)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OutputConfig(ObservedConfig):
    """Output of every command that writes"""

    overwrite: bool = option(False, "Replacement of an existing output.", **NO_CHANGE)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DeviceConfig:
    """Device and threads"""

    device: str = option("auto", "Device: auto, cpu, cuda[:N], hip[:N] or mps.", **LAST_BITS)
    threads: PositiveInt | None = option(None, CORES, **LAST_BITS)


@dataclass(frozen=True, config=STRICT)
class RuntimeConfig(DeviceConfig, OutputConfig):
    """Machine, precision and output"""

    output_dir: Path | None = option(None, "New folder of the run.", **NO_CHANGE)
    seed: Seed = option(0, "Seed of all random draws.")
    num_workers: NonNegativeInt = option(0, "Further processes that prepare batches.", **NO_CHANGE)
    mixed_precision: Literal["auto", "bf16", "fp16", "none"] = option("auto", PRECISION)
    attn_implementation: Attention = option("auto", KERNEL, **LAST_BITS)
    asv_chunk_size: PositiveInt | None = option(None, CHUNK, **LAST_BITS, memory="set or lower")
    compile_model: bool = option(False, COMPILED, **LAST_BITS)
    gradient_checkpointing: bool = option(False, RECOMPUTED, **LAST_BITS, memory="pass")
    deterministic: bool = option(False, "Operations with the same bits on each call.", **LAST_BITS)


@dataclass(frozen=True, config=STRICT)
class RunConfig(RuntimeConfig):
    """Machine, precision, output, processes and checkpoints"""

    distributed: bool = option(False, "One process of several of srun or torchrun.", **PROCESSES)
    data_parallel: bool = option(False, ONE_PER_GPU, **PROCESSES)
    fsdp: bool = option(False, "Weights and optimizer in shards (FSDP2).", **PROCESSES)
    no_capture: bool = option(False, "Steps without graphs.", **PROCESSES)
    dry_run: bool = option(False, "Check of inputs and a summary, without output.", **COMMAND)
    resume_from: str | None = option(None, RESUMED, **COMMAND)
    checkpoint_minutes: NonNegativeFloat = option(10.0, "Minutes between checkpoints.", **PER_RUN)


@dataclass(frozen=True, config=STRICT)
class TrainingOptions:
    """Optimization"""

    epochs: PositiveInt = option(40, "Number of passes over the training samples.")
    batch_size: PositiveInt | Literal["auto"] = option(64, BATCH_HELP, memory="lower")
    lr: PositiveFloat = option(5e-4, "Peak learning rate.")
    weight_decay: NonNegativeFloat = option(0.01, "Weight decay per unit of learning rate.")
    warmup_steps: NonNegativeInt | None = option(None, WARM_UP_HELP)
    gradient_accumulation_steps: PositiveInt = option(1, "Number of batches per optimizer step.")
    ema_decay: ShareBelowOne = option(0.0, "Decay of the average of the weights; 0: no average.")
    max_grad_norm: PositiveFloat = option(1.0, "Maximum norm of the gradients.")
    patience: NonNegativeInt = option(10, "Validations without improvement; 0: no early stopping.")

    @property
    def samples_per_batch(self) -> int:
        """The batch size; `InputError` if it is still to be chosen."""
        if self.batch_size == "auto":
            raise InputError("--batch-size is auto, expected a number")
        return self.batch_size


# --- options of a configuration ------------------------------------------------------------------

_hints: Callable[..., dict[str, Any]] = functools.cache(typing.get_type_hints)


class Option(NamedTuple):
    """An option of a configuration with its value; `part` names the section that holds it."""

    field: dataclasses.Field[Any]
    value: Any
    required: bool
    section: Any
    part: str
    is_taken: bool

    @property
    def about(self) -> About:
        """Its properties."""
        return About(**self.field.metadata)

    @property
    def name(self) -> str:
        """Its name on the command line."""
        about = self.about
        return about.name or (about.metavar if about.positional else spelled(self.field.name))

    @property
    def annotation(self) -> Any:
        """Its type with ranges."""
        return _hints(type(self.section), include_extras=True)[self.field.name]

    @property
    def kind(self) -> Any:
        """Its type without ranges and None."""
        hint = _hints(type(self.section))[self.field.name]
        rest = [part for part in typing.get_args(hint) if part is not types.NoneType]
        is_optional = typing.get_origin(hint) in (typing.Union, types.UnionType) and len(rest) == 1
        return rest[0] if is_optional else hint

    @property
    def several(self) -> bool:
        """Whether it takes several values."""
        return typing.get_origin(self.kind) is tuple

    @property
    def item(self) -> Any:
        """The type of its value, or of each of several values."""
        return typing.get_args(self.kind)[0] if self.several else self.kind

    @property
    def choices(self) -> tuple[Any, ...]:
        """Its allowed values, if there are few."""
        is_choice = typing.get_origin(self.item) is Literal
        return typing.get_args(self.item) if is_choice else ()

    @property
    def metavar(self) -> str:
        """The placeholder of its value in the help; empty for a switch."""
        words = {Path: "PATH", int: "INT", float: "NUMBER", bool: ""}
        is_column = self.field.name.endswith(("_column", "_columns"))
        word = words.get(self.item, "NAME" if self.choices else "COLUMN" if is_column else "TEXT")
        return self.about.metavar or word + " ..." * self.several

    @property
    def range(self) -> str:
        """Its range in words; empty without a range."""
        bounds = bounds_of(self.annotation)
        if "ge" in bounds and "le" in bounds:
            return f"{bounds['ge']} to {bounds['le']:,}"
        words = {"ge": "{} or more", "gt": "above {}", "le": "at most {}", "lt": "below {}"}
        return " and ".join(words[name].format(bounds[name]) for name in words if name in bounds)

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


def _all_options(config: Any) -> Iterator[Option]:
    """Yield every option of a configuration, also those that its command does not take."""
    for item in dataclasses.fields(config):
        value, about = getattr(config, item.name), item.metadata
        if not dataclasses.is_dataclass(value):
            yield Option(item, value, about.get("required", False), config, "", True)
            continue
        required, omitted = about.get("required", ()), about.get("omitted", ())
        for entry in _all_options(value):
            name = entry.field.name
            is_required, is_taken = entry.required or name in required, name not in omitted
            yield entry._replace(required=is_required, part=item.name, is_taken=is_taken)


def options_of(config: Any) -> Iterator[Option]:
    """Yield every option that a command takes, those of its sections too."""
    return (entry for entry in _all_options(config) if entry.is_taken)


def names(section: Any, **properties: Any) -> tuple[str, ...]:
    """Fields whose options have these properties: ``names(RunConfig, changes="nothing")``."""
    required, items = properties.items(), dataclasses.fields(section)
    return tuple(item.name for item in items if required <= item.metadata.items())


def not_none(value: Value | None) -> Value:
    """The value of a required option; `InputError` if nothing has checked that it is given."""
    if value is None:
        raise InputError("a required option is not given")
    return value


def files_read(config: Any) -> dict[str, Path]:
    """Existing files and folders that a command reads, by option."""
    files = {}
    for entry in options_of(config):
        several = isinstance(entry.value, tuple)
        for number, path in enumerate(entry.values if entry.about.reads else (), 1):
            if path.exists():
                files[f"{entry.field.name} {number}" if several else entry.field.name] = path
    return files


# --- saving and reading --------------------------------------------------------------------------


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration as plain JSON data; paths become text."""
    return dict(_plain(config))


def _plain(value: Any) -> Any:
    """Convert a value of Python, numpy (a scalar) or pathlib to what JSON and TOML hold."""
    return to_jsonable_python(value, fallback=lambda other: getattr(other, "item", str)())


def typed(value: Any, hint: Any, strict: bool = True) -> Any:
    """Convert data of JSON or Python, or words unless `strict`, to an annotated type; ValueError if
    it does not fit.
    """
    adapter = TypeAdapter(hint, config=None if isinstance(hint, type) else STRICT)
    items = value if isinstance(value, (list, tuple)) else (value,)
    if items and all(isinstance(item, Path) for item in items):
        # JSON has no names of files that are not UTF-8; text may be asked for.
        with contextlib.suppress(ValidationError):
            return adapter.validate_python(value)
    if strict:
        return adapter.validate_json(json.dumps(value, default=_plain), strict=True)
    return adapter.validate_python(value)


def overlaid(default: Config, values: Mapping[str, Any], where: str) -> tuple[Config, list[str]]:
    """`default` with `values` by option, or by section and option, and what is wrong with them.

    A wrong value leaves the default. Problems name an option as in the file or call `where`, or
    as on the command line if it is empty; only the command line spells numbers as text.
    """
    options = {entry.field.name: entry for entry in _all_options(default)}
    changed: dict[str, dict[str, Any]] = defaultdict(dict)
    problems = []
    for part, key, value in _entries(default, values):
        entry = options.get(key)
        place = f"{where}, [{part}]" if part else where
        # A run.json holds the options that its command does not take, too.
        if entry is None or not (part == entry.part or (part is None and entry.is_taken)):
            problems.append(f"{place}: {unknown('option', key, options)}")
            continue
        plain = _as_words(value, entry)
        try:
            changed[entry.part][key] = typed(plain, entry.annotation, strict=where != "")
        except ValidationError as error:
            found = error.errors()
            expected = ": " + " or ".join(dict.fromkeys(each["msg"] for each in found))
            if BOUNDS.issuperset(each["type"] for each in found):
                expected = f", expected {entry.range}"
            name = f"{place}: {key!r} is {value!r}" if where else f"{entry.name} is {value}"
            problems.append(name + expected)
    top: dict[str, Any] = changed.pop("", {})
    for part, part_values in changed.items():
        top[part] = dataclasses.replace(getattr(default, part), **part_values)
    return dataclasses.replace(default, **top), problems  # type: ignore[type-var]


def _as_words(value: Any, entry: Option) -> Any:
    """A value as the command line has it: one stands for several of one, and numbers for text."""
    is_list = isinstance(value, (list, tuple))
    items = tuple(value) if is_list else (value,)
    if entry.item is str:
        items = tuple(_number_text(item) for item in items)
    return items if is_list or (entry.several and isinstance(items[0], (str, Path))) else items[0]


def _number_text(value: Any) -> Any:
    """The text of a number, of a whole one without a point; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        return value
    number: Any = value  # NumPy's integers have no __trunc__, which `Real` promises.
    return str(int(number) if float(number).is_integer() else float(number))


def _entries(default: Any, values: Mapping[str, Any]) -> Iterator[tuple[str | None, str, Any]]:
    """Yield section (None at the top), option and value."""
    for key, value in values.items():
        name = key.replace("-", "_")
        if isinstance(value, Mapping) and dataclasses.is_dataclass(getattr(default, name, None)):
            yield from ((name, str(key).replace("-", "_"), item) for key, item in value.items())
        else:
            yield None, name, value


@functools.cache
def _removed() -> Any:
    return tomllib.loads(Path(__file__).with_name("removed.toml").read_text(encoding="utf-8"))


def unknown(
    kind: Literal["command", "option", "word"], name: str, known: Collection[str] = ()
) -> str:
    """Say what replaces a name that was removed; of another, which of the `known` names is near."""
    name_before = name
    if kind == "option":
        name_before = spelled(name.removeprefix("--").removeprefix("no-"))
    if replacement := _removed()[f"{kind}s"].get(name_before):
        return f"{name} was removed: {replacement}"
    if kind == "word":
        return f"{name}: unexpected; --help lists the options, and which take several values"
    near = difflib.get_close_matches(name, known, n=1)
    helps = kind == "command" or name.startswith("--")
    hint = f"; --help lists the {kind}s" if helps else ""
    return f"unknown {kind} {name!r}" + (f"; did you mean {near[0]!r}?" if near else hint)


def configured(default: Config, options: Mapping[str, Any], where: str) -> Config:
    """Lay options, by name or by section and name, over a configuration.

    Raises
    ------
    InputError
        Lists every unknown name (with the nearest known one), every value that is not allowed, and
        options that the command does not take.
    """
    config, problems = overlaid(default, options, where)
    for before, entry in zip(_all_options(default), _all_options(config), strict=True):
        if not entry.is_taken and entry.value != before.value:
            problem = f"{where}: [{entry.part}] {entry.field.name} is {_plain(entry.value)}"
            problems.append(f"{problem}, and this command has no such option; leave it out")
    if problems:
        raise InputError(*problems)
    return config


def read_config(path: Path, default: Config) -> Config:
    """Lay a TOML file, or the ``config`` of a run.json, over a configuration; `InputError` as
    `configured`, and for a file that cannot be read.
    """
    return configured(default, _read_toml(path), str(path))


def _read_toml(path: Path) -> dict[str, Any]:
    """Options of a TOML file, or of the ``config`` of a run.json; `InputError` for other files."""
    content = read_bytes(path, MAX_CONFIG_BYTES, remedy="; --config takes TOML or run.json")
    with reworded((ValueError, RecursionError), f"{path}: not valid TOML or JSON"):
        text = content.decode("utf-8-sig")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    if path.suffix == ".json" and isinstance(data, dict) and "config" in data:
        data = data["config"]
        # A later run replaces earlier results only if it is asked to.
        for part in (data, data.get("runtime")) if isinstance(data, dict) else ():
            if isinstance(part, dict):
                part.pop("overwrite", None)
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds {type(data).__name__}, expected sections of options")
    return data


# --- checks --------------------------------------------------------------------------------------


def wrong_ending(name: str, path: Path | None, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Say that the file of an option, if there is one, has the suffix of another format."""
    if path is not None and path.suffix not in suffixes:
        yield f"{name}: {path} ends in {path.suffix!r}, expected {', '.join(suffixes)}"


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
    """The problems that `check` raises."""
    problems = Problems()
    overwrite = getattr(getattr(config, "runtime", config), "overwrite", False)
    for entry in options_of(config):
        # A dry run writes nothing.
        useless = entry.field.name == "output_dir" and getattr(entry.section, "dry_run", False)
        if entry.required and entry.value in (None, ()) and not useless:
            problems.add(f"{entry.name}: not given, and it is required: {entry.about.help}")
        if entry.about.writes and entry.value is not None:
            with problems.collected():
                check_output_file(entry.value, overwrite, files_read(config).values())
    return [*problems.messages, *option_problems(config)]


def option_problems(config: Any) -> list[str]:
    """Files that do not exist, and what the rules of sections and command refuse.

    A section or command holds its rules in a method `problems`, which yields those that are broken.
    """
    problems = []
    for entry in options_of(config):
        named = entry.about.named or (lambda name: "no such file or folder")
        for path in entry.values if entry.about.reads else ():
            why = "" if path == IN_MEMORY or path.exists() else named(str(path))
            problems += [f"{entry.name}: {path}: {why}"] if why else []
    parts = [getattr(config, item.name) for item in dataclasses.fields(config)]
    for part in (*filter(dataclasses.is_dataclass, parts), config):
        problems += part.problems() if hasattr(part, "problems") else ()
    return problems
