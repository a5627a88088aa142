"""The process group: who is asked for, who is there, and what is missing."""

from __future__ import annotations

import pytest

from aam.device.distributed import SINGLE, end_rank, process_group
from aam.device.environment import MULTI_PROCESS_OPTIONS, RANK_VARIABLES, rank_of
from aam.device.options import ProcessConfig
from aam.errors import InputError


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
    config = ProcessConfig(**{name: True})
    option = f"--{name.replace('_', '-')}: no rank stands in the environment"
    with pytest.raises(InputError, match=option), process_group(config):
        pass


def test_all_options_that_want_processes_are_named():
    config = ProcessConfig(fsdp=True, fsdp_sharded_checkpoint=True)
    with pytest.raises(InputError, match="--fsdp --fsdp-sharded-checkpoint: no rank"), process_group(config):
        pass


def test_a_run_of_one_process_needs_no_group(monkeypatch):
    with process_group(ProcessConfig()) as world:
        assert world == SINGLE
    for name, value in zip(RANK_VARIABLES[1], ("0", "1", "0"), strict=True):
        monkeypatch.setenv(name, value)
    with process_group(ProcessConfig(distributed=True)) as world:
        assert (world.rank, world.size) == (0, 1)

    def end(status: int) -> None:
        raise AssertionError(f"ended with {status}")

    monkeypatch.setattr("os._exit", end)
    end_rank(3)


@pytest.mark.parametrize(
    ("values", "missing"),
    [((*zip(RANK_VARIABLES[0], "020", strict=True),), "MASTER_ADDR and MASTER_PORT not set"),
     ((*zip(RANK_VARIABLES[1], "121", strict=True), ("MASTER_ADDR", "x")), "MASTER_PORT not set")],
)  # fmt: skip
def test_the_meeting_point_is_asked_for(monkeypatch, values, missing):
    for name, value in values:
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=missing), process_group(ProcessConfig(distributed=True)):
        pass
