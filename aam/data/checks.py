"""Warnings of labels, donors and reads that are probably not what a user means: reads that are no
counts, still contain primers, or are unlike those of training (another region, strand or length).
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.sparse import block_array, csr_array, csr_matrix
from scipy.sparse.csgraph import connected_components

from aam.config import DataConfig
from aam.data.splits import fold_column
from aam.data.table import make_table
from aam.data.tokens import A, C, G, T, encode, reverse_complement
from aam.device.rng import generator
from aam.errors import InputError, shown
from aam.io.metadata import Metadata, is_number
from aam.io.sequences import first_not_dna
from aam.io.tables import AmpliconTable
from aam.typing import Array, Bools, Floats, Hashes, Ids, Ints, Tokens

log = logging.getLogger("aam")


# A warning lists this number of pairs of values that are probably one.
MOST_PAIRS = 3
# Fewer values are kinds of donors, such as cow and pig, or too few to be divided.
LEAST_DONORS = 6
# Samples whose neighbours are looked for.
MOST_COMPARED = 2_000
# Values of a column are donors if this share of samples has a nearest neighbour of the same value,
# and this many times as many as by chance. On five public studies subjects have 0.29 to 0.95 and 21
# to 710 times; columns of no donor, such as month, body site and study, at most 4.5 times.
LEAST_SHARE, LEAST_LIFT = 0.2, 10
# Depths that differ by a smaller share are equal; more reads per sample come from no sequencer.
SAME_DEPTH, MOST_READS = 0.005, 10**8
# Counts of a table of logarithms: the largest, and the least median of those above 0.
LARGEST_LOG, LEAST_MEDIAN_LOG = 25, 3

# Bases at the ends of a sequence that are looked at.
POSITIONS = 50
PROFILE_QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
# Share of uniform noise in the base frequencies, so that one base never seen costs 5.3 nats and not
# infinity.
ERROR_RATE = 0.02
# No sequence of an amplicon is longer.
MOST_BASES = 1e6
# Nats per base below the training mean at which an ASV no longer fits. Mean of five 16S V4 studies:
# ASVs of another study lie at most 0.23 below, those shifted by one base 2.0 and more, the other
# strand 2.7 and more.
MISFIT = 1.0

# Differences of reads from training and their remedies; the shares of a sample and of a table above
# which they are named. Held-out subjects of infants and mackerel had up to 0.04 of their reads in
# ASVs of their own, held-out seasons up to 0.09, held-out studies of the mouth up to 0.05.
UNLIKE = {
    "length": ("have a length outside that of the training ASVs", "trim both in the same way"),
    "reversed": ("look reverse-complemented", "reverse-complement them and run again"),
    "elsewhere": ("look like another region than training", "use reads of the same primers"),
    "unseen": ("are of ASVs that were not in the training table", "predictions are less reliable"),
}
MOST_OF_SAMPLE = {"length": 0.05, "reversed": 0.05, "elsewhere": 0.25, "unseen": 0.5}
MOST_OF_TABLE = {**MOST_OF_SAMPLE, "unseen": 0.2}

# Samples of another region from which they are named, and the share of a sample's reads from which
# an ASV belongs to it.
LEAST_OF_REGION, LEAST_SHARED = 3, 0.001

PRIMERS = {
    "27F": "AGAGTTTGATYMTGGCTCAG",
    "338R": "TGCTGCCTCCCGTAGGAGT",
    "341F": "CCTAYGGGNBGCWSCAG",
    "515F": "GTGYCAGCMGCCGCGGTAA",
    "806R": "GGACTACNVGGGTWTCTAAT",
    "785R/805R": "GACTACHVGGGTATCTAATCC",
    "926R": "CCGYCAATTYMTTTRAGTTT",
    "1492R": "GGYTACCTTGTTACGACTT",
}
# Bases that may stand before a primer, and letters of it that may differ.
SPACER, MISMATCHES = 8, 1
# Share of the reads with a primer above which primers are named.
MOST_WITH_PRIMER = 0.05
# The bases that a letter of IUPAC means, as bits: A is 1, C 2, G 4, T 8, and N all of them.
LETTER_BITS = {letter: bits for bits, letter in enumerate("-ACMGRSVTWYHKDBN")}
# The same bits for each token: none for padding, all for an unknown base.
BASE_BITS = np.array([0, 1, 2, 4, 8, 15, 0], np.uint8)


def warn_of_values(
    metadata: Metadata, columns: Ids, classes: Ids, group: str | None, fold: str | None
) -> None:
    """Warn of values that are probably one, of classes that look like numbers, and of `columns` of
    two numbers.

    Values may be classes, groups or folds, each of the column of that name.
    """
    split_columns, warnings = [*filter(None, (group, fold))], []
    for name in dict.fromkeys([*classes, *split_columns]):
        if pairs := [shown(values) for values in metadata.spellings(name)]:
            kind = "groups" if name == group else "folds" if name == fold else "classes"
            leak = "; if they are one, it is in several subsets and leaks" * (name in split_columns)
            more = f" and {len(pairs) - MOST_PAIRS} more" if len(pairs) > MOST_PAIRS else ""
            listed = " and ".join(pairs[:MOST_PAIRS]) + more
            warnings.append(f"{listed} in {name!r} are different {kind}{leak}")
        if name in classes and (reason := metadata.not_read(name)):
            warnings.append(f"column {name!r} {reason}; each value is a class")
    for name in dict.fromkeys([*columns, *split_columns]):
        # In a blank column the file or the caller declares words to be values.
        if name not in metadata.blank and (doubtful := metadata.doubtful(name)):
            listed = f"{shown(doubtful)} in {name!r}"
            warnings.append(f"{listed} may mean a missing value; if so, pass --missing-values")
    for name in columns:
        numbers = sorted({float(cell) for cell in metadata.cells(name) if is_number(cell)})
        if name not in classes and len(numbers) == 2:
            values = f"{name!r} contains only {numbers[0]:g} and {numbers[1]:g}"
            warnings.append(f"{values} and is predicted as a number; --classifier makes classes")
    for warning in warnings:
        log.warning("warning: %s: %s", metadata.source, warning)


def warn_of_single_samples(metadata: Metadata, group: str, ids: Ids) -> None:
    """Warn of samples without a value in the column of groups."""
    if number := metadata.values(group, ids).count(None):
        text = "warning: %s: %d of %d samples have no value in --group-column %s; each counts as a "
        log.warning(text + "group of its own", metadata.source, number, len(ids), group)


def warn_of_donors(table: AmpliconTable, metadata: Metadata, target: Ids, data: DataConfig) -> None:
    """Warn if a column probably names donors, folds or subsets divide the samples of a donor, and
    no --group-column keeps them together.
    """
    if data.group_column or data.split or (data.test_size == 0 and not data.cv):
        return
    rows = np.arange(len(table))
    if len(rows) > MOST_COMPARED:
        rows = np.sort(generator(0, "donors").choice(rows, MOST_COMPARED, replace=False))
    ids, folds = [table.sample_ids[row] for row in rows.tolist()], fold_column(data)
    places = ids if folds is None else metadata.values(folds, ids)
    ignored = {*target, folds, data.study_column, data.batch_column}
    nearest, lifts = None, {}
    for name in sorted(metadata.columns.keys() - ignored):
        values = pd.Series(metadata.values(name, ids), dtype=object)
        is_real = any(is_number(value) and float(value) % 1 for value in values.dropna())
        is_real |= bool(metadata.decimal_commas(name))
        pairs = pd.DataFrame({"value": values, "place": places}).dropna(subset="value")
        if is_real or not LEAST_DONORS <= values.nunique() < len(pairs.drop_duplicates()):
            continue
        nearest = nearest_samples(table.counts[rows] > 0) if nearest is None else nearest
        # Samples whose nearest sample has the same value, compared with chance.
        sizes = values.map(values.value_counts())
        share = (values == values.to_numpy()[nearest])[sizes > 1].mean()
        chance = (sizes[sizes > 1] - 1).mean() / max(len(values) - 1, 1)
        lifts[name] = share / chance if share >= LEAST_SHARE else 0.0
    name = max(lifts, key=lifts.__getitem__, default="")
    if lifts.get(name, 0) < LEAST_LIFT:
        return
    number = len({*metadata.values(name, table.sample_ids)} - {None})
    log.warning(
        "warning: %d samples have %d values in %r and no --group-column is given. Samples with the "
        "same value are similar, so the value may name the donor, and the model is then tested on "
        "donors that it knows; --group-column %s keeps the samples of a donor together",
        *(len(table), number, name, name),
    )


def nearest_samples(presence: csr_array | csr_matrix) -> Ints:
    """Return the most similar other sample of each, by the Jaccard index of their ASVs, [n]."""
    present = presence.astype(np.float32)
    shared = np.asarray((present @ present.T).todense())
    richness = np.asarray(present.sum(axis=1)).ravel()
    index = shared / np.maximum(richness[:, None] + richness - shared, 1)
    np.fill_diagonal(index, -1)
    return np.asarray(index.argmax(axis=1))


def warn_of_reads(table: AmpliconTable) -> None:
    """Warn of whole numbers that are no reads: equal sums, too many reads, logarithms."""
    depths, reads = table.depths[table.depths > 0], table.counts.data
    if len(depths) < LEAST_DONORS:
        return
    middle, largest = float(np.median(depths)), int(reads.max(initial=0))
    is_rich = np.median(np.diff(table.counts.indptr)) >= LEAST_MEDIAN_LOG**2
    reason = ""
    if depths.max() - depths.min() <= SAME_DEPTH * middle:
        scaled = "they were rarefied, or scaled to one sum (counts per million, shares)"
        reason = f"all samples have {middle:,.0f} reads; {scaled}"
    elif middle > MOST_READS:
        reason = f"half of the samples have {middle:,.0f} reads, more than any sequencer gives"
    elif largest <= LARGEST_LOG and is_rich and np.median(reads) >= LEAST_MEDIAN_LOG:
        reason = f"no ASV has more than {largest} reads in a sample; the counts may be logarithms"
    if reason:
        log.warning("warning: %s. Pass the reads as they were counted", reason)


def _hashes(sequences: Sequence[str]) -> Hashes:
    digests = b"".join(hashlib.blake2b(s.encode(), digest_size=8).digest() for s in sequences)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _starts(sequences: Sequence[str], other_strand: bool = False) -> Tokens:
    """First bases of each sequence, or of its other strand, [F, POSITIONS]."""
    part = slice(-POSITIONS, None) if other_strand else slice(POSITIONS)
    tokens = encode([sequence[part] for sequence in sequences])
    tokens = reverse_complement(tokens) if other_strand else tokens
    return np.pad(tokens, ((0, 0), (0, POSITIONS - tokens.shape[1])))


@dataclass(frozen=True, eq=False)
class RegionProfile:
    """Profile of the training ASVs, each counted once.

    `length_quantiles` float64 [5] in nucleotides; `frequencies` float64 [50, 4] of A, C, G and T at
    the first positions; `log_likelihood` float64 [], mean per base of the ASVs in nats; `hashes`
    uint64 [F], ascending.
    """

    length_quantiles: Floats
    frequencies: Floats
    log_likelihood: Floats
    hashes: Hashes

    @classmethod
    def fit(cls, sequences: Sequence[str]) -> RegionProfile:
        """Make the profile of at least one training sequence (clean DNA), or of the names of
        features without sequences.
        """
        hashes, frequencies = np.sort(_hashes(sequences)), np.full((POSITIONS, 4), 0.25)
        profile = cls(np.zeros(len(PROFILE_QUANTILES)), frequencies, np.array(0.0), hashes)
        if any(map(first_not_dna, sequences)):
            return profile
        starts = _starts(sequences)
        counts = np.stack([(starts == base).sum(axis=0) for base in (A, C, G, T)], axis=1)
        total = counts.sum(axis=1, keepdims=True)
        np.divide(counts, total, out=frequencies, where=total > 0)
        likelihood = np.array(profile._likelihood(starts).mean())
        return cls(
            np.quantile([*map(len, sequences)], PROFILE_QUANTILES), frequencies, likelihood, hashes
        )

    @property
    def has_sequences(self) -> bool:
        """Whether training knew the sequences of features, and not only their names."""
        return bool(self.length_quantiles[-1] > 0)

    def check_names(self, table: AmpliconTable) -> None:
        """Raise `InputError` where a model knows features by name and the table by sequence, or the
        other way round.
        """
        if self.has_sequences == bool(table.sequences) or not table.feature_ids:
            return
        if self.has_sequences:
            names = f"this table has names such as {table.feature_ids[0][:60]!r}"
            remedy = "pass their --sequences"
            raise InputError(f"the model knows ASVs by their sequence, and {names}; {remedy}")
        are_ids = not self.flags(table.feature_ids)["unseen"].all()
        remedy = "leave --sequences out" if are_ids else "pass a table with the names of training"
        fault = "the model knows features by name, and this table has sequences"
        raise InputError(f"{fault}; {remedy}, or train on a table of sequences")

    def _likelihood(self, starts: Tokens) -> Floats:
        """Mean log-likelihood per base of each row; 0 for a row without a known base."""
        total, bases = np.zeros(len(starts)), ((starts >= A) & (starts <= T)).sum(axis=1)
        for at, shares in enumerate((1 - ERROR_RATE) * self.frequencies + ERROR_RATE / 4):
            # Padding, unknown bases and masks count 0.
            total += np.array([0, *np.log(shares), 0, 0])[starts[:, at]]
        return np.asarray(total / np.maximum(bases, 1))

    @property
    def holds_primer(self) -> bool:
        """Whether most training ASVs begin with a primer: their base frequencies fit one."""
        for primer in PRIMERS.values():
            allowed = np.array([[LETTER_BITS[x] >> base & 1 for base in range(4)] for x in primer])
            parts = [self.frequencies[at : at + len(primer)] for at in range(SPACER + 1)]
            if max((part * allowed).sum() for part in parts) >= len(primer) - MISMATCHES:
                return True
        return False

    def unseen(self, names: Sequence[str]) -> Bools:
        """Whether training lacks each sequence or name of a feature, bool [F]."""
        # The hashes are sorted already; np.isin would sort them again.
        hashes = _hashes(names)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.asarray(self.hashes[places] != hashes)

    def flags(self, sequences: Sequence[str]) -> dict[str, Bools]:
        """Flag sequences, bool [F], with another length, strand or region, or not seen before."""
        flags = dict.fromkeys(UNLIKE, np.zeros(len(sequences), bool))
        flags["unseen"] = self.unseen(sequences)
        if self.has_sequences and not any(map(first_not_dna, sequences)):
            lengths, least = np.array([*map(len, sequences)]), self.log_likelihood - MISFIT
            shortest, *_, longest = self.length_quantiles
            strands = (_starts(sequences, other_strand) for other_strand in (False, True))
            flags["length"] = (lengths < shortest) | (lengths > longest)
            fits, other_fits = (self._likelihood(starts) > least for starts in strands)
            flags["reversed"], flags["elsewhere"] = ~fits & other_fits, ~fits & ~other_fits
        return flags

    def shares_of_samples(self, table: AmpliconTable) -> dict[str, Floats]:
        """Shares of each sample's reads, float64 [N], in ASVs that `flags` names."""
        flags, depths = self.flags(table.names), np.maximum(table.depths, 1)
        share = {name: np.zeros(len(depths)) for name in flags}
        for rows, counts in table.blocks():
            for name, values in flags.items():
                share[name][rows] = np.asarray(counts @ values.astype(np.int64)) / depths[rows]
        return share

    def compare(self, table: AmpliconTable, kinds: Collection[str] = UNLIKE.keys()) -> list[str]:
        """Write a sentence for each way in which the reads of a table differ from training."""
        shares = self.shares_of_samples(table)
        mean = {name: np.average(shares[name], weights=table.depths) for name in kinds}
        kinds = [name for name, share in mean.items() if share > MOST_OF_TABLE[name]]
        return [f"{mean[x]:.0%} of the reads {'; '.join(UNLIKE[x])}" for x in kinds]

    def compare_samples(self, table: AmpliconTable) -> tuple[str, ...]:
        """Note for each sample of a table how its reads differ from training, or ''.

        A table of good samples hides a bad one, so each is judged by itself; a sample with training
        ASVs only is not unlike them.
        """
        notes, share = [""] * len(table), self.shares_of_samples(table)
        for name, (text, _) in UNLIKE.items():
            large = (share[name] > MOST_OF_SAMPLE[name]) & (share["unseen"] > 0)
            for row in np.flatnonzero(large):
                note = f"{share[name][row]:.0%} of its reads {text}"
                notes[row] += f"; {note}" if notes[row] else note
        return tuple(notes)

    def to_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """The profile as named arrays, without uint64, which some versions of safetensors cannot
        write.
        """
        return {**asdict(self), "hashes": self.hashes.view(np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> RegionProfile:
        """Rebuild the profile of `to_arrays`; `InputError` if an array is missing or has another
        shape.
        """
        shapes = {"length_quantiles": (5,), "frequencies": (POSITIONS, 4), "log_likelihood": ()}
        actual = {name: array.shape for name, array in arrays.items()}
        if len(actual.pop("hashes", ())) != 1 or actual != shapes:
            raise InputError(f"the model's region profile is damaged: its arrays are {actual}")
        profile = cls(**{**arrays, "hashes": arrays["hashes"].view(np.uint64)})
        lengths, shares = profile.length_quantiles, profile.frequencies
        faults = {
            "types": {str(array.dtype) for array in arrays.values()} != {"float64", "int64"},
            "hashes": (profile.hashes[:-1] > profile.hashes[1:]).any(),
            "length_quantiles": lengths[0] < 0 or (np.diff(lengths, append=MOST_BASES) < 0).any(),
            "frequencies": (shares < 0).any() or not np.allclose(shares.sum(axis=1), 1),
            "log_likelihood": not math.log(ERROR_RATE / 4) <= profile.log_likelihood <= 0,
        }
        if parts := [name for name, is_faulty in faults.items() if is_faulty]:
            raise InputError(f"the model's region profile is damaged: {shown(parts)}")
        return profile


def _samples_that_share(table: AmpliconTable) -> Ints:
    """Return a number for each sample, [N], the same for those that share ASVs, also by way of
    others. An ASV of less than `LEAST_SHARED` of the reads of a sample may have strayed there.
    """
    depths = np.repeat(table.depths, np.diff(table.counts.indptr))
    present = table.counts.copy()
    present.data = (table.counts.data >= LEAST_SHARED * depths).astype(np.uint8)
    present.eliminate_zeros()
    graph = block_array([[None, present], [present.T, None]], format="csr")
    return np.asarray(connected_components(graph, directed=False)[1][: len(table)])


def _fit_each_other(table: AmpliconTable, rows: Ints, others: Ints) -> bool:
    """Return whether most reads of some samples fit the profile of the ASVs of others, and theirs
    fit that of the former.
    """
    for training_rows, tested_rows in ((rows, others), (others, rows)):
        part = table[tested_rows]
        sequences = [table.sequences[column] for column in table.columns_of(training_rows)]
        shares = RegionProfile.fit(sequences).shares_of_samples(part)
        unlike = np.maximum(shares["elsewhere"] + shares["reversed"], shares["length"])
        if np.average(unlike, weights=part.depths) > 0.5:
            return False
    return True


def other_region(table: AmpliconTable) -> Bools:
    """Return which samples share no ASV with most others and are of another region, strand or
    length, [N]; groups of at least `LEAST_OF_REGION` samples count. None without sequences.
    """
    is_other = np.zeros(len(table), bool)
    if not table.sequences:
        return is_other
    part = _samples_that_share(table)
    sizes = np.bincount(part)
    largest = np.flatnonzero(part == sizes.argmax())
    for number in np.flatnonzero(sizes >= LEAST_OF_REGION):
        rows = np.flatnonzero(part == number)
        if number != sizes.argmax() and not _fit_each_other(table, largest, rows):
            is_other[rows] = True
    return is_other


def warn_of_regions(table: AmpliconTable) -> None:
    """Warn of samples whose reads are of two regions, or of both strands."""
    is_other = other_region(table)
    if not is_other.any():
        return
    log.warning(
        "warning: %d of %d samples, such as %r, share no ASV with the others and look like another "
        "region, strand or length; a model tells them apart by their primers alone; train on one "
        "region, or name the column of the studies with --study-column",
        *(is_other.sum(), len(table), table.sample_ids[int(is_other.argmax())]),
    )


def mismatches(tokens: Tokens, primer: str) -> npt.NDArray[np.int8]:
    """Count the letters of a primer that differ at each place of sequences [F, L] where it fits,
    [F, L - length + 1].
    """
    bits, places = BASE_BITS[tokens], max(tokens.shape[1] - len(primer) + 1, 0)
    misses = np.zeros((len(bits), places), np.int8)
    for at, letter in enumerate(primer):
        misses += (bits[:, at : at + places] & LETTER_BITS[letter]) == 0
    return misses


def find_primers(sequences: Sequence[str]) -> tuple[Ints, Ints]:
    """Find the primers at the two ends of sequences, as places in `PRIMERS` (-1 for none), and the
    bases to cut there, both [2, F].
    """
    primers, bases = np.full((2, len(sequences)), -1), np.zeros((2, len(sequences)), np.int64)
    for end in (0, 1):
        starts = _starts(sequences, other_strand=bool(end))
        for number, primer in enumerate(PRIMERS.values()):
            misses = mismatches(starts[:, : SPACER + len(primer)], primer)
            fits = (misses.min(axis=1) <= MISMATCHES) & (primers[end] < 0)
            primers[end, fits] = number
            bases[end, fits] = misses[fits].argmin(axis=1) + len(primer)
    return primers, bases


def without_primers(table: AmpliconTable) -> AmpliconTable:
    """Cut primers from ASVs; those that become identical are merged and their reads added."""
    primers, bases = find_primers(table.sequences)
    ends = zip(table.sequences, *bases.tolist(), strict=True)
    trimmed = [dna[start : len(dna) - end] or dna for dna, start, end in ends]
    log.info("primers cut from %d of %d ASVs", (primers >= 0).any(axis=0).sum(), len(trimmed))
    return make_table(table.counts, table.sample_ids, table.feature_ids, trimmed)


def describe_primers(table: AmpliconTable, from_model: bool) -> str:
    """Name the primers that reads still contain, and the number of reads; "" for few or none. For
    prediction with a model an option cuts them.
    """
    places, _ = find_primers(table.sequences)
    total = int(table.reads_of_asvs.sum())
    reads = int(table.reads_of_asvs[: places.shape[1]][(places >= 0).any(axis=0)].sum())
    if reads <= MOST_WITH_PRIMER * total:
        return ""
    times, primers = Counter(places[places >= 0].tolist()).most_common(), list(PRIMERS.items())
    listed = ", ".join("{} ({}) in {} ASVs".format(*primers[at], asvs) for at, asvs in times)
    share = f"{reads:,} of {total:,} reads ({reads / total:.0%})"
    advice = "pass --trim-primers, or cut" if from_model else "cut"
    remedy = f"{advice} primers before denoising (cutadapt)"
    return f"{share} still contain a primer: {listed}; {remedy}"


def warn_of_primers(table: AmpliconTable, from_model: bool) -> None:
    """Warn of the primers of `describe_primers`."""
    if primers := describe_primers(table, from_model):
        log.warning("warning: %s", primers)


def fit_length(
    table: AmpliconTable, max_bp: int | None, trimmed: bool = False, from_model: bool = False
) -> AmpliconTable:
    """Return a table of ASVs of at most `max_bp` nucleotides: longer ones are cut if `trimmed`, and
    those that become identical are merged and their reads added.

    Raises `InputError` for longer ones otherwise, which names primers if they are the reason; where
    `max_bp` is `from_model`, no option changes it.
    """
    too_long = table.lengths[table.lengths > (max_bp or np.inf)]
    if max_bp is None or not len(too_long):
        return table
    if trimmed:
        beginnings = [sequence[:max_bp] for sequence in table.sequences]
        return make_table(table.counts, table.sample_ids, table.feature_ids, beginnings)
    fault = f"{len(too_long)} of {len(table.sequences)} ASVs are longer than"
    if primers := describe_primers(table, from_model):
        raise InputError(f"{fault} {max_bp} nucleotides, and {primers}")
    longest = too_long.max()
    limit, remedy = f"--max-bp {max_bp}", f", or --max-bp {longest}"
    if from_model:
        limit, remedy = f"the model's {max_bp}", ""
    fault += f" {limit}, the longest has {longest} nucleotides"
    raise InputError(f"{fault}; pass --trim to cut them to {max_bp}{remedy}")
