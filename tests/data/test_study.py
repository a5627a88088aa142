"""Studies: what is read, which samples stay, and that each drawn batch is what its rarefied counts say."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from skbio import TreeNode
from skbio.diversity import alpha_diversity, beta_diversity

from aam.config import DataConfig
from aam.data.distances import write_distances
from aam.data.division import divided
from aam.data.draw import Withheld, draw_batch
from aam.data.metadata import Metadata
from aam.data.rarefaction import rarefied_row
from aam.data.split import Split, twins_apart
from aam.data.study import EVALUATION, Study, load_study
from aam.data.table import make_table, write_biom
from aam.data.unifrac import batch_unifrac
from aam.errors import InputError

DEPTH = 40
SKBIO = {"unifrac": "unweighted_unifrac", "weighted": "weighted_unifrac", "weighted-normalized": "weighted_unifrac"}


def rarefied(study: Study, names: list[str], draw: int) -> np.ndarray:
    """Dense rarefied counts of the samples named, [B, F]."""
    counts = np.zeros((len(names), len(study.table.feature_ids)), np.int64)
    for place, row in enumerate(study.rows(names).tolist()):
        columns, reads = rarefied_row(study.table, row, study.depth, study.seed, draw)
        counts[place, columns] = reads
    return counts


def seen(study: Study, batch) -> np.ndarray:
    """Dense counts that the model reads, [B, F]."""
    counts = np.zeros((len(batch.sample_ids), len(study.table.feature_ids)))
    columns = batch.column[batch.asv].numpy()
    rows, slots = np.nonzero(batch.counts.numpy())
    np.add.at(counts, (rows, columns[rows, slots]), batch.counts.numpy()[rows, slots])
    return counts


# --- draws -------------------------------------------------------------------------------------------------


@pytest.fixture
def study(study_of, tiny) -> Study:
    return study_of(**tiny(lengths=(20, 17)), depth=DEPTH)


def test_a_batch_holds_the_rarefied_counts_of_its_samples(study):
    batch = draw_batch(study, np.array([5, 2, 8, 0]), 3)
    assert sorted(batch.sample_ids) == ["s0", "s2", "s5", "s8"]
    assert (batch.counts.sum(dim=1) == DEPTH).all()
    np.testing.assert_array_equal(seen(study, batch), rarefied(study, list(batch.sample_ids), 3))
    assert batch.sizes == tuple((batch.counts > 0).sum(1).tolist())
    assert list(batch.sizes) == sorted(batch.sizes, reverse=True)
    assert batch.counts.shape == (4, max(batch.sizes))
    assert (batch.asv[batch.counts == 0] == 0).all()
    assert len(batch.column) == len(set(batch.column.tolist())), "each distinct ASV once"
    assert (np.diff(study.lengths[batch.column.numpy()]) >= 0).all(), "in order of length"
    assert batch.tokens.shape[1] == study.lengths[batch.column.numpy()].max()
    assert batch.padded
    assert batch.tokens.dtype == torch.uint8


def test_epochs_are_drawn_differently_and_reproducibly(study, study_of, tiny):
    def draw(one: Study, epoch: int) -> np.ndarray:
        return seen(one, draw_batch(one, np.array([4]), epoch))

    np.testing.assert_array_equal(draw(study, 0), draw(study, 0))
    assert (draw(study, 0) != draw(study, 1)).any()
    assert (draw(study, 0) != draw(study, EVALUATION)).any()
    assert (draw(study, 0) != draw(study_of(**tiny(lengths=(20, 17)), seed=1), 0)).any()
    alone = draw(study, 1)
    both = draw_batch(study, np.array([1, 4]), 1)
    np.testing.assert_array_equal(seen(study, both)[both.sample_ids.index("s4")], alone[0])


@pytest.mark.parametrize("metric", [*SKBIO, "faith_pd"])
def test_distances_are_those_of_the_rarefied_counts(study_of, tiny, metric):
    made = tiny()
    study = study_of(**made, depth=DEPTH, unifrac_metric=metric)
    batch = draw_batch(study, np.array([3, 1, 7, 0, 5]), 2)
    counts = rarefied(study, list(batch.sample_ids), 2)
    tree = TreeNode.read([made["newick"]])
    names = {"tree": tree, "taxa": list(study.table.feature_ids)}
    if metric == "faith_pd":
        expected = alpha_diversity("faith_pd", counts, list(batch.sample_ids), **names)
        np.testing.assert_allclose(batch.faith_pd.numpy(), expected.to_numpy(), rtol=1e-6)
        assert batch.distance is None
        return
    if metric != "unifrac":
        names["normalized"] = metric == "weighted-normalized"
    expected = beta_diversity(SKBIO[metric], counts, list(batch.sample_ids), **names).data
    assert expected[0, 1] > 0.05
    np.testing.assert_allclose(batch.distance.numpy(), expected, atol=1e-6)
    assert batch.faith_pd is None


@pytest.mark.parametrize("sampling", ["abundance", "random", "first"])
def test_the_token_limit_cuts_the_input_and_not_the_distance(study_of, tiny, sampling):
    """Rarefied, then UniFrac, then the limit; what is left out is not made up for."""
    made, rows = tiny(), np.arange(9)
    whole = draw_batch(study_of(**made), rows, 0)
    limited_study = study_of(**made, token_limit=5, asv_sampling=sampling)
    limited = draw_batch(limited_study, rows, 0)
    assert limited.counts.shape == (9, 5)
    assert max(whole.sizes) > 5
    place = [whole.sample_ids.index(name) for name in limited.sample_ids]
    assert torch.equal(limited.distance, whole.distance[place][:, place])
    full, cut = seen(limited_study, whole)[place], seen(limited_study, limited)
    assert ((cut == full) | (cut == 0)).all()
    for all_of_it, kept in zip(full, cut, strict=True):
        if sampling == "abundance":
            assert sorted(kept[kept > 0]) == sorted(all_of_it)[-5:]
        if sampling == "first":
            assert np.flatnonzero(kept).tolist() == np.flatnonzero(all_of_it)[:5].tolist()
    if sampling == "random":
        again, later = draw_batch(limited_study, rows, 0), draw_batch(limited_study, rows, 1)
        np.testing.assert_array_equal(seen(limited_study, again), cut)
        assert (seen(limited_study, later) != cut).any()
        first = seen(limited_study, draw_batch(study_of(**made, token_limit=5, asv_sampling="first"), rows, 0))
        assert (np.sort(first) != np.sort(cut)).any()


def test_relative_abundance_is_of_the_rarefied_depth(study_of, tiny, model_of):
    """Not of the reads that the token limit leaves: all of 40 reads is as all of 80, and not as 20 of 40."""
    batch = draw_batch(study_of(**tiny(), token_limit=1), np.arange(9), 0)
    assert batch.sizes == (1,) * 9
    assert (batch.counts < DEPTH).all()

    def vectors(depth: int, reads: float) -> torch.Tensor:
        counts = torch.full_like(batch.counts, reads)
        return model_of(depth=depth)(dataclasses.replace(batch, counts=counts)).samples

    with torch.no_grad():
        torch.testing.assert_close(vectors(40, 40), vectors(80, 80))
        assert (vectors(40, 40) - vectors(40, 20)).abs().max() > 1e-3


def test_shallow_draws_have_fewer_reads_and_their_own_distances(study_of, tiny):
    study, rows = study_of(**tiny()), np.arange(9)
    full = draw_batch(study, rows, 3)
    assert (full.counts.sum(dim=1) == study.depth).all()
    drawn = draw_batch(study, rows, 3, shallow=1.0)
    reads = drawn.counts.sum(dim=1).numpy()
    assert reads.min() >= study.depth / 4
    assert reads.max() <= study.depth
    assert len(set(reads.tolist())) > 4
    again, later = draw_batch(study, rows, 3, shallow=1.0), draw_batch(study, rows, 4, shallow=1.0)
    assert torch.equal(again.counts, drawn.counts)
    assert set(later.counts.sum(dim=1).tolist()) != set(reads.tolist())
    some = [draw_batch(study, rows, draw, shallow=0.5).counts.sum(dim=1) for draw in range(20)]
    assert 0.3 < float((torch.cat(some) < study.depth).float().mean()) < 0.6
    table = np.zeros((9, len(study.table.feature_ids)))
    np.add.at(table, (np.arange(9)[:, None], drawn.column[drawn.asv].numpy()), drawn.counts.numpy())
    np.testing.assert_allclose(drawn.distance, batch_unifrac(study.tree, study.tips, table), atol=1e-6)


def conditioned(study):
    rng = np.random.default_rng(0)
    return dataclasses.replace(
        study,
        category=rng.integers(1, 5, (9, 2)),
        covariate=rng.normal(size=(9, 1)).astype(np.float32),
        weight=np.arange(9, dtype=np.float32),
    )


def test_covariates_follow_their_samples_and_are_hidden_by_name(study):
    """What is hidden depends on seed, epoch and sample alone, and the study keeps its values."""
    study = conditioned(study)
    batch = draw_batch(study, np.array([6, 2, 7]), 0)
    for at, name in enumerate(batch.sample_ids):
        row = int(name[1:])
        assert batch.category[at].tolist() == study.category[row].tolist()
        assert batch.covariate[at].tolist() == study.covariate[row].tolist()
        assert batch.weight[at] == row

    def hidden(rows, draw):
        found = draw_batch(study, np.array(rows), draw, withheld=Withheld(covariates=0.4))
        together = torch.cat([found.category == 0, found.covariate.isnan()], dim=1)
        return {name: tuple(one.tolist()) for name, one in zip(found.sample_ids, together, strict=True)}

    one, other = hidden(range(9), 3), hidden([8, 4], 3)
    assert other.items() <= one.items()
    assert hidden(range(9), 4) != one
    share = np.mean([list(hidden(range(9), draw).values()) for draw in range(30)], axis=(0, 1))
    assert share == pytest.approx(0.4, abs=0.1)
    assert (study.category > 0).all()
    assert np.isfinite(study.covariate).all()
    bare = draw_batch(dataclasses.replace(study, category=None, covariate=None, weight=None), np.arange(3), 0)
    assert (bare.category, bare.covariate, bare.weight) == (None, None, None)


def test_asv_dropout_thins_the_input_by_name_and_leaves_unifrac(study_of, tiny):
    study, rows = study_of(**tiny()), np.arange(9)
    full, thin = draw_batch(study, rows, 3), draw_batch(study, rows, 3, withheld=Withheld(0.5))

    def read(batch):
        return {
            name: {int(batch.column[asv]): int(n) for asv, n in zip(asvs, reads, strict=True) if n}
            for name, asvs, reads in zip(batch.sample_ids, batch.asv, batch.counts, strict=True)
        }

    whole, part = read(full), read(thin)
    assert all(part[name].items() <= whole[name].items() for name in whole)
    left = sum(map(len, part.values())) / sum(map(len, whole.values()))
    assert 0.4 < left < 0.7
    alone = read(draw_batch(study, rows[[5, 2]], 3, withheld=Withheld(0.5)))
    assert alone == {name: part[name] for name in alone}
    assert read(draw_batch(study, rows, 4, withheld=Withheld(0.5))) != part
    assert all(len(one) >= 1 for one in read(draw_batch(study, rows, 3, withheld=Withheld(0.999))).values())
    order = [full.sample_ids.index(name) for name in thin.sample_ids]
    assert torch.equal(thin.distance, full.distance[order][:, order])


def test_targets_follow_their_samples(study):
    target = np.arange(9, dtype=np.float32)[:, None]
    label = np.arange(9)[:, None] % 4 - 1
    batch = draw_batch(dataclasses.replace(study, target=target, label=label), np.array([6, 2, 7]), 0)
    assert [f"s{int(value)}" for value in batch.target[:, 0]] == list(batch.sample_ids)
    assert batch.label[:, 0].tolist() == [int(name[1:]) % 4 - 1 for name in batch.sample_ids]


# --- reading -----------------------------------------------------------------------------------------------

SEQUENCES = ["ACGTA", "ACGTC", "CCGTAAG", "GGGTA"]
NEWICK = "((ACGTA:1,ACGTC:2):0.5,(CCGTAAG:1,(GGGTA:0.25,TTTTT:1):3):1);"
COUNTS = np.array([[10, 0, 3, 0], [5, 5, 5, 5], [0, 0, 0, 2], [0, 30, 1, 0], [7, 7, 0, 0]])
NAMES = ["e", "d", "c", "b", "a"]
METADATA = "sample-id\tage\tsite\na\t1\tgut\nb\t2\tgut\nc\t3\toral\nd\t4\toral\ne\t5\toral\nf\t6\tskin\n"


@pytest.fixture
def files(tmp_path) -> dict[str, Path]:
    from scipy.sparse import csr_array

    table = make_table(csr_array(COUNTS.astype(np.uint32)), NAMES, SEQUENCES, SEQUENCES)
    write_biom(table, tmp_path / "table.biom")
    (tmp_path / "tree.nwk").write_text(NEWICK)
    (tmp_path / "metadata.tsv").write_text(METADATA)
    return {"table": tmp_path / "table.biom", "tree": tmp_path / "tree.nwk", "metadata": tmp_path / "metadata.tsv"}


def load(files: dict[str, Path], *columns: str, classes: tuple[str, ...] = (), **config) -> Study:
    return load_study(DataConfig(**{**files, **config}), config.pop("max_bp", 150), 0, columns, classes)


def test_samples_below_the_depth_are_dropped_and_listed(files, caplog):
    with caplog.at_level(logging.INFO, "aam"):
        study = load(files, rarefy_depth=14)
    assert study.table.sample_ids == ("d", "b", "a")
    assert study.dropped == {"e": 13, "c": 2}
    assert study.depth == 14
    assert "2 of 5 samples have fewer than 14 reads and are left out: 'e', 'c'" in caplog.text
    assert load(files, rarefy_depth=2).dropped == {}
    with pytest.raises(InputError, match=r"no sample has 32 reads \(the deepest has 31\); lower --rarefy-depth"):
        load(files, rarefy_depth=32)
    with pytest.raises(InputError, match="--rarefy-depth is 0, expected 1 or more"):
        load(files, rarefy_depth=0)


def test_the_depth_keeps_nine_tenths_of_every_class(study_of, tmp_path, caplog):
    """Depths 101, 102, ... 120: gut is the shallow half. Overall 18 of 20 may stay, of gut 9 of 10."""
    from scipy.sparse import csr_array

    names = [f"s{row:02d}" for row in range(20)]
    table = make_table(csr_array(np.arange(101, 121, dtype=np.uint32)[:, None]), names, ["ACGT"], ["ACGT"])
    write_biom(table, tmp_path / "t.biom")
    rows = [f"{name}\t{'gut' if row < 10 else 'oral'}\t{row / 7:.3f}" for row, name in enumerate(names)]
    (tmp_path / "m.tsv").write_text("\n".join(["sample-id\tsite\tage", *rows, ""]))
    files = {"table": tmp_path / "t.biom", "metadata": tmp_path / "m.tsv"}
    with caplog.at_level(logging.INFO, "aam"):
        assert load(files).depth == 103
    assert "rarefaction depth: 103 reads" in caplog.text
    assert load(files, "site", classes=("site",)).depth == 102
    assert load(files, "age", classes=("age",)).depth == 103, "numbers are no classes"
    assert load_study(DataConfig(**files), 150, 0, ["age"], ["age"], classifier=True).depth == 101


def test_samples_are_aligned_with_their_metadata(files):
    study = load(files, "age", "site", rarefy_depth=2)
    assert study.metadata.values("age", study.table.sample_ids) == ("5", "4", "3", "2", "1")
    assert study.metric == "unifrac"
    assert study.rows(["a", "e"]).tolist() == [4, 0]
    files["metadata"].write_text(METADATA.replace("a\t1\tgut\n", "").replace("b\t2", "b\t"))
    with pytest.raises(InputError, match="--missing drop") as caught:
        load(files, "age", rarefy_depth=2)
    assert "'a'" in str(caught.value)
    assert "'b'" in str(caught.value)
    assert load(files, "age", rarefy_depth=2, missing="drop").table.sample_ids == ("e", "d", "c")


def test_tree_and_table_are_matched_and_pruned(files):
    study = load(files, rarefy_depth=2)
    assert study.tree.tips == ("ACGTA", "ACGTC", "CCGTAAG", "GGGTA")
    assert study.tips.tolist() == [0, 1, 2, 3]
    before = draw_batch(study, np.arange(5), 0).distance
    files["tree"].write_text(NEWICK.replace("CCGTAAG:1,", ""))
    with pytest.raises(InputError, match="--missing-tips drop"):
        load(files, rarefy_depth=2)
    partly = load(files, rarefy_depth=2, missing_tips="drop")
    assert partly.tips.tolist() == [0, 1, -1, 2]
    batch = draw_batch(partly, np.arange(5), 0)
    assert 2 in batch.column.tolist(), "a feature without a tip remains an input"
    assert not torch.equal(batch.distance, before)


def test_no_tree_no_distance(files):
    study = load({"table": files["table"]}, rarefy_depth=2)
    assert study.metric is None
    batch = draw_batch(study, np.arange(5), 0)
    assert batch.distance is None
    assert batch.target is None


def test_a_precomputed_matrix_is_matched_by_its_ids(files, tmp_path):
    """A permuted matrix gives the same distances (failure 5 of the predecessor)."""
    ids = ["a", "b", "c", "d", "e", "other"]
    upper = np.triu(np.arange(36.0).reshape(6, 6) / 100, 1)
    values = upper + upper.T
    order = [3, 5, 0, 2, 4, 1]
    path = tmp_path / "distances.tsv"
    write_distances(path, [ids[row] for row in order], [(slice(0, 6), slice(0, 6), values[order][:, order])])
    study = load({"table": files["table"]}, rarefy_depth=2, unifrac_matrix=path)
    batch = draw_batch(study, np.array([1, 3, 0]), 0)
    rows = [ids.index(name) for name in batch.sample_ids]
    np.testing.assert_allclose(batch.distance.numpy(), values[rows][:, rows], rtol=1e-6)
    with pytest.raises(InputError, match="distances come from one of them"):
        load(files, unifrac_matrix=path)


def test_long_sequences_are_refused_or_trimmed(files):
    config = {**files, "rarefy_depth": 2}
    with pytest.raises(InputError, match=r"longer than --max-bp 6.*--trim"):
        load_study(DataConfig(**config), 6, 0)
    del config["tree"]
    assert load_study(DataConfig(**config, trim=True), 4, 0).table.sequences == ("ACGT", "CCGT", "GGGT")


def test_all_problems_come_at_once(files):
    with pytest.raises(InputError) as caught:
        load({"table": files["tree"], "metadata": files["metadata"]}, "agee", unifrac_matrix=Path("nowhere.h5"))
    text = "\n".join(caught.value.problems)
    assert len(caught.value.problems) >= 3
    assert str(files["tree"]) in text
    assert "Did you mean 'age'" in text
    assert "--unifrac-matrix: nowhere.h5 is no file" in text
    with pytest.raises(InputError) as caught:
        load({}, "age")
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["--table", "--metadata"]


def test_hashed_ids_are_never_silent_padding(tmp_path):
    """Failure 5 of the predecessor: it trained on nothing."""
    from scipy.sparse import csr_array

    table = make_table(csr_array(np.ones((2, 1), np.uint32)), ["a", "b"], ["d41d8cd98f00b204e9800998ecf8427e"])
    write_biom(table, tmp_path / "t.biom")
    with pytest.raises(InputError, match="--sequences"):
        load({"table": tmp_path / "t.biom"})


# --- dividing ----------------------------------------------------------------------------------------------


def test_strata_are_spread_over_what_is_drawn_and_not_over_columns_of_folds(study_of, tiny):
    ids = tuple(f"s{row}" for row in range(30))
    columns = {"site": tuple("abbbbc" * 5), "age": tuple(map(str, range(30))), "fold": tuple("012" * 10)}
    kinds = {"site": "categorical", "age": "numeric", "fold": "numeric"}
    study = dataclasses.replace(study_of(**tiny(samples=30)), metadata=Metadata(ids, columns, kinds))
    (split,) = divided(study, DataConfig(stratify="site", test_size=0.4, validation_size=0.0), 0)
    assert sorted(columns["site"][ids.index(name)] for name in split.ids("test")) == ["a"] * 2 + ["b"] * 8 + ["c"] * 2
    for one in divided(study, DataConfig(stratify="age", cv="6", validation_size=0.0), 1):
        quintiles = sorted(int(name[1:]) // 6 for name in one.ids("test"))
        assert quintiles == [0, 1, 2, 3, 4], "each sixth of the samples has one of each quintile"
    assert [one.ids("test") for one in divided(study, DataConfig(stratify="site", cv="fold"), 0)] == [
        tuple(sorted(ids[fold::3])) for fold in range(3)
    ]
    with pytest.raises(InputError, match="no column 'sit'"):
        divided(study, DataConfig(stratify="sit"), 0)
    with pytest.raises(InputError, match="--stratify site"):
        divided(dataclasses.replace(study, metadata=None), DataConfig(stratify="site"), 0)


def test_the_same_reads_under_two_ids_on_two_sides_are_named(study_of, tiny):
    given = tiny()
    given["counts"][4] = given["counts"][1]
    study = study_of(**given)
    ids = study.table.sample_ids
    apart = Split(ids, tuple("test" if name in ("s4", "s5") else "train" for name in ids), ("2",) * 9)
    (said,) = twins_apart(study.table, apart)
    assert "1 held-out samples of fold 2 have the very reads of others" in said
    assert "'s1', 's4'" in said
    together = Split(ids, tuple("test" if name in ("s1", "s4") else "train" for name in ids), ("",) * 9)
    assert twins_apart(study.table, together) == ()
