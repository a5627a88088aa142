"""`aam unifrac`: the UniFrac matrix or Faith PD of a table."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import numpy as np
from rich.progress import Progress
from scipy import sparse

from aam.config_commands import UnifracConfig
from aam.data.distances import SUFFIXES, ids_beside, write_distances, write_faith_pd
from aam.data.newick import pruned_tree
from aam.data.phylogeny import Ints
from aam.data.rarefaction import rarefied_row
from aam.data.table import SampleTable, deep_enough, make_table, read_table, select_samples
from aam.data.unifrac import UnifracOptions, faith_pd, samples_without_tips
from aam.data.unifrac_tiles import unifrac_tiles
from aam.errors import InputError, Problems, shown
from aam.options import out_of_range
from aam.runtime.device import prepare_device
from aam.runtime.files import check_writable
from aam.runtime.options import RuntimeConfig

log = logging.getLogger("aam")


def _check_options(config: UnifracConfig) -> tuple[Path, Path, Path]:
    problems = Problems()
    for name, path in (("--table", config.table), ("--tree", config.tree), ("--output", config.output)):
        if path is None:
            problems.add(f"{name}: not given")
    known = (".tsv", ".qza") if config.unifrac_metric == "faith_pd" else SUFFIXES
    if config.output is not None:
        if config.output.suffix not in known:
            problems.add(f"--output: {config.output} ends in {config.output.suffix!r}, expected {', '.join(known)}")
        try:
            check_writable(config.output, config.overwrite)
            if config.output.suffix == ".npy":
                check_writable(ids_beside(config.output), config.overwrite)
        except InputError as error:
            problems.extend(error)
    problems.found += out_of_range(config)
    problems.raise_if_any()
    if config.table is None or config.tree is None or config.output is None:
        raise InputError("--table, --tree and --output are needed")
    return config.table, config.tree, config.output


def _rarefied(table: SampleTable, depth: int, seed: int) -> SampleTable:
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
    """Compute what `config` asks for and write it, whole or not at all.

    Raises
    ------
    InputError
        Problems of options, table or tree; features without a tip unless ``--missing-tips drop``.
    """
    table_path, tree_path, output = _check_options(config)
    device = prepare_device(RuntimeConfig(device=config.device, threads=config.threads))
    table = read_table(table_path, need_sequences=False)
    if config.rarefy_depth is not None:
        table = _rarefied(table, config.rarefy_depth, config.seed)
    tree, tips = pruned_tree(tree_path, table.feature_ids, config.missing_tips, config.midpoint_root)
    table = _without_empty(table, tips, config.empty_samples)
    if config.unifrac_metric == "faith_pd":
        write_faith_pd(output, table.sample_ids, faith_pd(tree, tips, table.counts, config.root_length))
        log.info("%s: faith_pd of %d samples", output, len(table.sample_ids))
        return
    empty: Literal["scikit-bio", "nan"] = "nan" if config.empty_samples == "nan" else "scikit-bio"
    options = UnifracOptions(config.unifrac_metric, config.alpha, config.root_length, empty=empty)
    with Progress(transient=True) as progress:
        bar = progress.add_task("pairs of samples", total=len(table.sample_ids) ** 2)
        tiles = unifrac_tiles(
            tree, tips, table.counts, options, device, int(config.memory_limit * 2**30),
            lambda done, total: progress.update(bar, completed=done, total=total),
        )  # fmt: skip
        write_distances(output, table.sample_ids, tiles)
    log.info("%s: %s of %d samples", output, config.unifrac_metric, len(table.sample_ids))
