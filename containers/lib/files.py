"""Files: where the repository is, the digest of a folder, and text that is written only where it
differs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from aam.files.atomic import atomic_file, file_digest

# The repository, or aam/bundled of an installed aam (setup.py).
ROOT = Path(__file__).resolve().parents[2]
CONTAINERS = ROOT / "containers"
IS_INSTALLED = not (ROOT / "aam").is_dir()
PACKAGE = ROOT.parent if IS_INSTALLED else ROOT / "aam"
# Images and wheels lie below the repository; where aam is installed, below the current folder.
OUTPUT = Path.cwd() if IS_INSTALLED else ROOT


def folder_digest(folder: Path) -> str:
    """Return ``sha256:`` and a digest of the names, modes, links and contents of everything in a
    folder.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        content = ""
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = file_digest(path)
        digest.update(
            f"{path.relative_to(folder)}\0{mode:o}\0{content}\n".encode("utf-8", "surrogateescape")
        )
    return f"sha256:{digest.hexdigest()}"


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically; a file that holds this text already is not touched."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
