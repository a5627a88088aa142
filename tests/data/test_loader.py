"""Batches: what the rarefied counts of their samples say, the same whatever the order of the table
and the number of workers.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import multiprocessing
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
import torch

from aam.config import TrainConfig, UnifracMetric
from aam.data.batch import Batch, Capacities, pad_batch
from aam.data.loader import Collation, Loader, collate, rarefied_batch
from aam.data.rarefaction import EVALUATION, rarefied_rows, rarefied_table
from aam.data.study import Study
from aam.device.distributed import World
from aam.diversity.distances import batch_unifrac
from aam.diversity.unifrac import UnifracOptions
from aam.errors import InputError
from aam.options import not_none
from aam.training.losses import make_masks
from aam.training.pretrain import Layout
from tests.data.labels import counts_read, labelled

ALL = np.arange(9)
DEPTH = 40
NAMES = ["s3", "07", "s10", "a", "s2", "7", "b", "s1", "s0"]


def different(actual: Batch, expected: Batch) -> list[str]:
    """Names of the fields in which two batches differ by a bit."""
    one, other = actual.tensors(), expected.tensors()
    names = [name for name in one.keys() | other.keys() if name not in one or name not in other]
    names += [name for name in one.keys() & other.keys() if not torch.equal(one[name], other[name])]
    plain = ("sizes", "has_short_asvs", "sample_ids")
    return names + [name for name in plain if getattr(actual, name) != getattr(expected, name)]


@pytest.fixture
def study(study_of, tiny):
    return study_of(**tiny(), names=NAMES)


def test_each_sample_once_an_epoch_in_batches_of_nearly_one_size(study):
    loader = Loader(study, ALL, 4, shuffle=True)
    batches = list(loader.epoch(0))
    assert len(loader) == len(batches) == 3
    assert sorted(len(batch.sample_ids) for batch in batches) == [3, 3, 3]
    assert sorted(name for batch in batches for name in batch.sample_ids) == sorted(NAMES)
    for samples, size, sizes in ((9, 9, [9]), (9, 5, [5, 4]), (3, 64, [3]), (0, 4, [])):
        loader = Loader(study, np.arange(samples), size)
        assert [len(batch.sample_ids) for batch in loader.epoch(0)] == sizes
        assert len(loader) == len(sizes)


def test_order_depends_on_seed_and_epoch_alone(study, study_of, tiny):
    def order(epoch: int, study=study, rows=ALL, shuffle=True) -> list[list[str]]:
        batches = Loader(study, rows, 4, shuffle).order(epoch)
        return [[study.table.sample_ids[row] for row in rows] for rows in batches]

    assert order(0) == order(0) == order(0, rows=np.random.default_rng(0).permutation(9))
    assert order(0) != order(1)
    assert order(0) != order(0, study_of(**tiny(), names=NAMES, seed=1))
    still = order(0, shuffle=False)
    assert still == order(5, shuffle=False)
    assert [name for batch in still for name in batch] == sorted(NAMES)


def test_the_order_of_the_table_changes_no_bit(study, study_of, tiny):
    """Rows, columns and names are shuffled together: every draw, mask of padding and distance
    stays.
    """
    made, rng = tiny(), np.random.default_rng(7)
    rows, columns = rng.permutation(9), rng.permutation(24)
    made["counts"] = made["counts"][rows][:, columns]
    made["sequences"] = [made["sequences"][column] for column in columns]
    shuffled = study_of(**made, names=[NAMES[row] for row in rows])
    for shuffle in (True, False):
        loaders = [Loader(one, np.arange(9), 4, shuffle) for one in (shuffled, study)]
        for actual, expected in zip(*(loader.epoch(3) for loader in loaders), strict=True):
            assert not different(actual, expected)


def test_one_more_worker_changes_no_bit(study):
    state = torch.random.get_rng_state()
    epochs = [list(Loader(study, ALL, 2, True, workers).epoch(1)) for workers in (0, 1, 2)]
    for batches in epochs[1:]:
        for actual, expected in zip(batches, epochs[0], strict=True):
            assert not different(actual, expected)
    assert torch.equal(state, torch.random.get_rng_state()), (
        "the draws of dropout would depend on the workers"
    )


def test_workers_live_for_all_epochs(study):
    loader = Loader(study, ALL, 2, True, workers=2)
    list(loader.epoch(0))
    children = {child.pid for child in multiprocessing.active_children()}
    assert len(children) == 2
    next(loader.epoch(0))
    alone = Loader(study, ALL, 2, True).epoch(1, skip=1)
    for actual, expected in zip(loader.epoch(1, skip=1), alone, strict=True):
        assert not different(actual, expected)
    assert {child.pid for child in multiprocessing.active_children()} == children
    del loader, actual
    gc.collect()
    assert not multiprocessing.active_children()


def test_workers_live_while_batches_are_finished_alike(study):
    loader, workers = Loader(study, ALL, 5, True, workers=1), []
    for epoch, seed in enumerate((0, 0, 1)):
        layout = Layout(TrainConfig(), seed)
        made = [*loader.epoch(epoch, 0, layout, first=7)]
        alone = [*Loader(study, ALL, 5, True).epoch(epoch, 0, layout, first=7)]
        for batch, expected in zip(made, alone, strict=True):
            assert torch.equal(batch.tokens, expected.tokens)
        workers.append({child.pid for child in multiprocessing.active_children()})
    loader.close()
    assert workers[0] == workers[1]
    assert not workers[1] & workers[2]


@pytest.mark.slow
def test_workers_end_with_the_process_that_left_an_epoch_open(tmp_path):
    """They ignore the signal by which multiprocessing ends and then waits for them; the folder
    stands for an early hook at exit.
    """
    made = f"""
