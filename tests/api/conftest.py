"""What the tests of the Python API train."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quick(quick_baselines: None) -> None:
    """Reports of these tests are not about baselines."""
