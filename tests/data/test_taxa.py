"""Taxa as classes by rank: what is unknown has none, and only training ASVs make classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aam.data.taxa import Taxa, read_taxonomies, taxon_at
from aam.errors import InputError

LINEAGES = (
    ("k__Bacteria", "p__A", "c__X"),
    ("k__Bacteria", "p__A", "c__uncultured", "o__O"),
    ("k__Bacteria", "p__B"),
    (),
    ("k__Bacteria", "p__C", "c__X"),
    ("k__Bacteria", "p__A", "c__Y"),
)


def test_classes_are_lineages_of_training_asvs_and_unknown_ranks_are_left_out():
    taxa = Taxa.fit(LINEAGES, np.array([0, 1, 2, 3, 5]))
    assert taxa.ranks == ("phylum", "class"), "one kingdom, one order: nothing to tell apart"
    assert taxa.names == (
        ("k__Bacteria; p__A", "k__Bacteria; p__B"),
        ("k__Bacteria; p__A; c__X", "k__Bacteria; p__A; c__Y"),
    )
    assert taxa.codes.tolist() == [[0, 0], [0, -1], [1, -1], [-1, -1], [-1, -1], [0, 1]]
    shares = np.array([3, 1]) / 4
    assert taxa.entropies == (pytest.approx(-(shares * np.log(shares)).sum()), pytest.approx(np.log(2)))


def test_a_taxon_is_named_with_all_above_it():
    assert taxon_at(LINEAGES[1], 1) == "k__Bacteria; p__A"
    assert [taxon_at(LINEAGES[1], 2), taxon_at(LINEAGES[2], 2), taxon_at((), 0)] == [None, None, None]


@pytest.mark.parametrize("columns", [[3], [0], [0, 0], []])
def test_a_taxonomy_that_tells_no_asvs_apart_is_refused(columns):
    with pytest.raises(InputError, match="fewer than two taxa at every rank"):
        Taxa.fit(LINEAGES, np.array(columns, np.int64))


def test_several_files_are_one_taxonomy_and_the_first_wins(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("Feature ID\tTaxon\na\tk__A\n")
    (tmp_path / "b.tsv").write_text("Feature ID\tTaxon\na\tk__B\nb\tk__B\n")
    both = read_taxonomies([tmp_path / "a.tsv", tmp_path / "b.tsv"])
    assert both.lineages == {"a": ("k__A",), "b": ("k__B",)}
    for name in ("a.tsv", "b.tsv"):
        (tmp_path / name).write_text("no\theader\n")
    with pytest.raises(InputError) as caught:
        read_taxonomies([tmp_path / "a.tsv", tmp_path / "b.tsv"])
    assert len(caught.value.problems) == 2
