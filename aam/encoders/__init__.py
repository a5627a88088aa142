"""Encoders that come with the package: their names and folders."""

from __future__ import annotations

from pathlib import Path

from aam.files.atomic import MANIFEST

ENCODERS = Path(__file__).parent

CARD, REFERENCE, TAXONOMY = "card.md", "reference.safetensors", "taxonomy.safetensors"


def shipped_encoders() -> dict[str, Path]:
    """Return the folder of each encoder that comes with the package, by name, sorted."""
    return {
        manifest.parent.name: manifest.parent for manifest in sorted(ENCODERS.glob(f"*/{MANIFEST}"))
    }


def model_folder(path: Path) -> Path:
    """Return the folder of the shipped encoder that `path` names; `path` itself where it exists or
    names none.
    """
    named = shipped_encoders().get(str(path))
    # A folder of the name that holds no model is the output of a run, perhaps of this one.
    return path if named is None or any(path.glob(f"**/{MANIFEST}")) else named
