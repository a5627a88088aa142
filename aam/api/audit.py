"""Before and after a model: what gives a target away, and how many more samples would help."""

from __future__ import annotations

from typing import Any

import pandas as pd

from aam.api.memory import inputs_of, metadata_from, option_of, sample_table
from aam.api.training import load_folds
from aam.config import AuditConfig, FineTuneConfig
from aam.data.study import Inputs, MetadataColumns, make_study, read_inputs
from aam.engine.logger import write_line
from aam.errors import InputError
from aam.files.atomic import write_text
from aam.options import configured, not_none
from aam.report.audit import Audit, make_audit
from aam.report.charts import plain_lines
from aam.report.training import learning_curves


def _audited(config: AuditConfig, inputs: Inputs | None) -> Audit:
    """The audit of the samples that have a value of the target."""
    target, data = config.metadata_column or "", config.data
    divided = tuple(filter(None, (data.group_column, data.study_column)))
    columns = MetadataColumns((target,), divided, (target,), config.classifier)
    study = make_study(inputs or read_inputs(data, columns), data, None, config.seed, columns)
    metadata, ids = not_none(study.metadata), study.table.sample_ids
    named = {"--metadata-column": target, "--group-column": data.group_column}
    for option, name in {**named, "--study-column": data.study_column}.items():
        if name is not None and len(set(metadata.values(name, ids))) < 2:
            raise InputError(f"{option}: {name!r} has one value in all {len(ids)} samples")
    if not config.classifier and metadata.kinds[target] == "numeric":
        metadata.numbers(target, ids)
    groups = data.group_column or data.study_column
    return make_audit(study, target, config.classifier, groups, data.study_column)


def audit(
    table: Any,
    metadata: Any,
    metadata_column: str,
    *,
    group_column: str | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Show which metadata columns give a target away.

    Parameters
    ----------
    table : biom.Table, DataFrame, AnnData, AmpliconTable or path
    metadata : DataFrame by sample id, or path
    metadata_column : str
        The target.
    group_column : str, optional
        Column whose values stay on one side of the split.
    **options
        Of `aam audit`, such as ``classifier``, ``study_column`` or ``rarefy_depth``.

    Returns
    -------
    DataFrame
        One row per column, the most dangerous first; columns as `aam.report.audit.Audit` describes.

    Raises
    ------
    InputError
        Files or columns that cannot be read, a target of one value.
    """
    named: dict[str, Any] = {"table": option_of(table), "metadata": option_of(metadata)}
    named |= {"metadata_column": metadata_column, "group_column": group_column}
    config = configured(AuditConfig(), {**named, **options}, "aam.audit")
    read = sample_table(table, need_sequences=False)
    inputs = Inputs((read,), metadata=metadata_from(metadata))
    return _audited(config, inputs).frame


def audit_study(config: AuditConfig) -> None:
    """Run `aam audit`: print the table and what to do, and write the table with ``--output``."""
    found = _audited(config, None)
    for line in [*plain_lines(found.table(with_advice=False)), "", *found.advice, *found.notes]:
        write_line(line)
    if config.output is not None:
        text = found.frame.to_csv(sep="\t", index=False, float_format="%.4g")
        write_text(config.output, text)
        write_line(f"all columns: {config.output}")


def learning_curve(
    table: Any,
    metadata: Any,
    metadata_column: str,
    *,
    group_column: str | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Score the default model at shares of the training groups, as `aam train --learning-curve`.

    Parameters
    ----------
    table : biom.Table, DataFrame, AnnData, AmpliconTable or path
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
    """
    named: dict[str, Any] = {"table": option_of(table), "metadata": option_of(metadata)}
    named |= {"metadata_column": (metadata_column,), "group_column": group_column}
    config = configured(FineTuneConfig(), {**named, **options}, "aam.learning_curve")
    inputs = inputs_of(
        config.data, sample_table(table, need_sequences=False), None, metadata_from(metadata)
    )
    curve = learning_curves(load_folds(config, inputs=inputs), [metadata_column])[metadata_column]
    if curve is None:
        raise InputError("aam.learning_curve: too few groups to draw shares of them")
    rows = curve.points.assign(metric=curve.metric)
    if curve.sentences(""):
        groups = 2 * float(rows["groups"].iloc[-1])
        expected = {"metric": curve.metric, "groups": groups, "draws": 0}
        rows.loc[len(rows)] = {**expected, **vars(curve.expected(groups))}
    return rows[["metric", "groups", "draws", "value", "low", "high"]]
