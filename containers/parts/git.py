"""Which commit the sources are, and whether they were changed since."""

from __future__ import annotations

import subprocess

from parts.whole import ROOT

EPOCH = 315532800  # 1980, the oldest time that a zip file holds


def git(*arguments: str) -> str | None:
    """What git prints, or none where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit_time() -> int:
    """Seconds since 1970 of the commit."""
    found = git("log", "-1", "--format=%ct")
    return int(found) if found else EPOCH


def revision() -> tuple[str, bool]:
    """The commit, and whether any file differs from it or is not in it; a tree without git counts as changed."""
    commit = git("rev-parse", "HEAD")
    if commit is None:
        return "unknown", True
    return commit, bool(git("status", "--porcelain"))
