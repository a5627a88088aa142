"""QIIME 2 archives as tests and the tutorial need them."""

from __future__ import annotations

import hashlib
import platform
import uuid
import zipfile
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

import aam
from aam.files.atomic import atomic_file

# YAML, in the form that QIIME 2 parses.
ACTION = """\
execution: {{uuid: {uuid}, runtime: {{start: {now}, end: {now}, duration: 0 microseconds}}}}
action: {{type: import}}
environment:
    platform: {platform}
    python: {python}
    framework: {{version: {version}, website: https://github.com/qiime2/qiime2, citations: []}}
    plugins: {{}}
    python-packages: {{aam: {version}}}
"""


def write_artifact(path: Path, semantic_type: str, format: str, files: Mapping[str, bytes]) -> None:
    """Write a QIIME 2 archive of version 5 under a fresh UUID, whole or not at all.

    `semantic_type` and `format` are e.g. ``FeatureTable[Frequency]`` and ``BIOMV210DirFmt``;
    `files` holds content by file name below ``data/``.
    """
    root, now = str(uuid.uuid4()), datetime.now(timezone.utc).isoformat()
    names = {"platform": platform.platform(), "python": platform.python_version()}
    action = ACTION.format(uuid=uuid.uuid4(), now=now, version=aam.__version__, **names)
    header = {
        "VERSION": b"QIIME 2\narchive: 5\nframework: 2024.10.0\n",
        "metadata.yaml": f"uuid: {root}\ntype: {semantic_type}\nformat: {format}\n".encode(),
    }
    content = header | {f"data/{name}": blob for name, blob in files.items()}
    content |= {f"provenance/{name}": blob for name, blob in header.items()}
    content |= {"provenance/citations.bib": b"", "provenance/action/action.yaml": action.encode()}
    sums = {n: hashlib.md5(b, usedforsecurity=False).hexdigest() for n, b in content.items()}
    content["checksums.md5"] = "".join(f"{md5}  {n}\n" for n, md5 in sums.items()).encode()
    with (
        atomic_file(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, blob in content.items():
            archive.writestr(f"{root}/{name}", blob)
