"""The whole network: a batch in, vectors and predictions out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad
from torch.utils._pytree import register_pytree_node
from torch.utils.checkpoint import checkpoint

from aam.config import ModelConfig
from aam.data.batch import Batch
from aam.device.shapes import Bool, Float, Int64, UInt8
from aam.model.asv import AsvEncoder
from aam.model.heads import CovariateFusion, DistanceHead, Gather, HeadConfig, Readout
from aam.model.sample import SampleEncoder

SIZE_GROUPS = 4
# Patches that a CPU encodes at a time, so that what one layer writes is in its cache for the next
# (docs/decisions.md).
CACHED_PATCHES = 4096
# Of one ASV among about 50 in a sample.
TYPICAL_LOG_SHARE = -4.0


def _alone(rows: Tensor, sizes: tuple[int, ...]) -> Callable[[], Tensor]:
    return lambda: rows


@dataclass(frozen=True)
class Masks:
    """What is withheld from the network in one step.

    Attributes
    ----------
    rows : int64 [M]
        ASVs of the batch of which a masked copy is read.
    tokens : uint8 [M, L]
        The masked copies; L is 0 where none are wanted.
    where : bool [M, L]
        The masked positions.
    counts : bool [B, S], optional
        Slots whose count is withheld.
    """

    rows: Int64[Tensor, " M"]
    tokens: UInt8[Tensor, "M L"]
    where: Bool[Tensor, "M L"]
    counts: Bool[Tensor, "B S"] | None = None


def _seen_into(kind: type[Any]) -> type[Any]:
    """FSDP2 looks for gradients in what is returned; torch 2.7 sees into no dataclass that it does
    not know.
    """
    register_pytree_node(
        kind, lambda made: ([*vars(made).values()], None), lambda values, _: kind(*values)
    )
    return kind


@_seen_into
@dataclass(frozen=True)
class Outputs:
    """Vectors and predictions of one batch; a head that the model lacks leaves None.

    `samples` [B, D], `asvs` [U, D], `distance` [B, B], `nucleotides` [masked, 4] (logits of A, C,
    G, T in the order of ``where.nonzero()``), `counts` [B, S] (log of relative abundance), `target`
    [B, T] (transformed units), `labels` one [B, classes] of logits for each class column; `read`
    [B, W] are the vectors that target heads read; `compared` [B, C] those whose distances are
    predicted. `spread` is the standard deviation of the distance, the unit of its loss.
    """

    samples: Float[Tensor, "B D"]
    asvs: Float[Tensor, "U D"]
    distance: Float[Tensor, "B all_B"] | None = None
    nucleotides: Float[Tensor, "masked 4"] | None = None
    counts: Float[Tensor, "B S"] | None = None
    read: Float[Tensor, "B W"] | None = None
    target: Float[Tensor, "B T"] | None = None
    labels: tuple[Float[Tensor, "B _"], ...] = ()
    compared: Float[Tensor, "B C"] | None = None
    spread: float = 1.0

    def full(self) -> Outputs:
        """Return the outputs in float32 where they were in half precision, as losses need them."""
        half = (torch.float16, torch.bfloat16)
        values = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        in_full = {name: value.float() for name, value in values.items() if value.dtype in half}
        return replace(self, **in_full)  # type: ignore[arg-type]


class Aam(nn.Module):
    """ASV encoder, sample encoder and the heads named by `heads`.

    `bound_memory`, called from outside, changes no result; `gather`, set from outside, puts the
    rows of other ranks beside those of this rank.

    Parameters
    ----------
    config : ModelConfig
    depth : int
        Rarefaction depth in reads; relative abundance divides by it.
    heads : HeadConfig
    reference_width : int
        Numbers of each sample on the reference of a plugin (`Batch.reference`) that are read too.
    """

    def __init__(
        self, config: ModelConfig, depth: int, heads: HeadConfig, reference_width: int = 0
    ) -> None:
        super().__init__()
        width = config.embedding_dim
        self.asv = AsvEncoder(config)
        self.sample = SampleEncoder(config, depth)
        self.reference = nn.Linear(reference_width, width) if reference_width else None
        if self.reference is not None:
            # It centres the sample vectors and is not learned, as in the sample encoder.
            self.reference.bias.requires_grad_(False)
        metric = heads.metric
        self.distance = None if metric is None else DistanceHead(width, metric != "weighted")
        self.scale = heads.scale
        self.count = Readout(width, 1, start=TYPICAL_LOG_SHARE) if heads.counts else None
        self.covariates = CovariateFusion(width, heads) if heads.levels or heads.numbers else None
        read = width if self.covariates is None else self.covariates.width
        self.target = Readout(read, heads.n_targets) if heads.n_targets else None
        self.labels = nn.ModuleList(Readout(read, n) for n in heads.n_classes)
        self.bound_memory(None, False)
        self.gather: Gather = _alone

    def bound_memory(self, asv_chunk: int | None, recompute: bool) -> None:
        """Encode at most `asv_chunk` ASVs at a time; with `recompute` keep no activations for
        backward.

        Chunks are recomputed whole: a block inside one would otherwise be computed a third time.
        """
        self.asv_chunk, self.recompute_chunks = asv_chunk, recompute and asv_chunk is not None
        self.asv.stack.recompute = recompute and asv_chunk is None
        self.sample.stack.recompute = recompute

    def compile_encoders(self, compiler: str | None) -> None:
        """Let a compiler of torch make the blocks of both encoders faster; names of weights stay.

        Only the blocks: around them the strides of a batch change, and each change would compile
        anew.
        """
        for stack in (self.asv.stack, self.sample.stack) if compiler not in (None, "eager") else ():
            stack.compile(backend=compiler, dynamic=True)

    def encode_asvs(
        self, tokens: UInt8[Tensor, "U L"], padded: bool
    ) -> tuple[Float[Tensor, "U P D"], Float[Tensor, "U D"]]:
        """Return patch vectors ``[U, P, D]`` and ASV vectors ``[U, D]``, a chunk at a time."""
        parts = []
        for chunk in tokens.split(self._asvs_at_once(tokens)):
            if torch.is_grad_enabled() and self.recompute_chunks:
                parts.append(checkpoint(self.asv, chunk, padded, use_reentrant=False))
            else:
                parts.append(self.asv(chunk, padded))
        if len(parts) == 1:
            return parts[0]  # type: ignore[no-any-return]
        return torch.cat([patches for patches, _ in parts]), torch.cat(
            [vectors for _, vectors in parts]
        )

    def _asvs_at_once(self, tokens: UInt8[Tensor, "U L"]) -> int:
        if self.asv_chunk is not None:
            return self.asv_chunk
        if tokens.device.type != "cpu":
            return max(len(tokens), 1)
        return max(CACHED_PATCHES // max(self.asv.patches(tokens.shape[1]), 1), 1)

    def encode_samples(
        self, asvs: Float[Tensor, "U D"], batch: Batch, hidden: Bool[Tensor, "B S"] | None = None
    ) -> tuple[Float[Tensor, "B S D"], Float[Tensor, "B D"]]:
        """Return ASVs in context ``[B, S, D]`` and sample vectors ``[B, D]``.

        Samples come sorted by size, so a group of neighbours is cut to its own longest sample.
        """
        n, slots = batch.asv.shape
        step = -(-n // SIZE_GROUPS)
        contexts, attended = [], []
        for start in range(0, n, step):
            rows, longest = slice(start, start + step), batch.sizes[start]
            part = None if hidden is None else hidden[rows, :longest]
            vectors = asvs[batch.asv[rows, :longest]]
            context, pooled = self.sample(vectors, batch.counts[rows, :longest], part)
            contexts.append(pad(context, (0, 0, 0, slots - longest)))
            attended.append(pooled)
        samples = torch.cat(attended) + self.sample.contents(asvs, batch.asv, batch.counts)
        if self.reference is not None:
            samples = samples + self.reference(_on_reference(batch))
        return torch.cat(contexts), samples

    @torch.no_grad()
    def standardize(self, batch: Batch) -> None:
        """Center and scale ASV and sample vectors on a first batch, before any training.

        At initialization the vectors of different ASVs, and more so of samples, are almost equal,
        and the first epochs are spent on telling them apart (docs/decisions.md has the numbers).
        """
        self.asv.standardize(batch.tokens.split(self._asvs_at_once(batch.tokens)), batch.padded)
        asvs = self.encode_asvs(batch.tokens, batch.padded)[1]
        self.sample.standardize(asvs, batch.asv, batch.counts)
        self.standardize_reference(batch)
        if self.distance is not None:
            _, samples = self.encode_samples(asvs, batch)
            self.distance.standardize(self.distance.vectors(samples), self.scale[0])

    @torch.no_grad()
    def standardize_distance(self, batch: Batch) -> None:
        """Centre and scale a distance head that is new, on a first batch."""
        if self.distance is not None:
            asvs = self.encode_asvs(batch.tokens, batch.padded)[1]
            _, samples = self.encode_samples(asvs, batch)
            self.distance.standardize(self.distance.vectors(samples), self.scale[0])

    @torch.no_grad()
    def standardize_reference(self, batch: Batch) -> None:
        """Read the numbers on the reference, if any, by the principal components of a batch.

        What they add to the sample vectors has the standard deviation 1, as the composition has.
        """
        if self.reference is None:
            return
        numbers, width = _on_reference(batch).double(), len(self.reference.bias)
        mean = numbers.mean(dim=0)
        axes = torch.linalg.svd(numbers - mean, full_matrices=False)[2][:width]
        spread = ((numbers - mean) @ axes.T).var(dim=0).sum().div(width).sqrt().clamp_min(1e-6)
        self.reference.weight.zero_()
        self.reference.weight[: len(axes)] = (axes / spread).to(self.reference.weight)
        self.reference.bias.copy_(-(self.reference.weight @ mean.to(self.reference.weight)))

    def forward(
        self, batch: Batch, masks: Masks | None = None, asvs: Float[Tensor, "U D"] | None = None
    ) -> Outputs:
        """Run `batch`; `asvs` ``[U, D]`` are its ASV vectors where they were computed
        beforehand.
        """
        nucleotides = None
        if masks is not None and asvs is None and not self.reads_samples:
            nucleotides = self._masked_bases(batch, masks)
            return Outputs(
                nucleotides[:0], nucleotides[:0], nucleotides=nucleotides
            )  # no loss reads any vector
        if asvs is None:
            arriving = self.gather(
                self.encode_asvs(batch.tokens, batch.padded)[1], batch.ranks.asvs
            )
            if masks is not None and masks.tokens.shape[1] > 0:
                nucleotides = self._masked_bases(batch, masks)
            asvs = arriving()
        hidden = None if masks is None else masks.counts
        context, samples = self.encode_samples(asvs, batch, hidden)
        compared = distance = None
        if self.distance is not None:
            compared = self.distance.vectors(samples)
            distance = self.distance(compared, self.gather(compared, batch.ranks.samples)())
        read = samples if self.covariates is None else self.covariates(samples, batch)
        return Outputs(
            samples=samples,
            asvs=asvs,
            distance=distance,
            nucleotides=nucleotides,
            counts=None
            if self.count is None or hidden is None
            else logsigmoid(self.count(context).squeeze(-1)),
            read=read,
            target=None if self.target is None else self.target(read),
            labels=tuple(head(read) for head in self.labels),
            compared=compared,
            spread=self.scale[1],
        )

    @property
    def reads_samples(self) -> bool:
        """Whether any head reads sample vectors."""
        return any((self.distance, self.count, self.target, *self.labels))

    def _masked_bases(self, batch: Batch, masks: Masks) -> Float[Tensor, "masked 4"]:
        """Return the predictions of masked bases, from the masked copies alone."""
        patches, _ = self.encode_asvs(masks.tokens, batch.padded)
        return self.asv.nucleotide_logits(patches, batch.tokens.shape[1])[masks.where]


def _on_reference(batch: Batch) -> Float[Tensor, "B E"]:
    if batch.reference is None:
        raise ValueError("the samples of the batch are not placed on the reference of the model")
    return batch.reference
