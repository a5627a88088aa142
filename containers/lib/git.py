"""The git commit of the sources, with and without git."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from containers.lib.files import ROOT

# 1980, the earliest time that a zip file can hold.
EARLIEST = 315532800
UNKNOWN = "unknown"


def git(*arguments: str, root: Path = ROOT) -> str | None:
    """Return what git prints, or None where there is no git or `root` is not the folder of a
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
    return [
        line[2:].strip() for line in (git("status", "--porcelain", root=root) or "").splitlines()
    ]


def revision(root: Path = ROOT) -> tuple[str, bool]:
    """Return the commit and whether a file differs from it or is new; sources without git count as
    changed.
    """
    commit = git("rev-parse", "HEAD", root=root)
    if commit is None:
        return UNKNOWN, True
    return commit, bool(git("status", "--porcelain", root=root))


def commit_label(root: Path = ROOT) -> str:
    """Return the commit, with ``+`` when files were changed; read from the files of .git where git
    is missing.
    """
    commit, changed = revision(root)
    if commit == UNKNOWN:
        return commit_from_files(root)
    return commit + ("+" if changed else "")


def commit_from_files(root: Path) -> str:
    """Return the commit that the files in .git name: for a node that has no git."""
    with contextlib.suppress(OSError):
        folder = root / ".git"
        if folder.is_file():
            folder = root / folder.read_text().removeprefix("gitdir:").strip()
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        branch = head.removeprefix("ref: ")
        common = folder
        if (folder / "commondir").exists():
            common = folder / (folder / "commondir").read_text().strip()
        if (common / branch).exists():
            return (common / branch).read_text().strip()
        packed = (common / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {branch}")), UNKNOWN)
    return UNKNOWN
