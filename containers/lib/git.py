"""The git commit of the sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

from containers.lib.files import ROOT

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
    """Return the commit, with ``+`` when files were changed; ``unknown`` without git."""
    commit, changed = revision(root)
    return commit + ("+" if changed and commit != UNKNOWN else "")
