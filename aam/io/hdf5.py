"""HDF5 files: read with sizes checked first, whatever they hold; written whole or not at all."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import h5py

from aam.errors import InputError, reworded
from aam.files.atomic import DeferredErrorFile, atomic_file

# Deflate, the only filter of these files, reaches 1032:1; what claims more has no data behind it.
MAX_RATIO = 1100
EXEMPT = 1 << 20
MAX_ENTRIES = 2**31 - 1

# What h5py raises of damaged files.
DAMAGED = (OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError)


@contextlib.contextmanager
def open_hdf5(source: Path | bytes, damaged: str) -> Iterator[h5py.File]:
    """Open a file, or its bytes; what fails within is an `InputError` that begins with the words
    `damaged`.
    """
    content = io.BytesIO(source) if isinstance(source, bytes) else source
    with reworded(DAMAGED, damaged), h5py.File(content, "r") as file:
        yield file


def dataset(
    file: h5py.File, name: str, kinds: str, where: str, dimensions: int = 1
) -> h5py.Dataset:
    """Return a dataset of one of the numpy `kinds`; `InputError` where it is another, or larger
    than what is stored.
    """
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        raise InputError(f"{where}: no dataset {name!r}")
    if found.file.filename != file.filename or found.is_virtual or found.external:
        raise InputError(
            f"{where}: {name} lies in another file; copy it into this one (h5repack, or biom "
            "convert)"
        )
    if found.ndim != dimensions or found.dtype.kind not in kinds:
        what = "a list" if dimensions == 1 else "rows and columns"
        raise InputError(
            f"{where}: {name} is {found.dtype} {found.shape}, expected {what} of kind {kinds!r}"
        )
    if dimensions == 1 and found.size > MAX_ENTRIES:
        raise InputError(
            f"{where}: {name} has {found.size} entries, expected at most {MAX_ENTRIES}"
        )
    claimed, stored = found.size * found.dtype.itemsize, found.id.get_storage_size()
    if claimed > EXEMPT + MAX_RATIO * stored:
        raise InputError(
            f"{where}: {name} claims {claimed} bytes and stores {stored}; the file is damaged"
        )
    return found


@contextlib.contextmanager
def create_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open a file to write, which appears when all of it is written."""
    with (
        atomic_file(path) as temporary,
        contextlib.closing(DeferredErrorFile(temporary)) as deferred,
        h5py.File(deferred, "w") as file,
    ):
        yield file
