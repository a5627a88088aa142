"""`aam export`: a trained model for programs without aam, as ONNX or as a program of
torch.export.
"""

from __future__ import annotations

import logging

import torch

from aam.api.apply import output_of, written
from aam.config import ExportConfig
from aam.errors import InputError
from aam.options import not_none
from aam.predict.export import FILES, check_exportable, write_exported
from aam.predict.saved_model import load_models

log = logging.getLogger("aam")


def export_model(config: ExportConfig) -> None:
    """Write the folder of an exported model, after it gave on odd batches what the model gives.

    Raises
    ------
    InputError
        Bad options, no model or several, what no graph of tensors can hold, or a library that is
        not installed.
    RunError
        What was written differs from the model.
    """
    files = [FILES[config.format], "description.json"]
    output = output_of("export", config, files, not_none(config.output))
    models = load_models([not_none(config.model)], torch.device("cpu"))
    if len(models) > 1:
        raise InputError(
            f"--model: {len(models)} models, which are exported one by one; name one of them"
        )
    (saved,) = models
    part = "model" if saved.targets.specs else "encoder"
    check_exportable(saved, part)
    with written(output, config) as folder:
        difference = write_exported(saved, part, config.format, folder)
    name, text = FILES[config.format], "%s: %s, within %.1g of the model on odd batches"
    log.info(text, config.output, name, difference)
