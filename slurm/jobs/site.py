"""Sites: what is true of one cluster, from its profile, the user's own file, the environment and options."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parts.whole import ROOT, InputError, refuse

SITES = ROOT / "slurm" / "sites"
VARIABLE = "AAM_SITE_"
# Keys that stand on #SBATCH lines.
WORDS = ("partition", "account", "qos", "gres")


@dataclass(frozen=True)
class Site:
    """One cluster. Empty and 0 mean that nothing is asked of SLURM, or that there is none."""

    title: str = ""
    needs: tuple[str, ...] = ()  # keys that somebody has to set
    partition: str = ""
    account: str = ""
    qos: str = ""
    gres: str = ""
    exclusive: bool = True
    max_hours: float = 0
    max_nodes: int = 0
    hours: float = 12  # of a job that names no time
    devices_per_node: int = 1
    cpus_per_device: int = 0
    threads: int = 0  # computing threads of a task
    cpu_sets: tuple[str, ...] = ()  # CPUs beside each device, as SLURM numbers them
    vast: str = ""  # the file system that all nodes share; {user}
    nvme: str = ""  # a node's own disk; {user} and {job}
    nvme_purged: bool = False  # whether the site empties it after the job
    home: str = ""  # where no image may lie while it is used; {user}
    vast_mb_per_second: float = 200  # what one node writes there when others do too
    setup: tuple[str, ...] = ()  # shell lines before anything else, each of which must succeed
    engine: str = "apptainer"  # or a path, or none: no container
    image: str = ""  # below the checkout, or absolute
    enter: tuple[str, ...] = ()  # options of containers/run
    interfaces: str = ""  # how the names of the fast network's interfaces begin
    fabric: tuple[Mapping[str, Any], ...] = ()  # name, value, path that must be there, opt_in
    fabric_opt_in: bool = False
    most_requeues: int = 20  # of one job, whatever the reason
    copy_minutes: float = 5  # between copies of new checkpoints to VAST

    def place(self, key: str, user: str) -> str:
        """A path of the site, with the user's name in it."""
        return str(getattr(self, key)).replace("{user}", user)


KINDS = {each.name: each.type for each in dataclasses.fields(Site)}
# Least and most of each number; a year is longer than any job.
RANGES: dict[str, tuple[float, float]] = {
    "max_hours": (0, 8784),
    "hours": (0.01, 8784),
    "max_nodes": (0, 100_000),
    "devices_per_node": (1, 1024),
    "cpus_per_device": (0, 4096),
    "threads": (0, 4096),
    "vast_mb_per_second": (0.1, 1e6),
    "most_requeues": (0, 10_000),
    "copy_minutes": (0, 1440),
}
MOST_CPUS = 4096
LISTS = {
    "needs": "keys of a site",
    "cpu_sets": 'CPUs of each device as SLURM numbers them, ascending, such as "0-23,96-119"',
    "setup": "shell lines, each a text without line breaks",
    "enter": "options of containers/run, each a text without line breaks",
    "fabric": "[[fabric]] with name (of a variable), value (text or number), path (absolute) and maybe opt_in ="
    " true or false, in a .toml file",
}


def is_text(value: object) -> bool:
    """Whether a value is text that fits on one line of a script."""
    # What is not UTF-8 comes from the environment as surrogates.
    return isinstance(value, str) and not re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", value)


def _is_key(value: object) -> bool:
    return isinstance(value, str) and value in KINDS


def _is_cpus(value: object) -> bool:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*", value):
        return False
    ranges = [[int(cpu) for cpu in part.split("-")] for part in value.split(",")]
    ends = [cpu for each in ranges for cpu in (each[0], each[-1])]
    return ends == sorted(ends) and ends[-1] < MOST_CPUS


def _is_fabric(value: object) -> bool:
    if not isinstance(value, dict) or value.keys() - {"opt_in"} != {"name", "value", "path"}:
        return False
    name, path, said = value["name"], value["path"], value["value"]
    named = isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    valued = is_text(said) or (isinstance(said, int | float) and not isinstance(said, bool))
    placed = is_text(path) and path.startswith("/")
    return bool(named and valued and placed and isinstance(value.get("opt_in", False), bool))


