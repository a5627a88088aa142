"""Libraries that only some features need, which are installed as extras."""

from __future__ import annotations

import importlib
from types import ModuleType

from aam.errors import InputError


def import_extra(module: str, extra: str, feature: str) -> ModuleType:
    """Import a library of an extra; `InputError` says in one line what needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise InputError(
            f"{feature} needs {module.split('.')[0]}, which is not installed: "
            f"pip install 'attention-all-microbes[{extra}]'"
        ) from None
