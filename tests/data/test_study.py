"""Studies: one table or several, with trees, metadata and depth."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from aam.config import DataConfig
from aam.data.collate import rarefied_batch
from aam.data.loader import Loader
from aam.data.splits import Split, make_splits, write_split
from aam.data.study import MatchedTree, MetadataColumns, Study, _joined, read_inputs, study_names
from aam.data.table import make_table, write_biom
from aam.errors import InputError
from aam.io.matrices import write_distances
from tests.data.studies import load_study
from tests.refusals import refusal

DEPTH = 40


START = "TACG" * 8


SEQUENCES = [START + end for end in ("ACGTA", "ACGTC", "CCGTAAG", "GGGTA")]


NEWICK = "(({}:1,{}:2):0.5,({}:1,({}:0.25,TTTTT:1):3):1);".format(*SEQUENCES)


COUNTS = np.array([[10, 0, 3, 0], [5, 5, 5, 5], [0, 0, 0, 2], [0, 30, 1, 0], [7, 7, 0, 0]])


NAMES = ["e", "d", "c", "b", "a"]


METADATA = (
    "sample-id\tage\tsite\na\t1\tgut\nb\t2\tgut\nc\t3\toral\nd\t4\toral\ne\t5\toral\nf\t6\tskin\n"
)


@pytest.fixture
def files(tmp_path) -> dict[str, Path]:
    table = make_table(csr_array(COUNTS.astype(np.uint32)), NAMES, SEQUENCES, SEQUENCES)
    write_biom(table, tmp_path / "table.biom")
    (tmp_path / "tree.nwk").write_text(NEWICK)
    (tmp_path / "metadata.tsv").write_text(METADATA)
    return {
        "table": tmp_path / "table.biom",
        "tree": tmp_path / "tree.nwk",
        "metadata": tmp_path / "metadata.tsv",
    }


def load(files: dict[str, Path], *columns: str, classes: tuple[str, ...] = (), **config) -> Study:
    return load_study(
        DataConfig(**{**files, **config}),
        config.pop("max_bp", 150),
        MetadataColumns(columns, targets=classes),
    )


def tree_of(study: Study) -> MatchedTree:
    return study.parts[0].tree


def test_samples_below_the_depth_are_dropped_and_listed(files, caplog):
    with caplog.at_level(logging.INFO, "aam"):
        study = load(files, rarefy_depth=14)
    assert study.table.sample_ids == ("d", "b", "a")
    assert study.selection.dropped == {"e": 13, "c": 2}
    assert study.depth == 14
    assert "2 of 5 samples have fewer than 14 reads and are left out: 'e', 'c'" in caplog.text
    assert load(files, rarefy_depth=2).selection.dropped == {}
    assert "no sample has 32 reads (the deepest has 31); lower --rarefy-depth" in refusal(
        load, files, rarefy_depth=32
    )
    message = refusal(
        load_study, DataConfig(table=files["table"], rarefy_depth=32), 150, of_model=True
    )
    assert "deepest has 31); the model was trained at this depth" in message
    with pytest.raises(
        InputError, match=r"longer than the model's 35, .*pass --trim to cut them to 35$"
    ) as longer:
        load_study(DataConfig(table=files["table"], rarefy_depth=2), 35, of_model=True)
    assert "--rarefy-depth" not in message
    assert "--max-bp" not in str(longer.value)


def test_text_among_numbers_is_named_in_all_samples_at_once(files):
    """Only the training samples of the first fold were looked at."""
    files["metadata"].write_text(
        METADATA.replace("b\t2", "b\told").replace("e\t5\toral", "e\t5\tx").replace("gut", "7")
    )
    columns = MetadataColumns(["age"], ["site"], ["age"], numeric=["site"])
    with pytest.raises(InputError) as caught:
        load_study(DataConfig(**files, rarefy_depth=2), 150, columns, training=["a"])
    age, site = caught.value.problems
    assert "column 'age' has 1 of 5 values that are not finite numbers: 'old' (sample 'b')" in age
    assert "--missing-values" in age
    assert "'site' has 3 of 5 values" in site


def test_one_rule_decides_between_numbers_and_classes(files, caplog):
    """Such a column was called one of classes, and then refused as one of numbers."""
    rows = ["a\t90", "b\t5%", "c\t>90", "d\t20", "e\t30", "f\t40"]
    files["metadata"].write_text("sample-id\tage\n" + "\n".join(rows) + "\n")
    message = refusal(load, files, "age", classes=("age",), rarefy_depth=2)
    assert "2 of 5 values that are not finite numbers: '>90' (sample 'c'), '5%'" in message
    assert "class" not in caplog.text


def test_samples_of_a_split_file_that_the_table_lacks_are_warned_of(files, tmp_path, caplog):
    sides = {"a": "train", "b": "test", "c": "train", "d": "train", "e": "test", "ghost": "test"}
    rows = [f"{name}\t{side}\t" for name, side in sides.items()]
    (tmp_path / "split.tsv").write_text("\n".join(["sample-id\tside\tfold", *rows]) + "\n")
    (split,) = make_splits(load(files, rarefy_depth=2), DataConfig(split=tmp_path / "split.tsv"), 0)
    assert split.ids("test") == ("b", "e")
    assert "split.tsv: 1 of 6 samples are not in the table: 'ghost'" in caplog.text


@pytest.fixture
def deep_files(tmp_path) -> dict[str, Path]:
    """A table of 20 samples with 1001, 1002, ... 1020 reads: gut is the shallow half, oral the deep
    one.
    """
    names = [f"s{row:02d}" for row in range(20)]
    table = make_table(
        csr_array(np.arange(1001, 1021, dtype=np.uint32)[:, None]), names, ["ACGT"], ["ACGT"]
    )
    write_biom(table, tmp_path / "t.biom")
    rows = [
        f"{name}\t{'gut' if row < 10 else 'oral'}\t{row / 7:.3f}\t{row // 10}\t{row % 2}"
        for row, name in enumerate(names)
    ]
    header = "sample-id\tsite\tage\tcase\tfold"
    (tmp_path / "m.tsv").write_text("\n".join([header, *rows, ""]))
    return {"table": tmp_path / "t.biom", "metadata": tmp_path / "m.tsv"}


def test_the_depth_keeps_nine_tenths_of_every_class(deep_files, caplog):
    """Overall 18 of 20 may stay, of gut 9 of 10."""
    everything = {"validation_size": 0.0}
    with caplog.at_level(logging.INFO, "aam"):
        assert load(deep_files).depth == 1003
        assert (
            "rarefaction depth: 1003 reads, the largest that keeps 90 % of all samples"
            in caplog.text
        )
        assert load(deep_files, "site", classes=("site",), **everything).depth == 1002
    decided = "90 % of the training samples of class 'gut' of 'site'"
    assert f"{decided}; of all samples together" in caplog.text
    assert "dropped for too few reads, by 'site': 1 of 10 of 'gut'" in caplog.text
    assert load(deep_files, "age", classes=("age",), **everything).depth == 1003, (
        "numbers are no classes"
    )
    config = DataConfig(**deep_files, **everything)
    assert (
        load_study(config, 150, MetadataColumns(["case"], (), ["case"], classifier=True)).depth
        == 1002
    )


@pytest.mark.parametrize(
    "options", [{"split_column": "fold", "test_fold": "1"}, {"split": "split.tsv"}]
)
def test_labels_of_test_samples_do_not_dictate_the_depth(deep_files, tmp_path, options):
    """Issue 15, point 13: whatever the test samples are called, the depth and the split stay."""
    names = [f"s{row:02d}" for row in range(20)]
    if "split" in options:
        options = {"split": tmp_path / "split.tsv"}
        subsets = tuple("test" if row < 4 else "train" for row in range(20))
        write_split(options["split"], Split(tuple(names), subsets, ("",) * 20))
    options["validation_size"] = 0.0
    text = deep_files["metadata"].read_text()
    study = load(deep_files, "site", classes=("site",), **options)
    (split,) = make_splits(study, study.config, 0)
    test = [name for name in names if name in split.ids("test")]
    assert test
    relabelled = [
        line.replace("gut", "x") if line[:3] in test else line for line in text.split("\n")
    ]
    deep_files["metadata"].write_text("\n".join(relabelled))
    again = load(deep_files, "site", classes=("site",), **options)
    assert again.depth == study.depth
    assert make_splits(again, again.config, 0) == (split,)
    assert (
        load(deep_files, "site", classes=("site",), **(options | {"rarefy_depth": 1001})).depth
        == 1001
    )


def test_training_samples_named_by_the_caller_decide(deep_files):
    config = DataConfig(**deep_files)
    training = [f"s{row:02d}" for row in range(1, 20)]
    site = MetadataColumns(["site"], targets=["site"])
    assert load_study(config, 150, site, training=training).depth == 1003, "nine of gut are too few"


def test_the_longest_asv_of_the_table_is_accepted_unless_a_limit_is_given(tmp_path):
    """Issue 15, point 19: 176-base reads were an error for the default --max-bp."""
    sequences = ["ACGT" * 44, "ACGA" * 44]
    write_biom(
        make_table(csr_array(np.full((3, 2), 900, np.uint32)), "abc", sequences, sequences),
        tmp_path / "t.biom",
    )
    config = DataConfig(table=tmp_path / "t.biom")
    assert load_study(config).longest == 176


def test_tips_that_are_the_sequences_are_matched_where_ids_are_hashes(files, tmp_path):
    """Issue 15, point 19: --sequences with hashed ids and a tree whose tips are the sequences."""
    hashed = [hashlib.md5(sequence.encode()).hexdigest() for sequence in SEQUENCES]
    write_biom(
        make_table(csr_array(COUNTS.astype(np.uint32)), NAMES, hashed), tmp_path / "hashed.biom"
    )
    fasta = tmp_path / "rep-seqs.fasta"
    fasta.write_text(
        "".join(f">{name}\n{sequence}\n" for name, sequence in zip(hashed, SEQUENCES, strict=True))
    )
    study = load(files, table=tmp_path / "hashed.biom", sequences=fasta, rarefy_depth=2)
    named = load(files, rarefy_depth=2)
    assert tree_of(study).phylogeny.tips == tree_of(named).phylogeny.tips
    assert tree_of(study).tips.tolist() == tree_of(named).tips.tolist()
    rows = np.arange(5)
    assert torch.equal(
        rarefied_batch(study, rows, 0).distance, rarefied_batch(named, rows, 0).distance
    )
    files["tree"].write_text("((x:1,y:2):0.5,z:1);")
    with pytest.raises(
        InputError,
        match="4 of 4 features of the table have no tip in the tree by id, sequence or MD5",
    ):
        load(files, table=tmp_path / "hashed.biom", sequences=fasta, rarefy_depth=2)


def test_samples_are_aligned_with_their_metadata(files):
    study = load(files, "age", "site", rarefy_depth=2)
    assert study.metadata.values("age", study.table.sample_ids) == ("5", "4", "3", "2", "1")
    assert study.metric == "unifrac"
    assert study.rows(["a", "e"]).tolist() == [4, 0]
    files["metadata"].write_text(METADATA.replace("a\t1\tgut\n", "").replace("b\t2", "b\t"))
    message = refusal(load, files, "age", rarefy_depth=2)
    assert "--missing drop" in message
    assert "'a'" in message
    assert "'b'" in message
    assert load(files, "age", rarefy_depth=2, missing="drop").table.sample_ids == ("e", "d", "c")


def test_a_class_that_is_gone_with_other_columns_is_named(files, caplog):
    files["metadata"].write_text(METADATA.replace("a\t1\t", "a\t\t").replace("b\t2\t", "b\t\t"))
    load(files, "age", classes=("site",), rarefy_depth=2, missing="drop")
    assert "warning: no sample of site 'gut' is left: all 2 lack other metadata" in caplog.text
    assert "'oral'" not in caplog.text


def test_tree_and_table_are_matched_and_pruned(files):
    study = load(files, rarefy_depth=2)
    assert tree_of(study).phylogeny.tips == tuple(SEQUENCES)
    assert tree_of(study).tips.tolist() == [0, 1, 2, 3]
    before = rarefied_batch(study, np.arange(5), 0).distance
    files["tree"].write_text(NEWICK.replace(f"{SEQUENCES[2]}:1,", ""))
    assert "--missing-tips drop" in refusal(load, files, rarefy_depth=2)
    partly = load(files, rarefy_depth=2, missing_tips="drop")
    assert tree_of(partly).tips.tolist() == [0, 1, -1, 2]
    batch = rarefied_batch(partly, np.arange(5), 0)
    assert 2 in batch.column.tolist(), "a feature without a tip remains an input"
    assert not torch.equal(batch.distance, before)


def test_no_tree_no_distance(files):
    study = load({"table": files["table"]}, rarefy_depth=2)
    assert study.metric is None
    batch = rarefied_batch(study, np.arange(5), 0)
    assert batch.distance is None
    assert batch.target is None


def test_a_precomputed_matrix_is_matched_by_its_ids(files, tmp_path):
    """A permuted matrix gives the same distances (failure 5 of the predecessor)."""
    ids = ["a", "b", "c", "d", "e", "other"]
    upper = np.triu(np.arange(36.0).reshape(6, 6) / 100, 1)
    values = upper + upper.T
    order = [3, 5, 0, 2, 4, 1]
    path = tmp_path / "distances.tsv"
    write_distances(
        path, [ids[row] for row in order], [(slice(0, 6), slice(0, 6), values[order][:, order])]
    )
    study = load({"table": files["table"]}, rarefy_depth=2, unifrac_matrix=path)
    batch = rarefied_batch(study, np.array([1, 3, 0]), 0)
    rows = [ids.index(name) for name in batch.sample_ids]
    np.testing.assert_allclose(batch.distance.numpy(), values[rows][:, rows], rtol=1e-6)


def test_long_sequences_are_refused_or_trimmed(files):
    config = {**files, "rarefy_depth": 2}
    with pytest.raises(InputError, match=r"longer than --max-bp 38.*--trim"):
        load_study(DataConfig(**config), 38)
    del config["tree"]
    assert load_study(DataConfig(**config, trim=True), 36).table.sequences == tuple(
        START + end for end in ("ACGT", "CCGT", "GGGT")
    )


def test_all_problems_come_at_once(files):
    with pytest.raises(InputError) as caught:
        load(
            {"table": files["tree"], "metadata": files["metadata"]},
            "agee",
            unifrac_matrix=Path("nowhere.h5"),
        )
    text = "\n".join(caught.value.problems)
    assert len(caught.value.problems) >= 3
    assert str(files["tree"]) in text
    assert "Did you mean 'age'" in text
    assert "nowhere.h5: no such file" in text
    assert "--metadata: not given, but columns 'age' are asked for" in refusal(
        load, {"table": files["table"]}, "age"
    )
    config = DataConfig(table=files["tree"], metadata=files["metadata"])
    text = refusal(read_inputs, config, MetadataColumns(("flu", "cold")))
    assert all(
        part in text for part in (str(files["tree"]), "no column 'flu'", "no column 'cold'")
    ), text


@pytest.fixture(scope="module")
def folder(tmp_path_factory, study_of, tiny):
    """Three studies: `a` and `b` share half of their ASVs and have trees; `c`, a folder with
    table.biom, has none.
    """
    path = tmp_path_factory.mktemp("studies")
    made = {
        "a": tiny(samples=16, asvs=24, lengths=(32,)),
        "b": tiny(samples=5, asvs=12, lengths=(32,)),
        "c": tiny(samples=3, seed=5, lengths=(32,)),
    }
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
    return load_study(data(folder))


def test_the_same_sequence_is_one_asv_and_the_same_id_is_two_samples(joined, folder):
    single = [
        load_study(DataConfig(table=path, rarefy_depth=DEPTH)) for path in data(folder).tables
    ]
    assert set(joined.table.sequences) == {s for study in single for s in study.table.sequences}
    assert [part.name for part in joined.parts] == ["a", "b", "c"]
    assert {"a/s0", "b/s0", "c/s0", "a1", "b1", "c1"} <= set(joined.table.sample_ids)
    for number, study in enumerate(single):
        rows = np.flatnonzero(joined.origin == number)
        assert joined.table.depths[rows].tolist() == study.table.depths.tolist()
        columns = [joined.table.sequences.index(sequence) for sequence in study.table.sequences]
        assert (
            joined.table.counts.toarray()[np.ix_(rows, columns)] == study.table.counts.toarray()
        ).all()


def test_distances_are_those_of_each_study_alone(joined, folder):
    """Except where an id was changed, which another rarefaction is drawn for."""
    batch = rarefied_batch(joined, np.arange(len(joined.origin)), 3)
    for number, name in enumerate("ab"):
        alone = load_study(
            DataConfig(
                table=folder / f"{name}.biom", tree=folder / f"{name}.nwk", rarefy_depth=DEPTH
            )
        )
        ids = [each for each in alone.table.sample_ids if each != "s0"]
        expected = rarefied_batch(alone, alone.rows(ids), 3)
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
    assert sorted(np.concatenate(validation.order(0)).tolist()) == list(range(24)), (
        "each sample once"
    )


def test_problems_of_all_tables_come_together(folder, tmp_path):
    bad = tmp_path / "bad.biom"
    bad.write_text("nothing", encoding="ascii")
    with pytest.raises(InputError) as error:
        load_study(data(folder, tables=(folder / "a.biom", bad, folder / "none.biom")))
    assert len(error.value.problems) == 2
    names = study_names([folder / "a.biom", tmp_path / "a.qza", folder / "c" / "table.biom"])
    assert names == ("a", "a-2", "c")


def test_another_region_is_told(study_of, caplog):
    def table(start):
        return study_of(np.full((2, 4), 30), [start + last * 9 for last in "ACGT"]).table

    _joined([table("ACGTT" * 10), table("ACGTT" * 10), table("GATTC" * 10)], ["a", "b", "c"])
    assert "c, compared with a: 100% of the reads look like another region" in caplog.text
    assert "b, compared" not in caplog.text


@pytest.mark.parametrize("names", [["OTU_1", "OTU_2", "OTU_3", "x"], ["BAD", "CAT", "DAY", "A"]])
def test_features_without_sequences_are_a_study_that_no_network_reads(tmp_path, names):
    """Tables of OTUs, taxa or hashes were refused."""
    write_biom(
        make_table(csr_array(COUNTS.astype(np.uint32)), NAMES, names), tmp_path / "otus.biom"
    )
    (tmp_path / "tree.nwk").write_text("(({}:1,{}:2):0.5,({}:1,{}:3):1);".format(*names))
    files = {"table": tmp_path / "otus.biom", "tree": tmp_path / "tree.nwk"}
    study = load(files, rarefy_depth=2)
    assert study.table.names == tuple(sorted(names))
    assert tree_of(study).tips.tolist() != [-1] * 4
    for needs_dna in ("tokens", "lengths"):
        with pytest.raises(
            InputError, match=r"have no sequences, which a network reads; pass --seq"
        ):
            getattr(study, needs_dna)
    fasta = tmp_path / "f.fasta"
    fasta.write_text(
        "".join(f">{name}\n{seq}\n" for name, seq in zip(names, SEQUENCES, strict=True))
    )
    assert load(files, rarefy_depth=2, sequences=fasta).tokens.shape == (4, 39)
