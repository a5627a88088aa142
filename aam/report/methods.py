"""Methods of a run in sentences with their references, and its answers to the questions of DOME
(Walsh et al. 2021): data, optimization, model, evaluation. templates/methods.j2 has the words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import pandas as pd

from aam.config import number_of_folds
from aam.report.charts import Table
from aam.report.record import Record, rendered

# References by the words that cite them.
REFERENCES: dict[str, str] = json.loads(
    (resources.files("aam.report") / "templates" / "references.json").read_text(encoding="utf-8")
)

LIBRARIES = ("torch", "scikit-learn", "numpy")


def _flat_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of run.json without their sections."""
    sections = [part for part in config.values() if isinstance(part, Mapping)]
    return {name: value for part in (config, *sections) for name, value in part.items()}


def described(
    record: Mapping[str, Any], targets: Sequence[Record], data: Mapping[str, object]
) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Three to six sentences for a paper, and the answers to DOME by section and question.

    Parameters
    ----------
    record : mapping
        The run.json of a run.
    targets : sequence of Record
    data : mapping
        The sizes of the data by name.

    Returns
    -------
    methods, answers
        Both empty without a judged target or its run.json.
    """
    judged = [target for target in targets if target["samples"]]
    if not record or not judged:
        return [], {}
    options, versions = _flat_options(record.get("config", {})), record.get("versions", {})
    module = rendered(
        "methods.j2",
        record=record,
        targets=targets,
        judged=judged,
        data=data,
        options=options,
        cv_is_number=number_of_folds(str(options.get("cv"))) is not None,
        libraries=[f"{name} {versions[name]}" for name in LIBRARIES if name in versions],
    )
    return module.methods, module.dome


def references(text: str) -> list[str]:
    """The references that a text cites, in alphabetical order."""
    return [reference for name, reference in sorted(REFERENCES.items()) if name in text]


def dome_table(answers: Mapping[str, Mapping[str, str]]) -> list[Table]:
    """The answers to DOME as a table of a report."""
    rows = [
        (f"{section}: {question}", answer)
        for section, part in answers.items()
        for question, answer in part.items()
    ]
    title = "Answers to the questions of DOME (Walsh et al. 2021)"
    return [Table(title, pd.DataFrame(rows), "dome")] if rows else []
