"""Samples that do not fit: planted ones are found with their source, and clean studies stay clean."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import aam
from aam.api.samples import times_of
from aam.cli import main
from aam.errors import InputError
from aam.predict.mixture import discoveries, stand_out
from aam.report.samples import sample_lines
from tests.refusals import refusal

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
        assert not check.samples[["mixed", "misfit"]].any().any()
        assert not len(check.swaps)
        assert not len(check.duplicates)


def test_swapped_labels_are_a_pair_and_a_shift_is_a_run():
    table, groups = study(1)
    swapped = groups.copy()
    swapped["s2.1"], swapped["s9.0"] = "s9", "s2"
    check = aam.check_samples(table, swapped)
    assert check.share_own > 0.9
    assert {*check.swaps.loc[0, ["first", "second"]]} == {"s2.1", "s9.0"}
    assert len(check.swaps) == 1
    order = [f"s{n % SUBJECTS}.{n // SUBJECTS}" for n in range(SUBJECTS * VISITS)]
    shifted = groups[order]
    shifted.iloc[10:16] = shifted.iloc[11:17].to_numpy()
    assert aam.check_samples(table, shifted).shifts[0][:2] == ("s11.0", "s12.0")


def test_two_draws_of_a_sample_are_a_list_of_their_own():
    table, groups = study(2)
    rng = np.random.default_rng(0)
    table.iloc[7] = rng.multinomial(READS, table.iloc[50] / READS)
    check = aam.check_samples(table, groups)
    assert check.duplicates.to_numpy().tolist() == [["s2.1", "s16.2"]]
    assert not check.samples.loc[["s2.1", "s16.2"], "mixed"].any()


def test_subjects_that_cannot_be_told_apart_and_unnamed_ones_are_said():
    table, groups = study(3)
    groups[:] = np.random.default_rng(0).permutation(groups)
    check = aam.check_samples(table, groups)
    assert "subjects not told apart" in check.limits
    assert not check.samples["misfit"].any()
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
    assert not aam.check_samples(equal, groups).samples[["mixed", "misfit"]].any().any()


def test_samples_without_a_subject_are_no_other_subject():
    """They may be further samples of the same persons, which resemble each other most."""
    table, groups = study(14)
    twins = [f"s{subject}.0" for subject in range(12)]
    rng = np.random.default_rng(1)
    for name in twins:
        shares = 0.7 * table.loc[name] + 0.3 * table.loc[name.replace(".0", ".1")]
        table.loc[name.replace(".0", ".1")] = rng.multinomial(READS, shares / shares.sum())
    labelled = groups.copy()
    labelled[twins] = None
    for unlabelled in (labelled, labelled.fillna("")):
        check = aam.check_samples(table, unlabelled)
        assert not check.samples["misfit"].any()
        assert (check.samples.loc[twins, ["subject", "fits"]] == "").all().all()
        others = check.samples.drop(twins)
        assert (others["subject"] == groups.drop(twins)).all()
        assert set(others["fits"]) <= set(groups)


def test_times_are_numbers_or_dates():
    table, groups = study(6)
    days = [*range(len(table))]
    dates = [f"2026-01-{1 + day % 28:02}" for day in days]
    for time in (days, dates, [None, *dates[1:]]):
        assert aam.check_samples(table, groups, time).share_own > 0.9
    message = refusal(aam.check_samples, table, groups, ["early", *dates[1:]])
    assert message.startswith("time: 1 of 72 values are neither numbers nor dates")
    assert "'early'" in message
    with pytest.raises(InputError, match="72 samples"):
        aam.check_samples(table, groups[:5].to_list())


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%Y-%m-%d 13:05", "%Y-%m-%dT13:05:00Z"])
def test_times_are_iso_dates(form):
    texts = [*pd.date_range("2019-01-05", periods=30, freq="11D").strftime(form)]
    assert np.diff(times_of([None, *texts], "time"))[1:].round(9).tolist() == [11] * 29
    assert times_of(texts, "time")[0] == pytest.approx(17901, abs=0.6)
    for wrong in ("soon", "03.04.2021", "3/4/2021", "2021-4-3"):
        message = refusal(times_of, [wrong, *texts[1:]], "time")
        assert (
            f"time: 1 of 30 values are neither numbers nor dates (2026-11-27): {wrong!r}" in message
        )


def test_the_audit_needs_no_target_and_writes_every_sample(tmp_path, capfd):
    table, groups = study(7)
    table = mixed(table, 3, 40, 0.05, np.random.default_rng(0))
    table.T.to_csv(tmp_path / "table.tsv", sep="\t", index_label="#OTU ID")
    metadata = pd.DataFrame({"host": groups, "day": "late"})
    metadata["case"] = [str(int(name[1:]) % 2) for name in groups]
    metadata.to_csv(tmp_path / "metadata.tsv", sep="\t", index_label="sample-id")
    words = ["audit", str(tmp_path / "table.tsv"), str(tmp_path / "metadata.tsv")]
    words += ["--group-column", "host", "--output", str(tmp_path / "audit")]
    assert main(words) == 0
    lines = capfd.readouterr().err
    assert re.search(r"s1\.0 +s13\.1", lines)
    assert "ask the laboratory" in lines
    samples = pd.read_csv(tmp_path / "audit/samples.tsv", sep="\t", index_col=0)
    names = "source share evidence mixed subject fits margin misfit"
    assert " ".join(samples.columns) == names
    assert list(samples.index[samples["mixed"]]) == ["s1.0"]
    picture = (tmp_path / "audit/fit.svg").read_text()
    assert "s1.0: labelled s1" in picture
    assert "http" not in picture.replace("http://www.w3.org", "")
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
    assert main([*words, "--time-column", "day", "--overwrite"]) == 2
    assert "--time-column day: 72 of 72 values" in capfd.readouterr().err


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
