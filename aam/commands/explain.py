"""`aam explain`: which ASVs, taxa and clades drive the predictions of a model."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aam.commands.apply import load_table, prepare_models
from aam.config_commands import ExplainConfig
from aam.data.splits import read_split
from aam.data.study import Study
from aam.data.targets import TargetSpec
from aam.engine.run import EXPLANATION, describe
from aam.errors import InputError, Problems, shown
from aam.explain.asvs import Asvs, make_asvs
from aam.explain.effects import TargetEffects, joined_effects
from aam.explain.explain import explain_samples
from aam.explain.figures import write_figures
from aam.explain.files import folder_names, write_explanation
from aam.explain.page import explanation_html, importances_html
from aam.explain.results import HELD_OUT, TRAINING, Explanation, explanation_of
from aam.files.atomic import write_text
from aam.files.output_folder import FIGURES, MEMORY, RUN, OutputFolder
from aam.io.metadata import Metadata, read_metadata
from aam.io.newick import pruned_tree
from aam.io.phylogeny import Ints, Phylogeny
from aam.io.taxonomy import Taxonomy, read_taxonomy
from aam.options import files_read, given, to_dict
from aam.predict.blend import specs_in_order
from aam.predict.saved_model import SavedModel, samples_with_labels
from aam.report.report_html import IMPORTANCES, with_importances

log = logging.getLogger("aam")

# Options that name a file.
FILES = ("table", "sequences", "metadata", "taxonomy", "tree", "split")


@dataclass(frozen=True)
class _Inputs:
    """What beside models and table is read; nothing where it is not given."""

    metadata: Metadata | None
    taxonomy: Taxonomy | None
    test_samples: frozenset[str] | None


def _read_inputs(config: ExplainConfig) -> _Inputs:
    """Return metadata, taxonomy and split; problems of all come in one message."""
    problems = Problems()

    def read(reader: Any, path: Path | None) -> Any:
        try:
            return None if path is None else reader(path)
        except InputError as error:
            problems.extend(error)
            return None

    metadata: Metadata | None = read(partial(read_metadata, decimal=config.decimal), config.metadata)
    if metadata is not None and config.group_column is not None and config.group_column not in metadata.columns:
        problems.add(f"--group-column: {metadata.source}: no column {config.group_column!r}")
    if config.metadata is None and config.group_column is not None:
        problems.add(f"--group-column is {config.group_column}, and --metadata, which holds it, is not given")
    taxonomy, split = read(read_taxonomy, config.taxonomy), read(read_split, config.split)
    problems.raise_if_any()
    return _Inputs(metadata, taxonomy, None if split is None else frozenset(split.ids("test")))


def _report_of_run(models: Sequence[Path]) -> Path:
    """Return the report of the run that is explained; the explanation goes beside it where --output-dir is not given.

    Raises
    ------
    InputError
        Several models, or a folder without a report that has a place for importances.
    """
    report = models[0] / "report.html"
    if len(models) > 1 or not report.is_file() or IMPORTANCES[0] not in report.read_text(encoding="utf-8"):
        raise InputError(
            f"--output-dir: not given, and --model is {shown([str(path) for path in models])}, expected one run of "
            "`aam train`, whose report.html takes the importances; name another folder with --output-dir"
        )
    return report


def _model_folders(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the model folders, those of the folds of a cross-validation that holds no ensemble among them."""
    folders: list[Path] = []
    for path in paths:
        folds = [] if (path / "model").exists() else sorted(path.glob("fold-*/model"))
        folders += folds or [path]
    return tuple(folders)


def _candidates(config: ExplainConfig, study: Study, inputs: _Inputs) -> list[str]:
    """Return the samples that may be explained: of the test subset and with a row of metadata, where those are given.

    Raises
    ------
    InputError
        There is none.
    """
    ids, metadata = study.table.sample_ids, inputs.metadata
    tested = [name for name in ids if inputs.test_samples is None or name in inputs.test_samples]
    if not tested:
        raise InputError(f"--split: {config.split}: none of its test samples is in the table at this depth")
    described = [name for name in tested if metadata is None or name in metadata]
    if metadata is not None and not described:
        raise InputError(f"{metadata.source}: no row for any sample of the table, such as {shown(tested, 3)}")
    if len(described) < len(tested):
        log.warning("%d of %d samples have no metadata and are left out", len(tested) - len(described), len(tested))
    return described


