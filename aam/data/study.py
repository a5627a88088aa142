"""A study ready to learn from: its inputs read, aligned, and cut to the samples that reach the
rarefaction depth.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from aam.config import NO_TREE, DataConfig
from aam.data.checks import warn_of_donors, warn_of_reads, warn_of_values
from aam.data.rarefaction import choose_depth
from aam.data.reference import Reference, SampleInput
from aam.data.region import RegionProfile, warn_of_primers
from aam.data.splits import fold_column, split_samples
from aam.data.table import deep_enough, fit_length, make_table, read_table, select_samples
from aam.data.targets import Covariates, Labels
from aam.data.tokens import encode
from aam.errors import InputError, Problems, shown
from aam.io.matrices import DistanceMatrix, read_distances
from aam.io.metadata import Metadata, align, read_metadata
from aam.io.phylogeny import Ints, Phylogeny, matched_tree, read_tree
from aam.io.tables import AmpliconTable
from aam.options import IN_MEMORY

log = logging.getLogger("aam")

Rows = npt.NDArray[np.int64]

# Names of files that say nothing; their folder names the study.
PLAIN_NAMES = ("table", "feature-table")


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs of a study, from files or from memory.

    Attributes
    ----------
    tables : tuple of AmpliconTable
        One, or one for each of several studies, which are joined.
    names : tuple of str
        Name of each study; a single one may be called ''.
    trees : tuple of Phylogeny or None
        Of each table, where it has one.
    matrix : DistanceMatrix, optional
        Precomputed distances in place of a tree.
    metadata : Metadata, optional
    """

    tables: tuple[AmpliconTable, ...]
    names: tuple[str, ...] = ("",)
    trees: tuple[Phylogeny | None, ...] = (None,)
    matrix: DistanceMatrix | None = None
    metadata: Metadata | None = None

    def checksums(self, options: Any) -> dict[str, str]:
        """Return the SHA-256 of the table, tree and metadata of one study that `options` name as
        `IN_MEMORY`.
        """
        (table,), (tree,), metadata = self.tables, self.trees, self.metadata
        counts = table.counts
        values: dict[str, tuple[Any, ...]] = {
            "table": (counts.indptr, counts.indices, counts.data, table.sample_ids, table.names),
            "tree": () if tree is None else (tree.parent, tree.length, tree.tips),
            "metadata": ()
            if metadata is None
            else (
                *(metadata.ids, metadata.columns, metadata.kinds),
                *map(sorted, (metadata.declared, metadata.blank, metadata.missing_values)),
            ),
        }
        digests = {}
        for name in values:
            if values[name] and getattr(options, name, None) == IN_MEMORY:
                digest = hashlib.sha256()
                for part in values[name]:
                    is_array = isinstance(part, np.ndarray)
                    digest.update(part.tobytes() if is_array else repr(part).encode())
                digests[name] = digest.hexdigest()
        return digests


@dataclass(frozen=True)
class MetadataColumns:
    """The metadata columns that a study is asked for.

    Attributes
    ----------
    required : sequence of str
        Columns in which every sample needs a value.
    optional : sequence of str
        Columns for which every sample needs a row but no value.
    targets : sequence of str
        Those whose classes keep 90 % of their training samples when the depth is chosen, by
        `choose_depth`.
    classifier : bool
        Whether numeric `targets` hold classes.
    numeric : sequence of str
        Covariates that are numbers.
    """

    required: Sequence[str] = ()
    optional: Sequence[str] = ()
    targets: Sequence[str] = ()
    classifier: bool = False
    numeric: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class MatchedTree:
    """A tree above the ASVs of a table, and the tip of each ASV, int64 [F] (-1 without)."""

    phylogeny: Phylogeny
    tips: Ints


@dataclass(frozen=True, eq=False)
class StudyPart:
    """One of the studies that were joined: its name and, where it has one, its tree."""

    name: str = ""
    tree: MatchedTree | None = None


