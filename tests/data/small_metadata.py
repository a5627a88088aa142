"""Metadata of nine samples, with columns of each kind."""

from __future__ import annotations

from aam.io.metadata import Metadata

IDS = tuple(f"s{row}" for row in range(9))
COLUMNS = {
    "diet": ("milk", "milk", "bread", "bread", "bread", "", "milk", "rice", "na"),
    "sex": ("f", "m", "f", "m", "f", "m", "f", "m", "f"),
    "bmi": ("1", "2", "3", "", "5", "1", "9", "", "2"),
    "same": ("x",) * 9,
    "seven": ("7",) * 9,
    "empty": ("",) * 9,
    "words": ("1", "x", "3", "4", "5", "6", "7", "8", "9"),
    "age": ("1", "2", "3", "4", "5", "6", "7", "8", "9"),
    "cold": ("-3", "2", "3", "4", "5", "6", "7", "8", "9"),
    "site": ("a", "b", "a", "b", "a", "b", "a", "b", "a"),
}

KINDS = {name: "numeric" if name in ("bmi", "seven", "age", "cold") else "categorical" for name in COLUMNS}
METADATA = Metadata(IDS, COLUMNS, KINDS)
TRAIN = IDS[:6]
