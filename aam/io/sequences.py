"""Nucleotide sequences as text: which names are DNA, and FASTA."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from aam.errors import InputError, problem
from aam.io.text import Faults, read_text, unix

DNA_LETTERS = "ACGTUNRYSWKMBDHVacgtunryswkmbdhv"
NOT_DNA = re.compile(f"[^{DNA_LETTERS}]")
CLEAN = str.maketrans("URYSWKMBDHV", "TNNNNNNNNNN")

# Names of samples may be DNA, such as two barcodes of ten nucleotides, but are shorter than this.
LEAST_DNA = 30


def first_not_dna(sequence: str) -> str:
    """Return the first character that is no nucleotide letter, for a message; empty when there is
    none.
    """
    match = NOT_DNA.search(sequence)
    return match.group() if match else ""


def is_sequence(name: str) -> bool:
    """Return whether a name is DNA, longer than what a sample is called by."""
    return len(name) >= LEAST_DNA and not first_not_dna(name)


def clean(sequences: Sequence[str]) -> list[str]:
    """Return upper-case DNA of valid sequences: U becomes T, IUPAC letters other than ACGTU become
    N.

    Sequences that are clean already are returned as the objects that they are, so that a large
    table holds them once.
    """
    cleaned = (sequence.upper().translate(CLEAN) for sequence in sequences)
    pairs = zip(sequences, cleaned, strict=True)
    return [text if text == dna else dna for text, dna in pairs]


def _records(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line number, id and sequence of each record of FASTA text or a QIIME 2 archive."""
    text = unix(read_text(path, {"FeatureData[Sequence]": "dna-sequences.fasta"}))
    before, *records = f"\n{text}".split("\n>")
    number = before.count("\n") + 1
    if begin := before.strip():
        line = text[: text.index(begin)].count("\n") + 1
        fault = f"line {line} is {begin.split(chr(10))[0][:40]!r}"
        raise InputError(problem(path, fault, "FASTA that begins with '>'"))
    for record in records:
        title, *parts = record.split("\n")
        yield number, (title.split() or [""])[0], "".join(part.strip() for part in parts)
        number += 1 + len(parts)


def fasta_ids(path: Path) -> list[str]:
    """Return the ids of all records of a file that `read_fasta` reads."""
    return [name for _, name, _ in _records(path)]


def read_fasta(path: Path, wanted: Collection[str]) -> dict[str, str]:
    """Return clean sequences of the `wanted` ids from FASTA (plain or gzip) or
    ``FeatureData[Sequence]`` (.qza).

    Raises `InputError`: no FASTA, a duplicate id, or a wanted sequence that is empty or holds a gap
    or another letter.
    """
    keep, faults, sequences = frozenset(wanted), Faults(path), dict[str, str]()
    for line, name, sequence in _records(path):
        if name not in keep:
            continue
        letter = first_not_dna(sequence)
        if name in sequences:
            faults.add("an id that occurs a second time", line, repr(name))
        elif not sequence:
            faults.add("no sequence", line, repr(name))
        elif letter:
            hint = "; pass sequences that are not aligned" if letter in "-." else ""
            faults.add(f"holds {letter!r}, expected nucleotides{hint}", line, repr(name))
        sequences[name] = sequence
    faults.raise_if_any()
    return dict(zip(sequences, clean(list(sequences.values())), strict=True))
