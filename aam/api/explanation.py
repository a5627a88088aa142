"""`aam explain`: the ASVs and taxa that drive the predictions of models."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aam.api.apply import load_table, output_of, prepare_models, saw_unlabelled, written
from aam.config import ExplainConfig
from aam.data.inputs import Inputs, read_inputs
from aam.data.splits import Split, read_split
from aam.data.targets import TargetSpec
from aam.errors import InputError, Problems, shown
from aam.explain import results
from aam.explain.effects import explain_samples
from aam.explain.results import HELD_OUT, TRAINING, Asvs, Explanation
from aam.files.atomic import write_text
from aam.files.output_folder import EXPLANATION, PAGE
from aam.io.metadata import Metadata
from aam.io.tables import AmpliconTable
from aam.io.taxonomy import Taxonomy, read_taxonomy
from aam.predict.blend import specs_in_order
from aam.predict.prediction import unseen_reads, warn_of_unseen
from aam.predict.saved_model import SavedModel
from aam.report.page import page_html, read_page
from aam.typing import Floats

log = logging.getLogger("aam")


def explained(
    config: ExplainConfig, table: Any, metadata: Any, models: Sequence[SavedModel] = ()
) -> tuple[list[Explanation], list[str]]:
    """Explain the predictions of models, read unless they are passed, for a table and metadata.

    Returns the explanation of each target, and what a reader must know of the samples. Tables,
    figures and a page of each target are written where the options name a folder.

    Raises
    ------
    InputError
        Bad inputs, models that predict nothing, or a folder that holds other files.
    """
    if config.runtime.output_dir is not None:
        # Before any long work.
        output_of("explain", config, _outputs(["*"]))
    inputs, taxonomy, split = _read_inputs(config, table, metadata)
    metadata, in_memory = inputs.metadata, inputs.checksums(config)
    models = models or prepare_models(config.model, config.runtime)
    if not models[0].targets.specs:
        what = "a pretrained encoder predicts nothing to explain"
        raise InputError(f"--model: {what}; fine-tune it with `aam train`")
    study, notes = load_table(models, config, inputs)
    del inputs  # The whole table is not kept.
    study, asvs = replace(study, metadata=metadata), _named_asvs(study.table, taxonomy)
    candidates = _candidates(study.table.sample_ids, metadata, split)
    seen = [set(saved.notes.labelled_samples) for saved in models]
    samples = [[name for name in candidates if name not in of_model] for of_model in seen]
    subset = HELD_OUT if any(samples) else TRAINING
    samples = samples if any(samples) else [candidates] * len(models)
    # A fold explains what it has not seen, so that all folds explain every sample.
    asked = set().union(*samples)
    ids = [name for name in study.table.sample_ids if name in asked]
    notes += _notes(models, candidates, len(ids), subset, metadata)
    for note in notes:
        log.warning("note: %s", note)
    if unseen := unseen_reads(models, study):
        warn_of_unseen(unseen, study)
    truth = [_truth(spec, metadata, ids) for spec in specs_in_order(models[0].targets)]
    passes, runtime = config.prediction_passes, config.runtime
    effects = explain_samples(models, study, samples, ids, truth, runtime, passes)
    column, groups = config.group_column or models[0].data.group_column or "", None
    if metadata is not None and column in metadata.columns:
        groups = np.array(metadata.groups(column, ids), object)
    by = (groups, "" if groups is None else column, subset, runtime.seed)
    explanations = [results.explanation_of(of_target, asvs, *by) for of_target in effects]
    if runtime.output_dir is not None:
        _write(config, explanations, notes, in_memory)
    return explanations, notes


def with_folds(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Folders of models; the folder of a cross-validation stands for the models of its folds, each
    of which has not seen some of the samples.
    """
    folds = [sorted(path.glob("fold-*/model")) or [path] for path in paths]
    return tuple(itertools.chain(*folds))


def _read_inputs(
    config: ExplainConfig, table: Any, metadata: Any
) -> tuple[Inputs, Taxonomy | None, Split | None]:
    """Read the inputs, taxonomy and split; problems of all in one message."""
    problems, taxonomy, split, column = Problems(), None, None, config.group_column
    columns = () if metadata is None or column is None else (column,)
    with problems.collected():
        inputs = read_inputs(config, columns, table, metadata)
    with problems.collected():
        taxonomy = None if config.taxonomy is None else read_taxonomy(config.taxonomy)
    with problems.collected():
        split = None if config.split is None else read_split(config.split)
    if metadata is None and column is not None:
        problems.add(f"--group-column is {column}, and --metadata, which holds it, is not given")
    problems.raise_if_any()
    return inputs, taxonomy, split


def _named_asvs(table: AmpliconTable, taxonomy: Taxonomy | None) -> Asvs:
    """Return the names of the ASVs of a table, with their lineages if there is a taxonomy."""
    lineages = () if taxonomy is None else taxonomy.of(table.feature_ids, table.sequences)
    without = np.array([not lineage for lineage in lineages])
    if without.any():
        reads = 100 * (table.counts.sum(axis=0) @ without) / table.depths.sum()
        text = "--taxonomy has no taxon for %d of %d ASVs (%.1f %% of the reads)"
        log.warning(text + "; they are shown by a short id", without.sum(), len(without), reads)
    return Asvs(tuple(table.feature_ids), tuple(table.sequences), lineages)


