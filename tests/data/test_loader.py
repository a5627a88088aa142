"""The loader's batches: the same whatever the order of the table and the number of workers."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from aam.data.batch import Batch
from aam.data.loader import Collation, Loader, exchange_rows
from aam.data.rarefaction import rarefied_rows
from aam.device.distributed import World

ALL = np.arange(9)
NAMES = ["s3", "07", "s10", "a", "s2", "7", "b", "s1", "s0"]


def different(actual: Batch, expected: Batch) -> list[str]:
    """Names of the fields in which two batches differ by a bit."""
    one, other = actual.tensors(), expected.tensors()
    names = [name for name in one.keys() | other.keys() if name not in one or name not in other]
    names += [name for name in one.keys() & other.keys() if not torch.equal(one[name], other[name])]
    plain = ("sizes", "padded", "sample_ids")
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


@dataclasses.dataclass(frozen=True)
class Echo(World):
    """Two ranks, of which the other has what this one has."""

    size: int = 2
    begun: list[Tensor] = dataclasses.field(default_factory=list)

    def begin_gather(self, values):
        self.begun.append(values)
        return lambda: [values, values]


def test_ranks_exchange_rows_one_batch_ahead(study):
    echo, rows = Echo(), rarefied_rows(study, np.arange(4), 0)
    most = sum(len(columns) for columns, _ in rows)
    for received in exchange_rows(rows, [4, 4], most, echo)():
        for row, expected in zip(received, rows, strict=True):
            assert all(np.array_equal(one, other) for one, other in zip(row, expected, strict=True))
    assert echo.begun[0].dtype == torch.int32
    echo.begun.clear()
    epoch = Loader(study, np.arange(8), 2, world=echo).epoch(0)
    assert [(len(batch.sample_ids), len(echo.begun)) for batch in epoch] == [(2, 2), (2, 2)]


def test_an_epoch_goes_on_where_it_was_left(study):
    loader = Loader(study, ALL, 2, True)
    whole = list(loader.epoch(2))
    for actual, expected in zip(loader.epoch(2, skip=3), whole[3:], strict=True):
        assert not different(actual, expected)
    assert list(loader.epoch(2, skip=len(loader))) == []


def test_what_a_batch_carries(study):
    hows = Collation(), Collation(tokens=False, distances=False)
    with_all, bare = (next(Loader(study, ALL, 4, how=how).epoch(0)) for how in hows)
    assert bare.distance is None
    assert bare.tokens.shape == (len(with_all.tokens), 0)
    assert torch.equal(bare.column, with_all.column)
    assert torch.equal(study.tokens[with_all.column], with_all.tokens)
    for batch in (with_all, bare):
        assert not different(batch.on(batch.buffer()), batch), "in one buffer, empty tensors too"
