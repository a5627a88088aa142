"""`aam predict`: predictions for a table."""

from __future__ import annotations

import logging

from aam.api.apply import load_models_and_table, predict_samples
from aam.config_commands import PredictConfig
from aam.evaluate.predictions import write_predictions
from aam.io.metadata import read_metadata
from aam.options import given

log = logging.getLogger("aam")


def predict_table(config: PredictConfig) -> None:
    """Predict every sample of a table and write the predictions.

    Raises
    ------
    InputError
        Missing options, a damaged model, a bad table, an output that exists.
    """
    output = given(config.output)
    models, study, _ = load_models_and_table(config)
    labels = None if config.labels is None else read_metadata(config.labels, config.decimal)
    table = predict_samples(models, study, config.prediction_passes, config.runtime, config.new_study, labels)
    write_predictions(output, table)
    log.info("%s: %d samples, %d of them below the depth", output, len(table.sample_ids), len(study.selection.dropped))
    if learned := table.subsets.count("train"):
        log.info(
            "the model has learned from %d of them (subset train): how good it is the predictions of its run say, "
            "not these", learned,
        )  # fmt: skip
