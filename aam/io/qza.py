"""QIIME 2 archives (.qza): read with bounded sizes, written whole, with the standard zipfile only."""

from __future__ import annotations

import hashlib
import platform
import re
import stat
import struct
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import aam
from aam.errors import InputError, shown
from aam.files.atomic import atomic_file

MAX_FILE = 4 << 30
MAX_TOTAL = 8 << 30
MAX_ENTRIES = 100_000
MAX_METADATA = 1 << 16
# Deflate reaches 1032:1; real tables, trees and sequences stay below 50:1. Small archives are exempt.
MAX_RATIO = 200
EXEMPT = 64 << 20

UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
ZIP_MAGIC = b"PK\x03\x04"
# NotImplementedError of zipfile is a RuntimeError.
DAMAGED = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, RuntimeError, OverflowError
)  # fmt: skip

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


@dataclass(frozen=True)
class Artifact:
    """The content of a QIIME 2 archive: semantic type, directory format, content by name below ``data/``."""

    type: str
    format: str
    data: Mapping[str, bytes]
    path: Path

    def file(self, name: str) -> bytes:
        """Return the content of the file `name`; `InputError` names what there is instead."""
        if name not in self.data:
            names = shown(sorted(self.data)) or "nothing"
            raise InputError(f"{self.path}: no file {name!r} in {self.type}, found {names}")
        return self.data[name]


def _check_name(name: str, where: object) -> None:
    parts = name.removesuffix("/").split("/")
    if name.startswith("/") or "\\" in name or ":" in parts[0] or not {"", ".", ".."}.isdisjoint(parts):
        raise InputError(f"{where}: unsafe file name {name!r} in the archive, expected <uuid>/...")


def _check_entries(entries: list[zipfile.ZipInfo], path: Path) -> str:
    """Bound the size of the content and return the one folder at the top, named by a UUID."""
    total = sum(entry.file_size for entry in entries)
    largest = max((entry.file_size for entry in entries), default=0)
    allowed = min(MAX_TOTAL, EXEMPT + MAX_RATIO * path.stat().st_size)
    if len(entries) > MAX_ENTRIES:
        raise InputError(f"{path}: {len(entries)} files in the archive, expected at most {MAX_ENTRIES}")
    if largest > MAX_FILE or total > allowed:
        raise InputError(
            f"{path}: unpacks to {total} bytes, its largest file to {largest}; expected at most {allowed} "
            f"and {MAX_FILE}. Is it damaged? If not, `qiime tools export` it and pass the file inside"
        )
    names = [entry.filename for entry in entries]
    for name in names:
        _check_name(name, path)
    if len(set(names)) != len(names):
        raise InputError(f"{path}: two files of the archive have the same name")
    roots = sorted({name.split("/")[0] for name in names})
    if len(roots) != 1:
        raise InputError(f"{path}: {len(roots)} folders at the top of the archive ({shown(roots)}), not one")
    if not UUID.fullmatch(roots[0]):
        raise InputError(f"{path}: top folder {roots[0]!r} of the archive is no UUID; not a QIIME 2 archive")
    return roots[0]


def _content(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> bytes:
    # Other methods unpack a piece of the file at once, however large it becomes.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
        raise InputError(f"{path}: {entry.filename} is encrypted or not deflated; QIIME 2 writes neither")
    if stat.S_ISLNK(entry.external_attr >> 16):
        raise InputError(f"{path}: {entry.filename} is a link, expected a file")
    # Reading with a size, zipfile unpacks no more than that, whatever the directory says.
    with archive.open(entry) as file:
        content = file.read(entry.file_size)
    if len(content) != entry.file_size:
        raise InputError(f"{path}: {entry.filename} is shorter than the archive says; is the file cut off?")
    return content


def _parse_metadata(blob: bytes, root: str, path: Path) -> tuple[str, str]:
    """Return semantic type and format from metadata.yaml: three flat ``key: value`` lines."""
    where = f"{path}: metadata.yaml"
    fields: dict[str, str] = {}
    for number, line in enumerate(blob.decode("utf-8").splitlines(), start=1):
        key, separator, value = line.partition(": ")
        if not line.strip():
            continue
        if not separator or key not in ("uuid", "type", "format") or key in fields:
            raise InputError(f"{where}: line {number} is {line!r}, expected uuid, type and format once each")
        quoted = re.fullmatch(r"""(['"])(.*)\1""", value.strip())
        fields[key] = quoted[2] if quoted else value.strip()
    if set(fields) != {"uuid", "type", "format"}:
        raise InputError(f"{where}: holds {shown(fields)}, expected 'uuid', 'type' and 'format'")
    if fields["uuid"] != root:
        raise InputError(f"{where}: uuid is {fields['uuid']!r}, expected the top folder's {root!r}")
    return fields["type"], fields["format"]


def _read(path: Path, expected_types: Iterable[str], reason: str) -> Artifact:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        root = _check_entries(entries, path)
        files = {entry.filename.removeprefix(f"{root}/"): entry for entry in entries if not entry.is_dir()}
        for name in ("VERSION", "metadata.yaml"):
            if name not in files or files[name].file_size > MAX_METADATA:
                raise InputError(f"{path}: no usable {name} in the archive; not a QIIME 2 archive")
        if not _content(archive, files["VERSION"], path).startswith(b"QIIME 2\n"):
            raise InputError(f"{path}: VERSION does not begin with 'QIIME 2'; not a QIIME 2 archive")
        semantic_type, format_ = _parse_metadata(_content(archive, files["metadata.yaml"], path), root, path)
        accepted = list(expected_types)
        if semantic_type.split(" % ")[0] not in accepted:
            because = f"; {reason}" if reason else ""
            raise InputError(f"{path}: holds {semantic_type}, expected {' or '.join(accepted)}{because}")
        inside = {name[5:]: entry for name, entry in files.items() if name.startswith("data/")}
        return Artifact(semantic_type, format_, {n: _content(archive, e, path) for n, e in inside.items()}, path)


def read_artifact(path: Path, expected_types: Iterable[str], reason: str = "") -> Artifact:
    """Read the data of a QIIME 2 archive, provenance left aside.

    `expected_types` are the semantic types that the caller accepts, properties (`` % Properties(...)``)
    aside; `reason` says in the message why only these.

    Raises `InputError`: not a QIIME 2 archive, another semantic type, unsafe names, or too large.
    """
    try:
        return _read(path, expected_types, reason)
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except DAMAGED as error:
        raise InputError(f"{path}: not a readable QIIME 2 archive ({error})") from error


def write_artifact(path: Path, semantic_type: str, format: str, files: Mapping[str, bytes]) -> None:
    """Write a QIIME 2 archive of version 5 under a fresh UUID, whole or not at all.

    `semantic_type` and `format` are e.g. ``FeatureTable[Frequency]`` and ``BIOMV210DirFmt``; `files` holds
    content by file name below ``data/``.
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
    for name in files:
        _check_name(name, path)
    content = {
        "VERSION": version,
        "metadata.yaml": metadata,
        **{f"data/{name}": blob for name, blob in files.items()},
        "provenance/VERSION": version,
        "provenance/metadata.yaml": metadata,
        "provenance/citations.bib": b"",
        "provenance/action/action.yaml": provenance.encode(),
    }
    sums = {name: hashlib.md5(blob, usedforsecurity=False).hexdigest() for name, blob in content.items()}
    content["checksums.md5"] = "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode()
    with atomic_file(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, blob in content.items():
            archive.writestr(f"{root}/{name}", blob)
