"""Pretraining: an encoder learns UniFrac, masked bases and masked counts, without labels; and what
all trainings of a network share.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from aam.config import FineTuneConfig, PretrainConfig, TrainConfig
from aam.data.batch import Batch, Capacities, PaddedBatch, pad_batch
from aam.data.loader import Collation, Loader, rarefied_batch, tree_on_device
from aam.data.rarefaction import EVALUATION
from aam.data.study import Study
from aam.device.distributed import SINGLE, World
from aam.device.measure import keep_freed_memory, stage
from aam.device.platform import Facts, platform_here
from aam.device.precision import Bf16Copy, autocast, resolve_precision
from aam.device.probe import describe_error
from aam.diversity.distances import TreeOnDevice
from aam.engine.ranks import gather_vectors, join_vectors
from aam.engine.run import TrainingFolder
from aam.engine.step import RunningMeans
from aam.engine.task import Encoded, Metrics, Task, Terms
from aam.engine.trainer import Trainer, fit
from aam.errors import InputError
from aam.model.aam import Aam, HeadConfig, Outputs
from aam.options import not_none
from aam.training.inference import Encoder, FittedNetwork
from aam.training.losses import (
    MASKED_ASVS,
    ClassWeights,
    loss_counts,
    loss_terms,
    make_masks,
    penalties,
)
from aam.typing import Rows

log = logging.getLogger("aam")

# Processes that prepare batches for a GPU where nothing else is asked for.
GPU_WORKERS = 4
# Width from which a network in bf16 has bf16 weights with float32 masters; autocast below.
LEAST_COPIED_WIDTH = 512
# The map of predicted distances: two numbers whose rounding would show in every distance.
IN_FLOAT32 = ("distance.log_scale", "distance.log_power")

# Share of the training draws of fewer reads than the depth, down to a quarter: more variety.
SHALLOW_DRAWS = 0.5

# The options of any training of a network.
NetworkOptions = PretrainConfig | FineTuneConfig


class Prepared(NamedTuple):
    """A batch on the device, and ASV vectors ``[U, D]`` computed beforehand."""

    batch: PaddedBatch
    asvs: Tensor | None = None


def _without_samples(batch: PaddedBatch) -> PaddedBatch:
    """Return a batch without what a graph does not read and what differs between batches."""
    return replace(batch, sample_ids=(), ranks=replace(batch.ranks, samples=()))


@dataclass(frozen=True)
class Layout:
    """Lays out batches with their masks, in constant capacities where they are given."""

    train: TrainConfig
    seed: int
    capacities: Capacities | None = None

    def __call__(self, batch: Batch, number: int) -> PaddedBatch:
        """Return a batch laid out; `number` is its number in the run."""
        return pad_batch(batch, make_masks(batch, self.train, self.seed, number), self.capacities)


def _compared(head: nn.Module | None, outputs: Outputs, columns: Tensor | None) -> Outputs:
    """Return outputs with the distances of this rank's samples to those of all ranks.

    The samples of all ranks are constants here, those of this rank too. Each pair of samples is
    compared twice, with half of its loss, so the sum over ranks is that of one rank. A sample
    receives only one of the two halves of its gradient: it is doubled.
    """
    vectors = outputs.compared
    if head is None or vectors is None or columns is None:
        return outputs
    return replace(outputs, distance=head(2 * vectors - vectors.detach(), columns)).full()


class AmpliconTask(Task):
    """Training of `model` to predict UniFrac, masked bases and masked counts.

    Parameters
    ----------
    model : Aam
    config : NetworkOptions
    train, validation : Loader
    device : torch.device
    asvs : float [F, D], optional
        Vectors of every ASV of the table, where the encoder is frozen.
    world : World
    """

    class_weights: ClassWeights = ()

    def __init__(
        self,
        model: Aam,
        config: NetworkOptions,
        train: Loader,
        validation: Loader,
        device: torch.device,
        asvs: Tensor | None = None,
        world: World = SINGLE,
    ) -> None:
        self.model: Aam = model
        self.config, self.device, self.world = config, device, world
        if device.type == "cuda" and not train.workers:
            train = replace(train, workers=GPU_WORKERS)
        self.train, self.validation, self.asvs = train, validation, asvs
        for loader in (train, validation):
            loader.check_division()
        # Each of several ranks compares its samples with those of all.
        self.is_joint = world.size > 1
        self.shares_vectors = self.is_joint and not config.runtime.fsdp
        model.compares = not self.is_joint
        self.layout = Layout(config.train, config.runtime.seed)
        self.tree: TreeOnDevice | None = None
        # The parts of a step that a compiler made, by the name of their function.
        self.compiled: dict[str, Callable[..., Any]] = {}
        self.copied: Bf16Copy | None = None
        self.compiles_blocks = False
        # Whether a run goes on without a compiler that fails.
        self.falls_back = False
        is_whole = world.size == 1 or self.shares_vectors
        if device.type == "cuda" and is_whole and asvs is None and len(train.rows):
            self.use_constant_shapes()
        self.loss_weights = penalties(config.train, len(model.labels))
        self.loss_names = tuple(self.loss_weights)
        # What starts from an encoder ends no worse than that on the validation samples.
        self.validates_first = config.train.pretrained_encoder is not None

    def use_constant_shapes(self) -> None:
        """Give all batches a few shapes, so that a step can be captured and compiled, and compute
        distances on the device where it can.
        """
        train = self.train
        if train.collation.distances:
            self.tree = tree_on_device(train.study, self.device, train.batch_size)
        masked = MASKED_ASVS if self.config.train.nuc_penalty > 0 else 0.0
        self.layout = replace(self.layout, capacities=train.capacities(masked))
        if self.tree is not None:
            self.train, self.validation = (
                replace(loader, collation=replace(loader.collation, distances=False))
                for loader in (train, self.validation)
            )

    @property
    def capacities(self) -> Capacities | None:
        """Sizes that all batches share, if any."""
        return self.layout.capacities

    @property
    def has_constant_shapes(self) -> bool:  # type: ignore[override]
        """Whether batches have such sizes."""
        return self.capacities is not None

    def with_distances(self, batch: PaddedBatch) -> PaddedBatch:
        """Return a batch with its distances, where the device computes them; NaN for dummies."""
        if self.tree is None or batch.distance is not None:
            return batch
        return self._measured(batch, self._slots(batch))

    def _slots(self, batch: PaddedBatch) -> dict[str, Tensor]:
        """Return the slots of this rank, from which distances are computed, and the weights of its
        samples, 0 for dummies.
        """
        weight, rank = not_none(batch.weight), batch.ranks.rank
        row = batch.row + rank * len(weight) if rank else batch.row
        feature = not_none(batch.column)[batch.asv]
        return {"weight": weight, "feature": feature, "row": row, "reads": batch.counts}

    def _measured(self, batch: PaddedBatch, slots: dict[str, Tensor]) -> PaddedBatch:
        """Return a batch with the distances of its samples to those of all ranks, whose slots are
        given.
        """
        rank, number = batch.ranks.rank, len(batch.ranks.samples) or 1
        weight, reads = slots["weight"], slots["reads"]
        rows, lengths = ((len(values) // number,) * number for values in (weight, reads))
        is_real = weight > 0
        with stage("UniFrac"):
            tree = not_none(self.tree)
            distance = tree.distances(slots["feature"], slots["row"], reads, rows, lengths, rank)
            own = is_real.chunk(number)[rank][:, None]
            distance = distance.masked_fill(~(own & is_real), torch.nan)
        return replace(batch, distance=distance)

    @property
    def batches_per_epoch(self) -> int:  # type: ignore[override]
        """The number of batches of an epoch, on all ranks together."""
        return len(self.train)

    def batches(self, epoch: int, skip: int) -> Iterator[PaddedBatch]:
        """Yield the batches of an epoch as a network reads them, made by the loader's workers."""
        steps = -(-len(self.train) // self.config.train.gradient_accumulation_steps)
        first = epoch * steps * self.config.train.gradient_accumulation_steps
        return self.train.epoch(epoch, skip, self.layout, first)

    def prepare(self, batch: Batch | PaddedBatch, number: int) -> Prepared:
        """Return a batch on the device and, where the encoder is frozen, its ASV vectors."""
        if isinstance(batch, Batch):
            batch = self.layout(batch, number)
        moved = batch.to(self.device)
        return Prepared(moved, None if self.asvs is None else self.asvs[not_none(moved.column)])

    def outputs(self, network: nn.Module, prepared: Prepared) -> tuple[Outputs, PaddedBatch]:
        """Return the outputs of the network for a batch, and the batch with its distances."""
        if not self.is_joint:
            batch = self.with_distances(prepared.batch)
            return self._forward(network, prepared), batch
        outputs = self._forward(network, prepared, join=partial(join_vectors, self.world))
        gathered = gather_vectors(self._message(prepared.batch, outputs), self.world)
        with self._precision(network):
            head: nn.Module | None = network.distance  # type: ignore[assignment]
            compared = _compared(head, outputs, gathered.get("vectors"))
        return compared, self._with_gathered(prepared.batch, gathered)

    def _forward(self, network: nn.Module, prepared: Prepared, **options: Any) -> Outputs:
        with self._precision(network):
            return network(prepared.batch, asvs=prepared.asvs, **options).full()  # type: ignore[no-any-return]

    def encode(self, network: nn.Module, prepared: Prepared) -> Encoded:
        """Encode the ASVs of this rank."""
        if prepared.asvs is not None:
            return Encoded({}, {})
        network, batch = self._trained(network), _without_samples(prepared.batch)
        with self._precision(network):
            encoded = self._run(self._encoded_asvs, prepared, network, batch)
        return Encoded(encoded, {"asvs": encoded["asvs"]})

    def compare(self, network: nn.Module, prepared: Prepared, shared: dict[str, Tensor]) -> Encoded:
        """Run the network on the samples of this rank, without their distances to other samples."""
        network, batch = self._trained(network, begins=False), _without_samples(prepared.batch)
        shared = shared or {"asvs": not_none(prepared.asvs)}
        with self._precision(network):
            values = self._run(self._encoded_samples, prepared, network, batch, shared)
        return self._message(prepared.batch, Outputs(**values))

    def _message(self, batch: PaddedBatch, outputs: Outputs) -> Encoded:
        """Return outputs with what other ranks need to compare their samples with those of this
        one.
        """
        if outputs.compared is None or (batch.distance is None and self.tree is None):
            return Encoded(outputs, {})
        message = {"vectors": outputs.compared}
        if batch.distance is None:
            message |= self._slots(batch)
        return Encoded(outputs, message)

    def _with_gathered(self, batch: PaddedBatch, gathered: dict[str, Tensor]) -> PaddedBatch:
        """Return a batch with its distances to the samples of all ranks."""
        return self._measured(batch, gathered) if "feature" in gathered else batch

    def joint_losses(
        self, network: nn.Module, prepared: Prepared, outputs: Outputs, gathered: dict[str, Tensor]
    ) -> Terms:
        """Return this rank's share of the losses of a batch of all ranks."""
        network, columns = self._trained(network, begins=False), gathered.get("vectors")
        batch = _without_samples(self._with_gathered(prepared.batch, gathered))
        arguments = network.distance, dict(vars(outputs)), batch, columns
        with self._precision(network):
            return self._run(self._joint_losses, prepared, *arguments)  # type: ignore[no-any-return]

    def _trained(self, network: nn.Module, begins: bool = True) -> nn.Module:
        """Return the network that a step runs: a bf16 copy where there is one, refreshed where the
        step begins.
        """
        if not (network.training and self.has_bf16_weights):
            return network
        # To refresh the copy later would change what backward needs.
        return self.bf16_network() if begins else not_none(self.copied).network

    def _precision(self, network: nn.Module) -> AbstractContextManager[object]:
        if self.copied is not None and network is self.copied.network:
            return nullcontext()
        return autocast(self.config.runtime, self.device, self.config.model.trains_in_bf16)

    @property
    def has_bf16_weights(self) -> bool:
        """Whether a step runs a bf16 copy of the network (`Bf16Copy`); autocast otherwise.

        FSDP2, frozen ASV encoders and blocks compiled one by one keep autocast.
        """
        model, runtime, device = self.config.model, self.config.runtime, self.device
        is_sharded = self.is_joint and not self.shares_vectors
        keeps_autocast = is_sharded or self.asvs is not None or self.compiles_blocks
        if keeps_autocast or model.embedding_dim < LEAST_COPIED_WIDTH:
            return False
        precision = resolve_precision(runtime, device, model.trains_in_bf16)
        return precision == torch.bfloat16 and (device.type == "cpu" or platform_here(device).bf16)

    def bf16_network(self) -> nn.Module:
        """Return the bf16 copy of the network with its present weights."""
        if self.copied is None:
            in_float32 = IN_FLOAT32 if self.model.distance is not None else ()
            self.copied = Bf16Copy(self.model, in_float32)
        return self.copied.refreshed()

    def terms(self, outputs: Outputs, batch: PaddedBatch) -> Terms:
        """Return every loss of the outputs as ``name -> (sum, count)``."""
        return loss_terms(outputs, batch, self.train.study.depth)

    def losses(self, network: nn.Module, prepared: Prepared) -> Terms:
        """Return every loss of a batch as ``name -> (sum, count)``."""
        if self.is_joint:
            return self.terms(*self.outputs(network, prepared))
        network = self._trained(network)
        batch = _without_samples(self.with_distances(prepared.batch))
        with self._precision(network):
            return self._run(self._losses, prepared, network, batch, prepared.asvs)  # type: ignore[no-any-return]

    # What is compiled, as one graph each: the losses of a single rank; those of several ranks in
    # three parts, between which they gather vectors.

    def _losses(self, network: nn.Module, batch: PaddedBatch, asvs: Tensor | None) -> Terms:
        return self.terms(network(batch, asvs=asvs).full(), batch)

    def _encoded_asvs(self, network: Aam, batch: PaddedBatch) -> dict[str, Tensor]:
        asvs, nucleotides = network.encode_batch(batch)
        return {"asvs": asvs} | ({} if nucleotides is None else {"nucleotides": nucleotides})

    def _encoded_samples(
        self, network: nn.Module, batch: PaddedBatch, shared: dict[str, Tensor]
    ) -> dict[str, Any]:
        # No compiler of torch 2.7 returns a frozen dataclass.
        return dict(vars(network(batch, **shared).full()))

    def _joint_losses(
        self,
        head: nn.Module | None,
        values: dict[str, Any],
        batch: PaddedBatch,
        columns: Tensor | None,
    ) -> Terms:
        return self.terms(_compared(head, Outputs(**values), columns), batch)

    def _run(self, part: Callable[..., Any], prepared: Prepared, *arguments: Any) -> Any:
        """Run a part of a step on a batch, compiled where it has a constant shape, unless its
        compiler fails; no other rank waits in it.
        """
        is_compiled = part.__name__ in self.compiled and self.model.training
        if not is_compiled or self.shape(prepared) is None:
            return part(*arguments)
        try:
            return self.compiled[part.__name__](*arguments)
        except RuntimeError as error:
            # It is loaded: it has compiled.
            if not self.falls_back or not isinstance(error, torch._dynamo.exc.TorchDynamoException):
                raise
            log.warning("torch.compile fails, steps go on without: %s", describe_error(error))
            self.compiled, self.compiler = {}, ""
        return part(*arguments)

    def compile_losses(self, backend: str) -> None:
        """Let a compiler of torch make one graph of forward pass and losses for each constant
        shape, or three for several ranks; without constant shapes only the blocks of the encoders
        are compiled.
        """
        self.compiler = backend
        if self.capacities is None:
            self.compiles_blocks = True
            self.model.compile_encoders(backend)
            return
        # The import takes a second. Each bucket of ASVs is compiled once.
        from torch._dynamo import config

        config.recompile_limit = max(config.recompile_limit, len(self.capacities.asvs) + 1)
        parts: list[Callable[..., Any]] = [self._losses]
        if self.is_joint:
            parts = [self._encoded_asvs, self._encoded_samples, self._joint_losses]
        for part in parts:
            compiled = torch.compile(part, fullgraph=True, dynamic=False, backend=backend)
            self.compiled[part.__name__] = compiled

    @stage("losses")
    def loss_counts(self, prepared: Prepared) -> dict[str, Tensor]:
        """Number of terms of each loss of a batch; several ranks know that of its pairs."""
        batch = prepared.batch if self.is_joint else self.with_distances(prepared.batch)
        return loss_counts(batch, self.class_weights)

    def shape(self, prepared: Prepared) -> Hashable | None:
        """Return the shape of a batch of constant capacities; None for others."""
        return prepared.batch.shape() if prepared.batch.is_constant else None

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


# --- start and end of a network -------------------------------------------------------------------

# Samples that vectors and losses are scaled by.
SCALE_SAMPLES = 256


def create_network(
    study: Study,
    heads: HeadConfig,
    config: NetworkOptions,
    encoder: Encoder | None = None,
    new_parts: tuple[str, ...] = (),
) -> Aam:
    """A network with the weights of an encoder, except for `new_parts`, or with new ones.

    Raises
    ------
    InputError
        The encoder fits no weight.
    """
    torch.manual_seed(config.runtime.seed)
    with stage("model creation"):
        network = Aam(config.model, study.depth, heads, study.reference_width)
    if encoder is not None:
        load_matching_weights(network, encoder, new_parts)
    return network


def scale_network(
    network: Aam,
    study: Study,
    train_rows: Rows,
    encoder: Encoder | None = None,
    reads_anew: bool = False,
) -> None:
    """Scale what is new in a network on a first batch of the training samples; with `reads_anew`
    also the numbers on a reference.
    """
    batch = scale_batch(study, train_rows, Collation(distances=False))
    if encoder is None or not encoder.network.reads_samples:
        # An encoder of masked bases has learned nothing of samples.
        network.standardize(batch)
        return
    if reads_anew:
        network.standardize_reference(batch)
    if encoder.network.distance is None:
        network.standardize_distance(batch)


def make_loaders(
    study: Study,
    rows: tuple[Rows, Rows],
    config: NetworkOptions,
    collation: Collation,
    world: World = SINGLE,
    **training: float,
) -> tuple[Loader, Loader]:
    """The loaders of the training and of the validation samples; `training` are further options of
    `Collation` for the former.
    """
    size, workers = config.train.samples_per_batch, config.runtime.num_workers
    varied = replace(collation, **training)  # type: ignore[arg-type]
    train = Loader(study, rows[0], size, True, workers, collation=varied, world=world)
    validation = Loader(study, rows[1], size, False, workers, collation=collation, world=world)
    return train, validation


def train(
    task: AmpliconTask,
    config: NetworkOptions,
    study: Study,
    heads: HeadConfig,
    folder: TrainingFolder | None,
) -> FittedNetwork:
    """Train the network of a task to its end, in memory or in the folder of a run, from its
    checkpoint if there is one.
    """
    model, machine = task.model, config.runtime
    model.bound_memory(machine.asv_chunk_size, machine.gradient_checkpointing)
    if task.device.type == "cpu":
        keep_freed_memory()
    try:
        if folder is None:
            trainer = Trainer(task, config.train, machine)
            trainer.fit()
        else:
            follow_decisions(task, folder.run.record["decisions"])
            trainer = fit(task, config.train, folder)
    finally:
        task.train.close()
    # The trained network may be sharded.
    best = Aam(config.model, study.depth, heads, study.reference_width).to(task.device)
    best.load_state_dict(trainer.best_weights)
    return FittedNetwork(best.eval(), heads, trainer.last_weights, trainer.progress.best_epoch)


def follow_decisions(task: AmpliconTask, decisions: Facts) -> None:
    """Let a task use what the probe found to work (`aam.training.decisions`)."""
    verdicts = {name: decisions.get(name, {"ok": True}) for name in ("workers", "capture")}
    if not verdicts["workers"]["ok"]:
        task.train = replace(task.train, workers=0)
    task.is_tried = "capture" in decisions and verdicts["capture"]["ok"]
    if not verdicts["capture"]["ok"]:
        task.refusal = f"the probe says: {verdicts['capture']['reason']}"
    if compiler := decisions.get("compiler"):
        task.compile_losses(compiler)
        task.falls_back = True


def scale_batch(study: Study, train_rows: Rows, collation: Collation) -> Batch:
    """The batch that vectors and losses are scaled by: of the first samples, or from each study."""
    rows = train_rows[:SCALE_SAMPLES]
    if len(study.parts) > 1:
        ordered = sorted(train_rows.tolist(), key=study.origin.__getitem__)
        rows = np.array(ordered[:: max(1, len(ordered) // SCALE_SAMPLES)], np.int64)
    return rarefied_batch(study, rows, 0, collation)


def _scale(distance: Tensor | None) -> tuple[float, float]:
    """Mean and standard deviation of distances [B, B], each pair once, without NaN."""
    if distance is None:
        return 0.0, 1.0
    rows, columns = torch.triu_indices(len(distance), len(distance), 1)
    values = distance[rows, columns]
    values = values[torch.isfinite(values)].double()
    if len(values) < 2 or not values.std() > 0:
        return 0.0, 1.0
    return float(values.mean()), float(values.std())


def encoder_heads(study: Study, options: TrainConfig, train_rows: Rows) -> HeadConfig:
    """The heads of an encoder, scaled by the distances of the training samples."""
    counts = options.count_penalty > 0
    if study.metric is None or options.penalty <= 0:
        return HeadConfig(counts=counts)
    batch = scale_batch(study, train_rows, Collation(tokens=False))
    return HeadConfig(metric=study.metric, scale=_scale(batch.distance), counts=counts)


def load_matching_weights(network: Aam, encoder: Encoder, new_parts: tuple[str, ...] = ()) -> None:
    """Copy the weights of an encoder that match in name and shape, except for `new_parts`.

    Raises
    ------
    InputError
        No weight matches.
    """
    encoder_weights, weights = encoder.network.state_dict(), network.state_dict()
    shapes = {name: value.shape for name, value in weights.items()}
    shared = {
        name: value
        for name, value in encoder_weights.items()
        if shapes.get(name) == value.shape and not name.startswith(new_parts)
    }
    if not shared:
        raise InputError(
            f"{encoder.source}: no weight of it fits this model; pretrain again with the same sizes"
        )
    network.load_state_dict({**weights, **shared})
    new, ignored = weights.keys() - shared, encoder_weights.keys() - shared
    for title, names in (("loaded", shared.keys()), ("new", new), ("ignored", ignored)):
        heads = sorted({name.split(".")[0] for name in names})
        listed = f" ({', '.join(heads)})" if heads else ""
        log.info("%s: %d tensors %s%s", encoder.source, len(names), title, listed)


# --- pretraining ----------------------------------------------------------------------------------


def pretraining_loaders(
    study: Study, rows: tuple[Rows, Rows], config: NetworkOptions, world: World = SINGLE
) -> tuple[Loader, Loader]:
    """The loaders of the training and of the validation samples."""
    # A precomputed distance would not be that of a shallow draw.
    shallow = SHALLOW_DRAWS if study.has_tree or len(study.parts) > 1 else 0.0
    collation = Collation(distances=study.metric is not None and config.train.penalty > 0)
    return make_loaders(study, rows, config, collation, world, shallow=shallow)


def fit_encoder(
    study: Study,
    rows: tuple[Rows, Rows],
    config: PretrainConfig,
    device: torch.device,
    encoder: Encoder | None,
    folder: TrainingFolder,
) -> FittedNetwork:
    """Pretrain an encoder in the folder of a run.

    Parameters
    ----------
    study : Study
    rows : pair of int64 [n]
        Rows of the training and of the validation samples; the latter choose the best epoch.
    config : PretrainConfig
        `model.max_bp` is set.
    device : torch.device
    encoder : Encoder, optional
        The pretrained network that it starts from.
    folder : TrainingFolder

    Raises
    ------
    InputError
        The pretrained encoder fits no weight.
    """
    heads, world = encoder_heads(study, config.train, rows[0]), folder.run.world
    network = create_network(study, heads, config, encoder)
    if folder.state is None:
        scale_network(network, study, rows[0], encoder)
    else:
        network.load_state_dict(folder.state.part("model"))
    loaders = pretraining_loaders(study, rows, config, world)
    task = AmpliconTask(network.to(device), config, *loaders, device, world=world)
    return train(task, config, study, heads, folder)
