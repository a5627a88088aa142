"""Estimators of scikit-learn: the blend of `aam train` with a reader of tables in front."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.validation import check_is_fitted

from aam.api.models import Model
from aam.api.training import check_targets, fit_model, load_folds, split_of_all
from aam.config import (
    PREDICTION_PASSES,
    RESERVED,
    BestMetric,
    FineTuneConfig,
    Loss,
    Member,
    Missing,
    Transform,
    UnifracMetric,
)
from aam.data.inputs import (
    Inputs,
    TableLike,
    TreeLike,
    Values,
    aligned,
    is_missing_value,
    is_numeric,
    metadata_from,
    numbers_of,
    options_with,
    read_inputs,
    table_from,
)
from aam.errors import InputError, problem, reworded, shown
from aam.evaluate.predictions import PredictionTable
from aam.files.atomic import check_writable
from aam.io.ids import repeated
from aam.io.metadata import Metadata
from aam.io.tables import AmpliconTable
from aam.io.text import LARGEST_NUMBER, is_number
from aam.options import Attention, configured
from aam.predict.network import Network
from aam.predict.prediction import fit_intervals, predict_rows
from aam.predict.saved_model import save_model
from aam.typing import Floats, OptionValue, PathLike

if TYPE_CHECKING:
    from sklearn.utils import Tags
    from typing_extensions import Self


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class AmpliconEstimator:
    """Base of classifier and regressor. Each parameter is an option of `aam train`, except for
    those of its folder; a test compares names and defaults with the options.

    Only the default of ``test_size`` is 0 instead of a fifth, as scikit-learn holds samples out
    itself; above 0 the samples that are held out fit the intervals of `predict_interval`.

    Attributes
    ----------
    model_ : Model
        What was trained, as `aam.load` gives it.
    sample_ids_ : tuple of str
        The samples of the table that was fitted.
    feature_names_in_ : array of str [F]
    n_features_in_ : int
        The features of the table that was fitted. Other tables may have others.
    notes_ : dict of str to str
        Notes of the last prediction by sample, for example that reads are unlike those of training.
        Samples of more than 90 % unknown reads are predicted, with an `UnlikeTrainingWarning`.
    """

    decimal: Literal[".", ","] = "."
    missing_values: Sequence[str] = ()
    unifrac_metric: UnifracMetric = "unifrac"
    missing_tips: Missing = "error"
    midpoint_root: bool = False
    sequences: PathLike | None = None
    unifrac_matrix: PathLike | None = None
    rarefy_depth: int | None = None
    missing: Missing = "error"
    test_size: float | None = 0.0
    validation_size: float = 0.15
    trim: bool = False
    token_limit: int = 1024
    class_weights: Sequence[str] = ()
    target_transform: Transform = "zscore"
    loss_type: Loss = "huber"
    freeze_base: bool = False
    members: Sequence[Member] = ()
    best_metric: BestMetric = "val_loss"
    categorical_embed_dim: int = 16
    categorical_fusion: Literal["concat", "add"] = "concat"
    embedding_dim: int = 96
    attention_layers: int = 2
    attention_heads: int = 4
    dropout: float = 0.0
    max_bp: int | None = None
    epochs: int = 10
    batch_size: int | Literal["auto"] = 32
    lr: float = 1e-05
    weight_decay: float = 0.01
    warmup_steps: int | None = None
    gradient_accumulation_steps: int = 1
    max_grad_norm: float = 1.0
    patience: int = 10
    pretrained_encoder: PathLike | None = None
    penalty: float = 1.0
    nuc_penalty: float = 0.0
    count_penalty: float = 0.0
    nuc_mask_ratio: float = 0.15
    device: str = "auto"
    threads: int | None = None
    seed: int = 0
    num_workers: int = 0
    mixed_precision: Literal["auto", "bf16", "fp16", "none"] = "auto"
    attn_implementation: Attention = "auto"
    asv_chunk_size: int | None = None
    compile_model: bool = False
    gradient_checkpointing: bool = False
    deterministic: bool = False

    _classifier = False
    _metric: ClassVar[Any]

    def __sklearn_tags__(self) -> Tags:
        """Say that tables of reads, not numeric arrays, are read."""
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.two_d_array = False
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.target_tags.required = True
        tags.non_deterministic = False
        return tags

    def fit(
        self,
        X: TableLike,
        y: Values,
        groups: Values | None = None,
        covariates: pd.DataFrame | None = None,
        tree: TreeLike | None = None,
        studies: Values | None = None,
        sample_weight: Values | None = None,
    ) -> Self:
        """Fit the members of the blend to `y`; return the estimator.

        Parameters
        ----------
        X : biom.Table, DataFrame, AmpliconTable or path
            Reads of ASVs, named by their sequences; samples below the depth are left out.
        y : array or Series [N]
            Numbers, or classes. A Series that is indexed by sample ids is aligned by them; so are
            the following.
        groups : array or Series [N], optional
            The subject of each sample; penalties and early stopping look at whole groups.
        covariates : DataFrame [N, C], optional
            Further inputs: numeric columns as numbers, others as categories.
        tree : skbio.TreeNode or path, optional
            Phylogeny, for a UniFrac loss next to the targets of a network.
        studies : array or Series [N], optional
            The study of each sample, two or more; the model is to hold in a study that is new.
        sample_weight : array or Series [N], optional
            Weights of the samples, at least 0; only their ratios matter. A network takes none.

        Returns
        -------
        AmpliconRegressor or AmpliconClassifier
            The estimator.

        Raises
        ------
        InputError
            Options, table or values that cannot be learned from.

        Examples
        --------
        >>> metadata = pd.read_csv("metadata.tsv", sep="\\t", index_col="sample-id")
        >>> model = aam.AmpliconRegressor(rarefy_depth=300)
        >>> model = model.fit("table.biom", metadata["ph"], groups=metadata["subject"])
        >>> len(model.sample_ids_)
        60
        """
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        where = type(self).__name__
        parameters = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        inputs = read_inputs(configured(FineTuneConfig(), parameters, where), (), X, tree=tree)
        ids, target = inputs.tables[0].sample_ids, _target_name(y)
        self._learn_classes(aligned(y, ids, "y"))
        metadata, columns = self._metadata(ids, target, y, groups, covariates, studies)
        sources = {"table": X, "tree": tree, "metadata": metadata}
        config = options_with(FineTuneConfig(), parameters | columns, where, **sources)
        return self._learn(config, dataclasses.replace(inputs, metadata=metadata), sample_weight)

    def _learn(self, config: FineTuneConfig, inputs: Inputs, weights: Values | None) -> Self:
        """Fit the members of the blend, and the intervals if samples are held out for them; return
        the estimator.
        """
        table = inputs.tables[0]
        folds = load_folds(config, inputs=inputs)
        check_targets(folds)
        split = folds.splits[0] if len(folds.splits) == 1 else split_of_all(folds)
        weight_of = _weights(weights, table.sample_ids, folds.config.targets.members)
        saved = fit_model(folds, split, weights=weight_of)
        if ids := split.ids("test"):
            study, runtime = folds.study, folds.config.runtime
            held_out = predict_rows(saved, study, ids, runtime, PREDICTION_PASSES)
            _, notes = fit_intervals(held_out, study, {split: saved})
            saved = dataclasses.replace(saved, notes=dataclasses.replace(saved.notes, **notes))
        machine = {name: getattr(self, name) for name in ("device", "threads", "mixed_precision")}
        self.model_ = Model((), [saved], machine)
        self.sample_ids_ = table.sample_ids
        self.feature_names_in_ = np.array(table.names, object)
        self.n_features_in_ = len(table.names)
        return self

    def save(self, path: PathLike) -> None:
        """Write the model to a new folder, which `aam predict --model` and `aam.load` read.

        Parameters
        ----------
        path : path
            A folder that does not exist.

        Raises
        ------
        InputError
            The path exists or cannot be written.

        Examples
        --------
        >>> metadata = pd.read_csv("metadata.tsv", sep="\\t", index_col="sample-id")
        >>> model = aam.AmpliconClassifier(rarefy_depth=300, members=["presence"])
        >>> model.fit("table.biom", metadata["biome"]).save("new-model")
        >>> aam.load("new-model").targets
        ('biome',)
        """
        check_writable(Path(path), overwrite=True)
        if Path(path).exists():
            fault = "exists already and is never replaced"
            raise InputError(f"{path}: {fault}; choose another path, or remove it first")
        save_model(Path(path), self._fitted().models[0])

    def _fitted(self) -> Model:
        """The model; scikit-learn's error before `fit`."""
        check_is_fitted(self, "model_")
        return self.model_

    def explain(
        self,
        X: TableLike,
        y: Values | None = None,
        groups: Values | None = None,
        covariates: pd.DataFrame | None = None,
        *,
        output_dir: PathLike | None = None,
        **options: OptionValue,
    ) -> pd.DataFrame:
        """Effects of each ASV on the predictions of new samples, as `Model.explain`.

        Parameters
        ----------
        X, y, groups, covariates
            As those of `fit`; without `y` there are effects on predictions and no importance.
        output_dir : path, optional
            Folder to write, as `aam explain` does.
        **options
            Of `Model.explain`, such as ``taxonomy`` or ``prediction_passes``.

        Returns
        -------
        pandas.DataFrame
            By feature id, the most important ASV first.

        Raises
        ------
        InputError
            Bad options or inputs.

        Examples
        --------
        >>> metadata = pd.read_csv("metadata.tsv", sep="\\t", index_col="sample-id")
        >>> model = aam.AmpliconRegressor(rarefy_depth=300, members=["presence"])
        >>> model = model.fit("table.biom", metadata["ph"])
        >>> effects = model.explain("table.biom", metadata["ph"], prediction_passes=1)
        >>> effects.index.name
        'feature-id'
        """
        (target,), metadata = self._fitted().targets, None
        if any(values is not None for values in (y, groups, covariates)):
            ids = self._table(X).sample_ids
            metadata, columns = self._metadata(ids, target, y, groups, covariates)
            options["group_column"] = columns["group_column"]
        options = {"sequences": self.sequences, "trim": self.trim, **options}
        return self.model_.explain(X, metadata, output_dir=output_dir, **options).loc[target]

    def score(
        self,
        X: TableLike,
        y: Values,
        covariates: pd.DataFrame | None = None,
        sample_weight: Values | None = None,
    ) -> float:
        """R2 of the predicted numbers, or accuracy of the predicted classes.

        Parameters
        ----------
        X, y, covariates, sample_weight
            As those of `fit`.

        Returns
        -------
        float

        Raises
        ------
        InputError
            A sample that cannot be predicted, or values of another number of samples.

        Examples
        --------
        >>> metadata = pd.read_csv("metadata.tsv", sep="\\t", index_col="sample-id")
        >>> model = aam.AmpliconClassifier(rarefy_depth=300, members=["presence"])
        >>> model = model.fit("table.biom", metadata["biome"])
        >>> model.score("table.biom", metadata["biome"]) > 0.5
        True
        """
        table = self._table(X)
        truth = np.array(aligned(y, table.sample_ids, "y"))
        weight_of = _weights(sample_weight, table.sample_ids)
        weights = None if weight_of is None else [*weight_of.values()]
        predicted = self.predict(table, covariates)  # type: ignore[attr-defined]
        return float(self._metric(truth, predicted, sample_weight=weights))

    def _metadata(
        self,
        sample_ids: Sequence[str],
        target: str,
        y: Values | None = None,
        groups: Values | None = None,
        covariates: pd.DataFrame | None = None,
        studies: Values | None = None,
    ) -> tuple[Metadata, dict[str, Any]]:
        """Return target, groups, covariates and studies as metadata, and the options that say which
        column is what.
        """
        frame = _covariates(covariates, sample_ids)
        if target in frame:
            reason = f"the column {target!r} has the name of the target; rename one of the two"
            raise InputError(f"covariates: {reason}")
        numeric = [name for name, column in frame.items() if is_numeric(column)]
        categorical = [name for name in frame if name not in numeric]
        frame = frame.astype(dict.fromkeys(categorical, "category"))
        options: dict[str, Any] = {"metadata_column": (target,), "classifier": self._classifier}
        options |= {"categorical_columns": categorical, "numeric_columns": numeric}
        options |= {"group_column": None, "study_column": None}
        if y is not None:
            frame[target] = self._target_column(aligned(y, sample_ids, "y"))
        for role, name, values in (("group", "groups", groups), ("study", "studies", studies)):
            if values is not None:
                options[f"{role}_column"] = column = _unused_name(role, [*frame, target])
                frame[column] = pd.Categorical(aligned(values, sample_ids, name))
        metadata = metadata_from(frame, name="y, groups and covariates", scheme="blank")
        return metadata.nested(options["group_column"], options["study_column"]), options

    def _table(self, X: TableLike) -> AmpliconTable:
        """Read a table with the options of the estimator."""
        sequences = None if self.sequences is None else Path(self.sequences)
        return table_from(X, sequences, merge=self.trim)

    def _learn_classes(self, values: list[Any]) -> None:
        """Set the attributes of a classifier; a regressor has none."""

    def _target_column(self, values: list[Any]) -> Any:
        """Return the values of the target as numbers, or as the text of classes.

        Raises
        ------
        InputError
            A value that is no finite number.
        """
        raise NotImplementedError

    def _predicted(
        self, X: TableLike, covariates: pd.DataFrame | None, new_study: bool = False
    ) -> tuple[PredictionTable, Floats]:
        """Return the predictions of every sample; `InputError` if a sample has none."""
        model, metadata = self._fitted(), None
        if covariates is None and (columns := model.models[0].covariates.columns):
            fault = f"not given, and the model reads {shown(columns)}"
            raise InputError(problem("covariates", fault, remedy="pass a DataFrame"))
        table = self._table(X)
        if covariates is not None:
            (target,) = model.targets
            metadata, _ = self._metadata(table.sample_ids, target, covariates=covariates)
        options = {"trim": self.trim, "new_study": new_study, "predict_unlike": True}
        predictions = model.prediction_table(table, metadata, **options)
        ids, notes = predictions.sample_ids, predictions.texts("note")
        self.notes_ = {name: note for name, note in zip(ids, notes, strict=True) if note}
        values = predictions.predicted(predictions.specs[0].name)
        rows = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
        if len(rows):
            example = f"{ids[rows[0]]!r} ({notes[rows[0]]})"
            raise InputError(
                f"{len(rows)} of {len(values)} samples cannot be predicted, such as {example}; "
                "leave them out (the result of aam.read_table has .depths and can be divided), or "
                "use model_.predict, which leaves their rows empty"
            )
        return predictions, values


