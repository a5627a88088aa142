"""The modules of slurm/generate, which lie beside it and not in a package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def parts() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of slurm/ or containers/ by name."""
    places = [str(ROOT / "slurm"), str(ROOT / "containers")]
    sys.path[:0] = places
    yield importlib.import_module
    for place in places:
        sys.path.remove(place)
