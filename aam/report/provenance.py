"""Provenance of a run, from its run.json: code, command, inputs and machine, and how to repeat
it. templates/provenance.j2 has the words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from aam.config import EvaluateConfig, FineTuneConfig, PretrainConfig
from aam.files.output_folder import RUN
from aam.options import IN_MEMORY, command_line, options_of, overlaid
from aam.report.charts import Table
from aam.report.record import rendered

# The options of each command with a report, at their defaults.
DEFAULTS: dict[str, type] = {
    "train": FineTuneConfig,
    "pretrain": PretrainConfig,
    "evaluate": EvaluateConfig,
}

RunRecord = Mapping[str, Any]


def repeated_command(record: RunRecord) -> str:
    """The command line of a run, or what equals a call from Python, with the options that are not
    at their defaults; those that the run chose by itself are among them.
    """
    command = record.get("command", "")
    default = DEFAULTS[command]()
    config, _ = overlaid(default, record.get("config", {}), RUN)
    pairs = zip(options_of(default), options_of(config), strict=True)
    changed = {now.name[2:]: now.value for before, now in pairs if now.value != before.value}
    return command_line(command, **changed)


def provenance(record: RunRecord, seconds: float = 0.0) -> tuple[list[Table], str]:
    """Tables of the code, command, machine and inputs of a run, and lines of a shell that check the
    inputs and repeat it; none without its run.json.

    `seconds` have passed since the start. An older run.json lacks some facts: they are called "not
    recorded".
    """
    if not record:
        return [], ""
    command, in_memory = repeated_command(record), str(IN_MEMORY)
    facts = {"record": record, "seconds": seconds, "command": command, "in_memory": in_memory}
    module = rendered("provenance.j2", **facts)
    parts = {"Provenance": module.facts, "Inputs": module.inputs}
    tables = [Table(title, pd.DataFrame(part)) for title, part in parts.items()]
    return tables, str(module.repetition)
