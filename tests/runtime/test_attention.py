"""Attention against its formula, masked and not; the gate that judges back ends, and what it decides."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointError, checkpoint

from aam.errors import InputError
from aam.runtime import attention
from aam.runtime.attention import attend, choose, gate, gates, masked_softmax, use, wrong

CPU = torch.device("cpu")
MASKED, UNMASKED = "float32, masked", "float32, unmasked"


@pytest.fixture(autouse=True)
def _own_choice():
    yield
    use({})


def test_attention_is_its_formula():
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 5, 8, generator=generator, dtype=torch.float64)
    scores = query @ key.transpose(-1, -2) / math.sqrt(8)
    torch.testing.assert_close(attend(query, key, value), scores.softmax(-1) @ value)
    keep = torch.tensor([[True, True, False, True, False], [True] * 5])[:, None, None, :]
    expected = scores.masked_fill(~keep, -math.inf).softmax(-1) @ value
    torch.testing.assert_close(attend(query, key, value, keep), expected)
    changed = torch.where(keep.transpose(-1, -2), value, 1e6)
    torch.testing.assert_close(attend(query, key, changed, keep), expected)


def test_masked_softmax():
    scores = torch.tensor([[1.0, 2.0, 3.0], [4.0, 4.0, 900.0]], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    found = masked_softmax(scores, mask, dim=1)
    torch.testing.assert_close(found[0], scores[0].softmax(0))
    torch.testing.assert_close(found[1], torch.tensor([0.5, 0.5, 0.0]))
    torch.testing.assert_close(masked_softmax(scores, None, dim=0), scores.softmax(0))
    found.square().sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[1, 2] == 0
    nothing = masked_softmax(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool), dim=1)
    assert torch.isfinite(nothing).all(), "no NaN where nothing is kept"
    half = masked_softmax(torch.ones(1, 3, dtype=torch.bfloat16), mask[1:], dim=1)
    assert half.tolist() == [[0.5, 0.5, 0.0]]


# --- the gate ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_what_torch_offers_here_is_right(dtype):
    found = gates(CPU, (dtype,), 24, anew=True)
    name = str(dtype).removeprefix("torch.")
    assert list(found) == [f"{name}, masked", f"{name}, unmasked"]
    for kind, results in found.items():
        assert list(results) == ["sdpa", "flash", "mem_efficient", "math"]
        assert not any(wrong(kind, result) for result in results.values())
        assert "refused" in results["mem_efficient"], "a CPU has none"
        served = [results[each] for each in ("sdpa", "flash", "math")]
        assert all(result[way] > 0 for result in served for way in ("forward", "backward"))
        assert choose({kind: results}, "auto", False, False) == {kind: "sdpa"}


def break_flash(monkeypatch) -> None:
    """Plant a flash back end that ignores its mask, as a wrong library would have it."""
    real = F.scaled_dot_product_attention

    def faulty(query, key, value, attn_mask=None):
        return real(query, key, value, attn_mask=None if torch.backends.cuda.flash_sdp_enabled() else attn_mask)

    monkeypatch.setattr(F, "scaled_dot_product_attention", faulty)


def test_a_back_end_that_ignores_the_mask_is_caught_named_and_avoided(monkeypatch, caplog):
    break_flash(monkeypatch)
    found = gates(CPU, (torch.float32,), 24, anew=True)
    assert found[MASKED]["flash"]["forward"] > 1
    assert found[MASKED]["flash"]["forward"] == found[MASKED]["sdpa"]["forward"]
    assert wrong(MASKED, found[MASKED]["flash"])
    assert not wrong(UNMASKED, found[UNMASKED]["flash"])
    with caplog.at_level("WARNING", "aam"):
        chosen = choose(found, "auto", False, False)
    assert chosen == {MASKED: "math", UNMASKED: "sdpa"}
    assert "attention, float32, masked: flash is off by" in caplog.text
    use(chosen)
    query = torch.randn(1, 1, 4, 8)
    keep = torch.tensor([True, True, False, False])[None, None, None]
    torch.testing.assert_close(attend(query, query, query, keep), attend(query, query[:, :, :2], query[:, :, :2]))


def test_the_gate_leaves_the_choice_and_the_random_numbers_as_they_were():
    use({MASKED: "math"})
    before, state = dict(attention._chosen), torch.get_rng_state()
    gate(CPU, torch.float32, True, 16)
    assert attention._chosen == before
    assert torch.equal(torch.get_rng_state(), state)


def test_gates_cost_little_at_the_start_of_a_run():
    gates(CPU, (torch.float32,), 20, anew=True)
    start = time.perf_counter()
    gates(CPU, (torch.float32,), 20, anew=True)
    assert time.perf_counter() - start < 0.5


# --- what is remembered --------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("AAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_verdicts_of_a_machine_are_remembered_and_damaged_ones_made_again(cache, monkeypatch):
    found = gates(CPU, (torch.float32,), 8)
    files = sorted(cache.iterdir())
    assert len(files) == 2
    monkeypatch.setattr(attention, "gate", lambda *_: pytest.fail("judged again"))
    assert gates(CPU, (torch.float32,), 8) == found
    monkeypatch.undo()
    monkeypatch.setenv("AAM_CACHE", str(cache))
    for damage in ("{", "[]", '{"of": 1}', json.dumps({**json.loads(files[0].read_text()), "found": {"flash": 3}})):
        files[0].write_text(damage)
        assert gates(CPU, (torch.float32,), 8).keys() == found.keys()
        assert json.loads(files[0].read_text())["found"].keys() == found[MASKED].keys()
    gates(CPU, (torch.float32,), 12)
    assert len(list(cache.iterdir())) == 4, "heads of another width are judged on their own"


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AAM_CACHE", str(tmp_path / "file" / "cache"))
    with caplog.at_level("INFO", "aam"):
        assert MASKED in gates(CPU, (torch.float32,), 8)
    assert "not kept" in caplog.text


# --- the choice ----------------------------------------------------------------------------------------------


def result(error: float, seconds: float) -> dict[str, float]:
    return {"forward": error, "backward": error / 2, "seconds": seconds}


MEASURED = {
    MASKED: {
        "sdpa": result(1.73, 0.1),
        "flash": {"refused": "no mask"},
        "mem_efficient": result(1.73, 0.1),
        "math": result(1e-6, 1.0),
    },
    UNMASKED: {
        "sdpa": result(1e-6, 0.1),
        "flash": result(1e-6, 0.1),
        "mem_efficient": result(1e-6, 0.3),
        "math": result(1e-6, 1.0),
    },
}


def test_auto_takes_the_fastest_that_is_right():
    assert choose(MEASURED, "auto", False, True) == {MASKED: "math", UNMASKED: "flash"}
    assert choose(MEASURED, "auto", False, False) == {MASKED: "math", UNMASKED: "sdpa"}
    assert choose(MEASURED, "math", False, True) == {MASKED: "math", UNMASKED: "math"}


@pytest.mark.parametrize(
    ("wanted", "said", "taken"),
    [("mem_efficient", "is off by 1.73 against float64", "mem_efficient"), ("flash", "does not serve it", "math")],
)
def test_what_is_wrong_or_does_not_serve_is_refused_unless_inexact_is_allowed(wanted, said, taken, caplog):
    with pytest.raises(InputError, match=said) as caught:
        choose(MEASURED, wanted, False, True)
    assert len(caught.value.problems) == 1
    assert f"--attn-implementation {wanted}: float32, masked" in str(caught.value)
    assert "take auto (here math), or pass --allow-inexact-attention" in str(caught.value)
    with caplog.at_level("WARNING", "aam"):
        assert choose(MEASURED, wanted, True, True) == {MASKED: taken, UNMASKED: wanted}
    assert said in caplog.text


def test_without_anything_right_there_is_no_training():
    bad = {MASKED: {name: result(2.0, 1.0) for name in ("sdpa", "flash", "mem_efficient", "math")}}
    with pytest.raises(InputError, match="no back end is right here"):
        choose(bad, "auto", True, True)


# --- recomputation -------------------------------------------------------------------------------------------


def attended_sum(x: torch.Tensor) -> torch.Tensor:
    return attend(x, x, x).sum()


def test_a_back_end_chosen_inside_is_the_same_when_recomputed():
    x = torch.randn(2, 2, 16, 8, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH):
        outside = checkpoint(attended_sum, x, use_reentrant=False)
    with pytest.raises(
        CheckpointError, match=r"[Rr]ecomputed values.*different metadata|[Dd]ifferent number of tensors"
    ):
        outside.backward()
    use({UNMASKED: "math"})
    checkpoint(attended_sum, x, use_reentrant=False).backward()
    recomputed, x.grad = x.grad, None
    attended_sum(x).backward()
    assert torch.equal(x.grad, recomputed)


@pytest.mark.gpu
def test_gates_on_the_device_at_hand():
    device = torch.device("cuda")
    found = gates(device, (torch.float32, torch.bfloat16), 24, anew=True)
    chosen = choose(found, "auto", False, True)
    assert not any(wrong(kind, found[kind][name]) for kind, name in chosen.items())
    masked = found[MASKED][chosen[MASKED]]
    assert max(masked["forward"], masked["backward"]) < 1e-5
