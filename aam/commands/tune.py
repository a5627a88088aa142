"""`aam tune`: a search for the options of `aam train` that predict best, by Optuna."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aam.api.training import options_and_files
from aam.config import FineTuneConfig, SearchConfig, TuneConfig
from aam.data.splits import Split, split_samples, write_split
from aam.device.attention import decide_execution
from aam.device.rng import generator
from aam.engine.run import RunDirectory, check_same, describe, output_folder, read_record
from aam.engine.signals import Signals
from aam.errors import InputError, RunError, import_extra, shown
from aam.evaluate.intervals import number
from aam.evaluate.metrics import classification_metrics, regression_metrics
from aam.evaluate.predictions import PredictionTable
from aam.files.atomic import remove, seen_from_here, write_text
from aam.files.output_folder import LIST, RUN, share_folder
from aam.io.metadata import Metadata
from aam.options import from_dict, given, names, option_problems, read_toml, to_dict, to_toml
from aam.predict.baselines import truth_of
from aam.predict.prediction import predict_rows
from aam.training.fit import train_split
from aam.training.inputs import Prepared, check_targets, load_inputs, resolved

log = logging.getLogger("aam")

STORAGE, BEST, TRIALS, SPLIT = "trials.db", "best.toml", "trials", "split.tsv"
OUTPUTS = [
    RUN,
    BEST,
    SPLIT,
    STORAGE,
    f"{STORAGE}-*",
    f"{TRIALS}/*/**",
    "trials.tsv",
    "importance.tsv",
]

# Options that choose the split, which the file of the split replaces, and those of the folder of
# the search.
OF_SEARCH = (
    "split",
    "split_column",
    "test_fold",
    "test_size",
    "stratify",
    "output_dir",
    "overwrite",
    "resume_from",
)

# Why the options of a trial failed; a trial that failed without was interrupted, and does not
# count.
PROBLEM = "problem"

# Trials that draw at random before the others learn from them, and before any is pruned.
RANDOM_TRIALS = 10

# Importance of options from fewer trials would be noise.
LEAST_TRIALS = 4

# --- what is searched ---------------------------------------------------------------------------

# What is searched, by section and name of an option. A list holds values to choose from, a table
# the ends of a range.
Space = dict[str, Any]

DEFAULT_SPACE: Space = {
    "targets.members": [
        ["deep", "presence", "forest"],
        ["presence", "forest"],
        ["deep", "presence"],
        ["deep"],
        ["forest"],
    ],
    "train.lr": {"low": 1e-5, "high": 1e-3, "log": True},
    "train.epochs": {"low": 5, "high": 40},
    "model.dropout": {"low": 0.0, "high": 0.3},
}

SECTIONS = ("targets", "regressor", "covariates", "model", "train")


def search_space(config: FineTuneConfig, path: Path | None) -> Space:
    """Return the options that are searched: those of a TOML file, or the default ones that `config`
    leaves as they are.

    Raises
    ------
    InputError
        Everything that is wrong with the file: options that there are not or that cannot be
        searched, values that are none, numbers out of range, and values that contradict other
        options of `config`.
    """
    if path is None:
        asked, usual = _by_name(to_dict(config)), _by_name(to_dict(FineTuneConfig()))
        space = {
            name: values for name, values in DEFAULT_SPACE.items() if asked[name] == usual[name]
        }
        if config.train.pretrained_encoder is not None:
            # A network that has its shape already.
            del space["model.dropout"]
    else:
        space = _by_name(read_toml(path))
    problems = [
        problem for name, values in space.items() for problem in _problems(config, name, values)
    ]
    if not space:
        listed = "every option of the default space is given; pass --search-space"
        problems.append(
            listed if path is None else "names no option; list some, as --dry-run does without it"
        )
    # Both ends of a range may be wrong alike, and so may what is asked for without them.
    asked_for = option_problems(config)
    if problems := [problem for problem in dict.fromkeys(problems) if problem not in asked_for]:
        raise InputError(*(f"{path or 'search space'}: {problem}" for problem in problems))
    return space


def _by_name(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections of options, or of values that are searched, by section and name."""
    return {
        f"{section}.{name}".replace("-", "_"): value
        for section, options in sections.items()
        for name, value in (options.items() if isinstance(options, dict) else [("", options)])
    }


