"""Primers, and reads unlike those of training or of other samples."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy
from scipy.sparse import csr_array
from skbio import DNA

from aam.data.primers import LETTER_BITS, PRIMERS, find_primers, fit_length, without_primers
from aam.data.region import RegionProfile, warn_of_regions
from aam.data.table import make_table, read_table
from tests.data.test_checks import IDS, table_of
from tests.refusals import refusal


def amplicons(count=400, seed=0, length=120):
    """Sequences that share a start, like those of one primer pair, and vary behind it."""
    rng = np.random.default_rng(seed)
    start = np.random.default_rng(99).integers(0, 4, 60)
    ends = rng.integers(0, 4, (count, length - 60))
    rows = np.concatenate([np.tile(start, (count, 1)), ends], axis=1)
    noise = rng.random(rows.shape) < 0.1
    rows[noise] = rng.integers(0, 4, noise.sum())
    return ["".join("ACGT"[base] for base in row) for row in rows]


def turned(sequences):
    return [str(DNA(sequence).reverse_complement()) for sequence in sequences]


def amplicon_table(sequences, counts=None, samples=("s",)):
    counts = np.ones((len(samples), len(sequences)), int) if counts is None else np.array(counts)
    return make_table(csr_array(np.atleast_2d(counts)), samples, sequences, sequences)


@pytest.fixture(scope="module")
def profile():
    return RegionProfile.fit(amplicons())


def test_fit_counts_each_sequence_once():
    profile = RegionProfile.fit(["AC", "AG", "ANT"])
    assert profile.length_quantiles[[0, 2, 4]].tolist() == [2, 2, 3]
    expected = [[1, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1], [0.25] * 4]
    np.testing.assert_allclose(profile.frequencies[:4], expected)
    assert len(set(profile.hashes.tolist())) == 3
    assert profile.compare(amplicon_table(["AC", "AG", "ANT"])) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda rows: rows, []),
        (lambda rows: rows[:360] + amplicons(40, seed=1), []),
        (turned, ["100% of the reads look reverse-complemented", "were not in"]),
        (lambda rows: rows[:300] + turned(rows[300:]), ["25% of the reads look rev", "25% of the"]),
        (lambda rows: [row[:100] for row in rows], ["100% of the reads have a length", "not in"]),
        (lambda rows: rows[:360] + [row[:100] for row in rows[360:]], ["10% of the reads have a"]),
        (lambda rows: [row[7:] + "ACGTACG" for row in rows], ["another region", "not in the"]),
        (lambda rows: amplicons(400, seed=5), ["100% of the reads are of ASVs that were not in"]),
    ],
)
def test_what_differs_is_said(profile, change, expected):
    warnings = profile.compare(amplicon_table(change(amplicons())))
    assert len(warnings) == len(expected)
    assert all(part in warning for warning, part in zip(warnings, expected, strict=True))


def test_rare_asvs_that_were_never_seen_are_no_news(profile):
    rows = amplicons()[:100] + amplicons(300, seed=5)
    assert profile.compare(amplicon_table(rows, np.repeat([30, 1], [100, 300]))) == []
    (warning,) = profile.compare(amplicon_table(rows, np.repeat([3, 1], [100, 300])))
    assert "50% of the reads are of ASVs that were not in the training table" in warning


def test_each_sample_is_judged_by_its_own_reads(profile):
    """A single reverse-complemented sample got an empty note; a training sample with a quarter of
    its reads in one odd ASV was said to look like another region.
    """
    sequences = [*amplicons()[:30], *turned(amplicons()[:2])]
    counts = np.zeros((4, 32), int)
    counts[:3, :30], counts[1:3, 30], counts[3, 30:] = 5, (2, 60), 40
    table = amplicon_table(sequences, counts, ["good", "nearly", "mixed", "reversed"])
    reversed_, new = "of its reads look reverse-complemented", "of its reads are of ASVs that were"
    mixed, last = f"29% {reversed_}", f"100% {reversed_}; 100% {new} not in the training table"
    assert profile.compare_samples(table) == ("", "", mixed, last)
    odd, counts = (
        RegionProfile.fit([*amplicons(), sequences[30]]),
        [[1] * 8 + [8, 0], [1] * 8 + [4, 4]],
    )
    table = amplicon_table([*sequences[:8], *sequences[30:]], counts, ["of training", "new"])
    assert odd.compare_samples(table) == ("", f"50% {reversed_}")
    ids = RegionProfile.fit(["f0", "f1"])
    notes = ids.compare_samples(table_of([[9, 1, 0], [1, 0, 9]]))
    assert notes == ("", f"90% {new} not in the training table")


def test_the_profile_travels_through_safetensors(profile, tmp_path):
    path = tmp_path / "profile.safetensors"
    safetensors.numpy.save_file(profile.to_arrays(), path)
    arrays = safetensors.numpy.load_file(path)
    again = RegionProfile.from_arrays(arrays)
    for name, array in profile.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], array)
        assert getattr(again, name).dtype == getattr(profile, name).dtype
    # safetensors 0.5.0 does not write uint64.
    assert np.uint64 not in [array.dtype for array in arrays.values()]
    damaged = [{key: arrays[key] for key in arrays if key != name} for name in arrays]
    damaged += [arrays | {"frequencies": np.zeros((3, 4))}, arrays | {"hashes": np.array(1)}]
    for wrong in damaged:
        assert "region profile is damaged" in refusal(RegionProfile.from_arrays, wrong)


def test_real_studies_of_one_region_fit_each_other(bench_data):
    names = ("infant-age", "mackerel-type", "ibd")
    infant, mackerel, ibd = (read_table(bench_data / name / "table.biom") for name in names)
    profile = RegionProfile.fit(infant.sequences)
    assert profile.compare(infant) == []
    (unseen,) = profile.compare(mackerel)
    assert unseen.startswith("97% of the reads are of ASVs that were not in the training table")
    assert "100% of the reads have a length outside" in profile.compare(ibd)[0]
    reversed_ = amplicon_table(turned(ibd.sequences))
    assert "reverse-complemented" in RegionProfile.fit(ibd.sequences).compare(reversed_)[0]
    for shift in (1, 20):
        shifted = amplicon_table([sequence[shift:] for sequence in mackerel.sequences])
        assert any("another region" in sentence for sentence in profile.compare(shifted))


def written(primer: str, rng: np.random.Generator) -> str:
    """One of the sequences that a primer of IUPAC letters means."""
    meant = (
        [base for base in "ACGT" if LETTER_BITS[base] & LETTER_BITS[letter]] for letter in primer
    )
    return "".join(map(rng.choice, meant))


def random_reads(count: int, length: int = 100) -> list[str]:
    rng = np.random.default_rng(1)
    return ["".join(rng.choice(list("ACGT"), length)) for _ in range(count)]


@pytest.mark.parametrize("name", list(PRIMERS))
def test_a_primer_is_found_at_both_ends_and_strands_with_one_error_and_not_without_it(name):
    number, (own,) = list(PRIMERS).index(name), random_reads(1)
    exact = written(PRIMERS[name], np.random.default_rng(1))
    error = exact[:9] + {"A": "C", "C": "A", "G": "T", "T": "G"}[exact[9]] + exact[10:]
    begins = [exact + own, "ACG" + exact + own, error + own]
    found, cut = find_primers(begins)
    same = {number} if name not in ("806R", "785R/805R") else {list(PRIMERS).index("806R"), number}
    assert set(found[0].tolist()) <= same
    left = [len(read) - bases for read, bases in zip(begins, cut[0].tolist(), strict=True)]
    assert left == pytest.approx([100] * 3, abs=2)
    assert (find_primers(turned(begins))[0][1] >= 0).all()
    none = [own, own[:30], "ACGT", own[:40] + exact + own[40:]]
    assert (find_primers(none)[0] < 0).all(), "in the middle it is no primer"
    assert find_primers([])[0].shape == (2, 0)


def test_primers_are_cut_and_what_becomes_identical_is_merged():
    one, two = random_reads(2, 80)
    reads = [written(PRIMERS["515F"], np.random.default_rng(0)) + one, one, two]
    table = without_primers(amplicon_table(reads, [[5, 7, 1], [0, 2, 3]], ["a", "b"]))
    assert set(table.sequences) == {one, two}
    column = table.sequences.index(one)
    assert table.counts.toarray()[:, column].tolist() == [12, 2]


def test_a_profile_knows_whether_training_reads_held_a_primer():
    rng, reads = np.random.default_rng(0), random_reads(200)
    with_primer = [f"{written(PRIMERS['341F'], rng)}{read}" for read in reads]
    assert not RegionProfile.fit(reads).holds_primer
    assert RegionProfile.fit(with_primer).holds_primer
    assert not RegionProfile.fit(with_primer[:20] + reads).holds_primer


NAMES = [f"OTU_{number}" for number in range(60)]


def test_a_model_of_names_and_a_table_of_sequences_are_told_apart():
    by_name, by_sequence = RegionProfile.fit(NAMES), RegionProfile.fit(amplicons(60))
    names, sequences = table_of(np.ones((2, 60), int)), amplicon_table(amplicons(60, seed=2))
    by_name.check_names(names)
    by_sequence.check_names(sequences)
    message = "the model knows features by {}, and this table has features such as {!r}; pass --seq"
    found = refusal(by_sequence.check_names, names)
    assert message.format("sequence", names.feature_ids[0]) in found
    found = refusal(by_name.check_names, sequences)
    assert message.format("name", sequences.sequences[0][:60]) in found


def test_primers_are_named_before_the_length():
    rng, reads = np.random.default_rng(0), random_reads(8)
    table = amplicon_table([written(PRIMERS["806R"], rng) + read for read in reads])
    message = refusal(fit_length, table, 100, False)
    assert message.startswith("8 of 8 ASVs are longer than 100 nucleotides, and 8 of 8 reads")
    assert "still contain a primer: 806R" in message
    assert message.endswith("(cutadapt), or to apply a model pass --trim-primers")
    assert fit_length(table, 100, True).lengths.tolist() == [100] * 8
    assert fit_length(table, 130, False) is table
    assert "--trim" in refusal(fit_length, amplicon_table(reads), 90, False)


def two_parts(first, second, shared=0):
    """A table of 6 samples of the first ASVs and 4 of the second, with strays of the first."""
    rng = np.random.default_rng(0)
    counts = np.zeros((10, len(first) + len(second)), np.uint32)
    counts[:6, : len(first)] = rng.integers(1, 5000, (6, len(first)))
    counts[6:, len(first) :] = rng.integers(1, 5000, (4, len(second)))
    counts[6:, 0] = shared
    return amplicon_table([*first, *second], counts, IDS[:10])


@pytest.mark.parametrize("shared", [0, 3])
@pytest.mark.parametrize("change", [turned, lambda rows: [row[40:] for row in rows]])
def test_samples_of_another_region_are_noticed(caplog, change, shared):
    table = two_parts(amplicons(40), change(amplicons(40, seed=1)), shared)
    warn_of_regions(table)
    assert "4 of 10 samples, such as 's6', share no feature with the others" in caplog.text


def test_samples_that_share_features_are_not(caplog):
    warn_of_regions(amplicon_table(amplicons(40), np.eye(40, dtype=int) + 1, IDS[:40]))
    warn_of_regions(two_parts(amplicons(40), turned(amplicons(40, seed=1)), shared=9000))
    warn_of_regions(table_of(np.eye(9, dtype=int)))
    assert caplog.text == ""
