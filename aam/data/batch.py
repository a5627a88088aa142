"""The batch that the loader makes of samples, and the padded batch that a network reads.

Legend for shapes everywhere: B samples, S ASVs per sample, U unique ASVs, L nucleotides, D width,
K class targets, C categorical columns, N numeric covariates. With several ranks, U are the unique
ASVs that this rank encodes; all_B and all_U are the samples and unique ASVs of all ranks. A padded
batch has T slots of ASVs in all samples and M masked copies of ASVs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from aam.device.measure import stage
from aam.device.shapes import Bool, Float, Int64, UInt8
from aam.typing import Tokens

# Bytes at which a tensor starts in the buffer of a batch.
ALIGNMENT = 16

BatchKind = TypeVar("BatchKind", bound="AnyBatch")

# Type and shape of each tensor by name, in their order in a buffer.
Layout = dict[str, tuple[torch.dtype, tuple[int, ...]]]


@dataclass(frozen=True)
class Ranks:
    """Division of a batch among ranks.

    Attributes
    ----------
    rank : int
        This one.
    samples, asvs : tuple of int
        Samples of each rank and the distinct ASVs that it encodes, one rank after the other; empty
        with a single rank. Of a padded batch `asvs` count dummies.
    """

    rank: int = 0
    samples: tuple[int, ...] = ()
    asvs: tuple[int, ...] = ()

    @property
    def rank_samples(self) -> slice:
        """The samples of this rank among those of all."""
        return _stretch(self.samples, self.rank)

    @property
    def rank_asvs(self) -> slice:
        """The ASVs that this rank encodes among those of all."""
        return _stretch(self.asvs, self.rank)


def _stretch(sizes: tuple[int, ...], rank: int) -> slice:
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1])) if sizes else slice(None)


def _round_up(number: Any, step: int) -> int:
    """Return the next multiple of `step`."""
    return int(-(-number // step)) * step


@dataclass(frozen=True, kw_only=True)
class AnyBatch:
    """What a batch holds in both layouts, and how it comes to a device.

    Attributes
    ----------
    distance : float32 or float64 [B, all_B], optional
        UniFrac between the samples, from the rarefied counts of this very batch; with several ranks
        between the samples of this rank and those of all.
    target : float32 [B, targets], optional
        Transformed numeric columns, NaN where missing.
    label : int64 [B, K], optional
        Class columns, -1 where missing.
    category, covariate, weight : int64 [B, C], float32 [B, N], float32 [B], optional
        Conditioning and loss weights; category 0 is unknown, a covariate NaN where missing.
    reference : float32 [B, E], optional
        Numbers of each sample on the reference of a plugin (`aam.data.study`).
    column : int64 [all_U], optional
        Column of each distinct ASV in the table, for vectors that were computed beforehand.
    pairs : float64 [1], optional
        With several ranks: pairs of a sample of this rank and another one, each counted half.
    has_short_asvs : bool
        Whether a row of `tokens` of any rank may be shorter than L.
    sample_ids : tuple of str
    ranks : Ranks
        How the samples are divided among several ranks.
    """

    distance: Float[Tensor, "B all_B"] | None = None
    target: Float[Tensor, "B targets"] | None = None
    label: Int64[Tensor, "B K"] | None = None
    category: Int64[Tensor, "B C"] | None = None
    covariate: Float[Tensor, "B N"] | None = None
    weight: Float[Tensor, " B"] | None = None
    reference: Float[Tensor, "B E"] | None = None
    column: Int64[Tensor, " all_U"] | None = None
    pairs: Float[Tensor, " 1"] | None = None
    has_short_asvs: bool = False
    sample_ids: tuple[str, ...] = ()
    ranks: Ranks = field(default_factory=Ranks)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def buffer(self, pinned: bool = False) -> UInt8[Tensor, " bytes"]:
        """Return all tensors in one buffer, which one copy brings to a device."""
        tensors = self.tensors()
        size = sum(_round_up(value.nbytes, ALIGNMENT) for value in tensors.values())
        buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        for name, view in views_of(buffer, self.layout()).items():
            view.copy_(tensors[name])
        return buffer

    @stage("transfer")
    def to(self: BatchKind, device: torch.device) -> BatchKind:
        """Return the batch on `device`."""
        if device.type == "cpu":
            return self
        buffer = self.buffer(pinned=device.type == "cuda").to(device, non_blocking=True)
        return replace(self, **views_of(buffer, self.layout()))

    def layout(self) -> Layout:
        """Return type and shape of each tensor."""
        return {name: (value.dtype, tuple(value.shape)) for name, value in self.tensors().items()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel between processes as one array of bytes, and what is no tensor."""
        layout = self.layout()
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        rest = {name: value for name, value in values.items() if name not in layout}
        return _from_bytes, (type(self), self.buffer().numpy(), layout, rest)


