"""UniFrac and Faith PD of whole tables: the samples that are compared, and their distances in
tiles.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from scipy import sparse

from aam.config import Metric, UnifracConfig
from aam.data.rarefaction import matrix_of, rarefied_row
from aam.data.table import deep_enough, make_table, read_table
from aam.device.environment import available_cores, may_have_gpu
from aam.diversity.distances import faith_pd, inner, samples_without_tips, unifrac_tiles
from aam.diversity.unifrac import Multiply, UnifracOptions
from aam.engine.logger import ProgressBar
from aam.errors import InputError, import_extra, shown
from aam.files.output_folder import check_output_file
from aam.io.matrices import Tile, fill_tiles, ids_path, write_distances, write_faith_pd
from aam.io.phylogeny import Floats, Ints, Phylogeny, matched_tree, read_tree
from aam.io.tables import AmpliconTable
from aam.options import RuntimeConfig, configured, files_read, not_none, option_problems

log = logging.getLogger("aam")

# Where a table has fewer samples, the product on the processor ends before torch is imported.
GPU_SAMPLES = 10_000
# Bytes that the computation may take.
MEMORY = 1 << 30


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


# A table, its tree, and the tip of each feature, -1 without.
OnTree = tuple[AmpliconTable, Phylogeny, Ints]


def _on_tree(config: UnifracConfig, table: AmpliconTable, tree: Phylogeny) -> OnTree:
    """Return the samples that are compared, rarefied where the options ask for it.

    Raises
    ------
    InputError
        No sample reaches the depth or has reads on the tree; features without a tip unless
        ``missing_tips`` is drop.
    """
    if (depth := config.rarefy_depth) is not None:
        table, _ = deep_enough(table, depth)
        places = range(len(table.sample_ids))
        rows = [rarefied_row(table, row, depth, config.seed, 0) for row in places]
        counts = sparse.csr_array(matrix_of(rows, table.counts.shape[1]))
        table = make_table(counts, table.sample_ids, table.feature_ids)
    tree, tips = matched_tree(tree, table.feature_ids, config.missing_tips)
    empty = samples_without_tips(tips, table.counts)
    if names := [table.sample_ids[row] for row in np.flatnonzero(empty)]:
        what = "have no reads on the tree, so their distances mean nothing (0 to each other)"
        log.warning("%d of %d samples %s: %s", len(names), len(empty), what, shown(names))
    return table, tree, tips


def _faith_pd(config: UnifracConfig, on_tree: OnTree) -> Floats:
    table, tree, tips = on_tree
    return faith_pd(tree, tips, table.counts, config.root_length)


def _tiles(config: UnifracConfig, on_tree: OnTree) -> Iterator[Tile]:
    """Distances between all samples, tile by tile as `unifrac_tiles` gives them."""
    if config.unifrac_metric == "faith_pd":
        raise InputError("--unifrac-metric faith_pd is no distance")
    table, tree, tips = on_tree
    options = UnifracOptions(config.unifrac_metric, config.alpha, config.root_length)
    multiply = _multiply(config, len(table.sample_ids))
    threads = config.threads or available_cores()
    return unifrac_tiles(tree, tips, table.counts, options, multiply, MEMORY, threads)


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

    from aam.api.memory import phylogeny, sample_table

    skbio = None if metric == "faith_pd" else import_extra("skbio", "skbio", "aam.unifrac")
    config = configured(UnifracConfig(), {**options, "unifrac_metric": metric}, "aam.unifrac")
    if config.output:
        raise InputError("aam.unifrac: output is an option of `aam unifrac`, which writes files")
    if problems := option_problems(config):
        raise InputError(*problems)
    rooted = phylogeny(tree, config.midpoint_root)
    if rooted is None:
        raise InputError(
            "aam.unifrac: tree is None, expected a skbio.TreeNode or the path of a tree"
        )
    on_tree = _on_tree(config, sample_table(table, need_sequences=False), rooted)
    ids = on_tree[0].sample_ids
    if skbio is None:
        return pd.Series(_faith_pd(config, on_tree), pd.Index(ids, name="sample-id"), name=metric)
    distances = np.zeros((len(ids), len(ids)), np.float32)
    fill_tiles(distances, _tiles(config, on_tree))
    return skbio.DistanceMatrix(distances, ids)


# --- `aam unifrac` -----------------------------------------------------------------------------


def _shown(tiles: Iterable[Tile], samples: int) -> Iterator[Tile]:
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
    if output.suffix == ".npy":
        check_output_file(ids_path(output), config.overwrite, files_read(config).values())
    table = read_table(not_none(config.table), need_sequences=False)
    on_tree = _on_tree(config, table, read_tree(not_none(config.tree), config.midpoint_root))
    ids = on_tree[0].sample_ids
    if config.unifrac_metric == "faith_pd":
        write_faith_pd(output, ids, _faith_pd(config, on_tree))
    else:
        write_distances(output, ids, _shown(_tiles(config, on_tree), len(ids)))
    log.info("%s: %s of %d samples", output, config.unifrac_metric, len(ids))
