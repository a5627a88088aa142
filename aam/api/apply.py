"""`aam predict`, `aam embed`, and what other commands share with them: models, the table that they
read, and the folder that they write.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from aam.config import ApplyConfig, DataConfig, EmbedConfig, PredictConfig
from aam.data.checks import warn_of_primers, without_primers
from aam.data.rarefaction import rarefied_table
from aam.data.study import Inputs, MetadataColumns, PlacedSamples, Study, make_study, read_inputs
from aam.device.attention import decide_execution
from aam.device.platform import prepare_device
from aam.encoders import INSTALL
from aam.engine.run import describe
from aam.errors import InputError, shown
from aam.evaluate.predictions import write_predictions
from aam.files.atomic import atomic_file, write_text
from aam.files.output_folder import MEMORY, RUN, OutputFolder
from aam.io.matrices import write_distances, write_lines
from aam.options import RuntimeConfig, files_read, not_none, to_dict
from aam.predict.prediction import predict_samples
from aam.predict.saved_model import SavedModel, load_models, samples_with_labels
from aam.training.inference import SAMPLES_OF_PART, encode_table, run_model

log = logging.getLogger("aam")


def output_of(
    command: str, config: Any, outputs: Sequence[str], folder: Path | None = None
) -> OutputFolder:
    """Return the folder of the results of a command: run.json and `outputs`.

    Raises
    ------
    InputError
        Results may not be written there.
    """
    runtime = getattr(config, "runtime", config)
    place = runtime.output_dir if folder is None else folder
    inputs = [*files_read(config).values()]
    names = [RUN, *outputs, *MEMORY]
    output = OutputFolder(not_none(place), command, names, inputs, runtime.overwrite)
    output.check()
    return output


def written(
    output: OutputFolder,
    config: Any,
    facts: Mapping[str, Any] | None = None,
    in_memory: Mapping[str, str] | None = None,
) -> AbstractContextManager[Path]:
    """Yield a new folder with run.json, which takes the place of `output` once it is complete."""
    about = describe(
        output.command, to_dict(config), files_read(config), dict(facts or {}), in_memory
    )
    return output.replaced(about)


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


def load_models_and_table(config: ApplyConfig) -> tuple[list[SavedModel], Study, list[str]]:
    """Return the models, the table rarefied as for the first of them, and warnings about its ASVs.

    Raises
    ------
    InputError
        Bad options, a damaged model or table, or no sample that reaches the model's depth.
    """
    models = prepare_models(config.model, config.runtime)
    return models, *load_table(models, config)


def load_table(
    models: Sequence[SavedModel], config: ApplyConfig, inputs: Inputs | None = None
) -> tuple[Study, list[str]]:
    """Return a table rarefied as for the first of some models, and warnings about its ASVs and
    covariates.

    The table and its metadata are `inputs`, or the files that `config` names.

    Raises
    ------
    InputError
        A bad table, or no sample that reaches the model's depth.
    """
    saved, knows_primers = models[0], models[0].profile.holds_primer
    # Sample and ASV vectors need no covariates; predictions do, and say so without metadata.
    predicts = not isinstance(config, EmbedConfig)
    names = (name for model in models for name in model.covariates.columns if predicts)
    columns = MetadataColumns((), tuple(dict.fromkeys(names)))
    data = DataConfig(
        table=config.table,
        sequences=config.sequences,
        trim=config.trim,
        decimal=getattr(config, "decimal", "."),
        missing_values=getattr(config, "missing_values", ()),
        rarefy_depth=getattr(config, "rarefy_depth", None) or saved.depth,
        token_limit=saved.data.token_limit,
        metadata=getattr(config, "metadata", None) if columns.optional else None,
        missing=config.missing if isinstance(config, PredictConfig) else "drop",
    )
    if inputs is None:
        inputs = read_inputs(data, columns)
    elif data.metadata is None:
        inputs = replace(inputs, metadata=None)
    if config.trim_primers and knows_primers:
        raise InputError(
            "--trim-primers: the model was trained on reads with primers and does not know reads "
            "without them; leave --trim-primers out"
        )
    if config.trim_primers:
        inputs = replace(inputs, tables=tuple(map(without_primers, inputs.tables)))
    study = make_study(inputs, data, saved.model.max_bp, saved.seed, columns, of_model=True)
    if not knows_primers:
        warn_of_primers(study.table, of_model=True)
    warnings = [] if saved.only_places else saved.profile.compare(study.table)
    if predicts and study.metadata is not None:
        ids, values = study.table.sample_ids, study.metadata
        known = [model.covariates.warnings(values, ids) for model in models]
        warnings += dict.fromkeys(message for messages in known for message in messages)
    for warning in warnings:
        log.warning("warning: %s", warning)
    return study, warnings


def saw_unlabelled(models: Sequence[SavedModel], ids: Sequence[str]) -> bool:
    """Return whether pretraining saw some of these samples, from whose labels no model has
    learned.
    """
    labelled = {name for saved in models for name in samples_with_labels(saved)}
    seen = {name for saved in models for name in saved.notes["seen_samples"]}
    return bool((seen - labelled) & set(ids))


def _counted(study: Study) -> str:
    """Say how many samples of a file are predicted, and why others are not."""
    selection = study.selection
    reasons = {
        "below the depth": len(selection.dropped),
        "without metadata, which the model reads": len(selection.of_file) - len(selection.aligned),
    }
    left_out = "".join(f", {count} {why}" for why, count in reasons.items() if count)
    predicted = len(study.table.sample_ids)
    return f"{len(selection.of_file)} samples, {predicted} of them predicted{left_out}"


def predict_table(config: PredictConfig) -> None:
    """Predict every sample of a table and write the predictions.

    Raises
    ------
    InputError
        Missing options, a damaged model, a bad table, an output that exists.
    """
    models, study, _ = load_models_and_table(config)
    passes, runtime = config.prediction_passes, config.runtime
    table = predict_samples(models, study, passes, runtime, config.new_study)
    write_predictions(not_none(config.output), table)
    log.info("%s: %s", config.output, _counted(study))
    if learned := table.texts("subset").count("train"):
        about = "(subset train); the report of the run says how good the model is"
        log.info("%d of them were in training %s", learned, about)


# --- `aam embed` ---------------------------------------------------------------------------------

Parts = Iterable[npt.NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Embedding:
    """Vectors of the samples of a study, a few thousand at a time, and of its ASVs.

    A model that is a reference has no vectors of ASVs. With a reference, `on_tree` has taxa and
    distances.
    """

    study: Study
    width: int
    samples: Parts
    asvs: Parts | None
    on_tree: PlacedSamples | None


def embedded(
    models: Sequence[SavedModel], config: EmbedConfig, inputs: Inputs | None = None
) -> Embedding:
    """Encode a table: that of `inputs`, or of the file that `config` names.

    Raises
    ------
    InputError
        Several models, a model without a network or without the reference that distances need, or
        a bad table.
    """
    saved = _single(models)
    if saved.only_places:
        study, on_tree = place_samples(models, config, inputs)
        width = not_none(saved.reference).vector_width
        return Embedding(study, width, on_tree.vectors(), None, on_tree)
    network, depth = saved.required_network, config.rarefy_depth
    if depth is not None and depth > saved.depth:
        raise InputError(
            f"--rarefy-depth is {depth}, expected at most {saved.depth}, the depth of the samples "
            "that the network has learned from"
        )
    placed = place_samples(models, config, inputs) if config.distances else None
    study = placed[0] if placed else load_table(models, config, inputs)[0]
    asvs, covered = encode_table(network, study, saved.device, config.runtime), saved.covariates
    read = study.with_covariates(covered, None).placed_on(saved.reference)
    rows = np.arange(len(study.table.sample_ids))

    def samples() -> Iterator[npt.NDArray[np.float32]]:
        for start in range(0, len(rows), SAMPLES_OF_PART):
            part = rows[start : start + SAMPLES_OF_PART]
            found = run_model(network, read, part, saved.device, config.runtime, asvs=asvs)
            yield found.samples.astype(np.float32)

    parts = (part.cpu().numpy() for part in asvs.vectors.split(SAMPLES_OF_PART))
    return Embedding(study, asvs.vectors.shape[1], samples(), parts, placed[1] if placed else None)


def place_samples(
    models: Sequence[SavedModel], config: EmbedConfig, inputs: Inputs | None = None
) -> tuple[Study, PlacedSamples]:
    """Rarefy a table, of `inputs` or of `config`, and place its samples on a model's reference.

    Raises
    ------
    InputError
        Several models, a model without a reference, or a bad table.
    """
    if (reference := _single(models).reference) is None:
        raise InputError(
            "--distances: the model has no reference tree; pass --model 16s or 16s-v4, which are "
            f"part of aam-16s: {INSTALL}"
        )
    study, _ = load_table(models, config, inputs)
    tokens, counts = study.tokens.numpy(), sparse.csr_matrix(rarefied_table(study))
    return study, reference.place(study.table, tokens, counts, str(config.table))


def _single(models: Sequence[SavedModel]) -> SavedModel:
    if len(models) > 1:
        raise InputError(
            f"--model: {len(models)} models, each with its own vectors; name one of them"
        )
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
    names += [f"{name}.{ending}" for name in config.distances for ending in (form, "ids.txt")]
    output = output_of("embed", config, ["taxa.tsv", *names])
    found = embedded(prepare_models(config.model, config.runtime), config)
    table, width, on_tree = found.study.table, found.width, found.on_tree
    with written(output, config) as new:
        _write_vectors(new, "samples", table.sample_ids, found.samples, width, form)
        if found.asvs is not None:
            _write_vectors(new, "asvs", table.sequences, found.asvs, width, form)
        elif on_tree is not None:
            with (new / "taxa.tsv").open("w", encoding="utf-8", newline="") as file:
                rows = csv.writer(file, dialect="excel-tab", lineterminator="\n")
                rows.writerows(on_tree.taxa())
        for metric in config.distances:
            tiles = not_none(on_tree).distances(metric)
            write_distances(new / f"{metric}.{form}", table.sample_ids, tiles)
    what = shown(["samples", "taxa" if found.asvs is None else "asvs", *config.distances])
    depth = f"each rarefied to {found.study.depth:,} reads"
    of = "" if config.rarefy_depth else ", the depth of the model (--rarefy-depth changes it)"
    log.info(
        "%s: %s of %s samples, %s", output.folder, what, f"{len(table.sample_ids):,}", depth + of
    )


def _write_vectors(
    folder: Path, name: str, ids: Sequence[str], parts: Parts, width: int, form: str
) -> None:
    """Write vectors as they come, in parts, in the order of `ids`."""
    with atomic_file(folder / f"{name}.{'npy' if form == 'npy' else 'tsv'}") as temporary:
        if form == "npy":
            about = {"descr": "<f4", "fortran_order": False, "shape": (len(ids), width)}
            with temporary.open("wb") as file:
                np.lib.format.write_array_header_1_0(file, about)
                for vectors in parts:
                    file.write(np.ascontiguousarray(vectors, "<f4").data)
            write_text(folder / f"{name}.ids.txt", "".join(f"{row_id}\n" for row_id in ids))
            return
        rows = (row for vectors in parts for row in vectors)
        header = ["sample-id" if name == "samples" else "asv", *(f"d{i}" for i in range(width))]
        with temporary.open("w", encoding="utf-8", newline="") as lines:
            write_lines(lines, header, ids, rows, "\t%.6g")
