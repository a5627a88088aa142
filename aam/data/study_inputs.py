"""The inputs of a study: read, aligned, and cut to the samples that reach the rarefaction depth."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from aam.config import DataConfig
from aam.data.depth import Labels, choose_depth, dropped_by_class
from aam.data.study import Study
from aam.data.study_splits import split_samples
from aam.data.table import SampleTable, check_length, deep_enough, read_table, select_samples, trim
from aam.data.tokens import encode
from aam.errors import InputError, Problems, shown
from aam.io.matrices import read_distances
from aam.io.metadata import Metadata, align, is_number, read_metadata
from aam.io.newick import pruned_tree
from aam.io.phylogeny import Ints, Phylogeny

log = logging.getLogger("aam")


def _read_inputs(config: DataConfig, max_bp: int | None, columns: Sequence[str]) -> tuple[SampleTable, Metadata | None]:
    """Return table and metadata; problems of both come in one message."""
    problems = Problems()
    table, metadata = None, None
    if config.table is None:
        problems.add("--table: not given; name the feature table (.biom, .qza or .tsv)")
    else:
        try:
            table = _read_table(config, config.table, max_bp)
        except InputError as error:
            problems.extend(error)
    if config.metadata is None and columns:
        problems.add(f"--metadata: not given, but columns {shown(columns)} are asked for")
    if config.metadata is not None:
        try:
            metadata = read_metadata(config.metadata, config.decimal)
            metadata.require(columns)
        except InputError as error:
            problems.extend(error)
    if config.tree is not None and config.unifrac_matrix is not None:
        problems.add("--tree and --unifrac-matrix: both given; distances come from one of them")
    for path, name in ((config.tree, "--tree"), (config.unifrac_matrix, "--unifrac-matrix")):
        if path is not None and not path.is_file():
            problems.add(f"{name}: {path} is no file")
    problems.raise_if_any()
    if table is None:
        raise InputError("--table: nothing read")
    return table, metadata


def _read_table(config: DataConfig, path: Path, max_bp: int | None) -> SampleTable:
    """Return the table with ASVs of at most `max_bp` nucleotides; without it they are as long as they are."""
    if max_bp is None:
        if config.trim:
            raise InputError("--trim: cuts ASVs to --max-bp, which is not given; pass --max-bp, or leave out --trim")
        return read_table(path, config.sequences, transpose=config.transpose)
    table = read_table(path, config.sequences, transpose=config.transpose)
    if config.trim:
        table = trim(table, max_bp)
    check_length(table, max_bp)
    return table


def _warn_of_values(metadata: Metadata, columns: Sequence[str], classes: Collection[str], group: str | None) -> None:
    """Warn of values that are probably meant to be one, and of targets `columns` that are 0 and 1 but no `classes`."""
    for name in dict.fromkeys([*classes, *([] if group is None else [group])]):
        for values in metadata.spellings(name):
            what = "groups; if they are one, it is in several subsets and leaks" if name == group else "classes"
            log.warning("warning: %s: %s in %r are different %s", metadata.source, shown(values), name, what)
    for name in columns:
        numbers = {float(cell) for cell in metadata.columns[name] if is_number(cell)}
        if name not in classes and numbers == {0.0, 1.0}:
            log.warning("warning: %r holds 0 and 1 only and is predicted as a number; --classifier makes classes", name)


def _classes(
    metadata: Metadata | None, columns: Sequence[str], classifier: bool, ids: Sequence[str]
) -> dict[str, Labels]:
    """Return the classes of the samples `ids` by column, without numeric columns unless `classifier`."""
    if metadata is None:
        return {}
    names = [name for name in columns if classifier or metadata.kinds[name] != "numeric"]
    return {name: metadata.values(name, ids) for name in names}


def _chosen_depth(
    table: SampleTable,
    metadata: Metadata | None,
    classes: dict[str, Labels],
    training: Collection[str] | None,
    config: DataConfig,
    seed: int,
) -> int:
    """Return the depth for these samples, by the classes of the training samples, and log why."""
    if classes and training is None:
        splits = split_samples(metadata, config, table.sample_ids, seed)
        training = {name for split in splits for name in split.ids("train")}
    rows = None if training is None else [row for row, name in enumerate(table.sample_ids) if name in training]
    choice = choose_depth(table.depths, classes, rows)
    log.log(logging.WARNING if choice.keeping < choice.depth else logging.INFO, "%s", choice.message())
    return choice.depth


def _log_dropped(table: SampleTable, classes: dict[str, Labels], dropped: Collection[str]) -> None:
    """Say how many samples of each class the depth drops, where it drops any."""
    for column, labels in classes.items() if dropped else ():
        counts = dropped_by_class(dict(zip(table.sample_ids, labels, strict=True)), dropped)
        lines = [f"{fewer} of {total} of {label or 'no class'!r}" for label, (fewer, total) in counts.items() if fewer]
        log.warning("dropped for too few reads, by %r: %s", column, ", ".join(lines))


def _matched_tree(config: DataConfig, table: SampleTable) -> tuple[Phylogeny | None, Ints | None]:
    """Return the tree above the ASVs of a table and the tip of each, or nothing without a tree."""
    if config.tree is None:
        return None, None
    # With --sequences the ids are hashes, and the tips may be called by either.
    sequences = () if config.sequences is None else table.sequences
    return pruned_tree(config.tree, table.feature_ids, config.missing_tips, config.midpoint_root, sequences)


def load_study(
    config: DataConfig,
    max_bp: int | None,
    seed: int,
    columns: Sequence[str] = (),
    class_columns: Sequence[str] = (),
    classifier: bool = False,
    optional: Sequence[str] = (),
    training: Collection[str] | None = None,
) -> Study:
    """Read and align all inputs.

    Parameters
    ----------
    config : DataConfig
    max_bp : int, optional
        Nucleotides of the longest ASV that is accepted; any length where it is not given (see `Study.longest`).
    seed : int
    columns : sequence of str
        Metadata columns in which every sample needs a value.
    class_columns : sequence of str
        Those whose classes keep 90 % of their training samples when the depth is chosen, by `choose_depth`.
    classifier : bool
        Whether numeric `class_columns` hold classes.
    optional : sequence of str
        Metadata columns for which every sample needs a row but no value.
    training : collection of str, optional
        The training samples; where it is not given, those of the splits that `config` asks for.

    Raises `InputError`: with every problem of table and metadata, or of the tree.
    """
    full_table, metadata = _read_inputs(config, max_bp, [*columns, *optional])
    aligned = full_table
    if metadata is not None:
        aligned = select_samples(aligned, align(metadata, aligned.sample_ids, columns, config.missing))
    classes = _classes(metadata, class_columns, classifier, aligned.sample_ids)
    if metadata is not None and class_columns:
        _warn_of_values(metadata, class_columns, classes, config.group_column)
    depth = config.rarefy_depth
    if depth is None:
        depth = _chosen_depth(aligned, metadata, classes, training, config, seed)
    table, dropped = deep_enough(aligned, depth)
    _log_dropped(aligned, classes, dropped)
    tree, tips = _matched_tree(config, table)
    path = config.unifrac_matrix
    matrix = None if path is None else read_distances(path).select(table.sample_ids)
    return Study(
        table=table,
        tokens=torch.from_numpy(encode(table.sequences)),
        lengths=table.lengths,
        depth=depth,
        seed=seed,
        config=config,
        tree=tree,
        tips=tips,
        matrix=matrix,
        metadata=metadata,
        all_sample_ids=full_table.sample_ids,
        aligned_sample_ids=aligned.sample_ids,
        dropped=dropped,
    )
