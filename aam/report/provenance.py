"""Provenance of a run, from its run.json: code, command, inputs and machine, and how to repeat
it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import pandas as pd

from aam.config import EvaluateConfig, FineTuneConfig, PretrainConfig
from aam.options import IN_MEMORY, options_of, to_dict
from aam.report.charts import Table

# The options of each command with a report, at their defaults.
DEFAULTS: dict[str, type] = {
    "train": FineTuneConfig,
    "pretrain": PretrainConfig,
    "evaluate": EvaluateConfig,
}

UNRECORDED = "not recorded"

RunRecord = Mapping[str, Any]


def _words(value: object) -> str:
    """The value of an option as words of a command line."""
    return shlex.join(map(str, value if isinstance(value, list) else [value]))


def changed_options(record: RunRecord) -> dict[str, str]:
    """The options of a run whose values are not the defaults, by name on the command line; those
    that the run chose by itself are among them.
    """
    kind = DEFAULTS.get(record.get("command", ""))
    if kind is None:
        return {}
    default, config, changed = kind(), record.get("config", {}), {}
    plain = to_dict(default)
    for option in options_of(default):
        name, part = option.field.name, option.part
        defaults = plain[part] if part else plain
        values = config.get(part, {}) if part else config
        value = values.get(name, defaults[name])
        if value != defaults[name]:
            changed[option.name] = "" if value is True else _words(value)
    return changed


def command_line(record: RunRecord) -> str:
    """The command as it was typed; of a run that Python called, the equal one."""
    if record.get("typed"):
        return str(record["typed"])
    words = [f"{name} {value}".strip() for name, value in changed_options(record).items()]
    return " ".join(["aam", str(record.get("command", "")), *words])


def _duration(seconds: float) -> str:
    """A time in the largest units that it fills."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _time_taken(record: RunRecord, seconds: float) -> str:
    """The time from the start of a run to its report."""
    started = str(record.get("started", UNRECORDED))
    if calls := len(record.get("resumed", ())):
        return f"{started}; resumed {calls} time{'s' if calls > 1 else ''}, so no time is given"
    return f"{started}, {_duration(seconds)} until this report"


def _input(entry: RunRecord) -> str:
    """Path, size and checksum of an input."""
    size, digest = entry.get("bytes"), entry.get("sha256") or UNRECORDED
    path = entry.get("path", UNRECORDED)
    return f"{path}{'' if size is None else f'; {size:,} bytes'}; SHA-256 {digest}"


def provenance_tables(record: RunRecord, seconds: float) -> list[Table]:
    """Tables of the code, command, machine and inputs of a run; none without its run.json.

    `seconds` have passed since the start. An older run.json lacks some facts: they are called "not
    recorded".
    """
    if not record:
        return []
    versions = record.get("versions", {})
    libraries = ("torch", "scikit-learn", "numpy", "python")
    machine = f"{record.get('machine', UNRECORDED)}, {record.get('threads', '?')} threads"
    facts = {
        "version": f"aam {versions.get('aam', UNRECORDED)}",
        "commit": record.get("commit") or UNRECORDED,
        "started": _time_taken(record, seconds),
        "command": command_line(record),
        "versions": ", ".join(f"{name} {versions.get(name, UNRECORDED)}" for name in libraries),
        "container image": record.get("image") or "none",
        "device": f"{record['device']} x {record.get('ranks', 1)}; {machine}"
        if record.get("device")
        else machine,
    }
    changed = {name: value or "yes" for name, value in changed_options(record).items()}
    inputs = {name: _input(entry) for name, entry in record.get("inputs", {}).items()}
    titled = {"Provenance": facts, "Options that are not at their defaults": changed}
    titled["Inputs"] = inputs
    return [Table(title, pd.DataFrame(part.items())) for title, part in titled.items()]


def repetition(record: RunRecord) -> str:
    """Lines of a shell that check the inputs and repeat a run; empty without its run.json."""
    if not record:
        return ""
    commit = str(record.get("commit") or "").removesuffix("+")
    lines = [f"git checkout {shlex.quote(commit)}"] if commit else []
    digests = {
        entry["path"]: entry["sha256"]
        for entry in record.get("inputs", {}).values()
        if len(entry.get("sha256") or "") == 64 and entry.get("path") not in (None, str(IN_MEMORY))
    }
    if digests:
        listed = [shlex.quote(f"{digest}  {path}") for path, digest in digests.items()]
        lines.append(" \\\n  ".join(["printf '%s\\n'", *listed]) + " | sha256sum --check")
    lines.append(f"aam {record.get('command', '')} --config run.json --output-dir repeated")
    return "\n".join(lines)
