"""Taxa as classes by rank: what is unknown has none, and only training ASVs make classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aam.data.taxa import Taxa, read_lineages, taxon_at
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


@pytest.mark.parametrize(
    "name",
    [
        "o__",
        "__",
        "D_3__",
        "o__uncultured_bacterium",
        "D_3__uncultured bacterium",
        "o__gut_metagenome",
        "Unknown_Family",
    ],
)
def test_names_that_say_nothing_are_no_taxa(name: str):
    assert taxon_at(("d__Bacteria", name, "g__A"), 1) is None
    assert taxon_at(("d__Bacteria", name, "g__A"), 2) == f"d__Bacteria; {name}; g__A"


def test_several_files_are_one_taxonomy_and_the_first_that_knows_wins(tmp_path: Path, caplog):
    paths = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
    paths[0].write_text("Feature ID\tTaxon\na\tk__A\nc\tUnassigned\n")
    paths[1].write_text("Feature ID\tTaxon\na\tk__B\nb\tk__B\nc\tk__C\n")
    ids = ["a", "b", "c", "d"]
    assert read_lineages(paths, ids, ids) == (("k__A",), ("k__B",), ("k__C",), ())
    assert read_lineages(paths, ["b"], ["b"]) == (("k__B",),)
    assert "a.tsv names none of the 1 ASVs" in caplog.text, "one of several files may fit nothing, and it is said"
    with pytest.raises(InputError) as caught:
        read_lineages(paths, ["e"], ["e"])
    assert len(caught.value.problems) == 2
    for path in paths:
        path.write_text("no\theader\n")
    with pytest.raises(InputError) as caught:
        read_lineages(paths, ids, ids)
    assert len(caught.value.problems) == 2
