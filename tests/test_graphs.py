"""The stand-in for graphs of torch.cuda does what a GPU does."""

from __future__ import annotations

import pytest
import torch

from tests.graphs import Graph, device_state, graph


def record(work) -> Graph:
    made = Graph()
    device_state.__init__()  # type: ignore[misc]
    with graph(made, capture_error_mode="thread_local"):
        work()
    return made


def test_a_replay_reads_and_writes_the_same_tensors():
    weight, inputs = torch.ones(3, requires_grad=True), torch.ones(3)
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    (weight * inputs).sum().backward()
    optimizer.step()
    losses = torch.zeros(1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = (weight * inputs).square().sum()
        loss.backward()
        optimizer.step()
        losses.copy_(loss.detach())

    before = weight.detach().clone()
    made = record(step)
    assert torch.equal(weight.detach(), before), "nothing runs while a graph is recorded"
    inputs.fill_(2.0)
    made.replay()
    assert losses.item() == pytest.approx(float((4 * before.square()).sum()))
    assert not torch.equal(weight.detach(), before)


def test_random_numbers_are_drawn_anew():
    draws = torch.zeros(4)
    made = record(lambda: draws.copy_(torch.rand(4)))
    made.replay()
    first = draws.clone()
    made.replay()
    assert not torch.equal(draws, first)


def test_numbers_of_the_host_stay_those_of_the_recording():
    numbers, total = [1.0], torch.zeros(1)
    made = record(lambda: total.add_(numbers[0]))
    numbers[0] = 5.0
    made.replay()
    assert total.item() == 1.0


@pytest.mark.parametrize(
    "work", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: torch.tensor(2.0)]
)
def test_what_makes_the_host_wait_is_refused(work):
    with pytest.raises(RuntimeError, match="due to a previous error") as caught:
        record(lambda: work(torch.ones(2)))
    assert "not permitted when stream is capturing" in str(caught.value.__cause__)
    device_state.__init__()  # type: ignore[misc]
