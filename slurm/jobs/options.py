"""The options of aam that follow ``--``, and what is checked before a job is submitted: what SLURM
accepts and then fails on, or does not see at all.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import math
import re
import shlex
import shutil
import tomllib
from pathlib import Path

from containers.lib.errors import InputError
from containers.lib.files import PACKAGE, ROOT
from slurm.jobs.request import Kind, Request
from slurm.jobs.site import Site

# What slurm/write_options.py wrote: this program needs nothing but Python.
OPTIONS_FILE = ROOT / "slurm" / "options.json"

# Options with their values, in order.
Options = list[tuple[str, list[str]]]

# Options whose values are files or folders that a job reads.
INPUT_FOLDERS = ("--pretrained-encoder", "--model")
INPUTS: tuple[str, ...] = ("--table", "--tree", "--metadata", "--sequences", "--unifrac-matrix")
INPUTS += ("--split", "--exclude", "--config", "--taxonomy", "--baseline")
INPUTS += INPUT_FOLDERS
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
NETWORK_OPTIONS += ("--attention-heads", "--patch-size", "--dropout", "--config")


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


# Numbers that an option may take, by the words of options.json.
RANGES: dict[str, tuple[type[int] | type[float], float, float]] = {
    "a whole number, 1 or more": (int, 1, math.inf),
    "a whole number, 0 or more": (int, 0, math.inf),
    "a number above 0": (float, math.ulp(0), math.inf),
    "a number, 0 or more": (float, 0, math.inf),
    "a number from 0 to 1": (float, 0, 1),
}


def is_in_range(text: str, option_type: str) -> bool:
    """Return whether a text is a number as an option takes it."""
    kind, low, high = RANGES[option_type]
    try:
        return bool(low <= kind(text) <= high)
    except ValueError:
        return False


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
        elif option_type == "flag":
            problems += [f"{text}: takes no value"] * bool(values)
        elif option_type != "several" and (len(values) != 1 or is_empty):
            problems.append(f"{text}: expected one value that is not empty")
        elif option_type in RANGES and not is_in_range(values[0], option_type):
            problems.append(f"{text}: expected {option_type}")
    return problems


# A job shorter than this has no time to save a checkpoint.
SHORTEST_JOB = 120
# What a dry run without inputs shows in their place.
PLACEHOLDERS = MAKE_VARIABLES | {"--model": "MODEL"}


def parse_time(time: str) -> int:
    """Return the seconds of a time in one of SLURM's forms: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    match = re.fullmatch(r"(?:(\d{1,7})-)?(\d{1,7})(?::(\d{1,7}))?(?::(\d{1,7}))?", time)
    if not match:
        raise InputError(f"--time {time}: expected HH:MM:SS or D-HH:MM:SS")
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] is not None:
        return days * 86400 + first * 3600 + second * 60 + third
    if match[4] is not None:
        return first * 3600 + second * 60 + third
    return first * 60 + second


# Training without a network takes minutes.
TRAIN_MINUTES = 60


def requested_seconds(
    kind: Kind, options: Options, request: Request, site: Site, problems: list[str]
) -> int:
    """Return the time limit of a job in seconds: the requested one, or else that of its kind."""
    if request.time:
        try:
            return parse_time(request.time)
        except InputError as error:
            problems += error.problems
    minutes = kind.minutes
    if kind.command == "train" and not has_network(options) and not request.seeds:
        minutes = TRAIN_MINUTES
    nodes = kind.nodes if request.nodes is None else request.nodes
    hours = minutes / 60 if minutes else site.hours
    return round(min(hours, site.longest(nodes) or hours) * 3600)


