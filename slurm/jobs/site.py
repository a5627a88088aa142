"""Sites: what is true of one cluster, from its profile, the user's file, the environment and
options.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from containers.lib.errors import InputError, raise_if_any
from containers.lib.files import ROOT

PROFILES = ROOT / "slurm" / "sites"
VARIABLE = "AAM_SITE_"
# Keys whose values stand on #SBATCH lines. "none" says that the site has no such thing.
SBATCH_KEYS = ("partition", "cpu_partition", "account", "qos", "gres", "constraint", "reservation")
NONE = "none"
# Devices of a site: the image that fits, and the options of containers/run.
IMAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "hip": ("containers/aam-rocm.sif", ()),  # --rocm adds libraries of the host, which broke images
    "cuda": ("containers/aam-cuda.sif", ("--nv",)),
    "cpu": ("containers/aam-cpu.sif", ()),
}


@dataclass(frozen=True)
class Site:
    """One cluster. An empty value or 0 means that SLURM gets no such option, or that the site has
    no such thing.
    """

    title: str = ""
    needs: tuple[str, ...] = ()  # keys that the user must set
    partition: str = ""
    cpu_partition: str = ""  # for jobs that use no GPU
    account: str = ""
    qos: str = ""
    gres: str = ""
    gpus_per_node: int = 0  # instead of gres
    constraint: str = ""
    reservation: str = ""
    exclusive: bool = True
    max_hours: float = 0
    max_nodes: int = 0
    limits: tuple[str, ...] = ()  # NODES:HOURS, ascending: the time limit up to a number of nodes
    hours: float = 12  # time limit of a job without --time
    device: str = ""  # hip, cuda, or cpu: no GPUs
    devices_per_node: int = 1
    cpus_per_device: int = 0
    threads: int = 0  # threads of a task for computing
    workers: int = 0  # processes of a task that prepare batches
    cpu_sets: tuple[str, ...] = ()  # CPUs next to each device, in SLURM's numbers
    shared: str = ""  # the file system that all nodes see; {user}
    local: str = ""  # the disk of a node; {user} and {job}
    local_purged: bool = False  # whether the site empties the local disk after the job
    home: str = ""  # where an image must not lie while it is used; {user}
    shared_mb_per_second: float = 200  # what one node writes to shared storage when others do too
    sbatch: tuple[str, ...] = ()  # further options of sbatch, such as --mail-type=END
    env: tuple[str, ...] = ()  # NAME=VALUE, variables of every command in a job
    setup: tuple[str, ...] = ()  # shell lines that run first; each must succeed
    python: str = ""  # on the nodes, 3.11 or newer; empty: the one that writes the script
    rocm: str = ""  # the nodes' ROCm, whose rocprofv3 traces kernels
    engine: str = "apptainer"  # or a path, or none: no container
    image: str = ""  # relative to the checkout, or absolute; empty: by device
    enter: tuple[str, ...] = ()  # options of containers/run; unset: by device
    interfaces: str = ""  # beginning of the names of the fast network's interfaces
    most_requeues: int = 20  # of one job, for whatever reason
    copy_minutes: float = 5  # between copies of new checkpoints to shared storage
    seen: str = ""  # date and commit of the last run of aam there; empty: none
    unset: tuple[str, ...] = ()  # no key: what a script that is only shown lacks

    def path(self, key: str, user: str) -> str:
        """Return a path of the site for a user."""
        return str(getattr(self, key)).replace("{user}", user)

    def longest(self, nodes: int) -> float:
        """The hours that a job of so many nodes may take at most; 0 if the site has no limit."""
        limits = [each.split(":") for each in self.limits]
        hours = [float(hours) for most, hours in limits if nodes <= int(most)]
        allowed = [*hours[:1], *([self.max_hours] if self.max_hours else [])]
        return min(allowed, default=0)


TYPES = {each.name: each.type for each in dataclasses.fields(Site) if each.name != "unset"}
# Smallest and largest value of each number. A year is longer than any job.
RANGES: dict[str, tuple[float, float]] = {
    "max_hours": (0, 8784),
    "hours": (0.01, 8784),
    "max_nodes": (0, 100_000),
    "devices_per_node": (1, 1024),
    "cpus_per_device": (0, 4096),
    "gpus_per_node": (0, 1024),
    "threads": (0, 4096),
    "workers": (0, 4096),
    "shared_mb_per_second": (0.1, 1e6),
    "most_requeues": (0, 10_000),
    "copy_minutes": (0, 1440),
}
MAX_CPUS = 4096


def is_line(value: object) -> bool:
    """Return whether a value is text that fits on one line of a script."""
    # Bytes of the environment that are not UTF-8 arrive as surrogates.
    return isinstance(value, str) and not re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", value)


def text_like(pattern: str = ".*") -> Callable[[object], bool]:
    """Return a function that says whether a value is text on one line of this pattern."""
    return lambda value: is_line(value) and re.fullmatch(pattern, str(value)) is not None


def _is_cpu_set(value: object) -> bool:
    number = "[0-9]{1,5}(-[0-9]{1,5})?"
    if not isinstance(value, str) or not re.fullmatch(f"{number}(,{number})*", value):
        return False
    ranges = [part.split("-") for part in value.split(",")]
    ends = [int(cpu) for cpus in ranges for cpu in (cpus[0], cpus[-1])]
    return ends == sorted(ends) and ends[-1] < MAX_CPUS


# Options of sbatch on which a script relies.
OF_JOBS = "job-name|nodes|ntasks.*|time|signal|(no-)?requeue|open-mode|chdir|output|error|array"
OF_JOBS += "|dependency|wrap|parsable|kill-on-invalid-dep"


# What an item of each list is: a function that says so, and words.
LISTS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "needs": (text_like("|".join(TYPES)), "keys of a site"),
    "cpu_sets": (
        _is_cpu_set,
        'CPUs of each device in SLURM\'s numbers, ascending, such as "0-23,96-119"',
    ),
    "limits": (
        text_like(r"[1-9][0-9]{0,5}:[0-9]{1,4}(\.[0-9]+)?"),
        'NODES:HOURS, ascending, such as "91:2"',
    ),
    "sbatch": (
        text_like(rf"--(?!({OF_JOBS})(=|$))[a-z][a-z-]*(=\S+)?"),
        "options of sbatch, such as --mail-type=END, but for nodes, tasks, time, signal, requeue, "
        "log and folder, which a job sets itself",
    ),
    "env": (text_like("[A-Za-z_][A-Za-z0-9_]*=.*"), "NAME=VALUE, each on one line"),
    "setup": (text_like(), "shell lines, each a text without line breaks"),
    "enter": (text_like(), "options of containers/run, each a text without line breaks"),
}


def _number(key: str, value: object, origin: str) -> int | float:
    low, high = RANGES[key]
    is_integer = TYPES[key] == "int"
    with contextlib.suppress(ValueError):
        number = (int if is_integer else float)("" if isinstance(value, bool) else str(value))
        if low <= number <= high:
            return number
    expected = f"a {'whole ' * is_integer}number from {low:g} to {high:.0f}"
    raise InputError(f"{origin}: {key} is {value!r}, expected {expected}")


def _list(key: str, value: object, origin: str) -> tuple[Any, ...]:
    is_valid, words = LISTS[key]
    if isinstance(value, str):
        value = [part for part in value.split(";") if part]
    invalid = [item for item in value if not is_valid(item)] if isinstance(value, list) else []
    if not isinstance(value, list) or invalid:
        problem = f"holds {', '.join(map(repr, invalid))}" if invalid else f"is {value!r}"
        raise InputError(f"{origin}: {key} {problem}, expected a list of {words}")
    return tuple(value)


def parse_value(key: str, value: object, origin: str) -> Any:
    """Return the value of a key in its type; values of the environment and of options are text.

    Raises
    ------
    InputError
        A wrong type or a number out of range; the message names `origin`.
    """
    if key in RANGES:
        return _number(key, value, origin)
    if key in LISTS:
        return _list(key, value, origin)
    if TYPES[key] == "bool":
        if not isinstance(value, bool) and value not in ("true", "false"):
            raise InputError(f"{origin}: {key} is {value!r}, expected true or false")
        return value in (True, "true")
    is_name = isinstance(value, str) and re.fullmatch(r"[\w.:,=@+/*-]*", value)
    if key in SBATCH_KEYS and isinstance(value, str) and not is_name:
        allowed = "which is not a name for SLURM (letters, digits, .:,=@+/*-)"
        raise InputError(f"{origin}: {key} is {value!r}, {allowed}")
    if not is_line(value):
        raise InputError(f"{origin}: {key} is {value!r}, expected text on one line, in UTF-8")
    if key == "device" and value not in IMAGES:
        raise InputError(f"{origin}: device is {value!r}, expected {', '.join(IMAGES)}")
    return value


def _read_toml(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        problems.append(f"{path}: is not UTF-8")
    except (OSError, ValueError) as error:
        problems.append(f"{path}: {error}")
    return {}


def profile_path(name: str) -> Path:
    """Return the file of a profile: a name in slurm/sites, or a path."""
    path = Path(name) if "/" in name or name.endswith(".toml") else PROFILES / f"{name}.toml"
    if not path.is_file():
        names = ", ".join(sorted(profile.stem for profile in PROFILES.glob("*.toml")))
        expected = f"expected one of {names}, or a .toml file"
        raise InputError(f"--site {name}: no such profile; {expected}")
    return path


def user_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the user's own settings of a site."""
    return Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "aam" / "site.toml"


