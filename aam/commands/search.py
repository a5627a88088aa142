"""`aam search`: the samples of a collection that are nearest to those of a table."""

from __future__ import annotations

import csv
import logging

from aam.api.apply import prepare_models
from aam.api.embedding import found_samples
from aam.config_commands import NearestConfig
from aam.files.atomic import atomic_file
from aam.options import given

log = logging.getLogger("aam")


def search(config: NearestConfig) -> None:
    """Write the nearest samples of a collection, a row for each, nearest first.

    Raises
    ------
    InputError
        A model without a reference tree, bad tables, or an output that exists.
    """
    output = given(config.output)
    models = prepare_models(config.model, config.runtime)
    found = found_samples(models, config)
    with atomic_file(output) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, dialect="excel-tab", lineterminator="\n")
        writer.writerow(["sample-id", "rank", "neighbour", "distance"])
        writer.writerows(found.lines())
    samples, nearest = found.rows.shape
    log.info("%s: the nearest %d of %d samples for each of %d", output, nearest, len(found.collection), samples)
