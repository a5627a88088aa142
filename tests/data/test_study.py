"""Studies: one table or several, with trees, metadata and depth."""

from __future__ import annotations

import hashlib
import logging
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array

from aam.config import CovariateConfig, DataConfig
from aam.data.inputs import read_inputs, study_names
from aam.data.loader import Loader, distances_of, rarefied_batch
from aam.data.rarefaction import rarefied_table
from aam.data.splits import Split, make_splits, write_split
from aam.data.study import MetadataColumns, Study, _joined
from aam.data.table import make_table, write_biom
from aam.io.matrices import write_distances
from tests.data.studies import load_study
from tests.refusals import refusal

DEPTH = 40
START = "TACG" * 8
SEQUENCES = [START + end for end in ("ACGTA", "ACGTC", "CCGTAAG", "GGGTA")]
NEWICK = "(({}:1,{}:2):0.5,({}:1,({}:0.25,TTTTT:1):3):1);"
COUNTS = np.array([[10, 0, 3, 0], [5, 5, 5, 5], [0, 0, 0, 2], [0, 30, 1, 0], [7, 7, 0, 0]])
SITES = {"a": "gut", "b": "gut", "c": "oral", "d": "oral", "e": "oral", "f": "skin"}
ROWS = [f"{name}\t{age}\t{site}\n" for age, (name, site) in enumerate(SITES.items(), 1)]
METADATA = "sample-id\tage\tsite\n" + "".join(ROWS)


def write_table(path: Path, features, counts=COUNTS, names=(*"edcba",), sequences=()) -> Path:
    table = make_table(csr_array(np.asarray(counts, np.uint32)), names, features, sequences)
    write_biom(table, path)
    return path


def write_fasta(path: Path, names) -> Path:
    records = zip(names, SEQUENCES, strict=True)
    path.write_text("".join(f">{name}\n{sequence}\n" for name, sequence in records))
    return path


@pytest.fixture
def files(tmp_path) -> dict[str, Path]:
    write_table(tmp_path / "table.biom", SEQUENCES, sequences=SEQUENCES)
    (tmp_path / "tree.nwk").write_text(NEWICK.format(*SEQUENCES))
    (tmp_path / "metadata.tsv").write_text(METADATA)
    names = {"table": "table.biom", "tree": "tree.nwk", "metadata": "metadata.tsv"}
    return {name: tmp_path / file for name, file in names.items()}


def load(files, *columns: str, targets=(), max_bp=150, rarefy_depth=2, more=None, **data) -> Study:
    config = DataConfig(**{**files, "rarefy_depth": rarefy_depth, **data})
    return load_study(config, max_bp, MetadataColumns(columns, targets=targets), **(more or {}))


def distances(study: Study, epoch: int = 0) -> torch.Tensor | None:
    return rarefied_batch(study, np.arange(len(study.table)), epoch).distance


def test_the_frame_says_what_became_of_every_sample(files, tmp_path):
    """All in the order of the file, also those that --exclude leaves out of the table."""
    (tmp_path / "out.txt").write_text("b\n")
    files["metadata"].write_text(METADATA.replace("d\t4\t", "d\t\t"))
    options = {"rarefy_depth": 14, "missing": "drop", "exclude": tmp_path / "out.txt"}
    study = load(files, "age", targets=["site"], **options)
    states = ["few reads", "no metadata", "few reads", "excluded", "kept"]
    assert study.samples["state"].to_dict() == dict(zip("edcba", states, strict=True))
    assert study.samples["reads"].to_dict() == {"e": 13, "d": 20, "c": 2, "b": 0, "a": 14}
    assert study.aligned == ("e", "c", "a")
    assert study.dropped == {"e": 13, "c": 2}
    assert study.classes.to_dict() == {"site": {"e": "oral", "c": "oral", "a": "gut"}}


