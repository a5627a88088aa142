"""`aam tune`: a search for the options of `aam train` that predict best, by Optuna."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aam.api.training import options_and_files
from aam.config import FineTuneConfig, SearchConfig, TuneConfig
from aam.data.splits import Split, write_split
from aam.device.rng import generator
from aam.engine.run import check_same, describe, output_folder, read_record
from aam.errors import InputError, RunError, import_extra
from aam.evaluate.intervals import number
from aam.files.atomic import remove, seen_from_here, write_text
from aam.files.output_folder import LIST, RUN, share_folder
from aam.options import given, to_dict, to_toml
from aam.report.search import ERROR, write_search
from aam.training.inputs import Prepared, check_targets, load_inputs
from aam.training.search import Space, inner_folds, search_space, start_values, suggest, trial_error

log = logging.getLogger("aam")

STORAGE, BEST, TRIALS, SPLIT = "trials.db", "best.toml", "trials", "split.tsv"

OUTPUTS = [
    RUN, BEST, SPLIT, STORAGE, f"{STORAGE}-*", f"{TRIALS}/*/**", "trials.tsv", "importance.tsv", "tune.html",
    "figures/*.svg", "figures/*.png",
]  # fmt: skip

# Options that choose the split, which the file of the split replaces, and those of the folder of the search.
OF_SEARCH = ("split", "split_column", "test_fold", "test_size", "stratify", "output_dir", "overwrite", "resume_from")

# Why the options of a trial failed; a trial that failed without was interrupted, and does not count.
PROBLEM = "problem"

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
    space = search_space(training, config.search.search_space)
    prepared = load_inputs(training)
    (split,) = prepared.splits
    folds = inner_folds(prepared, config.search.inner_folds)
    check_targets(dataclasses.replace(prepared, splits=folds))
    if not split.ids("test"):
        log.warning("warning: no test samples are left out, so nothing can vouch for the options that are found")
    if config.runtime.dry_run:
        sizes = ", ".join(str(len(fold.ids("test"))) for fold in folds)
        print(f"# {len(split.ids('test'))} test samples are left out; the parts of the others hold {sizes} samples.")
        print(f"# A trial trains {len(folds)} models.\n\n{to_toml(space)}", end="")
        return
    folder = given(config.runtime.output_dir).resolve()
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
        # The options of a trial are laid over those asked for, with the sizes of the inputs or of the encoder.
        base = dataclasses.replace(training, model=prepared.config.model)
        _run_trials(study, config, dataclasses.replace(prepared, config=base), space, folds)
        _write_results(study, training, space, prepared.study.depth, folder)


def _open_study(folder: Path, config: TuneConfig) -> Any:
    """Return the study of Optuna in the folder, new or of earlier calls."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    url = f"sqlite:///{folder / STORAGE}"
    pruner = optuna.pruners.MedianPruner(RANDOM_TRIALS) if config.search.prune else optuna.pruners.NopPruner()
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 300}})
    return optuna.create_study(storage=storage, study_name="aam tune", pruner=pruner, load_if_exists=True)


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Raise `InputError` where the file of the trials is damaged, and `RunError` where it cannot be written."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DatabaseError, OperationalError

    try:
        yield
    except (OperationalError, StorageInternalError) as error:
        reason = getattr(error, "orig", None) or error.__cause__ or error
        raise RunError(f"{path}: {reason}; free space if the disk is full, then --resume-from auto goes on") from error
    except DatabaseError as error:
        text = f"{path} is damaged ({error.orig}); search anew with --overwrite, or in another --output-dir"
        raise InputError(text) from error


def _end_killed(study: Any) -> None:
    """Mark trials whose process was killed as failed, and let their options be tried again; no process is at work."""
    for trial in study.get_trials():
        if trial.state.name == "RUNNING":
            study.tell(trial.number, state=type(trial.state).FAIL)
            study.enqueue_trial(trial.params)
            log.info("trial %d was interrupted; its options are tried again", trial.number + 1)