@dataclass(frozen=True)
class Selection:
    """Selection of the samples of a study.

    Attributes
    ----------
    of_file : tuple of str
        Samples of the file, in its order.
    aligned : tuple of str
        Those of them that have all the metadata asked for, whatever their reads; splits divide
        these.
    dropped : dict of str to int
        Samples below the depth, and their reads.
    classes : dict
        The class of each aligned sample, by target column.
    target : str, optional
        The first target column, over whose values subsets are spread evenly.
    """

    of_file: tuple[str, ...] = ()
    aligned: tuple[str, ...] = ()
    dropped: dict[str, int] = field(default_factory=dict)
    classes: dict[str, dict[str, str | None]] = field(default_factory=dict)
    target: str | None = None


@dataclass(frozen=True, eq=False)
class Study:
    """The samples of a study and everything that batches are made from.

    Attributes
    ----------
    table : AmpliconTable
        The samples that reach the depth.
    depth, seed : int
        Rarefaction depth in reads, and the seed of every rarefaction.
    config : DataConfig
        How UniFrac is computed and how many ASVs are read.
    labels : Labels
        Targets, covariates and weights of the samples.
    parts : tuple of StudyPart
        The study or, where several were joined, each of them; distances are within each.
    origin : int64 [N]
        Which of `parts` each sample is of.
    matrix : DistanceMatrix, optional
        Precomputed distances, in the order of the table.
    reference : Reference, optional
        The reference of a plugin on which the ASVs are placed, and what it gives of samples.
    sample_input : SampleInput, optional
        What a network reads of samples on it.
    metadata : Metadata, optional
    selection : Selection
        How its samples were selected.
    """

    table: AmpliconTable
    depth: int
    seed: int
    config: DataConfig
    labels: Labels
    parts: tuple[StudyPart, ...]
    origin: Rows
    matrix: DistanceMatrix | None = None
    reference: Reference | None = None
    sample_input: SampleInput | None = None
    metadata: Metadata | None = None
    selection: Selection = field(default_factory=Selection)

    def require_sequences(self) -> None:
        """Raise `InputError` where the features have no sequences, which a network reads."""
        if not self.table.sequences:
            raise InputError(
                f"features such as {shown(self.table.feature_ids[:1])} have no sequences, which a "
                "network reads; pass --sequences rep-seqs.fasta|.qza, or train without a network"
            )

    @functools.cached_property
    def tokens(self) -> torch.Tensor:
        """Every ASV of the table, uint8 [F, L], PAD at the end of shorter ones."""
        self.require_sequences()
        return torch.from_numpy(encode(self.table.sequences))

    @property
    def has_tree(self) -> bool:
        """Whether there is a tree, of one of its parts at the least."""
        return any(part.tree is not None for part in self.parts)

    @property
    def metric(self) -> str | None:
        """The distance that batches carry, if any."""
        return self.config.unifrac_metric if self.has_tree or self.matrix is not None else None

    def placed_on(self, reference: Reference | None) -> Study:
        """Place the ASVs on the reference of a plugin, for a network that reads it."""
        if reference is None or reference is self.reference:
            return self
        sample_input = reference.sample_input(self.tokens.numpy())
        return replace(self, reference=reference, sample_input=sample_input)

    @property
    def reference_width(self) -> int:
        """Numbers of each sample on the reference; 0 without one."""
        return 0 if self.reference is None else self.reference.width

    def reference_numbers(
        self, asvs: Sequence[npt.NDArray[np.integer[Any]]]
    ) -> torch.Tensor | None:
        """Numbers [B, E] of samples on the reference, from their ASVs; None without a reference."""
        return None if self.sample_input is None else self.sample_input(asvs)

    def column(self, name: str | None, ids: Sequence[str]) -> list[str] | None:
        """Return a metadata column of some samples as text, empty where missing; none without a
        name or metadata. In the column of groups a sample without a value is its own group.
        """
        if self.metadata is None or name is None:
            return None
        if name == self.config.group_column:
            return self.metadata.groups(name, ids)
        return [value or "" for value in self.metadata.values(name, ids)]

    def with_covariates(self, covariates: Covariates, metadata: Metadata | None) -> Study:
        """Return the study with the values of `covariates` in its samples, all unknown without
        metadata.
        """
        category, covariate = covariates.encode(metadata, self.table.sample_ids)
        return replace(self, labels=replace(self.labels, category=category, covariate=covariate))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Nucleotides of each ASV, int64 [F]."""
        self.require_sequences()
        return self.table.lengths

    @property
    def longest(self) -> int:
        """Nucleotides of the longest ASV: what ``--max-bp`` is where it is not set."""
        return int(self.table.lengths.max(initial=1))

    @functools.cached_property
    def richness(self) -> npt.NDArray[np.float64]:
        """ASVs that each sample is expected to keep at the depth, float64 [N] (Hurlbert 1971, with
        replacement).
        """
        richness = np.zeros(len(self.table.sample_ids))
        for rows, counts in self.table.blocks():
            depths = np.maximum(self.table.depths[rows], 1)
            share = np.repeat(self.depth / depths, np.diff(counts.indptr)) * counts.data
            kept = sparse.csr_matrix(
                (-np.expm1(-share), counts.indices, counts.indptr), counts.shape
            )
            richness[rows] = np.asarray(kept.sum(axis=1)).ravel()
        return richness

    def rows(self, sample_ids: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the rows of the table of the samples named."""
        place = self.table.row_of
        return np.array([place[name] for name in sample_ids], np.int64)