def test_samples_below_the_depth_are_dropped_and_listed(files, caplog):
    study = load(files, rarefy_depth=14)
    assert (study.depth, study.table.sample_ids) == (14, ("d", "b", "a"))
    assert study.dropped == {"e": 13, "c": 2}
    assert "2 of 5 samples have fewer than 14 reads and are left out: 'e', 'c'" in caplog.text
    assert load(files).dropped == {}
    message = refusal(load, files, rarefy_depth=32)
    assert "no sample has 32 reads (the deepest has 31); lower --rarefy-depth; a trained" in message


def test_long_sequences_are_refused_or_trimmed(files):
    message = refusal(load, files, max_bp=38)
    assert "longer than --max-bp 38" in message
    assert "--trim" in message
    trimmed = load({"table": files["table"]}, max_bp=36, trim=True)
    assert trimmed.table.sequences == tuple(START + end for end in ("ACGT", "CCGT", "GGGT"))
    assert load(files, max_bp=None).longest == 39, "unset, the longest is accepted"


def test_numbers_are_read_by_one_rule_in_all_samples_at_once(files, caplog):
    """Only the training samples of the first fold were looked at."""
    text = METADATA.replace("b\t2", "b\told").replace("e\t5\toral", "e\t5\tx")
    files["metadata"].write_text(text.replace("gut", "7"))
    columns = MetadataColumns(
        ["age"], ["site"], ["age"], covariates=CovariateConfig(numeric_columns=("site",))
    )
    config = DataConfig(**files, rarefy_depth=2)
    age, site = refusal(load_study, config, 150, columns, training=["a"]).splitlines()
    assert (
        "column 'age' has 1 of 5 values that are no numbers of at most 1e+20: 'old' (sample 'b')"
        in age
    )
    assert "--missing-values" in age
    assert "'site' has 3 of 5 values" in site
    files["metadata"].write_text("sample-id\tage\na\t90\nb\t5%\nc\t>90\nd\t20\ne\t30\nf\t40\n")
    message = refusal(load, files, "age", targets=("age",))
    assert "2 of 5 values that are no numbers of at most 1e+20: '>90' (sample 'c'), '5%'" in message
    assert "class" not in caplog.text


def test_samples_of_a_split_file_that_the_table_lacks_are_named(files, tmp_path, caplog):
    subsets = ("train", "test", "train", "train", "test", "test")
    write_split(tmp_path / "split.tsv", Split((*"abcde", "ghost"), subsets, ("",) * 6))
    (found,) = make_splits(load(files), DataConfig(split=tmp_path / "split.tsv"), 0)
    assert found.ids("test") == ("b", "e")
    assert "split.tsv: 1 of 6 samples are not in the table: 'ghost'" in caplog.text


@pytest.fixture
def deep_files(tmp_path) -> dict[str, Path]:
    """Samples of 1001, 1002, ... 1020 reads: gut is the shallow half, oral the deep half."""
    names = [f"s{row:02d}" for row in range(20)]
    counts = np.arange(1001, 1021)[:, None]
    table = write_table(tmp_path / "t.biom", ["ACGT"], counts, names, ["ACGT"])
    rows = ["sample-id\tsite\tage\tcase\tfold"]
    for row, name in enumerate(names):
        site = "gut" if row < 10 else "oral"
        rows.append(f"{name}\t{site}\t{row / 7:.3f}\t{row // 10}\t{row % 2}")
    (tmp_path / "m.tsv").write_text("\n".join([*rows, ""]))
    return {"table": table, "metadata": tmp_path / "m.tsv"}


def test_the_depth_keeps_nine_tenths_of_every_class(deep_files, caplog):
    """Of all 18 of 20 may stay, of gut 9 of 10."""
    caplog.set_level(logging.INFO, "aam")
    files = {**deep_files, "rarefy_depth": None, "validation_size": 0.0}

    def depth(*columns: str, classifier: bool = False) -> int:
        asked = MetadataColumns(columns, targets=columns, classifier=classifier)
        return load_study(DataConfig(**files), 150, asked).depth

    assert depth() == depth("age") == 1003, "numbers are no classes"
    assert "1003 reads; 90 % of all samples reach 1003" in caplog.text
    assert depth("site") == depth("case", classifier=True) == 1002
    decided = "90 % of the training samples of class 'gut' of 'site'"
    assert f"{decided} reach 1002, of all samples 1003" in caplog.text


