"""What functions take in place of options: tables and other inputs in memory, or their paths."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from aam.config import DataConfig
from aam.data.memory import MetadataLike, TableLike, TreeLike, table_from
from aam.data.study import Inputs, MetadataColumns, Sources, read_inputs
from aam.errors import InputError
from aam.io.tables import AmpliconTable
from aam.options import IN_MEMORY, configured, option_problems
from aam.typing import OptionValue

Config = TypeVar("Config")


def read_table(source: TableLike) -> AmpliconTable:
    """Read a table of reads, whose rows scikit-learn can divide.

    Parameters
    ----------
    source : biom.Table, pandas.DataFrame, anndata.AnnData, AmpliconTable, or path
        Rows of a DataFrame, and observations of AnnData, are samples called by the index; columns
        are ASVs. A path is read as the commands read ``--table``.

    Returns
    -------
    AmpliconTable
        ASVs in the order of their sequences, samples in the order of the source.

    Raises
    ------
    InputError
        Anything else, a file that is no table, reads that are not whole numbers, or ids that occur
        twice.

    Examples
    --------
    >>> table = aam.read_table("table.biom")
    >>> table.shape
    (60, 80)
    >>> len(table[table.depths >= 1000])
    46
    """
    return table_from(source)


def options_with(
    default: Config,
    options: Mapping[str, OptionValue],
    where: str,
    **inputs: TableLike | MetadataLike | TreeLike | None,
) -> Config:
    """Return the configuration `default` with options and inputs by name: the option of an input is
    its path, or `IN_MEMORY`.

    Raises
    ------
    InputError
        Options that do not exist, have a wrong value or contradict each other.
    """
    paths = {name: path_of(source) for name, source in inputs.items() if source is not None}
    config = configured(default, {**options, **paths}, where)
    if problems := option_problems(config):
        raise InputError(*problems)
    return config


def path_of(source: TableLike | MetadataLike | TreeLike) -> Path:
    """The path of an input, `IN_MEMORY` for one that is no file."""
    return Path(source) if isinstance(source, (str, os.PathLike)) else IN_MEMORY


# Options by which inputs are read, where a command has them.
READING = (
    "decimal",
    "exclude",
    "group_column",
    "midpoint_root",
    "missing_values",
    "sequences",
    "study_column",
    "trim",
    "unifrac_matrix",
)


def inputs_of(
    config: object,
    table: TableLike,
    metadata: MetadataLike | None = None,
    columns: Sequence[str] = (),
    tree: TreeLike | None = None,
    need_sequences: bool = True,
) -> Inputs:
    """Read inputs from files or from memory, as the options of a command say; the metadata, if
    there are `columns`, have these.

    Raises
    ------
    InputError
        With the problems of every input.
    """
    options = vars(getattr(config, "data", config))
    data = DataConfig(**{name: options[name] for name in READING if name in options})
    sources = Sources((table,), metadata, (tree,))
    return read_inputs(data, MetadataColumns(columns), sources, need_sequences)
