"""Which ASVs and taxa drive the predictions of models, computed and written."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aam.api.apply import load_table, prepare_models
from aam.config import ExplainConfig
from aam.data.splits import Split, read_split
from aam.data.study import Inputs
from aam.data.targets import TargetSpec
from aam.engine.run import EXPLANATION, describe
from aam.errors import InputError, Problems, shown
from aam.evaluate.intervals import number, with_limits
from aam.evaluate.target_predictions import truth_of
from aam.explain.effects import Floats, explain_samples
from aam.explain.page import (
    direction,
    explanation_html,
    features_html,
    importances_html,
    interval_in,
    write_figures,
)
from aam.explain.results import (
    HELD_OUT,
    TRAINING,
    Asvs,
    Explanation,
    explanation_of,
    folder_names,
    write_explanation,
)
from aam.files.atomic import write_text
from aam.files.output_folder import MEMORY, RUN, OutputFolder
from aam.io.metadata import Metadata, read_metadata
from aam.io.tables import AmpliconTable
from aam.io.taxonomy import Taxonomy, read_taxonomy
from aam.options import files_read, given, to_dict
from aam.predict.blend import specs_in_order
from aam.predict.saved_model import SavedModel, samples_with_labels
from aam.report.report_html import IMPORTANCES, with_importances

log = logging.getLogger("aam")


def _read_inputs(
    config: ExplainConfig, inputs: Inputs | None
) -> tuple[Metadata | None, Taxonomy | None, Split | None]:
    """Read metadata, taxonomy and split where they are given; problems of all in one message.

    Metadata are those of `inputs` if there are some.
    """
    problems, taxonomy, split = Problems(), None, None
    metadata = None if inputs is None else inputs.metadata
    with problems.collected():
        if inputs is None and config.metadata is not None:
            metadata = read_metadata(config.metadata, config.decimal, config.missing_values)
    with problems.collected():
        taxonomy = None if config.taxonomy is None else read_taxonomy(config.taxonomy)
    with problems.collected():
        split = None if config.split is None else read_split(config.split)
    column = config.group_column
    if metadata is not None and column is not None and column not in metadata.columns:
        problems.add(f"--group-column: {metadata.source}: no column {column!r}")
    if config.metadata is None and column is not None:
        problems.add(f"--group-column is {column}, and --metadata, which holds it, is not given")
    problems.raise_if_any()
    return metadata, taxonomy, split


def _candidates(ids: Sequence[str], metadata: Metadata | None, split: Split | None) -> list[str]:
    """Return the samples that may be explained: of the test subset and with a row of metadata,
    where those are known.

    Raises
    ------
    InputError
        There is none.
    """
    tested = list(ids) if split is None else [name for name in ids if name in split.ids("test")]
    if not tested:
        raise InputError("--split: none of its test samples is in the table at this depth")
    if metadata is None:
        return tested
    described = [name for name in tested if name in metadata]
    if not described:
        raise InputError(
            f"{metadata.source}: no row for any sample of the table, such as {shown(tested, 3)}"
        )
    if len(described) < len(tested):
        log.warning(
            "%d of %d samples have no metadata and are left out",
            len(tested) - len(described),
            len(tested),
        )
    return described


def _samples_of_models(
    models: Sequence[SavedModel], candidates: Sequence[str]
) -> tuple[list[list[str]], str]:
    """Return the samples that each model explains, and what they were to it: those that it has not
    seen, if any.
    """
    unseen = [
        [name for name in candidates if name not in seen]
        for seen in map(samples_with_labels, models)
    ]
    if any(unseen):
        return unseen, HELD_OUT
    return [list(candidates) for _ in models], TRAINING


def _truth(spec: TargetSpec, metadata: Metadata | None, ids: Sequence[str]) -> Floats:
    """Return the target of samples in own units or as index of a class, NaN where the metadata do
    not say.
    """
    if metadata is None or spec.name not in metadata.columns:
        return np.full(len(ids), math.nan)
    truth = truth_of(metadata, spec, ids)
    if (
        unknown := {*metadata.values(spec.name, ids)} - {None, *spec.labels}
        if spec.kind == "class"
        else ()
    ):
        log.warning(
            "warning: %s: %r holds %s, no classes of the model (%s); without a truth for these "
            "samples",
            metadata.source,
            spec.name,
            shown(sorted(map(str, unknown))),
            shown(spec.labels),
        )
    return truth if spec.kind == "numeric" else np.where(truth < 0, math.nan, truth)


def _groups(
    column: str | None, metadata: Metadata | None, ids: Sequence[str]
) -> npt.NDArray[np.object_] | None:
    """Return the group of each sample; nothing without groups."""
    if metadata is None or column is None or column not in metadata.columns:
        return None
    return np.array(metadata.groups(column, ids), object)


def _notes(
    models: Sequence[SavedModel],
    candidates: Sequence[str],
    explained: int,
    subset: str,
    metadata: Metadata | None,
) -> list[str]:
    """Notes about the samples."""
    notes = []
    if subset == TRAINING:
        notes.append(
            "The models have learned from all of these samples: this is what they use, and not "
            "what predicts samples "
            "that they have not seen. Train with --cv or --test-size to explain held-out samples."
        )
    elif len(candidates) > explained:
        notes.append(
            f"{len(candidates) - explained} samples are left out, because every model has "
            "learned from them; the run "
            "of a cross-validation (--cv) explains all."
        )
    labelled = set().union(*map(samples_with_labels, models))
    if (
        set(candidates)
        & {name for saved in models for name in saved.notes["seen_samples"]} - labelled
    ):
        notes.append("Pretraining saw some of these samples, though not their labels.")
    if metadata is None:
        notes.append(
            "Without --metadata nothing is known of the truth: effects are given, and no "
            "importance."
        )
    elif absent := [
        spec.name for spec in models[0].targets.specs if spec.name not in metadata.columns
    ]:
        lacks = f"no column {shown(absent)}, which the model predicts: no importance without it"
        notes.append(f"{metadata.source}: {lacks}")
    return notes


@dataclass(frozen=True)
class Explained:
    """The explanation of each target, the options, what a reader must know of the samples,
    checksums of inputs.
    """

    explanations: tuple[Explanation, ...]
    config: ExplainConfig
    notes: tuple[str, ...]
    in_memory: dict[str, str]


def explained(
    config: ExplainConfig, models: Sequence[SavedModel] = (), inputs: Inputs | None = None
) -> Explained:
    """Return what drives the predictions of models; these, and the inputs, are read unless they are
    passed.

    Raises
    ------
    InputError
        Bad inputs, or models that predict nothing.
    """
    metadata, taxonomy, split = _read_inputs(config, inputs)
    models = models or prepare_models(config.model, config.runtime)
    if not models[0].targets.specs:
        raise InputError(
            "--model: a pretrained encoder predicts nothing to explain; fine-tune it with `aam "
            "train`"
        )
    study, warnings = load_table(models, config, inputs)
    table, study = study.table, replace(study, metadata=metadata)
    asvs = _named_asvs(table, taxonomy)
    candidates = _candidates(table.sample_ids, metadata, split)
    samples, subset = _samples_of_models(models, candidates)
    asked = {name for some in samples for name in some}
    ids = [name for name in table.sample_ids if name in asked]
    notes = [*warnings, *_notes(models, candidates, len(ids), subset, metadata)]
    for note in notes:
        log.warning("note: %s", note)
    truth = [_truth(spec, metadata, ids) for spec in specs_in_order(models[0].targets)]
    effects = explain_samples(
        models, study, samples, ids, truth, config.runtime, config.prediction_passes
    )
    column = config.group_column or models[0].data.group_column
    groups = _groups(column, metadata, ids)
    of_groups = (groups, "" if column is None or groups is None else column)
    of_targets = [
        explanation_of(one, asvs, *of_groups, subset, config.runtime.seed) for one in effects
    ]
    return Explained(
        tuple(of_targets), config, tuple(notes), {} if inputs is None else inputs.checksums(config)
    )


def explanation_folder(folder: Path, config: ExplainConfig) -> OutputFolder:
    """Return the folder that an explanation is to be written to, whose targets are not known
    yet.
    """
    return OutputFolder(
        folder, "explain", _outputs(["*"]), [*files_read(config).values()], config.runtime.overwrite
    )


def _outputs(folders: Sequence[str]) -> list[str]:
    """Return the names of what an explanation writes, with a folder for each target."""
    tables = [f"{name}.tsv" for name in ("features", "taxa", "samples", "effects")]
    names = (*tables, "figures/*.svg", "figures/*.png")
    return [
        RUN,
        "explain.html",
        *MEMORY,
        *(f"{folder}/{name}" for folder in folders for name in names),
    ]


def write_explained(output: OutputFolder, result: Explained) -> None:
    """Write tables, figures and a page of each target to a new folder."""
    config, explanations, notes = result.config, result.explanations, list(result.notes)
    samples = len(explanations[0].effects.sample_ids)
    facts = {"samples": samples, "notes": notes}
    about = describe("explain", to_dict(config), files_read(config), facts, result.in_memory)
    names = folder_names([one.effects.spec.name for one in explanations])
    with replace(output, outputs=_outputs(names)).replaced(about) as new:
        for name, explanation in zip(names, explanations, strict=True):
            write_explanation(new / name, explanation)
            write_figures(new / name / "figures", explanation, config.top)
            for line in _summary(explanation):
                log.info("%s", line)
        write_text(new / "explain.html", explanation_html(explanations, notes, config.top))
    log.info("%s: %d samples explained", output.folder, samples)


def _named_asvs(table: AmpliconTable, taxonomy: Taxonomy | None) -> Asvs:
    """Return the names of the ASVs of a table, with their lineages where there is a taxonomy."""
    lineages = None if taxonomy is None else taxonomy.of(table.feature_ids, table.sequences)
    if lineages is not None and not all(lineages):
        without = np.array([not lineage for lineage in lineages])
        reads = (
            f"{100 * (table.counts.sum(axis=0) @ without) / table.depths.sum():.1f} % of the reads"
        )
        which = f"{without.sum()} of {len(without)} ASVs ({reads})"
        log.warning("--taxonomy names no taxon of %s; these go by a short id", which)
    return Asvs(tuple(table.feature_ids), tuple(table.sequences), lineages or ())


def _summary(explanation: Explanation) -> list[str]:
    """Return the most important ASVs of a target for a terminal."""
    features = explanation.features.head(10)
    what = "" if explanation.effects.spec.labels else f" {explanation.effects.spec.name}"
    return [
        f"{explanation.effects.spec.name}: {explanation.verdict()}",
        *([f"  {of_taxa}"] if (of_taxa := explanation.taxa_verdict()) else []),
        "  the first ASVs: importance (95 % interval), q, direction",
        *(
            f"  {explanation.asvs.label(column)}: "
            f"{with_limits(interval_in(features, column, 'importance'))}, q "
            f"{number(features.loc[column, 'q'])}, {direction(features, column, what)}"
            f"{'; stands out' if explanation.stands_out[column] else ''}"
            for column in features.index
        ),
        *([f"  {unnamed}"] if (unnamed := explanation.asvs.unnamed) else []),
    ]


def _report_of_run(models: Sequence[Path]) -> Path:
    """Return the report of the run that is explained; the explanation goes beside it where
    --output-dir is not given.

    Raises
    ------
    InputError
        Several models, or a folder without a report that has a place for importances.
    """
    report = models[0] / "report.html"
    if (
        len(models) > 1
        or not report.is_file()
        or IMPORTANCES[0] not in report.read_text(encoding="utf-8")
    ):
        raise InputError(
            f"--output-dir: not given, and --model is {shown([str(path) for path in models])}, "
            "expected one run of "
            "`aam train`, whose report.html takes the importances; name another folder with "
            "--output-dir"
        )
    return report


def _model_folders(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the model folders; of a cross-validation those of its folds, each of which has not
    seen some samples.
    """
    return tuple(folder for path in paths for folder in sorted(path.glob("fold-*/model")) or [path])


def explain_model(config: ExplainConfig) -> None:
    """Explain the predictions of models and write tables, figures and a page for each
    target.

    Raises
    ------
    InputError
        Bad options or inputs, or models that predict nothing.
    """
    report = _report_of_run(config.model) if config.runtime.output_dir is None else None
    folder = given(config.runtime.output_dir) if report is None else report.with_name(EXPLANATION)
    output = explanation_folder(folder, config)
    output.check()
    config = replace(config, model=_model_folders(config.model))
    result = explained(config)
    write_explained(output, result)
    if report is not None:
        importances = importances_html(result.explanations, result.notes, config.top)
        features = {
            one.effects.spec.name: features_html(one, config.top) for one in result.explanations
        }
        write_text(
            report, with_importances(report.read_text(encoding="utf-8"), importances, features)
        )
        log.info("%s shows the importances now", report)
