"""Nucleotides as tokens, letter by letter and against scikit-bio."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skbio import DNA

from aam.data.tokens import MASK, PAD, N, encode, reverse_complement
from aam.errors import InputError

LETTERS = dict(zip("ACGTN", range(1, 6), strict=True))
dna = st.text("ACGTN", max_size=30)


@given(sequences=st.lists(dna, max_size=5))
def test_encode_letter_by_letter(sequences):
    tokens = encode(sequences)
    assert tokens.dtype == np.uint8
    assert tokens.shape == (len(sequences), max(map(len, sequences), default=0))
    for row, sequence in zip(tokens, sequences, strict=True):
        assert row[: len(sequence)].tolist() == [LETTERS[letter] for letter in sequence]
        assert (row[len(sequence) :] == PAD).all()


def test_other_letters():
    assert encode(["acgtuU", "RYSWKM", "BDHVNn"]).tolist() == [[1, 2, 3, 4, 4, 4], [N] * 6, [N] * 6]
    for sequence, letter in (("AC-T", "'-'"), ("ACéT", "'é'"), ("AC T", "' '")):
        with pytest.raises(InputError, match=f"sequence AC.* holds {letter}"):
            encode(["ACGT", sequence, "A"])


@given(sequences=st.lists(dna, min_size=1, max_size=5))
def test_reverse_complement_as_scikit_bio(sequences):
    tokens = encode(sequences)
    expected = [str(DNA(sequence).reverse_complement()) for sequence in sequences]
    np.testing.assert_array_equal(reverse_complement(tokens), encode(expected))
    np.testing.assert_array_equal(reverse_complement(reverse_complement(tokens)), tokens)


def test_reverse_complement_keeps_masks():
    tokens = np.array([[1, MASK, 2, PAD]], np.uint8)
    assert reverse_complement(tokens).tolist() == [[3, MASK, 4, PAD]]
