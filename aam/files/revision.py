"""The commit of the code that runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# setup.py writes it into a wheel.
RECORDED = PACKAGE / "bundled" / "commit"


def code_commit() -> str | None:
    """Return the git commit of the code, with ``+`` where files differ from it; None if nothing
    records it.

    A wheel has it in a file, and an image in the variable AAM_REVISION.
    """
    root = PACKAGE.parent
    if not (root / ".git").exists():
        recorded = RECORDED.read_text(encoding="utf-8").strip() if RECORDED.is_file() else None
        return os.environ.get("AAM_REVISION") or recorded
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+"]
    try:
        output = subprocess.run([*command, "--exclude=*"], capture_output=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return output.decode().strip() or "unknown"
