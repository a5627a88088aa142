"""A study ready to learn from: table, tree, metadata and targets, read, aligned and cut to the rarefaction depth."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from scipy.sparse import block_diag, csr_array

from aam.config import NO_TREE, DataConfig
from aam.data.auxiliary_targets import Taxa
from aam.data.placement import Placement, ReferenceTree
from aam.data.rarefaction import Labels, choose_depth, dropped_by_class
from aam.data.region import MOST_ELSEWHERE, MOST_REVERSED, RegionProfile
from aam.data.splits import split_samples
from aam.data.table import SampleTable, check_length, deep_enough, make_table, read_table, select_samples, trim
from aam.data.tokens import encode
from aam.errors import InputError, Problems, shown
from aam.io.matrices import DistanceMatrix, read_distances
from aam.io.metadata import Metadata, align, is_number, read_metadata
from aam.io.newick import pruned_tree
from aam.io.phylogeny import Ints, Phylogeny
from aam.io.taxonomy import Lineage

Row = tuple[npt.NDArray[np.integer], npt.NDArray[np.int64]]

Rows = npt.NDArray[np.int64]

EVALUATION = -1


@dataclass(frozen=True, eq=False)
class StudyPart:
    """One of several studies: its name and, where it has one, its tree with the tip of each ASV (int64 [F], or -1)."""

    name: str
    tree: Phylogeny | None = None
    tips: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class Study:
    """The data from which batches are drawn.

    Attributes
    ----------
    table : SampleTable
        The samples that reach the depth.
    tokens : uint8 [F, L]
        Every ASV of the table, PAD at the end of shorter ones.
    lengths : int64 [F]
        Nucleotides of each ASV.
    depth, seed : int
        Rarefaction depth in reads, and the seed of every draw.
    config : DataConfig
        How UniFrac is computed and how many ASVs are read.
    tree, tips : Phylogeny and int64 [F], optional
        Pruned to the table, and the tip of each ASV (-1 without).
    matrix : DistanceMatrix, optional
        Precomputed distances, in the order of the table.
    parts : tuple of StudyPart
        The studies that were joined, where there are several; then distances are within each.
    origin : int64 [N], optional
        Which of them each sample is of.
    placement : Placement, optional
        Where the ASVs stand on a reference tree.
    metadata : Metadata, optional
    all_sample_ids : tuple of str
        Samples of the file, in its order.
    aligned_sample_ids : tuple of str
        Those of them that have all the metadata asked for, whatever their reads; splits divide these.
    dropped : dict of str to int
        Samples below the depth, and their reads.
    target, label : float32 [N, T] and int64 [N, K], optional
    further : tuple of str
        Further targets of pretraining that batches carry (`aam.data.auxiliary_targets`).
    lineages : tuple of tuple of str
        Lineage of each ASV, empty where not known; nothing where no taxonomy was read.
    taxa : Taxa, optional
        The taxa of the ASVs as classes.
    category, covariate, weight : int64 [N, C], float32 [N, M] and float32 [N], optional
        Covariates (0 is unknown, NaN missing), and weights of the samples in the target loss.
    """

    table: SampleTable
    tokens: torch.Tensor
    lengths: npt.NDArray[np.int64]
    depth: int
    seed: int
    config: DataConfig
    tree: Phylogeny | None = None
    tips: npt.NDArray[np.int64] | None = None
    matrix: DistanceMatrix | None = None
    parts: tuple[StudyPart, ...] = ()
    origin: npt.NDArray[np.int64] | None = None
    placement: Placement | None = None
    metadata: Metadata | None = None
    all_sample_ids: tuple[str, ...] = ()
    aligned_sample_ids: tuple[str, ...] = ()
    dropped: dict[str, int] = field(default_factory=dict)
    target: npt.NDArray[np.float32] | None = None
    label: npt.NDArray[np.int64] | None = None
    further: tuple[str, ...] = ()
    lineages: tuple[Lineage, ...] = ()
    taxa: Taxa | None = None
    category: npt.NDArray[np.int64] | None = None
    covariate: npt.NDArray[np.float32] | None = None
    weight: npt.NDArray[np.float32] | None = None

    @property
    def metric(self) -> str | None:
        """The distance that batches carry, if any."""
        has_tree = self.tree is not None or any(part.tree is not None for part in self.parts)
        return self.config.unifrac_metric if has_tree or self.matrix is not None else None

    @property
    def reference(self) -> ReferenceTree | None:
        """The tree on which its ASVs are placed, if any."""
        return None if self.placement is None else self.placement.reference

    def placed_on(self, reference: ReferenceTree | None) -> Study:
        """Return the study with its ASVs placed on a tree; as it is where they stand there, or there is none."""
        if reference is None or reference is self.reference:
            return self
        return replace(self, placement=Placement.make(reference, self.tokens))

    def features(self, columns: torch.Tensor) -> torch.Tensor | None:
        """Return branches and words of some ASVs, int64 [U, P], where they are placed on a tree."""
        return None if self.placement is None else self.placement.features[columns].long()

    @property
    def longest(self) -> int:
        """Nucleotides of the longest ASV: what ``--max-bp`` is where it is not set."""
        return int(self.lengths.max())

    @functools.cached_property
    def richness(self) -> npt.NDArray[np.float64]:
        """ASVs that each sample is expected to keep at the depth, float64 [N] (Hurlbert 1971, with replacement)."""
        richness = np.zeros(len(self.table.sample_ids))
        for rows, counts in self.table.blocks():
            depths = np.maximum(self.table.depths[rows], 1)
            share = np.repeat(self.depth / depths, np.diff(counts.indptr)) * counts.data
            kept = sparse.csr_matrix((-np.expm1(-share), counts.indices, counts.indptr), counts.shape)
            richness[rows] = np.asarray(kept.sum(axis=1)).ravel()
        return richness

    def rows(self, sample_ids: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the rows of the table of the samples named."""
        place = self.table.row_of
        return np.array([place[name] for name in sample_ids], np.int64)


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