@pytest.mark.parametrize("option", ["targets", "optional", "batch_column"])
def test_a_feature_that_an_option_names_is_no_feature(deep_files, tmp_path, caplog, option):
    caplog.set_level(logging.INFO, "aam")
    table = "#OTU ID\t" + "\t".join(f"s{row:02d}" for row in range(20)) + "\n"
    reads = np.random.default_rng(0).integers(200, 900, (6, 20))
    for name, counts in zip(["f1", "f2", "f3", "f4", "f5", "Case"], reads, strict=True):
        table += "\t".join([name, *map(str, counts)]) + "\n"
    (tmp_path / "t.tsv").write_text(table)
    named = {"optional": ["case"]} if option == "optional" else {}
    target = "case" if option == "targets" else "age"
    columns = MetadataColumns([target], targets=[target], **named)
    more = {"batch_column": "case"} if option == "batch_column" else {}
    deep_files["table"] = tmp_path / "t.tsv"
    config = DataConfig(**deep_files, rarefy_depth=9, **more)
    message = refusal(load_study, config, None, columns)
    assert message == "table: feature 'Case' has the name of the metadata column 'case'; remove it"
    load_study(replace(config, batch_column=None), None, MetadataColumns(["age"], targets=["age"]))
    assert "the largest of 6 features, by reads: " in caplog.text


@pytest.mark.parametrize("by", ["column", "file"])
def test_labels_of_test_samples_do_not_dictate_the_depth(deep_files, tmp_path, by):
    """Whatever the test samples are called, the depth and the split stay."""
    names = tuple(f"s{row:02d}" for row in range(20))
    options = {"split_column": "fold", "test_fold": "1"}
    if by == "file":
        options = {"split": tmp_path / "split.tsv"}
        subsets = tuple("test" if row < 4 else "train" for row in range(20))
        write_split(options["split"], Split(names, subsets, ("",) * 20))
    options |= {"validation_size": 0.0, "rarefy_depth": None, "targets": ("site",)}
    study = load(deep_files, "site", **options)
    (split,) = make_splits(study, study.config, 0)
    assert split.ids("test")
    lines = deep_files["metadata"].read_text().split("\n")
    lines = [line.replace("gut", "x") if line[:3] in split.ids("test") else line for line in lines]
    deep_files["metadata"].write_text("\n".join(lines))
    again = load(deep_files, "site", **options)
    assert again.depth == study.depth
    assert make_splits(again, again.config, 0) == (split,)


def test_tips_that_are_the_sequences_are_matched_where_ids_are_hashes(files, tmp_path):
    hashed = [hashlib.md5(sequence.encode()).hexdigest() for sequence in SEQUENCES]
    table = write_table(tmp_path / "hashed.biom", hashed)
    by_hash = {"table": table, "sequences": write_fasta(tmp_path / "rep-seqs.fasta", hashed)}
    study, named = load({**files, **by_hash}), load(files)
    assert study.parts[0].tree.tips == named.parts[0].tree.tips
    assert study.parts[0].tips.tolist() == named.parts[0].tips.tolist()
    assert torch.equal(distances(study), distances(named))
    files["tree"].write_text("((x:1,y:2):0.5,z:1);")
    missing = "4 of 4 features of the table have no tip in the tree by id, sequence or MD5"
    assert missing in refusal(load, {**files, **by_hash})


def test_samples_are_aligned_with_their_metadata(files, caplog):
    study = load(files, "age", "site")
    assert study.metadata.values("age", study.table.sample_ids) == (*"54321",)
    assert (study.metric, study.rows(["a", "e"]).tolist()) == ("unifrac", [4, 0])
    files["metadata"].write_text(METADATA.replace("a\t1\tgut\n", "").replace("b\t2", "b\t"))
    message = refusal(load, files, "age")
    assert all(part in message for part in ("--missing drop", "'a'", "'b'"))
    left = load(files, "age", targets=("site",), missing="drop")
    assert left.table.sample_ids == ("e", "d", "c")
    assert "1 of 5 samples have no value in 'age': 'b'; left out" in caplog.text


