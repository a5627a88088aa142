"""Auxiliary targets of pretraining."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from skbio import TreeNode
from skbio.diversity import alpha_diversity, beta_diversity

from aam.data.auxiliary_targets import Taxa, read_lineages, taxon_at
from aam.data.collate import Collation, collate, rarefied_batch
from aam.data.rarefaction import rarefied_rows
from aam.data.study import Study, StudyPart
from aam.errors import InputError
from tests.data.labels import counts_read, with_auxiliary_targets

ALL = ("bray-curtis", "jaccard", "faith-pd", "taxonomy")


@pytest.fixture
def study(study_of, tiny) -> Study:
    study = study_of(**tiny(lengths=(20, 17)), depth=40)
    lineages = tuple(
        ("k__B", f"p__{sequence[0]}") if sequence[1] != "A" else ()
        for sequence in study.table.sequences
    )
    return with_auxiliary_targets(study, lineages, ALL)


@pytest.mark.parametrize("draw", [-1, 0, 3])
def test_they_are_those_of_the_rarefied_reads(study, tiny, draw):
    batch = rarefied_batch(study, np.array([5, 2, 8, 0]), draw, Collation(distances=False))
    counts = counts_read(study, batch)
    assert batch.distance is None
    for name, metric in {"bray-curtis": "braycurtis", "jaccard": "jaccard"}.items():
        expected = beta_diversity(
            metric, counts if metric == "braycurtis" else (counts > 0).astype(int)
        ).data
        np.testing.assert_allclose(batch.auxiliary[name], expected, atol=1e-6)
        assert batch.auxiliary[name].dtype == torch.float32
    tree = TreeNode.read([tiny(lengths=(20, 17))["newick"]])
    expected = alpha_diversity("faith_pd", counts, taxa=study.table.feature_ids, tree=tree)
    np.testing.assert_allclose(batch.auxiliary["faith-pd"], expected, rtol=1e-5)
    phyla = study.auxiliary.taxa.names[0]
    for column, code in zip(
        batch.column.tolist(), batch.auxiliary["taxonomy"][:, 0].tolist(), strict=True
    ):
        sequence = study.table.sequences[column]
        assert code == (-1 if sequence[1] == "A" else phyla.index(f"k__B; p__{sequence[0]}"))


def test_ranks_hold_their_rows_and_their_asvs(study):
    """The distances of a rank go to the samples of all; each ASV has its taxon on one rank."""
    parts = [np.array([0, 3, 4]), np.array([1, 7])]
    drawn = [rarefied_rows(study, rows, 1) for rows in parts]
    batches = [collate(study, parts, drawn, 1, rank=rank) for rank in range(2)]
    names = [name for batch in batches for name in batch.sample_ids]
    full = rarefied_batch(study, study.rows(names), 1)
    order = [full.sample_ids.index(name) for name in names]
    for name in ("bray-curtis", "jaccard"):
        joined = torch.cat([batch.auxiliary[name] for batch in batches])
        torch.testing.assert_close(joined, full.auxiliary[name][order][:, order])
    assert torch.equal(
        torch.cat([batch.auxiliary["taxonomy"] for batch in batches]), full.auxiliary["taxonomy"]
    )


def test_samples_of_two_studies_are_not_compared(study):
    joined = replace(
        study, parts=(*study.parts, StudyPart("second")), origin=np.array([0, 1] * 4 + [0])
    )
    batch = rarefied_batch(joined, np.arange(4), 0)
    first = np.array([name in ("s0", "s2") for name in batch.sample_ids])
    for name in ("bray-curtis", "jaccard"):
        assert (batch.auxiliary[name].isfinite().numpy() == (first[:, None] == first)).all(), (
            "a tree is not needed"
        )
    assert (batch.auxiliary["faith-pd"].isfinite().numpy() == first).all()


def test_float64_runs_have_targets_of_float64(study):
    torch.set_default_dtype(torch.float64)
    try:
        further = rarefied_batch(study, np.arange(4), 0).auxiliary
    finally:
        torch.set_default_dtype(torch.float32)
    kinds = {name: value.dtype for name, value in further.items()}
    assert kinds == {**dict.fromkeys(ALL, torch.float64), "taxonomy": torch.int64}


def test_moving_a_batch_moves_everything(study):
    batch = rarefied_batch(study, np.arange(4), 0)
    moved = batch.to(torch.device("meta"))
    assert all(value.is_meta for value in (*moved.auxiliary.values(), moved.counts, moved.distance))
    assert (moved.auxiliary.keys(), moved.sample_ids) == (batch.auxiliary.keys(), batch.sample_ids)


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
    assert taxa.entropies == (
        pytest.approx(-(shares * np.log(shares)).sum()),
        pytest.approx(np.log(2)),
    )


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
    assert (
        taxon_at(("d__Bacteria", name, "g__A"), 1)
        is taxon_at(("d__Bacteria",), 1)
        is taxon_at((), 0)
        is None
    )
    assert taxon_at(("d__Bacteria", name, "g__A"), 2) == f"d__Bacteria; {name}; g__A"


def test_several_files_are_one_taxonomy_and_the_first_that_knows_wins(tmp_path: Path, caplog):
    paths = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
    paths[0].write_text("Feature ID\tTaxon\na\tk__A\nc\tUnassigned\n")
    paths[1].write_text("Feature ID\tTaxon\na\tk__B\nb\tk__B\nc\tk__C\n")
    ids = ["a", "b", "c", "d"]
    assert read_lineages(paths, ids, ids) == (("k__A",), ("k__B",), ("k__C",), ())
    assert read_lineages(paths, ["b"], ["b"]) == (("k__B",),)
    assert "a.tsv names none of the 1 ASVs" in caplog.text, (
        "one of several files may fit nothing, and it is said"
    )
    with pytest.raises(InputError) as caught:
        read_lineages(paths, ["e"], ["e"])
    assert len(caught.value.problems) == 2
    for path in paths:
        path.write_text("no\theader\n")
    with pytest.raises(InputError) as caught:
        read_lineages(paths, ids, ids)
    assert len(caught.value.problems) == 2
