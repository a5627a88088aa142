"""The task: the interface between the engine and what it trains."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.engine.schedule import learning_rate
from aam.engine.step import make_optimizer
from aam.options import TrainingOptions

# Losses by name, each as a sum and what it counts.
Terms = dict[str, tuple[Tensor, Tensor]]

Metrics = dict[str, float]


class Encoded(NamedTuple):
    """A batch after a part of the forward pass, and what other ranks need of it.

    Attributes
    ----------
    outputs : Any
        What the task makes of it.
    message : dict of str to tensor
        What goes to all ranks, which have tensors of the same shapes.
    """

    outputs: Any
    message: dict[str, Tensor]


class Task:
    """A model with its batches, losses and metrics.

    A subclass sets `model` and `batches_per_epoch` and overrides `batches` and `losses`; everything
    else has a default. The engine never looks into a batch: it is whatever the task makes of it.

    Attributes
    ----------
    model : nn.Module
        Its weights are saved, averaged and restored.
    batches_per_epoch : int
        Batches that `batches` yields for an epoch, before accumulation.
    device : torch.device
    loss_names : tuple of str
        Every loss that any rank may have, in one order on all ranks.
    loss_weights : mapping of str to float
        Weight of each loss in the sum that is minimized; 1 for a name that is not there.
    best_metric : str
        Key of `validate`'s metrics that decides which epoch is best; without it the last epoch is.
    higher_is_better : bool
    validates_first : bool
        Whether the model is judged before training as well, as epoch 0.
    splits_batches : bool
        Whether, with several ranks, each rank holds its own samples of a batch.
    steps_alone : bool
        Whether, with several ranks, each rank trains parameters of its own and waits for no other
        rank in a step; `gather` brings them together.
    shares_vectors : bool
        Whether several ranks exchange vectors and gradients in a step (`RankSteps`), by `encode`,
        `compare` and `joint_losses`; else `parallelize` spreads the model over them.
    refusal : str
        Why steps are not captured though they could be: the probe's reason. Empty where they may
        be.
    is_tried : bool
        Whether the probe has compared captured with eager steps.
    has_constant_shapes : bool
        Whether batches have a few shapes, so that steps may be captured.
    compiler : str
        Compiler of torch that made the forward pass faster; empty without.
    units : mapping of str to str
        Units of metrics, by name, for the log.
    """

    model: nn.Module
    batches_per_epoch: int
    device: torch.device = torch.device("cpu")
    loss_names: tuple[str, ...] = ()
    loss_weights: Mapping[str, float] = {}
    best_metric: str = "val_loss"
    higher_is_better: bool = False
    validates_first: bool = False
    splits_batches: bool = True
    steps_alone: bool = False
    shares_vectors: bool = False
    refusal: str = ""
    is_tried: bool = False
    has_constant_shapes: bool = False
    compiler: str = ""
    units: Mapping[str, str] = {}

    @property
    def network(self) -> nn.Module:
        """The module that a step runs: the model, or a wrapper of it."""
        return self.model

    def batches(self, epoch: int, skip: int) -> Iterator[Any]:
        """Yield the batches of `epoch` after the first `skip`.

        The same epoch gives the same batches, whenever and however often it is asked for: resume
        relies on it.
        """
        raise NotImplementedError

    def prepare(self, batch: Any, number: int) -> Any:
        """Return a batch as `losses` takes it, on the device; `number` names it among all batches
        of the run.
        """
        return batch

    def losses(self, network: nn.Module, batch: Any) -> Terms:
        """Return every loss of a prepared batch as ``name -> (sum, count)``."""
        raise NotImplementedError

    def encode(self, network: nn.Module, batch: Any) -> Encoded:
        """Compute what ranks share: each its part, as tensors by name.

        The message has some of these tensors. They go to all ranks, and their gradients come back
        from all.
        """
        raise NotImplementedError

    def compare(self, network: nn.Module, batch: Any, shared: dict[str, Tensor]) -> Encoded:
        """Run the forward pass from the tensors that `encode` returns, those of the message of all
        ranks, as far as it needs no other rank.
        """
        raise NotImplementedError

    def joint_losses(
        self, network: nn.Module, batch: Any, outputs: Any, gathered: dict[str, Tensor]
    ) -> Terms:
        """Return this rank's share of the losses of a batch of all ranks, from what `compare`
        returns.

        `gathered` has what ranks sent then, without gradient: the sum over ranks of the gradients
        of these shares must be the gradient of the whole.
        """
        raise NotImplementedError

    def loss_counts(self, batch: Any) -> dict[str, Tensor] | None:
        """Return the counts of `losses` before the network has run, so that batches of a step weigh
        as one.

        Without them each batch of a step, and each rank, has the same weight.
        """
        return None

    def samples(self, batch: Any) -> int:
        """Number of samples of a prepared batch on all ranks."""
        return 1

    def shape(self, batch: Any) -> Hashable | None:
        """Key shared by prepared batches of one shape; None: do not capture them."""
        return None

    def tensors(self, batch: Any) -> dict[str, Tensor]:
        """Return the tensors of a prepared batch, which a captured step reads."""
        return {}

    def with_tensors(self, batch: Any, tensors: dict[str, Tensor]) -> Any:
        """Return a prepared batch with other tensors of the same shapes."""
        raise NotImplementedError

    def share_of_largest(self, batch: Any) -> float:
        """Return the size of a prepared batch as a share of that of the largest one of the run."""
        return 1.0

    def parts(self) -> Sequence[nn.Module]:
        """Return the modules whose gradients are clipped, each to a norm of its own."""
        return [self.model]

    def blocks(self) -> Sequence[nn.Module]:
        """Return the parts of the model that ``--fsdp`` gathers one at a time (`parallelize`)."""
        return []

    def configure_optimizer(self, options: TrainingOptions) -> Optimizer:
        """Return the optimizer of the model.

        A task may give learning rates of its own, or change the model after each step by torch's
        `Optimizer.register_step_post_hook`.
        """
        return make_optimizer(self.model, options)

    def learning_rate(self, options: TrainingOptions, step: int, total: int) -> float:
        """Return the learning rate of `step` (from 0) in a run of `total` steps."""
        return learning_rate(options, step, total)

    def gather(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return values by name of parameter with those that other ranks train as these have them
        (`steps_alone`).

        The values are weights, their average, or the state of the optimizer, called
        ``PARAMETER:NAME``.
        """
        return values

    def start_epoch(self, epoch: int, optimizer: Optimizer) -> None:
        """Prepare the model for `epoch`, for example by unfreezing some of it."""

    def validate(self, network: nn.Module) -> Metrics:
        """Return metrics of held-out samples, empty without any; the network is in evaluation
        mode.
        """
        return {}

    def state(self) -> dict[str, Any]:
        """Return the facts of the task that a checkpoint keeps, as values of JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Load the facts that `state` returned."""
