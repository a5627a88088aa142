"""Encoders that plugins provide: their names, and the folders of their models.

A plugin registers each encoder in the entry point group ``aam.encoders``. The entry point names an
object with two attributes: ``folder``, the path of a saved model, and ``read_reference``, a
function that rebuilds the `aam.data.study.Reference` of a saved model from its arrays.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from aam.errors import InputError, shown
from aam.files.atomic import MANIFEST

ENTRY_POINTS = "aam.encoders"

# How to install the encoder 16s-v4.
INSTALL = "pip install aam-16s (in a clone of aam: pip install --no-deps ./plugins/aam-16s)"


def installed() -> dict[str, EntryPoint]:
    """The installed encoders by name, sorted."""
    return {entry.name: entry for entry in sorted(entry_points(group=ENTRY_POINTS))}


def why_no_encoder(name: str) -> str:
    """Explain why `name`, which is no file, names no installed encoder; '' if it does."""
    if name in installed():
        return ""
    names = shown(installed()) or f"none; 16s-v4 is part of aam-16s: {INSTALL}"
    return f"no such file or folder, and no installed encoder (installed: {names})"


def find_encoder(name: str) -> Any:
    """Load the object that a plugin registered as `name`.

    Raises
    ------
    InputError
        No installed package provides the encoder, or its package cannot be imported.
    """
    entry = installed().get(name)
    if entry is None:
        raise InputError(f"{name}: {why_no_encoder(name)}")
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        package = entry.dist.name if entry.dist is not None else entry.value
        raise InputError(f"{name}: {package} cannot be imported with this aam: {error}") from error


def model_folder(path: Path) -> Path:
    """Folder of the installed encoder that `path` names; `path` itself if it holds a model."""
    # A folder with this name that holds no model is the output of a run, perhaps of this one.
    if str(path) not in installed() or any(path.glob(f"**/{MANIFEST}")):
        return path
    folder: Path = find_encoder(str(path)).folder
    return folder