def check_limits(site: Site, nodes: int, tasks: int, seconds: int, problems: list[str]) -> None:
    """Check nodes, devices and time against the site; ``sbatch --test-only`` accepts too much."""
    for option, number in (("--nodes", nodes), ("--devices", tasks)):
        if number < 1:
            problems.append(f"{option} {number}: expected 1 or more")
    if site.max_nodes and nodes > site.max_nodes:
        problems.append(f"--nodes {nodes}: {site.title} allows at most {site.max_nodes} for a job")
    longest = site.longest(nodes)
    if longest and seconds > longest * 3600:
        of_nodes = f" for {nodes} node{'s' * (nodes != 1)}" if longest != site.max_hours else ""
        limit = f"the {longest:g} h that {site.title} allows{of_nodes}"
        problems.append(f"--time: {seconds / 3600:g} h is more than {limit}")
    if seconds < SHORTEST_JOB:
        expected = "leaves no time for a checkpoint; expected 2 minutes or more"
        problems.append(f"--time: {seconds} s {expected}")
    if tasks > site.devices_per_node:
        problems.append(f"--devices {tasks}: a node has {site.devices_per_node}")


def check_log_folder(logs: Path, problems: list[str]) -> None:
    """Check that an #SBATCH line can hold the folder of the log; the rest of a script can hold
    every name.
    """
    if re.search(r"[\x00-\x1f\x7f\"'\\%$`]", str(logs)):
        wrong = "SLURM cannot write a log into a folder with quotes, %, $ or newlines in its name"
        problems.append(f"{str(logs)!r}: {wrong}; choose another by --output-dir (OUT of make)")


def check_free_space(site: Site, user: str, needed: int, problems: list[str]) -> None:
    """Check that shared storage exists and has so many bytes free."""
    shared = Path(site.path("shared", user))
    if any(problem.startswith("shared:") for problem in site.unset):
        return
    if not shared.is_dir():
        hint = f"is this a login node of {site.title}? AAM_SITE_SHARED=FOLDER names another"
        problems.append(f"shared: {shared} is not a folder here; {hint}")
    elif (free := shutil.disk_usage(shared).free) < needed:
        sizes = f"has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed"
        hint = "free some, or name a folder with more with AAM_SITE_SHARED=FOLDER"
        problems.append(f"shared: {shared} {sizes}; {hint}")


def add_placeholders(kind: Kind, options: Options, absences: list[str]) -> None:
    """Add what a job needs and nobody gave under the names of make's variables, and name it as
    absent.
    """
    present = {name for name, values in options if values}
    needs_input = kind.template == "stage.sh" and not present & set(INPUTS)
    for name in kind.needs or (("--table",) if needs_input else ()):
        if name not in present and "--config" not in present:
            options.append((name, [PLACEHOLDERS[name]]))
            absences.append(f"{name}: is missing, {PLACEHOLDERS[name]} stands in its place")


def check_options(kind: Kind, options: Options, request: Request, problems: list[str]) -> None:
    """Check that all needed inputs are given, and that aam has all options; the message shows a
    whole command.
    """
    present = {name for name, values in options if values}
    for name in kind.needs:
        if name not in present and "--config" not in present:
            example = f"make {request.job.replace('_', '-')} {kind.example}".rstrip()
            problems.append(f"{name}: is missing; for example: {example}")
    if kind.template == "stage.sh" and not present & set(INPUTS):
        problems.append(f"stage: no input to copy is given; for example: make stage {kind.example}")
    owner = f"aam {kind.command}" if kind.command else request.job
    problems += option_problems(options, options_of(kind.command, kind.template), owner)


def request_problems(kind: Kind, request: Request) -> list[str]:
    """List the problems of the options of a request, whatever the site."""
    problems: list[str] = []
    options = parse_options(request.words)
    if request.dry_run:
        add_placeholders(kind, options, [])
    check_options(kind, options, request, problems)
    return problems


def is_new_or_run(out: Path) -> bool:
    """Return whether a folder does not exist, holds logs only, or holds a run of aam."""
    if not out.exists():
        return True
    has_only_logs = out.is_dir() and {path.name for path in out.iterdir()} <= {"slurm"}
    return has_only_logs or (out / "run.json").exists()
