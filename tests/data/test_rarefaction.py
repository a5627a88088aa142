"""Rarefaction, and the depth where none is asked for."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from scipy.stats import hypergeom

from aam.data.rarefaction import LOWEST_DEPTH, choose_depth, rarefied_row, rarefy
from aam.data.table import deep_enough, make_table, read_table, select_samples
from aam.device.rng import generator
from tests.data.small_tables import biom_table, save_hdf5
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("values", "depth"),
    [([10, 3, 0, 87], 20), ([10, 3, 0, 87], 95), ([150_000, 30_000, 1, 20_000], 50)],
    ids=["shuffled", "nearly all", "marginal"],
)
def test_each_count_is_hypergeometric(values, depth):
    values, rng = np.array(values, dtype=np.uint32), generator(0, "test")
    total = int(values.sum(dtype=np.int64))
    drawn = np.array([rarefy(values, depth, rng) for _ in range(2000)])
    assert (drawn.sum(axis=1) == depth).all()
    assert ((drawn >= 0) & (drawn <= values.astype(np.int64))).all()
    share = values / total
    spread = np.sqrt(depth * share * (1 - share) * (total - depth) / (total - 1))
    error = np.abs(drawn.mean(axis=0) - depth * share)
    assert (error <= 4 * spread / np.sqrt(2000) + 1e-4).all()
    assert (np.abs(drawn.std(axis=0) - spread) <= 0.06 * spread + 2e-2).all()
    levels, times = np.unique(drawn[:, 0], return_counts=True)
    expected = hypergeom.pmf(levels, total, int(values[0]), depth)
    np.testing.assert_allclose(times / 2000, expected, atol=0.035)


def test_more_reads_than_any_sequencer_gives_are_refused():
    counts = csr_array(np.array([[2**30, 1], [5, 5]], np.uint32))
    table = make_table(counts, ["s", "t"], ["f", "g"])
    assert "1 samples have 1,000,000,000 reads or more: 's'" in refusal(deep_enough, table, 10)


def test_the_ends_of_rarefaction():
    values = np.array([4, 0, 2], dtype=np.uint8)
    assert rarefy(values, 6, generator(0)).tolist() == [4, 0, 2]
    assert rarefy(values, 0, generator(0)).tolist() == [0, 0, 0]
    for depth in (7, -1):
        with pytest.raises(ValueError, match="is not between 0 and the 6 reads"):
            rarefy(values, depth, generator(0))


def test_a_sample_is_rarefied_by_itself(tmp_path):
    table = read_table(save_hdf5(biom_table(), tmp_path / "t"))
    columns, values = rarefied_row(table, 0, 500, seed=3, epoch=1)
    assert values.sum() == 500
    assert (values > 0).all()
    assert (np.diff(columns) > 0).all()
    again = rarefied_row(select_samples(table, ["s1", "s10"]), 1, 500, seed=3, epoch=1)
    np.testing.assert_array_equal(columns, again[0])
    np.testing.assert_array_equal(values, again[1])
    counts = csr_array(np.full((1, 300), 60, np.uint32))
    many = make_table(counts, ["s"], [f"f{i}" for i in range(300)])
    draws = [rarefied_row(many, 0, 500, *draw)[1].tobytes() for draw in ((1, 1), (1, 2), (2, 1))]
    assert len(set(draws)) == 3


def depth_of(reads, labels=None, training=None) -> int:
    """The depth chosen for samples of one ASV with so many reads."""
    counts = csr_array(np.array(reads, np.uint32)[:, None])
    table = make_table(counts, [f"s{row}" for row in range(len(reads))], ["f"])
    classes = pd.DataFrame({} if labels is None else {"site": [*labels]}, [*table.sample_ids])
    return choose_depth(table, classes, training)


@pytest.mark.parametrize(
    ("count", "labels", "expected"),
    [
        (10, None, 2),
        (9, None, 1),
        (100, None, 11),
        (10, "a" * 9 + "b", 2),
        (40, "a" * 20 + "b" * 20, 3),
        (40, "a" * 10 + "b" * 30, 2),
        (40, ["a"] * 9 + [None] * 31, 5),
    ],
)
def test_ninety_percent_are_kept_of_all_and_of_every_class_of_ten(count, labels, expected):
    depths = np.arange(1001, 1001 + count)
    assert depth_of(depths, labels) == 1000 + expected
    for name in {*(labels or [])} - {None}:
        members = depths[[label == name for label in labels]]
        assert len(members) < 10 or (members >= 1000 + expected).mean() >= 0.9


def test_training_samples_decide_and_few_samples_keep_two_of_a_class():
    depths, labels = np.arange(1001, 1021), "a" * 10 + "b" * 10
    assert depth_of(depths, labels) == 1002
    assert depth_of(depths, labels, [f"s{row}" for row in range(1, 20)]) == 1003
    assert depth_of([600, 700, *[900] * 18], "aa" + "b" * 18) == 600


def test_no_depth_below_the_lowest_is_chosen_unasked(caplog):
    assert depth_of([20] * 5 + [900] * 15) == LOWEST_DEPTH
    assert (
        "500 reads; 90 % of all samples reach 20, of all samples 20; --rarefy-depth sets"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("reads", "says"),
    [
        ([499] * 20, "0 of 20 samples have 500 reads"),
        ([0] * 20, "half have 0 or fewer"),
        (
            [51] * 35 + [900] * 5,
            "5 of 40 samples have 500 reads, the smallest automatic depth; half",
        ),
        (
            [51] * 21 + [900] * 19,
            "half have 51 or fewer; pass the counted reads of all features, or",
        ),
    ],
)
def test_a_shallow_table_ends_in_a_message_about_its_depth(reads, says):
    """The five samples left ended in one about classes."""
    assert says in refusal(depth_of, reads, ["a", "b"] * (len(reads) // 2))