def _candidates(ids: Sequence[str], metadata: Metadata | None, split: Split | None) -> list[str]:
    """Return the samples that may be explained: of the test subset and with a row of metadata,
    where those are known; `InputError` without any.
    """
    of_test = set(ids if split is None else split.ids("test"))
    tested = [name for name in ids if name in of_test]
    if not tested:
        raise InputError("--split: none of its test samples is in the table at this depth")
    if metadata is None:
        return tested
    described = [name for name in tested if name in metadata]
    if not described:
        what = f"no row for any sample of the table, such as {shown(tested, 3)}"
        raise InputError(f"{metadata.source}: {what}")
    if absent := len(tested) - len(described):
        log.warning("%d of %d samples have no metadata and are left out", absent, len(tested))
    return described


def _truth(spec: TargetSpec, metadata: Metadata | None, ids: Sequence[str]) -> Floats:
    """Return the target of samples in own units or as index of a class, NaN where the metadata do
    not say.
    """
    if metadata is None or spec.name not in metadata.columns:
        return np.full(len(ids), math.nan)
    truth = spec.truth(metadata, ids)
    if spec.kind == "numeric":
        return truth
    if unknown := {*metadata.values(spec.name, ids)} - {None, *spec.labels}:
        text = "warning: %s: %r contains %s, which are not classes of the model (%s); these samples"
        names = shown(sorted(map(str, unknown))), shown(spec.labels)
        log.warning(text + " have no true value", metadata.source, spec.name, *names)
    return np.where(truth < 0, math.nan, truth)


def _notes(
    models: Sequence[SavedModel],
    candidates: Sequence[str],
    explained: int,
    subset: str,
    metadata: Metadata | None,
) -> list[str]:
    """Notes about the samples."""
    left_out, notes = len(candidates) - explained, []
    targets = [spec.name for spec in models[0].targets.specs]
    absent = [] if metadata is None else [name for name in targets if name not in metadata.columns]
    if subset == TRAINING:
        what = "The models have learned from all of these samples, so these importances do not hold"
        remedy = "Name the folder of a run with --cv or --test-size to explain held-out samples."
        notes.append(f"{what} for other samples. {remedy}")
    elif left_out:
        what = f"{left_out} samples are left out, because every model has learned from them"
        notes.append(f"{what}; the run of a cross-validation (--cv) explains all.")
    if saw_unlabelled(models, candidates):
        notes.append("Pretraining saw some of these samples, though not their labels.")
    if metadata is None:
        what = "Without --metadata there are no true values"
        notes.append(f"{what}: effects are computed, but no importances.")
    elif absent:
        lacks = f"no column {shown(absent)}, which the model predicts; importances need it"
        notes.append(f"{metadata.source}: {lacks}")
    return notes


# --- files -------------------------------------------------------------------------------------


def _outputs(folders: Sequence[str]) -> list[str]:
    """The files of an explanation, with a folder for each target."""
    names = [f"{name}.tsv" for name in ("features", "taxa", "samples", "effects")]
    names += ["figures/*.svg", "figures/*.png"]
    return ["explain.html", *(f"{folder}/{name}" for folder in folders for name in names)]


def _write(
    config: ExplainConfig,
    explanations: Sequence[Explanation],
    notes: Sequence[str],
    in_memory: Mapping[str, str],
) -> None:
    """Write tables, figures and a page of each target to a new folder."""
    samples = len(explanations[0].effects.sample_ids)
    names = results.folder_names([explanation.effects.spec.name for explanation in explanations])
    output = output_of("explain", config, _outputs(names))
    facts = {"samples": samples, "notes": [*notes]}
    with written(output, config, facts, in_memory) as new:
        for name, explanation in zip(names, explanations, strict=True):
            results.write_explanation(new / name, explanation, config.top)
            log.info("%s", results.opening(explanation))
        write_text(new / "explain.html", results.explanation_html(explanations, notes, config.top))
    log.info("%s: %d samples explained", output.folder, samples)


def _run_of(models: Sequence[Path]) -> Path:
    """Return the run that is explained, whose report takes the importances if --output-dir is not
    given.

    Raises
    ------
    InputError
        Several models, or a folder without a report that takes importances.
    """
    run = models[0]
    if len(models) == 1 and (run / PAGE).is_file():
        return run
    what = (
        f"--output-dir: not given, and --model is {shown(models)}, expected one run of `aam train`"
    )
    raise InputError(f"{what}, whose report takes the importances; name a folder with --output-dir")


def explain_model(config: ExplainConfig) -> None:
    """Explain the predictions of models and write tables, figures and a page for each
    target.

    Raises
    ------
    InputError
        Bad options or inputs, or models that predict nothing.
    """
    run, page = None, {}
    if config.runtime.output_dir is None:
        run = _run_of(config.model)
        page = read_page(run / PAGE)
        config = replace(config, runtime=replace(config.runtime, output_dir=run / EXPLANATION))
    config = replace(config, model=with_folds(config.model))
    explanations, notes = explained(config, config.table, config.metadata)
    if run is not None:
        report = run / "report.html"
        write_text(report, page_html(page, results.importances(explanations, notes, config.top)))
        log.info("%s shows the importances now", report)
