"""Distance matrices with sample ids: HDF5 as ssu writes it, and text."""

from __future__ import annotations

import contextlib
import csv
import itertools
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import h5py
import numpy as np
import numpy.typing as npt

from aam.errors import InputError, problem, refuse, shown
from aam.files.atomic import atomic_file, read_bytes, write_text
from aam.io.ids import difference, repeated
from aam.io.packed import dataset, open_hdf5
from aam.io.text import HDF5_MAGIC, NUMBER, read_table_text, read_text
from aam.typing import Floats

DenseMatrix: TypeAlias = npt.NDArray[np.floating[Any]]
# Two slices of samples, and the distances between them.
Tile: TypeAlias = tuple[slice, slice, DenseMatrix]

# Largest difference between the two halves of a matrix, as rounding leaves it.
ASYMMETRY = 1e-6

ROWS = 512

# An attribute of HDF5 files; those of ssu have none.
CREATOR = "aam"


@dataclass(frozen=True, eq=False)
class DistanceMatrix:
    """Distances between samples.

    Attributes
    ----------
    ids : tuple of str
        N distinct sample ids.
    values : float32 or float64 [N, N]
        Finite, symmetric, at least 0, zero diagonal.
    """

    ids: tuple[str, ...]
    values: DenseMatrix

    def select(self, sample_ids: Sequence[str]) -> DistanceMatrix:
        """Return the distances between some samples, in the order given; `InputError` where one has
        none.
        """
        place = {name: index for index, name in enumerate(self.ids)}
        if unknown := [name for name in sample_ids if name not in place]:
            absent = f"{len(unknown)} of {len(sample_ids)} samples of the table are not in it"
            ids = f"its samples look like {shown(self.ids[:2])}{difference(sample_ids, self.ids)}"
            remedy = f"{ids}. Compute it from this table, or leave it out and pass --tree"
            fault = f"{absent}: {shown(unknown)}"
            raise InputError(problem("--unifrac-matrix", fault, remedy=remedy))
        rows = np.array([place[name] for name in sample_ids], np.int64)
        return DistanceMatrix(tuple(sample_ids), self.values[np.ix_(rows, rows)])


def _checked(ids: Sequence[str], source: Any, path: Path) -> DistanceMatrix:
    """Load the numbers of `source`, an array or dataset, and raise `InputError` with everything
    that keeps them from being distances.
    """
    if source.shape != (len(ids), len(ids)) or source.dtype.kind != "f" or not ids:
        sizes = f"{' x '.join(map(str, source.shape))} values of kind {source.dtype.kind!r}"
        expected = "expected floating-point numbers with as many rows and columns as ids"
        raise InputError(problem(path, f"{sizes} for {len(ids)} sample ids", remedy=expected))
    values = np.array(source)
    parts = [slice(start, start + ROWS) for start in range(0, len(ids), ROWS)]
    is_finite = all(np.isfinite(values[part]).all() for part in parts)
    negative = sum(int((values[part] < 0).sum()) for part in parts)
    asymmetry = max(np.abs(values[p] - values[:, p].T).max() for p in parts) if is_finite else 0.0
    is_symmetric = asymmetry <= ASYMMETRY
    diagonal, duplicates = np.diagonal(values), repeated(ids)
    place = int(np.argmax(diagonal != 0))
    rules = {
        f"sample ids occur more than once: {shown(duplicates)}; keep one of each": duplicates != [],
        "a sample id is empty; expected a name for each row": "" in ids,
        "holds values that are not finite, expected distances of 0 or more": not is_finite,
        f"{negative} distances are negative, expected 0 or more": negative > 0,
        f"differs from its transpose by up to {asymmetry:g}, expected symmetry": not is_symmetric,
        f"{ids[place]!r} is {diagonal[place]:g} away from itself, expected 0": diagonal[place] != 0,
    }
    refuse(path, rules)
    return DistanceMatrix(tuple(ids), values)


def _read_h5(path: Path) -> DistanceMatrix:
    with open_hdf5(path, f"{path}: not a readable HDF5 file of distances") as file:
        where = f"{path}: expected what ssu writes with --format hdf5"
        order = dataset(file, "order", "OS", where)
        matrix = dataset(file, "matrix", "f", where, dimensions=2)
        return _checked([name.decode() for name in order[()]], matrix, path)


def _read_text(path: Path) -> DistanceMatrix:
    """Read a header of ids, next to an empty cell, and then one line of id and distances per
    sample; comments above are skipped.
    """
    text = read_text(path, {"DistanceMatrix": "distance-matrix.tsv"})
    table = read_table_text(text, path, "an empty cell and then the sample ids")
    ids, rows, values, faults = table.header[1:], list[str](), list[Floats](), table.faults
    for line, (name, *cells) in table.rows(least=1):
        rows.append(name.strip())
        try:
            # NumPy reads 1_0 as 10.
            values.append(np.array([cell.replace("_", "?") for cell in cells], np.float64))
        except ValueError:
            other = next(cell for cell in cells if not NUMBER.fullmatch(cell.strip()))
            faults.add(f"expected {len(ids)} distances; is the file cut off?", line, repr(other))
    pairs = itertools.zip_longest(rows, ids, fillvalue="no row")
    others = [f"{row!r}, expected {sample!r}" for row, sample in pairs if row != sample]
    if others and not faults.messages:
        order = "write rows and columns in the same order; is the file cut off?"
        faults.add(f"the first row of another sample than in the header is {others[0]}; {order}")
    faults.raise_if_any()
    return _checked(ids, np.array(values), path)


