"""Several studies as one: samples of all tables over the ASVs of all, with a tree for each study that has one."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import block_diag, csr_array

from aam.config import NO_TREE, DataConfig
from aam.data.depth import choose_depth
from aam.data.region import MOST_ELSEWHERE, MOST_REVERSED, RegionProfile
from aam.data.study import Rows, Study, StudyPart
from aam.data.table import SampleTable, check_length, deep_enough, make_table, read_table, trim
from aam.data.tokens import encode
from aam.errors import InputError, Problems, shown
from aam.io.newick import pruned_tree

log = logging.getLogger("aam")

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
