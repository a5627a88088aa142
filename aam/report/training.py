"""The report of `aam train`: held-out predictions of all splits, compared with baselines."""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from aam.config import OF_NETWORK, PREDICTION_PASSES, FineTuneConfig, TargetConfig
from aam.data.splits import Split, fold_column
from aam.data.study import Study, lost_classes
from aam.data.targets import fit_targets, left_out_in_words
from aam.errors import shown
from aam.evaluate.evaluation import Evaluation, evaluate
from aam.evaluate.predictions import Columns, PredictionTable, joined, write_predictions
from aam.files.atomic import relative_to_cwd
from aam.options import to_dict
from aam.predict.audit import Audit, make_audit
from aam.predict.baselines import alone_in_blend, baselines_by_target, make_task
from aam.predict.blend import DEFAULT_MEMBERS, MEMBERS, in_words, with_property
from aam.predict.folds import Folds
from aam.predict.learning_curve import LearningCurve, learning_curve
from aam.predict.prediction import fit_intervals, predict_rows
from aam.predict.saved_model import SavedModel, save_notes
from aam.report.figures import loss_figures, read_epochs, surroundings
from aam.report.files import write_results
from aam.report.page import ReportData

log = logging.getLogger("aam")

TRANSDUCTIVE = ("Pretraining saw the held-out samples, though not their labels.",)


@dataclass
class TrainingReport:
    """Report of a run: call `add` after each split is trained, and `write` at the end.

    Attributes
    ----------
    prepared : Folds
    path : Path
        The run directory.
    warnings : list of str
        What readers must know of the data.
    """

    prepared: Folds[FineTuneConfig]
    path: Path
    warnings: list[str]
    models: dict[Path, SavedModel] = field(default_factory=dict)
    held_out: list[PredictionTable] = field(default_factory=list)
    in_blend: dict[str, list[PredictionTable]] = field(default_factory=dict)
    transductive: bool = False

    def add(self, split: Split, saved: SavedModel) -> None:
        """Predict the held-out samples of a split by its model, which has not learned from them."""
        prepared, ids = self.prepared, split.held_out
        config, study = prepared.config, prepared.study
        self.models[prepared.folder(self.path, split)] = saved
        self.transductive |= bool(set(split.ids("test")) & set(saved.notes["seen_samples"]))
        if not ids or split not in prepared.splits:
            return
        place: dict[str, Any] = {"fold": split.test_fold}
        place["studies"] = study.column(config.data.study_column, ids)
        if prepared.strong_baselines:
            alone = alone_in_blend([saved], study, ids, config.runtime, **place)
            for baseline, predicted in alone.items():
                self.in_blend.setdefault(baseline, []).append(predicted)
        # Vectors are computed once for all folds that share a frozen encoder.
        encoded = prepared.encoded if config.targets.freeze_base else None
        inputs = saved, study, ids, config.runtime, PREDICTION_PASSES
        self.held_out.append(predict_rows(*inputs, encoded=encoded, **place))

    def write(self, unjudged: str = "") -> None:
        """Write predictions.tsv, report.html, figures/ and metrics.json; `unjudged` says why no
        sample is held out.
        """
        write_results(self.path, self._report_data(self._results(), unjudged))
        log.info("report: %s", relative_to_cwd(self.path / "report.html"))
        if unjudged:
            log.warning("%s", unjudged)

    def _report_data(self, targets: tuple[Evaluation, ...], unjudged: str) -> ReportData:
        """Contents of the report of the run and its targets."""
        prepared, config, study = self.prepared, self.prepared.config, self.prepared.study
        names = [result.names.target for result in targets]
        folders = prepared.folders(self.path).items()
        task = {"command": "train"}
        task["targets"] = ", ".join(config.targets.metadata_column) or "none"
        if targets:
            task["models that predict together"] = in_words(config.targets.members)
        return ReportData(
            title="aam train",
            task=task,
            data=prepared.inputs_by_name,
            split=prepared.sizes_by_name,
            targets=targets,
            curves=tuple(loss_figures({name: read_epochs(folder) for name, folder in folders})),
            around=surroundings(study.table, [result.predictions for result in targets]),
            audits=self._audits(names),
            learning_curves=self._learning_curves(names if config.targets.learning_curve else []),
            dropped=dropped_by_class(study, targets),
            warnings=(
                *(TRANSDUCTIVE if self.transductive else ()),
                *self.warnings,
                *_left_out(study, targets),
            ),
            explain_command=_explain_command(config) if targets else "",
            configuration=_with_effect(config),
            unjudged=unjudged,
        )

    def _audits(self, targets: Sequence[str]) -> dict[str, Audit]:
        """The audit of each target."""
        data, classifier = self.prepared.config.data, self.prepared.config.targets.classifier
        folds, study = fold_column(data) if data.cv else None, self.prepared.study
        audited = partial(make_audit, classifier=classifier, group_column=data.group_column)
        audits = dict[str, Audit]()
        for name in targets:
            ids, class_of = study.table.sample_ids, study.selection.classes.get(name)
            if class_of is not None:
                ids = tuple(x for x in ids if class_of[x] is not None)
            audits[name] = audited(study.at(ids), target=name, fold_column=folds)
        return audits

    def _learning_curves(self, targets: Sequence[str]) -> dict[str, LearningCurve]:
        """The learning curves of the targets, if they are asked for."""
        result = dict[str, LearningCurve]()
        group = self.prepared.config.data.group_column or "sample"
        for name, curve in learning_curves(self.prepared, targets).items():
            if curve is None:
                log.warning("warning: --learning-curve: %s: too few groups to draw shares", name)
                continue
            result[name] = curve
            for sentence in curve.sentences(group):
                log.info("%s: %s", name, sentence)
        return result

    def _results(self) -> tuple[Evaluation, ...]:
        """Write predictions.tsv, save the models with fitted intervals, and return the comparison
        with baselines.
        """
        prepared, study = self.prepared, self.prepared.study
        if not self.held_out or study.metadata is None:
            return ()
        columns, splits = judged_columns(prepared.config), prepared.splits
        tested = all(split.ids("test") for split in splits)
        table = joined(self.held_out).with_columns({"subset": "test" if tested else "validation"})
        # Without a test side early stopping has seen what is held out, which cannot vouch for new
        # samples.
        if tested:
            models = {split: self.models[prepared.folder(self.path, split)] for split in splits}
            table, notes = fit_intervals(table, study, models, columns)
            for folder in self.models if notes else ():
                save_notes(folder / "model", notes)
        elif any(spec.kind == "numeric" for spec in table.specs):
            log.info(
                "no intervals: the samples that were not learned from chose the epoch "
                "(validation); --cv or --test-size hold others out"
            )
        write_predictions(self.path / "predictions.tsv", table)
        in_blend = {name: joined(tables) for name, tables in self.in_blend.items()}
        strong = prepared.strong_baselines
        baselines = baselines_by_target(table, study, splits, columns, strong, in_blend)
        return evaluate(table, study.metadata, columns, baselines)


