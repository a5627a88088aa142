"""How an option is declared, checked, and read from a file: nothing here knows any option."""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
import types
import typing
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from aam.errors import InputError, Problems, shown


def option(default: Any, help: str, *, rare: bool = False, metavar: str | None = None, positional: bool = False) -> Any:
    """A field of a configuration: its default, its help text and whether only ``--help-all`` shows it."""
    return field(default=default, metadata={"help": help, "rare": rare, "metavar": metavar, "positional": positional})


def rare(default: Any, help: str, metavar: str | None = None) -> Any:
    """A field that only ``--help-all`` shows."""
    return option(default, help, rare=True, metavar=metavar)


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Config = TypeVar("Config")

MAX_BYTES = 4 << 20

# Smallest and largest value of numeric options, and how a message says so; a name means the same in every command.
RANGES = (
    (1, sys.maxsize, "1 or more", "rarefy_depth token_limit patch_size embedding_dim attention_layers attention_heads"),
    (1, sys.maxsize, "1 or more", "max_bp epochs batch_size val_prediction_passes prediction_passes threads"),
    (1, sys.maxsize, "1 or more", "asv_chunk_size repeats keep_checkpoints scheduler_t0 scheduler_t_mult"),
    (1, sys.maxsize, "1 or more", "target_effective_batch_size"),
    (1, sys.maxsize, "1 or more", "gradient_accumulation_steps n_estimators out_dim steps categorical_embed_dim"),
    (1, sys.maxsize, "1 or more", "cross_attn_heads perceiver_num_latents perceiver_num_layers"),
    (-1, sys.maxsize, "-1 or more", "n_jobs"),
    (0, sys.maxsize, "0 or more", "unfreeze_epochs weight_decay warmup_steps patience num_workers checkpoint_minutes"),
    (0, sys.maxsize, "0 or more", "scheduler_eta_min scheduler_patience scheduler_min_lr"),
    (0, 1 - 2**-53, "from 0 to below 1", "ema_decay asv_dropout regressor_dropout categorical_dropout"),
    (0, sys.maxsize, "0 or more", "penalty nuc_penalty count_penalty target_penalty over_penalty under_penalty"),
    (0, 1, "0 to 1", "alpha test_size validation_size dropout shallow_draws nuc_mask_ratio nuc_mask_asvs"),
    (0, 1, "0 to 1", "count_mask_ratio"),
    (sys.float_info.min, 1, "above 0 and at most 1", "label_share scheduler_factor max_memory_fraction"),
    (0, 2**32 - 1, "0 to 2^32 - 1", "seed"),
    (sys.float_info.min, sys.float_info.max, "a finite number above 0", "lr categorical_lr max_grad_norm memory_limit"),
    (sys.float_info.min, sys.float_info.max, "a finite number above 0", "tolerance"),
)


def to_dict(config: Any) -> dict[str, Any]:
    """The configuration tree as plain JSON data; paths become text."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {
        name: to_dict(value)
        if dataclasses.is_dataclass(value)
        else str(value)
        if isinstance(value, Path)
        else [str(item) if isinstance(item, Path) else item for item in value]
        if isinstance(value, tuple)
        else value
        for name, value in values.items()
    }


def from_dict(default: Config, data: dict[str, Any], where: str) -> Config:
    """`default` with the values of `data` laid over it.

    Raises
    ------
    InputError
        Lists every unknown key (with its nearest known one) and every value of a wrong type.
    """
    problems = Problems()
    config = _merge(default, data, where, problems)
    problems.raise_if_any()
    return config  # type: ignore[no-any-return]


def _merge(default: Any, data: dict[str, Any], where: str, problems: Problems) -> Any:
    hints = typing.get_type_hints(type(default))
    changes: dict[str, Any] = {}
    for key, value in data.items():
        name = key.replace("-", "_")
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known are {shown(hints, 40)}"
            problems.add(f"{where}: unknown key {key!r}; {meant}")
        elif dataclasses.is_dataclass(hints[name]):
            if isinstance(value, dict):
                changes[name] = _merge(getattr(default, name), value, f"{where}, [{name}]", problems)
            else:
                problems.add(f"{where}: {key!r} is {value!r}, expected a section")
        else:
            try:
                changes[name] = _coerce(value, hints[name])
            except (TypeError, ValueError):
                problems.add(f"{where}: {key!r} is {value!r}, expected {_type_name(hints[name])}")
    return dataclasses.replace(default, **changes)


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + shown(typing.get_args(hint), 20)
    return getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)


def _coerce(value: Any, hint: Any) -> Any:
    """`value` from JSON or TOML as the annotated type; TypeError or ValueError when it is not one."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _coerce(value, next(a for a in arguments if a is not type(None)))
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(value)
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(value)
        return tuple(_coerce(item, arguments[0]) for item in value)
    if hint is float and type(value) is int:
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if type(value) is not hint:
        raise TypeError(value)
    return value


def read_config(path: Path, default: Config) -> Config:
    """`default` overlaid with a TOML file or the ``config`` of a run.json.

    Raises
    ------
    InputError
        The file cannot be read or parsed, or holds unknown keys or wrong types.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); --config takes TOML or run.json") from None
    if len(content) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES >> 20} MiB, expected a configuration")
    try:
        text = content.decode("utf-8-sig")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid TOML or JSON ({error})") from None
    if path.suffix == ".json" and isinstance(data, dict):
        data = data.get("config", data)
    if not isinstance(data, dict):
        raise InputError(f"{path}: holds {type(data).__name__}, expected sections of options")
    return from_dict(default, data, str(path))


def out_of_range(config: Any) -> list[str]:
    """A problem for each number of the configuration that is outside its range; NaN is outside all."""
    values = {item.name: getattr(config, item.name) for item in dataclasses.fields(config)}
    found = [problem for value in values.values() if dataclasses.is_dataclass(value) for problem in out_of_range(value)]
    for low, high, expected, names in RANGES:
        wrong = {name: values[name] for name in names.split() if values.get(name) is not None}
        wrong = {name: value for name, value in wrong.items() if not low <= value <= high}
        found += [f"--{name.replace('_', '-')} is {value}, expected {expected}" for name, value in wrong.items()]
    return found


def pairs(words: tuple[str, ...], option: str) -> dict[str, str]:
    """``NAME=VALUE`` words, or one JSON object, as a dict of text; `InputError` for anything else."""
    text = " ".join(words)
    if text.startswith("{"):
        try:
            return {name: str(value) for name, value in json.loads(text).items()}
        except ValueError as error:
            raise InputError(f"{option} is {text}, not valid JSON ({error})") from None
    found = dict(word.rpartition("=")[::2] for word in words)
    if "" in found or len(found) < len(words):
        raise InputError(f"{option} is {text}, expected NAME=VALUE, each name once")
    return found
