"""Trained models applied to tables: `aam predict`, `aam embed`, the same for data in memory, and
what other commands share with them: models, the table that they read, and the folder that they
write.
"""

from __future__ import annotations

import csv
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import sparse

from aam.api.memory import inputs_of, options_with
from aam.config import ApplyConfig, DataConfig, EmbedConfig, ExplainConfig, PredictConfig
from aam.data.checks import warn_of_primers, without_primers
from aam.data.rarefaction import rarefied_table
from aam.data.study import Inputs, MetadataColumns, PlacedMetric, PlacedSamples, Study, make_study
from aam.device.attention import decide_execution
from aam.device.platform import prepare_device
from aam.encoders import INSTALL
from aam.engine.run import describe
from aam.errors import InputError, import_extra, shown
from aam.evaluate.predictions import PredictionTable, file_frame, write_predictions
from aam.files.atomic import write_text
from aam.files.output_folder import MEMORY, RUN, OutputFolder
from aam.io.matrices import fill_tiles, write_distances, write_lines
from aam.options import RuntimeConfig, configured, files_read, not_none, options_of, to_dict
from aam.predict.prediction import predict_samples
from aam.predict.saved_model import SavedModel, load_models, samples_with_labels
from aam.training.inference import SAMPLES_OF_PART, encode_table, run_model

log = logging.getLogger("aam")

# Options of commands that say where models and tables lie and what is written.
OF_FILES = frozenset({"model", "table", "output", "output_dir", "overwrite", "format", "distances"})

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
# Vectors of rows in their order, a few thousand rows at a time.
Parts = Iterable[npt.NDArray[np.float32]]


def output_of(command: str, config: Any, outputs: Sequence[str]) -> OutputFolder:
    """Return the folder of the results of a command: run.json and `outputs`.

    Raises
    ------
    InputError
        Results may not be written there.
    """
    runtime = getattr(config, "runtime", config)
    place = not_none(config.output if runtime is config else runtime.output_dir)
    names, inputs = [RUN, *outputs, *MEMORY], files_read(config).values()
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
    return output.replaced(describe(output.command, options, files, dict(facts or {}), in_memory))


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
    models: Sequence[SavedModel], config: ApplyConfig, table: Any, metadata: Any = None
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
        unknown = "trained on reads with primers and does not know reads without them"
        raise InputError(f"--trim-primers: the model was {unknown}; leave --trim-primers out")
    # Sample and ASV vectors need no covariates; predictions do, and say so without metadata.
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
    inputs = table if isinstance(table, Inputs) else inputs_of(config, table, metadata, required)
    inputs = replace(inputs, metadata=inputs.metadata if columns.optional else None)
    if config.trim_primers:
        inputs = replace(inputs, tables=tuple(map(without_primers, inputs.tables)))
    study = make_study(inputs, data, saved.model.max_bp, saved.seed, columns, of_model=True)
    if not knows_primers:
        warn_of_primers(study.table, of_model=True)
    warnings = [] if saved.only_places else saved.profile.compare(study.table)
    if predicts and study.metadata is not None:
        read = study.metadata, study.table.sample_ids
        known = (message for model in models for message in model.covariates.warnings(*read))
        warnings += dict.fromkeys(known)
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
    every, selection = len(study.selection.of_file), study.selection
    text = f"{every} samples, {len(study.table)} of them predicted"
    if selection.dropped:
        text += f", {len(selection.dropped)} below the depth"
    if lacking := every - len(selection.aligned):
        text += f", {lacking} without metadata, which the model reads"
    return text


def predict_table(config: PredictConfig) -> None:
    """Predict every sample of a table and write the predictions.

    Raises
    ------
    InputError
        Missing options, a damaged model, a bad table, an output that exists.
    """
    models = prepare_models(config.model, config.runtime)
    study, _ = load_table(models, config, config.table, config.metadata)
    passes, runtime = config.prediction_passes, config.runtime
    table = predict_samples(models, study, passes, runtime, config.new_study)
    write_predictions(not_none(config.output), table)
    log.info("%s: %s", config.output, _counted(study))
    if learned := table.texts("subset").count("train"):
        about = "(subset train); the report of the run says how good the model is"
        log.info("%d of them were in training %s", learned, about)


