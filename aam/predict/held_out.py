"""Held-out predictions of a run: collected fold by fold, given intervals, and judged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aam.config import PREDICTION_PASSES, FineTuneConfig
from aam.data.splits import Split
from aam.data.targets import fit_targets
from aam.evaluate.evaluation import Evaluation, evaluate
from aam.evaluate.predictions import PredictionTable, joined, write_predictions
from aam.predict.baselines import alone_in_blend, baselines_by_target, target_data
from aam.predict.blend import DEFAULT_MEMBERS
from aam.predict.folds import Folds
from aam.predict.learning_curve import LearningCurve, learning_curve
from aam.predict.prediction import fit_intervals, predict_rows
from aam.predict.saved_model import SavedModel, save_notes

log = logging.getLogger("aam")


@dataclass
class HeldOut:
    """Predictions of the held-out samples of a run: call `add` with the model of each split, and
    `judge` at the end.

    Attributes
    ----------
    folds : Folds
    path : Path
        The run directory.
    is_transductive : bool
        Whether pretraining saw held-out samples, though not their labels.
    """

    folds: Folds[FineTuneConfig]
    path: Path
    is_transductive: bool = False
    _models: dict[Path, SavedModel] = field(default_factory=dict)
    _parts: list[PredictionTable] = field(default_factory=list)
    _in_blend: dict[str, list[PredictionTable]] = field(default_factory=dict)

    def add(self, split: Split, saved: SavedModel) -> None:
        """Predict the held-out samples of a split by its model, which has not learned from them."""
        folds, ids = self.folds, split.held_out
        config, study = folds.config, folds.study
        self._models[folds.folder(self.path, split)] = saved
        self.is_transductive |= bool(set(split.ids("test")) & set(saved.notes.seen_samples))
        if not ids or split not in folds.splits:
            return
        place: dict[str, Any] = {"fold": split.test_fold}
        place["studies"] = study.column(config.data.study_column, ids)
        if folds.strong_baselines:
            alone = alone_in_blend([saved], study, ids, config.runtime, **place)
            for baseline, predicted in alone.items():
                self._in_blend.setdefault(baseline, []).append(predicted)
        # Vectors are computed once for all folds that share a frozen encoder.
        encoded = folds.encoded if config.targets.freeze_base else None
        inputs = saved, study, ids, config.runtime, PREDICTION_PASSES
        self._parts.append(predict_rows(*inputs, encoded=encoded, **place))

    @property
    def best_epochs(self) -> list[int]:
        """The epoch of each network that was kept, in the order of the splits."""
        epochs = (saved.notes.best_epoch for saved in self._models.values())
        return [epoch for epoch in epochs if epoch is not None]

    @property
    def networks(self) -> list[str]:
        """Whether and why the network of each split joins the other members."""
        names = {folder: name for name, folder in self.folds.folders(self.path).items()}
        return [
            ": ".join(filter(None, (names.get(folder, "all samples"), saved.notes.network)))
            for folder, saved in self._models.items()
            if saved.notes.network is not None
        ]

    @property
    def members(self) -> tuple[str, ...]:
        """The members of one model or more."""
        names = (name for saved in self._models.values() for name in saved.blend.members)
        return tuple(dict.fromkeys(names))

    def judge(self) -> tuple[Evaluation, ...]:
        """Write predictions.tsv, save the models with fitted intervals, and return the comparison
        with baselines; nothing without held-out samples.
        """
        folds, study = self.folds, self.folds.study
        if not self._parts or study.metadata is None:
            return ()
        splits = folds.splits
        tested = all(split.ids("test") for split in splits)
        table = joined(self._parts).with_columns({"subset": "test" if tested else "validation"})
        # Without a test side early stopping has seen what is held out, which cannot vouch for new
        # samples.
        if tested:
            models = {split: self._models[folds.folder(self.path, split)] for split in splits}
            table, notes = fit_intervals(table, study, models)
            for folder in self._models if notes else ():
                save_notes(folder / "model", notes)
        elif any(spec.kind == "numeric" for spec in table.specs):
            log.info(
                "no intervals: the samples that were not learned from chose the epoch "
                "(validation); --cv or --test-size hold others out"
            )
        write_predictions(self.path / "predictions.tsv", table)
        in_blend = {name: joined(tables) for name, tables in self._in_blend.items()}
        strong = folds.strong_baselines
        baselines = baselines_by_target(table, study, splits, strong, in_blend)
        return evaluate(table, study.metadata, study.config, baselines)


def learning_curves(
    folds: Folds[FineTuneConfig], targets: Sequence[str]
) -> dict[str, LearningCurve | None]:
    """The learning curve of each target on the splits of a training."""
    study = folds.study
    if not targets:
        return {}
    config, curves = replace(folds.config.targets, metadata_column=tuple(targets)), {}
    members = [name for name in config.members if name in DEFAULT_MEMBERS] or DEFAULT_MEMBERS
    for spec in fit_targets(study.sample_metadata, config).specs:
        task = target_data(study, folds.splits, spec)
        curves[spec.name] = learning_curve(task, study.depth, study.seed, members)
    return curves