def views_of(buffer: Tensor, layout: Layout) -> dict[str, Any]:
    """Return the tensors of a layout as views of a buffer of bytes, each at a multiple of
    `ALIGNMENT`.
    """
    views, at = {}, 0
    for name, (dtype, shape) in layout.items():
        size = math.prod(shape) * dtype.itemsize
        views[name] = buffer[at : at + size].view(dtype).view(shape)
        at += _round_up(size, ALIGNMENT)
    return views


def _from_bytes(
    kind: type[AnyBatch], content: Tokens, layout: Layout, rest: dict[str, Any]
) -> AnyBatch:
    """Return a batch whose tensors share one buffer."""
    return kind(**views_of(torch.from_numpy(content), layout), **rest)


@dataclass(frozen=True)
class Batch(AnyBatch):
    """Samples that are trained or predicted together, each distinct ASV held once.

    Attributes
    ----------
    tokens : uint8 [U, L]
        The distinct ASVs that this rank encodes, padded to the longest of all.
    asv : int64 [B, S]
        Which of the distinct ASVs of all ranks each ASV of each sample is; 0 where `counts` is
        0.
    counts : float32 [B, S]
        Rarefied reads; 0 is padding.
    key : int64 [all_U], optional
        The `asv_keys` of the distinct ASVs.
    sizes : tuple of int
        ASVs of each sample, on the host; samples stand in descending order of it.
    rank_sizes : tuple of tuples of int
        The same of each of several ranks.
    """

    tokens: UInt8[Tensor, "U L"]
    asv: Int64[Tensor, "B S"]
    counts: Float[Tensor, "B S"]
    key: Int64[Tensor, " all_U"] | None = None
    sizes: tuple[int, ...] = ()
    rank_sizes: tuple[tuple[int, ...], ...] = ()


# --- the padded batch ----------------------------------------------------------------------------

# Samples and slots of each sample, bin by bin: samples of similar size lie in one bin.
Bins = tuple[tuple[int, int], ...]

# Bins of a batch that is laid out exactly, each cut to its own largest sample.
EXACT_BINS = 4
# Where bins of constant capacity end, in shares of the batch.
ENDS = (1 / 16, 1 / 4, 1 / 2, 1.0)
# Share of the batches that fit their bins, and the number of batches that are looked at.
FITTING, FITTED_BATCHES = 0.995, 64
# Capacities are multiples of these; buckets of distinct ASVs are a share of the mean apart.
SLOT_STEP, ASV_STEP, BUCKET = 8, 32, 1 / 8
# A position that no loss reads.
IGNORED = -100
# What dummy samples have.
EMPTY = {"target": torch.nan, "label": -1.0, "category": 0.0, "covariate": 0.0}
EMPTY |= {"weight": 0.0, "reference": 0.0}


@dataclass(frozen=True)
class Masks:
    """Bases and counts that are hidden from the network in one step.

    Attributes
    ----------
    rows : int64 [M]
        Rows of the tokens that have a masked copy.
    tokens : uint8 [M, L]
        The masked copies; L is 0 where none are wanted.
    where : bool [M, L]
        The masked positions.
    counts : bool [B, S], optional
        Slots whose count is withheld.
    copies : tuple of int
        Masked copies of each rank.
    """

    rows: Int64[Tensor, " M"]
    tokens: UInt8[Tensor, "M L"]
    where: Bool[Tensor, "M L"]
    counts: Bool[Tensor, "B S"] | None = None
    copies: tuple[int, ...] = ()


# Sizes of the samples, distinct ASVs and masked copies of a rank.
Needs = tuple[Sequence[int], int, int]


class Capacities(NamedTuple):
    """Sizes that all batches of a run share.

    Attributes
    ----------
    bins : tuple of (samples, slots)
    asvs : tuple of (distinct ASVs, masked copies)
        Buckets in ascending order; a batch takes the first that it fits.
    length : int
        Nucleotides of the longest ASV.
    """

    bins: Bins
    asvs: tuple[tuple[int, int], ...]
    length: int

    def bucket(self, sizes: Sequence[int], asvs: int, masked: int) -> tuple[int, int] | None:
        """Return the bucket of a batch; None where it overflows every capacity."""
        starts = np.cumsum([0, *(samples for samples, _ in self.bins)]).tolist()
        limits = zip(starts, self.bins, strict=False)
        if len(sizes) > starts[-1] or any(max(sizes[at:], default=0) > n for at, (_, n) in limits):
            return None
        return next((most for most in self.asvs if asvs <= most[0] and masked <= most[1]), None)

    def common_bucket(self, ranks: Sequence[Needs]) -> tuple[int, int] | None:
        """Return the bucket that the batches of all ranks fit; None where one overflows."""
        buckets = [bucket for needs in ranks if (bucket := self.bucket(*needs)) is not None]
        return max(buckets) if len(buckets) == len(ranks) else None


