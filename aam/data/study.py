"""A study to learn from: its inputs read, aligned, and cut to the samples that reach the depth."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

import numpy as np
import pandas as pd
import torch
from scipy import sparse

from aam.config import CovariateConfig, DataConfig
from aam.data import checks, primers, region
from aam.data.inputs import Inputs
from aam.data.rarefaction import choose_depth
from aam.data.splits import split_samples
from aam.data.table import deep_enough, make_table, select_samples
from aam.data.targets import (
    Covariates,
    Labels,
    LeftOut,
    classes_of_few_groups,
    described,
    without_classes,
)
from aam.data.tokens import encode
from aam.errors import InputError, Problems, problem, shown
from aam.io.matrices import DistanceMatrix, Tile
from aam.io.metadata import Metadata, align
from aam.io.phylogeny import Phylogeny, matched_tree
from aam.io.tables import AmpliconTable
from aam.options import not_none
from aam.typing import Array, Floats, Integers, Ints, Reals, Rows, Tokens

log = logging.getLogger("aam")

PlacedMetric = Literal["unifrac", "weighted-normalized"]
# Numbers [B, E] of B samples of a table, from the columns of their ASVs, which the sample encoder
# reads in addition to the ASV vectors.
SampleInput: TypeAlias = Callable[[Sequence[Integers]], torch.Tensor]

# What became of a sample of a file: it is in the study; left out by --exclude; it lacks metadata; a
# class that is left out was its only target; it is below the depth.
State = Literal["kept", "excluded", "no metadata", "no class", "few reads"]


class PlacedSamples(Protocol):
    """Samples of a table on a reference: distances and vectors that need no tree of their ASVs."""

    def distances(self, metric: PlacedMetric) -> Iterator[Tile]:
        """Distances between the samples, in tiles on and above the diagonal."""

    def vectors(self) -> Iterator[Reals]:
        """Vectors of the samples, a block of samples at a time."""

    def taxa(self) -> Iterator[list[str]]:
        """Rows of a table of taxa: the header, then one row per ASV."""


class Reference(Protocol):
    """A reference of a plugin, such as a tree of known sequences, that places ASVs.

    A saved model keeps its arrays, and the entry point `encoder` (group ``aam.encoders``) rebuilds
    it from them. N samples, F ASVs of a table, L nucleotides, E numbers of the reference.
    """

    @property
    def encoder(self) -> str:
        """Name of the entry point that rebuilds it."""

    @property
    def width(self) -> int:
        """Numbers of a sample that a network reads, E."""

    def sample_input(self, tokens: Tokens) -> SampleInput:
        """Place the ASVs of a table [F, L] once, for any number of batches."""

    def place(
        self, table: AmpliconTable, tokens: Tokens, counts: sparse.csr_matrix, source: str
    ) -> PlacedSamples:
        """Place the samples of a table with rarefied `counts` [N, F]; `source` names the table."""

    def to_arrays(self) -> dict[str, Array]:
        """Arrays of a saved model."""


@dataclass(frozen=True)
class MetadataColumns:
    """The metadata columns that a study is asked for.

    Every sample needs a value in the `required` columns and a row for the `optional` columns.
    Classes of `targets` keep 90 % of their training samples when the depth is chosen; `classifier`:
    numeric targets hold classes. To be `learned`, a class needs a few groups of samples; others are
    left out.
    """

    required: Sequence[str] = ()
    optional: Sequence[str] = ()
    targets: Sequence[str] = ()
    classifier: bool = False
    covariates: CovariateConfig = field(default_factory=CovariateConfig)
    learned: bool = False

    @property
    def names(self) -> list[str]:
        """Names of all columns in which a sample needs a row."""
        return [*self.required, *self.optional]


@dataclass(frozen=True, eq=False)
class StudyPart:
    """One of the studies that were joined: its name, its tree if it has one, and the tip of each
    ASV of the (joined) table, int64 [F], -1 without.
    """

    name: str = ""
    tree: Phylogeny | None = None
    tips: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


def sample_frame(ids: Iterable[str]) -> pd.DataFrame:
    """The frame of samples that are all in the study, without reads."""
    index = pd.Index([*ids], dtype=object)
    return pd.DataFrame({"state": "kept", "reads": 0}, index).astype({"state": object})


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
    metadata : Metadata, optional
        Without the classes that are left out.
    columns : MetadataColumns
        The columns that it was asked for.
    samples : DataFrame
        All samples of the file by id, in its order: `reads`, and the `state`.
    left_out : dict
        Why a class is left out, by target column and class.
    reference : Reference, optional
        The reference of a plugin on which the ASVs are placed, and what it gives of samples.
    sample_input : SampleInput, optional
        What a network reads of samples on it.
    """

    table: AmpliconTable
    depth: int
    seed: int
    config: DataConfig
    labels: Labels
    parts: tuple[StudyPart, ...]
    origin: Rows
    matrix: DistanceMatrix | None = None
    metadata: Metadata | None = None
    columns: MetadataColumns = MetadataColumns()
    samples: pd.DataFrame = field(default_factory=lambda: sample_frame(()))
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    reference: Reference | None = None
    sample_input: SampleInput | None = None

    def require_sequences(self) -> None:
        """Raise `InputError` if the features have no sequences, which a network reads."""
        if not self.table.sequences:
            features = f"features such as {shown(self.table.feature_ids[:1])} have no sequences"
            remedy = "pass --sequences rep-seqs.fasta|.qza, or train without a network"
            raise InputError(f"{features}, which a network reads; {remedy}")

    @functools.cached_property
    def tokens(self) -> torch.Tensor:
        """Every ASV of the table, uint8 [F, L], PAD at the end of shorter ones."""
        self.require_sequences()
        return torch.from_numpy(encode(self.table.sequences))

    @property
    def has_tree(self) -> bool:
        """Whether a part has a tree."""
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

    def in_state(self, *states: State) -> tuple[str, ...]:
        """Samples of the file in one of some states, in its order."""
        return tuple(self.samples.index[self.samples["state"].isin(states)])

    @functools.cached_property
    def sample_metadata(self) -> Metadata:
        """The metadata of the samples of the table, in their order."""
        return not_none(self.metadata).at(self.table.sample_ids)

    @property
    def aligned(self) -> tuple[str, ...]:
        """Samples with all the metadata asked for, whatever their reads; splits divide these."""
        return self.in_state("kept", "few reads")

    @property
    def dropped(self) -> dict[str, int]:
        """Samples below the depth, and their reads."""
        reads: dict[str, int] = self.samples["reads"][list(self.in_state("few reads"))].to_dict()
        return reads

    @property
    def target(self) -> str | None:
        """The first target column, whose values are spread evenly over the subsets."""
        return None if self.metadata is None else next(iter(self.columns.targets), None)

    @property
    def class_columns(self) -> tuple[str, ...]:
        """Target columns of classes; the others are numbers."""
        if self.metadata is None:
            return ()
        kinds, classifier = self.metadata.kinds, self.columns.classifier
        return tuple(x for x in self.columns.targets if classifier or kinds[x] != "numeric")

    @property
    def classes(self) -> pd.DataFrame:
        """The class of each aligned sample in each target column of classes, None without one."""
        ids = self.aligned
        values = {x: not_none(self.metadata).values(x, ids) for x in self.class_columns}
        return pd.DataFrame(values, [*ids], dtype=object)

    def at(self, ids: Sequence[str]) -> Study:
        """The study of some of its samples, whose labels are not encoded yet."""
        return replace(
            self,
            table=select_samples(self.table, ids),
            labels=Labels.none(len(ids)),
            origin=self.origin[self.rows(ids)],
            matrix=None if self.matrix is None else self.matrix.select(ids),
        )

    def keep(self, ids: Collection[str], state: State) -> Study:
        """The study of the samples `ids`; its others are now in `state`."""
        kept = set(ids)
        lost = [name for name in self.table.sample_ids if name not in kept]
        samples = self.samples.copy()
        samples.loc[lost, "state"] = state
        return replace(self.at([*ids]), samples=samples)

    def without_classes(self, left_out: LeftOut) -> Study:
        """The study without some classes of its targets, which are logged; samples without another
        target are left out.

        Raises `InputError`: fewer than two classes of a column are left.
        """
        if not left_out or self.metadata is None:
            return self
        ids, reasons = self.table.sample_ids, dict(self.left_out)
        metadata = without_classes(self.metadata, left_out, ids)
        for name, labels in left_out.items():
            reasons[name] = {**reasons.get(name, {}), **labels}
        study = replace(self, metadata=metadata, left_out=reasons)
        if len(self.class_columns) < len(set(self.columns.targets)):
            return study
        samples, classes = self.samples.copy(), study.classes
        lost = classes.index[classes.isna().all(axis=1)]
        samples.loc[lost, "state"] = "no class"
        return replace(study, samples=samples).at([name for name in ids if name not in lost])

    def column(self, name: str | None, ids: Sequence[str]) -> list[str] | None:
        """Values of a metadata column as text, '' where missing; None without a name or metadata.

        In the column of groups a sample without a value is its own group.
        """
        if self.metadata is None or name is None:
            return None
        if name == self.config.group_column:
            return self.metadata.groups(name, ids)
        return [value or "" for value in self.metadata.values(name, ids)]

    def groups(self, ids: Sequence[str]) -> Sequence[str]:
        """The group of each sample: the sample itself without a column of groups."""
        return self.column(self.config.group_column, ids) or ids

    def with_covariates(self, covariates: Covariates, metadata: Metadata | None) -> Study:
        """The study with the values of `covariates`; they are unknown without metadata."""
        category, covariate = covariates.unknown(len(self.table))
        if metadata is not None:
            category, covariate = covariates.encode(metadata.at(self.table.sample_ids))
        return replace(self, labels=replace(self.labels, category=category, covariate=covariate))

    @property
    def lengths(self) -> Ints:
        """Nucleotides of each ASV, int64 [F]."""
        self.require_sequences()
        return self.table.lengths

    @property
    def longest(self) -> int:
        """Nucleotides of the longest ASV: what ``--max-bp`` is where it is not set."""
        return int(self.table.lengths.max(initial=1))

    @functools.cached_property
    def richness(self) -> Floats:
        """ASVs that each sample is expected to keep at the depth, float64 [N] (Hurlbert 1971, with
        replacement).
        """
        richness = np.zeros(len(self.table))
        for rows, counts in self.table.blocks():
            depths = np.maximum(self.table.depths[rows], 1)
            share = np.repeat(self.depth / depths, np.diff(counts.indptr)) * counts.data
            chances = (-np.expm1(-share), counts.indices, counts.indptr)
            richness[rows] = sparse.csr_array(chances, counts.shape).sum(axis=1)
        return richness

    def rows(self, sample_ids: Sequence[str]) -> Ints:
        """Rows of the table of the samples named."""
        return np.array([self.table.row_of[name] for name in sample_ids], np.int64)


