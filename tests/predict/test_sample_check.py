"""Samples that do not fit: planted ones are found with their source, and clean studies stay clean."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import aam
from aam.cli import main
from aam.errors import InputError
from aam.predict.mixture import discoveries, stand_out
from aam.predict.shifts import shifted_rows
from aam.report.samples import sample_lines

SUBJECTS, VISITS, FEATURES, READS = 24, 3, 600, 4000


def study(seed, subjects=SUBJECTS, visits=VISITS, change=0.2):
    """Counts of subjects whose features persist, and the subject of each sample; `change` is the
    part of the features that are drawn anew for each sample.
    """
    rng = np.random.default_rng(seed)
    chance = np.clip(rng.beta(0.5, 3, FEATURES), 0.02, 0.9)
    rows = []
    for _ in range(subjects):
        lasting, size = rng.random(FEATURES) < chance, rng.normal(0, 1.5, FEATURES)
        for _ in range(visits):
            there = np.where(
                rng.random(FEATURES) < 1 - change, lasting, rng.random(FEATURES) < chance
            )
            weight = there * np.exp(size + rng.normal(0, 3.5 * change, FEATURES))
            rows.append(rng.multinomial(READS, weight / weight.sum()))
    ids = [f"s{subject}.{visit}" for subject in range(subjects) for visit in range(visits)]
    table = pd.DataFrame(np.array(rows), ids, [f"OTU{n}" for n in range(FEATURES)])
    return table, pd.Series([name.split(".")[0] for name in ids], ids)


def mixed(table, row, source, share, rng):
    """The table with a share of the reads of a sample drawn from another one."""
    table, reads = table.copy(), round(share * READS)
    own = rng.multivariate_hypergeometric(table.iloc[row].to_numpy(), READS - reads)
    other = table.iloc[source].to_numpy()
    table.iloc[row] = own + rng.multinomial(reads, other / other.sum())
    return table


def test_a_planted_part_of_another_sample_is_found_with_its_source_and_features():
    table, groups = study(0)
    rng = np.random.default_rng(1)
    for row, source in ((3, 40), (20, 61)):
        table = mixed(table, row, source, 0.03, rng)
    check = aam.check_samples(table, groups)
    found = check.samples[check.samples["mixed"]]
    assert list(found.index) == ["s1.0", "s6.2"]
    assert list(found["source"]) == ["s13.1", "s20.1"]
    assert found["share"].between(0.01, 0.09).all()
    carried = check.mixtures[check.mixtures["sample"] == "s1.0"]
    assert (table.loc["s13.1", carried["feature"]] > 0).all()
    assert (carried["feature_evidence"].diff().dropna() <= 0).all()


def test_clean_studies_have_no_suspicion():
    for seed, (subjects, visits) in enumerate(((24, 3), (6, 12), (60, 1))):
        table, groups = study(seed + 10, subjects, visits)
        check = aam.check_samples(table, groups)
        assert not check.samples["mixed"].any()
        assert not len(check.shifts)
        assert not len(check.duplicates)


@pytest.mark.parametrize("step", [1, -1])
def test_a_shift_by_one_row_of_the_sheet_is_found(step):
    table, groups = study(1)
    order = [f"s{n % SUBJECTS}.{n // SUBJECTS}" for n in range(SUBJECTS * VISITS)]
    shifted = groups[order]
    shifted.iloc[10:20] = shifted.iloc[10 + step : 20 + step].to_numpy()
    days = pd.Series(range(len(table)), table.index)
    shifts = aam.check_samples(table, shifted, days).shifts
    assert set(shifts["shift"]) == {1}
    assert len(set(shifts["sample"]) & set(order[10:20])) >= 8
    assert set(shifts["sample"]) <= set(order[9:21])
    for row in shifts.to_dict("records"):
        assert row["resembles"] == groups[row["sample"]]
        assert row["subject"] == shifted[row["sample"]] != row["resembles"]
        assert row["time"] == str(days[row["sample"]])
    (line,) = [x for x in sample_lines(aam.check_samples(table, shifted)) if "by one row" in x]
    assert line.endswith(f"a possible shift by one row: {len(shifts)}")


@pytest.mark.parametrize("order", ["by subject", "by visit", "random"])
def test_no_shift_is_found_where_there_is_none(order):
    """Two subjects who take turns and resemble each other, and swapped neighbours, are no shift."""
    table, groups = study(1)
    names = {
        "by subject": groups.index,
        "by visit": [f"s{n % SUBJECTS}.{n // SUBJECTS}" for n in range(SUBJECTS * VISITS)],
        "random": groups.sample(frac=1, random_state=0).index,
    }[order]
    sheet = groups[names]
    assert not len(aam.check_samples(table, sheet).shifts)
    sheet.iloc[30:32] = sheet.iloc[[31, 30]].to_numpy()
    assert not len(aam.check_samples(table, sheet).shifts)
    twins = pd.Series(np.arange(72) // 18, groups.index).map("family {}".format)
    twins[:] = twins + np.where(np.arange(72) % 2, " A", " B")
    assert not len(aam.check_samples(table, twins).shifts)


def test_chance_makes_few_shifts():
    rng, found = np.random.default_rng(0), 0
    for _ in range(200):
        subject = rng.integers(0, 12, 60)
        found += len(shifted_rows(rng.integers(0, 60, (60, 5)), subject))
    assert found <= 10


def test_two_draws_of_a_sample_are_a_list_of_their_own():
    table, groups = study(2)
    rng = np.random.default_rng(0)
    table.iloc[7] = rng.multinomial(READS, table.iloc[50] / READS)
    check = aam.check_samples(table, groups)
    assert check.duplicates.to_numpy().tolist() == [["s2.1", "s2", "", "s16.2", "s16", ""]]
    assert not check.samples.loc[["s2.1", "s16.2"], "mixed"].any()


def test_unnamed_subjects_are_said():
    for change in (0.05, 0.1, 0.2):
        check = aam.check_samples(study(3, change=change)[0])
        assert ("needs subjects" in check.limits) == (change < 0.2)
        assert not check.samples["mixed"].any()


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_few_samples_are_too_few(samples):
    table, groups = study(4)
    table, groups = table.iloc[:samples], groups.iloc[:samples]
    assert "few samples" in aam.check_samples(table, groups).limits


def test_equal_and_empty_samples_and_lone_subjects_are_no_error():
    table, groups = study(5)
    table.iloc[1:4], table.iloc[5], table.iloc[6] = table.iloc[0].to_numpy(), 0, 0
    table.iloc[6, 0] = 3
    groups.iloc[:30] = [f"alone {n}" for n in range(30)]
    groups.iloc[40] = None
    check = aam.check_samples(table, groups)
    assert len(check.samples) == len(table)
    assert len(check.duplicates) >= 6
    assert check.samples.loc["s1.2", "source"] == ""
    equal = pd.DataFrame(7, table.index, table.columns)
    equal.iloc[:, 0] = 0
    assert not aam.check_samples(equal, groups).samples["mixed"].any()


def test_samples_without_a_subject_are_in_no_shift():
    table, groups = study(14)
    labelled = groups.copy()
    labelled[[f"s{subject}.0" for subject in range(12)]] = None
    for unlabelled in (labelled, labelled.fillna("")):
        check = aam.check_samples(table, unlabelled)
        assert not len(check.shifts)
        assert (check.samples["subject"] == labelled.fillna("")).all()


def test_times_are_shown_and_never_read():
    table, groups = study(6)
    check = aam.check_samples(table, groups, ["early", None, *range(70)])
    assert check.samples["time"].tolist()[:3] == ["early", "", "0"]
    with pytest.raises(InputError, match="72 samples"):
        aam.check_samples(table, groups[:5].to_list())


def repeated(pairs, subjects=None):
    """The check of a study of which this number of samples have a second draw."""
    table, groups = study(8)
    rng = np.random.default_rng(0)
    again = table.iloc[:pairs].apply(
        lambda row: pd.Series(rng.multinomial(READS, row / row.sum()), row.index), axis=1
    )
    again.index = [f"again {name}" for name in again.index]
    named = pd.Series([subjects or f"new {n}" for n in range(pairs)], again.index, dtype=object)
    if subjects == "the same":
        named[:] = groups.iloc[:pairs].to_numpy()
    return aam.check_samples(pd.concat([table, again]), pd.concat([groups, named]))


@pytest.mark.parametrize(
    ("pairs", "subjects", "expected"),
    [
        (4, None, "Pairs that resemble each other like two draws of one sample: 4"),
        (20, None, "Pairs that resemble each other like two draws of one sample: 20, the first 10"),
        (
            20,
            "the same",
            "Pairs that resemble each other like two draws of one sample, of one subj",
        ),
    ],
)
def test_pairs_are_counted_by_whether_they_are_of_one_subject(pairs, subjects, expected):
    check = repeated(pairs, subjects)
    assert len(check.duplicates) == pairs
    lines = [line for line in sample_lines(check) if "two draws" in line]
    assert len(lines) == 1
    assert lines[0].startswith(expected)
    if pairs == 4:
        (row,) = [line for line in sample_lines(check) if "again s0.0" in line]
        assert row.split() == ["s0.0", "s0", "again", "s0.0", "new", "0"]


def test_a_source_with_few_reads_is_said_to_be_one():
    table, groups = study(0)
    table.iloc[40] //= 12
    table = mixed(table, 3, 40, 0.05, np.random.default_rng(1))
    check = aam.check_samples(table, groups)
    assert check.samples.loc["s1.0", "mixed"]
    reads = table.iloc[40].sum()
    assert check.samples.loc["s1.0", "source_reads"] == reads
    (row,) = [line.split() for line in sample_lines(check) if "s13.1" in line]
    assert row[:5] == ["s1.0", "s1", "s13.1", "s13", str(int(reads))]


def test_the_audit_needs_no_target_and_writes_every_sample(tmp_path, capfd):
    table, groups = study(7)
    table = mixed(table, 3, 40, 0.05, np.random.default_rng(0))
    table.loc["s2.0"] = table.loc["s9.1"]
    table.T.to_csv(tmp_path / "table.tsv", sep="\t", index_label="#OTU ID")
    metadata = pd.DataFrame({"host": groups, "day": [f"day {n}" for n in range(72)]})
    metadata["case"] = [str(int(name[1:]) % 2) for name in groups]
    metadata.to_csv(tmp_path / "metadata.tsv", sep="\t", index_label="sample-id")
    words = ["audit", str(tmp_path / "table.tsv"), str(tmp_path / "metadata.tsv")]
    words += ["--time-column", "day", "--group-column", "host", "--output", str(tmp_path / "audit")]
    assert main(words) == 0
    lines = capfd.readouterr().err
    assert re.search(r"s1\.0 +s1 +day 3 +s13\.1 +s13 +day 40", lines)
    assert re.search(r"s2\.0 +s2 +day 6 +s9\.1 +s9 +day 28", lines)
    assert "ask the laboratory" in lines
    samples = pd.read_csv(tmp_path / "audit/samples.tsv", sep="\t", index_col=0)
    names = "subject time reads source source_subject source_time source_reads share evidence mixed"
    assert " ".join(samples.columns) == names
    assert list(samples.index[samples["mixed"]]) == ["s1.0"]
    assert samples.loc["s1.0", "source_subject"] == "s13"
    pairs = pd.read_csv(tmp_path / "audit/duplicates.tsv", sep="\t")
    assert pairs.to_numpy().tolist() == [["s2.0", "s2", "day 6", "s9.1", "s9", "day 28"]]
    shifts = (tmp_path / "audit/shifts.tsv").read_text()
    assert shifts == "shift\tsample\tsubject\ttime\tresembles\n"
    (tmp_path / "out.txt").write_text("s1.0\n")
    alone = [word for word in words if word not in ("--group-column", "host")]
    alone += ["--exclude", str(tmp_path / "out.txt"), "--metadata-column", "case", "--classifier"]
    assert main([*alone, "--overwrite"]) == 0
    lines = capfd.readouterr().err
    assert "The subjects are the values of host." in lines
    assert f"--group-column host --exclude {tmp_path / 'out.txt'}" in lines
    rest = pd.read_csv(tmp_path / "audit/samples.tsv", sep="\t", index_col=0)
    assert list(rest.index) == [name for name in samples.index if name != "s1.0"]
    assert list(rest["subject"]) == list(groups[rest.index])


def test_a_source_must_stand_out_whatever_the_number_of_sources():
    rng = np.random.default_rng(0)
    few, many = (np.sort(rng.exponential(1, (400, n)))[:, :-5:-1] for n in (20, 2000))
    for evidence in (few, many):
        assert stand_out(evidence).mean() < 0.08
        evidence[:3, 0] += 40
        assert stand_out(evidence)[:3].all()
    assert not stand_out(np.full((400, 4), 50.0)).any()


def test_few_discoveries_are_made_by_chance():
    chance = np.random.default_rng(0).random(400)
    assert not discoveries(chance).any()
    chance[5:8] = 1e-9
    assert {5, 6, 7} <= {*discoveries(chance).nonzero()[0].tolist()}
    assert discoveries(chance).sum() <= 5
    assert not len(discoveries(np.zeros(0)))


def test_suspicions_without_subjects_say_so():
    table, groups = study(0, subjects=30, visits=1)
    lone = mixed(table, 3, 20, 0.1, np.random.default_rng(1))
    check = aam.check_samples(lone)
    assert check.samples.loc["s3.0", "mixed"]
    assert any("name the subjects with --group-column" in line for line in sample_lines(check))
    assert "no subjects" in aam.check_samples(lone, groups).limits
    table, groups = study(0)
    named = aam.check_samples(mixed(table, 3, 20, 0.1, np.random.default_rng(1)), groups)
    assert named.samples["mixed"].any()
    assert not any("--group-column" in line for line in sample_lines(named))
