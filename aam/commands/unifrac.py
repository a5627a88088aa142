"""`aam unifrac`: the UniFrac matrix or Faith PD of a table."""

from __future__ import annotations

import logging
from typing import Literal

import numpy as np
from scipy import sparse

from aam.config_commands import UnifracConfig
from aam.contradictions import check_command
from aam.data.distances import ids_beside, write_distances, write_faith_pd
from aam.data.newick import pruned_tree
from aam.data.phylogeny import Ints
from aam.data.rarefaction import rarefied_row
from aam.data.table import SampleTable, deep_enough, make_table, read_table, select_samples
from aam.data.unifrac import UnifracOptions, faith_pd, samples_without_tips
from aam.data.unifrac_tiles import unifrac_tiles
from aam.errors import InputError, shown
from aam.options import given
from aam.runtime.device import prepare_device
from aam.runtime.files import check_writable
from aam.runtime.options import RuntimeConfig
from aam.runtime.terminal import ProgressBar

log = logging.getLogger("aam")


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


def write_unifrac(config: UnifracConfig) -> None:
    """Compute the distances or diversities that `config` asks for and write them in one step.

    Raises
    ------
    InputError
        Problems of options, table or tree; features without a tip unless ``--missing-tips drop``.
    """
    check_command(config)
    output = given(config.output)
    if output.suffix == ".npy":
        check_writable(ids_beside(output), config.overwrite)
    device = prepare_device(RuntimeConfig(device=config.device, threads=config.threads))
    table = read_table(given(config.table), need_sequences=False)
    if config.rarefy_depth is not None:
        table = _rarefied(table, config.rarefy_depth, config.seed)
    tree, tips = pruned_tree(given(config.tree), table.feature_ids, config.missing_tips, config.midpoint_root)
    table = _without_empty(table, tips, config.empty_samples)
    if config.unifrac_metric == "faith_pd":
        write_faith_pd(output, table.sample_ids, faith_pd(tree, tips, table.counts, config.root_length))
        log.info("%s: faith_pd of %d samples", output, len(table.sample_ids))
        return
    empty: Literal["scikit-bio", "nan"] = "nan" if config.empty_samples == "nan" else "scikit-bio"
    options = UnifracOptions(config.unifrac_metric, config.alpha, config.root_length, empty=empty)
    with ProgressBar("UniFrac", len(table.sample_ids) ** 2, "pairs of samples") as bar:
        tiles = unifrac_tiles(
            tree, tips, table.counts, options, device, int(config.memory_limit * 2**30),
            lambda done, total: bar.update(done, total=total),
        )  # fmt: skip
        write_distances(output, table.sample_ids, tiles)
    log.info("%s: %s of %d samples", output, config.unifrac_metric, len(table.sample_ids))
