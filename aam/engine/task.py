"""The task: the interface between the engine and what it trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.engine.losses import Terms

Metrics = dict[str, float]


class Task:
    """A model with its batches, losses and metrics.

    A subclass sets `model` and `batches_per_epoch` and overrides `batches` and `losses`; everything else has a
    default. The engine never looks into a batch: it is whatever the task makes of it.

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
    splits_model : bool
        Whether, with several ranks, each rank trains the parameters that `owner` gives it, and waits for no other
        rank in a step.
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
    splits_model: bool = False

    @property
    def network(self) -> nn.Module:
        """The module that a step runs: the model, or a wrapper of it."""
        return self.model

    def batches(self, epoch: int, skip: int) -> Iterator[Sequence[Any]]:
        """Yield the batches of `epoch` after the first `skip`, each as a sequence of one or more parts.

        The same epoch gives the same batches, whenever and however often it is asked for: resume relies on it.
        """
        raise NotImplementedError

    def prepare(self, batch: Any, number: int) -> Any:
        """Return a batch as `losses` takes it, on the device; `number` names it among all batches of the run."""
        return batch

    def losses(self, network: nn.Module, batch: Any) -> Terms:
        """Return every loss of a prepared batch as ``name -> (sum, count)``."""
        raise NotImplementedError

    def loss_counts(self, batch: Any) -> dict[str, Tensor] | None:
        """Return the counts of `losses` before the network has run, so that batches of a step weigh as one.

        Without them each batch of a step, and each rank, weighs alike.
        """
        return None

    def samples(self, batch: Any) -> int:
        """Return how many samples a prepared batch holds on all ranks."""
        return 1

    def work(self, batch: Any) -> int | None:
        """Return the arithmetic of a prepared batch in any unit, to report the imbalance of ranks; None: not known."""
        return None

    def parts(self) -> Sequence[nn.Module]:
        """Return the modules whose gradients are clipped, each to a norm of its own."""
        return [self.model]

    def owner(self, name: str) -> int:
        """Return the rank that trains the parameter `name`, where ranks train different ones (`splits_model`)."""
        return 0

    def end_step(self, step: int, optimizer: Optimizer) -> None:
        """Change the model after step `step` of the optimizer, for example by starting unused units anew."""

    def start_epoch(self, epoch: int, optimizer: Optimizer) -> None:
        """Prepare the model for `epoch`, for example by unfreezing some of it."""

    def validate(self, network: nn.Module) -> Metrics:
        """Return metrics of held-out samples, empty without any; the network is in evaluation mode."""
        return {}

    def learning_rate_factor(self, name: str) -> float:
        """Return the factor by which the learning rate of the parameter `name` differs."""
        return 1.0

    def describe_batch(self, batch: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and facts that describe a batch whose loss was not finite."""
        return {}, {}

    def state(self) -> dict[str, Any]:
        """Return the facts of the task that a checkpoint keeps, as values of JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Load the facts that `state` returned."""
