"""What metadata columns are, by their names and their data: identity, technical, time, biology."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tomllib
from scipy import sparse

from aam.config import ColumnKind
from aam.data.checks import nearest_samples
from aam.device.rng import generator
from aam.io.text import without_accents
from aam.predict.columns import AuditKind, Column, is_nested
from aam.typing import Ints

_TEXTS = tomllib.loads(Path(__file__).with_name("column_names.toml").read_text(encoding="utf-8"))
# Words of names by kind, the strongest kind first, and by their role.
KIND_WORDS: dict[AuditKind, frozenset[str]] = {
    kind: frozenset(text.split()) for kind, text in _TEXTS["kinds"].items()
}
ROLES = {role: frozenset(text.split()) for role, text in _TEXTS["roles"].items()}
ROLES["identity"] = KIND_WORDS["identity"] - ROLES["weak"]
ROLES["subjects"] = ROLES["identity"] - ROLES["samples"]
# A word of this number of letters or more may also begin or end a longer word.
SHORTEST = 5

# Levels with at most this number of samples on average may be subjects.
MOST_PER_SUBJECT, LEAST_SUBJECTS = 30, 6
# Samples of a column resemble each other if, of this share more of them than by chance, the nearest
# sample has the same value, and if no more than `KIND_ALPHA` of `KIND_DRAWS` permutations reach
# that. On five public studies the nearest sample is the subject's own for a share of 0.29 to 0.95.
LEAST_RESEMBLANCE, KIND_DRAWS, KIND_ALPHA = 0.15, 199, 0.01


# --- by name -------------------------------------------------------------------------------------


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case without accents: host_subject_id, hostSubjectID."""
    plain = without_accents(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))
    return re.findall(r"[^\W\d_]+", plain.replace("ß", "ss"))


def _matches(word: str, vocabulary: frozenset[str], entire: bool) -> bool:
    """Whether a word is in a vocabulary or, unless it must be `entire`, begins or ends with one."""
    long = () if entire else tuple(part for part in vocabulary if len(part) >= SHORTEST)
    return word in vocabulary or bool(long and (word.startswith(long) or word.endswith(long)))


def has_role(column: Column, role: str, entire: bool = False) -> bool:
    """Whether the name of a column contains a word of a role, one of `ROLES`."""
    return any(_matches(word, ROLES[role], entire) for word in words_of(column.name))


def kind_by_name(name: str) -> AuditKind | None:
    """Return what a column is by its name, None if no word of `KIND_WORDS` is in it.

    The last word decides, before words such as "of": a delivery centre is a centre. Words such as
    id decide alone only, sex and age in any place.
    """
    words = words_of(name)
    after = [place for place, word in enumerate(words) if place and word in ROLES["prepositions"]]
    end = min(after, default=len(words))
    for entire in (True, False):
        if any(_matches(word, ROLES["strong"], entire) for word in words):
            return "biology"
        for word in [*words[:end][::-1], *words[end:]]:
            for kind, vocabulary in KIND_WORDS.items():
                if _matches(word, vocabulary - ROLES["weak"], entire):
                    return kind
    return "identity" if set(words) & ROLES["weak"] else None


# --- by data -------------------------------------------------------------------------------------


def resemblance(column: Column, nearest: Ints, strata: Ints) -> tuple[float, float]:
    """Return how much samples of one value resemble each other, and its p.

    That is Cohen's kappa between the value of a sample and of its nearest one. Chance is that of
    permutations within strata of the target, whose samples resemble each other too.
    """
    codes, random = column.codes, generator(0, "resemblance")
    rows = np.flatnonzero(codes >= 0)
    by_stratum = np.argsort(strata, kind="stable")

    def agreement(values: Ints) -> float:
        return float((values[rows] == values[nearest[rows]]).mean())

    permuted = []
    for _ in range(KIND_DRAWS):
        shuffled = np.empty_like(codes)
        shuffled[by_stratum] = codes[np.lexsort((random.random(len(codes)), strata))]
        permuted.append(agreement(shuffled))
    observed, chance = agreement(codes), float(np.mean(permuted))
    p = (1 + sum(value >= observed for value in permuted)) / (1 + KIND_DRAWS)
    return (observed - chance) / max(1 - chance, 1e-9), p


def _can_be_subjects(column: Column) -> bool:
    """Whether the number of values is that of subjects with several samples each."""
    if not column.has_levels or not column.is_repeated:
        return False
    return column.levels >= LEAST_SUBJECTS and column.count <= MOST_PER_SUBJECT * column.levels