def read_inputs(config: DataConfig, columns: MetadataColumns = MetadataColumns()) -> Inputs:
    """Read the files that `config` names.

    Raises
    ------
    InputError
        With the problems of every file, and with metadata columns that are not there.
    """
    problems = Problems()
    if config.tables:
        paths, names = config.tables, study_names(config.tables)
        trees, sequences = config.trees or (NO_TREE,) * len(names), None
    else:
        paths, names = (() if config.table is None else (config.table,)), ("",)
        trees, sequences = (str(config.tree or NO_TREE),), config.sequences
    tables, phylogenies = list[AmpliconTable](), dict[str, Phylogeny]()
    metadata = matrix = None
    for path in paths:
        with problems.collected():
            tables.append(read_table(path, sequences, merge=config.trim))
    with problems.collected():
        if config.metadata is not None:
            metadata = read_metadata(config.metadata, config.decimal, config.missing_values)
            metadata.require([*columns.required, *columns.optional])
    # One tree of several studies is read once.
    for tree in dict.fromkeys(tree for tree in trees if tree != NO_TREE):
        with problems.collected():
            phylogenies[tree] = read_tree(Path(tree), config.midpoint_root)
    with problems.collected():
        if config.unifrac_matrix is not None:
            matrix = read_distances(config.unifrac_matrix)
    problems.raise_if_any()
    return Inputs(tuple(tables), names, tuple(map(phylogenies.get, trees)), matrix, metadata)


def make_study(
    inputs: Inputs,
    config: DataConfig,
    max_bp: int | None,
    seed: int,
    columns: MetadataColumns = MetadataColumns(),
    training: Collection[str] | None = None,
    of_model: bool = False,
) -> Study:
    """Join, align and cut inputs to the samples that reach the depth.

    `config` says how they are read; the files that it names are not. `max_bp` are the nucleotides
    of the longest ASV that is accepted; unset, any. `training` are the training samples; unset,
    those of the splits that `config` asks for. `max_bp` and the depth may be those `of_model`, so
    that no message advises others.

    Raises `InputError`: ASVs that are too long, samples without metadata, a depth that none
    reaches, ASVs without a tip.
    """
    problems, tables = Problems(), list[AmpliconTable]()
    for table in inputs.tables:
        with problems.collected():
            tables.append(fit_length(table, max_bp, config.trim, of_model))
    problems.raise_if_any()
    full_table, origin = _joined(tables, inputs.names)
    aligned, classes = _with_metadata(full_table, inputs.metadata, columns, config)
    target = columns.targets[0] if columns.targets else None
    if inputs.metadata is not None and target and training is None and not of_model:
        warn_of_donors(aligned, inputs.metadata, columns.targets, config)
    depth = config.rarefy_depth
    if depth is None:
        if classes and training is None:
            ids = aligned.sample_ids
            splits = split_samples(inputs.metadata, config, ids, seed, target, classes)
            training = {name for split in splits for name in split.ids("train")}
        depth = _chosen_depth(aligned, classes, training)
    table, dropped = deep_enough(aligned, depth, of_model)
    if not of_model:
        warn_of_primers(table, of_model)
    warn_of_reads(aligned)
    _log_dropped(classes, dropped)
    kept = origin[[full_table.row_of[name] for name in table.sample_ids]]
    return Study(
        table=table,
        depth=depth,
        seed=seed,
        config=config,
        labels=Labels.none(len(table)),
        parts=_parts(table, kept, inputs, config),
        origin=kept,
        matrix=None if inputs.matrix is None else inputs.matrix.select(table.sample_ids),
        metadata=inputs.metadata,
        selection=Selection(full_table.sample_ids, aligned.sample_ids, dropped, classes, target),
    )


