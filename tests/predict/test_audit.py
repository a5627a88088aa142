"""The figures of an audit, what follows from them, and what does not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import aam
from aam.api.audit import _audited, _read, next_lines
from aam.config import AuditConfig
from aam.predict.leaks import share_decided
from aam.report.audit import audit_table, sentences_of, warnings_of, with_advice
from aam.report.files import summary_lines
from aam.report.page import ReportData, page_data, page_html
from tests.report.test_figures import classes

SAMPLES, FEATURES, DONORS = 120, 60, 20
DONOR = np.arange(SAMPLES) % DONORS


def study(seed=0, samples=SAMPLES):
    """Counts of donors with features of their own, and metadata without a relation to them."""
    rng = np.random.default_rng(seed)
    ids, donor = [f"x{row}" for row in range(samples)], np.arange(samples) % DONORS
    own = rng.dirichlet(np.full(FEATURES, 0.3), DONORS)[donor]
    shares = 0.5 * own + 0.5 * rng.dirichlet(np.full(FEATURES, 0.3), samples)
    counts = np.array([rng.multinomial(900 + 3 * row, p) for row, p in enumerate(shares)])
    table = pd.DataFrame(counts, ids, [f"OTU{column}" for column in range(FEATURES)])
    metadata = pd.DataFrame(index=ids)
    metadata["ph"] = np.round(rng.normal(7, 1, samples), 2)
    metadata["diagnosis"] = rng.choice(["ill", "well", "carrier"], samples)
    metadata["diet"] = rng.choice(["meat", "fish", "both of them"], samples)
    return table, metadata, rng


def frame_of(table, metadata, target, **options):
    return aam.audit(table, metadata, target, rarefy_depth=500, **options).set_index("column")


def audit_of(table, metadata, target, **options):
    config = AuditConfig(
        table="t.tsv", metadata="m.tsv", metadata_column=target, rarefy_depth=500, **options
    )
    return config, _audited(config, _read(config, table, metadata))


NUMBERS = {
    "another unit": lambda values: 30.4 * values + 3,
    "the other direction": lambda values: 100 - values,
    "a logarithm": np.log,
    "whole numbers": lambda values: (values * 3).astype(int),
    "a cut": lambda values: pd.cut(values, [-9, 6, 7.5, 99], labels=["low", "mid", "high"]),
    "two parts": lambda values: np.where(values > 7.1, "A", "B"),
    "a cut with gaps": lambda values: np.where(
        np.arange(len(values)) % 4 == 0, "", np.where(values > 7.1, "A", "B")
    ),
}


@pytest.mark.parametrize("form", NUMBERS)
def test_a_number_in_other_words_is_left_out(form):
    table, metadata, _ = study()
    metadata["other"] = np.asarray(NUMBERS[form](metadata["ph"]))
    frame = frame_of(table, metadata, "ph")
    assert frame["remark"].to_dict() == {**dict.fromkeys(frame.index, ""), "other": "same"}
    assert frame.loc["other", "advice"].endswith("do not pass it as a covariate.")


CLASSES = {
    "codes": (lambda x: x.map({"ill": "2", "well": "0", "carrier": "7"}), "same"),
    "words": (lambda x: x.map({"ill": "krank", "well": "gesund", "carrier": "Träger"}), "same"),
    "merged": (lambda x: np.where(x == "ill", "yes", "no"), "predicts"),
    "villages": (lambda x: x + (np.arange(len(x)) % 3).astype(str), "predicts"),
}


@pytest.mark.parametrize("form", CLASSES)
def test_only_as_many_levels_as_the_classes_cannot_be_told_from_them(form):
    table, metadata, _ = study(1)
    change, remark = CLASSES[form]
    metadata["other"] = np.asarray(change(metadata["diagnosis"]))
    row = frame_of(table, metadata, "diagnosis").loc["other"]
    assert row["remark"] == remark
    assert "in other words" not in row["advice"]


def with_donors(seed, name="host"):
    table, metadata, rng = study(seed)
    metadata["status"] = np.where(rng.permutation(DONORS) < DONORS // 2, "case", "control")[DONOR]
    metadata[name] = [f"d{number}" for number in DONOR]
    return table, metadata, rng


@pytest.mark.parametrize("name", ["host", "days since start", "stage", "water_source", "nan"])
def test_subjects_of_one_class_each_are_donors_and_no_copies(name):
    config, audit = audit_of(*with_donors(3, name)[:2], "status")
    row = audit.frame.set_index("column").loc[name]
    assert (row["remark"], row["decides"]) == ("donors", 1)
    assert row["random"] > 0.9 > 0.75 > row["split"]
    assert audit.recommended_group == name
    title, command = next_lines(config, audit)
    assert title == "Recommended:"
    assert "--group-column" in command
    assert name in [row[0] for row in audit_table(audit).rows]


@pytest.mark.parametrize("groups", ["visit", "host"])
def test_donors_are_shown_whatever_groups_are_given(groups):
    table, metadata, _ = with_donors(4)
    metadata["visit"] = (np.arange(SAMPLES) // DONORS).astype(str)
    config, audit = audit_of(table, metadata, "status", group_column=groups)
    assert audit.donors == ("host",)
    title, command = next_lines(config, audit)
    assert title == "Next:", "the user has given groups"
    assert f"--group-column {groups} " in command
    (text,) = [text for text in sentences_of(audit) if "in one fold" in text]
    assert ("Is host what must stay together?" in text) == (groups == "visit")


def test_nothing_is_asked_of_donors_that_the_groups_keep_whole():
    table, metadata, _ = with_donors(4)
    metadata["family"] = [f"f{donor // 2}" for donor in DONOR]
    _, audit = audit_of(table, metadata, "ph", group_column="family")
    assert audit.frame.set_index("column").loc["host", "remark"] == "donors"
    assert "All samples of one family are in one fold." in sentences_of(audit)


def test_donors_that_groups_divide_tell_the_target():
    table, metadata, _ = with_donors(4)
    metadata["unit"] = [f"{donor}, {row // DONORS % 2}" for row, donor in enumerate(DONOR)]
    _, audit = audit_of(table, metadata, "status", group_column="unit")
    assert audit.frame.set_index("column").loc["host", "split"] > 0.9


def test_several_candidates_are_listed_and_none_is_recommended():
    table, metadata, rng = with_donors(5)
    room = rng.permutation(SAMPLES) % 8
    counts = table.to_numpy().copy()
    for number in range(8):
        counts[room == number, 7 * number : 7 * number + 7] += 40
    metadata["room"] = [f"r{number}" for number in room]
    config, audit = audit_of(pd.DataFrame(counts, table.index, table.columns), metadata, "status")
    assert set(audit.donors) == {"host", "room"}
    title, command = next_lines(config, audit)
    assert title == "Next:"
    assert "--group-column COLUMN " in command
    (text,) = [text for text in sentences_of(audit) if text.startswith("Several")]
    assert text.endswith("Choose --group-column.")


def test_a_column_that_predicts_the_target_is_never_recommended():
    table, metadata, rng = with_donors(6)
    case = (metadata["status"] == "case").to_numpy()
    metadata["bmi"] = rng.normal(20, 2, SAMPLES) + 8 * case
    config, audit = audit_of(table, metadata, "status")
    assert audit.frame.set_index("column").loc["bmi", "remark"] == "predicts"
    assert "bmi" not in " ".join(next_lines(config, audit))
    assert "bmi alone predicts status" in " ".join(sentences_of(audit))


def test_subjects_that_two_studies_number_anew_are_donors_within_them():
    table, metadata, _ = with_donors(7)
    metadata["study"] = np.where(DONOR < DONORS // 2, "A", "B")
    metadata["host"] = (DONOR % (DONORS // 2)).astype(str)
    config, audit = audit_of(table, metadata, "ph", study_column="study")
    assert audit.recommended_group == "host"
    assert "--study-column study" in next_lines(config, audit)[1]
    assert "rest on 20 values of host, divided by study." in " ".join(sentences_of(audit))


def test_a_column_that_cannot_be_told_from_the_class_is_said_first():
    table, metadata, _ = study(8)
    metadata["plate"] = metadata["diagnosis"].map({"ill": "A", "well": "B", "carrier": "C"})
    _, audit = audit_of(table, metadata, "diagnosis")
    (sentence,) = warnings_of(audit)
    assert "these samples cannot tell them apart" in sentence
    result = classes()
    results = ReportData("aam train", {}, {}, {}, (result,), audits={result.names.target: audit})
    page = page_data(results)
    text = page_html(page)
    assert text.index("cannot tell them apart") < text.index("Verdict")
    assert "cannot tell them apart" in " ".join(" ".join(summary_lines(results, page)).split())


def test_a_column_of_times_names_no_donors():
    table, metadata, _ = with_donors(10)
    _, audit = audit_of(table, metadata, "status", time_column="host")
    assert audit.donors == ()
    assert audit.frame.set_index("column").loc["host", "remark"] != "donors"


def test_without_a_target_the_largest_features_are_listed(tmp_path, caplog):
    table, metadata, _ = study(10, samples=20)
    table.T.to_csv(tmp_path / "t.tsv", sep="\t", index_label="#OTU ID")
    metadata.to_csv(tmp_path / "m.tsv", sep="\t", index_label="sample-id")
    with caplog.at_level("INFO", "aam"):
        assert aam.run("audit", table=tmp_path / "t.tsv", metadata=tmp_path / "m.tsv") == 0
    assert f"the largest of {FEATURES} features, by reads: OTU" in caplog.text


def test_a_copy_of_the_target_predicts_it_without_an_error():
    table, metadata, _ = study(14)
    metadata["ph of the day"] = metadata["ph"]
    row = frame_of(table, metadata, "ph").loc["ph of the day"]
    assert (row["remark"], row["decides"]) == ("same", 1)
    assert row["split"] < 0.3 * frame_of(table, metadata, "ph").loc["richness", "split"]


def test_without_a_target_donors_are_found():
    table, metadata, _ = with_donors(10)
    frame = aam.audit(table, metadata, rarefy_depth=500).set_index("column")
    assert frame.loc["host", "remark"] == "donors"
    assert "may name donors" in frame.loc["host", "advice"]
    assert "random" not in frame


def test_odd_columns_give_no_warning_of_numpy():
    table, metadata, _ = study(11)
    metadata["huge"] = [f"{10.0 ** (row % 300):.3e}" for row in range(SAMPLES)]
    metadata["empty"], metadata["one"], metadata["day"] = "", "1", "2021-05-06"
    metadata["gaps"] = np.where(np.arange(SAMPLES) % 3, metadata["ph"].astype(str), "")
    metadata["name"] = [f"n{row}" for row in range(SAMPLES)]
    metadata["once"] = ["x"] + [""] * (SAMPLES - 1)
    for target in ("huge", "ph", "diagnosis"):
        frame = frame_of(table, metadata, target)
        assert set(frame.index) == {*metadata.columns, "sequencing depth", "richness"} - {target}
        assert frame.loc[["empty", "one", "name"], "remark"].tolist() == ["constant"] * 2 + ["id"]
        assert frame.loc["once", "remark"] == ""


def test_wrong_options_are_refused():
    table, metadata, _ = study(13, samples=20)
    with pytest.raises(aam.InputError, match="also divides the samples"):
        aam.audit(table, metadata, "diet", group_column="diet")
    with pytest.raises(aam.InputError, match="column_kind"):
        aam.audit(table, metadata, "diet", column_kind=("ph=biology",))
    metadata["one"] = "same"
    with pytest.raises(aam.InputError, match="'one' has one value"):
        aam.audit(table, metadata, "one")
    with pytest.raises(aam.InputError, match="--group-column: 'one' has one value"):
        aam.audit(table, metadata, group_column="one")
    with pytest.raises(aam.InputError, match="'nowhere'"):
        aam.audit(table, metadata, study_column="nowhere")


def test_a_rule_is_judged_by_class():
    codes, levels = np.zeros(50, np.int64), (np.arange(50) < 1).astype(np.int64)
    assert share_decided(codes, levels) == 0.5
    assert share_decided(levels, levels) == 1


def test_groups_of_one_sample_each_are_no_groups():
    table, metadata, _ = study(15)
    metadata["one"] = [f"n{row}" for row in range(SAMPLES)]
    _, audit = audit_of(table, metadata, "diet", group_column="one")
    assert audit.group is None


def test_a_column_called_richness_is_the_user_s():
    table, metadata, rng = study(18)
    metadata["richness"] = metadata["ph"] + rng.normal(0, 0.3, SAMPLES)
    _, audit = audit_of(table, metadata, "ph")
    rows = audit.frame[audit.frame["column"] == "richness"]
    assert rows["remark"].tolist() == ["predicts", ""]


def test_the_terminal_shows_ten_rows_without_ids(tmp_path, capfd):
    table, metadata, rng = with_donors(12)
    for number in range(14):
        metadata[f"noise {number}"] = rng.normal(size=SAMPLES)
    metadata["id"] = [f"q{row}" for row in range(SAMPLES)]
    table.T.to_csv(tmp_path / "t.tsv", sep="\t", index_label="#OTU ID")
    metadata.to_csv(tmp_path / "m.tsv", sep="\t", index_label="sample-id")
    words = {"table": tmp_path / "t.tsv", "metadata": tmp_path / "m.tsv", "rarefy_depth": 500}
    output = tmp_path / "audit"
    assert aam.run("audit", metadata_column="status", output=output, **words) == 0
    lines = capfd.readouterr().err.splitlines()
    start = next(row for row, line in enumerate(lines) if line.startswith("column"))
    rows = lines[start + 1 : lines.index("", start)]
    assert len(rows) == 10
    assert not any(row.startswith("id ") for row in rows)
    assert lines[-1].startswith("    aam train --table")
    assert lines[-1].endswith("--rarefy-depth 500 --group-column host --output-dir run")
    written = pd.read_csv(output / "columns.tsv", sep="\t")
    assert written.columns[-1] == "advice"
    assert len(written) == len(with_advice(audit_of(table, metadata, "status")[1]))


@pytest.mark.slow
@pytest.mark.parametrize(("target", "draws"), [("diagnosis", 60), ("ph", 40)])
def test_a_study_without_a_leak_raises_no_alarm(target, draws):
    quiet = sum(not frame_of(*study(seed)[:2], target)["remark"].any() for seed in range(draws))
    assert quiet >= 0.93 * draws


def test_the_report_of_a_training_holds_studies_out_as_its_folds_do():
    from aam.api.training import load_folds
    from aam.config import FineTuneConfig
    from aam.data.inputs import Inputs, metadata_from, table_from
    from aam.options import IN_MEMORY, configured
    from aam.report.training import _audits

    table, metadata, rng = study(5)
    metadata["site"] = np.where(DONOR < DONORS // 2, "east", "west")
    sick = rng.random(SAMPLES) < np.where(metadata["site"] == "east", 0.9, 0.1)
    metadata["status"] = np.where(sick, "case", "control")
    metadata["host"] = [f"h{number}" for number in DONOR]
    options = {"table": IN_MEMORY, "metadata": IN_MEMORY, "metadata_column": ("status",)}
    options |= {"study_column": "site", "group_column": "host", "rarefy_depth": 500}
    config = configured(FineTuneConfig(), options, "train")
    inputs = Inputs((table_from(table, need_sequences=False),), metadata=metadata_from(metadata))
    (found,) = _audits(load_folds(config, inputs=inputs), ["status"]).values()
    scores = found.frame.set_index("column").loc["site"]
    assert scores["random"] > 0.8
    assert scores["split"] < 0.5
