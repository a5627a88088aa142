"""Models and tensors spread over ranks: DDP and FSDP2, whose imports only training needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from aam.device.distributed import World
from aam.options import RunConfig


def parallelize(
    model: nn.Module, config: RunConfig, world: World, blocks: Sequence[nn.Module] = ()
) -> nn.Module:
    """Return the module that trains `model` on all ranks: DDP around it, or with ``--fsdp`` itself,
    sharded (FSDP2).

    Both average gradients over ranks and start from the weights of rank 0. With one rank it is
    `model`.

    Parameters
    ----------
    model : nn.Module
    config : RunConfig
    world : World
    blocks : sequence of nn.Module
        Parts that FSDP2 gathers one at a time; all ranks must call each of them equally often in a
        step. What is in no block is gathered at once.
    """
    if world.size == 1 or is_sharded(model):
        return model
    start_alike(model, world)
    if not config.fsdp:
        # With find_unused_parameters DDP does not rebuild its buckets after the first step: they
        # would be summed in another order, and a resumed run would differ in its last bits.
        return DistributedDataParallel(model, find_unused_parameters=True)
    # On a CPU torch 2.7 adds float32 gradients up instead of averaging them; float64 it averages.
    on_cpu = next(model.parameters()).device.type == "cpu"
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float64 if on_cpu else None)
    for block in (*blocks, model):
        fully_shard(block, mp_policy=policy)
    return model


def start_alike(model: nn.Module, world: World) -> None:
    """Give all ranks the weights of rank 0."""
    for value in model.state_dict().values():
        world.from_main(value)


def averaged_ranks(network: nn.Module, world: World) -> int:
    """Return the number of ranks over which the gradients of a network are averaged."""
    return world.size if isinstance(network, (DistributedDataParallel, FSDPModule)) else 1


def is_sharded(model: nn.Module) -> bool:
    """Return whether the parameters of a model are spread over ranks, by FSDP2 or by its task."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


@contextlib.contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Do not exchange gradients between ranks inside, as for all but the last batch of a step;
    afterwards do again.
    """
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
        return
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(True)


def full_tensor(value: Tensor) -> Tensor:
    """Return all of a tensor that may be sharded; every rank must call it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """Return a tensor that every rank holds in full, sharded as `like` is and on its device."""
    value = value.to(like.device)
    if not isinstance(like, DTensor):
        return value
    # Without a rank that sends: each has all of the tensor.
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
