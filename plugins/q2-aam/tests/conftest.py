"""Where the real studies are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bench_data() -> Path:
    """Folder of the real studies, one folder each."""
    named = os.environ.get("AAM_BENCH_DATA")
    if not named:
        pytest.skip("AAM_BENCH_DATA is unset: it names the folder that holds the real studies")
    return Path(named)
