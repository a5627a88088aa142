"""Sites: what is true of one cluster, from its profile, the user's own file, the environment and options."""

from __future__ import annotations

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


def _checked(key: str, value: object, origin: str) -> Any:
    """The value of a key in its type; text from the environment or an option is read."""
    kind = KINDS[key]
    lists = isinstance(value, list) and kind.startswith("tuple")
    text = isinstance(value, str)
    if key in WORDS and not re.fullmatch(r"[\w.:,=@+/*-]*", str(value)):
        raise InputError(f"{origin}: {key} is {value!r}, which is no name of SLURM's")
    if kind == "str" and text:
        if re.search(r"[\x00-\x1f\x7f]", str(value)):
            raise InputError(f"{origin}: {key} holds a control character")
        return value
    if kind == "bool" and (isinstance(value, bool) or value in ("true", "false")):
        return value in (True, "true")
    if kind in ("int", "float") and not isinstance(value, bool):
        try:
            return int(str(value)) if kind == "int" else float(str(value))
        except ValueError:
            pass
    if lists:
        return tuple(value)  # type: ignore[arg-type]
    if kind.startswith("tuple[str") and text:
        return tuple(filter(None, str(value).split(";")))
    raise InputError(f"{origin}: {key} is {value!r}, expected {kind}")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: {error}") from error


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
        Unknown keys, values of a wrong type, and what the site needs and nobody set, by name.
    """
    own = own_file(environment)
    layers = [(str(own), _read(own))] if own.is_file() else []
    name = name or environment.get("AAM_SITE") or (layers[0][1].pop("site", "") if layers else "") or "cosmos"
    path = profile(name)
    layers.insert(0, (str(path), _read(path)))
    named = {k: k.removeprefix(VARIABLE).lower() for k in environment if k.startswith(VARIABLE)}
    layers += [(k, {key: environment[k]}) for k, key in sorted(named.items())]
    layers += [(f"--{key.replace('_', '-')}", {key: value}) for key, value in options.items() if value]
    values: dict[str, Any] = {}
    problems = []
    for origin, layer in layers:
        for key, value in layer.items():
            if key not in KINDS and key != "site":
                problems.append(f"{origin}: {key} is no key of a site; expected one of {', '.join(KINDS)}")
            elif key != "site":
                values[key] = _checked(key, value, origin)
    missing = [key for key in values.get("needs", ()) if not values.get(key)]
    problems += [
        f"{key}: nobody set it, and {path.stem} needs it: {key} = ... in {own}, or {VARIABLE}{key.upper()}=..."
        for key in missing
    ]
    refuse(problems)
    return Site(**values)