# Where values come from, and the values.
Layer = tuple[str, Mapping[str, Any]]


def layers_of(
    name: str, options: Mapping[str, str], environment: Mapping[str, str], problems: list[str]
) -> tuple[Path, list[Layer]]:
    """Return the profile, and all layers of values; a later layer wins."""
    own_path = user_file(environment)
    own_values = _read_toml(own_path, problems) if own_path.is_file() else {}
    default_name = own_values.get("site", "")
    if not is_line(default_name):
        problems.append(f"{own_path}: site is {default_name!r}, expected the name of a profile")
        default_name = ""
    profile = profile_path(name or environment.get("AAM_SITE") or default_name or "cosmos")
    layers: list[Layer] = [(str(profile), _read_toml(profile, problems))]
    layers += [(str(own_path), own_values)]
    for name in sorted(name for name in environment if name.startswith(VARIABLE)):
        layers += [(name, {name.removeprefix(VARIABLE).lower(): environment[name]})]
    for key, text in options.items():
        layers += [(f"--{key.replace('_', '-')}", {key: text})] if text else []
    return profile, layers


def merge(layers: list[Layer], problems: list[str]) -> dict[str, Any]:
    """Return the parsed values of all layers together."""
    values: dict[str, Any] = {}
    for origin, layer in layers:
        for key, value in layer.items():
            if key in TYPES:
                try:
                    values[key] = parse_value(key, value, origin)
                except InputError as error:
                    problems += error.problems
            elif key != "site":
                expected = f"expected one of {', '.join(TYPES)}"
                problems.append(f"{origin}: {key} is not a key of a site; {expected}")
    return values


