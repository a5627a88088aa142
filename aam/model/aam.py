"""The whole network and its heads: a batch in, vectors and predictions out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node
from torch.utils.checkpoint import checkpoint

from aam.config import CovariateConfig, ModelConfig
from aam.data.batch import AnyBatch, Batch, Masks, PaddedBatch, pad_batch
from aam.device.shapes import Float, UInt8
from aam.model.asv import AsvEncoder
from aam.model.layers import SequenceBins
from aam.model.sample import SampleEncoder, Slots
from aam.options import not_none

# Patches that a CPU encodes at a time, so that what one layer writes is in its cache for the next.
CACHED_PATCHES = 4096
# Logarithm of the relative abundance of a typical ASV: a sample has about 50.
TYPICAL_LOG_SHARE = -4.0


# Smallest Euclidean distance: the map of the distance head has no gradient at 0.
LEAST = 1e-3


@dataclass(frozen=True)
class HeadConfig:
    """Heads of a model: the UniFrac metric (or none), counts, and the target columns.

    `scale` holds mean and standard deviation of the distance in the training samples. `levels` are
    the categories of each covariate, unknown included; `numbers` counts the numeric covariates.
    """

    metric: str | None = None
    scale: tuple[float, float] = (0.0, 1.0)
    counts: bool = False
    n_targets: int = 0
    n_classes: tuple[int, ...] = ()
    levels: tuple[int, ...] = ()
    numbers: int = 0
    covariates: CovariateConfig = field(default_factory=CovariateConfig)


class DistanceHead(nn.Module):
    """Predicted UniFrac from sample vectors: a learned monotone map of their Euclidean distance.

    With x the distance over a learned scale and p > 0 a learned power, the prediction is
    ``1 - exp(-x^p)`` for metrics that end at 1 and ``x^p`` for unnormalized weighted UniFrac.
    """

    def __init__(self, width: int, bounded: bool) -> None:
        super().__init__()
        self.bounded = bounded
        self.project = nn.Linear(width, width, bias=False)
        self.log_scale = nn.Parameter(torch.tensor([float(2 * width)]).log() / 2)
        self.log_power = nn.Parameter(torch.zeros(1))

    def vectors(self, samples: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Return the vectors ``[B, D]`` whose distances are predicted."""
        return self.project(samples)  # type: ignore[no-any-return]

    @torch.no_grad()
    def standardize(self, vectors: Float[Tensor, "B D"], mean: float) -> None:
        """Scale the map so that the predictions between these `vectors` center on `mean`."""
        if len(vectors) < 2:
            return
        is_pair = ~torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
        typical = self._euclidean(vectors, vectors)[is_pair].median().clamp_min(LEAST)
        mean = min(max(mean, 0.01), 0.99) if self.bounded else max(mean, 0.01)
        target = -math.log1p(-mean) if self.bounded else mean
        self.log_scale.copy_((typical / target).log())

    @staticmethod
    def _euclidean(
        rows: Float[Tensor, "R D"], columns: Float[Tensor, "C D"]
    ) -> Float[Tensor, "R C"]:
        # Differences first: as squares and a product, near samples would differ by rounding alone.
        kind = torch.promote_types(rows.dtype, torch.float32)
        return torch.cdist(
            rows.to(kind), columns.to(kind), compute_mode="donot_use_mm_for_euclid_dist"
        )

    def forward(
        self, rows: Float[Tensor, "R D"], columns: Float[Tensor, "C D"]
    ) -> Float[Tensor, "R C"]:
        """Return distances ``[R, C]`` between projected vectors ``[R, D]`` and ``[C, D]``."""
        euclidean = self._euclidean(rows, columns).clamp_min(LEAST)
        x = torch.exp(self.log_power.exp() * (euclidean.log() - self.log_scale))
        return -torch.expm1(-x) if self.bounded else x


class Readout(nn.Module):
    """A linear model from ``[..., D]`` to ``[..., out]``, plus a hidden layer that starts at 0."""

    def __init__(self, width: int, out: int, start: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, out, bias=False)
        nn.init.constant_(self.linear.bias, start)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows out"]:
        """Return the outputs ``[..., out]`` of ``[..., D]``."""
        hidden = F.gelu(self.hidden(self.norm(x)), approximate="tanh")
        return self.linear(x) + self.out(hidden)  # type: ignore[no-any-return]


