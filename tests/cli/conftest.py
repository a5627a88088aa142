"""What several tests of the command line learn from, and what a model predicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def study(simulate_study) -> Path:
    return simulate_study()


@pytest.fixture(scope="session")
def predict_study() -> Callable[..., object]:
    """Applies a model, or several, to the table of a study by `aam predict`; returns the
    predictions of the file.
    """
    from aam.cli import main
    from aam.evaluate.predictions import read_predictions

    def apply(study: Path, output: Path, *models: Path, more: str = "") -> object:
        words = f"predict --table {study}/table.biom --output {output} --threads 1 {more} --model"
        assert main([*words.split(), *map(str, models)]) == 0
        return read_predictions(output)

    return apply


@pytest.fixture(scope="module", autouse=True)
def _quick(quick_baselines: None) -> None:
    """`strong_baselines` brings the strong ones back."""


@pytest.fixture
def strong_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports as users get them."""
    monkeypatch.setattr("aam.predict.baselines.MOST_BASELINE_ROWS", 1_500)
