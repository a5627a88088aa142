"""The tasks that the engine trains: both stages in one process, one stage in each of two,
relocation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.device.distributed import SINGLE, World
from aam.engine.step import make_optimizer, parameter_groups
from aam.engine.task import Metrics, Terms
from aam.options import TrainingOptions
from examples.htft.ranks import Link, local_rows
from examples.htft.relocation import Relocation
from examples.htft.student import Student, evaluate
from examples.htft.windows import Windows
from examples.runs import RowsTask

# The ranks of the stages: the main rank has the predictions.
FIRST, SECOND = 1, 0

# Batches that the first stage may be ahead.
AHEAD = 2

# What usage keeps of itself in a step.
USAGE_DECAY = 0.995


class Data(NamedTuple):
    """Windows to train on and held-out ones, and the seed of their order."""

    train: Windows
    validation: Windows
    seed: int


class StudentTask(RowsTask):
    """Both stages learn from the same batches; with several ranks each takes its share, or holds a
    share of the units.

    Parameters
    ----------
    student : Student
    data : Data
    options : TrainingOptions
    device : torch.device
    world : World
    splits_batches : bool
        Whether each rank has its own samples of a batch.
    """

    loss_names = ("embedding", "token")
    best_metric = "val_perplexity"

    def __init__(
        self,
        student: Student,
        data: Data,
        options: TrainingOptions,
        device: torch.device,
        world: World = SINGLE,
        splits_batches: bool = True,
    ) -> None:
        rows = np.arange(len(data.train))
        super().__init__(
            student, rows, options.samples_per_batch, data.seed, device, world, splits_batches
        )
        self.student, self.data, self.step = student, data, 0
        every = student.options.relocate_every
        self.relocation = (
            Relocation(every, data.seed, world if splits_batches else SINGLE) if every else None
        )

    def parts(self) -> Sequence[nn.Module]:
        """Return the stages."""
        return [self.student.first, self.student.second]

    def take(self, rows: Tensor) -> Windows:
        """Return some training windows."""
        return self.data.train.rows(rows)

    def loss_counts(self, batch: Windows) -> dict[str, Tensor]:
        """Return the windows of a batch, for both losses."""
        count = torch.tensor(float(len(batch)), device=self.device)
        return dict.fromkeys(self.loss_names, count)

    def embedding_loss(self, embedding: Tensor, batch: Windows) -> Tensor:
        """Return half the squared error of stage 1, ``[B]``."""
        return (embedding - self.student.target(batch)).square().sum(1) / 2

    def losses(self, network: nn.Module, batch: Windows) -> Terms:
        """Return the losses of both stages."""
        embedding, logits = network(batch)
        by_sample = {
            "embedding": self.embedding_loss(embedding, batch),
            "token": F.cross_entropy(logits, batch.target, reduction="none"),
        }
        return self.terms(by_sample, batch)

    def terms(self, by_sample: dict[str, Tensor], batch: Windows) -> Terms:
        """Return losses of each sample as sums and counts."""
        if self.relocation is not None:
            self.relocation.observe(by_sample)
        counts = self.loss_counts(batch)
        return {name: (loss.sum(), counts[name]) for name, loss in by_sample.items()}

    def configure_optimizer(self, options: TrainingOptions) -> Optimizer:
        """Return AdamW, or SGD for the published rule, with a learning rate of planes and bands and
        `end_step` after each step.
        """

        def factor(name: str) -> float:
            geometry = name.endswith((".normal", ".offset", ".log_band"))
            return self.student.options.geometry_factor if geometry else 1.0

        if self.student.options.update_rule == "online":
            groups = parameter_groups(self.student, options.weight_decay, factor)
            optimizer: Optimizer = torch.optim.SGD(groups, lr=options.lr, fused=True)
        else:
            optimizer = make_optimizer(self.student, options, factor)
        optimizer.register_step_post_hook(
            lambda optimizer, arguments, named: self.end_step(optimizer)
        )
        return optimizer

    def learning_rate(self, options: TrainingOptions, step: int, total: int) -> float:
        """Return the learning rate of a step; that of the published rule is constant."""
        is_constant = self.student.options.update_rule == "online"
        return options.lr if is_constant else super().learning_rate(options, step, total)

    @torch.no_grad()
    def end_step(self, optimizer: Optimizer) -> None:
        """Count the use of units; keep the normals of the published rule at length 1; relocate
        units.
        """
        for stage in (self.student.first, self.student.second):
            field = stage.field
            if field.recent_usage is not None:
                recent = field.recent_usage
                recent = self.world.all_reduce_sum(recent) if self.ranks > 1 else recent
                local_rows(field.usage).mul_(USAGE_DECAY).add_(recent)
            if field.config.online:
                normal = local_rows(field.normal)
                normal.copy_(F.normalize(normal, dim=1))
        if self.relocation is not None:
            stages = {"embedding": self.student.first, "token": self.student.second}
            self.relocation.end_step(self.step, stages, optimizer)
        self.step += 1

    def state(self) -> dict[str, Any]:
        """Return the steps so far and what relocation follows."""
        relocation = {} if self.relocation is None else {"relocation": self.relocation.state()}
        return {"step": self.step, **relocation}

    def restore(self, state: dict[str, Any]) -> None:
        """Load what `state` returned; on how many ranks it was is of no matter."""
        self.step = state["step"]
        if self.relocation is not None:
            self.relocation.restore(state.get("relocation", {}))

    def validate(self, network: nn.Module) -> Metrics:
        """Return the quality on held-out windows, as the main rank computes it."""
        score = evaluate(self.student, self.data.validation, self.device)
        metrics = {
            "val_r2": score.r2,
            "val_perplexity": score.perplexity,
            "val_loss": score.embedding + score.token,
        }
        return self.world.broadcast(metrics)  # type: ignore[no-any-return]


class PipelinedTask(StudentTask):
    """Stage 1 on one rank, stage 2 on the other: stage 1 trains on later batches while stage 2
    trains on this one.

    As no gradient crosses the stages, the result is that of one process, bit for bit.
    """

    steps_alone = True

    def __init__(
        self,
        student: Student,
        data: Data,
        options: TrainingOptions,
        device: torch.device,
        world: World,
    ) -> None:
        super().__init__(student, data, options, device, world, splits_batches=False)
        self.link = Link(world)

    def gather(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the values of both stages, each as the rank has them that trains it."""
        mine = {
            name: value.cpu()
            for name, value in values.items()
            if name.startswith("first.") == (self.world.rank == FIRST)
        }
        gathered: dict[str, Tensor] = {}
        for part in self.world.all_gather(mine):
            gathered |= part
        return {name: gathered[name].to(self.device) for name in sorted(gathered)}

    def losses(self, network: nn.Module, batch: Windows) -> Terms:
        """Return the loss of this rank's stage."""
        if self.world.rank == FIRST:
            embedding = self.student.embed(batch)
            self.link.wait_sent(AHEAD)
            self.link.send(embedding.detach())
            return self.terms({"embedding": self.embedding_loss(embedding, batch)}, batch)
        self.link.expect(batch.hidden.new_empty(len(batch), self.student.options.embedding))
        logits = self.student.classify(self.link.receive(), batch)
        return self.terms({"token": F.cross_entropy(logits, batch.target, reduction="none")}, batch)

    def state(self) -> dict[str, Any]:
        """Return which rank trains which stage; a run that goes on assigns them anew."""
        return {**super().state(), "stages": {"first": FIRST, "second": SECOND}}