def load_site(
    name: str,
    options: Mapping[str, str],
    environment: Mapping[str, str] = os.environ,
    dry_run: bool = False,
) -> Site:
    """Return the site `name`: its profile, then the user's file, AAM_SITE_*, and `options` that are
    not empty. In a script that is only shown, the name of a text that nobody has set stands in its
    place.

    Raises
    ------
    InputError
        Unknown keys, values of a wrong type or out of range, and values that the site needs and
        nobody set.
    """
    problems: list[str] = []
    profile, layers = layers_of(name, options, environment, problems)
    values = merge(layers, problems)
    raise_if_any(problems)
    unset = [key for key in values.get("needs", ()) if not values.get(key)]
    missing = dict.fromkeys(unset, f"is not set, and {profile.stem} needs it")
    if not values.get("device"):
        missing.setdefault("device", f"is not set, expected {', '.join(IMAGES)}")
    for key in ("shared", "local", "home"):
        path = values.get(key, "")
        if not path.startswith("/") and (path or key != "home"):
            missing.setdefault(key, f"is {path!r}, expected an absolute path")
    most = [int(limit.partition(":")[0]) for limit in values.get("limits", ())]
    if most != sorted(set(most)):
        missing["limits"] = f"is {list(values['limits'])}, expected ascending numbers of nodes"
    sets = len(values.get("cpu_sets", ()))
    devices = values.get("devices_per_node", Site.devices_per_node)
    if sets not in (0, devices):
        expected = "expected one for each device, or []"
        missing["cpu_sets"] = f"has {sets} sets for devices_per_node = {devices}, {expected}"
    is_shown = dry_run and missing.keys() <= {*unset, "shared", "local"}
    if is_shown:
        paths = {key: f"/{key.upper()}" for key in ("shared", "local") if key in missing}
        texts = {key: key.upper() for key in unset if TYPES[key] == "str"}
        values |= {key: value for key, value in (texts | paths).items() if not values.get(key)}
    problems = []
    for key, problem in missing.items():
        remedy = f"write {key} = ... into {user_file(environment)}, or set {VARIABLE}{key.upper()}"
        none = f"; {NONE} where the site has none" if key in SBATCH_KEYS else ""
        problems.append(f"{key}: {problem}: {remedy}=...{none}")
    raise_if_any([] if is_shown else problems)
    values["unset"] = tuple(problems)
    values |= {key: "" for key in SBATCH_KEYS if values.get(key) == NONE}
    if values.get("engine") != NONE:
        image, enter = IMAGES[values["device"]]
        values = {"enter": enter, **values, "image": values.get("image") or image}
    return Site(**values)