def make_study(
    inputs: Inputs,
    config: DataConfig,
    max_bp: int | None,
    seed: int,
    columns: MetadataColumns = MetadataColumns(),
    training: Collection[str] | None = None,
    from_model: bool = False,
) -> Study:
    """Join, align and cut inputs to the samples that reach the depth.

    `config` says how they are read; the files that it names are not. `max_bp` are the nucleotides
    of the longest ASV that is accepted; unset, any. `training` are the training samples; unset,
    those of the splits that `config` asks for. `max_bp` and the depth may be those `from_model`.

    Raises `InputError`: ASVs that are too long, samples without metadata, features that are
    metadata, a depth that none reaches, ASVs without a tip.
    """
    tables = [primers.fit_length(x, max_bp, config.trim) for x in inputs.tables]
    joined, origin = _joined(tables, inputs.names)
    samples = sample_frame(dict.fromkeys((*inputs.file_samples, *joined.sample_ids)))
    samples.loc[list(inputs.excluded), "state"] = "excluded"
    samples.loc[list(joined.sample_ids), "reads"] = joined.depths
    labels = Labels.none(len(joined))
    study = Study(joined, 0, seed, config, labels, (), origin, columns=columns, samples=samples)
    study = _with_metadata(study, inputs.metadata)
    aligned, depth = study.table, config.rarefy_depth
    if study.target and not from_model:
        _check_features(study)
    if depth is None and study.class_columns and training is None:
        splits = split_samples(study, config, aligned.sample_ids, seed)
        training = {name for split in splits for name in split.ids("train")}
    if depth is None:
        depth = choose_depth(aligned, study.classes, training)
    table = deep_enough(aligned, depth)
    if not from_model:
        primers.warn_of_primers(table)
        if len(tables) == 1:
            region.warn_of_regions(table)
    checks.warn_of_reads(aligned)
    study = replace(study.keep(table.sample_ids, "few reads"), depth=depth)
    matrix = None if inputs.matrix is None else inputs.matrix.select(table.sample_ids)
    parts = _parts(study.table, study.origin, inputs, config)
    study = replace(study, parts=parts, matrix=matrix)
    # Samples below the depth may have been all of a group.
    return study.without_classes(_rare_classes(study)) if columns.learned else study