def learning_curves(
    folds: Folds[FineTuneConfig], targets: Sequence[str]
) -> dict[str, LearningCurve | None]:
    """The learning curve of each target on the splits of a training."""
    study, metadata, columns = folds.study, folds.study.metadata, judged_columns(folds.config)
    if metadata is None or not targets:
        return {}
    ids, classifier = study.table.sample_ids, folds.config.targets.classifier
    names = folds.config.targets.members
    members = tuple(name for name in names if not MEMBERS[name].is_multi_output) or DEFAULT_MEMBERS
    config, curves = TargetConfig(metadata_column=tuple(targets), classifier=classifier), {}
    for spec in fit_targets(metadata, config, ids).specs:
        task = make_task(study, folds.splits, spec, metadata, columns)
        curves[spec.name] = learning_curve(task, study.depth, study.seed, members)
    return curves


def _with_effect(config: FineTuneConfig) -> dict[str, Any]:
    """Return the options that may change the results of a run, whatever the machine: those of the
    network only where one is trained.
    """
    has_epochs = with_property(config.targets.members, "has_epochs")
    unused = {} if has_epochs else OF_NETWORK
    parts: dict[str, Any] = {"seed": config.runtime.seed}
    for part, values in to_dict(config).items():
        kept = {name: value for name, value in values.items() if name not in unused.get(part, ())}
        parts |= {part: kept} if kept and part != "runtime" else {}
    return parts


def judged_columns(config: FineTuneConfig) -> Columns:
    """The columns of the metadata by which predictions are judged."""
    data, covariates = config.data, config.covariates
    return Columns(
        group=data.group_column,
        batch=data.batch_column,
        categorical=covariates.categorical_columns,
        numeric=covariates.numeric_columns,
        study=data.study_column,
        fold=fold_column(data),
    )


def dropped_by_class(
    study: Study, targets: Sequence[Evaluation]
) -> dict[str, dict[str, tuple[int, int]]]:
    """Samples of each class in the metadata, and those that reach the depth, by target."""
    metadata, dropped = study.metadata, dict[str, dict[str, tuple[int, int]]]()
    if metadata is None:
        return dropped
    kept_ids = [name for name in study.table.sample_ids if name in metadata]
    lost_ids = [name for name in study.selection.dropped if name in metadata]
    for result in targets:
        target = result.names.target
        kept = Counter(metadata.values(target, kept_ids))
        lost = Counter(metadata.values(target, lost_ids))
        dropped[target] = {
            label: (kept[label] + lost[label], kept[label]) for label in result.predictions.labels
        }
    return dropped


def _left_out(study: Study, targets: Sequence[Evaluation]) -> list[str]:
    """Say how many samples have too few reads or no metadata, which classes of the predicted
    targets are lost with them, and which columns are read as text.
    """
    selection, texts = study.selection, list[str]()
    every, kept = selection.file_samples, selection.aligned
    every = tuple(name for name in every if name not in set(selection.excluded))
    if dropped := len(study.selection.dropped):
        text = f"{dropped} of {len(kept)} samples have fewer than {study.depth} reads"
        texts.append(f"{text} and are left out.")
    lacking = len(every) - len(kept) - study.selection.without_target
    if study.metadata is not None and lacking:
        text = f"{lacking} of {len(every)} samples of the table lack needed metadata"
        text += " and are left out"
        for result in targets:
            name, labels = result.names.target, result.predictions.labels
            lost = lost_classes(study.metadata, name, every, kept) if labels else ()
            text += f", among them all of {name} {shown(lost)}" if lost else ""
        texts.append(f"{text}.")
    if study.metadata is not None:
        texts += left_out_in_words(study.metadata, study.selection.left_out)
        texts += study.metadata.read_as_text(study.metadata.columns)
    return texts


def _explain_command(config: FineTuneConfig) -> str:
    """Return the command that adds importances to the report, with paths as the run was given
    them.
    """
    files = {"model": config.runtime.output_dir, "table": config.data.table}
    files |= {"sequences": config.data.sequences, "metadata": config.data.metadata}
    options = {f"--{name}": str(path) for name, path in files.items() if path is not None}
    return shlex.join(["aam", "explain", *(word for pair in options.items() for word in pair)])
