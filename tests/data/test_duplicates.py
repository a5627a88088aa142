"""Near duplicates: two draws of one sample are found, strangers and siblings are not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import aam.data.duplicates
from aam.data.duplicates import duplicates_of
from aam.data.inputs import table_from

READS = 4000


def table_of(counts):
    ids = [f"s{row}" for row in range(len(counts))]
    frame = pd.DataFrame(counts, ids, [f"OTU{place}" for place in range(counts.shape[1])])
    return table_from(frame, need_sequences=False)


def strangers(samples=30, features=300):
    """Counts of samples that have about a third of the features, each with its own shares."""
    rng = np.random.default_rng(0)
    shares = (rng.random((samples, features)) < 0.3) * np.exp(rng.normal(0, 2, (samples, features)))
    return np.stack([rng.multinomial(READS, row / row.sum()) for row in shares])


REPEATS = {
    "the same reads": lambda row, rng: row,
    "half of them": lambda row, rng: row // 2,
    "another sequencing": lambda row, rng: rng.multinomial(READS, row / row.sum()),
    "deeper": lambda row, rng: rng.multinomial(10 * READS, row / row.sum()),
}


@pytest.mark.parametrize("repeat", REPEATS.values(), ids=REPEATS)
def test_a_table_repeated_under_new_ids_is_pairs(repeat):
    counts, rng = strangers(), np.random.default_rng(1)
    again = np.stack([repeat(row, rng) for row in counts])
    pairs = duplicates_of(table_of(np.concatenate([counts, again])))
    assert pairs == [(f"s{row}", f"s{row + len(counts)}") for row in range(len(counts))]


def test_strangers_empty_samples_and_half_mixtures_are_no_pairs():
    counts, rng = strangers(), np.random.default_rng(1)
    counts[3] = 0
    counts[4] = rng.multinomial(READS, (counts[5] + counts[6]) / (2 * READS))
    assert duplicates_of(table_of(counts)) == []
    assert duplicates_of(table_of(counts[:1])) == []


def test_a_part_of_a_large_table_is_compared(monkeypatch):
    monkeypatch.setattr(aam.data.duplicates, "MOST_PAIRED", 40)
    counts = strangers()
    pairs = duplicates_of(table_of(np.concatenate([counts, counts])))
    assert 5 <= len(pairs) < 30
