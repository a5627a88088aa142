"""Several studies joined: their ASVs, their distances, their batches, and which of them are held out."""

from __future__ import annotations

import logging
from collections import Counter

import numpy as np
import pytest
import torch

from aam.config import DataConfig
from aam.data.draw import draw_batch
from aam.data.loader import Loader
from aam.data.studies import _warn_of_regions, load_studies, study_names
from aam.data.study_inputs import load_study
from aam.data.study_splits import make_splits
from aam.data.table import write_biom
from aam.errors import InputError

DEPTH = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory, study_of, tiny):
    """Three studies: `a` and `b` share half of their ASVs and have trees; `c`, a folder with table.biom, has none."""
    path = tmp_path_factory.mktemp("studies")
    made = {"a": tiny(samples=16, asvs=24), "b": tiny(samples=5, asvs=12), "c": tiny(samples=3, seed=5)}
    (path / "c").mkdir()
    for name, one in made.items():
        names = [f"{name}{row}" for row in range(len(one["counts"]))]
        names[0] = "s0"
        table = study_of(one["counts"], one["sequences"], names=names).table
        write_biom(table, path / "c" / "table.biom" if name == "c" else path / f"{name}.biom")
        (path / f"{name}.nwk").write_text(one["newick"], encoding="ascii")
    return path


def data(folder, **changes) -> DataConfig:
    tables = (folder / "a.biom", folder / "b.biom", folder / "c" / "table.biom")
    trees = (str(folder / "a.nwk"), str(folder / "b.nwk"), "none")
    return DataConfig(**{"tables": tables, "trees": trees, "rarefy_depth": DEPTH, **changes})


@pytest.fixture(scope="module")
def joined(folder):
    return load_studies(data(folder), None, 0)


def test_the_same_sequence_is_one_asv_and_the_same_id_is_two_samples(joined, folder):
    single = [load_study(DataConfig(table=path, rarefy_depth=DEPTH), None, 0) for path in data(folder).tables]
    assert set(joined.table.sequences) == {s for study in single for s in study.table.sequences}
    assert [part.name for part in joined.parts] == ["a", "b", "c"]
    assert {"a/s0", "b/s0", "c/s0", "a1", "b1", "c1"} <= set(joined.table.sample_ids)
    for number, study in enumerate(single):
        rows = np.flatnonzero(joined.origin == number)
        assert joined.table.depths[rows].tolist() == study.table.depths.tolist()
        columns = [joined.table.sequences.index(sequence) for sequence in study.table.sequences]
        assert (joined.table.counts.toarray()[np.ix_(rows, columns)] == study.table.counts.toarray()).all()


def test_distances_are_those_of_each_study_alone(joined, folder):
    """Except where an id was changed, which another rarefaction is drawn for."""
    batch = draw_batch(joined, np.arange(len(joined.origin)), 3)
    for number, name in enumerate("ab"):
        alone = load_study(
            DataConfig(table=folder / f"{name}.biom", tree=folder / f"{name}.nwk", rarefy_depth=DEPTH), None, 0
        )
        ids = [each for each in alone.table.sample_ids if each != "s0"]
        expected = draw_batch(alone, alone.rows(ids), 3)
        at = [batch.sample_ids.index(each) for each in expected.sample_ids]
        torch.testing.assert_close(batch.distance[at][:, at], expected.distance, rtol=0, atol=1e-6)
        others = joined.origin[joined.rows(batch.sample_ids)] != number
        assert batch.distance[at][:, torch.from_numpy(others)].isnan().all()
    third = joined.origin[joined.rows(batch.sample_ids)] == 2
    assert batch.distance[torch.from_numpy(third)].isnan().all()


def test_a_batch_is_of_one_study_and_small_studies_come_more_often(joined):
    loader = Loader(joined, np.arange(len(joined.origin)), 3, shuffle=True)
    order = loader.order(0)
    assert len(order) == len(loader) == len(loader.order(1))
    assert all(len(set(joined.origin[rows])) == 1 and len(rows) <= 3 for rows in order)
    times = Counter(joined.origin[np.concatenate([*order, *loader.order(1)])].tolist())
    assert times[2] / 3 > times[0] / 16, "the smaller study's samples are drawn more often"
    assert set(times) == {0, 1, 2}
    validation = Loader(joined, np.arange(len(joined.origin)), 3)
    assert sorted(np.concatenate(validation.order(0)).tolist()) == list(range(24)), "each sample once"


def test_whole_studies_are_held_out(joined, folder):
    (split,) = make_splits(joined, data(folder, hold_out_study=("b",), validation_size=0.2), 0)
    assert set(split.ids("test")) == {joined.table.sample_ids[row] for row in np.flatnonzero(joined.origin == 1)}
    assert len(split.ids("validation")) == 4


def test_problems_of_all_tables_come_together(folder, tmp_path):
    bad = tmp_path / "bad.biom"
    bad.write_text("nothing", encoding="ascii")
    with pytest.raises(InputError) as error:
        load_studies(data(folder, tables=(folder / "a.biom", bad, folder / "none.biom")), None, 0)
    assert len(error.value.problems) == 2
    with pytest.raises(InputError, match="'z' is none of the studies 'a', 'b', 'c'"):
        load_studies(data(folder, hold_out_study=("z",)), None, 0)
    with pytest.raises(InputError, match="several studies are called 'a'"):
        study_names([folder / "a.biom", tmp_path / "a.qza"])
    with pytest.raises(InputError, match="--study-names: 'x' is there twice"):
        study_names([folder / "a.biom", tmp_path / "b.qza"], ["x", "x"])


def test_long_reads_are_refused_or_trimmed(folder):
    with pytest.raises(InputError, match="longer than --max-bp 15"):
        load_studies(data(folder), 15, 0)
    assert load_studies(data(folder, trees=(), trim=True), 15, 0).longest == 15


def test_another_region_is_told(study_of, caplog):
    def table(start):
        return study_of(np.full((2, 4), 30), [start + last * 9 for last in "ACGT"]).table

    caplog.set_level(logging.INFO, "aam")
    _warn_of_regions([table("ACGTT" * 10), table("ACGTT" * 10), table("GATTC" * 10)], ["a", "b", "c"])
    assert "c: 100 % of its ASVs are of another region than those of a" in caplog.text
    assert "b: " not in caplog.text