def _rare_classes(study: Study) -> LeftOut:
    """The classes of too few groups of the study's samples."""
    if study.metadata is None:
        return {}
    names, group_column = study.class_columns, study.config.column_of_class_groups
    return classes_of_few_groups(study.sample_metadata, names, group_column)


def _check_features(study: Study) -> None:
    """Log the largest features, and refuse those that are metadata."""
    checks.log_largest_features(study.table)
    config = study.config
    options = filter(None, (config.batch_column, config.group_column, config.study_column))
    named = [*study.columns.names, *options]
    checks.refuse_metadata_inside(study.table, named)


def _with_metadata(study: Study, metadata: Metadata | None) -> Study:
    """The samples of a study that have what is required of their metadata; warn of odd values, and
    show the values of targets. Classes of too few groups are left out.
    """
    columns = study.columns
    if metadata is None:
        if columns.names:
            asked = shown(columns.names)
            raise InputError(f"--metadata: not given, but columns {asked} are asked for")
        return study
    metadata.require(columns.names)
    ids = align(metadata, study.table.sample_ids, columns.required, study.config.missing)
    study = replace(study, metadata=metadata).keep(ids, "no metadata")
    names, problems = study.class_columns, Problems()
    # Text among numbers is refused in every sample, not only in the training samples of a fold.
    for name in (*columns.targets, *columns.covariates.numeric_columns):
        with problems.collected():
            if name not in names:
                metadata.numbers(name, ids)
    problems.raise_if_any()
    if (group := study.config.group_column) is not None:
        checks.list_groups(metadata, group, ids)
        if study.config.batch_column is not None:
            checks.list_groups_of_batches(metadata, group, study.config.batch_column, ids)
    if not columns.learned:
        return study
    targets = [*dict.fromkeys(columns.targets)]
    for sentence in described(study.sample_metadata, targets, names, study.groups(ids)):
        log.info("%s", sentence)
    return study.without_classes(_rare_classes(study))


