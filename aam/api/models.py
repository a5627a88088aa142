"""Trained models applied to data in memory: predictions and embeddings as data frames."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

import pandas as pd

from aam.api.apply import embedded, place_samples, predicted, prepare_models
from aam.api.explanation import explained, with_folds
from aam.api.unifrac import distance_matrix
from aam.config import EmbedConfig, ExplainConfig, PredictConfig
from aam.data.inputs import MetadataLike, TableLike, options_with
from aam.data.study import PlacedMetric, PlacedSamples
from aam.errors import InputError, problem, shown
from aam.evaluate.predictions import PredictionTable, file_frame
from aam.options import RuntimeConfig, configured, not_none, options_of
from aam.predict.saved_model import SavedModel
from aam.typing import OptionValue, PathLike

if TYPE_CHECKING:
    import skbio

# Options of commands that say where models and tables lie and what is written.
FILE_OPTIONS = frozenset(
    {"model", "table", "output", "output_dir", "overwrite", "format", "distances"}
)

Config = TypeVar("Config", PredictConfig, EmbedConfig, ExplainConfig)


class Model:
    """A trained model, or several that predict together, ready to be applied; made by `aam.load`.

    Attributes
    ----------
    paths : tuple of Path
        Where it was read from.
    models : tuple of SavedModel
        Those that predict together, with what predictions need.

    Examples
    --------
    >>> model = aam.load("model")
    >>> model
    Model(model; targets: ph)
    >>> model.depth
    300
    """

    def __init__(
        self,
        paths: tuple[Path, ...],
        models: Sequence[SavedModel],
        options: Mapping[str, OptionValue],
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

    def predict(
        self, table: TableLike, metadata: MetadataLike | None = None, **options: OptionValue
    ) -> pd.DataFrame:
        """Predict every sample of a table, as `aam predict` does.

        Parameters
        ----------
        table : biom.Table, DataFrame, AmpliconTable or path
        metadata : DataFrame or path, optional
            The columns of covariates, by sample id, for a model that reads some.
        **options
            Of `aam predict`, such as ``prediction_passes`` or ``sequences``.

        Returns
        -------
        pandas.DataFrame
            By sample id the columns of the file that `aam predict` writes: targets, their spread
            and limits, probabilities, and ``fold``, ``subset`` and ``note``, which say what a
            sample was to the model and why it has no prediction.

        Raises
        ------
        InputError
            Bad options or tables, or an encoder without targets.

        Examples
        --------
        >>> predictions = aam.load("model").predict("table.biom")
        >>> list(predictions.columns)
        ['ph', 'ph.rarefaction-sd', 'fold', 'subset', 'note']
        """
        return file_frame(self.prediction_table(table, metadata, **options))

    def prediction_table(
        self, table: TableLike, metadata: MetadataLike | None = None, **options: OptionValue
    ) -> PredictionTable:
        """Predict as `predict` does, with the targets of the model next to the predictions.

        Parameters
        ----------
        table, metadata, **options
            As those of `predict`.

        Returns
        -------
        aam.evaluate.predictions.PredictionTable

        Raises
        ------
        InputError
            As `predict`.

        Examples
        --------
        >>> table = aam.load("model").prediction_table("table.biom")
        >>> table.predicted("ph").shape
        (60,)
        """
        config = self._configured(PredictConfig(), table, options, metadata)
        return predicted(self.models, config, table, metadata)[1]

    def embed(
        self, table: TableLike, *, asvs: bool = False, **options: OptionValue
    ) -> pd.DataFrame:
        """Vectors of the samples that reach the depth, by sample id, or of all ASVs by sequence.

        Parameters
        ----------
        table : biom.Table, DataFrame, AmpliconTable or path
        asvs : bool
            Whether the rows are ASVs, which only a network has vectors of.
        **options
            Of `aam embed`, such as ``rarefy_depth`` or ``sequences``.

        Returns
        -------
        pandas.DataFrame
            A row per sample or ASV, and a column per number of its vector.

        Raises
        ------
        InputError
            Bad options, a bad table, or vectors of ASVs asked of a reference tree.

        Examples
        --------
        >>> options = {"rarefy_depth": 300, "embedding_dim": 16, "attention_heads": 2, "epochs": 1}
        >>> encoder = aam.pretrain("table.biom", "tree.nwk", output_dir="pretrained", **options)
        >>> encoder.embed("table.biom", asvs=True).shape
        (80, 16)
        """
        config = self._configured(EmbedConfig(), table, options)
        _, samples, asv_vectors, _ = embedded(self.models, config, table)
        if not asvs:
            return samples
        # Its error names models with vectors of ASVs, which a reference tree has not.
        self.models[0].require_network()
        return not_none(asv_vectors)

    def distances(
        self, table: TableLike, metric: PlacedMetric = "unifrac", **options: OptionValue
    ) -> skbio.DistanceMatrix:
        """UniFrac between the samples that reach the depth, without a tree of their ASVs.

        It is what ``aam embed --distances`` writes, for a model with a reference tree.

        Parameters
        ----------
        table : biom.Table, DataFrame, AmpliconTable or path
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
            Another metric, a model without a reference tree, or a table that is not 16S.

        Examples
        --------
        The plugin aam-16s has the model ``16s-v4``:

        >>> aam.load("16s-v4").distances("table.biom")  # doctest: +SKIP
        """
        if metric not in get_args(PlacedMetric):
            expected = " or ".join(get_args(PlacedMetric))
            raise InputError(f"metric is {metric!r}, expected {expected}")
        config = self._configured(EmbedConfig(), table, options)
        study, on_tree = place_samples(self.models, config, table)
        return distance_matrix(study.table.sample_ids, on_tree.distances(metric))

    def place(self, table: TableLike, **options: OptionValue) -> PlacedSamples:
        """Place the samples that reach the depth on the reference of a plugin, such as aam-16s.

        Parameters
        ----------
        table, **options
            As those of `embed`.

        Returns
        -------
        aam.data.study.PlacedSamples
            With the methods ``distances``, ``vectors`` and ``taxa``.

        Raises
        ------
        InputError
            Bad options, a bad table, or a model without a reference.

        Examples
        --------
        >>> aam.load("16s-v4").place("table.biom")  # doctest: +SKIP
        """
        config = self._configured(EmbedConfig(), table, options)
        return place_samples(self.models, config, table)[1]

    def explain(
        self,
        table: TableLike,
        metadata: MetadataLike | None = None,
        *,
        output_dir: PathLike | None = None,
        **options: OptionValue,
    ) -> pd.DataFrame:
        """Effects of each ASV on the predictions of samples that the model has not learned from;
        after `aam.load` of a cross-validation, its folds predict them.

        Parameters
        ----------
        table : biom.Table, DataFrame, AmpliconTable or path
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

        Examples
        --------
        >>> model = aam.load("model")
        >>> effects = model.explain("table.biom", "metadata.tsv", prediction_passes=1)
        >>> effects.index.names
        FrozenList(['target', 'feature-id'])
        """
        folder = None if output_dir is None else Path(output_dir)
        overwrite = folder is not None and bool(options.pop("overwrite", False))
        config = self._configured(ExplainConfig(), table, options, metadata)
        runtime = replace(config.runtime, output_dir=folder, overwrite=overwrite)
        # The model of all samples has learned from those of a cross-validation.
        folders = with_folds(self.paths)
        models = self.models if folders == self.paths else prepare_models(folders, runtime)
        explanations, _ = explained(replace(config, runtime=runtime), table, metadata, models)
        tables = {x.effects.spec.name: x.features for x in explanations}
        indexed = {name: table.set_index("feature-id") for name, table in tables.items()}
        return pd.concat(indexed, names=["target"])

    def _configured(
        self,
        default: Config,
        table: TableLike,
        options: Mapping[str, OptionValue],
        metadata: MetadataLike | None = None,
    ) -> Config:
        """Return the configuration of a command."""
        _refuse_useless(default, options)
        options = {**self._options, **options, "model": self.paths}
        return options_with(default, options, "options", table=table, metadata=metadata)


def _refuse_useless(default: object, options: Mapping[str, OptionValue]) -> None:
    """Raise `InputError` for options of a command that would do nothing in memory."""
    names = {option.field.name for option in options_of(default) if option.about.of == "command"}
    if useless := sorted(options.keys() & (FILE_OPTIONS | names)):
        fault = "of the command, and without effect here; take what is returned"
        raise InputError(problem(shown(useless), fault))


def load(path: PathLike | Sequence[PathLike], **options: OptionValue) -> Model:
    """Load what `aam.pretrain`, an estimator or a command has written.

    Parameters
    ----------
    path : path or sequence of paths
        A model folder, the folder of its run, an ensemble, or several that predict together.
    **options
        Of the machine, as the commands have them: ``device``, ``threads``, ``mixed_precision``, ...

    Returns
    -------
    Model

    Raises
    ------
    InputError
        There is no model, it is damaged, or an option is not one of the machine.

    Examples
    --------
    >>> aam.load("model", device="cpu").targets
    ('ph',)
    """
    paths = (path,) if isinstance(path, (str, os.PathLike)) else tuple(path or ())
    if not paths:
        remedy = "give the folder of a run or model, or the name of an encoder"
        raise InputError(f"aam.load: no path is given; {remedy}")
    folders = tuple(Path(name) for name in paths)
    runtime = configured(RuntimeConfig(), options, "aam.load")
    _refuse_useless(runtime, options)
    return Model(folders, prepare_models(folders, runtime), options)
