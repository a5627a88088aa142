"""The splits of a study, as its options ask for them."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import numpy as np

from aam.config import DataConfig, StudyConfig
from aam.data.split import Split, check_groups, from_column, kfold, make_split, restricted
from aam.data.split_file import read_split
from aam.data.study import Study
from aam.errors import InputError, shown
from aam.io.metadata import Metadata

log = logging.getLogger("aam")

# What is held out for a test where nothing is asked for, and the fewest groups of which some can be spared.
DEFAULT_TEST_SHARE = 0.2
LEAST_GROUPS_FOR_TEST = 30
# A fold names a folder.
FOLD = re.compile(r"(?!\.)[\w.,+=-]([\w.,+= -]{0,98}[\w.,+=-])?")


def fold_column(data: StudyConfig) -> str | None:
    """Return the metadata column that holds the folds, if one does."""
    return data.split_column if data.cv is None else None if data.cv.isdigit() else data.cv


def split_columns(data: StudyConfig) -> list[str]:
    """Return the metadata columns in which every sample needs a value for splits and reports."""
    return [name for name in (data.group_column, data.batch_column, fold_column(data)) if name is not None]


def _fold_splits(
    metadata: Metadata, column: str, data: StudyConfig, ids: Sequence[str], seed: int, **by_sample: object
) -> tuple[Split, ...]:
    """Return a split for each fold of a metadata column, or the one for ``--test-fold``."""
    folds = metadata.values(column, ids)
    names = sorted({fold for fold in folds if fold is not None})
    if unsafe := [name for name in names if not FOLD.fullmatch(name)]:
        raise InputError(
            f"{data.metadata}: column {column!r} has folds that cannot name a folder: {shown(unsafe)}; expected "
            "letters, digits and .,_+=- and spaces inside"
        )
    tested = names if data.cv else [str(data.test_fold)]
    size = data.validation_size
    return tuple(from_column(ids, folds, fold, validation_size=size, seed=seed, **by_sample) for fold in tested)  # type: ignore[arg-type]


def split_samples(metadata: Metadata | None, data: StudyConfig, ids: Sequence[str], seed: int) -> tuple[Split, ...]:
    """Divide the samples `ids`: one split, or one for each fold. A split file is returned as it was written.

    Raises
    ------
    InputError
        The options cannot divide these samples.
    """
    groups = strata = None
    if metadata is not None and data.group_column is not None:
        groups = metadata.values(data.group_column, ids)
    if data.stratify is not None:
        if metadata is None:
            raise InputError(f"--stratify {data.stratify}: a metadata column, and no --metadata is given")
        numeric = metadata.kinds.get(data.stratify) == "numeric"
        strata = (metadata.numbers if numeric else metadata.values)(data.stratify, ids)
    if data.split is not None:
        split = read_split(data.split)
        if groups is not None:
            check_groups(split, dict(zip(ids, groups, strict=True)))
        return (split,)
    column, size = fold_column(data), data.validation_size
    if column is not None and metadata is not None:
        return _fold_splits(metadata, column, data, ids, seed, groups=groups, strata=strata)
    if data.cv is not None:
        return tuple(kfold(ids, int(data.cv), groups, strata, size, seed=seed))
    share = test_share(data, len(ids) if groups is None else len({group for group in groups if group is not None}))
    split = make_split(ids, groups=groups, strata=strata, test_size=share, validation_size=size, seed=seed)
    return (split,)


def test_share(data: StudyConfig, groups: int) -> float:
    """Return the share of so many groups that is held out as the test subset: as asked, or a fifth where it can be."""
    if data.test_size is not None:
        return data.test_size
    return DEFAULT_TEST_SHARE if groups >= LEAST_GROUPS_FOR_TEST else 0.0


def _studies_held_out(study: Study, data: DataConfig, seed: int) -> Split:
    """Return the split whose test subset is all samples of ``--hold-out-study``."""
    numbers = [number for number, part in enumerate(study.parts) if part.name in data.hold_out_study]
    held_out = np.isin(np.zeros(0) if study.origin is None else study.origin, numbers)
    ids = study.table.sample_ids
    others = [name for name, is_held_out in zip(ids, held_out, strict=True) if not is_held_out]
    if not others or len(others) == len(ids):
        raise InputError(
            f"--hold-out-study {shown(data.hold_out_study)}: {len(others)} of {len(ids)} samples are left to train on"
        )
    rest = make_split(others, test_size=0.0, validation_size=data.validation_size, seed=seed)
    subset_of = dict(zip(rest.sample_ids, rest.subsets, strict=True))
    names = tuple(sorted(ids))
    return Split(names, tuple(subset_of.get(name, "test") for name in names), ("",) * len(names))


def make_splits(study: Study, data: StudyConfig, seed: int) -> tuple[Split, ...]:
    """Return the split of the study's samples, or one for each fold.

    Samples are divided before those below the rarefaction depth are dropped, so that the depth may follow the
    labels of training samples and the test samples do not depend on the depth.

    Raises
    ------
    InputError
        The options cannot divide these samples, or the depth dropped a whole subset.
    """
    ids = study.table.sample_ids
    if isinstance(data, DataConfig) and data.hold_out_study:
        return (_studies_held_out(study, data, seed),)
    splits = split_samples(study.metadata, data, study.aligned_sample_ids or ids, seed)
    if data.test_size is None and data.cv is None and data.split_column is None and data.split is None:
        tested = len(splits[0].ids("test"))
        says = f"{tested} samples are held out as the test subset" if tested else "no sample is held out for a test"
        log.info("%s; --test-size sets its share, --cv tests every sample", says)
    return tuple(restricted(split, ids) for split in splits)
