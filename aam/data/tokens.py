"""Nucleotides as tokens; the network reads them in `model/asv.py` (`AsvEncoder`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from aam.device.rng import GOLDEN, splitmix64
from aam.errors import InputError
from aam.io.sequences import first_not_dna
from aam.typing import Tokens

N_TOKENS = 7

PAD, A, C, G, T, N, MASK = range(N_TOKENS)


# Bases of the words by which sequences are compared.
K = 8


# The token of each byte; 0 is no letter of a nucleotide.
TOKEN_LETTERS = {A: b"Aa", C: b"Cc", G: b"Gg", T: b"TtUu", N: b"NRYSWKMBDHVnryswkmbdhv"}
TOKEN_OF = {letter: token for token, letters in TOKEN_LETTERS.items() for letter in letters}
CODE = np.array([TOKEN_OF.get(byte, PAD) for byte in range(256)], np.uint8)

COMPLEMENT = np.array([PAD, T, G, C, A, N, MASK], dtype=np.uint8)


def encode(sequences: Sequence[str]) -> Tokens:
    """Return tokens of DNA sequences, uint8 [F, L], padded to the longest with `PAD`.

    U is read as T, IUPAC letters other than ACGTU as `N`.

    Raises `InputError`: a character that is no nucleotide letter, gaps included.
    """
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    flat = CODE[np.frombuffer("".join(sequences).encode("ascii", "replace"), dtype=np.uint8)]
    if not flat.all():
        other = next(sequence for sequence in sequences if first_not_dna(sequence))
        fault = f"sequence {other[:20]}... holds {first_not_dna(other)!r}"
        raise InputError(f"{fault}, expected nucleotides")
    tokens = np.zeros((len(sequences), int(lengths.max(initial=0))), dtype=np.uint8)
    tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = flat
    return tokens


def reverse_complement(tokens: Tokens) -> Tokens:
    """Return the other strand of each row [F, L]; padding stays at the end."""
    lengths = (tokens != PAD).sum(axis=1)
    source = lengths[:, None] - 1 - np.arange(tokens.shape[1])
    turned = COMPLEMENT[np.take_along_axis(tokens, np.maximum(source, 0), axis=1)]
    turned[source < 0] = PAD
    return turned


def asv_keys(tokens: Tensor) -> Tensor:
    """Return a hash ``int64 [U]`` of each row of `tokens` that padding does not change."""
    position = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    return splitmix64((tokens.long() * (splitmix64(position * GOLDEN) | 1)).sum(dim=1))


def kmer_words(tokens: Tensor, k: int) -> Tensor:
    """Return the word of `k` bases that starts at each position of `tokens` ``[U, L]``, as a number
    ``int64 [U, L]``.

    Where the word ends beyond the ASV or holds anything but A, C, G and T, the number is 4^k.
    """
    padded = torch.nn.functional.pad(tokens, (0, k - 1), value=PAD)
    is_base, bases = (padded > PAD) & (padded < N), padded.long() - 1
    length = tokens.shape[1]
    words, is_word = torch.zeros_like(bases[:, :length]), torch.ones_like(is_base[:, :length])
    for place in range(k):
        words += bases[:, place : place + length] * 4**place
        is_word &= is_base[:, place : place + length]
    return torch.where(is_word, words, 4**k)


def kmer_counts(tokens: Tokens) -> sparse.csr_matrix:
    """Count each word of `K` bases in each sequence ``[F, L]`` of tokens, float32
    ``[F, 4^K]``.

    A word with anything but A, C, G and T is left out.
    """
    words = kmer_words(torch.from_numpy(tokens), K).numpy()
    row, place = np.nonzero(words < 4**K)
    shape = (len(tokens), 4**K)
    return sparse.csr_matrix((np.ones(len(row), np.float32), (row, words[row, place])), shape)
