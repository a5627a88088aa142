"""Files that state their own sizes, QIIME 2 archives (.qza) and HDF5: read within limits."""

from __future__ import annotations

import contextlib
import io
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import h5py

from aam.errors import InputError, problem, refuse, reworded, short, shown

MAX_FILE = 4 << 30
# Deflate reaches 1032:1; real tables, trees and sequences stay below 50:1. Small archives are
# exempt.
MAX_RATIO = 200
EXEMPT = 64 << 20

UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# The semantic type in metadata.yaml, without quotes and properties.
TYPE = re.compile(r"""^type: ['"]?(.+?)['"]?( % .*)?$""", re.MULTILINE)
AS_TEXT = "save it as tab-separated text in UTF-8 (.tsv)"
# Files at fixed places in workbooks of Excel, LibreOffice and Numbers.
WORKBOOK = {"[Content_Types].xml", "content.xml", "Index/Document.iwa"}
ZIP_MAGIC = b"PK\x03\x04"
# NotImplementedError of zipfile is a RuntimeError.
BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, struct.error)
BAD_ZIP = (*BROKEN_ZIP, EOFError, OSError, ValueError, RuntimeError, OverflowError)

# Of HDF5, without other filters than deflate: what claims more has no data behind it.
HDF5_RATIO, HDF5_EXEMPT, MAX_ENTRIES = 1100, 1 << 20, 2**31 - 1
# What h5py raises of damaged files.
BAD_HDF5 = (OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError)


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> bytes:
    """Unpack one file, in memory and within limits."""
    # Other methods unpack a piece of the file at once, however large it becomes.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
        raise InputError(f"{path}: {entry.filename} is encrypted or not deflated")
    allowed = min(MAX_FILE, EXEMPT + MAX_RATIO * path.stat().st_size)
    if entry.file_size > allowed:
        fault = f"{entry.filename} unpacks to {entry.file_size} bytes"
        remedy = "`qiime tools export` it if it is sound"
        raise InputError(problem(path, fault, f"at most {allowed}", remedy))
    # With a size, zipfile unpacks at most this number of bytes.
    with archive.open(entry) as file:
        content = file.read(entry.file_size)
    if len(content) != entry.file_size:
        raise InputError(f"{path}: {entry.filename} is shorter than the archive says; cut off?")
    return content


def read_artifact(path: Path, inside: Mapping[str, str], reason: str = "") -> bytes:
    """Return the content of a file below ``data/`` of a QIIME 2 archive.

    `inside` is the name of that file by semantic type, properties (`` % Properties(...)``) aside,
    for each type that the caller accepts; `reason` says in the message why only these.

    Raises `InputError`: not a QIIME 2 archive, another semantic type, or too large.
    """
    damaged = f"{path}: not a readable QIIME 2 archive"
    hint = f"; if it is an Excel workbook, {AS_TEXT}"
    with reworded(BAD_ZIP, damaged, hint), zipfile.ZipFile(path) as archive:
        if WORKBOOK & set(archive.namelist()):
            raise InputError(f"{path}: is a workbook of Excel or another office program; {AS_TEXT}")
        roots = sorted({name.split("/")[0] for name in archive.namelist()})
        if len(roots) != 1 or not UUID.fullmatch(roots[0]):
            fault, remedy = f"holds {shown(roots) or 'nothing'}", "take the file that QIIME 2 wrote"
            raise InputError(problem(path, fault, "one folder, named by a UUID", remedy))
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        files = {entry.filename.removeprefix(f"{roots[0]}/"): entry for entry in entries}
        text = ""
        if "metadata.yaml" in files:
            text = _content(archive, files["metadata.yaml"], path).decode("utf-8")
        if (match := TYPE.search(text)) is None:
            raise InputError(f"{path}: no type in metadata.yaml; not a QIIME 2 archive")
        if (kind := match[1]) not in inside:
            raise InputError(problem(path, f"holds {short(kind)}", " or ".join(inside), reason))
        if (name := f"data/{inside[kind]}") not in files:
            raise InputError(f"{path}: no file {name!r} in {kind}, found {shown(sorted(files))}")
        return _content(archive, files[name], path)


# --- HDF5 --------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_hdf5(source: Path | bytes, damaged: str) -> Iterator[h5py.File]:
    """Open a file, or its bytes; what fails within is an `InputError` that begins with the words
    `damaged`.
    """
    content = io.BytesIO(source) if isinstance(source, bytes) else source
    with reworded(BAD_HDF5, damaged), h5py.File(content, "r") as file:
        yield file


def dataset(
    file: h5py.File, name: str, kinds: str, where: str, dimensions: int = 1
) -> h5py.Dataset:
    """Return a dataset of one of the numpy `kinds`; `InputError` where it is another, or larger
    than what is stored.
    """
    item = file.get(name)
    if not isinstance(item, h5py.Dataset):
        raise InputError(f"{where}: no dataset {name!r}")
    claimed, stored = item.size * item.dtype.itemsize, item.id.get_storage_size()
    expected = f"expected {('a list', 'rows and columns')[dimensions - 1]} of kind {kinds!r}"
    rules = {
        f"{name} lies in another file; copy it into this one (h5repack, or biom convert)": (
            item.file.filename != file.filename or item.is_virtual or bool(item.external)
        ),
        f"{name} is {item.dtype} {item.shape}, {expected}": (
            item.ndim != dimensions or item.dtype.kind not in kinds
        ),
        f"{name} has {item.size} entries, expected at most {MAX_ENTRIES}": (
            dimensions == 1 and item.size > MAX_ENTRIES
        ),
        f"{name} claims {claimed} bytes and stores {stored}; the file is damaged": (
            claimed > HDF5_EXEMPT + HDF5_RATIO * stored
        ),
    }
    refuse(where, rules)
    return item