# --- `aam embed` ---------------------------------------------------------------------------------


def embedded(
    models: Sequence[SavedModel], config: EmbedConfig, table: Any
) -> tuple[Study, Parts, Parts | None, PlacedSamples | None]:
    """Encode a table.

    Returns the study, vectors of its samples, vectors of its ASVs, which a reference has not, and
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
        return study, on_tree.vectors(), None, on_tree
    network, depth, placed = saved.required_network, config.rarefy_depth, None
    if depth is not None and depth > saved.depth:
        of = "the depth of the samples that the network has learned from"
        raise InputError(f"--rarefy-depth is {depth}, expected at most {saved.depth}, {of}")
    if config.distances:
        study, placed = place_samples(models, config, table)
    else:
        study, _ = load_table(models, config, table)
    asvs = encode_table(network, study, saved.device, config.runtime)
    read = study.with_covariates(saved.covariates, None).placed_on(saved.reference)
    rows = np.arange(len(study.table))

    def samples() -> Iterator[npt.NDArray[np.float32]]:
        for start in range(0, len(rows), SAMPLES_OF_PART):
            part = rows[start : start + SAMPLES_OF_PART]
            found = run_model(network, read, part, saved.device, config.runtime, asvs=asvs)
            yield found.samples.astype(np.float32)

    of_asvs = (part.cpu().numpy() for part in asvs.vectors.split(SAMPLES_OF_PART))
    return study, samples(), of_asvs, placed


def place_samples(
    models: Sequence[SavedModel], config: EmbedConfig, table: Any
) -> tuple[Study, PlacedSamples]:
    """Rarefy a table, and place its samples on the reference of a model.

    Raises
    ------
    InputError
        Several models, a model without a reference, or a bad table.
    """
    if (reference := _single(models).reference) is None:
        remedy = f"pass --model 16s or 16s-v4, which are part of aam-16s: {INSTALL}"
        raise InputError(f"--distances: the model has no reference tree; {remedy}")
    study, _ = load_table(models, config, table)
    tokens, counts = study.tokens.numpy(), sparse.csr_matrix(rarefied_table(study))
    return study, reference.place(study.table, tokens, counts, str(config.table))


def _single(models: Sequence[SavedModel]) -> SavedModel:
    if len(models) > 1:
        several = f"{len(models)} models, each with its own vectors"
        raise InputError(f"--model: {several}; name one of them")
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
    models = prepare_models(config.model, config.runtime)
    study, samples, asvs, on_tree = embedded(models, config, config.table)
    table = study.table
    with written(output, config) as new:
        _write_vectors(new, "samples", table.sample_ids, samples, form)
        if asvs is not None:
            _write_vectors(new, "asvs", table.sequences, asvs, form)
        elif on_tree is not None:
            with (new / "taxa.tsv").open("w", encoding="utf-8", newline="") as file:
                rows = csv.writer(file, dialect="excel-tab", lineterminator="\n")
                rows.writerows(on_tree.taxa())
        for metric in config.distances:
            tiles = not_none(on_tree).distances(metric)
            write_distances(new / f"{metric}.{form}", table.sample_ids, tiles)
    what = shown(["samples", "taxa" if asvs is None else "asvs", *config.distances])
    of = f"{what} of {len(table):,} samples, each rarefied to {study.depth:,} reads"
    of += "" if config.rarefy_depth else ", the depth of the model (--rarefy-depth changes it)"
    log.info("%s: %s", output.folder, of)


def _write_vectors(folder: Path, name: str, ids: Sequence[str], parts: Parts, form: str) -> None:
    """Write vectors as they come, in parts, in the order of `ids`."""
    parts = iter(parts)
    first = next(parts)
    width, parts = first.shape[1], itertools.chain([first], parts)
    if form == "npy":
        about = {"descr": "<f4", "fortran_order": False, "shape": (len(ids), width)}
        with (folder / f"{name}.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, about)
            for vectors in parts:
                file.write(np.ascontiguousarray(vectors, "<f4").data)
        write_text(folder / f"{name}.ids.txt", "".join(f"{row_id}\n" for row_id in ids))
        return
    rows = (row for vectors in parts for row in vectors)
    header = ["sample-id" if name == "samples" else "asv", *(f"d{i}" for i in range(width))]
    with (folder / f"{name}.tsv").open("w", encoding="utf-8", newline="") as lines:
        write_lines(lines, header, ids, rows, "\t%.6g")


# --- from Python ---------------------------------------------------------------------------------


class Model:
    """A trained model, or several that predict together, ready to be applied; made by `aam.load`.

    Attributes
    ----------
    paths : tuple of Path
        Where it was read from.
    models : tuple of SavedModel
        Those that predict together, with what predictions need.
    """

    def __init__(
        self, paths: tuple[Path, ...], models: Sequence[SavedModel], options: dict[str, Any]
    ) -> None:
        self.paths, self.models, self._options = paths, tuple(models), options

    def __repr__(self) -> str:
        paths = ", ".join(map(str, self.paths)) or "in memory"
        return f"Model({paths}; targets: {', '.join(self.targets) or 'none, an encoder'})"

    @property
    def targets(self) -> tuple[str, ...]:
        """The metadata columns that it predicts; none for an encoder of `aam.pretrain`."""
        return tuple(spec.name for spec in self.models[0].targets.specs)

    @property
    def depth(self) -> int:
        """Reads to which samples are rarefied; those with fewer cannot be predicted."""
        return self.models[0].depth

    def predict(self, table: Any, metadata: Any = None, **options: Any) -> pd.DataFrame:
        """Predict every sample of a table, as `aam predict` does.

        Parameters
        ----------
        table : biom.Table, DataFrame, AnnData, AmpliconTable or path
        metadata : DataFrame or path, optional
            The columns of covariates, by sample id, for a model that reads some.
        **options
            Of `aam predict`, such as ``prediction_passes`` or ``sequences``.

        Returns
        -------
        pandas.DataFrame
            By sample id the columns of the file that `aam predict` writes: targets, their spread
            and limits, probabilities, and ``note``, which says why a sample has no prediction.

        Raises
        ------
        InputError
            Bad options or tables, or an encoder without targets.
        """
        return file_frame(self.prediction_table(table, metadata, **options))

    def prediction_table(self, table: Any, metadata: Any = None, **options: Any) -> PredictionTable:
        """Return the predictions as `aam.evaluate` takes them; parameters as `predict`."""
        config = self._configured(PredictConfig(), table, options, metadata)
        study, _ = load_table(self.models, config, table, metadata)
        passes, runtime = config.prediction_passes, config.runtime
        return predict_samples(self.models, study, passes, runtime, config.new_study)

    def embed(self, table: Any, *, asvs: bool = False, **options: Any) -> pd.DataFrame:
        """Vectors of the samples that reach the depth, by sample id, or of all ASVs by sequence.

        Parameters
        ----------
        table : biom.Table, DataFrame, AnnData, AmpliconTable or path
        asvs : bool
            Whether the rows are ASVs. A reference tree such as ``16s`` has vectors of samples only.
        **options
            Of `aam embed`, such as ``rarefy_depth`` or ``sequences``.

        Raises
        ------
        InputError
            Bad options, a bad table, or vectors of ASVs asked of a reference tree.
        """
        config = self._configured(EmbedConfig(), table, options)
        study, samples, of_asvs, _ = embedded(self.models, config, table)
        parts, index = samples, pd.Index(study.table.sample_ids, name="sample-id")
        if asvs:
            # A reference has no vectors of ASVs, and says so.
            _ = self.models[0].required_network
            parts, index = not_none(of_asvs), pd.Index(study.table.sequences, name="asv")
        vectors = np.concatenate([*parts])
        return pd.DataFrame(vectors, index, [f"d{number}" for number in range(vectors.shape[1])])

    def distances(self, table: Any, metric: PlacedMetric = "unifrac", **options: Any) -> Any:
        """UniFrac between the samples that reach the depth, without a tree of their ASVs.

        It is what ``aam embed --distances`` writes, for a model with a reference tree.

        Parameters
        ----------
        table : biom.Table, DataFrame, AnnData, AmpliconTable or path
        metric : str
            ``unifrac`` (unweighted) or ``weighted-normalized``.
        **options
            Of `aam embed`.

        Returns
        -------
        skbio.DistanceMatrix

        Raises
        ------
        InputError
            Another metric, a model without a reference tree, a table that is not 16S, or
            scikit-bio is not installed.
        """
        skbio = import_extra("skbio", "skbio", "Model.distances")
        if metric not in get_args(PlacedMetric):
            expected = " or ".join(get_args(PlacedMetric))
            raise InputError(f"metric is {metric!r}, expected {expected}")
        config = self._configured(EmbedConfig(), table, options)
        study, on_tree = place_samples(self.models, config, table)
        values = np.zeros((len(study.table.sample_ids),) * 2)
        fill_tiles(values, on_tree.distances(metric))
        return skbio.DistanceMatrix(values, study.table.sample_ids)

    def place(self, table: Any, **options: Any) -> PlacedSamples:
        """Place the samples that reach the depth on the reference of a plugin, such as aam-16s.

        Parameters are those of `embed`.

        Raises
        ------
        InputError
            Bad options, a bad table, or a model without a reference.
        """
        config = self._configured(EmbedConfig(), table, options)
        return place_samples(self.models, config, table)[1]

    def explain(
        self,
        table: Any,
        metadata: Any = None,
        *,
        output_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> pd.DataFrame:
        """Effects of each ASV on the predictions of samples that the model has not learned from.

        Parameters
        ----------
        table : biom.Table, DataFrame, AnnData, AmpliconTable or path
        metadata : DataFrame or path, optional
            The true values by sample id, which importance needs, covariates, and groups that
            intervals resample.
        output_dir : path, optional
            Folder to write, as `aam explain` does: tables, figures and a page.
        **options
            Of `aam explain`, such as ``taxonomy``, ``group_column`` or ``prediction_passes``.

        Returns
        -------
        pandas.DataFrame
            By target and feature id the columns of the file features.tsv, the most important ASV
            first.

        Raises
        ------
        InputError
            Bad options or inputs, an encoder without targets, or a folder that holds other files.
        """
        from aam.api.explanation import explained

        folder = None if output_dir is None else Path(output_dir)
        overwrite = folder is not None and options.pop("overwrite", False)
        config = self._configured(ExplainConfig(), table, options, metadata)
        runtime = replace(config.runtime, output_dir=folder, overwrite=overwrite)
        explanations, _ = explained(replace(config, runtime=runtime), table, metadata, self.models)
        tables = {found.effects.spec.name: found.features for found in explanations}
        indexed = {name: table.set_index("feature-id") for name, table in tables.items()}
        return pd.concat(indexed, names=["target"])

    def _configured(
        self, default: Any, table: Any, options: Mapping[str, Any], metadata: Any = None
    ) -> Any:
        """Return the configuration of a command."""
        _refuse_useless(default, options)
        options = {**self._options, **options, "model": self.paths}
        return options_with(default, options, "options", table=table, metadata=metadata)


def _refuse_useless(default: Any, options: Mapping[str, Any]) -> None:
    """Raise `InputError` for options of a command that would do nothing in memory."""
    taken = [option for option in options_of(default) if option.about.of == "command"]
    if useless := sorted(options.keys() & (OF_FILES | {option.field.name for option in taken})):
        what = "of the command, and without effect here; take what is returned"
        raise InputError(f"{shown(useless)}: {what}")


def load(path: Paths, **options: Any) -> Model:
    """Load what `aam.pretrain`, an estimator or a command has written.

    Parameters
    ----------
    path : path or sequence of paths
        A model folder, the folder of its run, an ensemble, or several that predict together.
    **options
        Of the machine, as the commands have them: ``device``, ``threads``, ``mixed_precision``, ...

    Raises
    ------
    InputError
        There is no model, it is damaged, or an option does not exist.
    """
    paths = (path,) if isinstance(path, (str, os.PathLike)) else tuple(path or ())
    if not paths:
        remedy = "give the folder of a run or model, or the name of an encoder"
        raise InputError(f"aam.load: no path is given; {remedy}")
    folders = tuple(Path(name) for name in paths)
    config = configured(PredictConfig(), options, "aam.load")
    _refuse_useless(config, options)
    if others := sorted(options.keys() - vars(config.runtime).keys()):
        remedy = "give it to predict, embed or explain"
        raise InputError(f"aam.load: {shown(others)}: not of the machine; {remedy}")
    return Model(folders, prepare_models(folders, config.runtime), options)
