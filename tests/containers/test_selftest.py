"""The self-test of an image: attention is judged by the gate of aam."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from aam.device import attention

SELFTEST = runpy.run_path(str(Path(__file__).parents[2] / "containers" / "inside" / "selftest.py"))
CPU = torch.device("cpu")


def test_attention_on_the_cpu_passes_the_gate():
    errors = SELFTEST["attention_errors"](CPU)
    assert set(errors) == {
        f"{dtype}, {mask}" for dtype in ("float32", "bfloat16") for mask in ("masked", "unmasked")
    }
    assert all(results[attention.SDPA]["forward"] >= 0 for results in errors.values())


@pytest.mark.parametrize(
    "result", [{"forward": 1.73, "backward": 0.0, "seconds": 0.0}, {"refused": "no kernel"}]
)
def test_attention_that_is_wrong_or_missing_fails(monkeypatch, result):
    monkeypatch.setattr(attention, "check_call_kind", lambda *words: {attention.SDPA: result})
    with pytest.raises(AssertionError, match="attention on cpu, float32, unmasked"):
        SELFTEST["attention_errors"](CPU)
