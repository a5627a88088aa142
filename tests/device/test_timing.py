"""Named stages: exclusive seconds, profiler regions, and no trace of them while nothing is
measured.
"""

from __future__ import annotations

import time

import pytest
import torch

from aam.device.measure import StageTimer, Trace, count_flops, seconds, stage

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """A clock that shows the number in the list."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_an_inner_stage_pauses_the_outer_one(clock):
    with StageTimer(CPU, ("outer", "inner")) as taken:
        clock[0] += 100
        with stage("outer"):
            clock[0] += 1
            with stage("inner"):
                clock[0] += 2
            clock[0] += 4
        clock[0] += 100
        with stage("inner"):
            clock[0] += 8
    assert taken == {"outer": 5.0, "inner": 10.0}


def test_a_stage_ends_with_an_error_and_nothing_is_recorded_afterwards(clock):
    def fail() -> None:
        clock[0] += 1
        raise KeyError("x")

    with StageTimer(CPU, ("a", "b")) as taken:
        with pytest.raises(KeyError), stage("a"):
            fail()
        with stage("b"):
            clock[0] += 2
    with stage("b"):
        clock[0] += 4
    assert taken == {"a": 1.0, "b": 2.0}


def test_a_decorated_function_is_a_stage_at_each_call(clock):
    @stage("a")
    def work(amount: float) -> float:
        clock[0] += amount
        return 2 * amount

    assert work(1.0) == 2.0
    with StageTimer(CPU, ("a",)) as taken:
        assert work(2.0) == 4.0
        assert work(4.0) == 8.0
    assert taken == {"a": 6.0}


def test_the_profiler_of_torch_shows_stages():
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with (
        torch.profiler.profile(activities=kinds, acc_events=True) as profiler,
        stage("ASV encoder"),
    ):
        torch.ones(3).sum()
    assert "ASV encoder" in {event.key for event in profiler.key_averages()}


def test_operations_and_host_waits_are_counted():
    x = torch.randn(4, 4, requires_grad=True)
    with Trace() as trace:
        (x.view(16) + 1).sum().backward()
    assert (trace.kernels, trace.waits) == (4, 0), "add, sum, ones, clone; no views"
    with Trace() as trace:
        x.detach()[x.detach() > 0].sum().item()
        x.detach().nonzero()
        x.detach().new_tensor(1.0)
    assert trace.waits == 4


def test_seconds_and_operations_of_a_product():
    left = torch.ones(8, 16)
    right = torch.ones(16, 32)
    assert seconds(lambda: left @ right, CPU) > 0
    assert count_flops(lambda: left @ right) == 2 * 8 * 16 * 32


def test_operations_of_attention_are_counted():
    query, key, value = torch.ones(3, 2, 4, 10, 8, requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    forward = 2 * 2 * 4 * 10 * 10 * (8 + 8)
    assert count_flops(lambda: attend(query, key, value)) == forward
    assert count_flops(lambda: attend(query, key, value).sum().backward()) == forward * 7 // 2