def _parts(
    table: AmpliconTable, origin: Rows, inputs: Inputs, config: DataConfig
) -> tuple[StudyPart, ...]:
    """Return each study with its tree, if any, matched to its ASVs in the (joined) table."""
    parts = []
    for number, (name, tree) in enumerate(zip(inputs.names, inputs.trees, strict=True)):
        columns, tips = np.arange(table.shape[1]), np.full(table.shape[1], -1, np.int64)
        if len(inputs.names) > 1:
            columns = table.columns_of(np.flatnonzero(origin == number))
        if tree is not None:
            ids = [table.feature_ids[column] for column in columns.tolist()]
            # If ids are hashes, the tips may be called by sequences.
            sequences = [table.names[x] for x in columns.tolist()] if table.sequences else []
            tree, tips[columns] = matched_tree(tree, ids, config.missing_tips, sequences)
        parts.append(StudyPart(name, tree, tips))
    return tuple(parts)


def _joined(tables: Sequence[AmpliconTable], names: Sequence[str]) -> tuple[AmpliconTable, Rows]:
    """Join the samples of all tables over their distinct ASVs; return the study of each sample,
    int64 [N], too. An id that occurs in two studies becomes ``STUDY/ID``.
    """
    origin = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    if len(tables) == 1:
        return tables[0], origin
    unnamed = [name for name, table in zip(names, tables, strict=True) if not table.sequences]
    if unnamed and len(unnamed) < len(names):
        fault = f"the features of {shown(unnamed)} have no sequences, unlike other studies"
        remedy = "pass tables whose feature ids are all of one kind"
        raise InputError(problem("--table", fault, remedy=remedy))
    if not unnamed:
        profile = region.RegionProfile.fit(tables[0].sequences)
        for name, table in zip(names[1:], tables[1:], strict=True):
            for sentence in profile.compare(table, ("reversed", "elsewhere")):
                log.warning("warning: %s, compared with %s: %s", name, names[0], sentence)
    samples = [sample for table in tables for sample in table.sample_ids]
    times, studies = Counter(samples), [names[number] for number in origin.tolist()]
    pairs = zip(studies, samples, strict=True)
    samples = [name if times[name] == 1 else f"{study}/{name}" for study, name in pairs]
    counts = sparse.csr_array(sparse.block_diag([table.counts for table in tables], format="csr"))
    ids = [name for table in tables for name in table.names]
    joined = make_table(counts, samples, ids, () if unnamed else ids)
    log.info("%d studies: %d samples, %d distinct ASVs", len(tables), *joined.shape)
    return joined, origin
