"""Pretraining and UniFrac on data in memory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aam.api.metadata import metadata_file
from aam.api.models import Model, load
from aam.api.options import configured
from aam.api.tables import table_file, tree_file
from aam.commands.train import run
from aam.commands.unifrac import write_unifrac
from aam.config import Metric, PretrainConfig
from aam.config_commands import UnifracConfig
from aam.errors import CallAgain, import_extra
from aam.io.matrices import read_distances
from aam.options import check


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
    with tempfile.TemporaryDirectory() as temporary, interrupts_as_in_python():
        folder = Path(temporary)
        config = configured(PretrainConfig(), options, "aam.pretrain")
        data = dataclasses.replace(config.data, table=table_file(table, folder), tree=tree_file(tree, folder))
        if metadata is not None:
            data = dataclasses.replace(data, metadata=metadata_file(metadata, folder))
        runtime = dataclasses.replace(config.runtime, output_dir=Path(output_dir))
        config = dataclasses.replace(config, data=data, runtime=runtime)
        check(config)
        run(config.training(), "pretrain", config)
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

    faith_pd = metric == "faith_pd"
    skbio = None if faith_pd else import_extra("skbio", "skbio", "aam.unifrac")
    config = configured(UnifracConfig(), {**options, "unifrac_metric": metric}, "aam.unifrac")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        output = folder / ("result.tsv" if faith_pd else "result.npy")
        table_path, tree_path = table_file(table, folder), tree_file(tree, folder)
        config = dataclasses.replace(config, table=table_path, tree=tree_path, output=output)
        check(config)
        write_unifrac(config)
        if skbio is None:
            return pd.read_csv(output, sep="\t", index_col=0, dtype={0: str}).iloc[:, 0]
        distances = read_distances(output)
    return skbio.DistanceMatrix(distances.values, distances.ids)
