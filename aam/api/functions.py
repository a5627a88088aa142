"""Pretraining and UniFrac on data in memory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from aam.api.metadata import metadata_from
from aam.api.models import Model, load
from aam.api.options import configured
from aam.api.tables import inputs_of, option_of, phylogeny, sample_table
from aam.api.training import run
from aam.api.unifrac import samples_on_tree
from aam.config import Metric, PretrainConfig
from aam.config_commands import UnifracConfig
from aam.errors import CallAgain, InputError, import_extra
from aam.io.matrices import fill_tiles
from aam.options import check, option_problems


@contextlib.contextmanager
def interrupts_as_in_python() -> Iterator[None]:
    """Turn the signal that ends a run, whose state is saved, into the KeyboardInterrupt that Python users expect."""
    try:
        yield
    except CallAgain as error:
        raise KeyboardInterrupt(str(error)) from error


def pretrain(
    table: Any, tree: Any = None, *, output_dir: str | os.PathLike[str], metadata: Any = None, **options: Any
) -> Model:
    """Pretrain an encoder without labels, as `aam pretrain` does, and return it.

    Parameters
    ----------
    table : biom.Table, DataFrame, AnnData, AmpliconTable or path
    tree : skbio.TreeNode or path, optional
        Rooted phylogeny of the ASVs.
    output_dir : path
        Folder of the run: model, metrics, report.
    metadata : DataFrame or path, optional
        Columns that options such as ``group_column`` name.
    **options
        Of `aam pretrain`, such as ``epochs``, ``embedding_dim`` or ``rarefy_depth``.

    Raises
    ------
    InputError
        Bad options or inputs, or a folder that holds other files.
    """
    config = configured(PretrainConfig(), options, "aam.pretrain")
    data, runtime = config.data, dataclasses.replace(config.runtime, output_dir=Path(output_dir))
    if data.tables or data.trees:
        raise InputError("aam.pretrain: takes one table and its tree; `aam pretrain` takes several, from files")
    named = dataclasses.replace(data, table=option_of(table), tree=option_of(tree), metadata=option_of(metadata))
    config = dataclasses.replace(config, data=named, runtime=runtime)
    check(config)
    described = None if metadata is None else metadata_from(metadata, data.decimal)
    inputs = inputs_of(data, sample_table(table, data.sequences, transpose=data.transpose), tree, described)
    with interrupts_as_in_python():
        run(config.training(), "pretrain", config, inputs=inputs)
    machine = {name: getattr(runtime, name) for name in ("device", "threads", "mixed_precision")}
    return load(Path(output_dir) / "model", **machine)


def unifrac(table: Any, tree: Any, metric: Metric = "unifrac", **options: Any) -> Any:
    """Return UniFrac distances between all samples of a table, as `aam unifrac` computes them.

    Parameters
    ----------
    table : biom.Table, DataFrame, AnnData, AmpliconTable or path
        Reads by feature; features are called as the tips of the tree.
    tree : skbio.TreeNode or path
        Rooted phylogeny.
    metric : str
        ``unifrac``, ``weighted``, ``weighted-normalized``, ``generalized`` or ``faith_pd``.
    **options
        Of `aam unifrac`, such as ``rarefy_depth``, ``alpha`` or ``missing_tips``.

    Returns
    -------
    skbio.DistanceMatrix, or for faith_pd pandas.Series
        By sample id.

    Raises
    ------
    InputError
        Bad options, table or tree; scikit-bio is not installed.
    """
    import pandas as pd

    skbio = None if metric == "faith_pd" else import_extra("skbio", "skbio", "aam.unifrac")
    config = configured(UnifracConfig(), {**options, "unifrac_metric": metric}, "aam.unifrac")
    if config.output or config.stripe or config.merge:
        raise InputError("aam.unifrac: output, stripe and merge are of `aam unifrac`, which writes files")
    if problems := option_problems(config):
        raise InputError(*problems)
    rooted = phylogeny(tree, config.midpoint_root)
    if rooted is None:
        raise InputError("aam.unifrac: tree is None, expected a skbio.TreeNode or the path of a tree")
    read = sample_table(table, need_sequences=False, transpose=config.transpose)
    samples = samples_on_tree(config, read, rooted)
    ids = samples.table.sample_ids
    if skbio is None:
        return pd.Series(samples.faith_pd(), pd.Index(ids, name="sample-id"), name="faith_pd")
    distances = np.zeros((len(ids), len(ids)), np.float32)
    fill_tiles(distances, samples.tiles())
    return skbio.DistanceMatrix(distances, ids)
