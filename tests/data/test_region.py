"""Tables and samples whose ASVs differ from those of training are named, others are not."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy
from scipy.sparse import csr_array
from skbio import DNA

from aam.data.region import RegionProfile
from aam.data.table import make_table, read_table, select_samples
from aam.errors import InputError


def study(count=400, seed=0, length=120):
    """Sequences that share a start, like those of one primer pair, and vary behind it."""
    rng = np.random.default_rng(seed)
    start = np.random.default_rng(99).integers(0, 4, 60)
    rows = np.concatenate([np.tile(start, (count, 1)), rng.integers(0, 4, (count, length - 60))], axis=1)
    noise = rng.random(rows.shape) < 0.1
    rows[noise] = rng.integers(0, 4, noise.sum())
    return ["".join("ACGT"[base] for base in row) for row in rows]


def turned(sequences):
    return [str(DNA(sequence).reverse_complement()) for sequence in sequences]


@pytest.fixture(scope="module")
def profile():
    return RegionProfile.fit(study())


def test_fit_counts_each_sequence_once():
    profile = RegionProfile.fit(["AC", "AG", "ANT"])
    assert profile.length_quantiles[[0, 2, 4]].tolist() == [2, 2, 3]
    np.testing.assert_allclose(profile.frequencies[:4], [[1, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1], [0.25] * 4])
    assert len(set(profile.hashes.tolist())) == 3
    assert profile.compare(["AC", "AG", "ANT"]) == []


def test_the_training_sequences_and_their_like_fit(profile):
    assert profile.compare(study()) == []
    assert profile.compare(study()[:100] + study(60, seed=1)) == []
    assert profile.compare([]) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda rows: turned(rows), ["reverse-complemented", "100% of the 400 ASVs were not in the training"]),
        (lambda rows: rows[:300] + turned(rows[300:]), ["25% of the ASVs look reverse-complemented"]),
        (lambda rows: [row[:100] for row in rows], ["median 100 nucleotides, 100% outside the 120 to 120", "not in"]),
        (lambda rows: rows[:360] + [row[:100] for row in rows[360:]], ["median 120 nucleotides, 10% outside"]),
        (lambda rows: [row[7:] + "ACGTACG" for row in rows], ["another region", "not in the training"]),
        (lambda rows: study(400, seed=5), ["100% of the 400 ASVs were not in the training table"]),
    ],
)
def test_what_differs_is_said(profile, change, expected):
    warnings = profile.compare(change(study()))
    assert len(warnings) == len(expected)
    for warning, part in zip(warnings, expected, strict=True):
        assert part in warning


def test_each_sample_is_judged_by_its_own_reads(profile):
    """Issue 15, point 15: a single reverse-complemented sample got an empty note."""
    sequences = [*study()[:30], *turned(study()[:2])]
    counts = np.zeros((4, 32), np.uint32)
    counts[:3, :30] = 5
    counts[1, 30] = 2
    counts[2, 30] = 60
    counts[3, 30:] = 40
    table = make_table(csr_array(counts), ["good", "nearly", "mixed", "reversed"], sequences, sequences)
    assert profile.compare(table.sequences) == [
        "6% of the ASVs look reverse-complemented: their other strand fits the "
        "training ASVs, they do not; turn them round and predict again"
    ]
    good, nearly, mixed, reversed_ = profile.compare_samples(table)
    assert (good, nearly) == ("", "")
    assert mixed == "29% of its reads look reverse-complemented"
    assert reversed_ == (
        "100% of its reads look reverse-complemented; 100% of its reads are of ASVs that were not in the training table"
    )


def test_real_samples_are_noted_only_where_they_differ(bench_data):
    table = read_table(bench_data / "infant-age" / "table.biom")
    half = select_samples(table, table.sample_ids[::2])
    other = select_samples(table, table.sample_ids[1::2])
    seen = np.asarray(half.counts.sum(axis=0)).ravel() > 0
    profile = RegionProfile.fit([sequence for sequence, present in zip(half.sequences, seen, strict=True) if present])
    assert set(profile.compare_samples(other)) == {""}
    flipped = turned(table.sequences)
    notes = profile.compare_samples(make_table(other.counts[:3], other.sample_ids[:3], flipped, flipped))
    assert all("100% of its reads look reverse-complemented" in note for note in notes)


def test_the_profile_travels_through_safetensors(profile, tmp_path):
    path = tmp_path / "profile.safetensors"
    safetensors.numpy.save_file(profile.to_arrays(), path)
    arrays = safetensors.numpy.load_file(path)
    again = RegionProfile.from_arrays(arrays)
    for name, array in profile.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], array)
        assert getattr(again, name).dtype == getattr(profile, name).dtype
    assert np.uint64 not in [array.dtype for array in arrays.values()], "safetensors 0.5.0 does not write it"
    odd = turned(study())[:50] + study(80, seed=3)
    assert again.compare(odd) == profile.compare(odd) != []
    for name in arrays:
        with pytest.raises(InputError, match=name):
            RegionProfile.from_arrays({key: array for key, array in arrays.items() if key != name})
    with pytest.raises(InputError, match="frequencies"):
        RegionProfile.from_arrays(arrays | {"frequencies": np.zeros((3, 4))})


def test_real_studies_of_one_region_fit_each_other(bench_data):
    tables = [read_table(bench_data / name / "table.biom") for name in ("infant-age", "mackerel-type", "ibd")]
    infant, mackerel, ibd = (table.sequences for table in tables)
    profile = RegionProfile.fit(infant)
    assert profile.compare(infant) == []
    (unseen,) = profile.compare(mackerel)
    assert unseen.startswith("97% of the 23253 ASVs were not in the training table")
    length, _ = profile.compare(ibd)
    assert "median 100 nucleotides" in length
    assert "reverse-complemented" in RegionProfile.fit(ibd).compare(turned(ibd))[0]
    for shift in (1, 20):
        assert any("another region" in each for each in profile.compare([s[shift:] for s in mackerel]))