def _weights(
    sample_weight: Values | None, sample_ids: Sequence[str], members: Sequence[str] = ()
) -> dict[str, float] | None:
    """Weights by sample, if there are any; `InputError` for one that is not a number of at least 0,
    for no weight above 0, or for members that take no weights.
    """
    if sample_weight is None:
        return None
    if Network.name in members:
        remedy = 'leave it out, or pass members=("presence", "forest")'
        raise InputError(f"sample_weight: the network takes no weights; {remedy}")
    with reworded((TypeError, ValueError), "sample_weight: not numbers"):
        weights = np.array(aligned(sample_weight, sample_ids, "sample_weight"), np.float64)
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        expected = "expected finite numbers of at least 0, of which some are above 0"
        raise InputError(f"sample_weight: {shown(weights.tolist(), 3)}; {expected}")
    return dict(zip(sample_ids, weights.tolist(), strict=True))


def _target_name(y: Values) -> str:
    """Name of a Series, if predictions can have a column of this name, else y."""
    name = getattr(y, "name", None)
    return name if isinstance(name, str) and name not in ("", *RESERVED) else "y"


def _unused_name(name: str, columns: Collection[str]) -> str:
    """A name of a column that `columns` do not have."""
    while name in columns:
        name += "-1"
    return name


def _covariates(covariates: pd.DataFrame | None, sample_ids: Sequence[str]) -> pd.DataFrame:
    """The rows of a DataFrame in the order of `sample_ids`, with its columns called by text."""
    index = pd.Index(sample_ids, dtype=object)
    if covariates is None:
        return pd.DataFrame(index=index)
    if not isinstance(covariates, pd.DataFrame):
        kind = type(covariates).__name__
        raise InputError(f"covariates is {kind}, expected a DataFrame by sample id")
    if names := repeated(map(str, covariates.columns)):
        raise InputError(f"covariates: columns of the same name: {shown(names)}; rename them")
    places = pd.Series(range(len(covariates)), covariates.index)
    rows = aligned(places, sample_ids, "covariates", "reset_index(drop=True)")
    return covariates.iloc[rows].set_axis(index).rename(columns=str)


