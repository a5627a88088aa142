"""A search for options: what is searched, and how a trial is judged in parts of the training samples."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aam.config import FineTuneConfig
from aam.data.splits import Split, split_samples
from aam.device.attention import decide_execution
from aam.engine.run import RunDirectory
from aam.engine.signals import Signals
from aam.errors import InputError, Problems, shown
from aam.evaluate.metrics import classification_metrics, regression_metrics
from aam.evaluate.predictions import PredictionTable
from aam.io.metadata import Metadata
from aam.options import from_dict, given, names, option_problems, read_toml, to_dict
from aam.predict.baselines import truth_of
from aam.predict.prediction import predict_rows
from aam.training.fit import train_split
from aam.training.inputs import Prepared, resolved

# Sections of options, as in TOML. A list holds values to choose from, a table the ends of a range of numbers.
Space = dict[str, dict[str, Any]]

DEFAULT_SPACE: Space = {
    "targets": {
        "members": [
            ["deep", "presence", "kernel", "forest"], ["presence", "kernel", "forest"], ["deep", "kernel"], ["deep"],
            ["kernel"], ["forest"],
        ]
    },
    "train": {"lr": {"low": 1e-5, "high": 1e-3, "log": True}, "epochs": {"low": 5, "high": 40}},
    "model": {"dropout": {"low": 0.0, "high": 0.3}},
}  # fmt: skip

SECTIONS = ("targets", "regressor", "covariates", "model", "train")


def search_space(config: FineTuneConfig, path: Path | None) -> Space:
    """Return the options that are searched: those of a TOML file, or of the default space.

    Raises
    ------
    InputError
        Everything that is wrong with the file: options that there are not or that cannot be searched, values that
        are none, numbers out of range, and values that contradict other options of `config`.
    """
    problems, before, space = Problems(), option_problems(config), _default_space(config)
    if path is not None:
        space = read_toml(path)
    for section, options in space.items():
        if section not in SECTIONS or not isinstance(options, dict):
            problems.add(f"{path}: {section!r} is no section that is searched; expected {shown(SECTIONS)}")
            continue
        space[section] = {name.replace("-", "_"): values for name, values in options.items()}
        for name, values in space[section].items():
            problems.messages += _problems(config, section, name, values, before)
    if not any(space.values()):
        reason = "every option of the default space is given; pass --search-space"
        if path is not None:
            reason = f"{path} names no option; list some, as --dry-run does without --search-space"
        problems.add(f"nothing is left to search: {reason}")
    # Both ends of a range may be wrong alike.
    problems.messages = [*dict.fromkeys(problems.messages)]
    problems.raise_if_any()
    return space


def _default_space(config: FineTuneConfig) -> Space:
    """Return the default space without options that are given, and those of a network that has its shape already."""
    given, usual = to_dict(config), to_dict(FineTuneConfig())
    left_out = {"model"} if config.train.pretrained_encoder is not None else set()
    return {
        section: {name: values for name, values in options.items() if given[section][name] == usual[section][name]}
        for section, options in DEFAULT_SPACE.items()
        if section not in left_out
    }


def _problems(config: FineTuneConfig, section: str, name: str, values: Any, before: Sequence[str]) -> Sequence[str]:
    """Return what is wrong with a searched option and its values, beside what is wrong without them."""
    part = getattr(config, section)
    if name in (*names(part, searched=False), *names(part, of="command")):
        return [f"search space: {name!r} changes what is compared, and cannot be searched; give it as an option"]
    ends = values if isinstance(values, list) else []
    if isinstance(values, dict) and {"low", "high"} <= values.keys() <= {"low", "high", "log"}:
        low, high, log = values["low"], values["high"], values.get("log", False)
        numbers = all(type(value) in (int, float) for value in (low, high)) and isinstance(log, bool)
        ends = [low, high] if numbers and low < high and (low > 0 or not log) else []
    if len(ends) < 2:
        expected = "a list of values, or a table of low, high and log: low below high, above 0 with log"
        return [f"search space: {section}.{name} is {values!r}, expected {expected}"]
    found = [problem for value in ends for problem in _value_problems(config, {section: {name: value}})]
    return [problem for problem in found if problem.removeprefix("search space: ") not in before]


def _value_problems(config: FineTuneConfig, values: Space) -> Sequence[str]:
    """Return what is wrong with the options of `config` below those of `values`."""
    try:
        return [f"search space: {problem}" for problem in option_problems(from_dict(config, values, "search space"))]
    except InputError as error:
        return error.problems


def _label(value: Any) -> Any:
    """Return a value as the storage of trials holds it: lists as JSON."""
    return json.dumps(value) if isinstance(value, list) else value


def suggest(trial: Any, space: Space) -> Space:
    """Return the values that a trial of Optuna takes, as sections of options."""
    suggested: Space = {section: {} for section in space}
    for section, options in space.items():
        for name, values in options.items():
            if isinstance(values, list):
                choices = {_label(value): value for value in values}
                suggested[section][name] = choices[trial.suggest_categorical(f"{section}.{name}", list(choices))]
            else:
                whole = isinstance(values["low"], int) and isinstance(values["high"], int)
                suggest_number = trial.suggest_int if whole else trial.suggest_float
                suggested[section][name] = suggest_number(f"{section}.{name}", **values)
    return suggested


def start_values(config: FineTuneConfig, space: Space) -> dict[str, Any]:
    """Return the values that `config` has, as the storage of trials holds them, where the search can take them."""
    start = {}
    for section, options in space.items():
        for name, values in options.items():
            value = to_dict(config)[section][name]
            if value in values if isinstance(values, list) else values["low"] <= value <= values["high"]:
                start[f"{section}.{name}"] = _label(value)
    return start


def inner_folds(prepared: Prepared, folds: int) -> tuple[Split, ...]:
    """Return splits of the samples that are not tested into parts of whole groups, even in the target or --stratify.

    Raises `InputError` where there are fewer groups than parts.
    """
    config, (split,) = prepared.config, prepared.splits
    stratify = config.data.stratify or config.targets.metadata_column[0]
    data = dataclasses.replace(config.data, cv=str(folds), stratify=stratify, split=None, split_column=None)
    learned = (*split.ids("train"), *split.ids("validation"))
    column, metadata = config.data.group_column, prepared.study.metadata
    parts, what = len(learned), "samples"
    if column is not None and metadata is not None:
        parts, what = len(set(metadata.values(column, learned))), f"groups of {column!r}"
    if folds > parts:
        raise InputError(f"--inner-folds is {folds}, expected 2 to {parts}, the number of {what} that are not tested")
    return split_samples(prepared.study.metadata, data, learned, config.runtime.seed)


def trial_error(trial: Any, prepared: Prepared, values: Space, folds: Sequence[Split], folder: Path) -> float:
    """Return the mean relative error on the inner folds of models that each learn from the other folds.

    Parameters
    ----------
    trial : optuna.Trial
        It gets the mean of each number of folds, and may end the trial early.
    prepared : Prepared
        Inputs and options of a run.
    values : dict
        Sections of options, laid over those of `prepared`.
    folds : sequence of Split
    folder : Path
        Folder for what training writes.

    Raises
    ------
    InputError
        The options contradict each other, or the samples; no fold has an error, as where each holds one class.
    RunError
        Training failed, as with a learning rate that is too high.
    optuna.TrialPruned
        After as many folds, the trial is worse than the median of the earlier ones.
    """
    import optuna

    config = resolved(from_dict(prepared.config, values, "search space"))
    prepared = dataclasses.replace(prepared, config=config, splits=tuple(folds))
    decide_execution(config.runtime, prepared.device, config.model.head_width)
    about = {"command": "tune", "config": to_dict(config), "decisions": {}, "inputs": {}}
    run, study = RunDirectory(folder, about, config.runtime, Signals(), resumed=False), prepared.study
    errors: list[float] = []
    for step, split in enumerate(folds, start=1):
        saved = given(train_split(prepared, run, split, folder / split.test_fold, f"fold {split.test_fold}"))
        asvs, passes = prepared.frozen_asvs(saved.network, study), config.targets.val_prediction_passes
        table = predict_rows(saved, study, split.ids("test"), config.runtime, passes, split.test_fold, asvs)
        errors += [error for error in [relative_error(table, given(study.metadata), split)] if math.isfinite(error)]
        if errors and step < len(folds):
            trial.report(sum(errors) / len(errors), step)
            if trial.should_prune():
                raise optuna.TrialPruned(f"after {step} of {len(folds)} parts")
    if not errors:
        raise InputError("no inner fold holds two classes; lower --inner-folds")
    return sum(errors) / len(errors)


def relative_error(table: PredictionTable, metadata: Metadata, split: Split) -> float:
    """Return the mean error of the columns of a prediction, each relative to what a trivial model has.

    Of a number it is the mean absolute error over that of the median of the samples that were learned from; of classes
    1 - AUROC over 0.5. So 0 is perfect and 1 is worthless. Columns without a value, such as a fold of one class, are
    left out; NaN where there is none.
    """
    errors = []
    for spec in table.specs:
        truth = truth_of(metadata, spec, table.sample_ids)
        if spec.kind == "numeric":
            median = np.nanmedian(truth_of(metadata, spec, (*split.ids("train"), *split.ids("validation"))))
            rows = np.isfinite(truth)
            error = regression_metrics(truth[rows], table.values[spec.name][rows])["mae"]
            trivial = float(np.abs(truth[rows] - median).mean()) if rows.any() else 0.0
            errors.append(error / trivial if trivial > 0 else math.nan)
        else:
            rows = truth >= 0
            auroc = classification_metrics(truth[rows], table.probabilities[spec.name][rows])["auroc"]
            errors.append(2 * (1 - auroc))
    defined = [error for error in errors if math.isfinite(error)]
    return sum(defined) / len(defined) if defined else math.nan
