"""Several studies in a file of options: a [[studies]] section for each, instead of lists of tables and trees."""

from __future__ import annotations

from typing import Any

from aam.config import NO_TREE
from aam.errors import Problems, shown

KEYS = ("table", "tree", "name", "taxonomy")

# What a file may hold beside [[studies]] only if no study has it.
LISTS = {"trees": "tree", "study_names": "name", "taxonomy": "taxonomy"}


def with_studies(options: dict[str, Any], where: str, problems: Problems) -> dict[str, Any]:
    """Return the sections of a file of options, with those of its studies as options of ``[data]``.

    Everything that is wrong with the studies is added to `problems`; `where` begins the messages.
    """
    others = {key: value for key, value in options.items() if key not in ("studies", "study")}
    if "study" in options:
        problems.add(f"{where}: unknown key 'study'; did you mean [[studies]]?")
    if "studies" not in options:
        return others
    studies, data = options["studies"], others.get("data", {})
    if not (isinstance(studies, list) and studies and all(isinstance(study, dict) for study in studies)):
        problems.add(f"{where}: 'studies' is {shown([studies])}, expected a [[studies]] section for each study")
        return others
    found = [*_study_problems(studies, where), *_list_problems(studies, data, where)]
    problems.messages += found
    if found or not isinstance(data, dict):
        return others
    lists = {
        "tables": [study["table"] for study in studies],
        "trees": [study.get("tree", NO_TREE) for study in studies] if any("tree" in study for study in studies) else [],
        "study_names": [study["name"] for study in studies if "name" in study],
        "taxonomy": [study["taxonomy"] for study in studies if "taxonomy" in study],
    }
    return {**others, "data": {**data, **{key: values for key, values in lists.items() if values}}}


def _study_problems(studies: list[dict[str, Any]], where: str) -> list[str]:
    """Return what is wrong with the keys and values of the studies."""
    problems = [
        f"{where}, [[studies]] {number}: {key!r} is {value!r}, expected text"
        if key in KEYS
        else f"{where}, [[studies]] {number}: unknown key {key!r}; expected {shown(KEYS)}"
        for number, study in enumerate(studies, 1)
        for key, value in study.items()
        if key not in KEYS or not isinstance(value, str) or not value
    ]
    return problems + [
        f"{where}, [[studies]] {number}: no 'table'; name its feature table"
        for number, study in enumerate(studies, 1)
        if "table" not in study
    ]


def _list_problems(studies: list[dict[str, Any]], data: Any, where: str) -> list[str]:
    """Return what only some studies have that all must have, and what ``[data]`` names a second time."""
    problems, named = [], sum("name" in study for study in studies)
    if named not in (0, len(studies)):
        problems.append(f"{where}: {named} of {len(studies)} [[studies]] have a name; name all or none")
    keys = {key.replace("-", "_") for key, value in data.items() if value != []} if isinstance(data, dict) else set()
    taken = {"table", "tables", "tree", *(key for key, one in LISTS.items() if any(one in study for study in studies))}
    if twice := sorted(keys & taken):
        problems.append(f"{where}: [[studies]] and [data] {shown(twice)}: both name files; keep one of them")
    return problems
