"""A trial of a search: the error of some options in parts of the training samples that each model has not seen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aam.data.splits import Split, kfold
from aam.data.study import Study
from aam.data.table import select_samples
from aam.data.targets import Labels
from aam.device.attention import decide_execution
from aam.engine.run import RunDirectory
from aam.engine.signals import Signals
from aam.errors import InputError
from aam.evaluate.metrics import classification_metrics, regression_metrics
from aam.evaluate.predictions import PredictionTable
from aam.options import given, to_dict
from aam.predict.baselines import truth_of
from aam.predict.prediction import predict_rows
from aam.training.fit import train_split
from aam.training.inputs import Prepared, resolved
from aam.training.search_space import overlaid

# AUROC of a model that ranks at random.
CHANCE = 0.5


def without_test(prepared: Prepared) -> Prepared:
    """Return the inputs of a run without the samples of its test subset, which nothing of a search may see."""
    study, (split,) = prepared.study, prepared.splits
    tested = set(split.ids("test"))
    kept = [name for name in study.table.sample_ids if name not in tested]
    study = dataclasses.replace(
        study,
        table=select_samples(study.table, kept),
        labels=Labels.none(len(kept)),
        origin=study.origin[study.rows(kept)],
        matrix=None if study.matrix is None else study.matrix.select(kept),
        selection=dataclasses.replace(study.selection, aligned=tuple(kept)),
    )
    return dataclasses.replace(prepared, study=study, splits=())


def inner_folds(prepared: Prepared, folds: int) -> tuple[Split, ...]:
    """Return splits of all samples into so many parts of whole groups, even in the target or in ``--stratify``."""
    study, data, targets = prepared.study, prepared.config.data, prepared.config.targets
    ids, metadata = study.table.sample_ids, study.metadata
    if metadata is None:
        raise InputError("--metadata: not given")
    groups = None if data.group_column is None else metadata.values(data.group_column, ids)
    column = data.stratify or targets.metadata_column[0]
    numeric = metadata.kinds[column] == "numeric" and not (targets.classifier and data.stratify is None)
    strata = metadata.numbers(column, ids) if numeric else metadata.values(column, ids)
    return tuple(kfold(ids, folds, groups, strata, data.validation_size, seed=prepared.config.runtime.seed))


def fold_errors(prepared: Prepared, values: Mapping[str, Any], folds: Sequence[Split], folder: Path) -> Iterator[float]:
    """Yield the relative error on each inner fold of models that learn from the other folds.

    Parameters
    ----------
    prepared : Prepared
        Inputs and options of a run, as `without_test` returns them.
    values : mapping
        Values of options by ``section.option``, laid over those of `prepared`.
    folds : sequence of Split
    folder : Path
        Folder for what training writes.

    Raises
    ------
    InputError
        The options contradict each other, or the samples.
    RunError
        Training failed, as with a learning rate that is too high.
    """
    config = resolved(overlaid(prepared.config, values))
    prepared = dataclasses.replace(prepared, config=config, splits=tuple(folds))
    decide_execution(config.runtime, prepared.device, config.model.head_width)
    about = {"command": "tune", "config": to_dict(config), "decisions": {}, "inputs": {}}
    run = RunDirectory(folder, about, config.runtime, Signals(), resumed=False)
    for split in folds:
        place = folder / f"fold-{split.test_fold}"
        saved = given(train_split(prepared, run, split, place, f"fold {split.test_fold}"))
        passes, study = config.targets.val_prediction_passes, prepared.study
        asvs = prepared.frozen_asvs(saved.network, study)
        ids = split.ids("test")
        table = predict_rows(saved, study, ids, config.runtime, passes, split.test_fold, asvs)
        yield relative_error(table, study, split)


def relative_error(table: PredictionTable, study: Study, split: Split) -> float:
    """Return the mean error of the columns of a prediction, each relative to what a trivial model has.

    Of a number it is the mean absolute error over that of the median of the samples that were learned from; of classes
    1 - AUROC over 0.5. So 0 is perfect and 1 is worthless. Columns without a value, such as a fold of one class, are
    left out; NaN where there is none.
    """
    if study.metadata is None:
        raise InputError("--metadata: not given")
    errors = []
    for spec in table.specs:
        truth = truth_of(study.metadata, spec, table.sample_ids)
        if spec.kind == "numeric":
            learned = truth_of(study.metadata, spec, (*split.ids("train"), *split.ids("validation")))
            median = np.full(len(truth), np.nanmedian(learned))
            rows = np.isfinite(truth)
            ours, trivial = (
                regression_metrics(truth[rows], one[rows])["mae"] for one in (table.values[spec.name], median)
            )
            errors.append(ours / trivial if trivial > 0 else math.nan)
        else:
            rows = truth >= 0
            auroc = classification_metrics(truth[rows], table.probabilities[spec.name][rows])["auroc"]
            errors.append((1 - auroc) / (1 - CHANCE))
    defined = [error for error in errors if math.isfinite(error)]
    return sum(defined) / len(defined) if defined else math.nan
