"""Estimators of scikit-learn: the blend of `aam train` with a reader of tables in front."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, r2_score

from aam.api.memory import (
    aligned,
    check_column_names,
    inputs_of,
    is_missing_value,
    is_numeric,
    metadata_of_columns,
    option_of,
    sample_table,
)
from aam.api.models import Model
from aam.api.training import check_targets, fit_model, load_folds, split_of_all
from aam.config import PREDICTION_PASSES, RESERVED, FineTuneConfig
from aam.errors import InputError, shown
from aam.evaluate.predictions import PredictionTable
from aam.files.atomic import check_writable
from aam.io.metadata import Metadata, is_number
from aam.options import IN_MEMORY, configured, keyword_options, option_problems
from aam.predict.prediction import fit_intervals, predict_rows
from aam.predict.saved_model import load_encoder, save_model
from aam.report.training import judged_columns
from aam.training.network import Place

Floats = npt.NDArray[np.float64]

# The parameters of an estimator are the options of `aam train`, except for those of its folder.
# Only one default differs: nothing is held out for a test, which scikit-learn does outside.
DEFAULTS = {**keyword_options(FineTuneConfig()), "test_size": 0.0}
OF_FOLDER = ("output_dir", "overwrite")
FIELDS = [
    (name, Any, dataclasses.field(default=default))
    for name, default in DEFAULTS.items()
    if name not in OF_FOLDER
]
Parameters: Any = dataclasses.make_dataclass(
    "Parameters", FIELDS, eq=False, repr=False, kw_only=True
)


class AmpliconEstimator(Parameters, BaseEstimator):  # type: ignore[misc]
    """Base of classifier and regressor. Each parameter is an option of `aam train`.

    Only the default of ``test_size`` is 0 instead of a fifth, as scikit-learn holds samples out
    itself; above 0 the samples that are held out fit the intervals of `predict_interval`.

    Attributes
    ----------
    model_ : Model
        What was trained, as `aam.load` gives it.
    sample_ids_ : tuple of str
        The samples of the table that was fitted.
    """

    _classifier = False

    def __sklearn_tags__(self) -> Any:
        """Say that tables of reads, not numeric arrays, are read."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.target_tags.required = True
        tags.non_deterministic = False
        return tags

    def fit(
        self,
        X: Any,
        y: Any,
        groups: Any = None,
        covariates: Any = None,
        tree: Any = None,
        studies: Any = None,
    ) -> Any:
        """Fit the members of the blend to `y`; return the estimator.

        Parameters
        ----------
        X : biom.Table, DataFrame, AnnData, AmpliconTable or path
            Reads of ASVs, whose names are sequences. Samples with fewer reads than the rarefaction
            depth are left out.
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

        Raises
        ------
        InputError
            Options, table or values that cannot be learned from.
        """
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        config = configured(FineTuneConfig(), self.get_params(deep=False), type(self).__name__)
        table = sample_table(X, config.data.sequences, merge=config.data.trim)
        target = _target_name(y)
        self._check_target(aligned(y, table.sample_ids, "y"))
        metadata, columns = self._metadata(table.sample_ids, target, y, groups, covariates, studies)
        inputs = inputs_of(config.data, table, tree, metadata)
        columns |= {"table": option_of(X), "tree": option_of(tree), "metadata": IN_MEMORY}
        columns |= {"metadata_column": (target,), "classifier": self._classifier}
        config = configured(config, columns, type(self).__name__)
        if problems := option_problems(config):
            raise InputError(*problems)
        folds = load_folds(config, inputs=inputs)
        check_targets(folds)
        split = folds.splits[0] if len(folds.splits) == 1 else split_of_all(folds)
        place = Place(folds.device, encoder=load_encoder(config.train, ""))
        saved = fit_model(folds, split, place)
        if split.ids("test"):
            ids, study = split.ids("test"), folds.study
            held_out = predict_rows(saved, study, ids, config.runtime, PREDICTION_PASSES)
            judged = judged_columns(folds.config)
            saved.notes.update(fit_intervals(held_out, study, {split: saved}, judged)[1])
        machine = ("device", "threads", "mixed_precision")
        self.model_ = Model((), [saved], {name: getattr(self, name) for name in machine})
        self.sample_ids_ = table.sample_ids
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a new folder, which `aam predict --model` and `aam.load` read."""
        check_writable(Path(path), overwrite=True)
        if Path(path).exists():
            raise InputError(f"{path}: exists already; choose another path")
        save_model(Path(path), self._fitted().models[0])

    def _fitted(self) -> Model:
        """The model; scikit-learn's error before `fit`."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self.model_

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def explain(
        self, X: Any, y: Any = None, groups: Any = None, covariates: Any = None, **options: Any
    ) -> pd.DataFrame:
        """Effects of each ASV on the predictions of new samples, as `Model.explain`.

        Parameters
        ----------
        X, y, groups, covariates
            As those of `fit`; without `y` there are effects on predictions and no importance.
        **options
            Of `Model.explain`, such as ``tree``, ``output_dir`` or ``taxonomy``.

        Returns
        -------
        pandas.DataFrame
            By feature id, the most important ASV first.

        Raises
        ------
        InputError
            Bad options or inputs.
        """
        model = self._fitted()
        (target,) = model.targets
        metadata = None
        if any(values is not None for values in (y, groups, covariates)):
            metadata, columns = self._metadata(self._sample_ids(X), target, y, groups, covariates)
            options["group_column"] = columns["group_column"]
        return model.explain(X, metadata, **{**self._of_table(), **options}).loc[target]

    def _of_table(self) -> dict[str, Any]:
        """Options of reading a table for fits, predictions and explanations."""
        return {name: getattr(self, name) for name in ("sequences", "trim")}

    def _metadata(
        self,
        sample_ids: Sequence[str],
        target: str,
        y: Any = None,
        groups: Any = None,
        covariates: Any = None,
        studies: Any = None,
    ) -> tuple[Metadata, dict[str, Any]]:
        """Return target, groups, covariates and studies as metadata, and the options that say which
        column is what.
        """
        categories, numbers = _covariates(covariates, sample_ids)
        if target in categories or target in numbers:
            raise InputError(
                f"covariates: the column {target!r} has the name of the target; rename one of "
                "the two"
            )
        columns = categories | numbers
        text = list(categories)
        if y is not None:
            values = aligned(y, sample_ids, "y")
            columns[target] = (
                [str(value) for value in np.array(values).tolist()] if self._classifier else values
            )
            text += [target] if self._classifier else []
        options: dict[str, Any] = {
            "categorical_columns": (*categories,),
            "numeric_columns": (*numbers,),
        }
        for what, usual, values in (("groups", "group", groups), ("studies", "study", studies)):
            # The first of these names that covariates do not have.
            names = itertools.chain([usual], (f"{usual}-{number}" for number in itertools.count(1)))
            name = None if values is None else next(name for name in names if name not in columns)
            options[f"{usual}_column"] = name
            if name is not None:
                columns[name] = aligned(values, sample_ids, what)
                text.append(name)
        source = "covariates" if y is None and groups is None else "y, groups and covariates"
        return metadata_of_columns(sample_ids, columns, text, source), options

    def _sample_ids(self, X: Any) -> tuple[str, ...]:
        """Return the samples of a table in its order."""
        return sample_table(X, option_of(self.sequences), need_sequences=False).sample_ids

    def _check_target(self, values: list[Any]) -> None:
        """Raise `InputError` for values that cannot be learned, and remember the classes where
        there are some.
        """

    def _predicted(self, X: Any, covariates: Any, new_study: bool = False) -> PredictionTable:
        """Return the predictions of every sample; `InputError` if a sample has none."""
        model = self._fitted()
        options = {**self._of_table(), "new_study": new_study}
        metadata = None
        if covariates is None and (columns := model.models[0].covariates.columns):
            raise InputError(
                f"covariates: not given, and the model reads {shown(columns)}; pass a DataFrame"
            )
        if covariates is not None:
            (target,) = model.targets
            metadata, _ = self._metadata(self._sample_ids(X), target, covariates=covariates)
        table = model.prediction_table(X, metadata, **options)
        values = table.predicted(table.specs[0].name)
        empty = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
        if len(empty):
            first = empty[0]
            raise InputError(
                f"{len(empty)} of {len(values)} samples cannot be predicted, such as "
                f"{table.sample_ids[first]!r} ({table.texts('note')[first]}); leave them out (the "
                "result of aam.read_table has .depths and can be divided), or use model_.predict, "
                "which leaves their rows empty"
            )
        return table


