"""Estimators of scikit-learn that train and predict as `aam train` and `aam predict` do."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, r2_score

from aam.api.functions import interrupts_as_in_python
from aam.api.metadata import aligned, is_missing_value, is_numeric, named_in_messages, write_metadata
from aam.api.models import Model, load
from aam.api.options import configured, keyword_options
from aam.api.tables import read_table, table_file, tree_file
from aam.commands.train import run
from aam.config import RESERVED, FineTuneConfig
from aam.errors import InputError, shown
from aam.evaluate.predictions import PredictionTable
from aam.files.atomic import atomic_folder, check_writable
from aam.options import check

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

# The column of groups: the first of these that covariates do not have.
GROUP_NAMES = ("group", *(f"group-{number}" for number in range(1, 1000)))

# The name of the files of the model in the state that is pickled.
MODEL_FILES = "model files"


def _parameters() -> list[tuple[str, Any, Any]]:
    """Return name, type and default of each parameter of an estimator: the options of `aam train`.

    Only one default differs: nothing is held out for a test, which scikit-learn does outside.
    """
    defaults = {**keyword_options(FineTuneConfig()), "test_size": 0.0}
    return [(name, Any, dataclasses.field(default=default)) for name, default in defaults.items()]


Parameters: Any = dataclasses.make_dataclass("Parameters", _parameters(), eq=False, repr=False, kw_only=True)


class AmpliconEstimator(Parameters, BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share. Every parameter is an option of `aam train`, with its default there.

    Only ``test_size`` is 0 instead of a fifth, as scikit-learn holds samples out itself; above 0 the samples that are
    held out fit the intervals of `predict_interval`. Without ``output_dir`` the run is kept as long as the estimator.

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

    def fit(self, X: Any, y: Any, groups: Any = None, covariates: Any = None, tree: Any = None) -> Any:
        """Train a model of `y`, as `aam train` does; return the estimator.

        Parameters
        ----------
        X : biom.Table, DataFrame, AnnData, AmpliconTable or path
            Reads of ASVs, whose names are sequences. Samples with fewer reads than the rarefaction depth are left out.
        y : array or Series [N]
            Numbers, or classes. A Series that is indexed by sample ids is aligned by them; so are the following.
        groups : array or Series [N], optional
            The subject (study, ...) of each sample; early stopping looks at whole groups.
        covariates : DataFrame [N, C], optional
            What the model reads beside the ASVs: numeric columns as numbers, others as categories.
        tree : skbio.TreeNode or path, optional
            Phylogeny, for a UniFrac loss beside the targets.

        Raises
        ------
        InputError
            Options, table or values that cannot be learned from.
        """
        self._forget()
        folder = Path(tempfile.mkdtemp(prefix="aam-"))
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        table = read_table(X)
        output = folder / "run" if self.output_dir is None else Path(self.output_dir)
        config = self._configuration(table.sample_ids, folder, y, groups, covariates)
        data = dataclasses.replace(config.data, table=table_file(X, folder), tree=tree_file(tree, folder))
        runtime = dataclasses.replace(config.runtime, output_dir=output)
        config = dataclasses.replace(config, data=data, runtime=runtime)
        with interrupts_as_in_python(), named_in_messages(folder / "metadata.tsv", "y, groups and covariates"):
            check(config)
            # The report is for people, but it also fits the intervals on what is held out.
            run(config, "train", config, report=self.output_dir is not None or self.test_size != 0)
        self._load(output / "model")
        self.sample_ids_ = table.sample_ids
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a new folder, which `aam predict --model` and `aam.load` read."""
        check_writable(Path(path))
        source = self._fitted().paths[0]
        with atomic_folder(Path(path)) as folder:
            shutil.copytree(source, folder, dirs_exist_ok=True)

    def _forget(self) -> None:
        """Drop what an earlier call of `fit` learned."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

    def _fitted(self) -> Model:
        """Return the model; scikit-learn's error where there is none."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        return self.model_

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def _load(self, model: Path) -> None:
        self.model_: Model = load(model, device=self.device, threads=self.threads, mixed_precision=self.mixed_precision)

    def explain(
        self, X: Any, y: Any = None, groups: Any = None, covariates: Any = None, **options: Any
    ) -> pd.DataFrame:
        """Return what each ASV adds to the predictions of samples that were not fitted, as `Model.explain` does.

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
        with tempfile.TemporaryDirectory() as folder:
            metadata = None
            if any(given is not None for given in (y, groups, covariates)):
                metadata = Path(folder) / "metadata.tsv"
                sample_ids = read_table(X).sample_ids
                _, _, options["group_column"] = self._write_metadata(
                    metadata, sample_ids, target, y, groups, covariates
                )
            return model.explain(X, metadata, **options).loc[target]

    def _configuration(
        self, sample_ids: Sequence[str], folder: Path, y: Any, groups: Any, covariates: Any
    ) -> FineTuneConfig:
        """Return the options of `aam train` for these values, which are written to `folder` as metadata."""
        name = getattr(y, "name", None)
        target = name if isinstance(name, str) and name and name not in RESERVED else "y"
        self._learn_classes(aligned(y, sample_ids, "y"))
        path = folder / "metadata.tsv"
        categories, numbers, group = self._write_metadata(path, sample_ids, target, y, groups, covariates)
        given = {name: value for name, value in self.get_params(deep=False).items() if name != "output_dir"}
        config = configured(FineTuneConfig(), given, type(self).__name__)
        return dataclasses.replace(
            config,
            data=dataclasses.replace(config.data, metadata=path, group_column=group),
            targets=dataclasses.replace(config.targets, metadata_column=(target,), classifier=self._classifier),
            covariates=dataclasses.replace(config.covariates, categorical_columns=categories, numeric_columns=numbers),
        )

    def _write_metadata(
        self, path: Path, sample_ids: Sequence[str], target: str, y: Any, groups: Any, covariates: Any
    ) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
        """Write target, covariates and groups as metadata; return categorical, numeric and group columns."""
        categories, numbers = _covariates(covariates, sample_ids)
        if target in categories or target in numbers:
            raise InputError(f"covariates: the column {target!r} has the name of the target; rename one of the two")
        columns = categories | numbers
        text = list(categories)
        if y is not None:
            values = aligned(y, sample_ids, "y")
            columns[target] = [str(value) for value in np.array(values).tolist()] if self._classifier else values
            text += [target] if self._classifier else []
        group = None
        if groups is not None:
            group = next(name for name in GROUP_NAMES if name not in columns)
            columns[group] = aligned(groups, sample_ids, "groups")
            text.append(group)
        write_metadata(path, sample_ids, columns, text)
        return tuple(categories), tuple(numbers), group

    def _learn_classes(self, values: list[Any]) -> None:
        """Remember the classes of a target that has some."""

    def _predicted(self, X: Any, covariates: Any) -> PredictionTable:
        """Return the predictions of every sample; `InputError` where there is none for some."""
        model = self._fitted()
        options = {"prediction_passes": self.val_prediction_passes, "sequences": self.sequences, "trim": self.trim}
        with tempfile.TemporaryDirectory() as folder:
            metadata = None
            if covariates is not None:
                metadata = Path(folder) / "covariates.tsv"
                (target,) = model.targets
                self._write_metadata(metadata, read_table(X).sample_ids, target, None, None, covariates)
            with named_in_messages(Path(folder) / "covariates.tsv", "covariates"):
                table = model.prediction_table(X, metadata, **options)
        values = next(iter((*table.values.values(), *table.probabilities.values())))
        empty = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
        if len(empty):
            first = empty[0]
            raise InputError(
                f"{len(empty)} of {len(values)} samples cannot be predicted, such as {table.sample_ids[first]!r} "
                f"({table.notes[first]}); leave them out (aam.read_table gives tables with .depths that can be "
                "divided), or take model_.predict, which leaves their rows empty"
            )
        return table

    def __getstate__(self) -> dict[str, Any]:
        """Return the estimator for pickle: its model as the files of a model folder, which hold no code.

        What unpickles it verifies these files as `aam.load` does. Pickle itself can run code when it is read, so a
        model is better passed on by `save`.
        """
        left_out = ("model_", "_remove_folder")
        state = {name: value for name, value in vars(self).items() if name not in left_out}
        if self.__sklearn_is_fitted__():
            folder = self.model_.paths[0]
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            state[MODEL_FILES] = {str(path.relative_to(folder)): path.read_bytes() for path in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the estimator; `InputError` where the files of its model are damaged."""
        files = state.pop(MODEL_FILES, None)
        self.__dict__.update(state)
        if files is None:
            return
        folder = Path(tempfile.mkdtemp(prefix="aam-"))
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for name, content in files.items():
            path = folder / "model" / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise InputError(f"the pickled model holds the unsafe file name {name!r}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self._load(folder / "model")


def _covariates(covariates: Any, sample_ids: Sequence[str]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Return the categorical and the numeric columns of a DataFrame, in the order of `sample_ids`."""
    categories: dict[str, list[Any]] = {}
    numbers: dict[str, list[Any]] = {}
    if covariates is not None and not hasattr(covariates, "columns"):
        raise InputError(f"covariates is {type(covariates).__name__}, expected a DataFrame by sample id")
    for column in () if covariates is None else covariates.columns:
        values = aligned(covariates[column], sample_ids, f"covariates[{column!r}]")
        (numbers if is_numeric(covariates[column]) else categories)[str(column)] = values
    return categories, numbers


class AmpliconRegressor(RegressorMixin, AmpliconEstimator):  # type: ignore[misc]
    """Regression of a number on amplicon tables; parameters and `fit` as `AmpliconEstimator`."""

    def predict(self, X: Any, covariates: Any = None) -> Floats:
        """Return the predicted number of each sample, [N], in the units of `y`.

        Raises
        ------
        InputError
            A sample has fewer reads than the model's depth, or covariates that the model reads are not given.
        """
        (values,) = self._predicted(X, covariates).values.values()
        return values

    def predict_interval(self, X: Any, covariates: Any = None) -> Floats:
        """Return the lower and upper limit of 90 % conformal intervals, [N, 2].

        Raises
        ------
        InputError
            The estimator was not fitted with ``test_size``, or too few groups were held out to fit intervals.
        """
        table = self._predicted(X, covariates)
        limits = table.limits(table.specs[0].name)
        if limits is None:
            raise InputError(
                f"no interval: test_size is {self.test_size}, and intervals are fitted on at least 20 held-out groups; "
                "fit with test_size=0.2, or more samples"
            )
        return limits

    def score(self, X: Any, y: Any, covariates: Any = None) -> float:
        """Return R2 of the predictions of `X`."""
        return float(r2_score(aligned(y, read_table(X).sample_ids, "y"), self.predict(X, covariates)))


class AmpliconClassifier(ClassifierMixin, AmpliconEstimator):  # type: ignore[misc]
    """Classification of amplicon tables; parameters and `fit` as `AmpliconEstimator`.

    Attributes
    ----------
    classes_ : array [K]
        The classes of `y`, in ascending order.
    """

    _classifier = True

    def _learn_classes(self, values: list[Any]) -> None:
        """Remember the classes, and which value each text of metadata is."""
        if missing := [number for number, value in enumerate(values) if is_missing_value(value)]:
            raise InputError(f"y: {len(missing)} samples have no class, the first at position {missing[0]}")
        self.classes_ = np.unique(np.array(values))
        self._label_of = {str(value).strip(): place for place, value in enumerate(self.classes_.tolist())}
        if len(self._label_of) < len(self.classes_) or "" in self._label_of:
            raise InputError(f"y: classes are empty or differ in white space only: {shown(map(repr, self.classes_))}")

    def predict_proba(self, X: Any, covariates: Any = None) -> Floats:
        """Return the probability of each class of ``classes_``, [N, K]; `InputError` as `predict`."""
        table = self._predicted(X, covariates)
        probabilities = np.zeros((len(table.sample_ids), len(self.classes_)))
        columns = [self._label_of[label] for label in table.specs[0].labels]
        probabilities[:, columns] = table.probabilities[table.specs[0].name]
        return probabilities

    def predict(self, X: Any, covariates: Any = None) -> npt.NDArray[Any]:
        """Return the most probable class of each sample, [N].

        Raises
        ------
        InputError
            A sample has fewer reads than the model's depth, or covariates that the model reads are not given.
        """
        chosen = self.predict_proba(X, covariates).argmax(axis=1)
        return np.asarray(self.classes_[chosen])

    def score(self, X: Any, y: Any, covariates: Any = None) -> float:
        """Return the accuracy of the predictions of `X`."""
        true = np.array(aligned(y, read_table(X).sample_ids, "y"))
        return float(accuracy_score(true, self.predict(X, covariates)))