def read_distances(path: Path) -> DistanceMatrix:
    """Read a distance matrix: HDF5 of ssu, text, or ``DistanceMatrix`` (.qza).

    Raises
    ------
    InputError
        A damaged file, no ids, or values that are not distances (all that is wrong with them).
    """
    is_hdf5 = read_bytes(path, head=len(HDF5_MAGIC)) == HDF5_MAGIC
    return _read_h5(path) if is_hdf5 else _read_text(path)


def fill_tiles(target: Any, tiles: Iterable[Tile]) -> None:
    """Write tiles on and above the diagonal, and their mirror images, to a matrix [N, N]."""
    for rows, columns, tile in tiles:
        target[rows, columns] = tile
        if rows != columns:
            target[columns, rows] = tile.T


def _begin_h5(path: Path, ids: Sequence[str]) -> int:
    """Write an HDF5 file but for the numbers of its matrix; return their place.

    It has the layout of unifrac-binaries, which scikit-bio reads as ``binary_dm``.
    """
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    # The matrix gets its place in the file at once, and no numbers.
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(path, "w") as file:
        file.attrs["creator"] = CREATOR
        file["format"] = np.array([b"BDSM"])
        file["version"] = np.array([b"2020.12"])
        file.create_dataset("order", data=list(ids), dtype=h5py.string_dtype())
        matrix = file.create_dataset("matrix", (len(ids), len(ids)), "<f4", dcpl=plan)
        return int(matrix.id.get_offset())


def _filled(file: IO[bytes], place: int, samples: int, tiles: Iterable[Tile]) -> DenseMatrix:
    """Write tiles to a file from some place on, and return them, mapped as float32."""
    if hasattr(os, "posix_fallocate"):
        # On a full disk the pages of a mapped file would kill the process when they are written.
        os.posix_fallocate(file.fileno(), 0, place + 4 * samples**2)
    values = np.memmap(file, "<f4", "r+", place, (samples, samples))
    fill_tiles(values, tiles)
    values.flush()
    return values


def write_lines(
    file: IO[str], header: Sequence[str], ids: Sequence[str], rows: Iterable[DenseMatrix], form: str
) -> None:
    """Write a header and the numbers of each of the `ids`, a row at a time; `form` is the delimiter
    and a format, such as ``\\t%.6g``.

    One format of a whole row takes half the time of one for each number.
    """
    writer = csv.writer(file, delimiter=form[0], lineterminator="")
    writer.writerow(header)
    file.write("\n")
    for name, row in zip(ids, rows, strict=True):
        writer.writerow([name])
        file.write(form * (len(header) - 1) % tuple(row.tolist()) + "\n")


def write_distances(path: Path, ids: Sequence[str], tiles: Iterable[Tile]) -> None:
    """Write a matrix as float32, tile by tile, whole or not at all; it is never held in memory as a
    whole.

    Parameters
    ----------
    path : Path
        Its ending, ``.h5`` or ``.tsv``, chooses the format.
    ids : sequence of str
        N sample ids, as tables hold them: printable and different.
    tiles : iterable of (rows, columns, tile)
        Tiles on and above the diagonal, as `unifrac_tiles` yields them.
    """
    if path.suffix == ".h5":
        with atomic_file(path) as temporary:
            place = _begin_h5(temporary, ids)
            with temporary.open("r+b") as file:
                _filled(file, place, len(ids), tiles)
        return
    # Text needs whole rows, so the tiles are gathered in an unnamed file first.
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryFile(dir=path.parent) as gathered,
        atomic_file(path) as temporary,
        temporary.open("w", encoding="utf-8") as out,
    ):
        write_lines(out, ["", *ids], ids, _filled(gathered, 0, len(ids), tiles), "\t%.9g")


# The columns of Faith PD.
FAITH_PD = ("sample-id", "faith_pd")


def write_faith_pd(path: Path, ids: Sequence[str], values: Floats) -> None:
    """Write Faith PD [N] as a table."""
    lines = [f"{name}\t{value!r}\n" for name, value in zip(ids, values.tolist(), strict=True)]
    write_text(path, "".join(["\t".join(FAITH_PD) + "\n", *lines]))


def is_written(path: Path) -> bool:
    """Return whether a file is a matrix of `write_distances` or the Faith PD of `write_faith_pd`,
    as its beginning says.
    """
    with contextlib.suppress(InputError, csv.Error, OSError, ValueError):
        if path.suffix == ".h5":
            with open_hdf5(path, "") as file:
                return bool(file.attrs.get("creator") == CREATOR)
        with path.open(encoding="utf-8", newline="") as text:
            rows = csv.reader(text, delimiter="\t")
            header, row = next(rows, [""]), next(rows, [""])
        # Of a matrix the first distance is that of the first sample to itself.
        is_matrix = header[0] == "" and row[:2] == [*header[1:2], "0"] and len(row) == len(header)
        return is_matrix or tuple(header) == FAITH_PD
    return False