def test_tree_and_table_are_matched_and_pruned(files):
    study = load(files)
    assert study.parts[0].tree.tips == tuple(SEQUENCES)
    assert study.parts[0].tips.tolist() == [0, 1, 2, 3]
    newick = NEWICK.format(*SEQUENCES)
    files["tree"].write_text(newick.replace(f"{SEQUENCES[2]}:1,", ""))
    assert "--missing-tips drop" in refusal(load, files)
    partly = load(files, missing_tips="drop")
    assert partly.parts[0].tips.tolist() == [0, 1, -1, 2]
    batch = rarefied_batch(partly, np.arange(5), 0)
    assert 2 in batch.column.tolist(), "a feature without a tip remains an input"
    assert not torch.equal(batch.distance, distances(study))
    without = load({"table": files["table"]})
    assert (without.metric, distances(without)) == (None, None)


def test_a_precomputed_matrix_is_matched_by_its_ids(files, tmp_path):
    """A permuted matrix gives the same distances (failure 5 of the predecessor)."""
    ids, order = [*"abcde", "other"], [3, 5, 0, 2, 4, 1]
    upper = np.triu(np.arange(36.0).reshape(6, 6) / 100, 1)
    values, everything = upper + upper.T, slice(0, 6)
    path, permuted = tmp_path / "distances.tsv", values[order][:, order]
    write_distances(path, [ids[row] for row in order], [(everything, everything, permuted)])
    study = load({"table": files["table"]}, unifrac_matrix=path)
    batch = rarefied_batch(study, np.array([1, 3, 0]), 0)
    rows = [ids.index(name) for name in batch.sample_ids]
    np.testing.assert_allclose(batch.distance.numpy(), values[rows][:, rows], rtol=1e-6)


def test_all_problems_come_at_once(files):
    swapped = {"table": files["tree"], "metadata": files["metadata"]}
    text = refusal(load, swapped, "agee", "flu", unifrac_matrix=Path("nowhere.h5"))
    for part in (
        str(files["tree"]),
        "no column 'agee'",
        "no column 'flu'",
        "nowhere.h5: no such file",
    ):
        assert part in text
    message = refusal(load, {"table": files["table"]}, "age")
    assert "--metadata: not given, but columns 'age' are asked for" in message


@pytest.fixture(scope="module")
def folder(tmp_path_factory, study_of, tiny):
    """Three studies: `a` and `b` share half of their ASVs and have trees; `c`, a folder with
    table.biom, has none.
    """
    path = tmp_path_factory.mktemp("studies")
    (path / "c").mkdir()
    sizes = {"a": (16, 24, 1), "b": (5, 12, 1), "c": (3, 24, 5)}
    for name, (samples, asvs, seed) in sizes.items():
        made = tiny(samples=samples, asvs=asvs, lengths=(32,), seed=seed)
        names = ["s0", *(f"{name}{row}" for row in range(1, samples))]
        file = path / "c" / "table.biom" if name == "c" else path / f"{name}.biom"
        write_biom(study_of(made["counts"], made["sequences"], names=names).table, file)
        (path / f"{name}.nwk").write_text(made["newick"], encoding="ascii")
    return path


def data(folder, **changes) -> DataConfig:
    tables = (folder / "a.biom", folder / "b.biom", folder / "c" / "table.biom")
    trees = (str(folder / "a.nwk"), str(folder / "b.nwk"), "none")
    return DataConfig(**{"tables": tables, "trees": trees, "rarefy_depth": DEPTH, **changes})


@pytest.fixture(scope="module")
def joined(folder):
    return load_study(data(folder))


