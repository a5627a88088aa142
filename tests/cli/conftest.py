"""What several tests of the command line learn from."""

from __future__ import annotations

from pathlib import Path

import pytest

from aam.cli.main import main


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "study"
    assert main(f"simulate --output-dir {folder} --samples 60 --asvs 80 --length 50 --depth 1500".split()) == 0
    return folder
