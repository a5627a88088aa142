"""Predictions of other programs on the folds of finished runs, compared with those of `aam`."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LassoCV, LogisticRegressionCV
from sklearn.pipeline import Pipeline, make_pipeline

from aam.api.training import load_folds
from aam.config import FineTuneConfig
from aam.device.platform import device_name
from aam.errors import InputError
from aam.evaluate.comparison import Baseline, Comparison, compare_with_baselines
from aam.evaluate.predictions import TargetPredictions, read_predictions, target_predictions
from aam.files.revision import code_commit
from aam.options import not_none, read_config
from aam.predict.baselines import TargetData, target_data
from aam.typing import Array, Floats
from benchmarks.config import RivalsConfig

PREDICTOR = Path(__file__).with_name("rival_predictor.py")

# Defaults of SIAMCAT 2.16: the largest share below which a feature is left out, the pseudocount of
# the logarithm, and the quantile of the standard deviations that is added to each of them.
LEAST_SHARE, PSEUDOCOUNT, DEVIATION_QUANTILE = 1e-3, 1e-6, 0.1

INNER_FOLDS = 5


# --- SIAMCAT's default, with scikit-learn ---------------------------------------------------------


class LogShares(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Standardized logarithms of shares, as `filter.features` and `normalize.features` of SIAMCAT
    (Wirbel et al. 2021) make them.

    Attributes
    ----------
    columns_ : int64 [P]
        Features whose share is at least `LEAST_SHARE` in one training sample.
    mean_, deviation_ : float64 [P]
    """

    def fit(self, X: Array, y: Any = None) -> LogShares:
        """Choose and standardize features by the reads of training samples [N, F]."""
        shares = X / X.sum(axis=1, keepdims=True)
        self.columns_ = np.flatnonzero(shares.max(axis=0) >= LEAST_SHARE)
        logs = np.log10(shares[:, self.columns_] + PSEUDOCOUNT)
        deviation = logs.std(axis=0, ddof=1)
        self.mean_ = logs.mean(axis=0)
        self.deviation_ = deviation + np.quantile(deviation, DEVIATION_QUANTILE)
        return self

    def transform(self, X: Array) -> Floats:
        """Values [N, P] of the reads of samples [N, F]."""
        shares = X[:, self.columns_] / X.sum(axis=1, keepdims=True)
        return np.asarray((np.log10(shares + PSEUDOCOUNT) - self.mean_) / self.deviation_)


def make_lasso(classes: bool) -> Pipeline:
    """A LASSO of log shares; inner folds choose its penalty."""
    if not classes:
        return make_pipeline(LogShares(), LassoCV(cv=INNER_FOLDS, max_iter=5000))
    classifier = LogisticRegressionCV(
        cv=INNER_FOLDS,
        Cs=np.logspace(-3, 1, 9),
        l1_ratios=(1.0,),
        solver="liblinear",
        scoring="roc_auc",
        random_state=0,
        use_legacy_attributes=False,
    )
    return make_pipeline(LogShares(), classifier)


def lasso_predictions(task: TargetData) -> Array:
    """Held-out predictions of `make_lasso`, [N] or [N, K]."""
    counts = not_none(task.samples).counts.astype(np.float64).toarray()
    return task.out_of_fold(make_lasso(bool(task.labels)), counts)


# --- programs with an environment of their own ----------------------------------------------------


