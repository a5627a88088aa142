"""UniFrac and Faith PD of whole tables: the samples that are compared, and their distances in
tiles.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
from scipy import sparse

from aam.config import Metric, UnifracConfig, UnifracMetric
from aam.data.rarefaction import rarefied_counts
from aam.data.table import deep_enough, excluded_ids, make_table, read_table, without_samples
from aam.device.environment import available_cores, may_have_gpu
from aam.diversity.distances import faith_pd, inner, samples_without_tips, unifrac_tiles
from aam.diversity.unifrac import Multiply, UnifracOptions
from aam.engine.logger import ProgressBar
from aam.errors import InputError, shown
from aam.files.output_folder import check_replaced_file
from aam.io.matrices import Tile, fill_tiles, is_written, write_distances, write_faith_pd
from aam.io.phylogeny import Phylogeny, matched_tree, read_tree
from aam.io.tables import AmpliconTable
from aam.options import RuntimeConfig, not_none
from aam.typing import Floats, Ids, OptionValue

if TYPE_CHECKING:
    import pandas as pd
    import skbio

    from aam.data.inputs import TableLike, TreeLike

log = logging.getLogger("aam")

# With fewer samples the CPU computes the distances in less time than torch takes to import.
GPU_SAMPLES = 10_000
# Maximum memory of the computation, in bytes.
TILE_BYTES = 1 << 30


def _multiply(config: UnifracConfig, samples: int) -> Multiply:
    """Library of matrix products: NumPy, or torch on a GPU that is asked for or worth it."""
    worth_it = samples >= GPU_SAMPLES and config.unifrac_metric == "unifrac" and may_have_gpu()
    if config.device == "cpu" or (config.device == "auto" and not worth_it):
        return inner
    from aam.device.platform import prepare_device
    from aam.diversity.distances import multiply_on

    device = prepare_device(RuntimeConfig(device=config.device, threads=config.threads))
    # MPS has no float64.
    return multiply_on(device) if device.type == "cuda" else inner


def _compared(
    config: UnifracConfig, table: AmpliconTable, tree: Phylogeny
) -> tuple[tuple[str, ...], Floats | Iterator[Tile]]:
    """Compare samples, rarefied where the options ask for it.

    Returns their ids, and Faith PD or the distances between all of them, tile by tile as
    `unifrac_tiles` gives them.

    Raises
    ------
    InputError
        No sample reaches the depth or has reads on the tree; features without a tip unless
        ``missing_tips`` is drop.
    """
    table = without_samples(table, excluded_ids(config.exclude, table.sample_ids))
    if (depth := config.rarefy_depth) is not None:
        table = deep_enough(table, depth)
        counts = sparse.csr_array(rarefied_counts(table, depth, config.seed, 0))
        table = make_table(counts, table.sample_ids, table.feature_ids)
    tree, tips = matched_tree(tree, table.feature_ids, config.missing_tips)
    empty = samples_without_tips(tips, table.counts)
    if names := [table.sample_ids[row] for row in np.flatnonzero(empty)]:
        text = "%d of %d samples have no reads on the tree, so their distances mean nothing (0 to "
        log.warning(text + "each other): %s", len(names), len(empty), shown(names))
    on_tree = tree, tips, table.counts
    if config.unifrac_metric == "faith_pd":
        return table.sample_ids, faith_pd(*on_tree, config.root_length)
    options = UnifracOptions(config.unifrac_metric, config.alpha, config.root_length)
    multiply, threads = _multiply(config, len(table)), config.threads or available_cores()
    return table.sample_ids, unifrac_tiles(*on_tree, options, multiply, TILE_BYTES, threads)


def distance_matrix(ids: Ids, tiles: Iterable[Tile]) -> skbio.DistanceMatrix:
    """The distances between samples, from tiles on and above the diagonal."""
    # Imported here: it takes 1 s, and few calls need it.
    from skbio import DistanceMatrix

    distances = np.zeros((len(ids), len(ids)), np.float32)
    fill_tiles(distances, tiles)
    return DistanceMatrix(distances, ids)


@overload
def unifrac(
    table: TableLike, tree: TreeLike, metric: Literal["faith_pd"], **options: OptionValue
) -> pd.Series: ...


@overload
def unifrac(
    table: TableLike, tree: TreeLike, metric: UnifracMetric = "unifrac", **options: OptionValue
) -> skbio.DistanceMatrix: ...


def unifrac(
    table: TableLike, tree: TreeLike, metric: Metric = "unifrac", **options: OptionValue
) -> skbio.DistanceMatrix | pd.Series:
    """Return UniFrac distances between all samples of a table, as `aam unifrac` computes them.

    Parameters
    ----------
    table : biom.Table, DataFrame, AmpliconTable or path
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
        Bad options, table or tree.

    Examples
    --------
    >>> distances = aam.unifrac("table.biom", "tree.nwk", "weighted-normalized")
    >>> distances.shape
    (60, 60)
    >>> aam.unifrac("table.biom", "tree.nwk", "faith_pd").name
    'faith_pd'
    """
    import pandas as pd

    from aam.data.inputs import options_with, table_from, tree_from

    if "output" in options:
        raise InputError("aam.unifrac: output is an option of `aam unifrac`, which writes files")
    options = {**options, "unifrac_metric": metric}
    config = options_with(UnifracConfig(), options, "aam.unifrac", table=table, tree=tree)
    counts = table_from(table, need_sequences=False)
    if (rooted := tree_from(tree, config.midpoint_root)) is None:
        expected = "expected a skbio.TreeNode or the path of a tree"
        raise InputError(f"aam.unifrac: tree is None, {expected}")
    ids, values = _compared(config, counts, rooted)
    if isinstance(values, np.ndarray):
        return pd.Series(values, pd.Index(ids, name="sample-id"), name=metric)
    return distance_matrix(ids, values)


# --- `aam unifrac` -----------------------------------------------------------------------------


def _with_progress(tiles: Iterable[Tile], samples: int) -> Iterator[Tile]:
    """Yield the tiles, and show how many pairs of samples are done."""
    done = 0
    with ProgressBar("UniFrac", samples**2, "pairs of samples") as bar:
        for rows, columns, tile in tiles:
            yield rows, columns, tile
            done += tile.size if rows == columns else 2 * tile.size
            bar.update(done)


def write_unifrac(config: UnifracConfig) -> None:
    """Compute the distances or diversities that `config` asks for and write them in one step.

    Raises
    ------
    InputError
        Problems of options, table or tree; features without a tip unless ``--missing-tips drop``.
    """
    output = not_none(config.output)
    check_replaced_file(output, "unifrac", is_written)
    table = read_table(not_none(config.table), need_sequences=False)
    tree = read_tree(not_none(config.tree), config.midpoint_root)
    ids, values = _compared(config, table, tree)
    if isinstance(values, np.ndarray):
        write_faith_pd(output, ids, values)
    else:
        write_distances(output, ids, _with_progress(values, len(ids)))
    log.info("%s: %s of %d samples", output, config.unifrac_metric, len(ids))