def _run_trials(study: Any, config: TuneConfig, prepared: Prepared, space: Space, folds: Sequence[Split]) -> None:
    """Run trials until there are so many in all; one whose options fail counts, and is logged."""
    import optuna

    def error_of(trial: Any) -> float:
        values = suggest(trial, space)
        folder = given(config.runtime.output_dir).resolve() / TRIALS / str(trial.number)
        level = log.level
        # What each training says of itself.
        log.setLevel(logging.WARNING)
        try:
            return trial_error(trial, prepared, values, folds, folder)
        except (InputError, RunError) as problem:
            trial.set_user_attr(PROBLEM, str(problem))
            raise
        finally:
            log.setLevel(level)
            remove(folder)

    def log_trial(_: Any, trial: Any) -> None:
        result = trial.user_attrs.get(PROBLEM) or f"relative error {number(trial.value)}"
        options = ", ".join(f"{name} {value}" for name, value in trial.params.items())
        log.info("trial %d of %d %s: %s; %s", trial.number + 1, asked, trial.state.name.lower(), result, options)

    def begun() -> int:
        trials, states = study.get_trials(deepcopy=False), ("RUNNING", "COMPLETE", "PRUNED")
        return sum(trial.state.name in states or PROBLEM in trial.user_attrs for trial in trials)

    asked = config.search.trials
    while begun() < asked:
        # A seed for each trial, so that a search that goes on, or in another process, does not draw the same again.
        seed = int(generator(config.runtime.seed, "tune", len(study.get_trials(deepcopy=False))).integers(2**31))
        study.sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=seed)
        study.optimize(error_of, n_trials=1, catch=(InputError, RunError), callbacks=[log_trial])


def _write_results(study: Any, training: FineTuneConfig, space: Space, depth: int, folder: Path) -> None:
    """Write what the search has found; where other processes still have trials, the last one writes it again."""
    import optuna

    found = study.get_trials()
    trials = [
        {
            "trial": trial.number + 1, "state": trial.state.name.lower(), ERROR: trial.value,
            "seconds": round(trial.duration.total_seconds(), 1), **trial.params,
        }
        for trial in found if trial.state.name in ("COMPLETE", "PRUNED")
    ]  # fmt: skip
    errors = [trial[ERROR] for trial in trials if trial["state"] == "complete"]
    if not errors:
        raise RunError("no trial came to its end; the messages above say why")
    importance: dict[str, float] = {}
    if len(errors) >= LEAST_TRIALS and len(set(errors)) > 1:
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        importance = optuna.importance.get_param_importances(study, evaluator=evaluator)
    best, start = study.best_trial, start_values(training, space)
    of_start = [trial.value for trial in found if trial.state.name == "COMPLETE" and trial.params == start]
    as_given = f", {number(of_start[0])} with the options as given" if of_start else ""
    columns = ", ".join(training.targets.metadata_column)
    sentence = f"{columns}: relative error {number(best.value)} in trial {best.number + 1}{as_given}"
    options = _best_options(suggest(best, space), training, depth, folder)
    write_text(folder / BEST, f"# {sentence}\n\n{to_toml(options)}")
    write_search(folder, sentence, trials, importance)
    if [trial.state for trial in study.get_trials()] != [trial.state for trial in found]:
        # Another process has ended a trial meanwhile, and may have written its results before these.
        _write_results(study, training, space, depth, folder)
        return
    log.info("%s", sentence)
    log.info("aam train --config %s --output-dir RUN trains with the best options", seen_from_here(folder / BEST))


def _best_options(values: Space, training: FineTuneConfig, depth: int, folder: Path) -> Space:
    """Return what `aam train --config` needs: what was asked for, the best values, and the split of the search."""
    best: Space = {}
    for (section, options), usual in zip(to_dict(training).items(), to_dict(FineTuneConfig()).values(), strict=True):
        changed = {name: value for name, value in options.items() if value != usual[name] and name not in OF_SEARCH}
        best[section] = changed | values.get(section, {})
    best["data"] |= {"split": str(folder / SPLIT), "rarefy_depth": depth}
    return best