import tempfile
folder = tempfile.TemporaryDirectory(dir={str(tmp_path)!r})
import numpy as np
from aam.data.loader import Loader
from tests.data.studies import make_study
study = make_study(np.full((8, 3), 50), ["ACGTACGTAC", "ACGTACGTAA", "ACGTACGTTT"])
loader = Loader(study, np.arange(8), 2, workers=1)
epoch = loader.epoch(0)
next(epoch)
"""
    subprocess.run([sys.executable, "-c", made], check=True, timeout=60)


@pytest.mark.parametrize("size", [2, 3])
def test_each_rank_draws_its_share_of_the_batch_of_one(study, size):
    """Nothing is exchanged: these worlds have no process group."""
    (one,) = Loader(study, ALL, 9, True).epoch(2)
    ranks = [
        Loader(study, ALL, -(-9 // size), True, workers=rank % 2, world=World(rank, size))
        for rank in range(size)
    ]
    parts = [next(loader.epoch(2)) for loader in ranks]
    ids = [name for part in parts for name in part.sample_ids]
    assert sorted(ids) == sorted(one.sample_ids)
    place = [one.sample_ids.index(name) for name in ids]
    expected = not_none(one.distance)[place][:, place]
    torch.testing.assert_close(torch.cat([part.distance for part in parts]), expected)
    assert sum(float(part.pairs) for part in parts) == 9 * 8 / 2
    assert len({(part.rank_sizes, part.ranks.asvs, part.has_short_asvs) for part in parts}) == 1
    for loader in ranks:
        loader.close()


def test_a_batch_smaller_than_the_number_of_ranks_is_refused(study):
    Loader(study, np.arange(3), 4, world=World(size=3)).check_division()
    Loader(study, np.arange(0), 4, world=World(size=3)).check_division()
    with pytest.raises(InputError, match="3 of 3 samples are a batch, and 4 processes share each"):
        Loader(study, np.arange(3), 4, world=World(size=4)).check_division()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_asv_is_encoded_on_one_rank_and_ranks_share_them(study, size):
    parts = np.array_split(ALL, size)
    reads = [rarefied_rows(study, rows, 0) for rows in parts]
    made = [collate(study, parts, reads, 0, rank=rank) for rank in range(size)]
    alone = rarefied_batch(study, ALL, 0)
    columns = made[0].column
    assert sorted(columns.tolist()) == sorted(alone.column.tolist())
    lengths = [len(batch.tokens) for batch in made]
    assert max(lengths) - min(lengths) <= 1
    tokens = torch.cat([batch.tokens for batch in made])
    assert torch.equal(tokens, study.tokens[columns][:, : tokens.shape[1]])
    for batch, part in zip(made, parts, strict=True):
        assert torch.equal(batch.column, columns)
        whole = collate(study, [part], [rarefied_rows(study, part, 0)], 0)
        present = batch.counts > 0
        assert torch.equal(columns[batch.asv][present], whole.column[whole.asv][whole.counts > 0])


@pytest.mark.parametrize("overflows", [False, True])
def test_ranks_agree_on_bucket_padding_and_masked_copies(study_of, tiny, overflows):
    """The ranks differ in the number of their samples; with a tight capacity one overflows."""
    study = study_of(**tiny(samples=16, asvs=60, lengths=(20, 17)))
    capacities = Capacities(((4 if overflows else 6, 64),), ((40, 16), (80, 32)), 20)
    layout, parts = Layout(TrainConfig(), 0, capacities), [np.arange(2), np.arange(2, 8)]
    reads, chosen = [rarefied_rows(study, rows, 0) for rows in parts], Collation(distances=False)
    made = [collate(study, parts, reads, 0, chosen, rank) for rank in range(2)]
    agreed = [layout(batch, 3) for batch in made]
    assert [batch.is_constant for batch in agreed] == [not overflows] * 2
    assert float(sum(batch.pairs for batch in agreed)) == 8 * 7 / 2
    assert agreed[0].shape() == agreed[1].shape()
    assert agreed[0].ranks.asvs == agreed[1].ranks.asvs
    keys = [
        set(batch.key[batch.ranks.rank_asvs][make_masks(batch, TrainConfig(), 0, 3).rows].tolist())
        for batch in made
    ]
    assert not keys[0] & keys[1]
    alone = rarefied_batch(study, np.arange(8), 0, chosen)
    assert keys[0] | keys[1] == set(alone.key[make_masks(alone, TrainConfig(), 0, 3).rows].tolist())


def test_distances_of_the_host_leave_room_for_the_dummies_of_each_rank(study):
    parts = [np.arange(4), np.arange(4, 9)]
    reads = [rarefied_rows(study, rows, 0) for rows in parts]
    capacities = Capacities(((6, 64),), ((80, 32),), 40)
    for rank in range(2):
        batch = collate(study, parts, reads, 0, rank=rank)
        padded = pad_batch(batch, None, capacities)
        wide = not_none(padded.distance)
        assert wide.shape == (6, 12)
        own = wide[: len(parts[rank])][:, [*range(4), *range(6, 11)]]
        assert torch.equal(own, batch.distance)
        assert int(torch.isfinite(wide).sum()) == 9 * len(parts[rank])


def test_a_batch_between_processes_is_one_array(study):
    for batch in (
        rarefied_batch(study, ALL, 0),
        Layout(TrainConfig(), 0)(rarefied_batch(study, ALL, 0), 1),
    ):
        arrived = copy.deepcopy(batch)
        assert type(arrived) is type(batch)
        for name, value in batch.tensors().items():
            assert torch.equal(arrived.tensors()[name].nan_to_num(-1), value.nan_to_num(-1)), name
        assert arrived.sample_ids == batch.sample_ids
        storages = {value.untyped_storage().data_ptr() for value in arrived.tensors().values()}
        assert len(storages) == 1
        grown = dataclasses.replace(arrived, weight=torch.zeros(9))
        assert torch.equal(copy.deepcopy(grown).weight, torch.zeros(9))


def test_an_epoch_goes_on_where_it_was_left(study):
    loader = Loader(study, ALL, 2, True)
    whole = list(loader.epoch(2))
    for actual, expected in zip(loader.epoch(2, skip=3), whole[3:], strict=True):
        assert not different(actual, expected)
    assert list(loader.epoch(2, skip=len(loader))) == []


def test_what_a_batch_carries(study):
    collations = Collation(), Collation(tokens=False, distances=False)
    with_all, bare = (
        next(Loader(study, ALL, 4, collation=collation).epoch(0)) for collation in collations
    )
    assert bare.distance is None
    assert bare.tokens.shape == (len(with_all.tokens), 0)
    assert torch.equal(bare.column, with_all.column)
    assert torch.equal(study.tokens[with_all.column], with_all.tokens)
    for batch in (with_all, bare):
        assert not different(copy.deepcopy(batch), batch), "in one buffer, empty tensors too"


# --- the contents of a batch ---------------------------------------------------------------------


def rarefied(study: Study, names: tuple[str, ...], draw: int) -> np.ndarray:
    """Dense rarefied counts of the samples named, [B, F]."""
    return rarefied_table(study, draw)[study.rows(names)].toarray()


@pytest.fixture
def uneven(study_of, tiny) -> Study:
    """A study of ASVs of two lengths."""
    return study_of(**tiny(lengths=(20, 17)), depth=DEPTH)


def test_a_batch_holds_the_rarefied_counts_of_its_samples(uneven):
    batch = rarefied_batch(uneven, np.array([5, 2, 8, 0]), 3)
    assert sorted(batch.sample_ids) == ["s0", "s2", "s5", "s8"]
    assert (batch.counts.sum(dim=1) == DEPTH).all()
    np.testing.assert_array_equal(counts_read(uneven, batch), rarefied(uneven, batch.sample_ids, 3))
    assert batch.sizes == tuple((batch.counts > 0).sum(1).tolist())
    assert list(batch.sizes) == sorted(batch.sizes, reverse=True)
    assert batch.counts.shape == (4, max(batch.sizes))
    assert (batch.asv[batch.counts == 0] == 0).all()
    assert len(batch.column) == len(set(batch.column.tolist())), "each distinct ASV once"
    assert (np.diff(uneven.lengths[batch.column.numpy()]) >= 0).all(), "in order of length"
    assert batch.tokens.shape[1] == uneven.lengths[batch.column.numpy()].max()
    assert batch.has_short_asvs
    assert batch.tokens.dtype == torch.uint8


def test_epochs_are_shallow_differently_and_reproducibly(uneven, study_of, tiny):
    def draw(one: Study, epoch: int) -> np.ndarray:
        return counts_read(one, rarefied_batch(one, np.array([4]), epoch))

    np.testing.assert_array_equal(draw(uneven, 0), draw(uneven, 0))
    assert (draw(uneven, 0) != draw(uneven, 1)).any()
    assert (draw(uneven, 0) != draw(uneven, EVALUATION)).any()
    assert (draw(uneven, 0) != draw(study_of(**tiny(lengths=(20, 17)), seed=1), 0)).any()
    alone = draw(uneven, 1)
    both = rarefied_batch(uneven, np.array([1, 4]), 1)
    np.testing.assert_array_equal(counts_read(uneven, both)[both.sample_ids.index("s4")], alone[0])


@pytest.mark.parametrize("metric", get_args(UnifracMetric))
def test_distances_are_those_of_the_rarefied_counts(study_of, tiny, metric):
    study = study_of(**tiny(), depth=DEPTH, unifrac_metric=metric)
    batch, part = rarefied_batch(study, np.array([3, 1, 7, 0, 5]), 2), study.parts[0]
    counts = rarefied(study, batch.sample_ids, 2)
    expected = batch_unifrac(part.tree, part.tips, counts, UnifracOptions(metric))
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


def test_covariates_follow_their_samples_and_are_hidden_by_name(uneven):
    """What is hidden depends on seed, epoch and sample alone, and the study keeps its values."""
    rng, bare = np.random.default_rng(0), rarefied_batch(uneven, np.arange(3), 0)
    assert (bare.target, bare.label, bare.category, bare.covariate) == (None,) * 4
    assert bare.weight.tolist() == [1.0] * 3
    covariate = rng.normal(size=(9, 1)).astype(np.float32)
    uneven = labelled(uneven, category=rng.integers(1, 5, (9, 2)), covariate=covariate)
    batch = rarefied_batch(uneven, np.array([6, 2, 7]), 0)
    rows = uneven.rows(batch.sample_ids)
    assert batch.category.tolist() == uneven.labels.category[rows].tolist()
    assert batch.covariate.tolist() == covariate[rows].tolist()

    def hidden(rows, draw):
        batch = rarefied_batch(uneven, np.array(rows), draw, Collation(covariate_dropout=0.4))
        together = torch.cat([batch.category == 0, batch.covariate.isnan()], dim=1)
        return dict(zip(batch.sample_ids, map(tuple, together.tolist()), strict=True))

    one, other = hidden(range(9), 3), hidden([8, 4], 3)
    assert other.items() <= one.items()
    assert hidden(range(9), 4) != one
    share = np.mean([list(hidden(range(9), draw).values()) for draw in range(30)], axis=(0, 1))
    assert share == pytest.approx(0.4, abs=0.1)
    assert (uneven.labels.category > 0).all()
    assert np.isfinite(uneven.labels.covariate).all()


def test_targets_follow_their_samples(uneven):
    target = np.arange(9, dtype=np.float32)[:, None]
    label = np.arange(9)[:, None] % 4 - 1
    batch = rarefied_batch(labelled(uneven, target=target, label=label), np.array([6, 2, 7]), 0)
    assert [f"s{int(value)}" for value in batch.target[:, 0]] == list(batch.sample_ids)
    assert batch.label[:, 0].tolist() == [int(name[1:]) % 4 - 1 for name in batch.sample_ids]
