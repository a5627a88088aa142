"""The task of pretraining on the engine: batches of samples, masks, losses and validation."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from aam.config import FineTuneConfig, PretrainConfig, TrainConfig
from aam.data.batch import Batch, Capacities, Shelved, on_shelves
from aam.data.loader import Loader, tree_on_device
from aam.data.rarefaction import EVALUATION
from aam.device.distributed import SINGLE, World
from aam.device.measure import stage
from aam.device.platform import platform_here
from aam.device.precision import Bf16Copy, autocast, resolve_precision
from aam.diversity.device import TreeOnDevice
from aam.engine.step import RunningMeans
from aam.engine.task import Metrics, Task, Terms
from aam.model.aam import Aam, Outputs
from aam.training.inference import AsvVectors
from aam.training.losses import loss_counts, loss_terms, penalties
from aam.training.masking import MASKED_ASVS, make_masks

# Processes that prepare batches for a GPU where nothing else is asked for.
GPU_WORKERS = 4
# Width from which a network in bf16 has bf16 weights with float32 masters; autocast below.
LEAST_COPIED_WIDTH = 512
# The map of predicted distances: two numbers whose rounding would show in every distance.
IN_FLOAT32 = ("distance.log_scale", "distance.log_power")

# The options of any training of a network.
NetworkOptions = PretrainConfig | FineTuneConfig


class Prepared(NamedTuple):
    """A batch on the device, and ASV vectors ``[U, D]`` computed beforehand."""

    batch: Shelved
    asvs: Tensor | None = None


def laid_out(
    train: TrainConfig,
    seed: int,
    capacities: Capacities | None,
    first: int,
    batch: Batch,
    place: int,
) -> Shelved:
    """Return a batch with its masks, laid out; `first + place` is its number in the run."""
    return on_shelves(batch, make_masks(batch, train, seed, first + place), capacities)


class AmpliconTask(Task):
    """Training of `model` to predict UniFrac, masked bases and masked counts.

    Parameters
    ----------
    model : Aam
    config : NetworkOptions
    train, validation : Loader
    device : torch.device
    asvs : AsvVectors, optional
        Vectors of every ASV of the table, where the encoder is frozen.
    world : World
    """

    lay_out = staticmethod(laid_out)

    def __init__(
        self,
        model: Aam,
        config: NetworkOptions,
        train: Loader,
        validation: Loader,
        device: torch.device,
        asvs: AsvVectors | None = None,
        world: World = SINGLE,
    ) -> None:
        self.model: Aam = model
        self.config, self.device, self.world = config, device, world
        if device.type == "cuda" and not train.workers:
            train = replace(train, workers=GPU_WORKERS)
        self.train, self.validation, self.asvs = train, validation, asvs
        self.capacities: Capacities | None = None
        self.tree: TreeOnDevice | None = None
        self.compiled: Callable[[nn.Module, Shelved], Terms] | None = None
        self.copied: Bf16Copy | None = None
        self.compiles_blocks = False
        if device.type == "cuda" and world.size == 1 and asvs is None and len(train.rows):
            self.use_constant_shapes()
        model.gather = world.gather_rows
        self.loss_weights = penalties(config.train, len(model.labels))
        self.loss_names = tuple(self.loss_weights)
        # What starts from an encoder ends no worse than that on the validation samples.
        self.validates_first = config.train.pretrained_encoder is not None

    def use_constant_shapes(self) -> None:
        """Give all batches a few shapes, so that a step can be captured and compiled, and compute
        distances on the device.
        """
        train = self.train
        masked = MASKED_ASVS if self.config.train.nuc_penalty > 0 else 0.0
        self.capacities = train.capacities(masked)
        if train.how.distances:
            self.tree = tree_on_device(train.study, self.device, train.batch_size)
        if self.tree is not None:
            self.train, self.validation = (
                replace(loader, how=replace(loader.how, distances=False))
                for loader in (train, self.validation)
            )

    def with_distances(self, batch: Shelved) -> Shelved:
        """Return a batch with its distances, where the device computes them; NaN for dummies."""
        if self.tree is None or batch.column is None or batch.weight is None:
            return batch
        feature, is_real = batch.column[batch.asv], batch.weight > 0
        with stage("UniFrac"):
            distance = self.tree.distances(feature, batch.row, batch.counts, len(is_real))
            distance = distance.masked_fill(~(is_real[:, None] & is_real), torch.nan)
        return replace(batch, distance=distance)

    @property
    def batches_per_epoch(self) -> int:  # type: ignore[override]
        """The number of batches of an epoch, on all ranks together."""
        return len(self.train)

    def batches(self, epoch: int, skip: int) -> Iterator[Shelved]:
        """Yield the batches of an epoch as a network reads them, made by the loader's workers."""
        steps = -(-len(self.train) // self.config.train.gradient_accumulation_steps)
        first = epoch * steps * self.config.train.gradient_accumulation_steps
        finish = partial(
            self.lay_out, self.config.train, self.config.runtime.seed, self.capacities, first
        )
        return self.train.epoch(epoch, skip, finish)

    def prepare(self, batch: Batch | Shelved, number: int) -> Prepared:
        """Return a batch on the device and, where the encoder is frozen, its ASV vectors."""
        if isinstance(batch, Batch):
            train, seed = self.config.train, self.config.runtime.seed
            batch = self.lay_out(train, seed, self.capacities, number, batch, 0)
        moved = batch.to(self.device)
        return Prepared(moved, None if self.asvs is None else self.asvs.select(moved))

    def outputs(self, network: nn.Module, prepared: Prepared) -> Outputs:
        """Outputs of the network for a batch."""
        with self._precision(network):
            return network(prepared.batch, asvs=prepared.asvs).full()  # type: ignore[no-any-return]

    def _precision(self, network: nn.Module) -> AbstractContextManager[object]:
        if self.copied is not None and network is self.copied.network:
            return nullcontext()
        return autocast(self.config.runtime, self.device, self.config.model.trains_in_bf16)

    @property
    def has_bf16_weights(self) -> bool:
        """Whether a step runs a bf16 copy of the network (`Bf16Copy`); autocast otherwise.

        Several ranks, frozen ASV encoders and blocks compiled one by one keep autocast.
        """
        model, runtime = self.config.model, self.config.runtime
        return (
            model.embedding_dim >= LEAST_COPIED_WIDTH
            and self.world.size == 1
            and self.asvs is None
            and not self.compiles_blocks
            and (self.device.type == "cpu" or platform_here(self.device).bf16)
            and resolve_precision(runtime, self.device, model.trains_in_bf16) == torch.bfloat16
        )

    def bf16_network(self) -> nn.Module:
        """Return the bf16 copy of the network with its present weights."""
        if self.copied is None:
            in_float32 = IN_FLOAT32 if self.model.distance is not None else ()
            self.copied = Bf16Copy(self.model, in_float32)
        return self.copied.refreshed()

    def terms(self, outputs: Outputs, batch: Shelved) -> Terms:
        """Return every loss of the outputs as ``name -> (sum, count)``."""
        return loss_terms(outputs, batch, self.train.study.depth)

    def losses(self, network: nn.Module, prepared: Prepared) -> Terms:
        """Return every loss of a batch as ``name -> (sum, count)``."""
        batch = self.with_distances(prepared.batch)
        if network.training and self.has_bf16_weights:
            network = self.bf16_network()
        if self.compiled is None or self.shape(prepared) is None or not network.training:
            return self.terms(self.outputs(network, prepared), batch)
        with self._precision(network):
            # What the graph does not read must not differ between batches.
            return self.compiled(network, replace(batch, sample_ids=()))

    def compile_losses(self, backend: str) -> None:
        """Let a compiler of torch make one graph of forward pass and losses for each constant
        shape; without constant shapes only the blocks of the encoders are compiled.
        """
        if self.capacities is None:
            self.compiles_blocks = True
            self.model.compile_encoders(backend)
            return

        def losses(network: nn.Module, batch: Shelved) -> Terms:
            return self.terms(network(batch).full(), batch)

        # The import takes a second. Each bucket of ASVs is compiled once.
        from torch._dynamo import config

        config.recompile_limit = max(config.recompile_limit, len(self.capacities.asvs) + 1)
        self.compiled = torch.compile(losses, fullgraph=True, dynamic=False, backend=backend)

    @stage("losses")
    def loss_counts(self, prepared: Prepared) -> dict[str, Tensor]:
        """Number of terms of each loss of a batch."""
        return loss_counts(self.with_distances(prepared.batch))

    def shape(self, prepared: Prepared) -> Hashable | None:
        """Return the shape of a batch of constant capacities; None for others."""
        whole = self.capacities is not None and prepared.batch.shelves == self.capacities.shelves
        return prepared.batch.shape() if whole else None

    def tensors(self, prepared: Prepared) -> dict[str, Tensor]:
        """Return the tensors of a batch."""
        return prepared.batch.tensors()

    def with_tensors(self, prepared: Prepared, tensors: dict[str, Tensor]) -> Prepared:
        """Return a batch with other tensors."""
        return prepared._replace(batch=replace(prepared.batch, **tensors))  # type: ignore[arg-type]

    def share_of_largest(self, prepared: Prepared) -> float:
        """Return the rows that the ASV encoder reads, as a share of those of the largest bucket."""
        largest = 0 if self.capacities is None else sum(self.capacities.asvs[-1])
        return min(len(prepared.batch.tokens) / max(largest, 1), 1.0)

    def blocks(self) -> Sequence[nn.Module]:
        """Return the blocks of both encoders; ranks call each of them equally often."""
        return [*self.model.asv.stack.blocks, *self.model.sample.stack.blocks]

    def samples(self, prepared: Prepared) -> int:
        """Return the samples of a batch on all ranks."""
        return sum(prepared.batch.ranks.samples) or len(prepared.batch.sample_ids)

    def validate(self, network: nn.Module) -> Metrics:
        """Return losses of the validation samples, in one fixed rarefaction with fixed masks."""
        if not len(self.validation):
            return {}
        means = RunningMeans(self.loss_names)
        for batch in self.validation.epoch(EVALUATION):
            means.add(self.losses(network, self.prepare(batch, EVALUATION)))
        return self._reduced(means)

    def _reduced(self, means: RunningMeans) -> Metrics:
        """Return the mean losses of all ranks."""
        reduced = means.all_reduce(self.world)
        return {f"val_{name}": value for name, value in reduced.read(self.loss_weights).items()}
