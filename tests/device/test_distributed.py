"""A world of one rank, and two ranks of one process group: collectives, gradients with and without
exchange.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aam.device.distributed import SINGLE

pytestmark = pytest.mark.slow


RANKS = """
import atexit, contextlib, os, sys
import torch
from torch import nn
from aam.device.sharding import full_tensor, no_sync, parallelize
from aam.sections import ProcessConfig
from aam.device.distributed import end_rank, process_group

config = ProcessConfig(device="cpu", distributed=True, fsdp=sys.argv[1] == "fsdp")
with process_group(config) as world:
    rank = world.rank
    assert world.broadcast(b"main" if world.is_main else b"other") == b"main"
    assert world.all_reduce_max(rank) == 1 and world.any(rank == 1) and not world.any(False)
    assert world.all_reduce_sum(torch.tensor([rank, 1])).tolist() == [1, 2]
    assert world.all_gather([rank] * (1 + rank)) == [[0], [1, 1]]
    rows = torch.full((1 + rank, 2), float(rank), requires_grad=True)
    gathered = world.gather_rows(rows, (1, 2))
    assert gathered.tolist() == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    (gathered * (1 + rank)).sum().backward()
    assert rows.grad.tolist() == [[3.0, 3.0]] * (1 + rank), "the gradient is summed over ranks"

    torch.manual_seed(rank)
    model = nn.Linear(3, 2)
    parallel = parallelize(model, config, world)
    weight = full_tensor(model.weight.detach()).clone()
    assert all(torch.equal(weight, other) for other in world.all_gather(weight))

    def backward(value):
        parallel(torch.full((1, 3), value)).sum().backward()

    def gradient():
        return full_tensor(model.weight.grad)[0, 0].item()

    with no_sync(parallel):
        backward(1.0 + rank)
        if not config.fsdp:
            assert gradient() == 1.0 + rank, "nothing is exchanged inside"
    backward(10.0 * (1 + rank))
    assert gradient() == 16.5, "the mean over ranks of both passes"
    model.zero_grad()
    backward(1.0 + rank)
    assert gradient() == 1.5, "afterwards gradients are exchanged again"
atexit.register(os.abort)
print("written", end="")
end_rank(3)
"""


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_with_replicated_or_sharded_weights(kind, run_ranks):
    # No teardown of the interpreter, which would abort, comes before the end with the status that
    # was given.
    assert run_ranks(2, "-c", RANKS, kind, status=3) == ["written"] * 2


def test_one_rank_exchanges_nothing():
    rows, array = torch.ones(2, 3), np.ones(2)
    assert SINGLE.is_main
    assert SINGLE.gather_rows(rows, (2,)) is rows
    assert SINGLE.all_reduce_sum(rows) is rows
    assert SINGLE.all_reduce_max(7) == 7
    assert SINGLE.any(True)
    assert not SINGLE.any(False)
    assert SINGLE.all_gather(array)[0] is array
    assert SINGLE.broadcast(b"data") == b"data"
