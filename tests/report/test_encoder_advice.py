"""The sentence on an encoder's agreement with UniFrac: what a low Mantel correlation means, and what helps."""

from __future__ import annotations

import pytest

from aam.report.encoder_advice import mantel_advice

MODEL_FREE = {"presence of 8-mers, Jaccard": 0.95, "ASVs, Jaccard": 0.6}


@pytest.mark.parametrize(
    ("model", "expected"),
    [(0.59, "less well than presence of 8-mers, Jaccard"), (0.94, "as well as"), (0.99, "better than")],
)
def test_the_encoder_is_compared_with_the_best_distance_without_a_model(model, expected):
    text = mantel_advice("unifrac", model, MODEL_FREE, 300)
    assert expected in text
    assert f"Mantel {model:.2f} against 0.95" in text
    assert ("more samples of the same region" in text) == (model < 0.9)
    assert ("it learned from 300" in text) == (model < 0.9)