def install(rival: Rival, folder: Path) -> Path | str:
    """The Python of a virtual environment with the packages of a program, or why there is none."""
    python, listed = folder / "bin" / "python", folder / "requirements.txt"
    text = "\n".join((rival.package, *rival.requirements))
    if listed.is_file() and listed.read_text() == text:
        return python
    try:
        venv.create(folder, with_pip=True, clear=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"venv: {error}"
    for words in (rival.requirements, ("--no-deps", rival.package)):
        command = [str(python), "-m", "pip", "install", "--quiet", *words]
        finished = subprocess.run(command, capture_output=True, text=True)
        if finished.returncode:
            return f"pip: {last_line(finished.stderr)}"
    listed.write_text(text)
    return python


def last_line(text: str) -> str:
    """The last line of an error message that is not empty; empty if there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def predictions_apart(name: str, task: TargetData, python: Path) -> Array | str:
    """Held-out predictions of a program by the Python of its environment, [N] or [N, K], or why it
    failed.
    """
    samples = not_none(task.samples)
    studies = np.zeros(len(samples)) if task.studies is None else task.studies
    arrays: dict[str, Any] = {
        "counts": samples.counts.astype(np.float32).toarray(),
        "truth": task.truth,
        "classes": len(task.labels),
        "batch": np.unique(studies, return_inverse=True)[1],
    }
    for number, (train, test) in enumerate(task.folds):
        arrays[f"train_{number}"], arrays[f"test_{number}"] = train[task.has_truth[train]], test
    with tempfile.TemporaryDirectory() as work:
        source, output = Path(work) / "task.npz", Path(work) / "predictions.npy"
        np.savez(source, **arrays)
        command = [str(python), str(PREDICTOR), name, str(source), str(output)]
        # Lightning writes checkpoints where it runs.
        finished = subprocess.run(command, capture_output=True, text=True, cwd=work)
        if finished.returncode:
            return last_line(finished.stderr) or f"its exit status is {finished.returncode}"
        return np.asarray(np.load(output))


# --- the programs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rival:
    """A program whose predictions are compared with those of `aam`.

    Attributes
    ----------
    version : str
    package : str
        What pip installs in an environment of its own; empty for what `aam` has itself.
    requirements : tuple of str
        What the package imports. What else it requires is not installed: lightning-bolts, which
        DEBIAS-M requires and does not import, needs a torchvision that fits no torch for CPUs.
    most_classes : int
        The most classes that it tells apart.
    numbers : bool
        Whether it predicts numbers.
    studies : bool
        Whether it needs studies that are held out whole.
    obstacle : str
        Why it never runs.
    """

    version: str
    package: str = ""
    requirements: tuple[str, ...] = ()
    most_classes: int = 2
    numbers: bool = True
    studies: bool = False
    obstacle: str = ""

    def reason_not_to_run(self, task: TargetData) -> str:
        """Why it does not run on a task; empty text if it does."""
        if self.studies and task.studies is None:
            return "it learns from several studies, and the run holds out no whole study"
        if not task.labels and not self.numbers:
            return "it predicts classes, and the target has numbers"
        if len(task.labels) > self.most_classes:
            return f"it tells {self.most_classes} classes apart, of {len(task.labels)}"
        return ""


DOWNLOADS = "its package does not contain its weights, which it downloads at its first use"

LASSO, GENEICL, DEBIAS = "LASSO of log shares, as SIAMCAT", "GeneICL", "DEBIAS-M"

RIVALS = {
    LASSO: Rival(f"scikit-learn {sklearn.__version__}"),
    GENEICL: Rival("1.0.0", "geneicl==1.0.0", ("torch==2.13.0", "numpy==2.4.4"), most_classes=10),
    DEBIAS: Rival(
        "0.0.2",
        "DEBIAS-M==0.0.2",
        (
            "torch==2.13.0",
            "numpy==1.26.4",
            "pandas==2.3.3",
            "pytorch-lightning==1.9.5",
            "scikit-learn==1.7.2",
            "setuptools==80.10.2",
        ),
        numbers=False,
        studies=True,
    ),
    "TabPFN": Rival("", obstacle=DOWNLOADS),
    "TabICL": Rival("", obstacle=DOWNLOADS),
}


def environment(name: str, folder: Path) -> Path | str:
    """The Python that runs a program, or why there is none."""
    rival = RIVALS[name]
    if rival.package:
        return install(rival, folder / name)
    return rival.obstacle or Path(sys.executable)


def rival_predictions(name: str, task: TargetData, python: Path | str) -> Array | str:
    """Held-out predictions of a program, [N] or [N, K], or why there are none.

    `python` is the result of `environment`.
    """
    if isinstance(python, str):
        return python
    rival = RIVALS[name]
    if reason := rival.reason_not_to_run(task):
        return reason
    return predictions_apart(name, task, python) if rival.package else lasso_predictions(task)


# --- comparisons ----------------------------------------------------------------------------------


def load_run(run: Path) -> tuple[TargetData, TargetPredictions]:
    """The task of a finished run of ``aam train``, and the held-out predictions of its target."""
    config = read_config(run / "run.json", FineTuneConfig())
    folds, table = load_folds(config), read_predictions(run / "predictions.tsv")
    if len(table.specs) != 1 or not all(split.held_out for split in folds.splits):
        raise InputError(f"{run}: expected one target and samples that are held out")
    spec, study = table.specs[0], folds.study
    task = target_data(study, folds.splits, spec)
    return task, target_predictions(table, spec, not_none(study.metadata), study.config)


def in_rows_of(task: TargetData, predictions: TargetPredictions, predicted: Array) -> Array:
    """Predictions of the samples of a task in the rows of `predictions`; NaN if there is none."""
    rows = pd.Index(not_none(task.samples).sample_ids).get_indexer(list(predictions.sample_ids))
    with_missing = np.concatenate([predicted, np.full_like(predicted[:1], np.nan)])
    return np.asarray(with_missing[rows])


def comparison_row(comparison: Comparison) -> dict[str, Any]:
    """The metric of a program with its interval, and the difference of `aam` from it.

    Limits and p-values are None below six groups.
    """
    metric, difference = comparison.metrics[comparison.key], comparison.difference
    tested = not math.isnan(comparison.p)
    return {
        "metric": comparison.key,
        "value": metric.value,
        "interval": [metric.low, metric.high] if tested else None,
        "aam": comparison.model[comparison.key],
        "difference": difference.value,
        "difference_interval": [difference.low, difference.high] if tested else None,
        "p": comparison.p if tested else None,
        "corrected_p": comparison.corrected_p if tested else None,
        "samples": comparison.samples,
        "groups": comparison.groups,
    }


def compare_run(run: Path, pythons: Mapping[str, Path | str]) -> list[dict[str, Any]]:
    """A row for each program: its comparison with the predictions of a run, or why it has none.

    `pythons` are results of `environment` by program.
    """
    task, predictions = load_run(run)
    rows: dict[str, dict[str, Any]] = {}
    baselines = []
    for name, python in pythons.items():
        begun = time.monotonic()
        result = rival_predictions(name, task, python)
        rows[name] = {"task": run.name, "rival": name, "version": RIVALS[name].version}
        if isinstance(result, str):
            rows[name]["not_run"] = result
            continue
        rows[name]["seconds"] = round(time.monotonic() - begun, 1)
        values = in_rows_of(task, predictions, result)
        baselines.append(Baseline(name, values, trivial=False))
    for comparison in compare_with_baselines(predictions, baselines, seed=0):
        rows[comparison.name] |= comparison_row(comparison)
    return list(rows.values())


def origin(benchmark: str) -> dict[str, str | None]:
    """Where the rows of a benchmark come from: command, commit, date and machine."""
    return {
        "command": f"python -m benchmarks {benchmark}",
        "commit": code_commit(),
        "date": date.today().isoformat(),
        "machine": device_name(torch.device("cpu")),
    }


def compare_with_rivals(config: RivalsConfig) -> None:
    """Compare the programs with each run, print a line per comparison and write them as JSON."""
    about = origin("rivals")
    folder = config.environments.absolute()
    pythons: dict[str, Path | str] = {name: environment(name, folder) for name in config.programs}
    rows = []
    for run in config.runs:
        for row in compare_run(run, pythons):
            rows.append({**row, **about})
            print(line_of(row), file=sys.stderr, flush=True)
        config.output.write_text(json.dumps(rows, indent=1) + "\n")


def line_of(row: dict[str, Any]) -> str:
    """A row in words."""
    start = f"{row['task']}: {row['rival']} {row['version']}".rstrip()
    if "not_run" in row:
        return f"{start}: not run: {row['not_run']}"
    values = f"{row['metric']} {row['value']:.3f}, aam {row['aam']:.3f}"
    if row["interval"] is None:
        return f"{start}: {values}, too few groups for a test; {row['seconds']:.0f} s"
    low, high = row["difference_interval"]
    difference = f"difference {row['difference']:.3f} ({low:.3f} to {high:.3f}), p {row['p']:.3f}"
    return f"{start}: {values}, {difference}; {row['seconds']:.0f} s"
