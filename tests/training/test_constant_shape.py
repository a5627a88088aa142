"""Steps of constant shape: the same losses and gradients, one sequence of operations, no waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aam.config import ModelConfig, PretrainConfig, TrainConfig
from aam.data.batch import exact_bins, pad_batch
from aam.data.loader import rarefied_batch, tree_on_device
from aam.device import attention
from aam.engine.step import total_loss
from aam.options import RunConfig
from aam.training.decisions import PretrainingSteps, steps_of
from aam.training.pretrain import Layout, Prepared
from benchmarks.step import Trace, step_numbers

CPU = torch.device("cpu")


def steps_on(study, constant: bool = True) -> PretrainingSteps:
    config = PretrainConfig(
        model=ModelConfig(embedding_dim=16, attention_heads=2, max_bp=30),
        train=TrainConfig(batch_size=8),
        runtime=RunConfig(device="cpu", threads=1),
    )
    steps = steps_of(config, study, CPU)
    if constant:
        steps.task.use_constant_shapes()
    return steps


@pytest.fixture
def study(study_of, tiny):
    return study_of(**tiny(samples=24, asvs=40, lengths=(30, 20)))


@pytest.fixture
def steps(study) -> PretrainingSteps:
    return steps_on(study)


# The losses of three steps of 0.1.0 (afbb84f9), before the constant shape.
GOLDEN = (6.349313259, 5.259830952, 5.977427483)


@pytest.mark.parametrize("constant", [False, True])
def test_losses_are_those_of_the_first_release(study, constant):
    steps = steps_on(study, constant)
    steps.take(3, 0)
    assert [float(loss) for loss in steps.losses] == pytest.approx(GOLDEN, rel=1e-5)


def gradients(steps: PretrainingSteps, batch) -> tuple[dict[str, float], torch.Tensor]:
    """The mean of each loss and the gradient of their sum."""
    steps.model.zero_grad()
    terms = steps.task.losses(steps.model, Prepared(batch))
    total_loss(terms, steps.task.loss_weights).backward()
    parameters = [p for p in steps.model.parameters() if p.grad is not None]
    means = {name: float(total.detach() / count) for name, (total, count) in terms.items()}
    return means, torch.cat([p.grad.flatten() for p in parameters])


@pytest.mark.parametrize("samples", [8, 5])
def test_padding_dummies_and_distances_of_the_device_change_nothing(steps, study, samples):
    rows, capacities = np.arange(samples), steps.task.capacities
    host = steps_on(study, constant=False)
    assert host.loader.collation.distances
    assert not steps.loader.collation.distances
    ways = []
    for way, chosen in ((host, None), (steps, capacities)):
        batch = rarefied_batch(study, rows, 3, way.loader.collation)
        ways.append((way, Layout(way.task.config.train, 0, chosen)(batch, 7)))
    (_, exact), (_, whole) = ways
    assert whole.bins == capacities.bins
    assert len(whole.tokens) > len(exact.tokens)
    assert (exact.distance is None, whole.distance is None) == (False, True)
    (losses, gradient), (others, other) = (gradients(*way) for way in ways)
    assert losses == pytest.approx(others, rel=1e-5)
    assert set(losses) == {"unifrac", "nucleotide", "count"}
    torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5 * float(gradient.abs().max()))


def test_a_tree_is_used_on_the_device_only_where_the_network_reads_all_asvs(study):
    assert tree_on_device(study, CPU, 8) is not None
    limited = replace(study, config=replace(study.config, token_limit=2))
    assert tree_on_device(limited, CPU, 8) is None
    assert tree_on_device(study, CPU, 1 << 26) is None


def test_a_batch_that_overflows_is_laid_out_exactly(steps):
    batch = rarefied_batch(steps.loader.study, np.arange(12), 0)
    padded = pad_batch(batch, None, steps.task.capacities)
    assert padded.bins == exact_bins(batch.sizes)
    assert steps.task.shape(Prepared(padded)) is None


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
    steps = steps_on(study_of(**tiny(samples=24, asvs=40, lengths=(30,))))
    steps.take(1, 0)
    numbers = step_numbers(steps, [*steps.task.batches(1, 0)])
    assert numbers["operations_per_step"] <= 520
    assert numbers["host_waits_per_step"] == 0
    assert numbers["graphs"] == numbers["distinct_shapes"] <= 8


@pytest.mark.slow
def test_forward_pass_and_losses_are_one_graph(plain_python):
    """In a process without the hook that checks types, which torch.compile cannot trace."""
    source = """
import itertools
import torch
from tests.data.studies import make_study, random_counts
from tests.training.test_constant_shape import gradients, steps_on
steps = steps_on(make_study(**random_counts(samples=24, asvs=40, lengths=(30, 20))))
batches = list(itertools.islice(steps.task.batches(1, 0), 2))
eager = [gradients(steps, batch) for batch in batches]
steps.task.compile_losses("aot_eager")
for batch, (losses, gradient) in zip(batches, eager):
    compiled_losses, compiled = gradients(steps, batch)
    torch.testing.assert_close(compiled_losses, losses, rtol=1e-5, atol=0)
    torch.testing.assert_close(compiled, gradient, rtol=1e-4, atol=1e-6)
print(torch._dynamo.utils.counters["stats"]["unique_graphs"], "graph")
"""
    assert "1 graph" in plain_python(source)
