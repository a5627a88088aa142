"""How a study's samples are divided: the options of splits, and the splits that they give."""

from __future__ import annotations

import re

from aam.config import StudyConfig
from aam.data.split import Split, check_groups, from_column, kfold, make_split, read_split, restricted
from aam.data.study import Study
from aam.errors import InputError, shown

# A fold names a folder.
FOLD = re.compile(r"(?!\.)[\w.,+=-]([\w.,+= -]{0,98}[\w.,+=-])?")


def fold_column(data: StudyConfig) -> str | None:
    """The metadata column that holds the folds, if one does."""
    return data.split_column if data.cv is None else None if data.cv.isdigit() else data.cv


def division_columns(data: StudyConfig) -> list[str]:
    """Metadata columns that dividing and reporting need of every sample."""
    return [name for name in (data.group_column, data.batch_column, fold_column(data)) if name is not None]


def divided(study: Study, data: StudyConfig, seed: int) -> tuple[Split, ...]:
    """The split of the study's samples, or one for each fold; `InputError` where they cannot be divided so."""
    ids, size, metadata = study.table.sample_ids, data.validation_size, study.metadata
    groups = strata = None
    if metadata is not None and data.group_column is not None:
        groups = metadata.values(data.group_column, ids)
    if data.stratify is not None:
        if metadata is None:
            raise InputError(f"--stratify {data.stratify}: a metadata column, and no --metadata is given")
        numeric = metadata.kinds.get(data.stratify) == "numeric"
        strata = (metadata.numbers if numeric else metadata.values)(data.stratify, ids)
    if data.split is not None:
        split = restricted(read_split(data.split), ids)
        if groups is not None:
            check_groups(split, dict(zip(ids, groups, strict=True)))
        return (split,)
    column = fold_column(data)
    if column is not None and metadata is not None:
        folds = metadata.values(column, ids)
        if unsafe := sorted({fold for fold in folds if fold is not None and not FOLD.fullmatch(fold)}):
            raise InputError(
                f"{data.metadata}: column {column!r} has folds that cannot name a folder: {shown(unsafe)}; expected "
                "letters, digits and .,_+=- and spaces inside"
            )
        wanted = sorted({fold for fold in folds if fold is not None}) if data.cv else [str(data.test_fold)]
        return tuple(from_column(ids, folds, fold, groups, size, strata=strata, seed=seed) for fold in wanted)
    if data.cv is not None:
        return tuple(kfold(ids, int(data.cv), groups, strata, size, seed=seed))
    split = make_split(ids, groups=groups, strata=strata, test_size=data.test_size, validation_size=size, seed=seed)
    return (split,)