class AmpliconRegressor(AmpliconEstimator, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Regression of a number on amplicon tables; parameters and `fit` as `AmpliconEstimator`."""

    _metric = staticmethod(r2_score)

    def _target_column(self, values: list[Any]) -> Floats:
        present = (str(value) for value in values if not is_missing_value(value))
        if faulty := [value for value in present if not is_number(value)]:
            expected = f"expected numbers of at most {LARGEST_NUMBER:g}"
            raise InputError(f"y: {shown(faulty, 3)}; {expected}, or use AmpliconClassifier")
        return numbers_of(values)

    def predict(
        self, X: TableLike, covariates: pd.DataFrame | None = None, new_study: bool = False
    ) -> Floats:
        """Predict the number of each sample.

        Parameters
        ----------
        X, covariates
            As those of `fit`.
        new_study : bool
            Whether the samples are of one study that `fit` had not; they are then centred on their
            mean.

        Returns
        -------
        float64 [N]
            In the units of `y`.

        Raises
        ------
        InputError
            A sample has fewer reads than the model's depth, or covariates that the model reads are
            not given.

        Examples
        --------
        >>> metadata = pd.read_csv("metadata.tsv", sep="\\t", index_col="sample-id")
        >>> model = aam.AmpliconRegressor(rarefy_depth=300).fit("table.biom", metadata["ph"])
        >>> model.predict("table.biom").shape
        (60,)
        """
        return self._predicted(X, covariates, new_study)[1]

    def predict_interval(self, X: TableLike, covariates: pd.DataFrame | None = None) -> Floats:
        """Conformal intervals that contain 90 % of the true values.

        Parameters
        ----------
        X, covariates
            As those of `fit`.

        Returns
        -------
        float64 [N, 2]
            The lower and the upper limit of each sample.

        Raises
        ------
        InputError
            The estimator was not fitted with ``test_size``, or too few groups were held out to fit
            intervals.

        Examples
        --------
        >>> metadata = pd.read_csv("metadata.tsv", sep="\\t", index_col="sample-id")
        >>> model = aam.AmpliconRegressor(rarefy_depth=300, test_size=0.5)
        >>> model.fit("table.biom", metadata["ph"]).predict_interval("table.biom").shape
        (60, 2)
        """
        table, _ = self._predicted(X, covariates)
        limits = table.limits(table.specs[0].name)
        if limits is None:
            remedy = "fit with test_size=0.2, or more samples"
            why = f"test_size is {self.test_size}, and intervals are fitted on at least 20 held-out"
            raise InputError(f"no interval: {why} groups; {remedy}")
        return limits


class AmpliconClassifier(AmpliconEstimator, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classification of amplicon tables; parameters and `fit` as `AmpliconEstimator`.

    Attributes
    ----------
    classes_ : array [K]
        The classes of `y`, in ascending order.
    """

    _classifier = True
    _metric = staticmethod(accuracy_score)

    def _target_column(self, values: list[Any]) -> Any:
        return pd.Categorical([*map(str, np.array(values).tolist())])

    def _learn_classes(self, values: list[Any]) -> None:
        """Set `classes_`, and the class of each label of the model; `InputError` for values that
        are missing or no classes.
        """
        if places := [place for place, value in enumerate(values) if is_missing_value(value)]:
            first = f"the first at position {places[0]}"
            raise InputError(f"y: {len(places)} samples have no class, {first}")
        array = np.array(values)
        if array.ndim != 1:
            expected = "text, a number or a truth value"
            raise InputError(f"y: a class is {values[0]!r:.60}, expected {expected}")
        self.classes_ = np.unique(array)
        labels = [str(value).strip() for value in self.classes_.tolist()]
        self._label_of = {label: place for place, label in enumerate(labels)}
        if len(self._label_of) < len(labels) or "" in labels:
            fault = "classes are empty or differ in white space only"
            raise InputError(f"y: {fault}: {shown(map(repr, self.classes_))}")

    def predict_proba(
        self, X: TableLike, covariates: pd.DataFrame | None = None, new_study: bool = False
    ) -> Floats:
        """Predict the probability of each class.

        Parameters
        ----------
        X, covariates, new_study
            As those of `predict`.

        Returns
        -------
        float64 [N, K]
            In the order of ``classes_``.

        Raises
        ------
        InputError
            As `predict`.

        Examples
        --------
        >>> metadata = pd.read_csv("metadata.tsv", sep="\\t", index_col="sample-id")
        >>> model = aam.AmpliconClassifier(rarefy_depth=300).fit("table.biom", metadata["biome"])
        >>> model.predict_proba("table.biom").shape
        (60, 4)
        """
        table, values = self._predicted(X, covariates, new_study)
        probabilities = np.zeros((len(values), len(self.classes_)))
        probabilities[:, [self._label_of[label] for label in table.specs[0].labels]] = values
        return probabilities

    def predict(
        self, X: TableLike, covariates: pd.DataFrame | None = None, new_study: bool = False
    ) -> npt.NDArray[np.generic]:
        """Predict the most probable class of each sample.

        Parameters
        ----------
        X, covariates
            As those of `fit`.
        new_study : bool
            Whether the samples are of one study that `fit` had not; they are then centred on their
            mean.

        Returns
        -------
        array [N]
            Classes of ``classes_``.

        Raises
        ------
        InputError
            A sample has fewer reads than the model's depth, or covariates that the model reads are
            not given.

        Examples
        --------
        >>> metadata = pd.read_csv("metadata.tsv", sep="\\t", index_col="sample-id")
        >>> model = aam.AmpliconClassifier(rarefy_depth=300).fit("table.biom", metadata["biome"])
        >>> set(model.predict("table.biom").tolist()) <= {"gut", "skin", "mouth", "gill"}
        True
        """
        places = self.predict_proba(X, covariates, new_study).argmax(axis=1)
        return np.asarray(self.classes_[places])
