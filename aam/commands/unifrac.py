"""`aam unifrac`: the UniFrac matrix or Faith PD of a table."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from scipy import sparse

from aam.config_commands import UnifracConfig
from aam.data.rarefaction import rarefied_row
from aam.data.table import SampleTable, deep_enough, make_table, read_table, select_samples
from aam.device.environment import available_cores, may_have_gpu
from aam.device.options import RuntimeConfig
from aam.diversity.batch import faith_pd, inner, samples_without_tips
from aam.diversity.tables import parse_stripe, read_stripes, stripe_tiles, unifrac_tiles, write_stripe
from aam.diversity.unifrac import Multiply, UnifracOptions
from aam.engine.terminal import ProgressBar
from aam.errors import InputError, shown
from aam.files.atomic import file_digest
from aam.files.output_folder import check_output_file
from aam.io.matrices import Tile, ids_beside, write_distances, write_faith_pd
from aam.io.newick import pruned_tree
from aam.io.phylogeny import Ints
from aam.options import files_read, given, to_dict

log = logging.getLogger("aam")

# Where a table has fewer samples, the product on the processor ends before torch is imported.
GPU_SAMPLES = 10_000


def _rarefied(table: SampleTable, depth: int, seed: int) -> SampleTable:
    """Return the samples that reach `depth`, rarefied to it."""
    table, _ = deep_enough(table, depth)
    rows = [rarefied_row(table, row, depth, seed, 0) for row in range(len(table.sample_ids))]
    starts = np.cumsum([0, *(len(columns) for columns, _ in rows)])
    columns, reads = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    counts = sparse.csr_array((reads, columns, starts), shape=table.counts.shape)
    return make_table(counts, table.sample_ids, table.feature_ids)


def _without_empty(table: SampleTable, tips: Ints, choice: str) -> SampleTable:
    """Warn of samples without reads on the tree, and leave them out where that is the choice."""
    empty = samples_without_tips(tips, table.counts)
    if not empty.any():
        return table
    names = [name for name, is_empty in zip(table.sample_ids, empty, strict=True) if is_empty]
    treatment = {
        "keep": "their distances mean nothing (0 to each other); --empty-samples nan or drop",
        "nan": "their distances are NaN",
        "drop": "they are left out",
    }[choice]
    log.warning("%d of %d samples have no reads on the tree: %s; %s", len(names), len(empty), shown(names), treatment)
    if choice != "drop":
        return table
    if empty.all():
        raise InputError(
            "--empty-samples drop leaves no sample: none has reads on the tree; give the tree of this table"
        )
    return select_samples(table, [name for name in table.sample_ids if name not in set(names)])


def _multiply(config: UnifracConfig, samples: int) -> Multiply:
    """Return what multiplies matrices: NumPy, or torch on a GPU that is asked for or worth it."""
    worth_it = samples >= GPU_SAMPLES and config.unifrac_metric == "unifrac" and may_have_gpu()
    if config.device == "cpu" or (config.device == "auto" and not worth_it):
        return inner
    from aam.device.platform import prepare_device
    from aam.diversity.batch import multiply_on

    device = prepare_device(RuntimeConfig(device=config.device, threads=config.threads))
    # MPS has no float64.
    return multiply_on(device) if device.type == "cuda" else inner


def _options(config: UnifracConfig) -> UnifracOptions:
    if config.unifrac_metric == "faith_pd":
        raise InputError("--unifrac-metric faith_pd is no distance")
    return UnifracOptions(
        config.unifrac_metric, config.alpha, config.root_length,
        empty="nan" if config.empty_samples == "nan" else "scikit-bio", variance_adjusted=config.variance_adjusted,
    )  # fmt: skip


def _identity(config: UnifracConfig) -> dict[str, Any]:
    """Return what parts of one matrix have in common: checksums of table and tree, and the options of the distance."""
    names = ("unifrac_metric", "alpha", "root_length", "variance_adjusted", "missing_tips", "midpoint_root")
    options = to_dict(config)
    identity = {name: options[name] for name in (*names, "rarefy_depth", "seed", "empty_samples")}
    return identity | {"table": file_digest(given(config.table)), "tree": file_digest(given(config.tree))}


def _check_merged(config: UnifracConfig, identity: Mapping[str, Any]) -> None:
    """Raise `InputError` for each option that is given and is not that of the parts of a matrix."""
    options, usual = to_dict(config), to_dict(UnifracConfig())
    problems = [
        f"--{name.replace('_', '-')} is {options[name]}, and the parts were computed with {value}; leave it out, or "
        "compute them again"
        for name, value in identity.items()
        if options[name] not in (usual[name], value)
    ]
    if problems:
        raise InputError(*problems)


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
    output = given(config.output)
    stripe = parse_stripe(config.stripe) if config.stripe else None
    if output.suffix == ".npy":
        check_output_file(ids_beside(output), config.overwrite, files_read(config).values())
    if config.merge:
        stripes = read_stripes(config.merge)
        _check_merged(config, stripes[0].identity)
        ids = stripes[0].sample_ids
        write_distances(output, ids, _shown(stripe_tiles(stripes), len(ids)))
        log.info("%s: %d samples from %d parts", output, len(ids), len(stripes))
        return
    table = read_table(given(config.table), need_sequences=False, transpose=config.transpose)
    if config.rarefy_depth is not None:
        table = _rarefied(table, config.rarefy_depth, config.seed)
    tree, tips = pruned_tree(given(config.tree), table.feature_ids, config.missing_tips, config.midpoint_root)
    table = _without_empty(table, tips, config.empty_samples)
    if config.unifrac_metric == "faith_pd":
        write_faith_pd(output, table.sample_ids, faith_pd(tree, tips, table.counts, config.root_length))
        log.info("%s: faith_pd of %d samples", output, len(table.sample_ids))
        return
    ids, threads = table.sample_ids, config.threads or available_cores()
    tiles = unifrac_tiles(
        tree, tips, table.counts, _options(config), _multiply(config, len(ids)), int(config.memory_limit * 2**30),
        threads, stripe or (1, 1),
    )  # fmt: skip
    if stripe is not None:
        write_stripe(output, stripe, _identity(config), ids, tiles)
        log.info("%s: part %d of %d of %s of %d samples", output, *stripe, config.unifrac_metric, len(ids))
        return
    write_distances(output, ids, _shown(tiles, len(ids)))
    log.info("%s: %s of %d samples", output, config.unifrac_metric, len(ids))
