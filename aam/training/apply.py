"""A saved model applied to a table: `aam predict`, `aam embed` and `aam evaluate`."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from aam.config import DataConfig, RuntimeConfig
from aam.config_commands import ApplyConfig, EmbedConfig, EvaluateConfig, PredictConfig
from aam.config_file import out_of_range
from aam.data.metadata import Metadata, align, read_metadata
from aam.data.split import Split, check_groups, read_split
from aam.data.study import Study, load_study
from aam.errors import InputError, shown
from aam.runtime.device import decide, prepare
from aam.runtime.files import check_writable, whole_file, whole_folder, write_text
from aam.training.checkpoint import SavedModel, load_models
from aam.training.evaluate import Rivals, evaluate_targets, write_results
from aam.training.forest import Columns
from aam.training.inference import encode_table, predict_rows, run_model
from aam.training.predictions import PredictionTable, combined, read_predictions, write_predictions
from aam.training.record import check_output
from aam.training.report import ReportData

log = logging.getLogger("aam")


def _needed(config: ApplyConfig, **options: Path | tuple[Path, ...] | None) -> tuple[Path, ...]:
    """The paths given; `InputError` names every option that was not, and every number out of range."""
    missing = [f"--{name.replace('_', '-')}: not given" for name, path in options.items() if not path]
    if problems := missing + out_of_range(config):
        raise InputError(*problems)
    return tuple(path for path in options.values() if isinstance(path, Path))


def _load(config: ApplyConfig) -> tuple[list[SavedModel], Study, list[str]]:
    """The models, the table drawn as the first was trained, and warnings about its ASVs.

    Raises `InputError` where no sample reaches the model's depth: there is nothing to apply it to.
    """
    (table,) = _needed(config, model=config.model, table=config.table)
    device = prepare(config.runtime)
    models = load_models(config.model, device)
    for one in models:
        decide(config.runtime, device, one.model.head_width)
    saved, metadata = models[0], getattr(config, "metadata", None)
    # Sample and ASV vectors need neither; what predicts does, and says so where there is no metadata.
    predicts = not isinstance(config, EmbedConfig)
    specs = [spec for one in models for spec in one.targets.specs if predicts]
    wanted = {spec.normalize_by for spec in specs if spec.normalize_by is not None}
    optional = tuple(dict.fromkeys(name for one in models for name in one.covariates.columns if predicts))
    data = DataConfig(
        table=table,
        sequences=config.sequences,
        trim=config.trim,
        rarefy_depth=saved.depth,
        token_limit=saved.data.token_limit,
        asv_sampling=saved.data.asv_sampling,
        metadata=metadata if wanted or optional else None,
        missing=config.missing if isinstance(config, PredictConfig) else "drop",
    )
    study = load_study(data, saved.model.max_bp, saved.seed, sorted(wanted), optional=optional)
    warnings = saved.profile.compare(study.table.sequences)
    labels = None if study.metadata is None else study.metadata.values
    for column, known in {spec.normalize_by: spec.categories for spec in specs}.items():
        found = set() if column is None or labels is None else set(labels(column, study.table.sample_ids))
        if unseen := sorted(str(value) for value in found - known.keys()):
            warnings.append(f"no scale is known for {shown(unseen)} of {column!r}; that of all is used")
    for warning in warnings:
        log.warning("warning: %s", warning)
    return models, study, warnings


def _predict(models: Sequence[SavedModel], study: Study, passes: int, runtime: RuntimeConfig) -> PredictionTable:
    """One row per sample of the file, the mean of all models; those below the depth are empty and say why."""
    if not models[0].targets.specs:
        raise InputError("--model: a pretrained encoder predicts nothing; fine-tune it with `aam train` first")
    device = next(models[0].network.parameters()).device
    ids, draws = study.table.sample_ids, [(saved, replace(study, seed=saved.seed)) for saved in models]
    table = combined([predict_rows(saved, own, ids, runtime, device, passes) for saved, own in draws])
    notes = dict.fromkeys(study.all_sample_ids, "no metadata, which the model reads") | dict.fromkeys(ids, "")
    notes |= {name: f"{reads} reads, below the model's depth of {study.depth}" for name, reads in study.dropped.items()}
    return table.with_rows(study.all_sample_ids, notes)


def predict_table(config: PredictConfig) -> None:
    """Predict every sample of a table and write the predictions.

    Raises
    ------
    InputError
        Missing options, a damaged model, a bad table, an output that exists.
    """
    *_, output = _needed(config, model=config.model, table=config.table, output=config.output)
    check_writable(output, config.runtime.overwrite)
    models, study, _ = _load(config)
    table = _predict(models, study, config.prediction_passes, config.runtime)
    write_predictions(output, table)
    log.info("%s: %d samples, %d of them below the depth", output, len(table.sample_ids), len(study.dropped))


def _write_vectors(folder: Path, name: str, ids: Sequence[str], vectors: npt.NDArray[np.float32], form: str) -> None:
    if form == "npy":
        with whole_file(folder / f"{name}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, vectors, allow_pickle=False)
        write_text(folder / f"{name}.ids.txt", "".join(f"{one}\n" for one in ids))
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text, dialect="excel-tab", lineterminator="\n")
    writer.writerow(["sample-id" if name == "samples" else "asv", *(f"d{i}" for i in range(vectors.shape[1]))])
    writer.writerows([one, *(f"{value:.6g}" for value in row)] for one, row in zip(ids, vectors, strict=True))
    write_text(folder / f"{name}.tsv", text.getvalue())


def embed_table(config: EmbedConfig) -> None:
    """Write the vectors of every sample that reaches the depth, and of every ASV."""
    *_, folder = _needed(config, model=config.model, table=config.table, output_dir=config.runtime.output_dir)
    check_output(folder, config.runtime.overwrite)
    models, study, _ = _load(config)
    if len(models) > 1:
        raise InputError(f"--model: {len(models)} models, each with vectors of its own; name one of them")
    (saved,) = models
    device = next(saved.network.parameters()).device
    asvs = encode_table(saved.network, study, device, config.runtime)
    study = replace(study, **saved.covariates.encode(None, study.table.sample_ids))
    rows = np.arange(len(study.table.sample_ids))
    samples = run_model(saved.network, study, rows, device, config.runtime, asvs=asvs)
    vectors = asvs.vectors.cpu().numpy()
    with whole_folder(folder) as new:
        _write_vectors(new, "samples", samples.sample_ids, samples.samples.astype(np.float32), config.format)
        _write_vectors(new, "asvs", study.table.sequences, vectors, config.format)
    log.info("%s: %d samples and %d ASVs", folder, len(rows), len(study.table.sequences))


def _with_truth(table: PredictionTable, metadata: Metadata, wanted: Sequence[str]) -> PredictionTable:
    names = [spec.name for spec in table.specs]
    known = set(wanted)
    ids = align(metadata, [name for name in table.sample_ids if name in known], names, "drop")
    return table.with_rows(ids, dict(zip(table.sample_ids, table.notes, strict=True)))


def evaluate_table(config: EvaluateConfig) -> None:
    """Compare predictions with metadata and write metrics.json, report.html and predictions.tsv."""
    metadata_path, folder = _needed(config, metadata=config.metadata, output_dir=config.runtime.output_dir)
    if (not config.model) == (config.predictions is None):
        raise InputError("give --model and --table, or --predictions; one of the two")
    check_output(folder, config.runtime.overwrite)
    metadata = read_metadata(metadata_path)
    split: Split | None = None if config.split is None else read_split(config.split)
    study: Study | None = None
    warnings: list[str] = []
    seen: set[str] = set()
    if config.predictions is not None:
        table = read_predictions(config.predictions)
    else:
        models, study, warnings = _load(config)
        table = _predict(models, study, config.prediction_passes, config.runtime)
        study = replace(study, metadata=metadata)
        seen = {name for saved in models for name in saved.notes["seen_samples"]}
    columns = Columns(config.group_column, config.batch_column, config.by_columns)
    metadata.require([n for n in (columns.group, columns.batch, *columns.categories) if n is not None])
    if split is not None and columns.group is not None:
        check_groups(split, {name: metadata.values(columns.group, [name])[0] for name in metadata.ids})
    lost = set() if split is None else set(split.held_out) - set(table.sample_ids)
    if lost:
        warnings.append(
            f"{len(lost)} held-out samples of {config.split} have no prediction, such as {shown(sorted(lost), 3)}"
        )
    table = _with_truth(table, metadata, table.sample_ids if split is None else split.held_out)
    if known := seen.intersection(table.sample_ids):
        warnings.append(
            f"{len(known)} of {len(table.sample_ids)} samples were seen in training, labelled or not; figures "
            "are too good: --split RUN/split.tsv leaves the test side only"
        )
    given = None if config.baselines is None else read_predictions(config.baselines)
    rivals = Rivals(study, () if split is None or study is None else (split,), given=given)
    results = ReportData(
        title="aam evaluate",
        task={"targets": ", ".join(spec.name for spec in table.specs)},
        data={"samples with truth": len(table.sample_ids), "table": config.table, "predictions": config.predictions},
        split={"split": config.split or "none: every sample counts, those of training too"},
        targets=evaluate_targets(table, metadata, columns, rivals),
        warnings=tuple(warnings),
    )
    with whole_folder(folder) as new:
        write_predictions(new / "predictions.tsv", table)
        write_results(new, results)
    log.info("all tables: %s", folder / "report.html")
