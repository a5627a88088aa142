"""The options of aam that follow ``--``: which there are, and which a job may be given."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import shlex
from pathlib import Path
from typing import Any

from parts.whole import InputError

from aam import config, config_commands

Options = list[tuple[str, list[str]]]

# Options of aam whose values are files or folders that a job reads, and those that say where it writes.
INPUTS: tuple[str, ...] = (
    "--table",
    "--tree",
    "--metadata",
    "--sequences",
    "--unifrac-matrix",
    "--split",
    "--pretrained-encoder",
)
INPUTS += ("--model", "--predictions", "--baselines", "--config")
FOLDERS = ("--pretrained-encoder", "--model")
OUTPUTS = ("--output-dir", "--output")
OWN = {
    "--overwrite": "a job never writes over anything: remove the folder, or choose another",
    "--resume-from": "a job goes on from its own newest checkpoint by itself",
    "--distributed": "follows from the number of tasks",
}
COMMANDS = {
    "pretrain": config.PretrainConfig,
    "train": config.FineTuneConfig,
    "predict": config_commands.PredictConfig,
    "evaluate": config_commands.EvaluateConfig,
}


def expanded(text: str) -> Path:
    """A path with ~ in its full length; a user whom nobody knows stays as written."""
    with contextlib.suppress(RuntimeError):
        return Path(text).expanduser()
    return Path(text)


def grouped(words: tuple[str, ...] | list[str]) -> Options:
    """Options with their values, in order."""
    found: Options = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            found.append((name.replace("_", "-"), [value] if equals else []))
        elif found:
            found[-1][1].append(word)
        else:
            raise InputError(f"{word}: is neither an option of aam nor follows one")
    return found


def _types(page: Any) -> dict[str, str]:
    """The options of a configuration and the types of their values, as written."""
    found: dict[str, str] = {}
    for field in dataclasses.fields(page):
        value = getattr(page, field.name)
        name = field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            found |= _types(value)
        else:
            found[f"--{name}"] = str(field.type)
            found |= {f"--no-{name}": "bool"} if field.type == "bool" else {}
    return found


def options_of(command: str, template: str) -> dict[str, str]:
    """What may follow ``--``, with types: options of a command of aam, or of a job that calls several."""
    outputs = dict.fromkeys(OUTPUTS, "Path")
    if command:
        types = _types(COMMANDS[command]())
        aliases = {alias: types[name] for alias, name in config.ALIASES.items() if name in types}
        return types | {"--config": "Path"} | aliases | outputs
    return outputs | (dict.fromkeys(INPUTS, "Path") if template == "stage.sh" else {})


def wrong_options(options: Options, known: dict[str, str], whose: str) -> list[str]:
    """Options that are none of `known`, and those with more or fewer values than they take."""
    problems = []
    for name, values in options:
        kind, said = known.get(name), shlex.join([name, *values])
        # Inputs that are empty are refused as files that are not there.
        empty = values == [""] and name not in INPUTS
        if any("\ud800" <= letter <= "\udfff" for letter in said):
            problems.append(f"{said}: is not UTF-8")
        elif name in OWN:
            problems.append(f"{name}: {OWN[name]}")
        elif kind is None:
            near = difflib.get_close_matches(name, known, 1)
            few = f"; expected {' or '.join(known)}" if len(known) < 4 else ""
            problems.append(f"{name}: {whose} has no such option{few or (f'; {near[0]}?' if near else '')}")
        elif kind == "bool" and values:
            problems.append(f"{said}: takes no value")
        elif kind != "bool" and not kind.startswith("tuple") and (len(values) != 1 or empty):
            problems.append(f"{said}: expected one value that is not empty")
    return problems
