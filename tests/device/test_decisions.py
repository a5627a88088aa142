"""What a run computes with: measured here, taken over from an earlier call, or shown for a recorded machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend

from aam.device.attention import backends_in_use, use_backends
from aam.device.decisions import decide_execution
from aam.device.options import RuntimeConfig
from aam.errors import InputError

CPU = torch.device("cpu")
PLATFORMS = Path(__file__).parents[1] / "golden" / "platforms"
MASKED, UNMASKED = "float32, masked", "float32, unmasked"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("AAM_PLATFORM", raising=False)
    yield
    use_backends({})


def test_a_decision_is_used_from_then_on():
    decision = decide_execution(RuntimeConfig(attn_implementation="math"), CPU, 8)
    assert decision["attention"] == {MASKED: "math", UNMASKED: "math"}
    assert backends_in_use() == {(torch.float32, masked): SDPBackend.MATH for masked in (True, False)}
    assert decide_execution(RuntimeConfig(), CPU, 8)["attention"] == {MASKED: "sdpa", UNMASKED: "sdpa"}
    assert backends_in_use() == {}


def test_an_earlier_decision_is_taken_over_where_the_question_is_the_same():
    first = decide_execution(RuntimeConfig(), CPU, 8)
    earlier = {**first, "attention": {MASKED: "math", UNMASKED: "sdpa"}}
    assert decide_execution(RuntimeConfig(), CPU, 8, earlier) == earlier
    assert backends_in_use() == {(torch.float32, True): SDPBackend.MATH}
    assert decide_execution(RuntimeConfig(), CPU, 16, earlier)["attention"] == first["attention"]
    damaged = {**first, "attention": {MASKED: "best"}}
    assert decide_execution(RuntimeConfig(), CPU, 8, damaged) == first


def test_a_recorded_machine_is_shown_and_changes_nothing_here(monkeypatch, caplog):
    monkeypatch.setenv("AAM_PLATFORM", str(PLATFORMS / "gfx942-torch2.7-rocm6.3.json"))
    use_backends({MASKED: "math"})
    with caplog.at_level("INFO", "aam"):
        decision = decide_execution(RuntimeConfig(), CPU, 8)
    assert decision["attention"] == {"bfloat16, masked": "mem_efficient", "bfloat16, unmasked": "flash"}
    assert f"{decision['recorded']} would take attention" in caplog.text
    assert backends_in_use() == {}


def test_a_back_end_that_does_not_serve_is_refused():
    with pytest.raises(InputError, match="--attn-implementation mem_efficient: float32, masked: does not serve it"):
        decide_execution(RuntimeConfig(attn_implementation="mem_efficient"), CPU, 8)
