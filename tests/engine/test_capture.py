"""What is decided before and while steps are captured, and steps with a stand-in for graphs."""

from __future__ import annotations

import contextlib

import pytest
import torch

from aam.engine import capture
from aam.engine.capture import CapturedSteps, StepOutcome, capture_into, check_memory
from aam.engine.step import StepSetup
from aam.engine.task import Task
from aam.errors import InputError
from tests.engine.conftest import Doubling, options
from tests.graphs import Graph, device_state, graph, stand_in


def test_a_batch_that_does_not_fit_is_refused_with_the_size_that_fits():
    gigabyte = 10**9
    check_memory(gigabyte, 5 * gigabyte, 0.8, 64, 6 * gigabyte)
    expected = r"need about 9.0 GB of the device's 5.0 GB; 32 samples fit. Lower --batch-size"
    with pytest.raises(InputError, match=expected):
        check_memory(gigabyte, 5 * gigabyte, 0.5, 64, 5 * gigabyte)


def setup_of(task: Task) -> StepSetup:
    return StepSetup(task.model, task, task.configure_optimizer(options()))


class Shaped(Doubling):
    """Batches of two shapes that may be captured, and one that may not."""

    def shape(self, batch):
        return len(batch) if len(batch) < 3 else None


@pytest.fixture
def steps(monkeypatch):
    """Captured steps whose graphs are a list of the sizes that were replayed, and eager steps."""
    task = Shaped()
    made = CapturedSteps(setup_of(task))
    made.is_right = True
    sizes = {"captured": [], "replayed": [], "measured": []}
    outcome = StepOutcome({}, torch.tensor(False))

    def replay(window, exchanges=True):
        sizes["replayed"].append(len(window[0]))
        return outcome

    def measured(window):
        sizes["measured"].append(len(window[0]))
        return made._eager(window)

    monkeypatch.setattr(made, "_capture", lambda batch: sizes["captured"].append(len(batch)))
    monkeypatch.setattr(made, "_replay", replay)
    monkeypatch.setattr(made, "_measure_step", measured)
    return made, sizes


def test_each_shape_is_captured_once_after_a_step_that_is_not(steps):
    made, sizes = steps
    for size in (1, 1, 1, 1, 1, 2, 2, 4, 4, 2, 1):
        made.take([torch.ones(size, 3)])
    assert sizes["captured"] == [1, 2]
    assert sizes["replayed"] == [1, 1, 2, 2, 1]
    assert sizes["measured"] == [1, 1, 1, 2]


def test_a_first_step_without_memory_is_a_batch_size_that_does_not_fit(monkeypatch):
    stand_in(monkeypatch)
    made = CapturedSteps(setup_of(Shaped()))

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(made.task, "losses", fail)
    expected = "--batch-size: a step on 1 samples does not fit .* lower it, or pass auto"
    with pytest.raises(InputError, match=expected):
        made.take([torch.ones(1, 3)])


# --- real steps, with the stand-in for graphs ----------------------------------------------------


class Fixed(Doubling):
    """Batches of one shape, whose tensors a graph reads."""

    def shape(self, batch):
        return tuple(batch.shape)

    def tensors(self, batch):
        return {"batch": batch}

    def with_tensors(self, batch, tensors):
        return tensors["batch"]

    def losses(self, network, batch):
        # A number of the host would be a copy in the graph.
        return {
            "error": ((network(batch) - 2 * batch).square().sum(), torch.ones_like(batch).sum())
        }


@pytest.fixture
def taken(monkeypatch):
    """Takes steps on batches of these sizes; gives the captured steps."""
    stand_in(monkeypatch)

    def take(sizes, task=None, **changes):
        task = task or Fixed()
        made = CapturedSteps(setup_of(task), **changes)
        for number, size in enumerate(sizes):
            seed = torch.Generator().manual_seed(number)
            window = [torch.randn(size, 3, generator=seed)]
            made.take(window)
        return made

    return take


def test_captured_steps_end_where_eager_ones_do(taken):
    captured, eager = taken([4] * 12), taken([4] * 12, is_right=False)
    assert captured.is_right
    assert captured.graphs
    assert not eager.graphs
    pairs = zip(captured.task.model.parameters(), eager.task.model.parameters(), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)


def test_what_the_probe_refuses_is_not_tried(taken):
    task = Fixed()
    task.refusal = "the probe says: its process ended with SIGSEGV"
    made = taken([4] * 8, task)
    assert not made.graphs
    assert made.is_right is None


def test_a_shape_that_cannot_be_captured_ends_no_run(taken, monkeypatch, caplog):
    """The first shapes pass the check; a later one makes the host wait."""

    class Waiting(Fixed):
        def losses(self, network, batch):
            if len(batch) == 5:
                batch.sum().item()
            return super().losses(network, batch)

    made = taken([4] * 8 + [5] * 4 + [4] * 3, Waiting())
    assert made.is_right is False
    # The first error is the reason, and eager steps draw as if nothing had been captured.
    assert "steps are not captured as graphs: CUDA error: operation not permitted" in caplog.text
    assert (device_state.stream, device_state.generator_captures) == ("default", False)
    eager = taken([4] * 8 + [5] * 4 + [4] * 3, Waiting(), is_right=False)
    pairs = zip(made.task.model.parameters(), eager.task.model.parameters(), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("in_body", [True, False])
def test_after_a_failed_capture_another_one_is_made(monkeypatch, in_body):
    """Another thread may end a capture, of which no call inside says anything."""
    stand_in(monkeypatch)
    cpu = torch.device("cpu")
    reason = "no kernel" if in_body else "capture ended by another thread"

    def fail():
        if in_body:
            raise RuntimeError(reason)

    if not in_body:
        monkeypatch.setattr(torch.cuda, "graph", ended_elsewhere)
    with pytest.raises(RuntimeError, match=reason), capture_into(Graph(), None, cpu):
        fail()
    monkeypatch.setattr(torch.cuda, "graph", graph)
    made, values = Graph(), torch.ones(2)
    with capture_into(made, None, cpu):
        values += 1
    made.replay()
    assert values.tolist() == [2, 2]


@contextlib.contextmanager
def ended_elsewhere(*arguments, **words):
    with graph(*arguments, **words):
        yield
    device_state.stream, device_state.generator_captures = "capture", True
    raise RuntimeError("capture ended by another thread")


def test_graphs_must_fit_beside_what_eager_steps_hold(taken, monkeypatch, caplog):
    """A fifth is left to the page cache of an APU, whose memory it shares."""
    monkeypatch.setattr(capture, "peak_memory", lambda device: 7 * 10**9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *_: 3 * 10**9)
    monkeypatch.setattr(capture, "held_memory", lambda device: 7 * 10**9)
    monkeypatch.setattr(capture, "memory_limit", lambda device, share: 8 * 10**9)
    assert not taken([4] * 8).graphs
    reason = "eager steps hold 7.0 GB, graphs need 4.0 GB more, and 8.0 GB may be held"
    assert reason in caplog.text
    monkeypatch.setattr(capture, "memory_limit", lambda device, share: 12 * 10**9)
    assert taken([4] * 8).graphs