@dataclass(frozen=True)
class PaddedBatch(AnyBatch):
    """A batch as a network reads it, padded to the slots of its bins in one flat buffer.

    Dummies fill constant capacities, and the layout of the largest rank: slots without reads,
    samples of one read whose distances and targets are missing, ASVs that no sample has, masked
    copies without predictions. They have no `sample_ids`.

    Attributes
    ----------
    tokens : uint8 [U + M, L]
        The distinct ASVs of this rank, then the masked copies.
    asv, row : int64 [T]
        Which of the distinct ASVs of all ranks each slot is, and which of the samples of this one
        it belongs to.
    counts : float32 [T]
        Rarefied reads; 0 is padding.
    hidden : bool [T], optional
        Slots whose count is withheld.
    bases : int64 [M, L], optional
        The masked bases, 0 to 3, and `IGNORED` elsewhere.
    bins : tuple of (samples, slots)
    is_constant : bool
        Whether the shape is that of constant capacities.
    """

    tokens: UInt8[Tensor, "rows L"]
    asv: Int64[Tensor, " T"]
    row: Int64[Tensor, " T"]
    counts: Float[Tensor, " T"]
    hidden: Bool[Tensor, " T"] | None = None
    bases: Int64[Tensor, "M L"] | None = None
    bins: Bins = ()
    is_constant: bool = False

    @property
    def masked(self) -> int:
        """The number of masked copies."""
        return 0 if self.bases is None else self.bases.shape[0]

    def shape(self) -> tuple[object, ...]:
        """Key shared by batches of one shape."""
        sizes = tuple((name, tuple(value.shape)) for name, value in self.tensors().items())
        return (*sizes, self.bins, self.has_short_asvs)


