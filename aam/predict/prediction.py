"""Predictions of a saved model: its learners blended, and averaged over rarefactions, as one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from aam.data.study import EVALUATION, Study
from aam.device.options import RuntimeConfig
from aam.evaluate.intervals import Conformal
from aam.evaluate.predictions import PredictionTable, joined
from aam.predict.blend import NETWORK
from aam.predict.features import Samples
from aam.predict.linear import LEAST_TO_CENTRE
from aam.predict.network import SAMPLES_OF_PART, AsvVectors, encode_table, per_target, run_model
from aam.predict.saved_model import SavedModel

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


def with_inputs(saved: SavedModel, study: Study) -> Study:
    """Return the study with what the model reads beside the reads: covariates, and places on a reference tree."""
    return study.with_covariates(saved.covariates, study.metadata).placed_on(saved.reference)


def samples_to_predict(study: Study, sample_ids: Sequence[str], passes: int) -> Samples:
    """Return samples in the rarefactions that predictions are made from, none of which training has."""
    return Samples.rarefied(study, study.rows(sample_ids), [EVALUATION - 1 - number for number in range(passes)])


def centred_on(saved: SavedModel, study: Study, sample_ids: Sequence[str], passes: int) -> SavedModel:
    """Return the model for a study of which `sample_ids` are unlabelled samples; itself for fewer than enough."""
    if len(sample_ids) < LEAST_TO_CENTRE or not saved.blend.learners:
        return saved
    samples = samples_to_predict(study, sample_ids[:SAMPLES_OF_PART], passes)
    return replace(saved, blend=saved.blend.centred_on(samples))


def predict_rows(
    saved: SavedModel,
    study: Study,
    sample_ids: Sequence[str],
    config: RuntimeConfig,
    passes: int,
    fold: str = "",
    asvs: AsvVectors | None = None,
    studies: Sequence[str] | None = None,
) -> PredictionTable:
    """Predict samples of `study` from `passes` rarefactions each.

    Samples of `studies` are read relative to the mean of their study, where the model learned so and there are
    `LEAST_TO_CENTRE` of them, else relative to the mean of training. Numbers are means over the rarefactions with their
    standard deviation, probabilities their mean; intervals are added where the model holds fitted ones. Each of their
    ASVs is encoded once, unless `asvs` are known. Of large tables some samples are predicted at a time.
    """
    study = with_inputs(saved, study)
    if asvs is None and saved.network is not None and saved.blend.network_weight > 0:
        asvs = encode_table(saved.network, study, saved.device, config, study.rows(sample_ids))
    of_study: dict[str, list[str]] = {}
    for name, sample_id in zip(studies or [""] * len(sample_ids), sample_ids, strict=True):
        of_study.setdefault(name, []).append(sample_id)
    parts = []
    for ids in of_study.values() or ([],):
        centred = saved if studies is None else centred_on(saved, study, ids, passes)
        for start in range(0, max(len(ids), 1), SAMPLES_OF_PART):
            some = ids[start : start + SAMPLES_OF_PART]
            parts.append(_predict_part(centred, study, some, config, asvs, passes))
    table = parts[0] if len(parts) == 1 else joined(parts).with_rows(sample_ids, {})
    table = replace(table, folds=(fold,) * len(sample_ids))
    for name, fitted in saved.notes.get("intervals", {}).items():
        table = table.with_limits(name, Conformal.from_json(fitted).limits(table.values[name]))
    return table


def _predict_part(
    saved: SavedModel,
    study: Study,
    sample_ids: Sequence[str],
    config: RuntimeConfig,
    asvs: AsvVectors | None,
    passes: int,
) -> PredictionTable:
    rows, blend = study.rows(sample_ids), saved.blend
    rarefactions = [EVALUATION - 1 - number for number in range(passes)]
    X = blend.inputs(Samples.rarefied(study, rows, rarefactions)) if blend.learners else None
    blended, quantiles = [], []
    for number, rarefaction in enumerate(rarefactions):
        scores = blend.scores(None if X is None else X.rarefaction(number))
        if asvs is not None and saved.network is not None:
            predicted = run_model(saved.network, study, rows, saved.device, config, rarefaction, asvs)
            quantiles.append(predicted.quantiles)
            for of_target, values in zip(scores, per_target(predicted), strict=True):
                of_target[NETWORK] = values
        blended.append(blend.blend(scores))
    numeric, classes = saved.targets.numeric, saved.targets.classes

    def decode(encoded: Array) -> Array:
        return saved.targets.decode(encoded, study.metadata, sample_ids)

    empty = np.zeros((len(rows), 0))
    numbers = np.stack([decode(np.concatenate([empty, *one[: len(numeric)]], axis=1)) for one in blended])
    levels = range(quantiles[0].shape[1] if quantiles else 0)
    limits = [np.mean([decode(values[:, level]) for values in quantiles], axis=0) for level in levels]
    deviations = numbers.std(axis=0)
    return PredictionTable(
        sample_ids=tuple(sample_ids),
        specs=saved.targets.specs,
        values={spec.name: numbers.mean(axis=0)[:, column] for column, spec in enumerate(numeric)},
        deviations={spec.name: deviations[:, column] for column, spec in enumerate(numeric)} if passes > 1 else {},
        probabilities={
            spec.name: np.mean([one[len(numeric) + column] for one in blended], axis=0)
            for column, spec in enumerate(classes)
        },
        notes=("",) * len(sample_ids),
        folds=("",) * len(sample_ids),
        quantiles={
            spec.name: np.stack([values[:, column] for values in limits], axis=1)
            for column, spec in enumerate(numeric)
            if spec.quantiles
        },
    )
