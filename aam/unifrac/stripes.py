"""Parts of a UniFrac matrix in files of their own, as several processes or nodes write them, and their merger."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from aam.device.deferred_errors import DeferredErrorFile
from aam.device.files import atomic_file
from aam.errors import InputError, Problems, shown
from aam.io.matrices import Tile

FORMAT = "aam unifrac stripe 1"
# Distances that are written or read at a time.
CHUNK = 1 << 18


def parse_stripe(text: str) -> tuple[int, int]:
    """Return number and count of ``I/N``; `InputError` unless 1 <= I <= N."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise InputError(f"--stripe is {text!r}, expected I/N such as 1/8: a number from 1 to N, and N")
    return int(number), int(count)


@dataclass(frozen=True, eq=False)
class Stripe:
    """The head of a file with a part of a matrix.

    Attributes
    ----------
    path : Path
    number, count : int
        Which part, from 1, of how many.
    identity : dict
        What must be equal for parts to belong together: checksums of the inputs, and options.
    sample_ids : tuple of str
    """

    path: Path
    number: int
    count: int
    identity: Mapping[str, Any]
    sample_ids: tuple[str, ...]


def write_stripe(
    path: Path, stripe: tuple[int, int], identity: Mapping[str, Any], ids: Sequence[str], tiles: Iterable[Tile]
) -> None:
    """Write the tiles of one part, whole or not at all."""
    with (
        atomic_file(path) as temporary,
        contextlib.closing(DeferredErrorFile(temporary)) as patient,
        h5py.File(patient, "w") as file,
    ):
        file.attrs["format"] = FORMAT
        file.attrs["stripe"] = stripe
        file.attrs["identity"] = json.dumps(identity, sort_keys=True)
        file.create_dataset("order", data=list(ids), dtype=h5py.string_dtype())
        values = file.create_dataset("values", (0,), np.float32, maxshape=(None,), chunks=(CHUNK,))
        places = []
        for rows, columns, tile in tiles:
            start = len(values)
            values.resize(start + tile.size, axis=0)
            values[start:] = tile.ravel()
            places.append((rows.start, rows.stop, columns.start, columns.stop))
        file["places"] = np.array(places, np.int64).reshape(-1, 4)


def _read_head(path: Path) -> Stripe:
    try:
        with h5py.File(path, "r") as file:
            if file.attrs.get("format") != FORMAT:
                raise InputError(f"{path}: not a part of a matrix; expected a file of aam unifrac --stripe")
            number, count = file.attrs["stripe"].tolist()
            names = tuple(name.decode() for name in file["order"][()])
            return Stripe(path, number, count, json.loads(file.attrs["identity"]), names)
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not a readable part of a matrix ({error})") from error


def read_stripes(paths: Sequence[Path]) -> list[Stripe]:
    """Return the heads of all parts of one matrix, in order.

    Raises
    ------
    InputError
        A file that is no part, parts of different tables, trees or options, and parts that are missing or twice there.
    """
    heads: list[Stripe] = []
    problems = Problems()

    def read(path: Path) -> None:
        try:
            heads.append(_read_head(path))
        except InputError as error:
            problems.extend(error)

    for path in paths:
        read(path)
    problems.raise_if_any()
    first = heads[0]
    for head in heads[1:]:
        keys = sorted(first.identity.keys() | head.identity.keys())
        differing = [key for key in keys if first.identity.get(key) != head.identity.get(key)]
        differing += ["samples"] if head.sample_ids != first.sample_ids else []
        if differing:
            problems.add(f"--merge: {head.path} and {first.path} differ in {shown(differing, 20)}; expected one matrix")
        if head.count != first.count:
            problems.add(f"--merge: {head.path} is a part of {head.count}, {first.path} of {first.count}")
    numbers = [head.number for head in heads]
    if absent := [f"{number}/{first.count}" for number in range(1, first.count + 1) if number not in numbers]:
        problems.add(f"--merge: parts {shown(absent)} are missing; compute them with --stripe")
    if twice := [str(head.path) for at, head in enumerate(heads) if head.number in numbers[:at]]:
        problems.add(f"--merge: {shown(twice)} repeat parts that other files hold")
    problems.raise_if_any()
    return sorted(heads, key=lambda head: head.number)


def _tiles_of(stripe: Stripe) -> Iterator[Tile]:
    """Yield the tiles of one part; `InputError` where it is damaged."""
    try:
        with h5py.File(stripe.path, "r") as file:
            start = 0
            for top, bottom, left, right in file["places"][()].tolist():
                stop = start + (bottom - top) * (right - left)
                tile = file["values"][start:stop].reshape(bottom - top, right - left)
                start = stop
                yield slice(top, bottom), slice(left, right), tile
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise InputError(f"{stripe.path}: a damaged part of a matrix ({error}); compute it again") from error


def stripe_tiles(stripes: Sequence[Stripe]) -> Iterator[Tile]:
    """Yield the tiles of all parts; `InputError` where one is damaged or they do not cover the matrix once."""
    samples, covered = len(stripes[0].sample_ids), 0
    for stripe in stripes:
        for rows, columns, tile in _tiles_of(stripe):
            covered += tile.size if rows == columns else 2 * tile.size
            yield rows, columns, tile
    if covered != samples**2:
        raise InputError(f"--merge: the parts hold {covered} of {samples**2} distances; compute them again")
