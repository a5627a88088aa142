"""The folder that a command writes into."""

from __future__ import annotations

import shutil
from pathlib import Path

from aam.errors import InputError


def open_output(folder: Path, overwrite: bool) -> None:
    """Make the run directory, refusing one that holds something unless `overwrite`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not overwrite:
            raise InputError(
                f"--output-dir: {folder} holds files already; choose another folder or pass --overwrite"
            )
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output-dir: {folder} cannot be made ({error.strerror})") from None