def _with_metadata(
    table: AmpliconTable, metadata: Metadata | None, columns: MetadataColumns, config: DataConfig
) -> tuple[AmpliconTable, dict[str, dict[str, str | None]]]:
    """Return the samples of a table that have what is required of their metadata, and the class of
    each by target column.
    """
    asked = [*columns.required, *columns.optional]
    if metadata is None:
        if asked:
            raise InputError(f"--metadata: not given, but columns {shown(asked)} are asked for")
        return table, {}
    metadata.require(asked)
    kept = align(metadata, table.sample_ids, columns.required, config.missing)
    return select_samples(table, kept), _classes(metadata, columns, config, table.sample_ids, kept)


def _parts(
    table: AmpliconTable, origin: Rows, inputs: Inputs, config: DataConfig
) -> tuple[StudyPart, ...]:
    """Return each study's name and, where it has one, its tree above its ASVs in the (joined)
    table.
    """
    parts = []
    for number, (name, tree) in enumerate(zip(inputs.names, inputs.trees, strict=True)):
        if tree is None:
            parts.append(StudyPart(name))
            continue
        columns = np.arange(len(table.feature_ids))
        if len(inputs.names) > 1:
            columns = table.columns_of(np.flatnonzero(origin == number))
        # Where ids are hashes, the tips may be called by sequences.
        ids, sequences = (
            [names[column] for column in columns.tolist()] if names else []
            for names in (table.feature_ids, table.sequences)
        )
        phylogeny, tips_of_columns = matched_tree(tree, ids, config.missing_tips, sequences)
        tips = np.full(len(table.feature_ids), -1, np.int64)
        tips[columns] = tips_of_columns
        parts.append(StudyPart(name, MatchedTree(phylogeny, tips)))
    return tuple(parts)


def lost_classes(
    metadata: Metadata, name: str, every: Sequence[str], kept: Sequence[str]
) -> dict[str, int]:
    """Return the classes of a column that samples of `every` have and none of `kept`, and how many
    samples had them.
    """
    counts = Counter(metadata.values(name, [sample for sample in every if sample in metadata]))
    return {
        str(lost): counts[lost]
        for lost in sorted(filter(None, counts.keys() - set(metadata.values(name, kept))))
    }


def _classes(
    metadata: Metadata,
    columns: MetadataColumns,
    config: DataConfig,
    every: Sequence[str],
    ids: Sequence[str],
) -> dict[str, dict[str, str | None]]:
    """Return the classes of the samples `ids` by target column, and warn of odd values, and classes
    that these lack.

    Numeric columns have none unless `classifier`. `every` sample of the table may have had a class.
    """
    names = [
        name for name in columns.targets if columns.classifier or metadata.kinds[name] != "numeric"
    ]
    problems = Problems()
    # All samples, not only those of a fold that trains.
    for name in [name for name in columns.targets if name not in names] + list(columns.numeric):
        with problems.collected():
            metadata.numbers(name, ids)
    problems.raise_if_any()
    warn_of_values(metadata, columns.targets, names, config.group_column, fold_column(config))
    if config.group_column is not None:
        metadata.require([config.group_column])
        if lacking := metadata.values(config.group_column, ids).count(None):
            log.warning(
                "warning: %s: %d of %d samples have no value in --group-column %s; each counts as "
                "a group of its own",
                *(metadata.source, lacking, len(ids), config.group_column),
            )
    for name in names:
        for lost, samples in lost_classes(metadata, name, every, ids).items():
            log.warning(
                "warning: no sample of %s %r is left: all %d lack other metadata",
                *(name, lost, samples),
            )
    return {name: dict(zip(ids, metadata.values(name, ids), strict=True)) for name in names}


