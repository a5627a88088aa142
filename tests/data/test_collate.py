"""Each shallow batch is what the rarefied counts of its samples say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from skbio import TreeNode
from skbio.diversity import beta_diversity

from aam.data.loader import Collation, rarefied_batch
from aam.data.rarefaction import EVALUATION, rarefied_table
from aam.data.study import Study
from aam.diversity.distances import batch_unifrac
from tests.data.labels import counts_read, labelled

DEPTH = 40


def rarefied(study: Study, names: tuple[str, ...], draw: int) -> np.ndarray:
    """Dense rarefied counts of the samples named, [B, F]."""
    return rarefied_table(study, draw)[study.rows(names)].toarray()


@pytest.fixture
def study(study_of, tiny) -> Study:
    return study_of(**tiny(lengths=(20, 17)), depth=DEPTH)


def test_a_batch_holds_the_rarefied_counts_of_its_samples(study):
    batch = rarefied_batch(study, np.array([5, 2, 8, 0]), 3)
    assert sorted(batch.sample_ids) == ["s0", "s2", "s5", "s8"]
    assert (batch.counts.sum(dim=1) == DEPTH).all()
    np.testing.assert_array_equal(counts_read(study, batch), rarefied(study, batch.sample_ids, 3))
    assert batch.sizes == tuple((batch.counts > 0).sum(1).tolist())
    assert list(batch.sizes) == sorted(batch.sizes, reverse=True)
    assert batch.counts.shape == (4, max(batch.sizes))
    assert (batch.asv[batch.counts == 0] == 0).all()
    assert len(batch.column) == len(set(batch.column.tolist())), "each distinct ASV once"
    assert (np.diff(study.lengths[batch.column.numpy()]) >= 0).all(), "in order of length"
    assert batch.tokens.shape[1] == study.lengths[batch.column.numpy()].max()
    assert batch.padded
    assert batch.tokens.dtype == torch.uint8


def test_epochs_are_shallow_differently_and_reproducibly(study, study_of, tiny):
    def draw(one: Study, epoch: int) -> np.ndarray:
        return counts_read(one, rarefied_batch(one, np.array([4]), epoch))

    np.testing.assert_array_equal(draw(study, 0), draw(study, 0))
    assert (draw(study, 0) != draw(study, 1)).any()
    assert (draw(study, 0) != draw(study, EVALUATION)).any()
    assert (draw(study, 0) != draw(study_of(**tiny(lengths=(20, 17)), seed=1), 0)).any()
    alone = draw(study, 1)
    both = rarefied_batch(study, np.array([1, 4]), 1)
    np.testing.assert_array_equal(counts_read(study, both)[both.sample_ids.index("s4")], alone[0])


@pytest.mark.parametrize(
    ("metric", "in_skbio", "how"),
    [
        ("unifrac", "unweighted_unifrac", {}),
        ("weighted", "weighted_unifrac", {"normalized": False}),
        ("weighted-normalized", "weighted_unifrac", {"normalized": True}),
    ],
)
def test_distances_are_those_of_the_rarefied_counts(study_of, tiny, metric, in_skbio, how):
    made = tiny()
    study = study_of(**made, depth=DEPTH, unifrac_metric=metric)
    batch = rarefied_batch(study, np.array([3, 1, 7, 0, 5]), 2)
    counts, how["tree"] = rarefied(study, batch.sample_ids, 2), TreeNode.read([made["newick"]])
    expected = beta_diversity(in_skbio, counts, taxa=study.table.feature_ids, **how).data
    assert expected[0, 1] > 0.05
    np.testing.assert_allclose(batch.distance.numpy(), expected, atol=1e-6)


def test_the_token_limit_cuts_the_input_and_not_the_distance(study_of, tiny):
    """Rarefied, then UniFrac, then the limit; what is left out is not made up for."""
    made, rows = tiny(), np.arange(9)
    whole = rarefied_batch(study_of(**made), rows, 0)
    limited_study = study_of(**made, token_limit=5)
    limited = rarefied_batch(limited_study, rows, 0)
    assert limited.counts.shape == (9, 5)
    assert max(whole.sizes) > 5
    place = [whole.sample_ids.index(name) for name in limited.sample_ids]
    assert torch.equal(limited.distance, whole.distance[place][:, place])
    full, cut = counts_read(limited_study, whole)[place], counts_read(limited_study, limited)
    assert ((cut == full) | (cut == 0)).all()
    for all_of_it, kept in zip(full, cut, strict=True):
        assert sorted(kept[kept > 0]) == sorted(all_of_it)[-5:]


def test_relative_abundance_is_of_the_rarefied_depth(study_of, tiny, model_of):
    """Not of the reads that the token limit leaves: all of 40 reads is as all of 80, and not as 20
    of 40.
    """
    batch = rarefied_batch(study_of(**tiny(), token_limit=1), np.arange(9), 0)
    assert batch.sizes == (1,) * 9
    assert (batch.counts < DEPTH).all()

    def vectors(depth: int, reads: float) -> torch.Tensor:
        counts = torch.full_like(batch.counts, reads)
        return model_of(depth=depth)(dataclasses.replace(batch, counts=counts)).samples

    with torch.no_grad():
        torch.testing.assert_close(vectors(40, 40), vectors(80, 80))
        assert (vectors(40, 40) - vectors(40, 20)).abs().max() > 1e-3


def test_shallow_rarefactions_have_fewer_reads_and_their_own_distances(study_of, tiny):
    study, rows = study_of(**tiny()), np.arange(9)
    full = rarefied_batch(study, rows, 3)
    assert (full.counts.sum(dim=1) == study.depth).all()
    shallow = rarefied_batch(study, rows, 3, Collation(shallow=1.0))
    reads = shallow.counts.sum(dim=1).numpy()
    assert reads.min() >= study.depth / 4
    assert reads.max() <= study.depth
    assert len(set(reads.tolist())) > 4
    again, later = (rarefied_batch(study, rows, at, Collation(shallow=1.0)) for at in (3, 4))
    assert torch.equal(again.counts, shallow.counts)
    assert set(later.counts.sum(dim=1).tolist()) != set(reads.tolist())
    half = (rarefied_batch(study, rows, at, Collation(shallow=0.5)) for at in range(20))
    some = torch.cat([batch.counts.sum(dim=1) for batch in half])
    assert 0.3 < float((some < study.depth).float().mean()) < 0.6
    part = study.parts[0]
    expected = batch_unifrac(part.tree, part.tips, counts_read(study, shallow))
    np.testing.assert_allclose(shallow.distance, expected, atol=1e-6)


def test_covariates_follow_their_samples_and_are_hidden_by_name(study):
    """What is hidden depends on seed, epoch and sample alone, and the study keeps its values."""
    rng, bare = np.random.default_rng(0), rarefied_batch(study, np.arange(3), 0)
    assert (bare.target, bare.label, bare.category, bare.covariate) == (None,) * 4
    assert bare.weight.tolist() == [1.0] * 3
    covariate = rng.normal(size=(9, 1)).astype(np.float32)
    study = labelled(study, category=rng.integers(1, 5, (9, 2)), covariate=covariate)
    batch = rarefied_batch(study, np.array([6, 2, 7]), 0)
    rows = study.rows(batch.sample_ids)
    assert batch.category.tolist() == study.labels.category[rows].tolist()
    assert batch.covariate.tolist() == covariate[rows].tolist()

    def hidden(rows, draw):
        batch = rarefied_batch(study, np.array(rows), draw, Collation(covariate_dropout=0.4))
        together = torch.cat([batch.category == 0, batch.covariate.isnan()], dim=1)
        return dict(zip(batch.sample_ids, map(tuple, together.tolist()), strict=True))

    one, other = hidden(range(9), 3), hidden([8, 4], 3)
    assert other.items() <= one.items()
    assert hidden(range(9), 4) != one
    share = np.mean([list(hidden(range(9), draw).values()) for draw in range(30)], axis=(0, 1))
    assert share == pytest.approx(0.4, abs=0.1)
    assert (study.labels.category > 0).all()
    assert np.isfinite(study.labels.covariate).all()


def test_targets_follow_their_samples(study):
    target = np.arange(9, dtype=np.float32)[:, None]
    label = np.arange(9)[:, None] % 4 - 1
    batch = rarefied_batch(labelled(study, target=target, label=label), np.array([6, 2, 7]), 0)
    assert [f"s{int(value)}" for value in batch.target[:, 0]] == list(batch.sample_ids)
    assert batch.label[:, 0].tolist() == [int(name[1:]) % 4 - 1 for name in batch.sample_ids]