def _samples_of_models(models: Sequence[SavedModel], candidates: Sequence[str]) -> tuple[list[list[str]], str]:
    """Return the samples that each model explains, and what they were to it: those that it has not seen, if any."""
    unseen = [[name for name in candidates if name not in seen] for seen in map(samples_with_labels, models)]
    if any(unseen):
        return unseen, HELD_OUT
    return [list(candidates) for _ in models], TRAINING


def _truth(spec: TargetSpec, metadata: Metadata | None, ids: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return the target of samples in own units or as index of a class, NaN where the metadata do not say."""
    described_ids = [name for name in ids if metadata is not None and name in metadata]
    if metadata is None or spec.name not in metadata.columns:
        return np.full(len(ids), math.nan)
    if spec.kind == "numeric":
        values = dict(zip(described_ids, metadata.numbers(spec.name, described_ids).tolist(), strict=True))
    else:
        index = {label: float(place) for place, label in enumerate(spec.labels)}
        values = {
            name: index.get(value or "", math.nan)
            for name, value in zip(described_ids, metadata.values(spec.name, described_ids), strict=True)
        }
    return np.array([values.get(name, math.nan) for name in ids])


def _groups(
    config: ExplainConfig, models: Sequence[SavedModel], metadata: Metadata | None, ids: Sequence[str]
) -> tuple[npt.NDArray[np.object_] | None, str]:
    """Return the group of each sample (itself where it has none) and the column; none without groups."""
    column = config.group_column or models[0].data.group_column
    if metadata is None or column is None or column not in metadata.columns:
        return None, ""
    group = {name: metadata.values(column, [name])[0] for name in ids if name in metadata}
    return np.array([f"sample {name}" if group.get(name) is None else str(group[name]) for name in ids], object), column


def _all_effects(
    config: ExplainConfig, models: Sequence[SavedModel], study: Study, inputs: _Inputs, samples: Sequence[Sequence[str]]
) -> list[TargetEffects]:
    """Return the effects on each target in all samples, each by the models that explain it."""
    ids = sorted({name for some in samples for name in some}, key=study.table.sample_ids.index)
    parts: list[list[TargetEffects]] = []
    for number, (saved, some) in enumerate(zip(models, samples, strict=True), start=1):
        if not some:
            continue
        specs = specs_in_order(saved.targets)
        truth = [_truth(spec, inputs.metadata, some) for spec in specs]
        effects = explain_samples(saved, study, some, truth, config.runtime, config.prediction_passes)
        parts = parts or [[] for _ in effects]
        for of_target, target_effects in zip(parts, effects, strict=True):
            of_target += target_effects
        log.info("model %d of %d: %d samples explained", number, len(models), len(some))
    return [joined_effects(part, ids, _truth(part[0].spec, inputs.metadata, ids)) for part in parts]


def _tree(config: ExplainConfig, study: Study) -> tuple[Phylogeny, Ints] | None:
    if config.tree is None:
        return None
    sequences = () if config.sequences is None else study.table.sequences
    return pruned_tree(config.tree, study.table.feature_ids, "drop", False, sequences)


def _notes(
    models: Sequence[SavedModel], candidates: Sequence[str], explained: int, subset: str, inputs: _Inputs
) -> list[str]:
    """Return what a reader must know of the samples."""
    seen_unlabelled = {name for saved in models for name in saved.notes["seen_samples"]} - {
        name for saved in models for name in samples_with_labels(saved)
    }
    notes = []
    if subset == TRAINING:
        notes.append(
            "The models have learned from all of these samples: this is what they use, and not what predicts samples "
            "that they have not seen. Train with --cv or --test-size to explain held-out samples."
        )
    elif len(candidates) > explained:
        notes.append(
            f"{len(candidates) - explained} samples are left out, because every model has learned from them; the run "
            "of a cross-validation (--cv) explains all."
        )
    if seen_unlabelled & set(candidates):
        notes.append("Pretraining saw some of these samples, though not their labels.")
    if inputs.metadata is None:
        notes.append("Without --metadata nothing is known of the truth: effects are given, and no importance.")
    return notes


@dataclass(frozen=True)
class Explained:
    """The explanation of each target, the options, and what a reader must know of the samples."""

    explanations: tuple[Explanation, ...]
    config: ExplainConfig
    notes: tuple[str, ...]


def explain_model(config: ExplainConfig) -> None:
    """Explain the predictions of models and write tables, an artifact, figures and a page for each target.

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
        write_text(report, with_importances(report.read_text(encoding="utf-8"), importances))
        log.info("%s shows the importances now", report)


def explained(config: ExplainConfig, models: Sequence[SavedModel] = ()) -> Explained:
    """Return what drives the predictions of models, which are loaded unless they are given.

    Raises
    ------
    InputError
        Bad inputs, or models that predict nothing.
    """
    inputs = _read_inputs(config)
    models = models or prepare_models(config.model, config.runtime)
    if not models[0].targets.specs:
        raise InputError("--model: a pretrained encoder predicts nothing to explain; fine-tune it with `aam train`")
    study, warnings = load_table(models, config)
    study = replace(study, metadata=inputs.metadata)
    asvs = _named_asvs(study, inputs.taxonomy)
    tree = _tree(config, study)
    candidates = _candidates(config, study, inputs)
    samples, subset = _samples_of_models(models, candidates)
    effects = _all_effects(config, models, study, inputs, samples)
    ids = effects[0].sample_ids
    groups, column = _groups(config, models, inputs.metadata, ids)
    notes = [*warnings, *_notes(models, candidates, len(ids), subset, inputs)]
    for note in notes:
        log.warning("note: %s", note)
    seed = config.runtime.seed
    of_targets = [explanation_of(of_target, asvs, tree, groups, column, subset, seed) for of_target in effects]
    return Explained(tuple(of_targets), config, tuple(notes))


def explanation_folder(folder: Path, config: ExplainConfig) -> OutputFolder:
    """Return the folder that an explanation is to be written to, whose targets are not known yet."""
    return OutputFolder(folder, "explain", _outputs(["*"]), [*files_read(config).values()], config.runtime.overwrite)


def _outputs(folders: Sequence[str]) -> list[str]:
    """Return the names of what an explanation writes, with a folder for each target."""
    tables = [f"{name}.tsv" for name in ("features", "taxa", "clades", "samples", "effects")]
    names = (*tables, "importance.qza", *FIGURES)
    return [RUN, "explain.html", *MEMORY, *(f"{folder}/{name}" for folder in folders for name in names)]


def write_explained(output: OutputFolder, result: Explained) -> None:
    """Write tables, an artifact, figures and a page of each target to a new folder."""
    config, explanations, notes = result.config, result.explanations, list(result.notes)
    ids = explanations[0].effects.sample_ids
    files = {name: path for name in FILES if isinstance(path := getattr(config, name), Path)}
    models_by_name = {f"model {number}": path for number, path in enumerate(config.model, start=1)}
    about = describe("explain", to_dict(config), {**files, **models_by_name}, {"samples": len(ids), "notes": notes})
    names = folder_names([one.effects.spec.name for one in explanations])
    with replace(output, outputs=_outputs(names)).replaced(about) as new:
        for name, explanation in zip(names, explanations, strict=True):
            write_explanation(new / name, explanation)
            write_figures(new / name / "figures", explanation, config.top)
            for line in _summary(explanation):
                log.info("%s", line)
        write_text(new / "explain.html", explanation_html(explanations, notes, config.top))
    log.info("%s: %d samples explained", output.folder, len(ids))


def _named_asvs(study: Study, taxonomy: Taxonomy | None) -> Asvs:
    """Return the names of the ASVs of a table, with their lineages where a taxonomy is given."""
    table = study.table
    lineages = None if taxonomy is None else taxonomy.of(table.feature_ids, table.sequences)
    if lineages is not None and not all(lineages):
        log.warning("%d of %d ASVs have no taxon", sum(not lineage for lineage in lineages), len(lineages))
    return make_asvs(table.feature_ids, table.sequences, lineages)


def _summary(explanation: Explanation) -> list[str]:
    """Return the most important ASVs of a target for a terminal."""
    effects, importance, asvs = explanation.effects, explanation.importance, explanation.asvs
    lines = [
        f"{effects.spec.name}: {explanation.verdict()}",
        "  the first ASVs: importance (95 % interval), and what each raises",
    ]
    for column in importance.order()[:10].tolist():
        value = importance.importance[column]
        limits = "" if math.isnan(value.low) else f" ({value.low:.3g} to {value.high:.3g})"
        lines.append(
            f"  {asvs.label(column)}: {value.value:.3g}{limits}, raises {explanation.raised(column) or 'nothing'}"
        )
    return lines
