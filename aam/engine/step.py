"""One step of training: the losses of its batches, their gradients, and the optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.device.distributed import World
from aam.device.precision import Scaler
from aam.device.sharding import averaged_ranks, full_tensor, no_sync
from aam.device.timing import stage
from aam.engine.losses import Terms, sum_terms, total_loss
from aam.engine.task import Task


class MicroBatch(NamedTuple):
    """A prepared batch of a step, or a part of one; `number` names the batch in the run, `part` the part."""

    data: Any
    number: int
    part: int = 0


class StepOutcome(NamedTuple):
    """Loss terms of a step, detached, and whether loss or gradient were not finite; both stay on the device."""

    terms: Terms
    nonfinite: Tensor


def step_counts(task: Task, window: Sequence[MicroBatch], world: World) -> dict[str, Tensor] | None:
    """Return what each loss counts in all batches of a step on all ranks; None where one batch counts its own."""
    shared = world.size > 1 and task.splits_batches
    counts = [] if len(window) == 1 and not shared else [task.loss_counts(micro.data) for micro in window]
    given_counts = [batch_counts for batch_counts in counts if batch_counts is not None]
    if not given_counts:
        return None
    zero = torch.zeros((), device=task.device)
    sums = [
        torch.stack([batch_counts.get(name, zero).to(zero) for batch_counts in given_counts]).sum()
        for name in task.loss_names
    ]
    return dict(zip(task.loss_names, world.all_reduce_sum(torch.stack(sums)) if shared else sums, strict=True))


def clip_gradients(parts: Sequence[nn.Module], max_grad_norm: float) -> Tensor:
    """Clip the gradients of each part to `max_grad_norm`; return the sum of their norms before."""
    norms = []
    for part in parts:
        norm = full_tensor(nn.utils.get_total_norm([p.grad for p in part.parameters() if p.grad is not None]))
        nn.utils.clip_grads_with_norm_(part.parameters(), max_grad_norm, norm)
        norms.append(norm)
    return torch.stack(norms).sum()


def train_step(
    network: nn.Module,
    window: Sequence[MicroBatch],
    task: Task,
    optimizer: Optimizer,
    scaler: Scaler,
    world: World,
    max_grad_norm: float,
) -> StepOutcome:
    """Take one step of the optimizer on the batches of `window`, as if they were one batch.

    Where loss or gradient are not finite, on any rank, the weights stay as they are.
    """
    with stage("optimizer"):
        optimizer.zero_grad(set_to_none=True)
    counts = step_counts(task, window, world)
    terms, losses = [], []
    for micro in window:
        with contextlib.nullcontext() if micro is window[-1] else no_sync(network):
            with stage("losses"):
                terms.append(task.losses(network, micro.data))
                # Where gradients are averaged over ranks, each rank's loss is its share of the sum.
                loss = averaged_ranks(network, world) * total_loss(terms[-1], task.loss_weights, counts)
            with stage("backward"):
                scaler.scale(loss).backward()
        losses.append(loss.detach())
    with stage("optimizer"):
        scaler.unscale_(optimizer)
        norm = clip_gradients(task.parts(), max_grad_norm)
    nonfinite_loss = world.all_reduce_sum((~torch.isfinite(torch.stack(losses).sum())).float()) > 0
    nonfinite = nonfinite_loss | ~torch.isfinite(norm)
    # As in torch's GradScaler: fused optimizers skip the step on the device.
    optimizer.grad_scale, optimizer.found_inf = None, nonfinite.float()  # type: ignore[attr-defined]
    with stage("optimizer"), stage("step"):
        optimizer.step()
    return StepOutcome(sum_terms(terms), nonfinite_loss | scaler.update_scale(nonfinite))
