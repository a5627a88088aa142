"""QIIME 2 archives (.qza): read with bounded sizes, written whole, with the standard zipfile
only.
"""

from __future__ import annotations

import hashlib
import platform
import re
import stat
import struct
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import aam
from aam.errors import InputError, refuse, reworded, shown
from aam.files.atomic import atomic_file

MAX_FILE = 4 << 30
MAX_TOTAL = 8 << 30
MAX_ENTRIES = 100_000
MAX_METADATA = 1 << 16
# Deflate reaches 1032:1; real tables, trees and sequences stay below 50:1. Small archives are
# exempt.
MAX_RATIO = 200
EXEMPT = 64 << 20

UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
EXCEL = "; save a zip archive of Excel as tab-separated text in UTF-8 (.tsv)"
ZIP_MAGIC = b"PK\x03\x04"
# NotImplementedError of zipfile is a RuntimeError.
BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, struct.error)
DAMAGED = (*BROKEN_ZIP, EOFError, OSError, ValueError, RuntimeError, OverflowError)

# The options that take an artifact of another kind.
OPTIONS = {
    "FeatureTable[Frequency]": "--table",
    "FeatureData[Sequence]": "--sequences",
    "FeatureData[Taxonomy]": "--taxonomy",
    "Phylogeny": "--tree",
    "DistanceMatrix": "--unifrac-matrix",
    "ImmutableMetadata": "--metadata",
    "SampleData": "--metadata",
}

PROVENANCE = """\
execution:
    uuid: {uuid}
    runtime:
        start: {now}
        end: {now}
        duration: 0 microseconds

action:
    type: import

environment:
    platform: {platform}
    python: {python}
    framework:
        version: {version}
        website: https://github.com/qiime2/qiime2
        citations: []
    plugins: {{}}
    python-packages:
        aam: {version}
"""


def _check_entries(entries: list[zipfile.ZipInfo], path: Path) -> str:
    """Bound the size of the content and return the one folder at the top, named by a UUID."""
    total = sum(entry.file_size for entry in entries)
    largest = max((entry.file_size for entry in entries), default=0)
    allowed = min(MAX_TOTAL, EXEMPT + MAX_RATIO * path.stat().st_size)
    names = [entry.filename for entry in entries]
    roots = sorted({name.split("/")[0] for name in names}) or [""]
    unsafe = [
        entry.filename
        for entry in entries
        if ".." in re.split(r"[/\\]", entry.filename) or stat.S_ISLNK(entry.external_attr >> 16)
    ]
    rules = {
        f"{len(entries)} files in the archive, expected at most {MAX_ENTRIES}": (
            len(entries) > MAX_ENTRIES
        ),
        f"unpacks to {total} bytes, its largest file to {largest}; expected at most {allowed} and "
        f"{MAX_FILE}. Is it damaged? If not, `qiime tools export` it and pass the file inside": (
            largest > MAX_FILE or total > allowed
        ),
        "two files of the archive have the same name": len(set(names)) != len(names),
        f"{len(roots)} folders at the top of the archive ({shown(roots)}), not one{EXCEL}": (
            len(roots) > 1
        ),
        f"top folder {roots[0]!r} of the archive is not a UUID; not a QIIME 2 archive{EXCEL}": (
            not UUID.fullmatch(roots[0])
        ),
        f"{shown(unsafe)} in the archive are links or lead out of its folder, which QIIME 2 never "
        "writes; nothing is read of it, ask where the file comes from": bool(unsafe),
    }
    refuse(path, rules)
    return roots[0]


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> bytes:
    # Other methods unpack a piece of the file at once, however large it becomes.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
        raise InputError(f"{path}: {entry.filename} is encrypted or not deflated")
    # Reading with a size, zipfile unpacks no more than that, whatever the directory says.
    with archive.open(entry) as file:
        content = file.read(entry.file_size)
    if len(content) != entry.file_size:
        raise InputError(f"{path}: {entry.filename} is shorter than the archive says; cut off?")
    return content