def exact_bins(sizes: Sequence[int]) -> Bins:
    """Return bins without dummies, each cut to its own largest sample."""
    step = -(-len(sizes) // EXACT_BINS)
    starts = range(0, len(sizes), step)
    return tuple((min(step, len(sizes) - start), max(sizes[start], 1)) for start in starts)


def fit_capacities(
    sizes: Sequence[Sequence[int]], asvs: Sequence[int], batch_size: int, length: int, masked: float
) -> Capacities:
    """Return capacities from batches of a run.

    Parameters
    ----------
    sizes : sequence of sequences of int
        ASVs of each sample of each batch, in descending order.
    asvs : sequence of int
        Distinct ASVs of each batch.
    batch_size, length : int
    masked : float
        Share of the distinct ASVs that have a masked copy.
    """
    profile = np.zeros((len(sizes), batch_size), np.int64)
    for batch, numbers in enumerate(sizes):
        profile[batch, : len(numbers)] = numbers
    ends = sorted({max(1, round(batch_size * share)) for share in ENDS})
    bins = []
    for start, end in zip([0, *ends], ends, strict=False):
        slots = float(np.quantile(profile[:, start], FITTING, method="higher"))
        bins.append((end - start, _round_up(max(slots, 1), SLOT_STEP)))
    step = _round_up(max(float(np.mean(asvs)) * BUCKET, 1), ASV_STEP)
    buckets = sorted({_round_up(number, step) for number in asvs})
    buckets.append(buckets[-1] + step)
    masks = [number * masked + 4 * (number * masked * (1 - masked)) ** 0.5 for number in buckets]
    pairs = zip(
        buckets, (_round_up(number, SLOT_STEP) if masked else 0 for number in masks), strict=True
    )
    return Capacities(tuple(bins), tuple(pairs), length)


class SlotPlaces(NamedTuple):
    """Where the T slots of bins lie in arrays [B, S] of a batch.

    Attributes
    ----------
    sample, place : int64 [T]
        The sample of each slot, also a dummy, and its place among the ASVs of the sample.
    is_dummy : bool [T]
        Slots that the batch does not have.
    starts : int64 [dummies]
        First slot of each dummy sample.
    """

    sample: Int64[Tensor, " T"]
    place: Int64[Tensor, " T"]
    is_dummy: Bool[Tensor, " T"]
    starts: Int64[Tensor, " dummies"]

    def flat(self, values: Tensor, empty: float) -> Tensor:
        """Return values [B, S] of samples as [T], `empty` in dummy slots."""
        last = values.shape[0] - 1
        return values[self.sample.clamp(max=last), self.place].masked_fill(self.is_dummy, empty)


def slot_places(bins: Bins, counts: Tensor) -> SlotPlaces:
    """Return where the slots of `bins` lie in the `counts` [B, S] of a batch."""
    slots = np.concatenate([np.full(samples, number) for samples, number in bins])
    starts, (samples, width) = np.cumsum(slots) - slots, counts.shape
    sample = np.repeat(np.arange(len(slots)), slots)
    place = np.arange(len(sample)) - starts[sample]
    is_dummy = (sample >= samples) | (place >= width)
    arrays = (sample, np.minimum(place, width - 1), is_dummy, starts[samples:])
    return SlotPlaces(*(torch.from_numpy(array).to(counts.device) for array in arrays))


def pad_batch(
    batch: Batch, masks: Masks | None = None, capacities: Capacities | None = None
) -> PaddedBatch:
    """Lay out a batch: in constant capacities where they are given and the share of each rank fits,
    else exactly, by the largest of several ranks: all have the same layout.
    """
    sizes, asvs = batch.rank_sizes or (batch.sizes,), batch.ranks.asvs or (len(batch.tokens),)
    copies = (0,) * len(asvs) if masks is None else masks.copies or (len(masks.rows),)
    needs = list(zip(sizes, asvs, copies, strict=True))
    constant = None if capacities is None else capacities.common_bucket(needs)
    bucket = constant or (max(asvs), max(copies))
    if capacities is None or constant is None:
        largest = [max(places) for places in itertools.zip_longest(*sizes, fillvalue=0)]
        bins, length = exact_bins(largest), batch.tokens.shape[1]
    else:
        bins, length = capacities.bins, capacities.length
    slots = slot_places(bins, batch.counts)
    counts = slots.flat(batch.counts, 0.0)
    # A dummy sample has one read.
    counts[slots.starts] = 1.0
    hidden = None if masks is None else masks.counts
    tokens, bases = _tokens(batch, masks, bucket, length)
    ranks, dummies = batch.ranks, len(slots.starts)
    if ranks.samples:
        ranks = replace(ranks, asvs=(bucket[0],) * len(asvs))
    asv, column = _padded_asvs(batch, asvs, bucket[0])
    return PaddedBatch(
        tokens=tokens,
        asv=slots.flat(asv, 0.0),
        row=slots.sample,
        counts=counts,
        hidden=None if hidden is None else slots.flat(hidden, 0.0),
        bases=bases,
        distance=_padded_distance(batch.distance, ranks, sum(samples for samples, _ in bins)),
        column=column,
        pairs=batch.pairs,
        bins=bins,
        is_constant=constant is not None,
        has_short_asvs=batch.has_short_asvs or batch.tokens.shape[1] < length,
        ranks=ranks,
        sample_ids=batch.sample_ids,
        **{
            name: _with_dummies(getattr(batch, name), dummies, empty)
            for name, empty in EMPTY.items()
        },
    )


def _padded_asvs(batch: Batch, asvs: Sequence[int], capacity: int) -> tuple[Tensor, Tensor | None]:
    """Return `asv` and `column` with the dummies of each rank among the distinct ASVs."""
    ends = ((rank * capacity, rank * capacity + n) for rank, n in enumerate(asvs))
    place = torch.cat([torch.arange(*end, device=batch.asv.device) for end in ends])
    column = batch.column
    if column is not None:
        column = column.new_zeros(len(asvs) * capacity).index_put((place,), column)
    return place[batch.asv], column


def _padded_distance(distance: Tensor | None, ranks: Ranks, rows: int) -> Tensor | None:
    """Return distances with NaN for the dummies of each rank, which all have `rows` samples."""
    if distance is None:
        return None
    samples = ranks.samples or (len(distance),)
    if set(samples) == {rows}:
        return distance
    columns = torch.cat([torch.arange(number) + rank * rows for rank, number in enumerate(samples)])
    wide = distance.new_full((rows, len(samples) * rows), torch.nan)
    wide[: len(distance), columns] = distance
    return wide


def _tokens(
    batch: Batch, masks: Masks | None, bucket: tuple[int, int], length: int
) -> tuple[Tensor, Tensor | None]:
    """Return the distinct ASVs with their masked copies, and the masked bases."""
    tokens, copied, bases = batch.tokens, batch.tokens[:0], None
    (asvs, copies), padding = bucket, length - tokens.shape[1]
    if masks is not None and masks.tokens.shape[1]:
        copied = masks.tokens
        bases = (tokens[masks.rows].long() - 1).masked_fill(~masks.where, IGNORED)
        bases = torch.nn.functional.pad(bases, (0, padding, 0, copies - len(bases)), value=IGNORED)
    wide = tokens.new_ones(asvs + (0 if bases is None else copies), length)
    wide[: len(tokens)] = torch.nn.functional.pad(tokens, (0, padding))
    wide[asvs : asvs + len(copied)] = torch.nn.functional.pad(copied, (0, padding))
    return wide, bases


def _with_dummies(values: Tensor | None, number: int, empty: float) -> Tensor | None:
    """Return values of samples with those of `number` dummies."""
    if values is None or not number:
        return values
    return torch.cat([values, values.new_full((number, *values.shape[1:]), empty)])
