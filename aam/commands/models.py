"""`aam models`: the encoders that come with the package, and their model cards."""

from __future__ import annotations

from typing import Any

from aam.config_commands import ModelsConfig
from aam.encoders import CARD, shipped_encoders
from aam.errors import InputError, shown
from aam.files.atomic import read_json, verify_manifest


def list_models(config: ModelsConfig) -> None:
    """Print the name, size and first line of each encoder, or the whole card of the one that is
    named.

    Raises
    ------
    InputError
        No encoder has this name, or its files are damaged.
    """
    encoders = shipped_encoders()
    if config.model is not None and config.model not in encoders:
        raise InputError(
            f"{config.model}: no encoder that comes with aam, expected one of {shown(encoders)}"
        )
    for name, folder in encoders.items():
        card = (folder / CARD).read_text(encoding="utf-8")
        if config.model == name:
            verify_manifest(folder)
            print(card.rstrip())
        elif config.model is None:
            size = sum(path.stat().st_size for path in folder.iterdir())
            description: Any = read_json(folder / "model.json")
            gives = (
                "distances"
                if description["heads"] is None
                else f"vectors of {description['model']['embedding_dim']}"
            )
            print(f"{name}  {size / 1e6:.1f} MB, {gives}: {card.splitlines()[0].lstrip('# ')}")
