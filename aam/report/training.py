"""The report of `aam train`: held-out predictions of all splits, compared with baselines."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aam.config import OF_NETWORK, PREDICTION_PASSES, FineTuneConfig, TargetConfig
from aam.data.splits import Split, fold_column
from aam.data.study import Study, lost_classes
from aam.data.targets import fit_targets
from aam.engine.options import RunConfig
from aam.errors import shown
from aam.evaluate.evaluation import Evaluation, evaluate
from aam.evaluate.predictions import Columns, PredictionTable, Subset, joined, write_predictions
from aam.files.atomic import seen_from_here
from aam.options import IN_MEMORY, names, to_dict
from aam.predict.baselines import IN_BLEND, baselines_by_target, make_task
from aam.predict.blend import NETWORK, in_words
from aam.predict.folds import Folds
from aam.predict.learning_curve import LearningCurve, learning_curve
from aam.predict.prediction import fit_intervals, predict_rows
from aam.predict.saved_model import SavedModel, save_model
from aam.report.audit import Audit, make_audit
from aam.report.report import ReportData
from aam.report.results import write_results
from aam.report.samples import surroundings
from aam.report.training_figures import loss_figures, loss_names, read_epochs
from aam.training.inference import AsvVectors

log = logging.getLogger("aam")

TRANSDUCTIVE = ("Pretraining saw the held-out samples, though not their labels.",)


@dataclass
class TrainingReport:
    """Report of a run: call `add` after each split is trained, and `write` at the end.

    Attributes
    ----------
    prepared : Folds
    command : str
        ``pretrain`` or ``train``.
    path : Path
        The run directory.
    warnings : list of str
        What readers must know of the data.
    """

    prepared: Folds[FineTuneConfig]
    command: str
    path: Path
    warnings: list[str]
    models: dict[Path, SavedModel] = field(default_factory=dict)
    held_out: list[PredictionTable] = field(default_factory=list)
    in_blend: dict[str, list[PredictionTable]] = field(default_factory=dict)
    transductive: bool = False

    def add(self, split: Split, saved: SavedModel) -> None:
        """Predict the held-out samples of a split by its model."""
        folder = self.prepared.folder(self.path, split)
        self.models[folder] = saved
        self.transductive |= bool(set(split.ids("test")) & set(saved.notes["seen_samples"]))
        if not split.held_out:
            return
        self.held_out.append(self._predictions(saved, split))

    def _predictions(self, saved: SavedModel, split: Split) -> PredictionTable:
        """Return predictions of the reported samples, by a model that has not learned from them."""
        prepared = self.prepared
        config, study = prepared.config, prepared.study
        studies = study.column(config.data.study_column, split.held_out)

        def predict(model: SavedModel, asvs: AsvVectors | None = None) -> PredictionTable:
            return predict_rows(
                model,
                study,
                split.held_out,
                config.runtime,
                PREDICTION_PASSES,
                split.test_fold,
                asvs,
                studies,
            )

        for baseline, learner in IN_BLEND.items() if prepared.strong_baselines else ():
            if learner in saved.members:
                self.in_blend.setdefault(baseline, []).append(predict(saved.only(learner)))
        asvs = None
        if saved.network is not None and config.targets.freeze_base:
            # Computed once for all folds that share the encoder.
            asvs = prepared.encoded.encode(saved.network, study, prepared.device, config.runtime)
        return predict(saved, asvs)

    def write(self) -> None:
        """Write predictions.tsv, report.html, figures/ and metrics.json."""
        write_results(self.path, self._report_data(self._results()))
        log.info("report: %s", seen_from_here(self.path / "report.html"))

    def _report_data(self, targets: tuple[Evaluation, ...]) -> ReportData:
        """Contents of the report of the run and its targets."""
        config, study = self.prepared.config, self.prepared.study
        specs = [spec for table in self.held_out[:1] for spec in table.specs]
        names = loss_names(
            *([spec.name for spec in specs if spec.kind == kind] for kind in ("numeric", "class"))
        )
        folders = self.prepared.folders(self.path)
        epochs = {name: read_epochs(folder) for name, folder in folders.items()}
        return ReportData(
            title=f"aam {self.command}",
            task={
                "command": self.command,
                "targets": ", ".join(config.targets.metadata_column) or "none",
                **(
                    {"models that predict together": in_words(config.targets.members)}
                    if targets
                    else {}
                ),
            },
            data=self.prepared.inputs_by_name,
            split=self.prepared.sizes_by_name,
            targets=targets,
            curves=tuple(loss_figures(epochs, names)),
            around=surroundings(study.table, [result.predictions for result in targets]),
            audits=self._audits(targets),
            learning_curves=self._learning_curves(targets),
            warnings=(
                *(TRANSDUCTIVE if self.transductive else ()),
                *self.warnings,
                *_below_depth(study),
                *_left_out(study, [spec.name for spec in specs if spec.kind == "class"]),
            ),
            explain_command=_explain_command(config) if targets else "",
            configuration=_with_effect(config),
        )

    def _audits(self, targets: Sequence[Evaluation]) -> dict[str, Audit]:
        """The audit of each target."""
        data, classifier = self.prepared.config.data, self.prepared.config.targets.classifier
        names = [result.names.target for result in targets]
        study, whole = self.prepared.study, fold_column(data) if data.cv else None
        return {
            name: make_audit(study, name, classifier, data.group_column, whole) for name in names
        }

    def _learning_curves(self, targets: Sequence[Evaluation]) -> dict[str, LearningCurve]:
        """The learning curves of the targets, if they are asked for."""
        config, result = self.prepared.config, dict[str, LearningCurve]()
        names = [target.names.target for target in targets if config.targets.learning_curve]
        for name, curve in learning_curves(self.prepared, names).items():
            if curve is None:
                log.warning("warning: --learning-curve: %s: too few groups to draw shares", name)
                continue
            for sentence in curve.sentences(config.data.group_column or "sample"):
                log.info("%s: %s", name, sentence)
            result[name] = curve
        return result

    def _results(self) -> tuple[Evaluation, ...]:
        """Write predictions.tsv, save the models with fitted intervals, and return the comparison
        with baselines.
        """
        config, study = self.prepared.config, self.prepared.study
        if not self.held_out or study.metadata is None:
            return ()
        columns = judged_columns(config)
        table = joined(self.held_out)
        tested = all(split.ids("test") for split in self.prepared.splits)
        table = table.with_columns({"subset": "test" if tested else "validation"})
        # Without a test side early stopping has seen what is held out, which cannot vouch for new
        # samples.
        if tested:
            models = {
                split: self.models[self.prepared.folder(self.path, split)]
                for split in self.prepared.splits
            }
            table, notes = fit_intervals(table, study, models, columns)
            for folder, saved in self.models.items() if notes else ():
                noted = dataclasses.replace(saved, notes={**saved.notes, **notes})
                save_model(folder / "model", noted)
        elif any(spec.kind == "numeric" for spec in table.specs):
            log.info(
                "no intervals: early stopping used the held-out samples; --cv or --test-size hold "
                "out others"
            )
        write_predictions(self.path / "predictions.tsv", table)
        subset: Subset = "held-out" if tested else "validation"
        baselines = baselines_by_target(
            table,
            study,
            self.prepared.splits,
            columns,
            self.prepared.strong_baselines,
            {name: joined(tables) for name, tables in self.in_blend.items()},
        )
        dropped = dropped_by_class(table, study)
        return evaluate(table, study.metadata, columns, baselines, subset=subset, dropped=dropped)


def learning_curves(
    folds: Folds[FineTuneConfig], targets: Sequence[str]
) -> dict[str, LearningCurve | None]:
    """The learning curve of each target on the splits of a training."""
    study, metadata, columns = folds.study, folds.study.metadata, judged_columns(folds.config)
    if metadata is None or not targets:
        return {}
    ids, classifier = study.table.sample_ids, folds.config.targets.classifier
    config = TargetConfig(metadata_column=tuple(targets), classifier=classifier)
    specs = fit_targets(metadata, config, ids).specs
    return {
        spec.name: learning_curve(
            make_task(study, folds.splits, spec, metadata, columns), study.depth, study.seed
        )
        for spec in specs
    }


def _with_effect(config: FineTuneConfig) -> dict[str, Any]:
    """Return the options of a run that may change its results: those of the network only where one
    is trained.
    """
    of_network = OF_NETWORK
    of_machine: tuple[str, ...] = ("seed",)
    if NETWORK in config.targets.members:
        of_network, of_machine = {}, names(RunConfig, changes="results")
    parts = {
        part: {
            name: value
            for name, value in values.items()
            if name not in of_network.get(part, ()) and (part != "runtime" or name in of_machine)
        }
        for part, values in to_dict(config).items()
    }
    return {part: values for part, values in parts.items() if values}


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


def _below_depth(study: Study) -> list[str]:
    """Say how many samples have fewer reads than the depth."""
    dropped = len(study.selection.dropped)
    if not dropped:
        return []
    return [
        f"{dropped} of {len(study.selection.aligned)} samples have fewer than {study.depth} reads "
        "and are left out."
    ]


def dropped_by_class(table: PredictionTable, study: Study) -> dict[str, dict[str, tuple[int, int]]]:
    """Samples of each class in the metadata, and those that reach the depth, by target."""
    metadata = study.metadata
    if metadata is None:
        return {}
    result = {}
    for spec in table.specs:
        kept, dropped = (
            Counter(metadata.values(spec.name, [name for name in names if name in metadata]))
            for names in (study.table.sample_ids, study.selection.dropped)
        )
        counts = {label: (kept[label] + dropped[label], kept[label]) for label in spec.labels}
        result[spec.name] = counts
    return result


def _left_out(study: Study, classes: Sequence[str]) -> list[str]:
    """Warn of samples without metadata, and of `classes`, columns of targets, that lose a class
    with them.
    """
    every, kept, metadata = study.selection.of_file, study.selection.aligned, study.metadata
    if metadata is None or len(kept) == len(every):
        return []
    text = (
        f"{len(every) - len(kept)} of {len(every)} samples of the table lack needed metadata "
        "and are left out"
    )
    for name in classes:
        if lost := lost_classes(metadata, name, every, kept):
            text += f", among them all of {name} {shown(lost)}"
    return [text]


def _explain_command(config: FineTuneConfig) -> str:
    """Return the command that adds importances to the report, with paths as the run was given them.

    For what is in memory stands what is to be named there, such as TABLE.
    """
    files = {"model": config.runtime.output_dir, "table": config.data.table}
    files |= {"sequences": config.data.sequences, "metadata": config.data.metadata}
    named = {
        name: name.upper() if path == IN_MEMORY else str(path)
        for name, path in files.items()
        if path is not None
    }
    words = [word for name, path in named.items() for word in (f"--{name}", path)]
    return shlex.join(["aam", "explain", *words])