def _semantic_type(blob: bytes, root: str, path: Path) -> str:
    """Return the semantic type, without properties, from metadata.yaml: three flat ``key: value``
    lines.
    """
    lines = [line.partition(": ") for line in blob.decode("utf-8").splitlines() if line.strip()]
    fields = {key: value.strip().strip("'\"") for key, _, value in lines}
    if len(lines) != 3 or fields.keys() != {"uuid", "type", "format"} or fields["uuid"] != root:
        raise InputError(
            f"{path}: metadata.yaml holds {str(fields)[:200]}, expected uuid {root}, type and "
            "format"
        )
    return fields["type"].split(" % ")[0]


def read_artifact(path: Path, inside: Mapping[str, str], reason: str = "") -> bytes:
    """Return the content of a file below ``data/`` of a QIIME 2 archive.

    `inside` is the name of that file by semantic type, properties (`` % Properties(...)``) aside,
    for each type that the caller accepts; `reason` says in the message why only these.

    Raises `InputError`: not a QIIME 2 archive, another semantic type, unsafe names, or too large.
    """
    damaged = f"{path}: not a readable QIIME 2 archive"
    with reworded(DAMAGED, damaged, EXCEL), zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        root = _check_entries(entries, path)
        files = {
            entry.filename.removeprefix(f"{root}/"): entry
            for entry in entries
            if not entry.is_dir()
        }
        for name in ("VERSION", "metadata.yaml"):
            if name not in files or files[name].file_size > MAX_METADATA:
                raise InputError(f"{path}: no usable {name} in the archive; not a QIIME 2 archive")
        if not _content(archive, files["VERSION"], path).startswith(b"QIIME 2\n"):
            raise InputError(f"{path}: VERSION does not begin with 'QIIME 2'")
        semantic_type = _semantic_type(_content(archive, files["metadata.yaml"], path), root, path)
        if semantic_type not in inside:
            options = [OPTIONS[start] for start in OPTIONS if semantic_type.startswith(start)]
            hint = f"; pass it to {options[0]}" if options else ""
            # A normalised table is the right kind of input, and of no use; so is an unrooted tree.
            kind = semantic_type.partition("[")[0]
            if reason and any(accepted.startswith(kind) for accepted in inside):
                hint = f"; {reason}"
            raise InputError(f"{path}: holds {semantic_type}, expected {' or '.join(inside)}{hint}")
        wanted = f"data/{inside[semantic_type]}"
        if wanted not in files:
            raise InputError(
                f"{path}: no file {wanted!r} in {semantic_type}, found {shown(sorted(files))}"
            )
        return _content(archive, files[wanted], path)


def write_artifact(path: Path, semantic_type: str, format: str, files: Mapping[str, bytes]) -> None:
    """Write a QIIME 2 archive of version 5 under a fresh UUID, whole or not at all.

    `semantic_type` and `format` are e.g. ``FeatureTable[Frequency]`` and ``BIOMV210DirFmt``;
    `files` holds content by file name below ``data/``.
    """
    root = str(uuid.uuid4())
    version = b"QIIME 2\narchive: 5\nframework: 2024.10.0+aam\n"
    metadata = f"uuid: {root}\ntype: {semantic_type}\nformat: {format}\n".encode()
    provenance = PROVENANCE.format(
        uuid=uuid.uuid4(),
        now=datetime.now(timezone.utc).isoformat(),
        platform=platform.platform(),
        python=platform.python_version(),
        version=aam.__version__,
    )
    content = {
        "VERSION": version,
        "metadata.yaml": metadata,
        **{f"data/{name}": blob for name, blob in files.items()},
        "provenance/VERSION": version,
        "provenance/metadata.yaml": metadata,
        "provenance/citations.bib": b"",
        "provenance/action/action.yaml": provenance.encode(),
    }
    lines = [
        f"{hashlib.md5(blob, usedforsecurity=False).hexdigest()}  {name}\n"
        for name, blob in content.items()
    ]
    content["checksums.md5"] = "".join(lines).encode()
    with (
        atomic_file(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, blob in content.items():
            archive.writestr(f"{root}/{name}", blob)
