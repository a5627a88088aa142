"""The network as a further member of finished runs of the default members, by settings."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aam.api.training import check_targets, fit_model, load_folds, supervise, with_judged_network
from aam.cli import parse
from aam.config import PREDICTION_PASSES, DataConfig, FineTuneConfig, ModelConfig
from aam.engine.run import MODEL
from aam.evaluate.comparison import Baseline, compare_with_baselines
from aam.evaluate.predictions import PredictionTable, TargetPredictions, joined
from aam.options import not_none, read_config
from aam.predict.prediction import predict_rows
from aam.predict.saved_model import load_model
from aam.typing import Array, Floats
from benchmarks.config import NetworkConfig
from benchmarks.rivals import comparison_row, load_run, origin


def network_options(run: Path, setting: str) -> FineTuneConfig:
    """The options of a finished run for a network alone, with those of a setting."""
    config = read_config(run / "run.json", FineTuneConfig())
    config = replace(
        config,
        # A run without a network keeps no samples for validation.
        data=replace(config.data, validation_size=DataConfig().validation_size),
        targets=replace(config.targets, members=("deep",)),
        model=ModelConfig(),
    )
    return parse("train", config, [f"--{option}" for option in shlex.split(setting)])


def network_predictions(
    config: FineTuneConfig, folds_asked: Sequence[str], run: Path
) -> tuple[PredictionTable, list[str]]:
    """Predictions of held-out samples by a network trained on the other samples of each fold, and
    the folds in which it joins the members of `run`.
    """
    folds, tables, joined_folds = load_folds(config), [], list[str]()
    check_targets(folds)
    study = folds.study
    for split in folds.splits:
        if folds_asked and split.test_fold not in folds_asked:
            continue
        saved = fit_model(folds, split)
        encoded = folds.encoded if config.targets.freeze_base else None
        runtime, fold = folds.config.runtime, split.test_fold
        ids = split.held_out
        tables.append(predict_rows(saved, study, ids, runtime, PREDICTION_PASSES, fold, encoded))
        blend = load_model(folds.folder(run, split) / MODEL, folds.device).blend
        blend = blend.joined(not_none(saved.estimator))
        learned, *_ = supervise(folds, split.ids("train"))
        judged = with_judged_network(folds, split, replace(saved, blend=blend), learned)
        joined_folds += [fold] if judged.network is not None else []
    return joined(tables), joined_folds


def in_rows(predictions: TargetPredictions, table: PredictionTable) -> Array:
    """Predictions of the target in the rows of `predictions`, [N] or [N, K]; NaN where none."""
    frame = table.frame.reindex(list(predictions.sample_ids))
    return replace(table, frame=frame).predicted(table.specs[0].name)


def as_third_member(predictions: TargetPredictions, network: Array) -> Floats:
    """The equal mean of the two members of a run and a network."""
    return np.asarray((2 * predictions.predicted + network) / 3)


def compare_setting(run: Path, setting: str, folds: Sequence[str]) -> dict[str, Any]:
    """Metrics of the network alone, and as a third member with its difference from the run's."""
    begun = time.process_time()
    _, predictions = load_run(run)
    table, joined_folds = network_predictions(network_options(run, setting), folds, run)
    network = in_rows(predictions, table)
    row: dict[str, Any] = {"task": run.name, "setting": setting, "folds": list(folds)}
    row["joins in folds"] = joined_folds
    third = as_third_member(predictions, network)
    joins = dict(zip(table.sample_ids, np.isin(table.texts("fold"), joined_folds), strict=True))
    rows = np.array([joins.get(name, False) for name in predictions.sample_ids])
    two = np.where(np.isfinite(third), predictions.predicted, np.nan)
    judged = np.where(rows.reshape(-1, *[1] * (third.ndim - 1)), third, two)
    values = {"alone": network, "third": third, "judged": judged}
    for name, predicted in values.items():
        baseline = Baseline(name, predicted, trivial=False)
        (comparison,) = compare_with_baselines(predictions, [baseline], seed=0)
        row[name] = comparison_row(comparison)
    return {**row, "cpu_seconds": round(time.process_time() - begun, 1)}


def compare_settings(config: NetworkConfig) -> None:
    """Compare each setting with each run, print a line per comparison and write them as JSON."""
    about, rows = origin("network"), []
    for run in config.runs:
        for setting in config.settings:
            row = compare_setting(run, setting, config.folds)
            rows.append({**row, **about})
            print(line_of(row), file=sys.stderr, flush=True)
            config.output.write_text(json.dumps(rows, indent=1) + "\n")


def line_of(row: dict[str, Any]) -> str:
    """A row in words."""
    third, alone = row["third"], row["alone"]
    p = "" if third["p"] is None else f", p {third['p']:.3f}"
    return (
        f"{row['task']}: {row['setting']}: {third['metric']} of two members {third['aam']:.4f}, "
        f"with the network {third['value']:.4f}{p}; network alone {alone['value']:.4f}; where it "
        f"joins (folds {', '.join(row['joins in folds']) or 'none'}) {row['judged']['value']:.4f}; "
        f"{row['cpu_seconds']:.0f} s"
    )
