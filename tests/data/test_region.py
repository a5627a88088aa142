"""Tables, samples and reads that differ from those of training are named, others are not; primers
of 16S in reads.
"""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy
from scipy.sparse import csr_array
from skbio import DNA

from aam.data.region import LETTERS, PRIMERS, RegionProfile, find_primers, without_primers
from aam.data.table import make_table, read_table
from aam.errors import InputError


def study(count=400, seed=0, length=120):
    """Sequences that share a start, like those of one primer pair, and vary behind it."""
    rng = np.random.default_rng(seed)
    start = np.random.default_rng(99).integers(0, 4, 60)
    rows = np.concatenate(
        [np.tile(start, (count, 1)), rng.integers(0, 4, (count, length - 60))], axis=1
    )
    noise = rng.random(rows.shape) < 0.1
    rows[noise] = rng.integers(0, 4, noise.sum())
    return ["".join("ACGT"[base] for base in row) for row in rows]


def turned(sequences):
    return [str(DNA(sequence).reverse_complement()) for sequence in sequences]


def table_of(sequences, counts=None, samples=("s",)):
    counts = np.ones((len(samples), len(sequences)), int) if counts is None else np.array(counts)
    return make_table(csr_array(np.atleast_2d(counts)), samples, sequences, sequences)


@pytest.fixture(scope="module")
def profile():
    return RegionProfile.fit(study())


def test_fit_counts_each_sequence_once():
    profile = RegionProfile.fit(["AC", "AG", "ANT"])
    assert profile.length_quantiles[[0, 2, 4]].tolist() == [2, 2, 3]
    np.testing.assert_allclose(
        profile.frequencies[:4], [[1, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1], [0.25] * 4]
    )
    assert len(set(profile.hashes.tolist())) == 3
    assert profile.compare(table_of(["AC", "AG", "ANT"])) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda rows: rows, []),
        (lambda rows: rows[:360] + study(40, seed=1), []),
        (lambda rows: turned(rows), ["100% of the reads look reverse-complemented", "were not in"]),
        (
            lambda rows: rows[:300] + turned(rows[300:]),
            ["25% of the reads look reverse-complemented", "25% of the reads are of ASVs that"],
        ),
        (lambda rows: [row[:100] for row in rows], ["100% of the reads have a length", "not in"]),
        (lambda rows: rows[:360] + [row[:100] for row in rows[360:]], ["10% of the reads have a"]),
        (lambda rows: [row[7:] + "ACGTACG" for row in rows], ["another region", "not in the"]),
        (lambda rows: study(400, seed=5), ["100% of the reads are of ASVs that were not in"]),
    ],
)
def test_what_differs_is_said(profile, change, expected):
    warnings = profile.compare(table_of(change(study())))
    assert len(warnings) == len(expected)
    for warning, part in zip(warnings, expected, strict=True):
        assert part in warning


def test_rare_asvs_that_were_never_seen_are_no_news(profile):
    rows = study()[:100] + study(300, seed=5)
    assert profile.compare(table_of(rows, np.repeat([30, 1], [100, 300]))) == []
    (warning,) = profile.compare(table_of(rows, np.repeat([3, 1], [100, 300])))
    assert "50% of the reads are of ASVs that were not in the training table" in warning


def test_each_sample_is_judged_by_its_own_reads(profile):
    """Issue 15, point 15: a single reverse-complemented sample got an empty note."""
    sequences = [*study()[:30], *turned(study()[:2])]
    counts = np.zeros((4, 32), int)
    counts[:3, :30], counts[1:3, 30], counts[3, 30:] = 5, (2, 60), 40
    table = table_of(sequences, counts, ["good", "nearly", "mixed", "reversed"])
    good, nearly, mixed, reversed_ = profile.compare_samples(table)
    assert (good, nearly) == ("", "")
    assert mixed == "29% of its reads look reverse-complemented"
    assert reversed_ == (
        "100% of its reads look reverse-complemented; 100% of its reads are of ASVs that were "
        "not in the training table"
    )


