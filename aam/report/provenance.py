"""Provenance of a run, from its run.json: code, command, inputs and machine, and how to repeat
it. templates/provenance.j2 has the words.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import pandas as pd

from aam.config import EvaluateConfig, FineTuneConfig, PretrainConfig
from aam.options import IN_MEMORY, options_of, to_dict
from aam.report.charts import Table
from aam.report.record import rendered

# The options of each command with a report, at their defaults.
DEFAULTS: dict[str, type] = {
    "train": FineTuneConfig,
    "pretrain": PretrainConfig,
    "evaluate": EvaluateConfig,
}

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
    """The command line of a run, or what equals a call from Python."""
    words = [f"{name} {value}".strip() for name, value in changed_options(record).items()]
    return " ".join(["aam", str(record.get("command", "")), *words])


def provenance(record: RunRecord, seconds: float = 0.0) -> tuple[list[Table], str]:
    """Tables of the code, command, machine and inputs of a run, and lines of a shell that check the
    inputs and repeat it; none without its run.json.

    `seconds` have passed since the start. An older run.json lacks some facts: they are called "not
    recorded".
    """
    if not record:
        return [], ""
    command, in_memory = command_line(record), str(IN_MEMORY)
    facts = {"record": record, "seconds": seconds, "command": command, "in_memory": in_memory}
    module = rendered("provenance.j2", **facts)
    changed = [(name, value or "yes") for name, value in changed_options(record).items()]
    parts = {
        "Provenance": module.facts,
        "Options that are not at their defaults": changed,
        "Inputs": module.inputs,
    }
    tables = [Table(title, pd.DataFrame(part)) for title, part in parts.items()]
    return tables, str(module.repetition)
