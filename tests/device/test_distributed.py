"""Ranks that are started on this node, the group that they join, and what they exchange."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from aam.device import distributed as module
from aam.device.distributed import (
    SINGLE,
    World,
    check_devices,
    end_rank,
    launch,
    process_count,
    process_group,
)
from aam.device.environment import MULTI_PROCESS_OPTIONS, RANK_VARIABLES, rank_of
from aam.errors import BAD_INPUT, CALL_AGAIN, FAILED, InputError, RunError
from aam.options import RunConfig
from examples.runs import run_ranks


@pytest.fixture
def program(tmp_path, monkeypatch) -> Path:
    """A program that ranks run in place of aam: it writes its environment, then does what its words
    say.
    """
    package = tmp_path / "aam"
    package.mkdir()
    (package / "__init__.py").write_text("")
    source = """
import json, os, pathlib, signal, sys, time
rank = int(os.environ["RANK"])
pathlib.Path(f"rank{rank}.json").write_text(json.dumps(dict(os.environ)))
word = sys.argv[1 + rank]
if word == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
print("rank", rank)
if word == "hang":
    time.sleep(600)
sys.exit(int(word))
"""
    (package / "__main__.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_ranks_know_their_place_and_keep_quiet_about_ddp(program, monkeypatch):
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    assert launch(2, ["0", "0"]) == 0
    first, second = (json.loads((program / f"rank{rank}.json").read_text()) for rank in range(2))
    assert (first["RANK"], second["RANK"], first["WORLD_SIZE"]) == ("0", "1", "2")
    assert first["LOCAL_RANK"] == "0"
    assert all(first[name] == second[name] for name in ("MASTER_ADDR", "MASTER_PORT"))
    assert first["TORCH_CPP_LOG_LEVEL"] == "ERROR"


def test_what_ranks_print_is_returned_and_a_failure_is_named(program):
    assert run_ranks(2, ["0", "0"], "aam") == ["rank 0\n", "rank 1\n"]
    with pytest.raises(RunError, match="rank 1 ended with exit status 3"):
        run_ranks(2, ["0", "3"], "aam")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["0", "85"], CALL_AGAIN),
        (["85", "1"], FAILED),
        (["0", "kill"], FAILED),
        (["2", "1"], BAD_INPUT),
    ],
)
def test_the_status_of_all_is_that_of_bad_input_or_a_failure_first(program, words, status):
    assert launch(2, words) == status


def test_a_rank_that_hangs_after_a_failure_is_ended(program, monkeypatch, caplog):
    monkeypatch.setattr(module, "FAILURE_SECONDS", 1.0)
    assert launch(2, ["3", "hang"]) == FAILED
    assert "the process of rank 1 did not end by itself" in caplog.text


def test_the_number_of_processes_follows_cores_and_threads(monkeypatch):
    monkeypatch.setattr(module, "available_cores", lambda: 8)
    assert process_count(RunConfig(device="cpu", threads=3)) == 2
    assert process_count(RunConfig(device="cpu", threads=16)) == 1
    assert process_count(RunConfig(device="cpu")) == 1


# --- the process group: who is asked for, who is there, and what is missing --------------------


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch):
    for name in (*RANK_VARIABLES[0], *RANK_VARIABLES[1], "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def test_torchrun_and_slurm_launch_ranks():
    assert rank_of({}) is None
    assert rank_of({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}) == (0, 2, 0)
    assert rank_of({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}) == (3, 4, 1)
    assert rank_of({"RANK": "0", "WORLD_SIZE": "2"}) is None
    assert rank_of({"RANK": "x", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}) is None


@pytest.mark.parametrize("name", MULTI_PROCESS_OPTIONS)
def test_each_option_that_wants_processes_is_named_where_there_are_none(name):
    config = RunConfig(**{name: True})
    option = f"--{name.replace('_', '-')}: no rank is set in the environment"
    with pytest.raises(InputError, match=option), process_group(config):
        pass


def test_a_run_of_one_process_needs_no_group(monkeypatch):
    with process_group(RunConfig()) as world:
        assert world == SINGLE
    for name, value in zip(RANK_VARIABLES[1], ("0", "1", "0"), strict=True):
        monkeypatch.setenv(name, value)
    with process_group(RunConfig(distributed=True)) as world:
        assert (world.rank, world.size) == (0, 1)

    def end(status: int) -> None:
        raise AssertionError(f"ended with {status}")

    monkeypatch.setattr("os._exit", end)
    end_rank(3)


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ((*zip(RANK_VARIABLES[0], "020", strict=True),), "MASTER_ADDR and MASTER_PORT not set"),
        (
            (*zip(RANK_VARIABLES[1], "121", strict=True), ("MASTER_ADDR", "x")),
            "MASTER_PORT not set",
        ),
    ],
)
def test_the_meeting_point_is_asked_for(monkeypatch, values, missing):
    for name, value in values:
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=missing), process_group(RunConfig(distributed=True)):
        pass


# --- what ranks exchange -------------------------------------------------------------------------

RANKS = """
import atexit, contextlib, os, sys
import torch
from torch import nn
from aam.device.sharding import full_tensor, no_sync, parallelize
from aam.options import RunConfig
from aam.device.distributed import end_rank, process_group

config = RunConfig(device="cpu", distributed=True, fsdp=sys.argv[1] == "fsdp")
with process_group(config) as world:
    rank = world.rank
    assert world.broadcast({"a": [1, None]} if world.is_main else None) == {"a": [1, None]}
    assert world.broadcast_bytes(b"main" if world.is_main else b"other") == b"main"
    assert world.all_reduce_max(rank) == 1 and world.any(rank == 1) and not world.any(False)
    assert world.all_reduce_sum(torch.tensor([rank, 1])).tolist() == [1, 2]
    named = world.all_gather({str(rank): torch.full((1 + rank,), rank), "a": torch.zeros(0)})
    assert [{name: part[name].tolist() for name in sorted(part)} for part in named] == [
        {"0": [0], "a": []}, {"1": [1, 1], "a": []}
    ]
    torch.manual_seed(rank)
    model = nn.Linear(3, 2)
    parallel = parallelize(model, config, world)
    weight = full_tensor(model.weight.detach()).clone()
    assert all(torch.equal(weight, other["w"]) for other in world.all_gather({"w": weight}))
    assert [facts["rank"] for facts in world.gather_facts({"rank": rank})] == [0, 1]

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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_ranks_with_replicated_or_sharded_weights(kind, run_ranks):
    # No teardown of the interpreter, which would abort, comes before the end with the status that
    # was given.
    assert run_ranks(2, "-c", RANKS, kind, status=3) == ["written"] * 2


def test_one_rank_exchanges_nothing():
    rows = torch.ones(2, 3)
    assert SINGLE.is_main
    assert SINGLE.gather_facts({"a": 1}) == [{"a": 1}]
    assert SINGLE.all_reduce_sum(rows) is rows
    assert SINGLE.all_reduce_max(7) == 7
    assert SINGLE.any(True)
    assert not SINGLE.any(False)
    assert SINGLE.all_gather({"rows": rows})[0]["rows"] is rows
    assert SINGLE.broadcast({"rows": 2}) == {"rows": 2}


@pytest.mark.parametrize("local_rank", [0, 1])
def test_ranks_that_would_share_a_gpu_are_refused(monkeypatch, local_rank):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    if local_rank == 0:
        check_devices(World(0, 1, 0))
        return
    with pytest.raises(
        InputError, match=r"more ranks than GPUs \(1 on that of rank 1\); start one"
    ):
        check_devices(World(1, 1, local_rank))