def _can_be_names(column: Column) -> bool:
    """Whether values can be those of a column of names: not few for many samples, no fractions.

    A column that is called code or name holds names only if few samples have the same.
    """
    if not column.has_levels or column.levels == column.count:
        return column.has_levels
    if has_role(column, "identity"):
        return column.levels >= LEAST_SUBJECTS or column.count < LEAST_SUBJECTS**2
    return _can_be_subjects(column)


# --- all columns of a study ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Overview:
    """What the columns of a study are.

    Attributes
    ----------
    columns : list of Column
        With their kinds.
    subject : str, optional
        The finest column with repeated values whose samples resemble each other given the target.
    within : dict of str to str
        For each column with repeated values the finest technical one in which it is nested.
    """

    columns: list[Column]
    subject: str | None
    within: dict[str, str]


def overview(
    columns: Sequence[Column],
    kinds: Mapping[str, ColumnKind],
    presence: sparse.csr_matrix,
    strata: Ints,
) -> Overview:
    """Decide what columns are, by `kinds` that the user set, by their names, then by their data.

    Parameters
    ----------
    columns : sequence of Column
    kinds : mapping of str to str
        Kinds that are set, by name.
    presence : sparse matrix [N, A]
    strata : int64 [N]
        Parts of the target that are alike.
    """
    nearest = nearest_samples(presence)
    # Of each column whose samples resemble each other, whether its name says so too.
    resembling, with_kinds = dict[str, bool](), list[Column]()
    for column in columns:
        kind = kinds.get(column.name) or kind_by_name(column.name)
        if kind == "identity" and column.name not in kinds and not _can_be_names(column):
            kind = None
        if column.form == "reads":
            kind = "reads"
        elif kind in (None, "identity") and _can_be_subjects(column):
            kappa, p = resemblance(column, nearest, strata)
            least = LEAST_RESEMBLANCE if kind is None else 0.0
            if p <= KIND_ALPHA and kappa >= least and not has_role(column, "samples"):
                resembling[column.name] = kind == "identity"
                kind = "identity"
        with_kinds.append(replace(column, kind=kind or _kind_by_data(column)))
    subject = _subject(with_kinds, kinds, resembling)
    return Overview(_with_places(with_kinds, subject, kinds), subject, _within(with_kinds))


def _kind_by_data(column: Column) -> AuditKind:
    """Return what a column is whose name does not say it."""
    if column.form == "date":
        return "time"
    return "identity" if column.is_id else "biology"


def _subject(
    columns: Sequence[Column], kinds: Mapping[str, ColumnKind], resembling: Mapping[str, bool]
) -> str | None:
    """Name the finest column that the user calls an identity, else the finest whose samples
    resemble each other (and whether its name says so), else the finest whose name says so.
    """
    levels = {column.name: column.levels for column in columns}
    set_by_user = [
        column.name
        for column in columns
        if kinds.get(column.name) == "identity" and column.is_repeated
    ]
    if set_by_user:
        return max(set_by_user, key=levels.__getitem__)
    if resembling:
        return max(resembling, key=lambda name: (levels[name], resembling[name]))
    by_name = [
        column.name
        for column in columns
        if column.kind == "identity"
        and _can_be_subjects(column)
        and has_role(column, "subjects")
        and not has_role(column, "samples")
    ]
    return max(by_name, key=levels.__getitem__, default=None)


def _with_places(
    columns: Sequence[Column], subject: str | None, kinds: Mapping[str, ColumnKind]
) -> list[Column]:
    """Call columns of many values technical in which whole subjects lie, unless a name says else:
    a class, a school.
    """
    if subject is None:
        return list(columns)
    subjects = {column.name: column for column in columns}[subject]

    def is_place(column: Column) -> bool:
        by_name = column.name in kinds or kind_by_name(column.name) is not None
        if by_name or column.form != "category" or not is_nested(subjects, column):
            return False
        return column.levels >= LEAST_SUBJECTS or has_role(column, "places", entire=True)

    return [replace(column, kind="technical") if is_place(column) else column for column in columns]


def _within(columns: Sequence[Column]) -> dict[str, str]:
    """For each column with repeated values, the finest technical or identity column above it."""
    levels = [column for column in columns if column.kind in ("technical", "identity")]
    within = {}
    for column in levels:
        coarser = [other for other in levels if is_nested(column, other)]
        if column.is_repeated and coarser:
            within[column.name] = max(coarser, key=lambda other: other.levels).name
    return within
