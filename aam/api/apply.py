"""`aam predict`, `aam embed`, and what other commands share with them: models, the table that they
read, and the folder that they write.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from aam.config import ApplyConfig, DataConfig, EmbedConfig, PredictConfig
from aam.data.inputs import Inputs, MetadataLike, TableLike, read_inputs
from aam.data.primers import warn_of_primers, without_primers
from aam.data.rarefaction import rarefied_table
from aam.data.study import MetadataColumns, PlacedSamples, Study, make_study
from aam.device.attention import decide_execution
from aam.device.platform import prepare_device
from aam.encoders import INSTALL
from aam.engine.run import describe
from aam.errors import InputError, problem, shown
from aam.evaluate.predictions import PredictionTable, is_written, write_predictions
from aam.files.atomic import write_text
from aam.files.output_folder import MEMORY_FILES, RUN, OutputFolder, check_replaced_file
from aam.io.matrices import write_distances
from aam.options import RuntimeConfig, command_line, files_read, not_none, to_dict
from aam.predict.prediction import MOST_UNSEEN, NO_INTERVAL, NO_PREDICTION, predict_samples
from aam.predict.saved_model import SavedModel, load_models
from aam.training.inference import encode_table, run_model
from aam.typing import Reals

log = logging.getLogger("aam")


def output_of(command: str, config: Any, outputs: Sequence[str]) -> OutputFolder:
    """Return the folder of the results of a command: run.json and `outputs`.

    Raises
    ------
    InputError
        Results may not be written there.
    """
    runtime = getattr(config, "runtime", config)
    place = not_none(config.output if runtime is config else runtime.output_dir)
    names, inputs = [RUN, *outputs, *MEMORY_FILES], files_read(config).values()
    output = OutputFolder(place, command, names, [*inputs], runtime.overwrite)
    output.check()
    return output


def written(
    output: OutputFolder,
    config: Any,
    facts: Mapping[str, Any] | None = None,
    in_memory: Mapping[str, str] | None = None,
) -> AbstractContextManager[Path]:
    """Yield a new folder with run.json, which takes the place of `output` once it is complete."""
    options, files = to_dict(config), files_read(config)
    return output.replaced(
        describe(output.command, options, files, dict(facts or {}), in_memory=in_memory)
    )


def prepare_models(paths: Sequence[Path], runtime: RuntimeConfig) -> list[SavedModel]:
    """Return the models of some folders, ready to compute on the device that `runtime` asks for.

    Raises
    ------
    InputError
        A folder that holds no model, a damaged model, or models that cannot predict together.
    """
    device = prepare_device(runtime)
    models = load_models(paths, device)
    for model in models:
        if model.network is not None:
            decide_execution(runtime, device, model.model.attention_shapes, in_bf16=False)
    return models


def load_table(
    models: Sequence[SavedModel],
    config: ApplyConfig,
    table: TableLike | Inputs,
    metadata: MetadataLike | None = None,
) -> tuple[Study, list[str]]:
    """Return a table rarefied as for the first of some models, and warnings about its ASVs and
    covariates.

    `table` may be `Inputs` that are read already. Only the samples that are returned are kept.

    Raises
    ------
    InputError
        A table that the models cannot read, or no sample that reaches their depth.
    """
    saved, knows_primers = models[0], models[0].profile.holds_primer
    if config.trim_primers and knows_primers:
        fault = "the model was trained on reads with primers and does not know reads without them"
        raise InputError(problem("--trim-primers", fault, remedy="leave --trim-primers out"))
    # Only predictions need covariates; vectors of samples and ASVs do not.
    predicts = not isinstance(config, EmbedConfig)
    names = (name for model in models if predicts for name in model.covariates.columns)
    columns = MetadataColumns((), tuple(dict.fromkeys(names)))
    data = DataConfig(
        trim=config.trim,
        rarefy_depth=getattr(config, "rarefy_depth", None) or saved.depth,
        token_limit=saved.data.token_limit,
        missing=getattr(config, "missing", "drop"),
    )
    required = () if metadata is None else columns.optional
    inputs = table if isinstance(table, Inputs) else read_inputs(config, required, table, metadata)
    inputs = replace(inputs, metadata=inputs.metadata if columns.optional else None)
    for table_of_reads in inputs.tables:
        saved.profile.check_names(table_of_reads)
    if config.trim_primers:
        inputs = replace(inputs, tables=tuple(map(without_primers, inputs.tables)))
    study = make_study(inputs, data, saved.model.max_bp, saved.seed, columns, from_model=True)
    if not knows_primers:
        warn_of_primers(study.table)
    warnings = [] if saved.only_places else saved.profile.compare(study.table)
    if predicts and study.metadata is not None:
        known = study.sample_metadata
        sentences = (text for model in models for text in model.covariates.warnings(known))
        warnings += dict.fromkeys(sentences)
    for warning in warnings:
        log.warning("warning: %s", warning)
    return study, warnings


def saw_unlabelled(models: Sequence[SavedModel], ids: Sequence[str]) -> bool:
    """Return whether pretraining saw some of these samples, from whose labels no model has
    learned.
    """
    labelled = {name for saved in models for name in saved.notes.labelled_samples}
    training = {name for saved in models for name in saved.notes.seen_samples}
    return bool((training - labelled) & set(ids))


def _counted(study: Study, unseen: int = 0) -> str:
    """Say how many samples of a file are predicted, and why others are not."""
    reasons = study.samples["state"].value_counts().drop("kept", errors="ignore").to_dict()
    if unseen:
        reason = f"over {MOST_UNSEEN:.0%} unknown reads (--predict-unlike predicts them)"
        reasons[reason] = unseen
    counts = [f"{len(study.table) - unseen} of them predicted"]
    counts += [f"{reason}: {count}" for reason, count in reasons.items()]
    return f"{len(study.samples)} samples, {'; '.join(counts)}"


def predicted(
    models: Sequence[SavedModel],
    config: PredictConfig,
    table: TableLike,
    metadata: MetadataLike | None = None,
) -> tuple[Study, PredictionTable]:
    """Return a table as `load_table`, and the predictions of every sample of its file."""
    study, _ = load_table(models, config, table, metadata)
    options = config.prediction_passes, config.runtime, config.new_study, config.predict_unlike
    return study, predict_samples(models, study, *options)


def predict_table(config: PredictConfig) -> None:
    """Predict every sample of a table and write the predictions.

    Raises
    ------
    InputError
        Missing options, a damaged model, a bad table, an output that exists.
    """
    models, output = prepare_models(config.model, config.runtime), not_none(config.output)
    check_replaced_file(output, "predict", is_written)
    study, table = predicted(models, config, config.table, config.metadata)
    write_predictions(output, table)
    notes = table.texts("note")
    unseen = sum(note.startswith(NO_PREDICTION) for note in notes)
    log.info("%s: %s", output, _counted(study, unseen))
    if withheld := sum(NO_INTERVAL in note for note in notes):
        log.info("%d of them have no interval; the column note says why", withheld)
    if learned := table.texts("subset").count("train"):
        quality = "the report of the run says how good the model is"
        log.info("%d of them were in training (subset train); %s", learned, quality)
    truth = {"metadata": "METADATA", "output_dir": "evaluated"}
    command = command_line("evaluate", predictions=output, **truth)
    log.info("next, where the truth is known: %s", command)


# --- `aam embed` ---------------------------------------------------------------------------------


def embedded(
    models: Sequence[SavedModel], config: EmbedConfig, table: TableLike
) -> tuple[Study, pd.DataFrame, pd.DataFrame | None, PlacedSamples | None]:
    """Encode a table.

    Returns the study, vectors by sample, vectors by ASV, which a reference has not, and
    its samples on the reference, for a reference or if distances are asked for.

    Raises
    ------
    InputError
        Several models, a model without a network or without the reference that distances need, or
        a bad table.
    """
    saved = _single(models)
    if saved.only_places:
        study, on_tree = place_samples(models, config, table)
        vectors = np.concatenate([*on_tree.vectors()])
        return study, _vector_frame(vectors, study.table.sample_ids, "sample-id"), None, on_tree
    network, depth, placed = saved.require_network(), config.rarefy_depth, None
    if depth is not None and depth > saved.depth:
        expected = (
            f"at most {saved.depth}, the depth of the samples that the network has learned from"
        )
        raise InputError(f"--rarefy-depth is {depth}, expected {expected}")
    if config.distances:
        study, placed = place_samples(models, config, table)
    else:
        study, _ = load_table(models, config, table)
    asvs = encode_table(network, study, saved.device, config.runtime)
    placed_study = study.with_covariates(saved.covariates, None).placed_on(saved.reference)
    rows = np.arange(len(study.table))
    outputs = run_model(network, placed_study, rows, saved.device, config.runtime, asvs=asvs)
    samples = _vector_frame(outputs.samples.astype(np.float32), study.table.sample_ids, "sample-id")
    return study, samples, _vector_frame(asvs.cpu().numpy(), study.table.sequences, "asv"), placed


def _vector_frame(vectors: Reals, ids: Sequence[str], name: str) -> pd.DataFrame:
    """Vectors by the ids of samples or ASVs, whose index is called `name`."""
    columns = [f"d{number}" for number in range(vectors.shape[1])]
    return pd.DataFrame(vectors, pd.Index(ids, name=name), columns)


def place_samples(
    models: Sequence[SavedModel], config: EmbedConfig, table: TableLike
) -> tuple[Study, PlacedSamples]:
    """Rarefy a table, and place its samples on the reference of a model.

    Raises
    ------
    InputError
        Several models, a model without a reference, or a bad table.
    """
    if (reference := _single(models).reference) is None:
        remedy = f"pass --model 16s-v4, which is part of aam-16s: {INSTALL}"
        fault = "the model has no reference tree"
        raise InputError(problem("--distances", fault, remedy=remedy))
    study, _ = load_table(models, config, table)
    tokens, counts = study.tokens.numpy(), sparse.csr_matrix(rarefied_table(study))
    return study, reference.place(study.table, tokens, counts, str(config.table))


def _single(models: Sequence[SavedModel]) -> SavedModel:
    if len(models) > 1:
        fault = f"{len(models)} models, each with its own vectors"
        raise InputError(problem("--model", fault, remedy="name one of them"))
    return models[0]


def embed_table(config: EmbedConfig) -> None:
    """Write vectors of samples and ASVs, and the distances that are asked for.

    A model that is only a reference has no vectors of ASVs, but taxa.

    Raises
    ------
    InputError
        A model or table that cannot be read or embedded, or an output that exists.
    """
    form = config.format
    suffixes = (".npy", ".ids.txt") if form == "npy" else (".tsv",)
    names = [f"{name}{suffix}" for name in ("samples", "asvs") for suffix in suffixes]
    names += [f"{name}.tsv" for name in config.distances]
    output = output_of("embed", config, ["taxa.tsv", *names])
    models = prepare_models(config.model, config.runtime)
    study, samples, asvs, on_tree = embedded(models, config, config.table)
    table = study.table
    with written(output, config) as new:
        _write_vectors(new / "samples", samples, form)
        if asvs is not None:
            _write_vectors(new / "asvs", asvs, form)
        elif on_tree is not None:
            with (new / "taxa.tsv").open("w", encoding="utf-8", newline="") as file:
                rows = csv.writer(file, dialect="excel-tab", lineterminator="\n")
                rows.writerows(on_tree.taxa())
        for metric in config.distances:
            tiles = not_none(on_tree).distances(metric)
            write_distances(new / f"{metric}.tsv", table.sample_ids, tiles)
    results = shown(["samples", "taxa" if asvs is None else "asvs", *config.distances])
    text = f"{results} of {len(table):,} samples, each rarefied to {study.depth:,} reads"
    text += "" if config.rarefy_depth else ", the depth of the model (--rarefy-depth changes it)"
    log.info("%s: %s", output.folder, text)


def _write_vectors(path: Path, frame: pd.DataFrame, form: str) -> None:
    """Write vectors to a file of the format, with the ids next to an array."""
    if form == "npy":
        np.save(f"{path}.npy", np.ascontiguousarray(frame))
        write_text(path.with_suffix(".ids.txt"), "".join(f"{name}\n" for name in frame.index))
    else:
        frame.to_csv(f"{path}.tsv", sep="\t", float_format="%.6g")
