"""Copies of the target, columns that cannot be told from it, and the one recommendation."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import aam
from aam.api.audit import _audited, columns_of, train_command
from aam.config import AuditConfig
from aam.predict.columns import make_column
from aam.predict.leaks import Design, Score, share_decided
from aam.predict.out_of_fold import Fold
from aam.report.audit import audit_table, sentences_of, warnings_of
from aam.report.files import summary_lines
from aam.report.page import ReportData, report_html
from tests.report.test_figures import classes

SAMPLES, FEATURES = 120, 40


def study(seed=0, samples=SAMPLES):
    """Counts, and metadata with a number and a class that have nothing to do with them."""
    rng = np.random.default_rng(seed)
    ids = [f"x{row}" for row in range(samples)]
    shares = rng.dirichlet(np.full(FEATURES, 0.4), samples)
    counts = np.array([rng.multinomial(900 + 3 * row, p) for row, p in enumerate(shares)])
    table = pd.DataFrame(counts, ids, [f"OTU{column}" for column in range(FEATURES)])
    metadata = pd.DataFrame(index=ids)
    metadata["ph"] = np.round(rng.normal(7, 1, samples), 2)
    metadata["diagnosis"] = rng.choice(["ill", "well", "carrier"], samples)
    metadata["diet"] = rng.choice(["meat", "fish", "none of both"], samples)
    return table, metadata, rng


def frame_of(table, metadata, target, **options):
    return aam.audit(table, metadata, target, rarefy_depth=500, **options).set_index("column")


def audit_of(table, metadata, target, **options):
    config = AuditConfig(
        table="t.tsv", metadata="m.tsv", metadata_column=target, rarefy_depth=500, **options
    )
    return config, _audited(config, table, metadata)


NUMBERS = {
    "another unit": lambda values: 30.4 * values + 3,
    "the other direction": lambda values: 100 - values,
    "a logarithm": np.log,
    "whole numbers": lambda values: (values * 3).astype(int),
    "a cut": lambda values: pd.cut(values, [-9, 6, 7.5, 99], labels=["low", "mid", "high"]),
    "two parts": lambda values: np.where(values > 7.1, "A", "B"),
}
CLASSES = {
    "codes": lambda values: values.map({"ill": "2", "well": "0", "carrier": "7"}),
    "words": lambda values: values.map({"ill": "krank", "well": "gesund", "carrier": "Träger"}),
    "finer": lambda values: values + np.where(np.arange(len(values)) % 2, " 1", " 2"),
    "merged": lambda values: np.where(values == "ill", "yes", "no"),
}


@pytest.mark.parametrize("form", NUMBERS)
def test_a_number_in_other_words_is_a_copy(form):
    table, metadata, _ = study()
    metadata["other"] = np.asarray(NUMBERS[form](metadata["ph"]))
    frame = frame_of(table, metadata, "ph")
    assert frame["danger"].to_dict() == {**dict.fromkeys(frame.index, ""), "other": "same"}
    assert frame.loc["other", "advice"] == "other states ph in other words: leave it out."


@pytest.mark.parametrize("form", CLASSES)
def test_a_class_in_other_words_is_a_copy(form):
    table, metadata, _ = study(1)
    metadata["other"] = np.asarray(CLASSES[form](metadata["diagnosis"]))
    frame = frame_of(table, metadata, "diagnosis")
    assert frame["danger"].to_dict() == {**dict.fromkeys(frame.index, ""), "other": "same"}


def test_a_rare_class_has_a_copy_too():
    table, metadata, _ = study(2)
    rare = np.arange(SAMPLES) < 4
    metadata["rare"] = np.where(rare, "yes", "no")
    metadata["coded"] = np.where(rare, "1", "0")
    assert frame_of(table, metadata, "rare")["danger"]["coded"] == "same"


def test_subjects_of_one_class_each_are_no_copies():
    table, metadata, rng = study(3)
    subject = np.arange(SAMPLES) // 4
    metadata["status"] = np.where(rng.permutation(30) < 15, "case", "control")[subject]
    metadata["donor"] = [f"d{number}" for number in subject]
    frame = frame_of(table, metadata, "status")
    assert frame.loc["donor", "danger"] == "random split"
    assert "--group-column donor" in frame.loc["donor", "advice"]


@pytest.mark.parametrize("name", ["study", "cage", "Platte"])
def test_a_plate_that_equals_the_class_is_said_first(name):
    table, metadata, _ = study(4)
    metadata[name] = metadata["diagnosis"].map({"ill": "A", "well": "B", "carrier": "C"})
    config, audit = audit_of(table, metadata, "diagnosis")
    (sentence,) = warnings_of(audit)
    assert sentence.startswith(f"These samples cannot tell {name} from diagnosis")
    assert name not in train_command(config, audit)


def test_a_tiny_study_names_what_it_cannot_judge():
    table, metadata, _ = study(5, samples=10)
    metadata["status"] = ["case", "control"] * 5
    metadata["eyes"] = ["blue", "brown"] * 5
    _, audit = audit_of(table, metadata, "status")
    assert not audit.can_judge
    assert audit.frame.set_index("column").loc["eyes", "danger"] in ("suspect", "same")
    text = " ".join(sentences_of(audit))
    assert "Too few groups to judge" in text
    assert "No column gives the target away" not in text


def test_absence_says_what_would_have_been_seen():
    table, metadata, _ = study(6)
    _, audit = audit_of(table, metadata, "diagnosis")
    assert audit.can_judge
    (sentence,) = [text for text in sentences_of(audit) if text.startswith("No column")]
    assert "would have been seen" in sentence


def test_one_command_with_one_column_of_each_kind():
    table, metadata, rng = study(7)
    case = rng.random(SAMPLES) < 0.5
    metadata["status"] = np.where(case, "case", "control")
    for name in ("plate", "seq_run"):
        noise = rng.random(SAMPLES) < 0.12
        metadata[name] = [f"{name}{int(x)}" for x in np.where(noise, ~case, case)]
    metadata["sex"] = np.where(rng.random(SAMPLES) < 0.1, ~case, case).astype(str)
    metadata["bmi"] = rng.normal(20, 2, SAMPLES) + 8 * case
    metadata["also bmi"] = metadata["bmi"]
    config, audit = audit_of(table, metadata, "status")
    words = train_command(config, audit).split()
    assert words.count("--batch-column") == 1
    assert words[words.index("--batch-column") + 1] in ("plate", "seq_run")
    assert words[words.index("--categorical-columns") + 1] == "sex"
    assert words[words.index("--numeric-columns") + 1] == "bmi"
    assert "also" not in words
    config, audit = audit_of(table, metadata, "status", column_kind=("sex=technical",))
    assert dict(audit.frame[["column", "kind"]].to_numpy())["sex"] == "technical"


@pytest.mark.parametrize("mark", [".", "_", "-", " "])
def test_a_part_of_an_id_that_tells_the_target_is_named(mark):
    table, metadata, _ = study(8)
    pairs = enumerate(metadata["diagnosis"])
    metadata["tube"] = [f"t{row * 7 % 1000}{mark}{value[0]}{mark}{row}" for row, value in pairs]
    row = frame_of(table, metadata, "diagnosis").loc["tube"]
    assert row["danger"] == "part"
    assert "part 2" in row["advice"]


def test_a_running_number_and_an_hour_tell_the_target():
    table, metadata, _ = study(9)
    order = metadata["diagnosis"].rank(method="first").astype(int)
    metadata["label"] = [f"B{number:03d}" for number in order]
    days = np.random.default_rng(0).permutation(SAMPLES)
    hours = metadata["diagnosis"].map({"ill": 8, "well": 12, "carrier": 16})
    moments = pd.Timestamp("2020-02-01") + pd.to_timedelta(days * 24 + hours.to_numpy(), "h")
    metadata["taken"] = moments.strftime("%Y-%m-%d %H:%M")
    frame = frame_of(table, metadata, "diagnosis")
    assert frame.loc["label", "part"] == "the running number"
    assert frame.loc["taken", "part"] == "the hour"


def test_without_a_target_the_columns_are_described():
    table, metadata, _ = study(10)
    frame = aam.audit(table, metadata, rarefy_depth=500)
    kinds = dict(zip(frame["column"], frame["kind"], strict=True))
    assert kinds["diagnosis"] == kinds["diet"] == "biology"
    assert kinds["richness"] == "reads"
    assert frame["random"].isna().all()


def test_odd_columns_give_no_warning_of_numpy():
    table, metadata, _ = study(11)
    metadata["huge"] = [f"{10.0 ** (row % 300):.3e}" for row in range(SAMPLES)]
    metadata["empty"] = ""
    metadata["one"] = "1"
    metadata["gaps"] = np.where(np.arange(SAMPLES) % 3, metadata["ph"].astype(str), "")
    metadata["day"] = "2021-05-06 10:11"
    for target in ("huge", "ph", "diagnosis"):
        frame = frame_of(table, metadata, target)
        assert set(frame.index) == {*metadata.columns, "sequencing depth", "richness"} - {target}


def test_the_terminal_shows_ten_rows_without_ids(tmp_path, capfd):
    table, metadata, rng = study(12)
    for number in range(14):
        metadata[f"noise {number}"] = rng.normal(size=SAMPLES)
    metadata["id"] = [f"q{row}" for row in range(SAMPLES)]
    table.T.to_csv(tmp_path / "t.tsv", sep="\t", index_label="#OTU ID")
    metadata.to_csv(tmp_path / "m.tsv", sep="\t", index_label="sample-id")
    words = {"table": tmp_path / "t.tsv", "metadata": tmp_path / "m.tsv", "rarefy_depth": 500}
    assert aam.run("audit", metadata_column="diagnosis", **words) == 0
    lines = capfd.readouterr().err.splitlines()
    start = next(row for row, line in enumerate(lines) if line.startswith("column"))
    rows = lines[start + 1 : lines.index("", start)]
    assert len(rows) == 10
    assert not any(row.startswith("id ") for row in rows)
    assert lines[-1].startswith("    aam train --table")


def test_a_wrong_kind_and_a_target_that_divides_are_refused():
    table, metadata, _ = study(13, samples=20)
    with pytest.raises(aam.InputError, match="expected NAME=KIND"):
        aam.audit(table, metadata, "diet", column_kind=("ph=sour",))
    with pytest.raises(aam.InputError, match="no column 'salt'"):
        aam.audit(table, metadata, "diet", column_kind=("salt=biology",))
    with pytest.raises(aam.InputError, match="also divides the samples"):
        aam.audit(table, metadata, "diet", group_column="diet")


def test_a_rule_is_judged_by_class():
    codes, classes = np.zeros(50, np.int64), (np.arange(50) < 1).astype(np.int64)
    assert share_decided(codes, classes) == 0.5
    assert share_decided(classes, classes) == 1


def test_columns_have_advice():
    table, metadata, _ = study(14)
    _, audit = audit_of(table, metadata, "ph")
    assert columns_of(audit).columns[-1] == "advice"


def test_groups_of_one_sample_each_are_no_groups():
    table, metadata, _ = study(15)
    metadata["one"] = [f"n{row}" for row in range(SAMPLES)]
    config, audit = audit_of(table, metadata, "diet", group_column="one")
    assert audit.group is None
    assert "--group-column" not in train_command(config, audit)


def test_a_visit_of_one_age_states_the_age():
    table, metadata, rng = study(16)
    metadata["visit"] = rng.integers(1, 4, SAMPLES).astype(str)
    metadata["age"] = metadata["visit"].map({"1": 1.0, "2": 6.0, "3": 12.0})
    assert frame_of(table, metadata, "age").loc["visit", "danger"] == "same"


def test_a_date_that_tells_the_class_has_a_remedy():
    table, metadata, rng = study(17)
    ill = metadata["diagnosis"].eq("ill").to_numpy()
    days = pd.to_timedelta(rng.permutation(SAMPLES) + 300 * ill, "D")
    metadata["drawn"] = (pd.Timestamp("2019-03-05") + days).strftime("%d.%m.%Y")
    row = frame_of(table, metadata, "diagnosis").loc["drawn"]
    assert (row["kind"], row["danger"]) == ("time", "split")
    assert "--batch-column" in row["advice"]


def test_a_column_called_richness_is_the_user_s():
    table, metadata, rng = study(18)
    metadata["richness"] = metadata["ph"] + rng.normal(0, 0.3, SAMPLES)
    config, audit = audit_of(table, metadata, "ph")
    rows = audit.frame[audit.frame["column"] == "richness"].set_index("kind")
    assert rows["danger"].to_dict() == {"biology": "split", "reads": ""}
    assert train_command(config, audit).split()[-4:-2] == ["--numeric-columns", "richness"]


def test_a_report_says_first_what_cannot_be_told_apart():
    table, metadata, _ = study(19)
    metadata["cage"] = metadata["diagnosis"].map({"ill": "1", "well": "2", "carrier": "3"})
    _, audit = audit_of(table, metadata, "diagnosis")
    result = classes()
    results = ReportData("aam train", {}, {}, {}, (result,), audits={result.names.target: audit})
    sentence = "These samples cannot tell cage from diagnosis"
    page = report_html(results)
    assert page.index(sentence) < page.index("Verdict")
    assert sentence in summary_lines(results)[1]


def test_few_groups_do_not_deny_the_advice_above():
    table, metadata, _ = study(22)
    metadata["ward"] = np.where(np.arange(SAMPLES) % 2, "north", "south")
    metadata["titer"] = np.round(metadata["ph"] + metadata["ph"].to_numpy()[::-1] / 3, 2)
    _, audit = audit_of(table, metadata, "ph", group_column="ward")
    assert not audit.can_judge
    text = " ".join(sentences_of(audit))
    assert "titer predicts ph" in text
    assert "Too few groups to judge (2 groups): read the advice above with care." in text
    assert "could be told from chance" not in text


@pytest.mark.parametrize(("groups", "folds"), [(9, 3), (30, 2)])
def test_a_high_score_is_listed_where_absence_is_not_said(groups, folds):
    rng = np.random.default_rng(20)
    dose, rows = rng.normal(size=90), np.arange(90)
    parts = [rows[k::folds] for k in range(folds)]
    split = [Fold(np.setdiff1d(rows, part), part) for part in parts]
    goal = make_column("dose", dose, "number", dose)
    buffer = make_column("buffer", rng.choice(["a", "b"], 90), "category")
    design = Design(
        goal,
        classes=False,
        random=split,
        split=split,
        units=rows % groups,
        tests=1,
        group=None,
        fold="site",
        has_option=True,
    )
    score = Score(value=0.3, gain=0.6, low=-0.1)
    assert design.danger(buffer, score, score) == "suspect"


def test_a_column_called_nan_keeps_its_name():
    table, metadata, _ = study(22, samples=30)
    metadata = metadata.rename(columns={"diet": "nan"})
    _, audit = audit_of(table, metadata, "diagnosis")
    assert "nan" in [row[0] for row in audit_table(audit).rows]
