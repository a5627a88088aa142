"""Splits: groups, strata and folds; files; what the options ask for; duplicates."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedGroupKFold

from aam.config import DataConfig
from aam.data.splits import (
    SUBSETS,
    Split,
    check_groups,
    duplicates_across_subsets,
    fold_folder,
    kfold,
    make_split,
    make_splits,
    read_split,
    restricted,
    split_samples,
    write_split,
)
from aam.data.study import MetadataColumns, Study
from aam.io.metadata import read_metadata
from tests.data.studies import make_study, metadata_of, samples_in, typed_metadata
from tests.programs import absent
from tests.refusals import refusal

IDS = [f"s{k}" for k in range(100)]
GROUPS = [f"g{k % 20}" for k in range(100)]
CLASSES = ["a" if k % 20 < 5 else "b" for k in range(100)]
HEADER = "sample-id\tside\tfold\n"


def shares(split: Split, groups: list[str] | None = None) -> tuple[int, ...]:
    """Number of groups in each subset; fails where a group is in two."""
    group = dict(zip(IDS, groups or IDS, strict=True))
    subsets = [{group[sample] for sample in split.ids(subset)} for subset in SUBSETS]
    assert not any(first & second for first, second in combinations(subsets, 2))
    return tuple(map(len, subsets))


def split_of(ids=IDS, groups=None, strata=None, test=0.0, validation=0.15, seed=0) -> Split:
    return make_split(ids, (test, validation), seed, groups, strata)


def of(metadata, target="", is_class=False) -> Study:
    """A study of one read for each sample of the metadata, with a target if it is named."""
    sequences, ones = ["ACGT" * 10], np.ones((len(metadata.ids), 1))
    made = make_study(ones, sequences, names=metadata.ids)
    columns = MetadataColumns(targets=[target] if target else [], classifier=is_class)
    return replace(made, metadata=metadata, columns=columns)


def by_column(ids, folds, groups=None, size=0.15, **options) -> list[Split]:
    """Splits by a metadata column of folds: one for each, or that of `test_fold`."""
    columns = {"fold": tuple(folds), "group": tuple(groups or ids)}
    metadata = typed_metadata(ids, columns, dict.fromkeys(columns, "categorical"))
    options = {"split_column": "fold", **options} if options else {"cv": "fold"}
    data = DataConfig(group_column=groups and "group", validation_size=size, **options)
    return list(split_samples(of(metadata), data, ids, 0))


@pytest.fixture
def study(study_of, tiny):
    """A study of n samples s0, s1, ... with these metadata columns, all of them selected."""

    def make(samples, target="", lost=(), **columns):
        made = study_of(**tiny(samples=samples))
        states = samples_in(kept=made.table.sample_ids, few_reads=lost)
        metadata = typed_metadata(states.index, {"id": states.index, **columns}, {})
        asked = MetadataColumns(targets=[target] if target else [])
        return replace(made, metadata=metadata, samples=states, columns=asked)

    return make


@pytest.mark.parametrize(
    ("groups", "options", "expected"),
    [
        (None, {}, (85, 15, 0)),
        (None, {"test": 0.2, "validation": 0.25}, (60, 20, 20)),
        (None, {"validation": 0.0}, (100, 0, 0)),
        (None, {"test": 0.001, "validation": 0.001}, (98, 1, 1)),
        (GROUPS, {"test": 0.2, "validation": 0.25}, (12, 4, 4)),
    ],
)
def test_shares_are_of_groups_and_no_group_is_in_two_subsets(groups, options, expected):
    split = split_of(groups=groups, **options)
    assert shares(split, groups) == expected
    assert (set(split.folds), split.test_fold) == ({""}, "")
    other = split_of(groups=groups, **{**options, "validation": 0.5})
    assert other.ids("test") == split.ids("test"), "whatever the size of validation"


def test_every_sample_is_sometimes_held_out():
    splits = [split_of(groups=GROUPS, test=0.2, seed=seed) for seed in range(20)]
    times = Counter(sample for split in splits for sample in split.ids("test"))
    assert set(times) == set(IDS)
    # 20 draws of a fifth: 4 each, standard deviation 1.8.
    assert max(times.values()) < 12


def test_strata_are_divided_to_within_one_sample():
    value = np.random.default_rng(0).lognormal(size=100)
    value[:7] = np.nan
    class_of, value_of = (dict(zip(IDS, values, strict=True)) for values in (CLASSES, value))
    edges = np.nanquantile(value, [0, 0.2, 0.4, 0.6, 0.8, 1])
    for seed in range(10):
        split = split_of(strata=CLASSES, test=0.2, validation=0.25, seed=seed)
        for subset, expected in (("test", 5), ("validation", 5), ("train", 15)):
            labels = [class_of[sample] for sample in split.ids(subset)]
            assert abs(labels.count("a") - expected) <= 1
        split = split_of(strata=value, test=0.2, seed=seed)
        held = np.array([value_of[sample] for sample in split.ids("test")])
        assert (np.abs(np.histogram(held, edges)[0] - 0.2 * 93 / 5) <= 1.5).all()
        assert 1 <= np.isnan(held).sum() <= 2


@pytest.mark.parametrize("strata", [CLASSES, np.arange(100.0)], ids=["classes", "numbers"])
def test_the_row_order_changes_nothing(strata):
    order = np.random.default_rng(1).permutation(100)
    ids, groups = [IDS[row] for row in order], [GROUPS[row] for row in order]
    moved = strata[order] if isinstance(strata, np.ndarray) else [strata[row] for row in order]
    assert split_of(ids, groups, moved, 0.3, seed=5) == split_of(IDS, GROUPS, strata, 0.3, seed=5)
    assert kfold(ids, 4, groups, moved, seed=5) == kfold(IDS, 4, GROUPS, strata, seed=5)


def test_a_split_is_the_same_on_every_machine():
    ids, groups = [f"s{k}" for k in range(12)], [f"g{k // 2}" for k in range(12)]
    split = split_of(ids, groups, [str(k % 5) for k in range(12)], 0.3, 0.3)
    # Drawn once with numpy 2.4 on x86-64.
    assert split.ids("test") == ("s0", "s1", "s2", "s3")
    assert split.ids("validation") == ("s4", "s5")


def test_folds_hold_out_every_sample_once():
    splits = kfold(IDS, 4, GROUPS, CLASSES, seed=0)
    assert [split.test_fold for split in splits] == ["0", "1", "2", "3"]
    tested = [sample for split in splits for sample in split.ids("test")]
    assert sorted(tested) == sorted(IDS)
    for split in splits:
        assert shares(split, GROUPS) == (13, 2, 5)
        assert split.folds == splits[0].folds
    sizes = [len(split.ids("test")) for split in kfold(IDS, 7, seed=0)]
    assert sorted(sizes) == [14] * 5 + [15] * 2


def test_a_column_holds_out_each_of_its_folds_or_one():
    folds = [str(k % 5) for k in range(100)]
    splits = by_column(IDS, folds, GROUPS, 0.25)
    for fold, split in enumerate(splits):
        assert (split.test_fold, split.ids("test")) == (str(fold), tuple(sorted(IDS[fold::5])))
    assert all(shares(split, GROUPS) == (12, 4, 4) for split in splits)
    assert by_column(IDS, folds, GROUPS, 0.25, test_fold="3") == [splits[3]]
    order = np.random.default_rng(1).permutation(100)
    moved = [[values[row] for row in order] for values in (IDS, folds, GROUPS)]
    assert by_column(*moved, 0.25) == splits


def test_a_column_may_hold_the_subsets():
    subsets = {3: "validation", 4: "test", 9: "test"}
    column = [subsets.get(k % 20, "train") for k in range(100)]
    (split,) = by_column(IDS, column, GROUPS, 0.3, test_fold=None)
    assert split.ids("validation") == tuple(sorted(IDS[3::20]))
    assert split.ids("test") == tuple(sorted(IDS[4::20] + IDS[9::20]))
    assert {*split.folds} == {""}
    # With --test-fold they are folds like any others.
    (split,) = by_column(IDS, column, GROUPS, 0.3, test_fold="validation")
    assert split.ids("test") == tuple(sorted(IDS[3::20]))
    assert split.ids("validation")


def test_subsets_without_validation_samples_get_some_of_the_training_groups():
    column = ["test" if k % 20 < 4 else "train" for k in range(100)]
    (split,) = by_column(IDS, column, GROUPS, 0.25, test_fold=None)
    assert shares(split, GROUPS) == (12, 4, 4)
    (by_fold,) = by_column(IDS, column, GROUPS, 0.25, test_fold="test")
    assert by_fold.ids("test") == split.ids("test")
    assert by_fold.test_fold == "test"
    untested = [name.replace("test", "validation") for name in column]
    (split,) = by_column(IDS, untested, GROUPS, 0.25, test_fold=None)
    assert split.held_out == split.ids("validation") == by_fold.ids("test")


FIVE_FOLDS = [str(k % 5) for k in range(100)]

# What divides samples, and all that is said.
REFUSED = [
    (
        partial(split_of, ["a", "b"], ["1", "2"], test=0.99),
        "--test-size 0.99 takes 2 of 2 groups and leaves none to train on",
    ),
    (partial(kfold, IDS, 21, GROUPS, seed=0), "--cv is 21, expected 2 to 20, the number of groups"),
    (partial(kfold, IDS, 1, seed=0), "--cv is 1,"),
    (partial(kfold, ["a", "b"], 2, ["1", "2"], seed=0), "takes 1 of 1 groups"),
    (
        partial(by_column, IDS, FIVE_FOLDS, test_fold="5"),
        "folds are '0', '1', '2', '3', '4', expected --test-fold '5'",
    ),
    (
        partial(by_column, IDS, FIVE_FOLDS, test_fold=None),
        "folds are '0', '1', '2', '3', '4', expected the subsets 'train', 'validation', 'test', or",
    ),
    (
        partial(by_column, IDS, ["test", "validation"] * 50, test_fold=None),
        "folds are 'test', 'validation', expected the subsets",
    ),
    (
        partial(by_column, IDS, ["train", "dev"] * 50, test_fold="test"),
        "folds are 'dev', 'train', expected --test-fold 'test' among them",
    ),
    (
        partial(by_column, IDS, ["Train", "train"] * 50, test_fold=None),
        "folds are 'Train', 'train', expected the subsets",
    ),
    (partial(by_column, IDS, ["0"] * 100), "all samples are in fold '0'; name another column"),
    (
        partial(by_column, IDS, FIVE_FOLDS, [f"g{k // 7}" for k in range(100)]),
        "15 of 15 groups are in several folds",
        "'g0' in '0', '1', '2', '3', '4'",
        "by a column of whole groups",
    ),
    (
        partial(by_column, IDS, ["0", "1", "", *FIVE_FOLDS[3:]]),
        "1 of 100 samples have no value in --cv or --split-column fold: 's2'",
    ),
    (
        partial(check_groups, split_of(test=0.2), dict(zip(IDS, GROUPS, strict=True))),
        "16 of 20 groups are in several subsets: 'g10'",
    ),
]


@pytest.mark.parametrize("row", REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_divided(row):
    divide, *problems = row
    assert absent(refusal(divide), *problems) == []


def test_a_column_of_folds_may_have_the_name_of_a_digit():
    metadata = typed_metadata(IDS[:8], {"²": tuple("abababab")}, {"²": "categorical"})
    splits = split_samples(of(metadata), DataConfig(cv="²"), metadata.ids, 0)
    assert [split.test_fold for split in splits] == ["a", "b"]


def test_samples_without_groups_are_in_no_two_subsets():
    check_groups(split_of(test=0.2), dict.fromkeys(IDS, None))


def test_a_sample_without_a_group_is_its_own(study):
    made = study(9, fold=["0", "1", "", *"010101"])
    (split,) = make_splits(made, DataConfig(group_column="fold", test_size=0.4), 0)
    assert len(split.ids("test")) in (1, 4), "a group, or the sample without one"


def test_the_depth_empties_no_subset_that_can_be_drawn_anew(study_of, tiny, caplog):
    """Ten samples: the depth dropped the only validation sample of a fold in every draw."""
    ids = (*IDS[:10],)
    caplog.set_level("INFO")
    for lost in ids:
        kept = [name for name in ids if name != lost]
        samples = samples_in(kept=ids)
        samples.loc[lost, "state"] = "few reads"
        study = replace(study_of(**tiny(samples=9), names=kept), samples=samples)
        splits = make_splits(study, DataConfig(cv="5"), 0)
        assert sorted(name for split in splits for name in split.ids("test")) == kept
        assert all(split.ids(subset) for split in splits for subset in SUBSETS)
    assert "drawn again for the 9 samples that reach the depth\n" in caplog.text


@pytest.mark.parametrize(("labels", "lost"), [("aaaabbbb", False), ("aabb", True), ("abc", True)])
def test_a_validation_subset_that_is_given_up_is_said_to_be(study, caplog, labels, lost):
    with caplog.at_level("INFO"):
        made = study(len(labels), "y", y=labels)
        (split,) = make_splits(made, DataConfig(test_size=0.0), 0)
    assert bool(split.ids("validation")) != lost
    says = f"again for the {len(labels)} samples that reach the depth, without a validation subset"
    assert (says in caplog.text) == ("drawn again" in caplog.text) == lost


def test_every_class_keeps_two_training_samples_where_it_can(study):
    label_of = dict(zip(IDS, "aaaabbbbb", strict=False))
    made = study(9, "y", ["lost"], y=[*label_of.values(), "a"])
    for seed in range(9):
        for split in make_splits(made, DataConfig(cv="5"), seed):
            trained = [label_of[name] for name in split.ids("train")]
            assert min(trained.count("a"), trained.count("b")) >= 2


NAMES = ["Qin et al. (2014)", "2017/05/12", "UK: London", "Baxter & Co", "..a", "a/b", "a:b", "é ü"]


@pytest.mark.parametrize(
    "name", [*NAMES, "*a", "x" * 200, "\u6d77" * 99, "CON?", "tab\there", "trailing. "]
)
def test_any_name_can_be_a_fold(tmp_path, name):
    folders = {fold_folder(fold) for fold in (name, name + "!", "plain")}
    assert len(folders) == 3
    for folder in folders:
        (tmp_path / folder).mkdir()
        assert (tmp_path / folder).resolve().parent == tmp_path.resolve()
    assert {split.test_fold for split in by_column(IDS[:9], (name, "b", "b") * 3)} == {name, "b"}


def test_restricted_to_the_samples_of_a_table():
    split = split_of(test=0.2)
    kept = restricted(split, IDS[10:])
    assert kept.sample_ids == tuple(sorted(IDS[10:]))
    assert set(kept.ids("test")) == set(split.ids("test")) & set(IDS[10:])
    assert "1 of 101 samples are not in it: 'new'" in refusal(restricted, split, [*IDS, "new"])
    assert "subset 'validation', 'test'" in refusal(restricted, split, split.ids("train"))
    (apart, _) = by_column(IDS, ["a", *["b"] * 99], size=0.0)
    assert "in the subset 'test' of fold 'a'; lower" in refusal(restricted, apart, IDS[1:])


def test_grouped_folds_are_as_even_as_those_of_scikit_learn(bench_data):
    metadata = read_metadata(bench_data / "mackerel-type" / "metadata.tsv")
    ids = metadata.ids
    fish, kinds = metadata.values("fish", ids), np.array(metadata.values("sample_type", ids))

    def unevenness(folds):
        shares = [np.mean(np.isin(ids, fold)[kinds == x]) for fold in folds for x in {*kinds}]
        return max(np.abs(np.array(shares) - 0.2))

    theirs = StratifiedGroupKFold(5, shuffle=True, random_state=0).split(ids, kinds, fish)
    ours = [split.ids("test") for split in kfold(ids, 5, fish, kinds.tolist(), seed=0)]
    assert unevenness(ours) <= unevenness([np.array(ids)[rows] for _, rows in theirs]) + 0.005


WORD = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None, suppress_health_check=[*HealthCheck])
@given(st.dictionaries(WORD, st.tuples(st.sampled_from(SUBSETS), WORD), min_size=1), st.booleans())
def test_split_files_are_read_as_written(tmp_path, rows, folded):
    rows["#train, \"'"] = ("train", "x")
    ids = tuple(sorted(rows))
    subsets, folds = zip(*map(rows.__getitem__, ids), strict=True)
    split = Split(ids, subsets, folds if folded else ("",) * len(ids))
    write_split(tmp_path / "split.tsv", split)
    assert read_split(tmp_path / "split.tsv") == split


def test_blank_lines_of_a_split_file_do_not_matter(tmp_path):
    write_split(tmp_path / "b.tsv", Split(("a", "b"), ("test", "train"), ("1", "0")))
    assert (tmp_path / "b.tsv").read_text() == HEADER + "a\ttest\t1\nb\ttrain\t0\n"
    (tmp_path / "blank.tsv").write_text(HEADER + "\t\t\na\ttest\t1\nb\ttrain\t0\n\t\t\n")
    assert read_split(tmp_path / "blank.tsv") == read_split(tmp_path / "b.tsv")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "expected the header ['sample-id', 'side', 'fold']"),
        (HEADER, "samples and none with the side 'train'"),
        ("id\tside\tfold\na\ttrain\t\n", "the header is ['id', 'side', 'fold'], expected"),
        (HEADER + "a\ttrain\n", "line 2 (2 cells): expected 3 cells"),
        (HEADER + "a\tTrain\t\n", "line 2 (holds ['a', 'Train', '']): expected"),
        (HEADER + "a\ttrain\t\n\t\t\na\ttest\t\n", "line 4 (holds ['a', 'test', '']): expected"),
        (HEADER + "\ttrain\t\n", "line 2 (holds ['', 'train', ''])"),
        (HEADER + "a\ttest\t\n", "samples and none with the side 'train'"),
        (HEADER + '"a\ttest\t\n', "double quote"),
        (HEADER + "a\ttrain\t0\nb\ttest\t\nc\ttest\t1\n", "1 samples have no fold and 2 have"),
        (HEADER + "a\tx\t\n" * 50, "9 (holds ['a', 'x', '']) and 42 more: expected"),
    ],
)
def test_damaged_split_files(tmp_path, text, expected):
    path = tmp_path / "split.tsv"
    path.write_text(text)
    message = refusal(read_split, path)
    assert expected in message
    assert len(message.splitlines()) <= 10


@pytest.mark.parametrize(
    ("codes", "is_class"), [("01", False), ("10", False), ("01", True), ("0123456", True)]
)
def test_rare_values_that_are_numbers_are_spread_too(codes, is_class):
    """Codes of classes, and the values of a number of which there are few, are no quintiles."""
    rare = [codes[1 + row % (len(codes) - 1)] if row < 18 else codes[0] for row in range(105)]
    metadata = metadata_of(code=rare)
    splits = split_samples(of(metadata, "code", is_class), DataConfig(cv="3"), metadata.ids, 1)
    of_folds = [Counter(metadata.values("code", one.ids("test"))) for one in splits]
    assert of_folds[0] == of_folds[1] == of_folds[2]


@pytest.mark.parametrize(
    ("samples", "groups", "expected"), [(30, None, 6), (29, None, 0), (60, 30, 12), (60, 29, 0)]
)
def test_a_fifth_of_the_groups_is_held_out_where_there_are_thirty(
    study, caplog, samples, groups, expected
):
    """What is reported as held out must be."""
    made = study(samples, subject=[f"p{row % (groups or samples)}" for row in range(samples)])
    with caplog.at_level("INFO"):
        (split,) = make_splits(made, DataConfig(group_column=groups and "subject"), 0)
    assert len(split.ids("test")) == expected
    assert f"{expected or 'no'} samples are held out as the test subset" in caplog.text
    (everyone,) = make_splits(made, DataConfig(test_size=0.0), 0)
    assert not everyone.ids("test")


@pytest.mark.parametrize("changed", [0, 3])
@pytest.mark.parametrize(
    ("held_out", "number"),
    [(["s4", "s5"], 1), (["s1", "s4"], 2), (["s6"], 1), (["s1", "s4", "s6"], 0), (["s5"], 0)],
)
def test_a_sample_under_two_ids_in_two_subsets_is_named(study_of, tiny, changed, held_out, number):
    """Sample s4 is sample s1 again, and s6 has half of its reads."""
    draw, given = np.random.default_rng(0), tiny(lengths=(20,) * 40)
    counts = draw.poisson(np.exp(draw.normal(3, 1, (9, given["counts"].shape[1])))).astype(np.int64)
    counts[4], counts[6] = counts[1], counts[1] // 2
    counts[4, :changed] += 1
    table = study_of(**{**given, "counts": counts}).table
    subsets = tuple("test" if name in held_out else "train" for name in IDS[:9])
    fold = Split((*IDS[:9],), subsets, ("2",) * 9)
    messages = duplicates_across_subsets(table, [fold, fold])
    assert len(messages) == min(number, 1)
    for message in messages:
        assert message.startswith(f"{number} held-out samples are near duplicates of samples that")
        assert f"as 's1', '{'s6' if 's6' in held_out else 's4'}' are" in message or number == 2
        assert message.endswith("give both the same value in --group-column")
