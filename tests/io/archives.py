"""QIIME 2 archives of one file, for tests of what reads them."""

from __future__ import annotations

from pathlib import Path

from aam.io.packed import write_artifact


def archive(path: Path, semantic_type: str, name: str, content: bytes) -> Path:
    """An archive of a type that holds one file."""
    write_artifact(path, semantic_type, "AnyDirectoryFormat", {name: content})
    return path
