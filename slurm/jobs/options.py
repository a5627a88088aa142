"""The options of aam that follow ``--``: which ones exist, and which ones a job may have."""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from containers.lib.errors import InputError
from containers.lib.files import PACKAGE, ROOT

# What slurm/write_options.py wrote: this program needs nothing but Python.
OPTIONS_FILE = ROOT / "slurm" / "options.json"

# Options with their values, in order.
Options = list[tuple[str, list[str]]]

# Options whose values are files or folders that a job reads.
INPUT_FOLDERS = ("--pretrained-encoder", "--model")
INPUTS: tuple[str, ...] = ("--table", "--tree", "--metadata", "--sequences", "--unifrac-matrix")
INPUTS += ("--split", "--predictions", "--config", "--taxonomy", "--baseline", *INPUT_FOLDERS)
OUTPUTS = ("--output-dir", "--output")
# Variables of make for every job.
MAKE_VARIABLES = {"--table": "TABLE", "--tree": "TREE", "--metadata": "METADATA"}
MAKE_VARIABLES |= {"--metadata-column": "COLUMN"}
# Options that the job itself sets, or that it must not have.
RESERVED = {
    "--overwrite": "a job never writes over anything: remove the folder, or choose another",
    "--resume-from": "a job resumes from its own newest checkpoint",
    "--distributed": "follows from the number of tasks",
    "--tables": "--table takes several",
    "--merge": "needs no cluster",
}
# The names of the network among the members of `train`.
NETWORK_MEMBERS = ("deep", "network")
# Options that ask for the network: without one of them `train` fits a linear model and trees.
NETWORK_OPTIONS: tuple[str, ...] = ("--pretrained-encoder", "--embedding-dim", "--attention-layers")
NETWORK_OPTIONS += ("--attention-heads", "--patch-size", "--dropout", "--class-weights", "--config")


def expand_home(text: str) -> Path:
    """Return a path with ``~`` expanded; the name of an unknown user stays as it is."""
    with contextlib.suppress(RuntimeError):
        return Path(text).expanduser()
    return Path(text)


def parse_options(words: tuple[str, ...] | list[str]) -> Options:
    """Return the options in `words` with their values."""
    options: Options = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            options.append((name.replace("_", "-"), [value] if equals else []))
        elif options:
            options[-1][1].append(word)
        else:
            raise InputError(f"{word}: is not an option of aam and does not follow one")
    return options


@functools.cache
def all_options() -> dict[str, dict[str, str]]:
    """Return the options of each command of aam: a flag, or one value, or several."""
    options: dict[str, dict[str, str]] = json.loads(OPTIONS_FILE.read_text(encoding="utf-8"))
    return options


def options_of(command: str, template: str) -> dict[str, str]:
    """Return the options that may follow ``--``: of a command of aam, or of a job without one."""
    outputs = dict.fromkeys(OUTPUTS, "one")
    if not command:
        return outputs | (dict.fromkeys(INPUTS, "one") if template == "stage.sh" else {})
    return {"--config": "one"} | all_options()[command] | outputs


def path_words(words: Iterable[str]) -> Iterator[str]:
    """Yield the words that stand for files and folders."""
    names = (*INPUTS, *OUTPUTS)
    name = ""
    for word in words:
        option, equals, value = word.partition("=")
        name = option.replace("_", "-") if word.startswith("--") else name
        if name in names and (equals or not word.startswith("--")):
            yield value if equals else word


@functools.cache
def removed_options() -> dict[str, str]:
    """Replacements of the options that aam no longer has."""
    path = PACKAGE / "removed.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {
        f"--{name.removeprefix('--')}": text
        for key, table in tables.items()
        if key != "commands"
        for name, text in table.items()
        if isinstance(text, str)
    }


def has_network(options: Options) -> bool:
    """Return whether `aam train` fits a network with these options."""
    return any(
        name in NETWORK_OPTIONS
        or (name == "--members" and any(value in NETWORK_MEMBERS for value in values))
        for name, values in options
    )


def option_problems(options: Options, types: dict[str, str], owner: str) -> list[str]:
    """List the problems of options: unknown names, and more or fewer values than an option
    takes.

    Parameters
    ----------
    types
        The options that exist, with what follows each.
    owner
        The command or job, for the messages.
    """
    problems = []
    for name, values in options:
        option_type = types.get(name)
        text = shlex.join([name, *values])
        # An empty input is reported as a missing file.
        is_empty = values == [""] and name not in INPUTS
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            problems.append(f"{text}: is not UTF-8")
        elif name in RESERVED:
            problems.append(f"{name}: {RESERVED[name]}")
        elif option_type is None:
            if name in removed_options():
                problems.append(f"{name} was removed: {removed_options()[name]}")
                continue
            similar = difflib.get_close_matches(name, types, 1)
            hint = f"; {similar[0]}?" if similar else ""
            hint = f"; expected {' or '.join(types)}" if len(types) < 4 else hint
            problems.append(f"{name}: {owner} has no such option{hint}")
        elif option_type == "flag" and values:
            problems.append(f"{text}: takes no value")
        elif option_type == "one" and (len(values) != 1 or is_empty):
            problems.append(f"{text}: expected one value that is not empty")
    return problems
