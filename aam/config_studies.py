"""Several studies in a file of options: a [[studies]] section for each, instead of lists of tables and trees."""

from __future__ import annotations

from typing import Any

from aam.config import NO_TREE
from aam.errors import InputError, shown

KEYS = ("table", "tree", "name", "taxonomy")


def with_studies(options: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the sections of a file of options, with those of its studies as options of ``[data]``.

    Raises
    ------
    InputError
        Everything that is wrong with the studies; `where` begins the messages.
    """
    others = {key: value for key, value in options.items() if key != "studies"}
    if "studies" not in options:
        return others
    studies, data = options["studies"], others.get("data", {})
    if not (isinstance(studies, list) and studies and all(isinstance(study, dict) for study in studies)):
        raise InputError(f"{where}: 'studies' is {shown([studies])}, expected a [[studies]] section for each study")
    lists = {
        "tables": [study.get("table") for study in studies],
        "trees": [study.get("tree", NO_TREE) for study in studies] if any("tree" in study for study in studies) else [],
        "study_names": [study["name"] for study in studies if "name" in study],
        "taxonomy": [study["taxonomy"] for study in studies if "taxonomy" in study],
    }
    problems = [
        f"{where}, [[studies]] {number}: {key!r} is {value!r}, expected text"
        if key in KEYS
        else f"{where}, [[studies]] {number}: unknown key {key!r}; expected {shown(KEYS)}"
        for number, study in enumerate(studies, 1)
        for key, value in study.items()
        if key not in KEYS or not isinstance(value, str)
    ]
    problems += [
        f"{where}, [[studies]] {number}: no 'table'; name its feature table"
        for number, study in enumerate(studies, 1)
        if "table" not in study
    ]
    if len(lists["study_names"]) not in (0, len(studies)):
        problems.append(
            f"{where}: {len(lists['study_names'])} of {len(studies)} [[studies]] have a name; name all or none"
        )
    if isinstance(data, dict) and (
        twice := sorted({key.replace("-", "_") for key in data} & {"table", "tree", *lists})
    ):
        problems.append(f"{where}: [[studies]] and [data] {shown(twice)}: both name files; keep one of them")
    if problems:
        raise InputError(*problems)
    return {**others, "data": {**data, **{key: values for key, values in lists.items() if values}}}
