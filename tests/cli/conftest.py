"""What several tests of the command line learn from."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def study(simulate_study) -> Path:
    return simulate_study()