class CovariateFusion(nn.Module):
    """Joins covariates to sample vectors ``[B, D]``, just before the target heads.

    The vector of a covariate is that of its category (0 is unknown), or linear in its value and in
    whether that is missing. With c all of them concatenated and h the sample vector: ``concat``
    gives [h; c], ``add`` gives h + W c.
    """

    def __init__(self, width: int, heads: HeadConfig) -> None:
        super().__init__()
        size = heads.covariates.categorical_embed_dim
        flat = size * (len(heads.levels) + heads.numbers)
        self.categories = nn.ModuleList(nn.Embedding(levels, size) for levels in heads.levels)
        self.numbers = nn.ModuleList(nn.Linear(2, size) for _ in range(heads.numbers))
        added = heads.covariates.categorical_fusion == "add"
        self.width = width if added else width + flat
        self.project = nn.Linear(flat, width) if added else None

    def forward(self, samples: Float[Tensor, "B D"], batch: AnyBatch) -> Float[Tensor, "B W"]:
        """Return the vectors ``[B, W]`` that target heads read."""
        category, covariate = not_none(batch.category), not_none(batch.covariate)
        missing = covariate.isnan()
        values = covariate.masked_fill(missing, 0).to(samples.dtype)
        pairs = torch.stack([values, missing.to(samples.dtype)], dim=2)
        vectors = [table(category[:, column]) for column, table in enumerate(self.categories)]
        vectors += [layer(pairs[:, column]) for column, layer in enumerate(self.numbers)]
        flat = torch.cat(vectors, dim=1)
        if self.project is None:
            return torch.cat([samples, flat], dim=1)
        return samples + self.project(flat)  # type: ignore[no-any-return]


def _known_to_torch(kind: type[Any]) -> type[Any]:
    """FSDP2 looks for gradients in what is returned; torch 2.7 sees into no dataclass that it does
    not know.
    """
    register_pytree_node(
        kind, lambda made: ([*vars(made).values()], None), lambda values, _: kind(*values)
    )
    return kind


@_known_to_torch
@dataclass(frozen=True)
class Outputs:
    """Vectors and predictions of one batch; a head that the model lacks leaves None.

    `samples` [B, D], `asvs` [U, D], `distance` [B, B], `nucleotides` [M, L, 4] (logits of A, C, G,
    T at each position of the masked copies), `counts` [T] (log of relative abundance of each slot),
    `target` [B, targets] (transformed units), `labels` one [B, classes] of logits for each class
    column; `read` [B, W] are the vectors that target heads read; `compared` [B, C] those whose
    distances are predicted. `spread` is the standard deviation of the distance, the unit of its
    loss.
    """

    samples: Float[Tensor, "B D"]
    asvs: Float[Tensor, "U D"]
    distance: Float[Tensor, "B all_B"] | None = None
    nucleotides: Float[Tensor, "M L 4"] | None = None
    counts: Float[Tensor, " T"] | None = None
    read: Float[Tensor, "B W"] | None = None
    target: Float[Tensor, "B targets"] | None = None
    labels: tuple[Float[Tensor, "B _"], ...] = ()
    compared: Float[Tensor, "B C"] | None = None
    spread: float = 1.0

    def full(self) -> Outputs:
        """Return the outputs in float32 where they were in half precision, as losses need them."""
        half = (torch.float16, torch.bfloat16)
        values = {
            name: value for name in _TENSORS if isinstance(value := getattr(self, name), Tensor)
        }
        in_full = {name: value.float() for name, value in values.items() if value.dtype in half}
        return replace(self, **in_full)  # type: ignore[arg-type]


# Compilers of torch before 2.13 cannot read the fields of a frozen dataclass.
_TENSORS = tuple(field.name for field in fields(Outputs))


