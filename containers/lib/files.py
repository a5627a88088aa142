"""Files: where the repository is, its commit, the digest of a folder, and text that is written only
where it differs.
"""

from __future__ import annotations

import hashlib
import subprocess
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


# 1980, the earliest time that a zip file can hold.
EARLIEST = 315532800
UNKNOWN = "unknown"


def git(*arguments: str, root: Path = ROOT) -> str | None:
    """Return the output of git, or None where there is no git or `root` is not the folder of a
    repository.
    """
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit_time() -> int:
    """Return the time of the commit in seconds since 1970."""
    seconds = git("log", "-1", "--format=%ct")
    return int(seconds) if seconds else EARLIEST


def changed_files(root: Path = ROOT) -> list[str]:
    """Return the files that differ from the commit or are new."""
    lines = (git("status", "--porcelain", root=root) or "").splitlines()
    return [line[2:].strip() for line in lines]


def revision(root: Path = ROOT) -> tuple[str, bool]:
    """Return the commit and whether a file differs from it or is new; sources without git count as
    changed.
    """
    commit = git("rev-parse", "HEAD", root=root)
    if commit is None:
        return UNKNOWN, True
    return commit, bool(changed_files(root))


def commit_label(root: Path = ROOT) -> str:
    """Return the commit, with ``+`` when files were changed; of an installed aam the one of its
    wheel; else ``unknown``.
    """
    recorded = root / "commit"
    if IS_INSTALLED and recorded.is_file():
        return recorded.read_text(encoding="utf-8").strip()
    commit, changed = revision(root)
    return commit + ("+" if changed and commit != UNKNOWN else "")