def _number(key: str, value: object, origin: str) -> int | float:
    low, high = RANGES[key]
    whole = KINDS[key] == "int"
    with contextlib.suppress(ValueError):
        number = (int if whole else float)("" if isinstance(value, bool) else str(value))
        if low <= number <= high:
            return number
    kind = "a whole number" if whole else "a number"
    raise InputError(f"{origin}: {key} is {value!r}, expected {kind} from {low:g} to {high:.0f}")


def _list(key: str, value: object, origin: str) -> tuple[Any, ...]:
    each = {"needs": _is_key, "cpu_sets": _is_cpus, "fabric": _is_fabric}.get(key, is_text)
    if isinstance(value, str) and key != "fabric":
        value = [part for part in value.split(";") if part]
    wrong = [item for item in value if not each(item)] if isinstance(value, list) else []
    if not isinstance(value, list) or wrong:
        said = f"holds {', '.join(map(repr, wrong))}" if wrong else f"is {value!r}"
        raise InputError(f"{origin}: {key} {said}, expected a list of {LISTS[key]}")
    return tuple(value)


def _checked(key: str, value: object, origin: str) -> Any:
    """The value of a key in its type; text from the environment or an option is read."""
    if key in RANGES:
        return _number(key, value, origin)
    if key in LISTS:
        return _list(key, value, origin)
    if KINDS[key] == "bool":
        if not isinstance(value, bool) and value not in ("true", "false"):
            raise InputError(f"{origin}: {key} is {value!r}, expected true or false")
        return value in (True, "true")
    if key in WORDS and isinstance(value, str) and not re.fullmatch(r"[\w.:,=@+/*-]*", value):
        raise InputError(f"{origin}: {key} is {value!r}, which is no name of SLURM's (letters, digits, .:,=@+/*-)")
    if not is_text(value):
        raise InputError(f"{origin}: {key} is {value!r}, expected text on one line, in UTF-8")
    return value


def _read(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        problems.append(f"{path}: is not UTF-8")
    except (OSError, ValueError) as error:
        problems.append(f"{path}: {error}")
    return {}


def profile(name: str) -> Path:
    """The file of a profile: a name of slurm/sites, or a path."""
    path = Path(name) if "/" in name or name.endswith(".toml") else SITES / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in SITES.glob("*.toml")))
        raise InputError(f"--site {name}: no such profile; known are {known}, or name a .toml file")
    return path


def own_file(environment: Mapping[str, str]) -> Path:
    """Where a user keeps what is their own of a site."""
    return Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "aam" / "site.toml"


def load_site(name: str, options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Site:
    """The site called `name`: its profile, then the user's file, AAM_SITE_*, and `options` that are not empty.

    Raises
    ------
    InputError
        Unknown keys, values of a wrong type or out of range, and what the site needs and nobody set, by name.
    """
    problems: list[str] = []
    own = own_file(environment)
    layers = [(str(own), _read(own, problems))] if own.is_file() else []
    chosen = layers[0][1].get("site", "") if layers else ""
    if not is_text(chosen):
        problems.append(f"{own}: site is {chosen!r}, expected the name of a profile")
        chosen = ""
    path = profile(name or environment.get("AAM_SITE") or chosen or "cosmos")
    layers.insert(0, (str(path), _read(path, problems)))
    named = {k: k.removeprefix(VARIABLE).lower() for k in environment if k.startswith(VARIABLE)}
    layers += [(k, {key: environment[k]}) for k, key in sorted(named.items())]
    layers += [(f"--{key.replace('_', '-')}", {key: value}) for key, value in options.items() if value]
    values: dict[str, Any] = {}
    for origin, layer in layers:
        for key, value in layer.items():
            if key not in KINDS and key != "site":
                problems.append(f"{origin}: {key} is no key of a site; expected one of {', '.join(KINDS)}")
            elif key != "site":
                try:
                    values[key] = _checked(key, value, origin)
                except InputError as error:
                    problems += error.problems
    refuse(problems)
    wrong = {key: f"nobody set it, and {path.stem} needs it" for key in values.get("needs", ()) if not values.get(key)}
    for key in ("vast", "nvme", "home"):
        given = values.get(key, "")
        if not given.startswith("/") and (given or key != "home"):
            wrong.setdefault(key, f"is {given!r}, expected an absolute path")
    problems += [f"{key}: {said}: {key} = ... in {own}, or {VARIABLE}{key.upper()}=..." for key, said in wrong.items()]
    refuse(problems)
    return Site(**values)