def test_a_sample_of_training_asvs_only_is_not_unlike_training():
    """A training sample with a quarter of its reads in one odd ASV was said to look like another
    region.
    """
    odd, new = turned(study())[:2]
    profile, sequences = RegionProfile.fit([*study(), odd]), [*study()[:8], odd, new]
    table = table_of(sequences, [[1] * 8 + [8, 0], [1] * 8 + [4, 4]], ["of training", "new"])
    assert profile.compare_samples(table) == ("", "50% of its reads look reverse-complemented")


def test_names_of_features_are_new_or_known():
    profile = RegionProfile.fit(["OTU_1", "OTU_2"])
    counts = csr_array(np.array([[9, 1, 0], [1, 0, 9]]))
    table = make_table(counts, ["a", "b"], ["OTU_1", "OTU_2", "OTU_3"])
    new = "90% of its reads are of ASVs that were not in the training table"
    assert profile.compare_samples(table) == ("", new)


def test_the_profile_travels_through_safetensors(profile, tmp_path):
    path = tmp_path / "profile.safetensors"
    safetensors.numpy.save_file(profile.to_arrays(), path)
    arrays = safetensors.numpy.load_file(path)
    again = RegionProfile.from_arrays(arrays)
    for name, array in profile.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], array)
        assert getattr(again, name).dtype == getattr(profile, name).dtype
    assert np.uint64 not in [array.dtype for array in arrays.values()], (
        "safetensors 0.5.0 does not write it"
    )
    for name in arrays:
        with pytest.raises(InputError, match=name):
            RegionProfile.from_arrays({key: array for key, array in arrays.items() if key != name})
    with pytest.raises(InputError, match="frequencies"):
        RegionProfile.from_arrays(arrays | {"frequencies": np.zeros((3, 4))})


def test_real_studies_of_one_region_fit_each_other(bench_data):
    infant, mackerel, ibd = (
        read_table(bench_data / name / "table.biom")
        for name in ("infant-age", "mackerel-type", "ibd")
    )
    profile = RegionProfile.fit(infant.sequences)
    assert profile.compare(infant) == []
    (unseen,) = profile.compare(mackerel)
    assert unseen.startswith("97% of the reads are of ASVs that were not in the training table")
    assert "100% of the reads have a length outside" in profile.compare(ibd)[0]
    assert (
        "reverse-complemented"
        in RegionProfile.fit(ibd.sequences).compare(table_of(turned(ibd.sequences)))[0]
    )
    for shift in (1, 20):
        shifted = table_of([sequence[shift:] for sequence in mackerel.sequences])
        assert any("another region" in sentence for sentence in profile.compare(shifted))


def written(primer: str, rng: np.random.Generator) -> str:
    """One of the sequences that a primer of IUPAC letters means."""
    return "".join(
        rng.choice([base for base in "ACGT" if LETTERS[base] & LETTERS[letter]])
        for letter in primer
    )


@pytest.mark.parametrize("name", list(PRIMERS))
def test_a_primer_is_found_at_both_ends_and_strands_with_one_error_and_not_without_it(name):
    rng = np.random.default_rng(1)
    number, own = list(PRIMERS).index(name), "".join(rng.choice(list("ACGT"), 100))
    exact = written(PRIMERS[name], rng)
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
    rng = np.random.default_rng(0)
    one, two = ("".join(rng.choice(list("ACGT"), 80)) for _ in range(2))
    reads = [written(PRIMERS["515F"], rng) + one, one, two]
    table = without_primers(
        make_table(csr_array(np.array([[5, 7, 1], [0, 2, 3]])), ["a", "b"], ["x", "y", "z"], reads)
    )
    assert set(table.sequences) == {one, two}
    column = table.sequences.index(one)
    assert table.counts.toarray()[:, column].tolist() == [12, 2]


def test_a_profile_knows_whether_training_reads_held_a_primer():
    rng = np.random.default_rng(0)
    reads = ["".join(rng.choice(list("ACGT"), 100)) for _ in range(200)]
    assert not RegionProfile.fit(reads).holds_primer
    assert RegionProfile.fit([f"{written(PRIMERS['341F'], rng)}{r}" for r in reads]).holds_primer
    spaced = [f"{'ACG'[: at % 4]}{written(PRIMERS['341F'], rng)}{r}" for at, r in enumerate(reads)]
    assert not RegionProfile.fit(spaced[:1] + reads).holds_primer
