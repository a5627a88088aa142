"""`aam tune`: a search for the options of `aam train` that predict best, by Optuna."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aam.commands.train import options_and_files
from aam.config import FineTuneConfig, SearchConfig, TuneConfig
from aam.data.splits import Split, write_split
from aam.device.rng import generator
from aam.engine.run import check_same, describe, output_folder, read_record
from aam.errors import InputError, RunError, import_extra
from aam.evaluate.numbers import number
from aam.files.atomic import remove, seen_from_here, write_text
from aam.files.output_folder import LIST, RUN, share_folder
from aam.options import given, to_dict, to_toml
from aam.report.search import SearchResult, TrialResult, write_search
from aam.training.inputs import Prepared, check_targets, load_inputs
from aam.training.search_space import Searched, search_space, value_of
from aam.training.trials import fold_errors, inner_folds, without_test

log = logging.getLogger("aam")

STORAGE, BEST, TRIALS, SPLIT = "trials.db", "best.toml", "trials", "split.tsv"

OUTPUTS = [
    RUN, BEST, SPLIT, STORAGE, f"{STORAGE}-*", f"{TRIALS}/*/**", "trials.tsv", "importance.tsv", "tune.html",
    "figures/*.svg", "figures/*.png",
]  # fmt: skip

# Options that choose the split, which the file of the split replaces.
OF_SPLIT = ("split", "split_column", "test_fold", "test_size", "stratify")

# The place of a trial in the search, which decides what it draws; a trial that was killed is repeated at its place.
PLACE = "place"

# Trials that draw at random before the others learn from them, and before any is pruned.
RANDOM_TRIALS = 10

# Importance of options from fewer trials would be noise.
LEAST_TRIALS = 4


def tune(config: TuneConfig) -> None:
    """Search for options on the training samples of a split, and write trials, best options and a report.

    Raises
    ------
    InputError
        Bad options, inputs or search space; Optuna is not installed; the folder holds another search.
    """
    training = config.training()
    if not config.runtime.dry_run:
        import_extra("optuna", "tune", "aam tune")
    options = search_space(training, config.search.search_space)
    prepared = load_inputs(training)
    (split,) = prepared.splits
    inner = dataclasses.replace(without_test(prepared), config=_inner_options(training, prepared))
    folds = inner_folds(inner, config.search.inner_folds)
    check_targets(dataclasses.replace(inner, splits=folds))
    if not split.ids("test"):
        log.warning("warning: no test samples are left out, so nothing can vouch for the options that are found")
    if config.runtime.dry_run:
        print(_dry_run(options, split, folds), end="")
        return
    folder = given(config.runtime.output_dir).resolve()
    with _shared_study(folder, config, training, options, prepared) as study:
        _run_trials(study, config.search.trials, inner, options, folds, folder)
        _write_results(study, options, training, prepared.study.depth, folder)


def _inner_options(training: FineTuneConfig, prepared: Prepared) -> FineTuneConfig:
    """Return the options over which those of a trial are laid: as asked for, with the sizes that the inputs decide."""
    model = dataclasses.replace(training.model, max_bp=prepared.config.model.max_bp)
    if training.train.pretrained_encoder is not None:
        model = prepared.config.model
    return dataclasses.replace(training, model=model)


@contextlib.contextmanager
def _shared_study(
    folder: Path, config: TuneConfig, training: FineTuneConfig, options: Sequence[Searched], prepared: Prepared
) -> Iterator[Any]:
    """Yield the study of Optuna in the folder of the search, which is made, or checked to be of this search.

    Raises
    ------
    InputError
        The folder holds other results, or the search of other options or inputs.
    """
    _, files = options_and_files("tune", training)
    files |= {} if config.search.search_space is None else {"search_space": config.search.search_space}
    # More trials may be asked for later.
    same = dataclasses.replace(config, search=dataclasses.replace(config.search, trials=SearchConfig().trials))
    about = describe("tune", to_dict(same), files, {"depth": prepared.study.depth, LIST: OUTPUTS})
    output = output_folder(folder, about, config.runtime.overwrite, reserved=(TRIALS,))
    resumes = config.runtime.resume_from == "auto" and (folder / RUN).is_file()
    if not resumes:
        output.check()

    def prepare() -> None:
        if not resumes:
            output.begin(about)
            write_split(folder / SPLIT, prepared.splits[0])
        check_same(read_record(folder / RUN), about)
        remove(folder / TRIALS)
        _repeat_killed(_open_study(folder, config, options))

    folder.mkdir(parents=True, exist_ok=True)
    with share_folder(folder, prepare):
        check_same(read_record(folder / RUN), about)
        yield _open_study(folder, config, options)


def _optuna() -> Any:
    optuna: Any = import_extra("optuna", "tune", "aam tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _repeat_killed(study: Any) -> None:
    """Let trials whose process was killed be repeated; no other process may be at work."""
    states = _optuna().trial.TrialState
    for trial in study.get_trials(states=(states.RUNNING,)):
        study.tell(trial.number, state=states.FAIL)
        study.enqueue_trial({}, user_attrs={PLACE: _place(study, trial)})
        log.info("trial %d was interrupted and is repeated", _place(study, trial) + 1)


def _place(study: Any, trial: Any) -> int:
    """Return the place of a trial: its number without the repetitions before it."""
    repeated = sum(PLACE in other.user_attrs for other in study.get_trials(deepcopy=False)[: trial.number])
    return int(trial.user_attrs.get(PLACE, trial.number - repeated))


def _open_study(folder: Path, config: TuneConfig, options: Sequence[Searched]) -> Any:
    """Return the study of Optuna in the folder, new or of earlier calls."""
    optuna = _optuna()
    seed = config.runtime.seed
    asked = {one.name: (one, value_of(config, one)) for one in options}
    start = {name: one.label(value) for name, (one, value) in asked.items() if value in one}

    base: Any = optuna.samplers.BaseSampler

    class Sampler(base):  # type: ignore[misc]
        """TPE (Bergstra et al. 2011) whose draws depend on seed, place and finished trials, and on nothing else.

        So a search that was interrupted goes on as if it had not been. The first trial takes the options as they are.
        """

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: dict[str, Any]) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            place = _place(study, trial)
            if place == 0 and name in start:
                return start[name]
            number = int(generator(seed, "tune", place, name).integers(2**31))
            sampler = optuna.samplers.TPESampler(
                n_startup_trials=RANDOM_TRIALS, seed=number, multivariate=False, constant_liar=False
            )
            return sampler.sample_independent(study, trial, name, distribution)

    pruner = optuna.pruners.MedianPruner(RANDOM_TRIALS) if config.search.prune else optuna.pruners.NopPruner()
    url = f"sqlite:///{folder / STORAGE}"
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 300}})
    return optuna.create_study(
        storage=storage, study_name="aam tune", sampler=Sampler(), pruner=pruner, load_if_exists=True
    )


def _run_trials(
    study: Any, trials: int, inner: Prepared, options: Sequence[Searched], folds: Sequence[Split], folder: Path
) -> None:
    """Run trials until there are so many in all; one whose options fail counts, and is logged."""
    states = _optuna().trial.TrialState
    while True:
        present = study.get_trials(deepcopy=False)
        waiting = any(trial.state == states.WAITING for trial in present)
        if not waiting and len(present) - sum(PLACE in trial.user_attrs for trial in present) >= trials:
            return
        trial = study.ask()
        values = {one.name: one.suggest(trial) for one in options}
        place, title = folder / TRIALS / str(trial.number), f"trial {_place(study, trial) + 1} of {trials}"
        if (earlier := _same_options(study, trial)) is not None:
            trial.set_user_attr("seconds", 0.0)
            study.tell(trial, earlier.value)
            log.info("%s has the options of trial %d: not trained again", title, _place(study, earlier) + 1)
            continue
        started = time.perf_counter()
        try:
            with _quiet():
                error, parts = _mean_error(trial, fold_errors(inner, values, folds, place))
        except (InputError, RunError) as problem:
            log.warning("%s failed: %s", title, problem)
            study.tell(trial, state=states.FAIL)
            continue
        finally:
            remove(place)
        trial.set_user_attr("seconds", round(time.perf_counter() - started, 1))
        if parts < len(folds):
            study.tell(trial, state=states.PRUNED)
        else:
            study.tell(trial, error)
        ended = f"ended after {parts} of {len(folds)} parts" if parts < len(folds) else "done"
        shown = ", ".join(f"{name} {value}" for name, value in values.items())
        log.info("%s %s: relative error %s; %s", title, ended, number(error), shown)


def _same_options(study: Any, trial: Any) -> Any:
    """Return the first complete trial with the options of this one, whose error would be the same; else None."""
    complete = study.get_trials(states=(_optuna().trial.TrialState.COMPLETE,))
    return next((one for one in complete if one.params == trial.params), None)


def _mean_error(trial: Any, errors: Iterator[float]) -> tuple[float, int]:
    """Return the mean of the errors of the folds, and how many there were until the trial was pruned.

    Raises
    ------
    InputError
        No fold has an error, as where each holds one class.
    """
    parts: list[float] = []
    for step, error in enumerate(errors):
        parts.append(error)
        defined = [part for part in parts if math.isfinite(part)]
        if defined:
            trial.report(sum(defined) / len(defined), step)
            if trial.should_prune():
                break
    if not defined:
        raise InputError("no inner fold holds two classes; lower --inner-folds")
    return sum(defined) / len(defined), len(parts)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what each training says of itself."""
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


