"""Send the records of a run to a tracker: ``python -m examples.track mlflow RUN``, or wandb.

MLflow takes the store that ``MLFLOW_TRACKING_URI`` names, else ``mlruns`` in the folder of the run.
Weights & Biases stays offline in that folder unless ``WANDB_MODE`` says otherwise. Each fold is a
run of the tracker.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aam.engine.logger import METRICS, Record, flatten, metrics_of
from aam.engine.run import read_record
from aam.errors import InputError, import_extra
from aam.files.output_folder import RUN

# How many parameters MLflow takes at once, and how long one may be.
MLFLOW_BATCH, MLFLOW_LENGTH = 100, 6000


def to_mlflow(folder: Path, title: str, options: Record, records: Iterable[Record]) -> None:
    """Write a run of MLflow."""
    mlflow: Any = import_extra("mlflow", "mlflow", "track mlflow")
    where = os.environ.get("MLFLOW_TRACKING_URI")
    if not where:
        # MLflow 3 prefers a database to plain files, which need no other library and no server.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        where = (folder / "mlruns").resolve().as_uri()
    client, entities = mlflow.MlflowClient(where), mlflow.entities
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "aam")
    experiment = client.get_experiment_by_name(name)
    number = experiment.experiment_id if experiment else client.create_experiment(name)
    run = client.create_run(number, run_name=title).info.run_id
    rows = [entities.Param(name, str(value)[:MLFLOW_LENGTH]) for name, value in options.items()]
    for start in range(0, len(rows), MLFLOW_BATCH):
        client.log_batch(run, params=rows[start : start + MLFLOW_BATCH])
    now = int(time.time() * 1000)
    for record in records:
        metrics = metrics_of(record).items()
        numbers = [entities.Metric(name, value, now, record["step"]) for name, value in metrics]
        client.log_batch(run, metrics=numbers)
    client.set_terminated(run, "FINISHED")


def to_wandb(folder: Path, title: str, options: Record, records: Iterable[Record]) -> None:
    """Write a run of Weights & Biases."""
    wandb: Any = import_extra("wandb", "wandb", "track wandb")
    settings = {"silent": True, "console": "off", "x_disable_stats": True, "save_code": False}
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "aam"),
        name=title,
        dir=str(folder),
        config=dict(options),
        mode=os.environ.get("WANDB_MODE", "offline"),
        reinit="create_new",
        settings=wandb.Settings(**settings),
    )
    for record in records:
        run.log({**metrics_of(record), "step": record["step"]})
    run.finish(exit_code=0)


TRACKERS = {"mlflow": to_mlflow, "wandb": to_wandb}


def track(tracker: str, folder: Path) -> int:
    """Send the records of each fold of a run; return the number of folds.

    Raises
    ------
    InputError
        The folder holds no run with records.
    """
    paths = sorted(folder.glob(METRICS)) + sorted(folder.glob(f"*/{METRICS}"))
    if not (folder / RUN).is_file() or not paths:
        raise InputError(f"{folder}: no {RUN} with {METRICS}, expected the folder of a run")
    options = flatten(read_record(folder / RUN)["config"])
    for path in paths:
        records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        title = folder.name if path.parent == folder else f"{folder.name} {path.parent.name}"
        TRACKERS[tracker](folder, title, options, records)
    return len(paths)


def main() -> None:
    """Send the run that the command line names."""
    parser = argparse.ArgumentParser(description="Send the records of a run to a tracker.")
    parser.add_argument("tracker", choices=TRACKERS)
    parser.add_argument("folder", type=Path, help="Folder of a run of aam.")
    options = parser.parse_args()
    try:
        track(options.tracker, options.folder)
    except InputError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