def _warn_of_values(
    metadata: Metadata | None, columns: Sequence[str], classes: Collection[str], group: str | None
) -> None:
    """Warn of values that are probably meant to be one, and of targets `columns` that are 0 and 1 but no `classes`."""
    if metadata is None:
        return
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


# Names of files that say nothing; their folder names the study.
PLAIN_NAMES = ("table", "feature-table")


def study_names(tables: Sequence[Path], given: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the name of each study: that `given`, its file's, or its folder's where the file is called ``table``.

    Raises `InputError`: two studies have one name.
    """
    names = list(given) or [path.resolve().parent.name if path.stem in PLAIN_NAMES else path.stem for path in tables]
    if repeated := sorted(name for name, times in Counter(names).items() if times > 1):
        if given:
            raise InputError(f"--study-names: {shown(repeated)} is there twice; give each study a name of its own")
        raise InputError(
            f"--table: several studies are called {shown(repeated)}; give their files or folders other names, or each "
            "one a name by --study-names"
        )
    return tuple(names)


def _warn_of_regions(tables: Sequence[SampleTable], names: Sequence[str]) -> None:
    """Log which studies hold ASVs of another region or strand than the first, or of another length."""
    profile = RegionProfile.fit(tables[0].sequences)
    for name, table in zip(names[1:], tables[1:], strict=True):
        share = profile.shares(table.sequences)
        if share["elsewhere"] > MOST_ELSEWHERE or share["reversed"] > MOST_REVERSED:
            log.warning(
                "warning: %s: %.0f %% of its ASVs are of another region than those of %s, and %.0f %% of the other "
                "strand; samples of different studies are never compared, but one encoder reads both",
                name, 100 * share["elsewhere"], names[0], 100 * share["reversed"],
            )  # fmt: skip
    lengths = {
        name: round(np.median([len(s) for s in table.sequences])) for name, table in zip(names, tables, strict=True)
    }
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        log.info("median lengths of ASVs in nucleotides: %s; --trim with --max-bp makes them equal", listed)


def _sample_ids(tables: Sequence[SampleTable], names: Sequence[str]) -> list[str]:
    """Return the ids of all samples; one that occurs in two studies is called ``STUDY/ID``."""
    times = Counter(sample for table in tables for sample in table.sample_ids)
    return [
        sample if times[sample] == 1 else f"{name}/{sample}"
        for name, table in zip(names, tables, strict=True)
        for sample in table.sample_ids
    ]


def _read_one(path: Path, max_bp: int | None, config: DataConfig, problems: Problems) -> SampleTable | None:
    """Return a table with ASVs of at most `max_bp` nucleotides, or add what is wrong with it to `problems`."""
    try:
        table = read_table(path, transpose=config.transpose)
        if max_bp is not None:
            table = trim(table, max_bp) if config.trim else table
            check_length(table, max_bp)
    except InputError as error:
        problems.extend(error)
        return None
    return table


def read_studies(
    names: Sequence[str], max_bp: int | None, config: DataConfig
) -> tuple[SampleTable, npt.NDArray[np.int64]]:
    """Return the samples of all tables over the distinct ASVs of all, and the study of each sample, int64 [N].

    Raises
    ------
    InputError
        With the problems of every table.
    """
    problems = Problems()
    read = [_read_one(path, max_bp, config, problems) for path in config.tables]
    problems.raise_if_any()
    tables = [table for table in read if table is not None]
    _warn_of_regions(tables, names)
    counts = csr_array(block_diag([table.counts for table in tables], format="csr"))
    sequences = [sequence for table in tables for sequence in table.sequences]
    origin = np.repeat(np.arange(len(tables)), [len(table.sample_ids) for table in tables])
    joined = make_table(counts, _sample_ids(tables, names), sequences, sequences)
    log.info("%d studies: %d samples, %d distinct ASVs", len(tables), len(joined.sample_ids), len(joined.sequences))
    return joined, origin


def study_parts(
    table: SampleTable, origin: Rows, names: Sequence[str], trees: Sequence[str], config: DataConfig
) -> tuple[StudyPart, ...]:
    """Return each study's name and, where it has one, its tree with the tip of each ASV of the joined table.

    Raises
    ------
    InputError
        A tree cannot be read, or lacks ASVs of its study that `config` does not allow to be missing.
    """
    parts = []
    for number, (name, tree) in enumerate(zip(names, trees, strict=True)):
        if tree == NO_TREE:
            parts.append(StudyPart(name))
            continue
        columns = table.columns_of(np.flatnonzero(origin == number))
        ids = [table.sequences[column] for column in columns]
        phylogeny, tips_of_columns = pruned_tree(Path(tree), ids, config.missing_tips, config.midpoint_root)
        tips = np.full(len(table.sequences), -1, np.int64)
        tips[columns] = tips_of_columns
        parts.append(StudyPart(name, phylogeny, tips))
    return tuple(parts)


def load_studies(config: DataConfig, max_bp: int | None, seed: int) -> Study:
    """Read the tables and trees of several studies and join them.

    Raises
    ------
    InputError
        Problems of the tables, then of the trees; no sample reaches the depth.
    """
    names = study_names(config.tables, config.study_names)
    joined, origin = read_studies(names, max_bp, config)
    if unknown := sorted(set(config.hold_out_study) - set(names)):
        raise InputError(f"--hold-out-study: {shown(unknown)} is none of the studies {shown(names, 40)}")
    depth = config.rarefy_depth
    if depth is None:
        choice = choose_depth(joined.depths)
        log.info("%s", choice.message())
        depth = choice.depth
    table, dropped = deep_enough(joined, depth)
    place = {name: row for row, name in enumerate(joined.sample_ids)}
    kept = origin[[place[name] for name in table.sample_ids]]
    trees = config.trees or (NO_TREE,) * len(names)
    return Study(
        table=table,
        tokens=torch.from_numpy(encode(table.sequences)),
        lengths=table.lengths,
        depth=depth,
        seed=seed,
        config=config,
        parts=study_parts(table, kept, names, trees, config),
        origin=kept,
        all_sample_ids=joined.sample_ids,
        aligned_sample_ids=joined.sample_ids,
        dropped=dropped,
    )
