"""A file of options, for one command: [[studies]] instead of lists, and what the command does not take."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Container
from pathlib import Path
from typing import Any, TypeVar

from aam.config import NO_TREE, PretrainConfig
from aam.errors import Problems, shown
from aam.options import from_dict, options_of, read_toml, spelled

log = logging.getLogger("aam")

Config = TypeVar("Config")

# What a [[studies]] section may hold, and the lists of ``[data]`` that say it for all studies.
STUDY = {"table": "tables", "tree": "trees", "name": "study_names", "taxonomy": "taxonomy"}

# The section that only `aam tune` has.
SEARCH = "search"

# Options of earlier versions that no command has any more, and what to do instead.
REMOVED = {
    "--categorical-dropout": "a tenth of the covariates is hidden in training",
    "--label-share": "leave samples out of the metadata, and pass --missing drop",
    "--pipeline": "--data-parallel and --distributed share the work among processes",
    "--unfreeze-epochs": "--freeze-base trains the new heads alone",
}


def read_config(path: Path, default: Config) -> Config:
    """Return `default` overlaid with a TOML file or the ``config`` of a run.json.

    Options that the command does not take, or that no command takes any more, are left out and logged.

    Raises
    ------
    InputError
        The file cannot be read or parsed, holds unknown keys or wrong types, or names samples by an option that the
        command does not take.
    """
    sections, problems, where = read_toml(path), Problems(), str(path)
    if isinstance(default, PretrainConfig):
        sections = _with_studies(sections, where, problems)
    sections, left_out = without_removed(sections, {each.name for each in options_of(default)})
    if SEARCH in sections and not hasattr(default, SEARCH):
        # A run.json of `aam tune`, whose other options are those of `aam train`.
        del sections[SEARCH]
        left_out.append(f"[{SEARCH}]")
    config = default
    with problems.collected():
        config = from_dict(default, sections, where)
    config, omitted = _without_omitted(config, default, where, problems)
    problems.raise_if_any()
    left_out += omitted
    if left_out:
        log.info("%s: %s not used, this command has no such options", path, shown(left_out, 20))
    return config


def without_removed(sections: dict[str, Any], of_command: Container[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Return sections of options without those of earlier versions, and the names of the latter.

    Another program (examples.eeg) may have an option `of_command` of the same name.
    """
    kept, removed = dict(sections), []
    for section, options in sections.items():
        if isinstance(options, dict):
            gone = {name for name in options if spelled(name) in REMOVED and spelled(name) not in of_command}
            kept[section] = {name: value for name, value in options.items() if name not in gone}
            removed += [f"[{section}] {name}" for name in options.keys() - kept[section].keys()]
    return kept, removed


def _without_omitted(config: Config, default: Config, where: str, problems: Problems) -> tuple[Config, list[str]]:
    """Return the options with those that the command omits as in `default`, and the names of the ones that differed.

    One that selects samples is added to `problems`.
    """
    omitted = []
    for part in dataclasses.fields(config):  # type: ignore[arg-type]
        section, usual = getattr(config, part.name), getattr(default, part.name)
        for name in part.metadata.get("omitted", ()):
            value = getattr(section, name)
            if value == getattr(usual, name):
                continue
            omitted.append(f"[{part.name}] {name}")
            if type(section).__dataclass_fields__[name].metadata["selects_samples"]:
                text = shown(value) if isinstance(value, tuple) else value
                problems.add(f"{where}: {omitted[-1]} is {text}, and this command has no such option; leave it out")
            section = dataclasses.replace(section, **{name: getattr(usual, name)})
        config = dataclasses.replace(config, **{part.name: section})  # type: ignore[type-var]
    return config, omitted


def _with_studies(options: dict[str, Any], where: str, problems: Problems) -> dict[str, Any]:
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
    lists = {STUDY[key]: [study[key] for study in studies if key in study] for key in STUDY}
    if lists["trees"]:
        lists["trees"] = [study.get("tree", NO_TREE) for study in studies]
    return {**others, "data": {**data, **{key: values for key, values in lists.items() if values}}}


def _study_problems(studies: list[dict[str, Any]], where: str) -> list[str]:
    """Return what is wrong with the keys and values of the studies."""
    problems = [
        f"{where}, [[studies]] {number}: {key!r} is {value!r}, expected text"
        if key in STUDY
        else f"{where}, [[studies]] {number}: unknown key {key!r}; expected {shown(STUDY)}"
        for number, study in enumerate(studies, 1)
        for key, value in study.items()
        if key not in STUDY or not isinstance(value, str) or not value
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
    taken = {"table", "tree", *(STUDY[key] for study in studies for key in study if key in STUDY)}
    if twice := sorted(keys & taken):
        problems.append(f"{where}: [[studies]] and [data] {shown(twice)}: both name files; keep one of them")
    return problems