def _dry_run(options: Sequence[Searched], split: Split, folds: Sequence[Split]) -> str:
    """Return the search space as TOML, which --search-space reads, below what is tried on which samples."""
    sections: dict[str, dict[str, Any]] = {}
    for one in options:
        values: Any = list(one.choices) or {"low": one.low, "high": one.high, "log": one.log}
        sections.setdefault(one.section, {})[one.option] = values
    sizes = ", ".join(str(len(fold.ids("test"))) for fold in folds)
    return (
        f"# {len(split.ids('test'))} test samples are left out; the parts of the others hold {sizes} samples.\n"
        f"# A trial trains {len(folds)} models.\n\n{to_toml(sections)}"
    )


def _write_results(study: Any, options: Sequence[Searched], training: FineTuneConfig, depth: int, folder: Path) -> None:
    """Write what the search has found; where other processes still have trials, the last one writes it again."""
    states = _optuna().trial.TrialState
    trials = study.get_trials(states=(states.COMPLETE, states.PRUNED))
    complete = [trial for trial in trials if trial.state == states.COMPLETE]
    if not complete:
        raise RunError("no trial came to its end; the messages above say why")
    results = tuple(
        TrialResult(
            _place(study, trial) + 1, trial.state == states.COMPLETE, trial.value, trial.user_attrs["seconds"],
            {one.name: str(trial.params[one.name]) for one in options},
        )
        for trial in trials
    )  # fmt: skip
    found = SearchResult(training.targets.metadata_column, results, _importance(study, complete))
    values = {one.name: one.value(study.best_trial.params[one.name]) for one in options}
    write_text(folder / BEST, f"# {found.sentence()}\n\n{to_toml(_best_options(values, training, depth, folder))}")
    write_search(folder, found)
    for line in found.lines():
        log.info("%s", line)
    log.info("aam train --config %s --output-dir RUN trains with the best options", seen_from_here(folder / BEST))


def _importance(study: Any, complete: Sequence[Any]) -> dict[str, float]:
    """Return the share of each option in the variance of the error over the trials (fANOVA, Hutter et al. 2014)."""
    if len(complete) < LEAST_TRIALS or len({trial.value for trial in complete}) < 2:
        return {}
    importance = _optuna().importance
    return dict(importance.get_param_importances(study, evaluator=importance.FanovaImportanceEvaluator(seed=0)))


def _best_options(
    values: dict[str, Any], training: FineTuneConfig, depth: int, folder: Path
) -> dict[str, dict[str, Any]]:
    """Return what `aam train --config` needs: what was asked for, the best values, and the split of the search."""
    usual = to_dict(FineTuneConfig())
    sections = {
        section: {name: value for name, value in options.items() if value != usual[section][name]}
        for section, options in to_dict(training).items()
    }
    for section, names in (("data", OF_SPLIT), ("runtime", ("output_dir", "overwrite", "resume_from"))):
        sections[section] = {name: value for name, value in sections[section].items() if name not in names}
    sections["data"] |= {"split": str(folder / SPLIT), "rarefy_depth": depth}
    for name, value in values.items():
        section, _, option = name.partition(".")
        sections[section][option] = value
    return sections
