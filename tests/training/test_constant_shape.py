"""Steps of constant shape: the same losses and gradients, one sequence of operations, no waits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aam.config import ModelConfig, PretrainConfig, TrainConfig
from aam.data.collate import rarefied_batch
from aam.data.shelves import exact_shelves, on_shelves
from aam.device import attention
from aam.device.trace import Trace
from aam.engine.capture import GATE_TOLERANCE, difference_of_steps
from aam.engine.options import RunConfig
from aam.engine.step import total_loss
from aam.training.decisions import PretrainingSteps, step_numbers, steps_of
from aam.training.task import Prepared, laid_out

CPU = torch.device("cpu")


def steps_on(study) -> PretrainingSteps:
    config = PretrainConfig(
        model=ModelConfig(embedding_dim=16, attention_heads=2, max_bp=30),
        train=TrainConfig(batch_size=8),
        runtime=RunConfig(device="cpu", threads=1),
    )
    steps = steps_of(config, study, CPU)
    steps.task.capacities = steps.loader.capacities(0.25)
    return steps


@pytest.fixture
def steps(study_of, tiny) -> PretrainingSteps:
    return steps_on(study_of(**tiny(samples=24, asvs=40, lengths=(30, 20))))


def gradients(steps: PretrainingSteps, batch) -> tuple[dict[str, float], torch.Tensor]:
    """The mean of each loss and the gradient of their sum."""
    steps.model.zero_grad()
    terms = steps.task.losses(steps.model, Prepared(batch))
    total_loss(terms, steps.task.loss_weights).backward()
    parameters = [p for p in steps.model.parameters() if p.grad is not None]
    means = {name: float(total.detach() / count) for name, (total, count) in terms.items()}
    return means, torch.cat([p.grad.flatten() for p in parameters])


@pytest.mark.parametrize("samples", [8, 5])
def test_padding_and_dummies_change_nothing(steps, samples):
    batch = rarefied_batch(steps.loader.study, np.arange(samples), 3)
    train, capacities = steps.task.config.train, steps.task.capacities
    exact, whole = (laid_out(train, 0, some, 7, batch, 0) for some in (None, capacities))
    assert whole.shelves == capacities.shelves
    assert len(whole.tokens) > len(exact.tokens)
    assert whole.distance.shape == (8, 8)
    (losses, gradient), (others, other) = (gradients(steps, one) for one in (exact, whole))
    assert losses == pytest.approx(others, rel=1e-5)
    assert set(losses) == {"unifrac", "nucleotide", "count"}
    torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


def test_a_batch_that_overflows_is_laid_out_exactly(steps):
    batch = rarefied_batch(steps.loader.study, np.arange(12), 0)
    shelved = on_shelves(batch, None, steps.task.capacities)
    assert shelved.shelves == exact_shelves(batch.sizes)
    assert steps.task.shape(Prepared(shelved)) is None


def test_a_batch_travels_in_one_buffer(steps):
    shelved = next(iter(steps.task.batches(1, 0)))
    arrived = shelved.on(shelved.buffer())
    for name, value in shelved.tensors().items():
        assert torch.equal(arrived.tensors()[name].nan_to_num(-1), value.nan_to_num(-1)), name
    assert arrived.shape() == shelved.shape()


def test_batches_of_one_shape_are_one_sequence_of_operations_without_waits(steps, monkeypatch):
    monkeypatch.setattr(attention, "SHORT", {})
    monkeypatch.setattr("aam.model.aam.CACHED_PATCHES", 10**9)
    batches = [one for epoch in (1, 2) for one in steps.task.batches(epoch, 0)]
    steps.step(batches[0])
    traces = {}
    for batch in batches:
        with Trace() as trace:
            steps.step(batch)
        assert trace.waits == 0
        traces.setdefault(batch.shape(), []).append(trace.operations)
    assert len(traces) <= 8
    assert all(one == same[0] for same in traces.values() for one in same)


def test_a_step_starts_few_kernels(study_of, tiny, monkeypatch):
    monkeypatch.setattr(attention, "SHORT", {})
    monkeypatch.setattr("aam.model.aam.CACHED_PATCHES", 10**9)
    numbers = step_numbers(steps_on(study_of(**tiny(samples=24, asvs=40, lengths=(30,)))), 3)
    assert numbers["operations_per_step"] <= 520
    assert numbers["host_waits_per_step"] == 0
    assert numbers["graphs"] == numbers["distinct_shapes"] <= 8
    assert numbers["samples_per_s"] > 0


@pytest.mark.slow
def test_the_forward_pass_is_one_graph(plain_python):
    """In a process without the hook that checks types, which torch.compile cannot trace."""
    source = """
import torch
from aam.config import ModelConfig
from aam.data.shelves import on_shelves
from aam.model.reference import fixed_batch, fixed_network
network, batch = fixed_network(ModelConfig()), on_shelves(fixed_batch())
def forward():
    return network(batch).distance.sum()
compiled = torch.compile(forward, fullgraph=True, dynamic=False, backend="aot_eager")
torch.testing.assert_close(compiled(), forward())
print("one graph")
"""
    assert "one graph" in plain_python(source)


@pytest.mark.parametrize("factor", [1.0, 1.02])
def test_a_way_of_stepping_that_is_wrong_is_found_out(steps, factor):
    batch = next(iter(steps.task.batches(1, 0)))
    steps.step(batch)
    before = [value.clone() for value in steps.model.parameters()]

    def expected() -> None:
        steps.step(batch)

    def actual() -> None:
        steps.step(batch)
        with torch.no_grad():
            next(steps.model.parameters()).mul_(factor)

    apart = difference_of_steps(steps.model, steps.optimizer, CPU, expected, actual)
    assert (apart < GATE_TOLERANCE) == (factor == 1.0)
    after = zip(steps.model.parameters(), before, strict=True)
    assert all(torch.equal(value, old) for value, old in after)