def test_the_same_sequence_is_one_asv_and_the_same_id_is_two_samples(joined, folder):
    tables = data(folder).tables
    single = [load_study(DataConfig(table=path, rarefy_depth=DEPTH)).table for path in tables]
    assert set(joined.table.sequences) == {name for table in single for name in table.sequences}
    assert [part.name for part in joined.parts] == ["a", "b", "c"]
    assert {"a/s0", "b/s0", "c/s0", "a1", "b1", "c1"} <= set(joined.table.sample_ids)
    for number, table in enumerate(single):
        rows = np.flatnonzero(joined.origin == number)
        columns = [joined.table.sequences.index(sequence) for sequence in table.sequences]
        inside = joined.table.counts.toarray()[rows]
        assert (inside[:, columns] == table.counts.toarray()).all()
        assert inside.sum() == table.counts.sum()


def test_distances_are_those_of_each_study(joined, folder):
    """Except where an id was changed, which another rarefaction is drawn for."""
    batch = rarefied_batch(joined, np.arange(len(joined.origin)), 3)
    origin = joined.origin[joined.rows(batch.sample_ids)]
    for number, name in enumerate("ab"):
        files = {"table": folder / f"{name}.biom", "tree": folder / f"{name}.nwk"}
        single = load_study(DataConfig(**files, rarefy_depth=DEPTH))
        ids = [sample for sample in single.table.sample_ids if sample != "s0"]
        expected = rarefied_batch(single, single.rows(ids), 3)
        at = [batch.sample_ids.index(sample) for sample in expected.sample_ids]
        torch.testing.assert_close(batch.distance[at][:, at], expected.distance, rtol=0, atol=1e-6)
        assert batch.distance[at][:, torch.from_numpy(origin != number)].isnan().all()
    assert batch.distance[torch.from_numpy(origin == 2)].isnan().all()
    counts, rows = rarefied_table(joined, 3), np.arange(len(joined.origin))
    whole, some = (distances_of(joined, counts, rows, part) for part in (slice(24), slice(14, 20)))
    torch.testing.assert_close(some, whole[14:20], equal_nan=True)
    tracemalloc.start()
    distances_of(joined, counts, np.repeat(rows[joined.origin == 2], 1000), slice(1))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2_000_000, "memory is taken for the rows that are asked for"


def test_a_batch_is_of_one_study_and_small_studies_come_more_often(joined):
    rows = np.arange(len(joined.origin))
    loader = Loader(joined, rows, 3, shuffle=True)
    order = loader.order(0)
    assert len(order) == len(loader) == len(loader.order(1))
    assert all(len(set(joined.origin[rows])) == 1 and len(rows) <= 3 for rows in order)
    times = Counter(joined.origin[np.concatenate([*order, *loader.order(1)])].tolist())
    assert times[2] / 3 > times[0] / 16, "the smaller study's samples are drawn more often"
    assert set(times) == {0, 1, 2}
    assert sorted(np.concatenate(Loader(joined, rows, 3).order(0))) == [*rows], "each sample once"


def test_problems_of_all_tables_come_together(folder, tmp_path):
    bad = tmp_path / "bad.biom"
    bad.write_text("nothing", encoding="ascii")
    tables = (folder / "a.biom", bad, folder / "none.biom")
    assert len(refusal(load_study, data(folder, tables=tables)).splitlines()) == 2
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
    (tmp_path / "tree.nwk").write_text(NEWICK.format(*names))
    table = write_table(tmp_path / "otus.biom", names)
    files = {"table": table, "tree": tmp_path / "tree.nwk"}
    study = load(files)
    assert study.table.names == tuple(sorted(names))
    assert study.parts[0].tips.tolist() != [-1] * 4
    for needs_dna in ("tokens", "lengths"):
        message = refusal(getattr, study, needs_dna)
        assert "have no sequences, which a network reads; pass --seq" in message
    assert load(files, sequences=write_fasta(tmp_path / "f.fasta", names)).tokens.shape == (4, 39)


@pytest.mark.parametrize("tree", [["t.nwk"], {"a": 1}, np.zeros(3), 3])
def test_other_objects_are_no_trees(tree):
    table = pd.DataFrame(COUNTS, [*"edcba"], SEQUENCES)
    message = refusal(read_inputs, DataConfig(), table=table, tree=tree)
    assert message.startswith(f"tree is {type(tree).__name__}, expected a skbio.TreeNode")
