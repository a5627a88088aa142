"""The programs that come with aam and need nothing but Python: job scripts (`aam slurm`) and images (`aam image`)."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from aam.cli.commands import Bundled
from aam.errors import FINISHED


def programs_folder() -> Path:
    """Return the folder that holds containers/ and slurm/: part of an installed package (setup.py), or the checkout."""
    package = Path(__file__).parents[1]
    return package / "bundled" if (package / "bundled").is_dir() else package.parent


def run_bundled(program: Bundled, words: Sequence[str]) -> int:
    """Run a program in this process with a command line, whose first word may name another program.

    It ends with `SystemExit`, which has its exit status.
    """
    path = program.path
    if words and words[0] in program.others:
        path, words = program.others[words[0]], words[1:]
    sys.argv[1:] = words
    runpy.run_path(str(programs_folder() / path), run_name="__main__")
    return FINISHED
