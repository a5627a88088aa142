"""DNA sequences from FASTA files and from ids: which text is DNA, and how it is cleaned."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from aam.errors import InputError, Problems
from aam.io.text import read_text, unix, until_full

LETTERS = "ACGTUNRYSWKMBDHVacgtunryswkmbdhv"
NOT_DNA = re.compile(f"[^{LETTERS}]")

# Nucleotides that no name of a sample has, as a pair of barcodes of ten each.
LEAST_DNA = 30

# Sequences that are cleaned at a time.
AT_ONCE = 1 << 14

CLEAN = bytes.maketrans(b"URYSWKMBDHV", b"TNNNNNNNNNN")


def first_not_dna(sequence: str) -> str:
    """Return the first character that is no nucleotide letter, for a message; empty when there is
    none.
    """
    match = NOT_DNA.search(sequence)
    return match.group() if match else ""


def is_sequence(name: str) -> bool:
    """Return whether a name is DNA, longer than what a sample is called by."""
    return len(name) >= LEAST_DNA and not first_not_dna(name)


def not_dna(names: Sequence[str]) -> list[str]:
    """Return the names that are not DNA; many are searched at once, because most tables have no
    such name.
    """
    parts = (names[start : start + AT_ONCE] for start in range(0, len(names), AT_ONCE))
    others = (
        part
        for part in parts
        if min(map(len, part)) < LEAST_DNA
        or "".join(part).encode(errors="replace").translate(None, LETTERS.encode())
    )
    return [name for part in others for name in part if not is_sequence(name)]


def clean(sequences: Sequence[str]) -> list[str]:
    """Return upper-case DNA of valid sequences: U becomes T, IUPAC letters other than ACGTU become
    N.

    Many that are clean already are returned as the objects that they are, so that a large table
    holds them once.
    """
    result: list[str] = []
    for start in range(0, len(sequences), AT_ONCE):
        chunk = sequences[start : start + AT_ONCE]
        joined = "\n".join(chunk)
        cleaned = joined.upper().encode("ascii").translate(CLEAN).decode("ascii")
        result += chunk if cleaned == joined else cleaned.split("\n")
    return result


def _records(text: str, path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line number, id and sequence of each FASTA record."""
    before, *records = f"\n{text}".split("\n>")
    if before.strip():
        number, line = next((n, line) for n, line in enumerate(before.split("\n")) if line.strip())
        raise InputError(
            f"{path}: line {number} is {line[:40]!r}, expected FASTA that begins with '>'"
        )
    number = before.count("\n") + 1
    for record in records:
        title, *parts = record.split("\n")
        yield number, (title.split() or [""])[0], "".join(part.strip() for part in parts)
        number += 1 + len(parts)


def _fasta(path: Path) -> str:
    return unix(read_text(path, {"FeatureData[Sequence]": "dna-sequences.fasta"}))


def fasta_ids(path: Path) -> list[str]:
    """Return the ids of all records of a file that `read_fasta` reads."""
    return [name for _, name, _ in _records(_fasta(path), path)]


def read_fasta(path: Path, wanted: Collection[str]) -> dict[str, str]:
    """Return clean sequences of the `wanted` ids from FASTA (plain or gzip) or
    ``FeatureData[Sequence]`` (.qza).

    Raises `InputError`: no FASTA, a duplicate id, or a wanted sequence that is empty or holds a gap
    or another letter.
    """
    text = _fasta(path)
    keep, problems = frozenset(wanted), Problems()
    sequences: dict[str, str] = {}
    for number, name, sequence in until_full(_records(text, path), problems):
        if name not in keep:
            continue
        if name in sequences:
            problems.add(f"{path}: line {number}: the id {name!r} occurs a second time")
        elif not sequence:
            problems.add(f"{path}: line {number}: {name!r} has no sequence")
        elif letter := first_not_dna(sequence):
            hint = "; pass sequences that are not aligned" if letter in "-." else ""
            problems.add(
                f"{path}: line {number}: {name!r} holds {letter!r}, expected nucleotides{hint}"
            )
        sequences[name] = sequence
    problems.raise_if_any()
    return dict(zip(sequences, clean(list(sequences.values())), strict=True))
