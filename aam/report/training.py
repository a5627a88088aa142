"""What the report of `aam train` shows next to the judged predictions of all splits."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from aam.config import FineTuneConfig
from aam.data.splits import fold_column
from aam.data.study import Study
from aam.data.targets import left_out_in_words
from aam.engine.run import MODEL
from aam.evaluate.evaluation import Evaluation
from aam.files.atomic import relative_to_cwd
from aam.options import command_line, not_none
from aam.predict.audit import Audit, make_audit
from aam.predict.blend import in_words
from aam.predict.folds import Folds
from aam.predict.held_out import HeldOut, learning_curves
from aam.predict.learning_curve import LearningCurve
from aam.report.figures import loss_figures, read_epochs
from aam.report.files import write_results
from aam.report.page import ReportData

log = logging.getLogger("aam")

TRANSDUCTIVE = ("Pretraining saw the held-out samples, though not their labels.",)


def write_report(held_out: HeldOut, warnings: Sequence[str], unjudged: str = "") -> None:
    """Write predictions.tsv, report.html, figures/ and metrics.json; `warnings` are
    what readers must know of the data; `unjudged` says why no sample is held out.
    """
    path = held_out.path
    write_results(path, _report_data(held_out, warnings, unjudged))
    log.info("report: %s", relative_to_cwd(path / "report.html"))
    log.info("next: %s", _predict_command(held_out))
    if unjudged:
        log.warning("%s", unjudged)


def _predict_command(held_out: HeldOut) -> str:
    """Return the command that predicts new samples, with names for what only the user has."""
    folds, path = held_out.folds, held_out.path
    # Where each fold has an encoder of its own, the models of the folds predict together.
    has_model = (path / MODEL).is_dir()
    models = [path] if has_model else folds.folders(path).values()
    return command_line(
        "predict",
        model=tuple(map(relative_to_cwd, models)),
        table="TABLE",
        sequences=None if folds.config.data.sequences is None else "SEQUENCES",
        metadata="METADATA" if folds.config.covariates.columns else None,
        output="predictions.tsv",
    )


def _report_data(held_out: HeldOut, warnings: Sequence[str], unjudged: str) -> ReportData:
    """Contents of the report of the run and its targets."""
    folds, targets = held_out.folds, held_out.judge()
    config, study = folds.config, folds.study
    names = [result.names.target for result in targets]
    folders = folds.folders(held_out.path).items()
    task = {"command": "train"}
    task["targets"] = ", ".join(config.targets.metadata_column) or "none"
    if targets:
        task["models that predict together"] = in_words(held_out.members)
    if epochs := held_out.best_epochs:
        task["chosen epochs of the network"] = ", ".join(map(str, epochs))
    if sentences := held_out.networks:
        task["network"] = "; ".join(sentences)
    return ReportData(
        title="aam train",
        task=task,
        data=folds.inputs_by_name,
        split=folds.sizes_by_name,
        targets=targets,
        curves=tuple(loss_figures({name: read_epochs(folder) for name, folder in folders})),
        audits=_audits(folds, names),
        learning_curves=_learning_curves(folds, names if config.targets.learning_curve else []),
        dropped=dropped_by_class(study, targets),
        warnings=(
            *(TRANSDUCTIVE if held_out.is_transductive else ()),
            *warnings,
            *_left_out(study),
        ),
        explain_command=_explain_command(config) if targets else "",
        unjudged=unjudged,
    )


def _audits(folds: Folds[FineTuneConfig], targets: Sequence[str]) -> dict[str, Audit]:
    """The audit of each target."""
    data, classifier, study = folds.config.data, folds.config.targets.classifier, folds.study
    column = fold_column(data) if data.cv else None
    audits = dict[str, Audit]()
    for name in targets:
        ids, class_of = study.table.sample_ids, study.classes.get(name)
        if class_of is not None:
            ids = tuple(x for x in ids if class_of[x] is not None)
        audits[name] = make_audit(study.at(ids), name, classifier, data.group_column, column)
    return audits


def _learning_curves(
    folds: Folds[FineTuneConfig], targets: Sequence[str]
) -> dict[str, LearningCurve]:
    """The learning curves of the targets, if they are asked for."""
    result = dict[str, LearningCurve]()
    group = folds.config.data.group_column or "sample"
    for name, curve in learning_curves(folds, targets).items():
        if curve is None:
            log.warning("warning: --learning-curve: %s: too few groups to draw shares", name)
            continue
        result[name] = curve
        for sentence in curve.sentences(group):
            log.info("%s: %s", name, sentence)
    return result


def dropped_by_class(
    study: Study, targets: Sequence[Evaluation]
) -> dict[str, dict[str, tuple[int, int]]]:
    """Samples of each class in the metadata, and those that are kept, by target."""
    metadata, states = not_none(study.metadata), study.samples["state"]
    every = [name for name in states.index[states != "excluded"] if name in metadata]
    kept = [name for name in every if states[name] == "kept"]
    dropped = dict[str, dict[str, tuple[int, int]]]()
    for result in targets:
        name = result.names.target
        counts, left = (Counter(metadata.values(name, ids)) for ids in (every, kept))
        labels = sorted(filter(None, counts)) if result.predictions.labels else ()
        dropped[name] = {label: (counts[label], left[label]) for label in labels}
    return dropped


def _left_out(study: Study) -> list[str]:
    """Say how many samples have too few reads or no metadata, which classes are left out, and which
    columns are read as text.
    """
    metadata, texts = not_none(study.metadata), list[str]()
    if dropped := len(study.dropped):
        text = f"{dropped} of {len(study.aligned)} samples have fewer than {study.depth} reads"
        texts.append(f"{text} and are left out.")
    if lacking := len(study.in_state("no metadata")):
        every = len(study.samples) - len(study.in_state("excluded"))
        text = f"{lacking} of {every} samples of the table lack needed metadata"
        texts.append(f"{text} and are left out.")
    texts += left_out_in_words(metadata, study.left_out)
    return texts + metadata.read_as_text(metadata.columns)


def _explain_command(config: FineTuneConfig) -> str:
    """Return the command that adds importances to the report, with paths as the run was given
    them.
    """
    data = config.data
    files = {"table": data.table, "sequences": data.sequences, "metadata": data.metadata}
    return command_line("explain", model=config.runtime.output_dir, **files)
