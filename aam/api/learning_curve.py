"""How many more samples would help: the score of the default model by the number of groups."""

from __future__ import annotations

import pandas as pd

from aam.api.training import load_folds
from aam.config import FineTuneConfig
from aam.data.inputs import MetadataLike, TableLike, options_with, read_inputs
from aam.errors import InputError
from aam.predict.held_out import learning_curves
from aam.typing import OptionValue


def learning_curve(
    table: TableLike,
    metadata: MetadataLike,
    metadata_column: str,
    *,
    group_column: str | None = None,
    **options: OptionValue,
) -> pd.DataFrame:
    """Score the default model at shares of the training groups, as `aam train --learning-curve`.

    Parameters
    ----------
    table : biom.Table, DataFrame, AmpliconTable or path
    metadata : DataFrame by sample id, or path
    metadata_column : str
        The target.
    group_column : str, optional
        Column of the groups (subjects) that are drawn; unset: single samples.
    **options
        Of `aam train`, such as ``cv``, ``classifier`` or ``rarefy_depth``.

    Returns
    -------
    DataFrame
        ``metric``, ``groups`` (mean number in training), ``draws``, and the metric as ``value``
        with its 95 % limits ``low`` and ``high``. A last row of 0 draws is what twice as many
        groups are expected to give, where `aam train` has a sentence about it.

    Raises
    ------
    InputError
        Bad options or inputs, no sample that is held out, or too few groups.

    Examples
    --------
    >>> options = {"group_column": "subject", "rarefy_depth": 300, "members": ["presence"]}
    >>> curve = aam.learning_curve("table.biom", "metadata.tsv", "ph", **options)
    >>> curve["metric"].unique().tolist()
    ['mae']
    """
    options |= {"metadata_column": (metadata_column,), "group_column": group_column}
    where = "aam.learning_curve"
    config = options_with(FineTuneConfig(), options, where, table=table, metadata=metadata)
    inputs = read_inputs(config, (metadata_column,), table, metadata)
    folds = load_folds(config, inputs=inputs)
    curve = learning_curves(folds, [metadata_column])[metadata_column]
    if curve is None:
        raise InputError("aam.learning_curve: too few groups to draw shares of them")
    rows = curve.points.assign(metric=curve.metric)
    if curve.sentences(""):
        groups = 2 * float(rows["groups"].iloc[-1])
        expected = {"metric": curve.metric, "groups": groups, "draws": 0}
        rows.loc[len(rows)] = {**expected, **vars(curve.expected(groups))}
    return rows[["metric", "groups", "draws", "value", "low", "high"]]
