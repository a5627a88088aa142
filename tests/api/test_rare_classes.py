"""Classes in too few groups are left out of folds, learning and predictions; others keep theirs."""

from __future__ import annotations

import html
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import aam
from aam.api.training import check_targets, fit_model, load_folds, split_of_all, supervise
from aam.cli import main
from aam.config import FineTuneConfig
from aam.data.inputs import options_with, read_inputs
from tests.refusals import refusal

FEATURES = 20


def table_of(metadata: pd.DataFrame) -> pd.DataFrame:
    """Reads of the samples of some metadata, 900 to 1,500 each."""
    rng = np.random.default_rng(3)
    shares = rng.dirichlet(np.full(FEATURES, 0.5), len(metadata))
    counts = [rng.multinomial(rng.integers(900, 1500), row) for row in shares]
    return pd.DataFrame(counts, metadata.index, [f"F{number}" for number in range(FEATURES)])


def study_of(groups: int, per_group: int = 2, rare: str = "unsure") -> pd.DataFrame:
    """Metadata of groups of two classes, and a class of the two samples of the last group."""
    rows = np.arange(groups * per_group)
    metadata = pd.DataFrame(index=[f"s{row:03d}" for row in rows])
    metadata["host"] = [f"h{row // per_group}" for row in rows]
    metadata["birth"] = np.where(rows // per_group % 2, "vaginal", "section")
    metadata["diet"] = np.where(rows // per_group % 3, "milk", "mixed")
    metadata["age"] = rows % 7 + 0.5
    metadata["plate"] = [f"p{row // per_group % 4}" for row in rows]
    metadata.loc[metadata.index[-per_group:], "birth"] = rare
    return metadata


def folds_of(metadata: pd.DataFrame, table: pd.DataFrame | None = None, **options):
    table = table_of(metadata) if table is None else table
    options = {"metadata_column": ("birth",), "rarefy_depth": 500, **options}
    read = {"table": table, "metadata": metadata}
    config = options_with(FineTuneConfig(), options, "test", **read)
    folds = load_folds(config, inputs=read_inputs(config, options["metadata_column"], **read))
    check_targets(folds)
    return folds


def held_out_times(folds) -> Counter[str]:
    return Counter(name for split in folds.splits for name in split.ids("test"))


@pytest.mark.parametrize("groups", [11, 17, 29, 31, 90])
def test_a_class_of_one_group_removes_no_evaluation_whatever_the_size(groups, caplog):
    metadata = study_of(groups)
    folds = folds_of(metadata, group_column="host")
    assert len(folds.splits) == 5
    assert held_out_times(folds) == Counter(metadata.index[:-2])
    learned = [*folds.splits, split_of_all(folds)]
    assert not {name for split in learned for name in split.sample_ids} & {*metadata.index[-2:]}
    last = ", ".join(map(repr, metadata.index[-2:]))
    assert (
        f"column 'birth': class 'unsure' has 1 of the 3 groups that learning needs ({last})"
        in caplog.text
    )
    assert "--missing-values unsure --missing drop" in caplog.text
    assert folds.study.left_out["birth"].keys() == {"unsure"}
    assert folds.study.in_state("no class") == tuple(metadata.index[-2:])


def test_without_groups_samples_are_counted_and_a_word_for_missing_has_two_remedies(caplog):
    metadata = study_of(24, rare="twins")
    folds_of(metadata)
    assert "column 'birth': class 'twins' has 2 of the 3 groups that learning needs" in caplog.text
    caplog.clear()
    aam.AmpliconClassifier(members=("presence",), rarefy_depth=500).fit(
        table_of(metadata), metadata["birth"]
    )
    assert "leave these cells empty (None in Python)" in caplog.text
    assert "or pass --missing-values twins --missing drop" in caplog.text


def test_classes_are_counted_after_the_depth(caplog):
    metadata = study_of(20)
    metadata.loc[["s001", "s005", "s009"], "birth"] = "forceps delivery"
    table = table_of(metadata)
    table.loc["s005"] //= 4
    folds = folds_of(metadata, table, group_column="host", rarefy_depth=800)
    assert (
        "class 'forceps delivery' has 2 of the 3 groups that learning needs ('s001', 's009')"
        in caplog.text
    )
    assert "--missing-values 'forceps delivery' --missing drop" in caplog.text
    assert held_out_times(folds) == Counter(set(metadata.index[:-2]) - {"s001", "s005", "s009"})
    table.loc["s005"] *= 4
    of_three = folds_of(metadata, table, group_column="host", rarefy_depth=800)
    assert of_three.study.left_out["birth"].keys() == {"unsure"}


@pytest.mark.parametrize("other", ["diet", "age"])
def test_a_sample_without_its_class_serves_the_other_target(other):
    metadata = study_of(14)
    metadata.loc["s000", "diet"] = "soy" if other == "diet" else "milk"
    columns = ("birth", other)
    folds = folds_of(metadata, group_column="host", metadata_column=columns)
    assert held_out_times(folds) == Counter(metadata.index)
    study, targets, _ = supervise(folds, folds.splits[0].ids("train"))
    by_name = {spec.name: spec.labels for spec in targets.specs}
    assert by_name["birth"] == ("section", "vaginal")
    places = study.rows(["s000", "s027"])
    assert study.labels.label[places, 0].tolist() == [0, -1]
    if other == "diet":
        assert by_name["diet"] == ("milk", "mixed")
        assert study.labels.label[places, 1].tolist()[0] == -1
    else:
        assert np.isfinite(study.labels.target).all()
    # A sample that is rare in all targets is left out.
    metadata.loc["s027", "diet"] = "soy"
    left = 28 if other == "age" else 27
    assert len(folds_of(metadata, group_column="host", metadata_column=columns).study.table) == left


@pytest.mark.parametrize(
    "options",
    [
        {"test_size": 0.25, "group_column": "host"},
        {"test_size": 0.0, "group_column": "host"},
        {"cv": "plate"},
        {"cv": "3"},
        {"split_column": "plate", "test_fold": "p1"},
        {"study_column": "plate", "group_column": "host"},
        {"group_column": "host", "classifier": True, "metadata_column": ("code",)},
    ],
)
def test_every_way_to_split_leaves_the_class_out(options):
    metadata = study_of(16)
    metadata["code"] = metadata["birth"].map({"section": "1", "vaginal": "2", "unsure": "99"})
    folds = folds_of(metadata, **options)
    ids = {name for split in folds.splits for name in split.sample_ids}
    assert ids == {*metadata.index[:-2]}
    _, targets, _ = supervise(folds, folds.splits[0].ids("train"))
    assert len(targets.classes[0].labels) == 2


def test_a_class_that_one_fold_holds_alone_is_left_out(caplog):
    metadata = study_of(16, rare="section")
    metadata.loc[metadata["plate"] == "p2", "birth"] = "forceps"
    folds = folds_of(metadata, group_column="host", cv="plate")
    assert (
        "class 'forceps' has fewer than 2 training samples where fold p2 is held out" in caplog.text
    )
    assert {split.test_fold for split in folds.splits} == {"p0", "p1", "p3"}


@pytest.mark.parametrize(
    ("groups", "reason"),
    [(4, "fewer than 2 training samples where fold p3 is held out"), (2, "has 2 of the 3 groups")],
)
def test_a_test_fold_of_a_class_that_no_other_fold_has_is_refused(groups, reason, caplog):
    metadata = study_of(22, rare="section")
    last = metadata.index[-2 * groups :]
    metadata.loc[metadata["plate"] == "p3", "plate"] = "p0"
    metadata.loc[last, ["plate", "birth"]] = "p3", "breech"
    by_fold = {"split_column": "plate", "test_fold": "p3", "group_column": "host"}
    message = refusal(folds_of, metadata, **by_fold)
    assert "no sample of 'plate' 'p3' is left; name another fold or column, or merge" in message
    assert "column 'birth': class 'breech'" in caplog.text
    assert reason in caplog.text
    (split,) = folds_of(metadata, **{**by_fold, "test_fold": "p1"}).splits
    assert split.test_fold == "p1"
    assert set(last).issubset(split.sample_ids) == (groups > 2)
    # The class serves the other target.
    assert folds_of(metadata, **by_fold, metadata_column=("birth", "diet"))


@pytest.mark.parametrize("subset", ["validation", "test"])
def test_a_subset_of_a_class_that_is_not_learned_is_refused(subset, tmp_path, caplog):
    metadata = study_of(20, rare="section")
    last = metadata.index[-8:]
    metadata["side"] = np.where(np.arange(40) % 5, "train", "test")
    metadata.loc[metadata.index[3::7], "side"] = "validation"
    metadata.loc[metadata["side"] == subset, "side"] = "train"
    metadata.loc[last, ["side", "birth"]] = subset, "breech"
    message = refusal(folds_of, metadata, split_column="side")
    assert f"no sample of 'side' {subset!r} is left; name another fold" in message
    assert "'birth': class 'breech' has fewer than 2 training samples ('s032'" in caplog.text
    rows = [f"{name}\t{side}\t\n" for name, side in metadata["side"].items()]
    (tmp_path / "split.tsv").write_text("sample-id\tside\tfold\n" + "".join(rows))
    message = refusal(folds_of, metadata, split=str(tmp_path / "split.tsv"))
    assert f"is in the subset {subset!r}; lower --rarefy-depth or merge classes" in message


def test_a_column_of_which_one_class_is_left_is_refused():
    metadata = study_of(12)
    metadata["birth"] = ["vaginal"] * 20 + ["section", "section", "forceps", "forceps"]
    message = refusal(folds_of, metadata, group_column="host")
    assert "fewer than two classes of 3 groups are left, so nothing is learned" in message
    assert "class 'section' has 1 of the 3 groups that learning needs ('s020', 's021')" in message


def test_weights_are_those_of_the_classes_that_are_left():
    folds = folds_of(study_of(16), group_column="host")
    targets = replace(folds.config.targets, class_weights=("1", "5", "2"))
    message = refusal(check_targets, replace(folds, config=replace(folds.config, targets=targets)))
    assert "--class-weights is 1 5 2, expected balanced, or 2 numbers" in message


def test_two_classes_of_studies_have_the_same_weight_without_an_option():
    metadata = study_of(16)
    metadata["birth"] = np.where(np.arange(len(metadata)) % 3 == 0, "section", "vaginal")
    metadata["study"] = np.where(np.arange(len(metadata)) % 2 == 0, "A", "B")
    members = {"members": ("presence", "forest"), "class_weights": ("balanced",)}
    message = refusal(folds_of, metadata, study_column="study", **members)
    assert "the two classes of each study weigh the same in forest and presence" in message
    assert folds_of(metadata, **members).config.targets.class_weight == "balanced"


def test_the_model_predicts_the_classes_that_are_left():
    metadata = study_of(12)
    folds = folds_of(metadata, group_column="host", members=("presence",))
    saved = fit_model(folds, split_of_all(folds))
    assert saved.targets.specs[0].labels == ("section", "vaginal")
    assert not {*saved.notes.labelled_samples} & {*metadata.index[-2:]}


def test_the_estimator_gives_the_class_no_probability():
    metadata = study_of(12, per_group=1)
    table = table_of(metadata)
    fitted = aam.AmpliconClassifier(members=("presence",), rarefy_depth=500)
    fitted.fit(table, metadata["birth"].to_numpy())
    assert fitted.classes_.tolist() == ["section", "unsure", "vaginal"]
    shares = fitted.predict_proba(table)
    assert (shares[:, 1] == 0).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert "unsure" not in fitted.predict(table)


@pytest.mark.parametrize(("hosts", "more"), [(8, ""), (12, "--test-size 0")])
def test_a_run_without_an_evaluation_says_so_last_and_first(tmp_path, capfd, hosts, more):
    metadata = study_of(hosts, rare="vaginal")
    table_of(metadata).T.rename_axis("#OTU ID").to_csv(tmp_path / "t.tsv", sep="\t")
    metadata.rename_axis("sample-id").to_csv(tmp_path / "m.tsv", sep="\t")
    words = f"train --table {tmp_path}/t.tsv --metadata {tmp_path}/m.tsv --metadata-column birth "
    words += f"--group-column host --rarefy-depth 500 --members presence {more}"
    assert main([*words.split(), "--output-dir", str(tmp_path / "run")]) == 0
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert (
        last == f"No held-out evaluation of {hosts} groups of host; --cv 5 tests each sample once"
    )
    page = re.sub("<[^>]*>", "", (tmp_path / "run/report.html").read_text())
    assert f"{last}." in html.unescape(page)
