"""The network against plain dense computations, and everything that may change no result."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from aam.data.batch import Batch, Masks
from aam.data.loader import rarefied_batch
from aam.model.aam import HeadConfig, Outputs
from tests.data.labels import by_slot

HEADS = HeadConfig("unifrac", (0.5, 0.2), counts=True, n_targets=2, n_classes=(3, 2))
EQUAL = HeadConfig("unifrac", (0.5, 0.2), n_targets=2, n_classes=(3,))
MASK = 6


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def assert_same(actual: Outputs, expected: Outputs, tolerance: float = 1e-5) -> None:
    for name in ("samples", "target", "distance"):
        close(getattr(actual, name), getattr(expected, name), tolerance)
    for one, other in zip(actual.labels, expected.labels, strict=True):
        close(one, other, tolerance)


def on_its_own(model, tokens: torch.Tensor) -> torch.Tensor:
    """The vector of one ASV, given without padding in a batch of its own."""
    whole = tokens[tokens > 0][None]
    batch = Batch(whole, torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), 3.0), sizes=(1,))
    return model(batch).asvs[0]


def dense(model, batch: Batch) -> Outputs:
    """The plain way: each slot of each sample is encoded on its own, all samples padded to the
    longest.
    """
    n, slots = batch.asv.shape
    vectors = torch.zeros(n, slots, 16)
    for sample in range(n):
        for slot in range(slots):
            if batch.counts[sample, slot] > 0:
                vectors[sample, slot] = on_its_own(model, batch.tokens[batch.asv[sample, slot]])
    whole = {
        "tokens": batch.tokens[batch.asv.flatten()],
        "sizes": (slots,) * n,
        "has_short_asvs": True,
    }
    whole |= {"asv": torch.arange(n * slots).view(n, slots), "column": None, "key": None}
    return model(dataclasses.replace(batch, **whole), asvs=vectors.flatten(0, 1))


@pytest.fixture
def batch(study) -> Batch:
    return rarefied_batch(study, np.arange(9), 0)


@pytest.mark.parametrize("stem", [None, {}, {"patch_size": 4}, {"patch_size": 1}])
def test_the_batch_of_unique_asvs_equals_the_dense_computation(study_of, tiny, model_of, stem):
    lengths = (20,) if stem is None else (24, 13, 30, 19)
    batch = rarefied_batch(study_of(**tiny(lengths=lengths)), np.arange(9), 0)
    assert batch.has_short_asvs is (stem is not None)
    assert len(batch.tokens) < sum(batch.sizes) / 2, "the samples of this test share their ASVs"
    assert len(set(batch.sizes)) > 2
    model = model_of(EQUAL, **(stem or {}))
    with torch.no_grad():
        outputs, expected = model(batch), dense(model, batch)
    assert expected.samples.std() > 0.3
    assert expected.target.std() > 0.05
    assert_same(outputs, expected)


def test_shuffled_asvs_within_samples(batch, model_of):
    """Neither the slots of a sample nor the rows of the distinct ASVs have an order."""
    model = model_of(HEADS)
    generator = torch.Generator().manual_seed(0)
    asv, counts = batch.asv.clone(), batch.counts.clone()
    for sample, size in enumerate(batch.sizes):
        order = torch.randperm(size, generator=generator)
        asv[sample, :size], counts[sample, :size] = asv[sample, order], counts[sample, order]
    rows = torch.randperm(len(batch.tokens), generator=generator)
    asv = torch.where(counts > 0, torch.argsort(rows)[asv], 0)
    shuffled = dataclasses.replace(batch, tokens=batch.tokens[rows], asv=asv, counts=counts)
    with torch.no_grad():
        assert_same(model(shuffled), model(batch))


def test_counts_are_an_input(batch, model_of):
    """Failure 11 of the predecessor."""
    counts = batch.counts.clone()
    counts[4, 1] += 5
    with torch.no_grad():
        model = model_of(EQUAL)
        before, after = model(batch), model(dataclasses.replace(batch, counts=counts))
        changed = (before.samples - after.samples).abs().amax(1) > 1e-3
        assert changed.tolist() == [row == 4 for row in range(9)]
        assert (before.target - after.target)[4].abs().max() > 1e-4


def test_the_bases_and_their_places_are_an_input(model_of):
    ids = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1)
    for patch_size in (5, 1):
        model = model_of(patch_size=patch_size)

        def vector(letters: str, model=model) -> torch.Tensor:
            tokens = torch.tensor([["?ACGTN".index(base) for base in letters]]).to(torch.uint8)
            return model(Batch(tokens, *ids, sizes=(1,))).asvs[0]

        with torch.no_grad():
            plain = vector("ACGTACGTACG")
            others = "GCATGCATGCA ACGTACGTACT ACGTACGTACN ACGTACGTAC ACGTACGTACGT"
            for other in others.split():
                assert (vector(other) - plain).abs().max() > 1e-3, other


def test_bounding_memory_changes_no_result(batch, model_of, monkeypatch):
    """ASVs encoded in chunks, and activations recomputed in the backward pass, dropout included; in
    float64.
    """
    masks = some_masks(batch)

    def run(chunk: int | None, recompute: bool, dropout: float = 0.0):
        model = model_of(HEADS, dropout=dropout).double().train()
        model.bound_memory(chunk, recompute)
        torch.manual_seed(0)
        outputs = model(batch, masks)
        parts = outputs.samples, outputs.distance, outputs.nucleotides, outputs.target
        parts = (*parts, *outputs.labels)
        sum(part.square().mean() for part in parts).backward()
        return parts, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    def compare(actual, expected) -> None:
        for one, other in zip(actual[0], expected[0], strict=True):
            close(one, other, 1e-12)
        assert actual[1].keys() == expected[1].keys()
        for name, gradient in expected[1].items():
            scale = max(1.0, float(gradient.abs().max()))
            relative = actual[1][name] / scale, gradient / scale
            torch.testing.assert_close(*relative, rtol=0, atol=1e-12)

    plain = run(None, False)
    assert len(plain[1]) > 20
    for chunk, recompute in ((None, True), (5, False), (5, True), (1, True)):
        compare(run(chunk, recompute), plain)
    compare(run(None, True, 0.2), run(None, False, 0.2))
    # What a CPU encodes at a time without being asked for.
    monkeypatch.setattr("aam.model.aam.CACHED_PATCHES", 6)
    for recompute in (False, True):
        compare(run(None, recompute), plain)


def test_distances_start_where_those_of_the_study_are(batch, model_of):
    network = model_of(dataclasses.replace(HEADS, scale=(0.7, 0.1))).eval()
    network.standardize(batch)
    distances = network(batch).distance
    others = ~torch.eye(len(distances), dtype=torch.bool)
    assert distances[others].median().item() == pytest.approx(0.7, abs=0.02)


# --- masks -------------------------------------------------------------------------------------


def some_masks(batch: Batch) -> Masks:
    generator = torch.Generator().manual_seed(1)
    rows = torch.arange(0, len(batch.tokens), 2)
    tokens = batch.tokens[rows]
    where = (torch.rand(tokens.shape, generator=generator) < 0.3) & (tokens > 0)
    hidden = (torch.rand(batch.counts.shape, generator=generator) < 0.4) & (batch.counts > 0)
    return Masks(rows, tokens.masked_fill(where, MASK), where, hidden)


def test_the_count_head_never_sees_the_count_that_it_predicts(batch, model_of):
    masks = some_masks(batch)
    other = torch.where(masks.counts, batch.counts * 3 + 1, batch.counts)
    seen = torch.where(masks.counts | (batch.counts == 0), batch.counts, batch.counts * 3 + 1)
    with torch.no_grad():
        model = model_of(HEADS)
        expected = model(batch, masks)
        outputs = model(dataclasses.replace(batch, counts=other), masks)
        actual, wanted = by_slot(batch, outputs.counts), by_slot(batch, expected.counts)
        close(actual[masks.counts], wanted[masks.counts], 0)
        changed = model(dataclasses.replace(batch, counts=seen), masks)
        assert by_slot(batch, changed.counts - expected.counts)[masks.counts].abs().max() > 1e-3


def test_masked_nucleotides_are_predicted_from_the_masked_copy(batch, model_of):
    """The true bases at masked places leave no trace in their prediction (failure 4 of the
    predecessor).
    """
    masks = some_masks(batch)
    model = model_of(HEADS)
    with torch.no_grad():
        expected = model(batch, masks)
        assert expected.nucleotides.shape == (*masks.where.shape, 4)
        truth = batch.tokens.clone()
        truth[masks.rows] = torch.where(masks.where, truth[masks.rows] % 4 + 1, truth[masks.rows])
        other = model(dataclasses.replace(batch, tokens=truth), masks).nucleotides
        close(other[masks.where], expected.nucleotides[masks.where])
        around = torch.where(masks.where | (masks.tokens == 0), masks.tokens, masks.tokens % 4 + 1)
        changed = model(batch, dataclasses.replace(masks, tokens=around))
    assert (changed.nucleotides - expected.nucleotides).abs().mean() > 1e-2


def test_unifrac_and_targets_read_whole_sequences(batch, model_of):
    masks = dataclasses.replace(some_masks(batch), counts=None)
    model = model_of(HEADS)
    with torch.no_grad():
        assert_same(model(batch, masks), model(batch), 1e-6)


# --- heads -------------------------------------------------------------------------------------


def test_only_the_heads_asked_for_answer(batch, model_of):
    with torch.no_grad():
        bare = model_of()(batch, some_masks(batch))
        assert (bare.distance, bare.counts, bare.target, bare.labels) == (None, None, None, ())
        every = model_of(HEADS)(batch, some_masks(batch))
    assert every.distance.shape == (9, 9)
    assert every.target.shape == (9, 2)
    assert [tuple(labels.shape) for labels in every.labels] == [(9, 3), (9, 2)]
    assert by_slot(batch, every.counts).shape == batch.counts.shape
    assert (every.counts <= 0).all(), "logarithms of shares"
