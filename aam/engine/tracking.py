"""Trackers of experiments, MLflow and Weights & Biases: they get the records that metrics.jsonl holds."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from aam.engine.run_record import flatten
from aam.errors import import_extra

log = logging.getLogger("aam")

Record = dict[str, Any]

# How many parameters MLflow takes at once, and how long one may be.
MLFLOW_BATCH, MLFLOW_LENGTH = 100, 6000


class Tracker(Protocol):
    """What takes the metrics of a run."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Store the metrics of a step."""

    def close(self, failed: bool) -> None:
        """End the run."""


def metrics_of(record: Record) -> dict[str, float]:
    """Return the numbers of a record of metrics.jsonl, as ``step/train_loss`` or ``epoch/val_loss``."""
    numbers = {name: value for name, value in record.items() if isinstance(value, (int, float)) and name != "step"}
    return {f"{record['event']}/{name}": float(value) for name, value in numbers.items()}


class MlflowTracker:
    """A run of MLflow, in the store that ``MLFLOW_TRACKING_URI`` names; unset: ``mlruns`` in the folder of the run."""

    def __init__(self, folder: Path, title: str, options: Mapping[str, Any]) -> None:
        mlflow: Any = import_extra("mlflow", "mlflow", "--track mlflow")
        self.metric = mlflow.entities.Metric
        where = os.environ.get("MLFLOW_TRACKING_URI")
        if not where:
            # MLflow 3 prefers a database to plain files, which need no library beside it and no server.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            where = (folder / "mlruns").resolve().as_uri()
        self.client = mlflow.MlflowClient(where)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "aam")
        experiment = self.client.get_experiment_by_name(name)
        number = self.client.create_experiment(name) if experiment is None else experiment.experiment_id
        self.run = self.client.create_run(number, run_name=title).info.run_id
        parameters = [mlflow.entities.Param(name, str(value)[:MLFLOW_LENGTH]) for name, value in options.items()]
        for start in range(0, len(parameters), MLFLOW_BATCH):
            self.client.log_batch(self.run, params=parameters[start : start + MLFLOW_BATCH])

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Store the metrics of a step."""
        now = int(time.time() * 1000)
        self.client.log_batch(
            self.run, metrics=[self.metric(name, value, now, step) for name, value in metrics.items()]
        )

    def close(self, failed: bool) -> None:
        """End the run."""
        self.client.set_terminated(self.run, "FAILED" if failed else "FINISHED")


class WandbTracker:
    """A run of Weights & Biases below the folder of the run: offline unless ``WANDB_MODE`` says otherwise."""

    def __init__(self, folder: Path, title: str, options: Mapping[str, Any]) -> None:
        wandb: Any = import_extra("wandb", "wandb", "--track wandb")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "aam"), name=title, dir=str(folder), config=dict(options),
            mode=os.environ.get("WANDB_MODE", "offline"), reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, save_code=False),
        )  # fmt: skip

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Store the metrics of a step; those of an epoch beside those of its last step."""
        self.run.log({**metrics, "step": step})

    def close(self, failed: bool) -> None:
        """End the run."""
        self.run.finish(exit_code=1 if failed else 0)


TRACKERS: dict[str, Callable[[Path, str, Mapping[str, Any]], Tracker]] = {
    "mlflow": MlflowTracker,
    "wandb": WandbTracker,
}


class Tracking:
    """A tracker that ends with a warning, and not with the run, where it fails.

    A resumed run is a new one in the tracker, with the records before the checkpoint given again, so that it holds
    what metrics.jsonl holds.
    """

    def __init__(self, name: str, folder: Path, title: str, options: Record, text: str) -> None:
        self.name = name
        self.tracker: Tracker | None = TRACKERS[name](folder, title, flatten(options))
        for line in text.splitlines():
            self.record(json.loads(line))

    def record(self, record: Record) -> None:
        """Give the numbers of one record of metrics.jsonl."""
        if self.tracker is not None:
            with self._warning():
                self.tracker.log(metrics_of(record), record["step"])

    def close(self, failed: bool) -> None:
        """End the run in the tracker."""
        if self.tracker is not None:
            with self._warning():
                self.tracker.close(failed)

    @contextlib.contextmanager
    def _warning(self) -> Any:
        """Go on without the tracker where it raises: a server that is away must not end a run."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            log.warning("--track %s: %s; training goes on without it", self.name, error)
            self.tracker = None
