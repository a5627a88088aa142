"""Metadata columns of an audit: their values, what they are by name and data, how they nest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.metrics.cluster import contingency_matrix

from aam.config import ColumnKind
from aam.data.checks import nearest_samples
from aam.device.rng import generator
from aam.io.dates import read_dates
from aam.io.metadata import Metadata, is_number
from aam.io.text import without_accents
from aam.typing import Floats, Ints

Form = Literal["category", "number", "date", "reads"]
AuditKind: TypeAlias = ColumnKind | Literal["reads"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words of names by kind, the strongest kind first, in English, German, Dutch, French, Spanish,
# Portuguese and Italian, without accents. A word of `SHORTEST` letters or more may also begin or
# end a longer word.
KIND_TEXTS: Mapping[AuditKind, str] = {
    "biology": """sex gender geschlecht geslacht sexe sexo sesso age ages alter leeftijd edad idade
        eta bmi weight gewicht poids peso height groesse diet dieta ernaehrung ernahrung voeding
        regime alimentacion alimentation feeding delivery entbindung geburtsmodus accouchement parto
        birthmode disease krankheit maladie enfermedad doenca malattia diagnosis diagnose diagnostic
        diagnostico diagnosi dx status condition treatment behandlung traitement tratamiento
        tratamento trattamento arm drug medication antibiotic antibiotics antibiotika antibiotique
        antibiotico smoking smoker raucher fumeur race ethnicity body tissue organ gewebe tissu
        tejido habitat biome genotype phenotype strain species genus breed rasse type typ tipo
        symptom score severity stage glucose ph temperature platelet platelets pregnancy parity
        allergy asthma infection vaccine vaccination outcome response""",
    "time": """date datum fecha day days tag tage dag jour jours dia dias giorno month months monat
        monate maand mois mes meses mese week weeks woche wochen semaine semana settimana year years
        jahr jahre jaar annee ano anos anno time zeit tijd temps tiempo tempo timepoint zeitpunkt
        visit visite besuch bezoek visita hour hours stunde heure hora ora season saison jahreszeit
        estacion estacao stagione collected collection sampled""",
    "technical": """plate platte plaque placa piastra batch charge lot lote lotto run lauf lane
        flowcell sequencer instrument platform primer primers extraction kit center centre zentrum
        centro study studie etude estudio estudo studio cohort kohorte cohorte project projekt
        projet proyecto lab labor laboratory laboratoire laboratorio operator technician library
        well barcode cage kaefig kafig jaula gabbia tank pen box freezer storage hospital clinic
        klinik clinique clinica ward farm herd stall village city town stadt ville ciudad country
        land pays pais region site location standort lieu lugar luogo school schule ecole escuela
        escola scuola klasse household haushalt foyer hogar family familie famille familia famiglia
        litter wurf fold folds split subset concentration volume""",
    "identity": """subject sujet sujeto sujeito soggetto patient paciente paziente participant
        teilnehmer proband person persona individual individuum donor spender donneur donante doador
        host child enfant nino crianca bambino infant baby mother mutter mere madre father twin
        animal mouse maus souris raton rat fish cow pig dog cat sheep chicken horse monkey volunteer
        user name id ids identifier code nummer nr sample probe specimen tube aliquot accession
        description anonymized""",
}
KIND_WORDS = {kind: _words(text) for kind, text in KIND_TEXTS.items()}
SHORTEST = 5
# A column of samples names no subject, and one of folds no batch. Weak words do not say by
# themselves that a column of few values holds names; strong words decide in any place of a name.
# What stands after a preposition decides last. Studies are held out whole.
SAMPLE_WORDS = _words("sample probe specimen tube aliquot accession barcode")
SPLIT_WORDS = _words("fold folds split subset")
WEAK_WORDS = _words("name code id ids identifier nummer nr description")
STRONG_WORDS = _words(
    "sex gender geschlecht geslacht sexe sexo sesso age alter leeftijd edad idade bmi body diet"
)
PREPOSITIONS = _words("of de du des da do di del at in since von der")
PLACE_WORDS = _words("class room team")
STUDY_WORDS = _words(
    "study studie etude estudio estudo studio cohort kohorte cohorte project projekt projet"
)
# Parts of a value stand between these marks; this number of them is read.
MARKS, MOST_PARTS = re.compile(r"[._\-\s/:|]+"), 4
# Dates more days away from 1970 have no parts.
MOST_DAYS = 100_000

# Levels with at most this number of samples on average may be subjects; batches have at most
# `MOST_LEVELS` values.
MOST_PER_SUBJECT, LEAST_SUBJECTS, MOST_LEVELS = 30, 6, 50
# Samples of a column resemble each other if, of this share more of them than by chance, the nearest
# sample has the same value, and if no more than `ALPHA` of `DRAWS` permutations reach that. On five
# public studies the nearest sample is the subject's own for a share of 0.29 to 0.95.
LEAST_RESEMBLANCE, DRAWS, ALPHA = 0.15, 199, 0.01
# Share of the samples of each level that lie in one level of a coarser column.
NESTED = 0.98


@dataclass(frozen=True, eq=False)
class Column:
    """A metadata column, or a part of the values of one.

    Attributes
    ----------
    name : str
    form : str
        How its values are read: category, number, date, or reads of the table.
    codes : int64 [N]
        The level of each sample, -1 where missing.
    numbers : float64 [N]
        Numbers, days for dates, NaN where missing.
    labels : sequence
        The values, in order.
    kind : str
        What it is: identity, technical, time, biology or reads.
    """

    name: str
    form: Form
    codes: Ints
    numbers: Floats
    labels: Sequence[object]
    kind: AuditKind = "biology"

    @property
    def levels(self) -> int:
        """Number of values."""
        return len(self.labels)

    @property
    def count(self) -> int:
        """Number of samples that have a value."""
        return int((self.codes >= 0).sum())

    @property
    def varies(self) -> bool:
        """Whether two samples differ; a missing value differs from any other."""
        return len(np.unique(self.codes)) > 1

    @property
    def is_repeated(self) -> bool:
        """Whether a value stands more than once and not in all samples."""
        return 1 < self.levels < self.count

    @property
    def is_id(self) -> bool:
        """Whether every sample has a name of its own."""
        return self.form == "category" and self.levels == len(self.codes)

    @property
    def has_levels(self) -> bool:
        """Whether it may be read as levels; whole numbers may be names."""
        numbers = self.numbers[np.isfinite(self.numbers)]
        return self.form == "category" or (self.form == "number" and not (numbers % 1).any())

    @property
    def is_split(self) -> bool:
        """Whether its name is that of folds or subsets."""
        return is_named(self.name, SPLIT_WORDS)

    def indicators(self, classes: bool = False) -> Floats:
        """Numbers [N, 1], or indicators of levels [N, K]; missing values are the median, or 0."""
        if classes or self.form == "category":
            return np.asarray(self.codes[:, None] == np.arange(self.levels), np.float64)
        # The mean of two large numbers is that of their halves, whose sum cannot overflow.
        halves = self.numbers / 2
        median = 2 * float(np.nanmedian(halves)) if np.isfinite(halves).any() else 0.0
        return np.nan_to_num(self.numbers, nan=median)[:, None]


def make_column(
    name: str, values: Sequence[object] | pd.Series, form: Form, numbers: Floats | None = None
) -> Column:
    """Return a column of values, None where missing, that are read as `form`."""
    codes, labels = pd.factorize(pd.Series(values), sort=True)
    empty = np.full(len(codes), np.nan) if numbers is None else numbers
    kind: AuditKind = "reads" if form == "reads" else "biology"
    return Column(name, form, codes.astype(np.int64), empty, tuple(labels), kind)


def read_column(metadata: Metadata, name: str, ids: Sequence[str]) -> Column:
    """Read one column of the samples `ids`: numbers, dates in any usual format, or text."""
    values = pd.Series(metadata.values(name, ids), dtype=object)
    if metadata.kinds[name] == "numeric" and all(map(is_number, values.dropna())):
        return make_column(name, values, "number", values.astype(np.float64).to_numpy())
    # One order of day, month and year holds for the whole column, not for some of its samples.
    if (dates := read_dates(metadata.values(name, metadata.ids))) is not None:
        days = pd.Series(dates.days, metadata.ids).loc[list(ids)]
        return make_column(name, values, "date", days.to_numpy())
    return make_column(name, values, "category")


# --- what a column is ----------------------------------------------------------------------------


def words_of(name: str) -> list[str]:
    """Return the words of a name in lower case without accents: host_subject_id, hostSubjectID."""
    plain = without_accents(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name))
    return re.findall(r"[^\W\d_]+", plain.replace("ß", "ss"))


def _matches(word: str, vocabulary: frozenset[str], entire: bool) -> bool:
    """Whether a word is in a vocabulary or, unless it must be `entire`, begins or ends with one."""
    long = () if entire else tuple(part for part in vocabulary if len(part) >= SHORTEST)
    return word in vocabulary or bool(long and (word.startswith(long) or word.endswith(long)))


def is_named(name: str, vocabulary: frozenset[str], entire: bool = False) -> bool:
    """Whether a name contains a word of a vocabulary, also as the beginning or the end of a longer
    word unless it must be an `entire` word.
    """
    return any(_matches(word, vocabulary, entire) for word in words_of(name))


def kind_by_name(name: str) -> AuditKind | None:
    """Return what a column is by its name, None if no word of `KIND_WORDS` is in it.

    The last word decides, before words such as "of": a delivery centre is a centre. Words such as
    id decide alone only, sex and age in any place.
    """
    words = words_of(name)
    end = next(
        (place for place, word in enumerate(words) if place and word in PREPOSITIONS), len(words)
    )
    for entire in (True, False):
        if any(_matches(word, STRONG_WORDS, entire) for word in words):
            return "biology"
        kinds: list[AuditKind] = []
        for word in [*words[:end][::-1], *words[end:]]:
            kinds += [
                kind
                for kind, text in KIND_WORDS.items()
                if _matches(word, text - WEAK_WORDS, entire)
            ]
        if kinds:
            return kinds[0]
    return "identity" if set(words) & WEAK_WORDS else None


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
    for _ in range(DRAWS):
        shuffled = np.empty_like(codes)
        shuffled[by_stratum] = codes[np.lexsort((random.random(len(codes)), strata))]
        permuted.append(agreement(shuffled))
    observed, chance = agreement(codes), float(np.mean(permuted))
    p = (1 + sum(value >= observed for value in permuted)) / (1 + DRAWS)
    return (observed - chance) / max(1 - chance, 1e-9), p


def is_nested(finer: Column, coarser: Column) -> bool:
    """Whether the samples of each level of one column are in one level of another, coarser one."""
    both = (finer.codes >= 0) & (coarser.codes >= 0)
    if finer.levels <= coarser.levels or coarser.levels < 2 or not both.any():
        return False
    counts = contingency_matrix(finer.codes[both], coarser.codes[both])
    return bool(counts.max(axis=1).sum() >= NESTED * both.sum())


def is_equal(column: Column, other: Column) -> bool:
    """Whether two columns have the same levels under other names, gaps at the same places."""
    if ((column.codes < 0) != (other.codes < 0)).any():
        return False
    # In the order of their first samples, equal levels have equal numbers.
    return np.array_equal(pd.factorize(column.codes)[0], pd.factorize(other.codes)[0])


def _can_be_subjects(column: Column) -> bool:
    """Whether the number of values is that of subjects with several samples each."""
    if not column.has_levels or not column.is_repeated:
        return False
    return column.levels >= LEAST_SUBJECTS and column.count <= MOST_PER_SUBJECT * column.levels


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
    nearest, subjects, with_kinds = nearest_samples(presence), dict[str, bool](), list[Column]()
    for column in columns:
        kind = kinds.get(column.name) or kind_by_name(column.name)
        if kind == "identity" and column.name not in kinds and not _is_name(column):
            kind = None
        if column.form == "reads":
            kind = "reads"
        elif kind in (None, "identity") and _can_be_subjects(column):
            kappa, p = resemblance(column, nearest, strata)
            least = LEAST_RESEMBLANCE if kind is None else 0.0
            if p <= ALPHA and kappa >= least and not is_named(column.name, SAMPLE_WORDS):
                subjects[column.name] = kind == "identity"
                kind = "identity"
        with_kinds.append(replace(column, kind=kind or _kind_by_data(column)))
    subject = _subject(with_kinds, kinds, subjects)
    return Overview(_with_places(with_kinds, subject, kinds), subject, _within(with_kinds))


def _is_name(column: Column) -> bool:
    """Whether values can be those of a column of names: not few for many samples, no fractions.

    A column that is called code or name holds names only if few samples have the same.
    """
    if not column.has_levels or column.levels == column.count:
        return column.has_levels
    if is_named(column.name, KIND_WORDS["identity"] - WEAK_WORDS):
        return column.levels >= LEAST_SUBJECTS or column.count < LEAST_SUBJECTS**2
    return _can_be_subjects(column)


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
    named = [
        column.name
        for column in columns
        if column.kind == "identity"
        and _can_be_subjects(column)
        and is_named(column.name, KIND_WORDS["identity"] - SAMPLE_WORDS - WEAK_WORDS)
        and not is_named(column.name, SAMPLE_WORDS)
    ]
    return max(named, key=levels.__getitem__) if named else None


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
        return column.levels >= LEAST_SUBJECTS or is_named(column.name, PLACE_WORDS, entire=True)

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


# --- parts of names and dates --------------------------------------------------------------------


def _part(name: str, pieces: Sequence[str | None], column: Column) -> Column | None:
    """Return a part of each value as a column, None if it cannot tell anything."""
    values = [pieces[code] if code >= 0 else None for code in column.codes]
    numbers = np.array(
        [float(value) if value and re.fullmatch("[0-9]+", value) else np.nan for value in values]
    )
    has_numbers = np.isfinite(numbers).sum() >= 0.9 * max(len(values) - values.count(None), 1)
    part = make_column(name, values, "number" if has_numbers else "category", numbers)
    few = part.is_repeated and part.levels <= MOST_LEVELS
    return part if part.varies and (few or has_numbers) else None


def parts_of(column: Column) -> list[Column]:
    """Return parts of names that differ for most samples, and times of dates, as columns."""
    if column.form == "date":
        return _parts_of_dates(column)
    if column.form == "category" and 2 * column.levels > column.count:
        return _parts_of_names(column)
    return []


def _parts_of_names(column: Column) -> list[Column]:
    """Return what stands between `MARKS`, the letters in front and the last number as columns."""
    labels = [str(label) for label in column.labels]
    pieces = [MARKS.split(label.strip()) for label in labels]
    parts = dict[str, list[str | None]]()
    for place in range(min(MOST_PARTS, max(map(len, pieces)))):
        parts[f"part {place + 1}"] = [row[place] if place < len(row) else None for row in pieces]
    parts["the last part"] = [row[-1] for row in pieces]
    fronts = (re.match(r"[^\W\d_]+", label) for label in labels)
    parts["the letters in front"] = [match[0] if match else None for match in fronts]
    parts["the first letter"] = [label[:1] for label in labels]
    numbers = (re.findall(r"\d+", label) for label in labels)
    parts["the running number"] = [row[-1] if row else None for row in numbers]
    different = list[Column]()
    for name, values in parts.items():
        part = _part(name, values, column)
        if part is not None and not any(is_equal(part, other) for other in different):
            different.append(part)
    return different


def _parts_of_dates(column: Column) -> list[Column]:
    """Return the year, month, day of the week and hour of dates as columns, where they vary."""
    near = np.isfinite(column.numbers) & (np.abs(column.numbers) < MOST_DAYS)
    seconds = np.where(near, np.round(column.numbers * 86400), np.nan)
    moments = pd.Series(pd.to_datetime(seconds, unit="s"))
    times = {"the year": moments.dt.year, "the month": moments.dt.month}
    times |= {"the day of the week": moments.dt.day_of_week, "the hour": moments.dt.hour}
    columns = [
        make_column(name, values, "number", values.to_numpy(np.float64))
        for name, values in times.items()
    ]
    return [part for part in columns if part.varies]