class Aam(nn.Module):
    """ASV encoder, sample encoder and the heads named by `heads`.

    `bound_memory`, called from outside, changes no result. Without `compares`, set from outside,
    distances are left out: who has the vectors of all ranks computes them by `distance`.

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
        self.compares = True

    def bound_memory(self, asv_chunk: int | None, recompute: bool) -> None:
        """Encode at most `asv_chunk` ASVs at a time; with `recompute` keep no activations for
        backward.

        Chunks are recomputed whole: a block inside one would otherwise be computed a third time.
        """
        self.asv_chunk, self.recompute_chunks = asv_chunk, recompute and asv_chunk is not None
        self.asv.stack.recompute = recompute and asv_chunk is None
        self.sample.stack.recompute = recompute

    def compile_encoders(self, compiler: str) -> None:
        """Let a compiler of torch make the blocks of both encoders faster; names of weights stay.

        Only the blocks: around them the strides of a batch change, and each change would compile
        anew.
        """
        for stack in (self.asv.stack, self.sample.stack):
            stack.compile(backend=compiler, dynamic=True)

    def encode_asvs(
        self, tokens: UInt8[Tensor, "rows L"], has_short_asvs: bool, copies: int = 0
    ) -> tuple[Float[Tensor, "rows P D"], Float[Tensor, "U D"]]:
        """Return patch vectors of all rows, and the vectors of all ASVs but the last `copies`.

        The rows are encoded a chunk at a time.
        """
        rows, length = tokens.shape
        encoded = []
        for chunk in tokens.split(self._asvs_at_once(rows, length, tokens.device)):
            if torch.is_grad_enabled() and self.recompute_chunks:
                patches = checkpoint(
                    self.asv.contextual,
                    chunk,
                    has_short_asvs,
                    use_reentrant=False,
                    preserve_rng_state=self.asv.stack.draws,
                )
            else:
                patches = self.asv.contextual(chunk, has_short_asvs)
            encoded.append(patches)
        x = encoded[0] if len(encoded) == 1 else torch.cat(encoded)
        asvs = tokens.shape[0] - copies
        return x, self.asv.vectors(x[:asvs], tokens[:asvs], has_short_asvs)

    def _asvs_at_once(self, rows: int, length: int, device: torch.device) -> int:
        if self.asv_chunk is not None:
            return self.asv_chunk
        if device.type != "cpu":
            return max(rows, 1)
        return max(CACHED_PATCHES // max(self.asv.patches(length), 1), 1)

    def encode_batch(
        self, batch: PaddedBatch
    ) -> tuple[Float[Tensor, "U D"], Float[Tensor, "M L 4"] | None]:
        """Return the vectors of the ASVs of this rank, and the scores of the bases of their masked
        copies.
        """
        copies, nucleotides = batch.masked, None
        patches, asvs = self.encode_asvs(batch.tokens, batch.has_short_asvs, copies)
        if batch.bases is not None:
            masked = patches[patches.shape[0] - copies :]
            nucleotides = self.asv.nucleotide_logits(masked, batch.bases.shape[1])
        return asvs, nucleotides

    def encode_samples(
        self, asvs: Float[Tensor, "U D"], batch: PaddedBatch
    ) -> tuple[Float[Tensor, "T D"], Float[Tensor, "B D"]]:
        """Return ASVs in context ``[T, D]`` and sample vectors ``[B, D]``."""
        slots = slots_of(batch)
        context, attended = self.sample(asvs, slots, batch.hidden)
        samples = attended + self.sample.contents(asvs, slots)
        if self.reference is not None:
            numbers = _on_reference(batch).to(self.reference.weight.dtype)
            samples = samples + self.reference(numbers)
        return context, samples

    @torch.no_grad()
    def standardize(self, batch: Batch) -> None:
        """Center and scale ASV and sample vectors on a first batch, before any training.

        At initialization the vectors of different ASVs, and more so of samples, are almost equal,
        and the first epochs are spent on telling them apart (docs/adr/004-standardized-start.md).
        """
        rows, length = batch.tokens.shape
        at_once = self._asvs_at_once(rows, length, batch.tokens.device)
        self.asv.standardize(batch.tokens.split(at_once), batch.has_short_asvs)
        asvs = self.encode_asvs(batch.tokens, batch.has_short_asvs)[1]
        self.sample.standardize(asvs, slots_of(pad_batch(batch)))
        self.standardize_reference(batch)
        self.standardize_distance(batch, asvs)

    @torch.no_grad()
    def standardize_distance(self, batch: Batch, asvs: Float[Tensor, "U D"] | None = None) -> None:
        """Centre and scale a new distance head on a first batch, whose ASV vectors may be known."""
        if self.distance is not None:
            asvs = self.encode_asvs(batch.tokens, batch.has_short_asvs)[1] if asvs is None else asvs
            _, samples = self.encode_samples(asvs, pad_batch(batch))
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
        self,
        batch: Batch | PaddedBatch,
        masks: Masks | None = None,
        asvs: Float[Tensor, "all_U D"] | None = None,
        nucleotides: Float[Tensor, "M L 4"] | None = None,
        join: Callable[[Tensor], Tensor] = lambda asvs: asvs,
    ) -> Outputs:
        """Run a batch.

        Parameters
        ----------
        batch : Batch or PaddedBatch
            A `Batch` is laid out here.
        masks : Masks, optional
            What is withheld of a `Batch`.
        asvs : float [all_U, D], optional
            Vectors of the distinct ASVs that were computed beforehand.
        nucleotides : float [M, L, 4], optional
            Scores of masked bases that were computed with them.
        join : callable
            Returns the ASV vectors of all ranks for those of this one.
        """
        if isinstance(batch, Batch):
            batch = pad_batch(batch, masks)
        if asvs is None:
            asvs, nucleotides = self.encode_batch(batch)
            asvs = join(asvs)
        if nucleotides is not None and not self.reads_samples:
            return Outputs(asvs[:0], asvs, nucleotides=nucleotides)
        context, samples = self.encode_samples(asvs, batch)
        compared = distance = None
        if self.distance is not None:
            compared = self.distance.vectors(samples)
            if self.compares:
                distance = self.distance(compared, compared)
        read = samples if self.covariates is None else self.covariates(samples, batch)
        return Outputs(
            samples=samples,
            asvs=asvs,
            distance=distance,
            nucleotides=nucleotides,
            counts=None
            if self.count is None or batch.hidden is None
            else F.logsigmoid(self.count(context).squeeze(-1)),
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


def slots_of(batch: PaddedBatch) -> Slots:
    """Return the slots of the samples of a batch."""
    bins = SequenceBins(batch.bins, batch.counts > 0)
    return Slots(batch.asv, batch.row, batch.counts, bins)


def _on_reference(batch: AnyBatch) -> Float[Tensor, "B E"]:
    if batch.reference is None:
        raise ValueError("the samples of the batch are not placed on the reference of the model")
    return batch.reference