def _chosen_depth(
    table: AmpliconTable,
    classes: Mapping[str, Mapping[str, str | None]],
    training: Collection[str] | None,
) -> int:
    """Return the depth for these samples, by the classes of the training samples, and log why."""
    rows = None
    if training is not None:
        rows = [row for row, name in enumerate(table.sample_ids) if name in training]
    labels = {name: [*class_of.values()] for name, class_of in classes.items()}
    depth, message, is_deep = choose_depth(table.depths, labels, rows)
    log.log(logging.INFO if is_deep else logging.WARNING, "%s", message)
    return depth


def _log_dropped(classes: Mapping[str, Mapping[str, str | None]], dropped: Collection[str]) -> None:
    """Log the number of samples of each class that the depth drops, if it drops any."""
    for column, class_of in classes.items() if dropped else ():
        totals = Counter(label or "" for label in class_of.values())
        fewer = Counter(class_of[name] or "" for name in dropped)
        lines = [f"{fewer[x]} of {totals[x]} of {x or 'no class'!r}" for x in sorted(fewer)]
        log.warning("dropped for too few reads, by %r: %s", column, ", ".join(lines))


def study_names(tables: Sequence[Path]) -> tuple[str, ...]:
    """Return the name of each study: its file's, or its folder's where the file is called
    ``table``; with a number where others have the same.
    """
    names = [
        path.resolve().parent.name if path.stem in PLAIN_NAMES else path.stem for path in tables
    ]
    before = [names[:at].count(name) for at, name in enumerate(names)]
    return tuple(
        f"{name}-{times + 1}" if times else name for name, times in zip(names, before, strict=True)
    )


def _warn_of_regions(tables: Sequence[AmpliconTable], names: Sequence[str]) -> None:
    """Log which studies hold reads of another region or strand than the first."""
    profile = RegionProfile.fit(tables[0].sequences)
    for name, table in zip(names[1:], tables[1:], strict=True):
        for sentence in profile.compare(table, ("reversed", "elsewhere")):
            log.warning("warning: %s, compared with %s: %s", name, names[0], sentence)


def _sample_ids(tables: Sequence[AmpliconTable], names: Sequence[str]) -> list[str]:
    """Return the ids of all samples; one that occurs in two studies is called ``STUDY/ID``."""
    times = Counter(sample for table in tables for sample in table.sample_ids)
    return [
        sample if times[sample] == 1 else f"{name}/{sample}"
        for name, table in zip(names, tables, strict=True)
        for sample in table.sample_ids
    ]


def _joined(tables: Sequence[AmpliconTable], names: Sequence[str]) -> tuple[AmpliconTable, Rows]:
    """Return the samples of all tables over the distinct ASVs of all, and the study of each sample,
    int64 [N].
    """
    origin = np.repeat(np.arange(len(tables)), [len(table.sample_ids) for table in tables])
    if len(tables) == 1:
        return tables[0], origin
    without = [name for name, table in zip(names, tables, strict=True) if not table.sequences]
    if without and len(without) < len(names):
        raise InputError(
            f"--table: the features of {shown(without)} have no sequences and those of other "
            "studies do; pass tables whose feature ids are all of one kind"
        )
    if not without:
        _warn_of_regions(tables, names)
    counts = sparse.csr_array(sparse.block_diag([table.counts for table in tables], format="csr"))
    ids = [name for table in tables for name in table.names]
    joined = make_table(counts, _sample_ids(tables, names), ids, () if without else ids)
    log.info("%d studies: %d samples, %d distinct ASVs", len(tables), *joined.shape)
    return joined, origin