def _target_name(y: Any) -> str:
    """Return the name of a Series, where a column of metadata may have it."""
    name = getattr(y, "name", None)
    return name if isinstance(name, str) and name and name not in RESERVED else "y"


def _covariates(
    covariates: Any, sample_ids: Sequence[str]
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Return the categorical and the numeric columns of a DataFrame, in the order of
    `sample_ids`.
    """
    categories: dict[str, list[Any]] = {}
    numbers: dict[str, list[Any]] = {}
    if covariates is not None and not hasattr(covariates, "columns"):
        raise InputError(
            f"covariates is {type(covariates).__name__}, expected a DataFrame by sample id"
        )
    if covariates is not None:
        check_column_names(covariates, "covariates")
    for column in () if covariates is None else covariates.columns:
        values = aligned(covariates[column], sample_ids, f"covariates[{column!r}]")
        (numbers if is_numeric(covariates[column]) else categories)[str(column)] = values
    return categories, numbers


class AmpliconRegressor(RegressorMixin, AmpliconEstimator):  # type: ignore[misc]
    """Regression of a number on amplicon tables; parameters and `fit` as `AmpliconEstimator`."""

    def _check_target(self, values: list[Any]) -> None:
        for value in values:
            if not is_missing_value(value) and not is_number(str(value)):
                raise InputError(
                    f"y: {str(value)[:60]!r} is not a finite number; correct it, or use "
                    "AmpliconClassifier"
                )

    def predict(self, X: Any, covariates: Any = None, new_study: bool = False) -> Floats:
        """Return the predicted number of each sample, [N], in the units of `y`.

        With `new_study` the samples are of one study that `fit` had not, and are read relative to
        their own mean.

        Raises
        ------
        InputError
            A sample has fewer reads than the model's depth, or covariates that the model reads are
            not given.
        """
        table = self._predicted(X, covariates, new_study)
        return table.predicted(table.specs[0].name)

    def predict_interval(self, X: Any, covariates: Any = None) -> Floats:
        """Return the lower and upper limit of 90 % conformal intervals, [N, 2].

        Raises
        ------
        InputError
            The estimator was not fitted with ``test_size``, or too few groups were held out to fit
            intervals.
        """
        table = self._predicted(X, covariates)
        limits = table.limits(table.specs[0].name)
        if limits is None:
            raise InputError(
                f"no interval: test_size is {self.test_size}, and intervals are fitted on at "
                "least 20 held-out groups; "
                "fit with test_size=0.2, or more samples"
            )
        return limits

    def score(self, X: Any, y: Any, covariates: Any = None) -> float:
        """Return R2 of the predictions of `X`."""
        return float(r2_score(aligned(y, self._sample_ids(X), "y"), self.predict(X, covariates)))


class AmpliconClassifier(ClassifierMixin, AmpliconEstimator):  # type: ignore[misc]
    """Classification of amplicon tables; parameters and `fit` as `AmpliconEstimator`.

    Attributes
    ----------
    classes_ : array [K]
        The classes of `y`, in ascending order.
    """

    _classifier = True

    def _check_target(self, values: list[Any]) -> None:
        """Remember the classes, and which value each text of metadata is; `InputError` for missing
        values.
        """
        if missing := [number for number, value in enumerate(values) if is_missing_value(value)]:
            raise InputError(
                f"y: {len(missing)} samples have no class, the first at position {missing[0]}"
            )
        array = np.array(values)
        if array.ndim != 1:
            raise InputError(
                f"y: a class is {values[0]!r:.60}, expected text, a number or a truth value"
            )
        self.classes_ = np.unique(array)
        self._label_of = {
            str(value).strip(): place for place, value in enumerate(self.classes_.tolist())
        }
        if len(self._label_of) < len(self.classes_) or "" in self._label_of:
            raise InputError(
                "y: classes are empty or differ in white space only: "
                f"{shown(map(repr, self.classes_))}"
            )

    def predict_proba(self, X: Any, covariates: Any = None, new_study: bool = False) -> Floats:
        """Return the probability of each class of ``classes_``, [N, K]; parameters and `InputError`
        as `predict`.
        """
        table = self._predicted(X, covariates, new_study)
        probabilities = np.zeros((len(table.sample_ids), len(self.classes_)))
        columns = [self._label_of[label] for label in table.specs[0].labels]
        probabilities[:, columns] = table.predicted(table.specs[0].name)
        return probabilities

    def predict(self, X: Any, covariates: Any = None, new_study: bool = False) -> npt.NDArray[Any]:
        """Return the most probable class of each sample, [N].

        With `new_study` the samples are of one study that `fit` had not, and are read relative to
        their own mean.

        Raises
        ------
        InputError
            A sample has fewer reads than the model's depth, or covariates that the model reads are
            not given.
        """
        chosen = self.predict_proba(X, covariates, new_study).argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    def score(self, X: Any, y: Any, covariates: Any = None) -> float:
        """Return the accuracy of the predictions of `X`."""
        true = np.array(aligned(y, self._sample_ids(X), "y"))
        return float(accuracy_score(true, self.predict(X, covariates)))
