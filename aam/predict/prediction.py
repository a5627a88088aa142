"""Predictions of saved models, averaged over rarefactions and models."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from aam.data.rarefaction import EVALUATION, rarefied_table
from aam.data.region import UNLIKE
from aam.data.splits import Split
from aam.data.study import Study
from aam.errors import InputError, UnlikeTrainingWarning, shown
from aam.evaluate.conformal import with_conformal_intervals
from aam.evaluate.likeness import TableLikeness
from aam.evaluate.predictions import (
    HIGH,
    LOW,
    TEXT_COLUMNS,
    PredictionTable,
    SampleSubset,
    combined,
    joined,
    make_predictions,
)
from aam.options import RuntimeConfig, not_none
from aam.predict.blend import specs_in_order
from aam.predict.estimator import SAMPLES_AT_ONCE, Samples
from aam.predict.members import LEAST_TO_CENTRE
from aam.predict.saved_model import SavedModel
from aam.training.inference import EncodedAsvs
from aam.typing import Rows

log = logging.getLogger("aam")

# A sample with a larger share of its reads in features that training lacks has no prediction.
MOST_UNSEEN = 0.9

# How the note of such a sample begins, and the note of a sample unlike training.
NO_PREDICTION, NO_INTERVAL = "no prediction", "no interval: "

# --- a table by several models -----------------------------------------------------------------


def predict_samples(
    models: Sequence[SavedModel],
    study: Study,
    passes: int,
    runtime: RuntimeConfig,
    new_study: bool = False,
    predict_unlike: bool = False,
    studies: Sequence[str] | None = None,
) -> PredictionTable:
    """Return one row per sample of the file, the mean of all models; one below the depth, or with
    more than `MOST_UNSEEN` unknown reads, is empty and says why.

    With `new_study` the samples are read relative to their own mean, or to that of the `studies` of
    the N samples of the table. Samples unlike training get no interval. With `predict_unlike`
    samples of unknown reads are predicted, and one `UnlikeTrainingWarning` is issued.
    """
    if not models[0].targets.specs:
        raise InputError(
            "--model: a pretrained encoder predicts nothing; fine-tune it with `aam train` first"
        )
    ids = study.table.sample_ids
    if studies is None:
        _check_new_study(models, study, new_study)
        studies = ["new"] * len(ids) if new_study else None
    predictions = []
    for model in models:
        drawn = replace(study, seed=model.seed)
        predictions.append(predict_rows(model, drawn, ids, runtime, passes, studies=studies))
    table = combined(predictions)
    for spec in table.specs:
        if not np.isfinite(table.predicted(spec.name)).all():
            what = f"predictions of {spec.name!r} are not finite numbers"
            raise InputError(f"--model: {what}; the model is damaged, train it again")
    notes = dict.fromkeys(study.samples.index, "no metadata, which the model reads")
    reads = dict(zip(ids, models[0].profile.compare_samples(study.table), strict=True))
    notes |= reads
    if any(table.limits(spec.name) is not None for spec in table.specs):
        unlike = unlike_training(models[0], study)
        table = without_limits(table, unlike)
        for name, reason in unlike.items():
            notes[name] = "; ".join(filter(None, (notes.get(name), f"{NO_INTERVAL}{reason}")))
    if unseen := unseen_reads(models, study):
        if predict_unlike:
            warn_of_unseen(unseen, study)
        else:
            values = [column for column in table.frame if column not in TEXT_COLUMNS]
            table = _emptied(table, unseen, values)
            for name, reason in unseen.items():
                others = [
                    part for part in reads[name].split("; ") if UNLIKE["unseen"][0] not in part
                ]
                notes[name] = "; ".join(filter(None, [f"{NO_PREDICTION}: {reason}", *others]))
    for name, depth in study.dropped.items():
        notes[name] = f"{depth} reads, below the model's depth of {study.depth}"
    notes |= dict.fromkeys(study.in_state("excluded"), "left out by --exclude")
    table = table.with_columns({"subset": _subsets(models, ids)})
    return table.with_rows(tuple(study.samples.index), notes)


def _subsets(models: Sequence[SavedModel], ids: Sequence[str]) -> list[SampleSubset]:
    """What each sample was to the models."""
    subsets: dict[str, SampleSubset] = dict.fromkeys(ids, "new")
    for saved in models:
        subsets |= dict.fromkeys(saved.notes.interval_samples, "calibration")
    for saved in models:
        subsets |= dict.fromkeys(saved.notes.labelled_samples, "train")
    return [subsets[name] for name in ids]


def presence_of(study: Study, rows: Rows) -> sparse.csr_matrix:
    """Presence of the ASVs of a table in its samples at `rows`, after one rarefaction, [n, A]."""
    return rarefied_table(study, EVALUATION - 1, rows).sign()


def unseen_reads(models: Sequence[SavedModel], study: Study) -> dict[str, str]:
    """Samples with more than `MOST_UNSEEN` of their reads in features that the training of a model
    lacks, and why such a sample has no prediction.
    """
    shares = [saved.profile.shares_of_samples(study.table)["unseen"] for saved in models]
    ids, share = study.table.sample_ids, np.max(shares, axis=0)
    return {
        ids[row]: f"{share[row]:.0%} of its reads are of ASVs that training lacks, more than "
        f"{MOST_UNSEEN:.0%}; --predict-unlike predicts it all the same"
        for row in np.flatnonzero(share > MOST_UNSEEN)
    }


def warn_of_unseen(unseen: Collection[str], study: Study) -> None:
    """Issue an `UnlikeTrainingWarning` that names samples of unknown reads."""
    text = (
        f"{len(unseen)} of {len(study.table)} samples have more than {MOST_UNSEEN:.0%} of their "
        f"reads in ASVs that training lacks ({shown(unseen, 3)}); their predictions say little"
    )
    warnings.warn(text, UnlikeTrainingWarning, stacklevel=3)


def without_limits(table: PredictionTable, unlike: Collection[str]) -> PredictionTable:
    """The table without the intervals of samples that are `unlike` training."""
    columns = [f"{spec.name}.{limit}" for spec in table.specs for limit in (LOW, HIGH)]
    return _emptied(table, unlike, [column for column in columns if column in table.frame])


def _emptied(
    table: PredictionTable, names: Collection[str], columns: Sequence[str]
) -> PredictionTable:
    """The table with empty cells of some samples in some columns."""
    frame = table.frame.copy()
    frame.loc[frame.index.isin([*names]), [*columns]] = math.nan
    return replace(table, frame=frame)


def unlike_training(saved: SavedModel, study: Study) -> dict[str, str]:
    """Reasons why samples of a table are unlike those of training, by sample; like ones are absent.

    A sample is unlike training if its ASVs have another length, strand or region, if too many of
    its reads are of new ASVs, or if the whole table differs (`TableLikeness`).
    """
    ids = study.table.sample_ids
    reasons = dict(zip(ids, saved.profile.compare_samples(study.table), strict=True))
    if (likeness := saved.notes.likeness) is not None:
        presence = presence_of(study, np.arange(len(ids)))
        unseen = saved.profile.shares_of_samples(study.table)["unseen"]
        texts = likeness.reasons(presence, study.table.names, unseen)
        reasons |= {name: text for name, text in zip(ids, texts, strict=True) if text}
    return {name: text for name, text in reasons.items() if text}


def fit_intervals(
    table: PredictionTable, study: Study, models: Mapping[Split, SavedModel]
) -> tuple[PredictionTable, dict[str, Any]]:
    """Held-out predictions with their intervals, and notes by which a model predicts others.

    The notes are empty without intervals. `models` have learned from the splits.
    """
    metadata = not_none(study.metadata)
    table, fitted = with_conformal_intervals(table, metadata, study.config, study.seed)
    if not fitted:
        return table, {}
    names, folds, unseen = study.table.names, [], []
    for split, saved in models.items():
        held_out = study.rows(split.held_out)
        folds.append((study.rows(split.not_held_out), held_out))
        unseen.append(saved.profile.shares_of_samples(study.table)["unseen"][held_out])
    presence = presence_of(study, np.arange(len(study.table.sample_ids)))
    likeness = TableLikeness.fit(presence, names, folds, np.concatenate(unseen))
    return table, {
        "intervals": fitted,
        "likeness": likeness,
        "interval_samples": tuple(sorted(table.sample_ids)),
    }


def _check_new_study(models: Sequence[SavedModel], study: Study, new_study: bool) -> None:
    """Log the centre of the samples of a new study; `InputError` if a model knows no studies."""
    ids, column = study.table.sample_ids, models[0].data.study_column
    if column is None and new_study:
        raise InputError(
            "--new-study: the model was not trained for new studies; train it with --study-column"
        )
    seen = sorted(set(ids).intersection(*(saved.notes.labelled_samples for saved in models)))
    if new_study and seen:
        text = "warning: --new-study: %d samples belong to a study of the training table: %s"
        log.warning(text, len(seen), shown(seen, 3))
    if not any(model.blend.is_centred for model in models):
        return
    if new_study and len(ids) < LEAST_TO_CENTRE:
        log.warning(
            f"warning: --new-study: {len(ids)} samples are too few for the mean of their study, "
            f"{LEAST_TO_CENTRE} are needed; the mean of the training samples is used"
        )
    elif new_study:
        text = "--new-study: centred on the mean of its %d samples (no labels required)"
        log.info(text, len(ids))
    elif len(seen) < len(ids):
        log.warning(
            f"warning: the model learned from several values of {column!r}; if these samples are "
            "of a new one, pass --new-study"
        )


# --- samples by one model ----------------------------------------------------------------------


def with_inputs(saved: SavedModel, study: Study) -> Study:
    """Return the study with the other inputs of the model: covariates, and places on a reference
    tree.
    """
    return study.placed_on(saved.reference).with_covariates(saved.covariates, study.metadata)


def predict_rows(
    saved: SavedModel,
    study: Study,
    sample_ids: Sequence[str],
    config: RuntimeConfig,
    passes: int,
    fold: str = "",
    encoded: EncodedAsvs | None = None,
    studies: Sequence[str] | None = None,
) -> PredictionTable:
    """Predict samples of `study` from `passes` rarefactions each, some samples at a time.

    Numbers are means over the rarefactions with their standard deviation, probabilities their mean;
    intervals are added if the model has them. Of `studies`, each is read relative to its own mean
    if the model was trained so and it has `LEAST_TO_CENTRE` samples. Each ASV is encoded once;
    models with the same frozen encoder share the vectors `encoded`.
    """
    study, parts = with_inputs(saved, study), []
    rows = study.rows(sample_ids)
    saved = saved.prepared(study, rows, config, encoded)
    names = np.array(studies or [""] * len(rows), str)
    for name in dict.fromkeys(names.tolist()) or [""]:
        study_rows, model = rows[names == name], saved
        if studies is not None:
            samples = Samples.of_study(study, study_rows[:SAMPLES_AT_ONCE], saved.covariates.levels)
            model = replace(saved, blend=saved.blend.centred_on(samples))
        for start in range(0, max(len(study_rows), 1), SAMPLES_AT_ONCE):
            part = study_rows[start : start + SAMPLES_AT_ONCE]
            samples = Samples.of_study(study, part, saved.covariates.levels)
            rarefactions = samples.rarefactions(study.depth, study.seed, passes)
            draws = [model.predicted(rarefied) for rarefied in rarefactions]
            values, spread, specs = {}, {}, specs_in_order(saved.targets)
            for spec, drawn in zip(specs, zip(*draws, strict=True), strict=True):
                mean = np.mean(drawn, axis=0)
                values[spec.name] = mean if spec.labels else mean[:, 0]
                if passes > 1 and not spec.labels:
                    spread[spec.name] = np.std(drawn, axis=0)[:, 0]
            parts.append(make_predictions(samples.sample_ids, saved.targets.specs, values, spread))
    table = parts[0] if len(parts) == 1 else joined(parts).with_rows(sample_ids, {})
    table = table.with_columns({"fold": fold})
    for name, fitted in saved.notes.intervals.items():
        table = table.with_limits(name, fitted.limits(table.predicted(name)))
    return table
