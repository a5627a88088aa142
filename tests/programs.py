"""Programs that tests run, small ones of the shell that stand in for those of a machine, and what
programs print.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_program(
    *words: object, status: int | None = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program that must end with a status (None: any), and return what it printed."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done


def with_sources(**variables: str) -> dict[str, str]:
    """Return the environment of a program that imports aam from this repository."""
    path = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **variables}


def write_program(path: Path, text: str) -> Path:
    """Write a program of `text`, lines of the shell unless the first names another, and return its
    path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def absent(text: str, *parts: str) -> list[str]:
    """Return the parts that a text does not contain."""
    return [part for part in parts if part not in text]
