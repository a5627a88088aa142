"""Single steps of pretraining, as benchmarks, profiles and finders take them."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import aam.data.loader
from aam.config import FineTuneConfig
from aam.data.batch import Batch
from aam.data.loader import Loader
from aam.data.study import Study
from aam.data.study_inputs import load_study
from aam.engine.optimizer import make_optimizer
from aam.engine.trainer import Micro, Objective, train_step
from aam.model.aam import Aam, Masks
from aam.model.heads import HeadConfig
from aam.runtime.decisions import decide
from aam.runtime.device import prepare_device
from aam.runtime.precision import make_scaler
from aam.runtime.rng import random_state, set_random_state
from aam.runtime.timing import Stages, seconds

STAGES = (
    "data wait", "UniFrac", "transfer", "ASV encoder", "sample encoder", "losses", "backward", "optimizer"
)  # fmt: skip


def every_slot(batch: Batch) -> Batch:
    """`batch` as a plain implementation holds it: a row of tokens for each slot, up to the largest sample."""
    samples, slots = batch.asv.shape
    rows = batch.asv.flatten()
    asv = torch.arange(len(rows), device=rows.device).view(samples, slots)
    return replace(
        batch,
        tokens=batch.tokens[rows],
        key=None if batch.key is None else batch.key[rows],
        asv=asv,
        column=None,
        sizes=(slots,) * samples,
    )


class PlainObjective(Objective):
    """The objective on a batch of `every_slot`: the same losses as on that of distinct ASVs."""

    def masks(self, batch: Batch, step: int) -> Masks | None:
        """The masks of `step`, one masked copy of each distinct ASV."""
        masks = super().masks(batch, step)
        if masks is None:
            return None
        _, first = np.unique(masks.tokens.cpu().numpy(), axis=0, return_index=True)
        rows = torch.from_numpy(np.sort(first)).to(masks.rows.device)
        return Masks(masks.rows[rows], masks.tokens[rows], masks.where[rows], masks.counts)


@dataclass(eq=False)
class Steps:
    """Steps of `aam pretrain`: loader, masks, network, losses and optimizer of the real run."""

    model: Aam
    objective: Objective
    optimizer: torch.optim.Optimizer
    loader: Loader
    device: torch.device
    losses: list[Tensor] = field(default_factory=list)

    def take(self, number: int, draw: int) -> tuple[list[float], list[Batch]]:
        """Seconds and batches of `number` steps from the start of epoch `draw` on."""
        epochs = itertools.chain.from_iterable(map(self.loader.epoch, itertools.count(draw)))
        plain = isinstance(self.objective, PlainObjective)
        taken: list[Batch] = []

        def one() -> None:
            batch = every_slot(next(epochs)) if plain else next(epochs)
            self.step(batch, len(taken))
            taken.append(batch)

        return [seconds(one, self.device) for _ in range(number)], taken

    def step(self, batch: Batch, number: int = 0) -> None:
        """One step on one batch."""
        micro = Micro(batch.to(self.device), None, number)
        outcome = train_step(self.model, [micro], self.objective, self.optimizer)
        self.losses.append(self.objective.total(outcome.terms))

    def stages(self, number: int, draw: int) -> dict[str, Any]:
        """Mean seconds of each stage of a step, and their sum's share of the wall time."""
        stages = Stages(self.device)
        places = [
            (Loader, "window", "data wait"),
            (aam.data.loader, "batch_unifrac", "UniFrac"),
            (Batch, "to", "transfer"),
            (self.model, "encode_asvs", "ASV encoder"),
            (self.model, "encode_samples", "sample encoder"),
            *((Objective, name, "losses") for name in ("masks", "run", "total")),
            (Tensor, "backward", "backward"),
            *((self.optimizer, name, "optimizer") for name in ("zero_grad", "step")),
            *((nn.utils, name, "optimizer") for name in ("get_total_norm", "clip_grads_with_norm_")),
        ]
        with contextlib.ExitStack() as stack:
            for owner, attribute, name in places:
                stack.enter_context(stages.around(owner, attribute, name))
            wall = sum(self.take(number, draw)[0])
        means = {name: stages.seconds.get(name, 0.0) / number for name in STAGES}
        return {"stages": means, "accounted": number * sum(means.values()) / wall}


@contextlib.contextmanager
def restored(steps: Steps) -> Iterator[None]:
    """Give weights, optimizer, loader, losses and random numbers back as they were, whatever happens inside."""
    model, optimizer = copy.deepcopy((steps.model.state_dict(), steps.optimizer.state_dict()))
    loader, losses, random = steps.loader, list(steps.losses), random_state(steps.device)
    try:
        yield
    finally:
        steps.optimizer.zero_grad(set_to_none=True)
        steps.model.load_state_dict(model)
        steps.optimizer.load_state_dict(optimizer)
        steps.loader, steps.losses = loader, losses
        set_random_state(random, steps.device)


def make_steps(config: FineTuneConfig, plain: bool = False) -> Steps:
    """Everything that a step needs, as `aam pretrain` makes it."""
    device = prepare_device(config.runtime)
    decide(config.runtime, device, config.model.head_width)
    return steps_of(config, load_study(config.data, config.model.max_bp, config.runtime.seed), device, plain)


def steps_of(config: FineTuneConfig, study: Study, device: torch.device, plain: bool = False) -> Steps:
    """Steps on the whole of a study, with a head for a numeric target where `aam train` names one."""
    targets = int(bool(config.targets.metadata_column))
    if targets:
        study = replace(study, target=np.zeros((len(study.table.sample_ids), 1), np.float32))
    torch.manual_seed(config.runtime.seed)
    heads = HeadConfig(metric=study.metric, scale=(0.5, 0.2), counts=config.train.count_penalty > 0, n_targets=targets)
    model = Aam(config.model, study.depth, heads).to(device).train()
    model.bound_memory(config.runtime.asv_chunk_size, config.runtime.gradient_checkpointing)
    scaler = make_scaler(config.runtime, device)
    objective = (PlainObjective if plain else Objective)(config, study.depth, device, scaler=scaler)
    rows = np.arange(len(study.table.sample_ids))
    size, shallow = config.train.batch_size, config.train.shallow_draws if study.tree is not None else 0.0
    loader = Loader(study, rows, size, shuffle=True, distances=study.metric is not None, shallow=shallow)
    return Steps(model, objective, make_optimizer(model, config.train), loader, device)
