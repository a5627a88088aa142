"""Single steps of pretraining, as benchmarks, profiles and finders take them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from aam.config import FineTuneConfig
from aam.data.batch import Batch
from aam.data.collate import Collation
from aam.data.loader import Loader
from aam.data.study import Study
from aam.device.attention import decide_execution
from aam.device.precision import make_scaler
from aam.device.timing import StageTimer, forward_stage, seconds, stage
from aam.engine.finders import StepRunner
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.training.fit import auxiliary_config
from aam.training.inputs import load_inputs
from aam.training.task import AmpliconTask

STAGES = (
    "data wait", "UniFrac", "transfer", "ASV encoder", "sample encoder", "losses", "backward", "optimizer"
)  # fmt: skip


@dataclass(eq=False)
class PretrainingSteps(StepRunner):
    """Steps of `aam pretrain`: loader, masks, network, losses and optimizer of the real run."""

    task: AmpliconTask

    @property
    def model(self) -> Aam:
        """The model of the task."""
        return self.task.model

    @property
    def loader(self) -> Loader:
        """The loader of the training samples."""
        return self.task.train

    def take(self, number: int, epoch: int) -> tuple[list[float], list[Batch]]:
        """Return seconds and batches of `number` steps from the start of epoch `epoch` on."""
        epochs = itertools.chain.from_iterable(map(self.loader.epoch, itertools.count(epoch)))
        taken: list[Batch] = []

        def one_step() -> None:
            with stage("data wait"):
                batch = next(epochs)
            self.step(batch, len(taken))
            taken.append(batch)

        return [seconds(one_step, self.device) for _ in range(number)], taken

    def stages(self, number: int, epoch: int) -> dict[str, Any]:
        """Return mean seconds of each stage of a step, and their sum's share of the wall time."""
        asv, sample = forward_stage(self.model.asv, "ASV encoder"), forward_stage(self.model.sample, "sample encoder")
        with asv, sample, StageTimer(self.device, STAGES) as taken:
            wall = sum(self.take(number, epoch)[0])
        means = {name: taken.get(name, 0.0) / number for name in STAGES}
        return {"stages": means, "accounted": number * sum(means.values()) / wall}


def make_steps(config: FineTuneConfig, task_class: type[AmpliconTask] = AmpliconTask) -> PretrainingSteps:
    """Return everything that a step needs, as `aam pretrain` makes it, or for another class of task."""
    prepared = load_inputs(config)
    decide_execution(config.runtime, prepared.device, config.model.head_width)
    return steps_of(prepared.config, prepared.study, prepared.device, task_class)


def steps_of(
    config: FineTuneConfig, study: Study, device: torch.device, task_class: type[AmpliconTask] = AmpliconTask
) -> PretrainingSteps:
    """Return steps on all samples of a study, with a head for a numeric target where `aam train` names one."""
    targets = int(bool(config.targets.metadata_column))
    if targets:
        zeros = np.zeros((len(study.table.sample_ids), 1), np.float32)
        study = replace(study, labels=replace(study.labels, target=zeros))
    torch.manual_seed(config.runtime.seed)
    study = study.with_auxiliary_targets(config.data.targets, study.table.sample_ids)
    heads = HeadConfig(
        metric=study.metric, scale=(0.5, 0.2), counts=config.train.count_penalty > 0, n_targets=targets,
        further=auxiliary_config(study, {}),
    )  # fmt: skip
    with stage("model creation"):
        model = Aam(config.model, study.depth, heads, study.reference).to(device).train()
    model.bound_memory(config.runtime.asv_chunk_size, config.runtime.gradient_checkpointing)
    rows = np.arange(len(study.table.sample_ids))
    size, shallow = config.train.batch_size, config.train.shallow_draws if study.has_tree else 0.0
    loader = Loader(study, rows, size, shuffle=True, how=Collation(distances=study.metric is not None, shallow=shallow))
    task = task_class(model, config, loader, replace(loader, rows=rows[:0]), device)
    optimizer = task.configure_optimizer(config.train)
    return PretrainingSteps(task, optimizer, make_scaler(config.runtime, device), config.train.max_grad_norm)