def _sections(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return values by section and name, as a trial has them or as they are, as sections of
    options.
    """
    sections: dict[str, dict[str, Any]] = {}
    for place, value in values.items():
        section, _, name = place.partition(".")
        is_label = isinstance(value, str) and value.startswith("[")
        sections.setdefault(section, {})[name] = json.loads(value) if is_label else value
    return sections


def _problems(config: FineTuneConfig, place: str, values: Any) -> list[str]:
    """Return what is wrong with a searched option, and with the options that its values make of
    `config`.
    """
    section, _, name = place.partition(".")
    if section not in SECTIONS or not name:
        return [f"{section!r} is no section that is searched; expected {shown(SECTIONS)}"]
    part = getattr(config, section)
    if name in (*names(part, searched=False), *names(part, of="command")):
        return [f"{name!r} changes what is compared, and cannot be searched; give it as an option"]
    try:
        _distribution(values)
    except (KeyError, TypeError, ValueError) as error:
        return [
            (
                f"{place} is {values!r}, expected a list of values, or a table of low, high and "
                "log "
                f"({error})"
            )
        ]
    tried = values if isinstance(values, list) else (values["low"], values["high"])
    return [problem for value in tried for problem in _value_problems(config, section, name, value)]


def _value_problems(config: FineTuneConfig, section: str, name: str, value: Any) -> Sequence[str]:
    """Return what is wrong with the options of `config` where one of them has this value."""
    try:
        part = from_dict(getattr(config, section), {name: value}, f"[{section}]")
    except InputError as error:
        return error.problems
    return option_problems(dataclasses.replace(config, **{section: part}))


def _label(value: Any) -> Any:
    """Return a value as the storage of trials holds it: lists as JSON."""
    return json.dumps(value) if isinstance(value, list) else value


def _distribution(values: Any) -> Any:
    """Return what Optuna searches in for an option; an error where `values` are neither a list nor
    a range.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(values, list):
        return CategoricalDistribution([_label(value) for value in values])
    whole = isinstance(values["low"], int) and isinstance(values["high"], int)
    return (IntDistribution if whole else FloatDistribution)(**values)


def start_values(config: FineTuneConfig, space: Space) -> dict[str, Any]:
    """Return the values that `config` has, as the storage of trials holds them, where the search
    can take them.
    """
    asked = _by_name(to_dict(config))
    return {
        name: _label(asked[name])
        for name, values in space.items()
        if (
            asked[name] in values
            if isinstance(values, list)
            else values["low"] <= asked[name] <= values["high"]
        )
    }


# --- how a trial is judged ---------------------------------------------------------------------


def inner_folds(prepared: Prepared, folds: int) -> tuple[Split, ...]:
    """Return splits of the samples that are not tested into parts of whole groups, even in the
    target or --stratify.

    Raises `InputError` where there are fewer groups than parts.
    """
    config, (split,) = prepared.config, prepared.splits
    stratify = config.data.stratify or config.targets.metadata_column[0]
    data = dataclasses.replace(
        config.data, cv=str(folds), stratify=stratify, split=None, split_column=None
    )
    learned = (*split.ids("train"), *split.ids("validation"))
    column, metadata = config.data.group_column, given(prepared.study.metadata)
    parts = len(learned if column is None else {*metadata.values(column, learned)})
    if folds > parts:
        what = "samples" if column is None else f"groups of {column!r}"
        raise InputError(
            f"--inner-folds is {folds}, expected 2 to {parts}, the number of {what} that are not "
            "tested"
        )
    return split_samples(metadata, data, learned, config.runtime.seed)


def relative_error(table: PredictionTable, metadata: Metadata, split: Split) -> float:
    """Return the mean error of the columns of a prediction, each relative to what a trivial model
    has.

    Of a number it is the mean absolute error over that of the median of the samples that were
    learned from; of classes 1 - AUROC over 0.5. So 0 is perfect and 1 is worthless. Columns without
    a value, such as a fold of one class, are left out; NaN where there is none.
    """
    errors = []
    for spec in table.specs:
        truth = truth_of(metadata, spec, table.sample_ids)
        if spec.kind == "numeric":
            median = np.nanmedian(
                truth_of(metadata, spec, (*split.ids("train"), *split.ids("validation")))
            )
            rows = np.isfinite(truth)
            error = regression_metrics(truth[rows], table.values[spec.name][rows])["mae"]
            trivial = float(np.abs(truth[rows] - median).mean()) if rows.any() else 0.0
            errors.append(error / trivial if trivial > 0 else math.nan)
        else:
            rows = truth >= 0
            auroc = classification_metrics(truth[rows], table.probabilities[spec.name][rows])[
                "auroc"
            ]
            errors.append(2 * (1 - auroc))
    defined = [error for error in errors if math.isfinite(error)]
    return sum(defined) / len(defined) if defined else math.nan


def _trial_error(trial: Any, prepared: Prepared, folder: Path) -> float:
    """Return the mean relative error, on each split of `prepared`, of models with the values of a
    trial.

    The trial gets the mean after each split, and may end itself then.
    """
    import optuna

    config = resolved(from_dict(prepared.config, _sections(trial.params), "search space"))
    prepared = dataclasses.replace(prepared, config=config)
    model = config.model
    decide_execution(
        config.runtime, prepared.device, model.head_width, in_bf16=model.trains_in_bf16
    )
    about = {"command": "tune", "config": to_dict(config), "decisions": {}, "inputs": {}}
    run, study = (
        RunDirectory(folder, about, config.runtime, Signals(), resumed=False),
        prepared.study,
    )
    errors: list[float] = []
    for step, split in enumerate(prepared.splits, start=1):
        saved = given(
            train_split(prepared, run, split, folder / split.test_fold, f"fold {split.test_fold}")
        )
        asvs, passes = (
            prepared.frozen_asvs(saved.network, study),
            config.targets.val_prediction_passes,
        )
        table = predict_rows(
            saved, study, split.ids("test"), config.runtime, passes, split.test_fold, asvs
        )
        errors.append(relative_error(table, given(study.metadata), split))
        if step < len(prepared.splits) and not np.isnan(errors).all():
            trial.report(float(np.nanmean(errors)), step)
            if trial.should_prune():
                raise optuna.TrialPruned(f"after {step} of {len(prepared.splits)} parts")
    if np.isnan(errors).all():
        raise InputError("no inner fold holds two classes; lower --inner-folds")
    return float(np.nanmean(errors))


# --- the search --------------------------------------------------------------------------------
def tune(config: TuneConfig) -> None:
    """Search for options on the training samples of a split, and write trials, best options and a
    report.

    Raises
    ------
    InputError
        Bad options, inputs or search space; Optuna is not installed; the folder holds another
        search.
    """
    training = config.training()
    import_extra("optuna", "tune", "aam tune")
    space = search_space(training, config.search.search_space)
    prepared = load_inputs(training)
    (split,) = prepared.splits
    folds = inner_folds(prepared, config.search.inner_folds)
    # The options of a trial are laid over those asked for, with the sizes of the inputs or of the
    # encoder.
    base = dataclasses.replace(training, model=prepared.config.model)
    check_targets(dataclasses.replace(prepared, splits=folds))
    prepared = dataclasses.replace(prepared, config=base, splits=folds)
    if not split.ids("test"):
        log.warning(
            "warning: no test samples are left out, so nothing can vouch for the options that "
            "are found"
        )
    if config.runtime.dry_run:
        sizes = ", ".join(str(len(fold.ids("test"))) for fold in folds)
        print(
            f"# {len(split.ids('test'))} test samples are left out; the parts of the others hold "
            f"{sizes} samples."
        )
        print(f"# A trial trains {len(folds)} models.\n\n{to_toml(_sections(space))}", end="")
        return
    folder = given(config.runtime.output_dir).resolve()
    _, files = options_and_files("tune", training)
    files |= (
        {} if config.search.search_space is None else {"search_space": config.search.search_space}
    )
    # More trials may be asked for later.
    same = dataclasses.replace(
        config, search=dataclasses.replace(config.search, trials=SearchConfig().trials)
    )
    about = describe("tune", to_dict(same), files, {"depth": prepared.study.depth, LIST: OUTPUTS})
    output = output_folder(folder, about, config.runtime.overwrite, reserved=(TRIALS,))
    resumes = config.runtime.resume_from == "auto" and (folder / RUN).is_file()
    if not resumes:
        output.check()

    def prepare() -> None:
        if not resumes:
            output.begin(about)
        check_same(read_record(folder / RUN), about)
        # A search that was killed at once has neither.
        write_split(folder / SPLIT, split)
        remove(folder / TRIALS)
        study = _open_study(folder, config)
        if not study.get_trials():
            study.enqueue_trial(start_values(training, space))
        _end_killed(study)

    folder.mkdir(parents=True, exist_ok=True)
    with _storage_errors(folder / STORAGE), share_folder(folder, prepare):
        check_same(read_record(folder / RUN), about)
        study = _open_study(folder, config)
        _run_trials(study, config, prepared, space, folder)
        _write_results(study, training, space, prepared.study.depth, folder)


def _open_study(folder: Path, config: TuneConfig) -> Any:
    """Return the study of Optuna in the folder, new or of earlier calls."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    url = f"sqlite:///{folder / STORAGE}"
    pruner = (
        optuna.pruners.MedianPruner(RANDOM_TRIALS)
        if config.search.prune
        else optuna.pruners.NopPruner()
    )
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 300}})
    return optuna.create_study(
        storage=storage, study_name="aam tune", pruner=pruner, load_if_exists=True
    )


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Raise `InputError` where the file of the trials is damaged, and `RunError` where it cannot be
    written.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DatabaseError, OperationalError

    try:
        yield
    except (OperationalError, StorageInternalError) as error:
        reason = getattr(error, "orig", None) or error.__cause__ or error
        raise RunError(
            f"{path}: {reason}; free space if the disk is full, then --resume-from auto goes on"
        ) from error
    except DatabaseError as error:
        text = (
            f"{path} is damaged ({error.orig}); search anew with --overwrite, or in another "
            "--output-dir"
        )
        raise InputError(text) from error


def _end_killed(study: Any) -> None:
    """Mark trials whose process was killed as failed, and let their options be tried again; no
    process is at work.
    """
    for trial in study.get_trials():
        if trial.state.name == "RUNNING":
            study.tell(trial.number, state=type(trial.state).FAIL)
            study.enqueue_trial(trial.params)
            log.info("trial %d was interrupted; its options are tried again", trial.number + 1)


def _run_trials(
    study: Any, config: TuneConfig, prepared: Prepared, space: Space, folder: Path
) -> None:
    """Run trials until there are so many in all; one whose options fail counts, and is logged."""
    import optuna

    asked, states = config.search.trials, optuna.trial.TrialState
    while True:
        trials = study.get_trials(deepcopy=False)
        begun = [
            trial for trial in trials if trial.state != states.FAIL or PROBLEM in trial.user_attrs
        ]
        if sum(trial.state != states.WAITING for trial in begun) >= asked:
            return
        # A seed for each trial, so that a search that goes on, or in another process, does not draw
        # the same again.
        seed = int(generator(config.runtime.seed, "tune", len(trials)).integers(2**31))
        study.sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=seed)
        trial = study.ask({name: _distribution(values) for name, values in space.items()})
        place, level = folder / TRIALS / str(trial.number), log.level
        # What each training says of itself.
        log.setLevel(logging.WARNING)
        try:
            study.tell(trial, error := _trial_error(trial, prepared, place))
            state, result = "complete", f"relative error {number(error)}"
        except optuna.TrialPruned as pruned:
            ended = study.tell(trial, state=states.PRUNED)
            state, result = "pruned", f"relative error {number(ended.value)} {pruned}"
        except (InputError, RunError) as problem:
            trial.set_user_attr(PROBLEM, str(problem))
            study.tell(trial, state=states.FAIL)
            state, result = "fail", str(problem)
        finally:
            log.setLevel(level)
            remove(place)
        options = ", ".join(f"{name} {value}" for name, value in trial.params.items())
        # Trials that were interrupted have a number, and do not count.
        last = asked + len(trials) - len(begun)
        log.info("trial %d of %d %s: %s; %s", trial.number + 1, last, state, result, options)


def _write_results(
    study: Any, training: FineTuneConfig, space: Space, depth: int, folder: Path
) -> None:
    """Write what the search has found; where other processes still have trials, the last one writes
    it again.
    """
    import optuna

    found = study.get_trials()
    trials = pd.DataFrame(
        {
            "trial": trial.number + 1,
            "state": trial.state.name.lower(),
            "relative-error": trial.value,
            "seconds": round(trial.duration.total_seconds(), 1),
            **trial.params,
        }
        for trial in found
        if trial.state.name in ("COMPLETE", "PRUNED")
    )
    complete = [trial for trial in found if trial.state.name == "COMPLETE"]
    if not complete:
        raise RunError("no trial came to its end; the messages above say why")
    importance: dict[str, float] = {}
    if len(complete) >= LEAST_TRIALS and len({trial.value for trial in complete}) > 1:
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        importance = optuna.importance.get_param_importances(study, evaluator=evaluator)
    best, start = study.best_trial, start_values(training, space)
    of_start = [
        f", {number(trial.value)} with the options as given"
        for trial in complete
        if trial.params == start
    ]
    columns = ", ".join(training.targets.metadata_column)
    sentence = (
        f"{columns}: relative error {number(best.value)} in trial "
        f"{best.number + 1}{''.join(of_start[:1])}"
    )
    options = _best_options(_sections(best.params), training, depth, folder)
    write_text(folder / BEST, f"# {sentence}\n\n{to_toml(options)}")
    shares = pd.DataFrame(importance.items(), columns=["option", "importance"])
    for name, table in (("trials", trials), ("importance", shares)):
        write_text(folder / f"{name}.tsv", table.to_csv(sep="\t", index=False, lineterminator="\n"))
    if [trial.state for trial in study.get_trials()] != [trial.state for trial in found]:
        # Another process has ended a trial meanwhile, and may have written its results before
        # these.
        _write_results(study, training, space, depth, folder)
        return
    log.info("%s", sentence)
    log.info(
        "aam train --config %s --output-dir RUN trains with the best options",
        seen_from_here(folder / BEST),
    )


def _best_options(
    values: dict[str, dict[str, Any]], training: FineTuneConfig, depth: int, folder: Path
) -> dict[str, dict[str, Any]]:
    """Return what `aam train --config` needs: what was asked for, the best values, and the split of
    the search.
    """
    best, usual = to_dict(training), to_dict(FineTuneConfig())
    for section, options in best.items():
        changed = {name: value for name, value in options.items() if value != usual[section][name]}
        asked = {name: value for name, value in changed.items() if name not in OF_SEARCH}
        best[section] = asked | values.get(section, {})
    best["data"] |= {"split": str(folder / SPLIT), "rarefy_depth": depth}
    return best
