"""Masks: drawn from (seed, step, ASV) whatever the batch, in the shares asked for, never on N or
padding.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from aam.config import TrainConfig
from aam.data.batch import Batch, Masks
from aam.data.loader import rarefied_batch
from aam.data.tokens import asv_keys, encode
from aam.training import losses as masking
from aam.training.losses import make_masks

N, MASK = 5, 6


def named(batch: Batch, masks: Masks) -> tuple[dict[str, tuple], dict[tuple[str, str], bool]]:
    """Masked copies by sequence, and withheld counts by sample and sequence."""
    letters = np.array(list("-ACGTN?"))
    sequences = ["".join(letters[row]).rstrip("-") for row in batch.tokens.numpy()]
    copies = {}
    for place, row in enumerate(masks.rows.tolist()):
        copy, where = masks.tokens[place].numpy(), masks.where[place].numpy()
        places = tuple(np.flatnonzero(where).tolist())
        copies[sequences[row]] = "".join(letters[copy]).rstrip("-"), places
    hidden = {}
    for sample, name in enumerate(batch.sample_ids):
        for slot in range(batch.sizes[sample]):
            hidden[name, sequences[batch.asv[sample, slot]]] = bool(masks.counts[sample, slot])
    return copies, hidden


@pytest.fixture
def every_asv(monkeypatch):
    """A masked copy of every ASV."""
    monkeypatch.setattr(masking, "MASKED_ASVS", 1.0)


@pytest.fixture
def study(study_of, tiny):
    return study_of(**tiny(samples=9, asvs=24, lengths=(30, 17, 24)))


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_masks_do_not_depend_on_the_layout_of_the_batch(study, share, monkeypatch):
    monkeypatch.setattr(masking, "MASKED_ASVS", share)
    monkeypatch.setattr(masking, "MASKED_COUNTS", 0.4)
    config = TrainConfig(nuc_mask_ratio=0.3)
    whole = rarefied_batch(study, np.arange(9), 0)
    copies, hidden = named(whole, make_masks(whole, config, 3, 7))
    assert 0 < sum(hidden.values()) < len(hidden)
    assert len(copies) == len(whole.tokens) if share == 1 else 0 < len(copies) < len(whole.tokens)
    for rows in ([4], [8, 2], [1, 3, 5, 7]):
        part = rarefied_batch(study, np.array(rows), 0)
        some, some_hidden = named(part, make_masks(part, config, 3, 7))
        letters = {sequence for _, sequence in some_hidden}
        assert some == {sequence: copy for sequence, copy in copies.items() if sequence in letters}
        assert some_hidden == {key: value for key, value in hidden.items() if key in some_hidden}
    wider = torch.nn.functional.pad(whole.tokens, (0, 9))
    padded = dataclasses.replace(whole, tokens=wider, has_short_asvs=True)
    assert named(padded, make_masks(padded, config, 3, 7)) == (copies, hidden)


def test_each_seed_and_step_has_masks_of_its_own(study):
    batch = rarefied_batch(study, np.arange(9), 0)
    keys = ((0, 0), (0, 0), (0, 1), (1, 0), (0, -1))
    first, *drawn = (named(batch, make_masks(batch, TrainConfig(), *key)) for key in keys)
    assert first == drawn[0]
    for one, other in itertools.combinations(drawn, 2):
        assert one[0] != other[0]
        assert one[1] != other[1]


def large_batch(lengths: tuple[int, ...] = (150,), letters: str = "ACGT") -> Batch:
    rng = np.random.default_rng(0)
    sizes = (lengths[place % len(lengths)] for place in range(600))
    sequences = ["".join(rng.choice(list(letters), size)) for size in sizes]
    asv = torch.arange(600).view(10, 60)
    tokens, names = torch.from_numpy(encode(sequences)), tuple(f"s{each}" for each in range(10))
    of_asvs = {"key": asv_keys(tokens), "has_short_asvs": len(lengths) > 1}
    return Batch(tokens, asv, torch.ones(10, 60), sizes=(60,) * 10, sample_ids=names, **of_asvs)


def test_the_share_of_masked_bases(every_asv):
    """600 ASVs of 150 bases; in spans only the first five bases have fewer starts before them."""
    ratio = 0.4
    config = TrainConfig(nuc_mask_ratio=ratio)
    where = make_masks(large_batch(), config, 0, 0).where
    assert where.shape == (600, 150)
    inner = where[:, 10:].double()
    assert inner.mean() == pytest.approx(ratio, abs=0.01)
    by_place = inner.mean(dim=0)
    limit = 5 * (ratio * (1 - ratio) / 600) ** 0.5
    assert (by_place - ratio).abs().max() < limit, "each place alike"
    assert inner.mean(dim=1).std() > 0.02, "each ASV has places of its own"


def test_n_and_padding_are_never_masked(every_asv):
    batch = large_batch((150, 31, 97), "ACGTNRY")
    config = TrainConfig(nuc_mask_ratio=0.5)
    masks = make_masks(batch, config, 0, 0)
    bases = (batch.tokens >= 1) & (batch.tokens <= 4)
    assert (~bases).any()
    assert masks.where.any()
    assert not (masks.where & ~bases).any()
    assert (masks.tokens[masks.where] == MASK).all()
    assert torch.equal(masks.tokens[~masks.where], batch.tokens[~masks.where])
    assert (masks.tokens[batch.tokens == N] == N).all()
    assert masks.tokens.dtype == torch.uint8


def test_the_shares_of_asvs_and_counts():
    batch = large_batch()
    masks = make_masks(batch, TrainConfig(), 0, 0)
    assert len(masks.rows) / 600 == pytest.approx(0.25, abs=0.05)
    assert masks.rows.tolist() == sorted(set(masks.rows.tolist()))
    assert masks.counts.double().mean() == pytest.approx(0.15, abs=0.05)
    by_sample = masks.counts.double().mean(dim=1)
    assert by_sample.min() > 0.02
    chosen = torch.zeros(600, dtype=torch.bool)
    chosen[masks.rows] = True
    both = (chosen & masks.counts.flatten()).double().mean()
    assert both == pytest.approx(0.25 * 0.15, abs=0.03), "the two draws are independent"


def test_a_loss_without_weight_needs_no_mask(study, every_asv):
    batch = rarefied_batch(study, np.arange(9), 0)
    assert make_masks(batch, TrainConfig(nuc_penalty=0.0, count_penalty=0.0), 0, 0) is None
    nucleotides = make_masks(batch, dataclasses.replace(TrainConfig(), count_penalty=0.0), 0, 0)
    assert nucleotides.counts is None
    assert len(nucleotides.rows) == len(batch.tokens)
    counts = make_masks(batch, dataclasses.replace(TrainConfig(), nuc_penalty=0.0), 0, 0)
    assert len(counts.rows) == 0
    assert counts.counts.any()
