"""The checks of attention back ends: what is caught, what is kept for later processes, what is chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from aam.device import attention_checks
from aam.device.attention import backends_in_use, scaled_dot_product_attention, use_backends
from aam.device.attention_checks import check_backends, check_call_kind, choose_backends, is_wrong
from aam.errors import InputError

CPU = torch.device("cpu")
MASKED, UNMASKED = "float32, masked", "float32, unmasked"


@pytest.fixture(autouse=True)
def _torch_chooses():
    yield
    use_backends({})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_what_torch_offers_here_is_right(dtype):
    checks = check_backends(CPU, (dtype,), 24, refresh=True)
    name = str(dtype).removeprefix("torch.")
    assert list(checks) == [f"{name}, masked", f"{name}, unmasked"]
    for kind, results in checks.items():
        assert list(results) == ["sdpa", "flash", "mem_efficient", "math"]
        assert not any(is_wrong(kind, result) for result in results.values())
        assert "refused" in results["mem_efficient"], "a CPU has none"
        served = [results[each] for each in ("sdpa", "flash", "math")]
        assert all(result[way] > 0 for result in served for way in ("forward", "backward"))
        assert choose_backends({kind: results}, "auto", False, False) == {kind: "sdpa"}


def break_flash(monkeypatch) -> None:
    """Plant a flash back end that ignores its mask, as a wrong library would have it."""
    real = F.scaled_dot_product_attention

    def faulty(query, key, value, attn_mask=None):
        return real(query, key, value, attn_mask=None if torch.backends.cuda.flash_sdp_enabled() else attn_mask)

    monkeypatch.setattr(F, "scaled_dot_product_attention", faulty)


def test_a_back_end_that_ignores_the_mask_is_caught_named_and_avoided(monkeypatch, caplog):
    break_flash(monkeypatch)
    checks = check_backends(CPU, (torch.float32,), 24, refresh=True)
    assert checks[MASKED]["flash"]["forward"] > 1
    assert checks[MASKED]["flash"]["forward"] == checks[MASKED]["sdpa"]["forward"]
    assert is_wrong(MASKED, checks[MASKED]["flash"])
    assert not is_wrong(UNMASKED, checks[UNMASKED]["flash"])
    with caplog.at_level("WARNING", "aam"):
        chosen = choose_backends(checks, "auto", False, False)
    assert chosen == {MASKED: "math", UNMASKED: "sdpa"}
    assert "attention, float32, masked: flash is off by" in caplog.text
    use_backends(chosen)
    query = torch.randn(1, 1, 4, 8)
    keep = torch.tensor([True, True, False, False])[None, None, None]
    torch.testing.assert_close(
        scaled_dot_product_attention(query, query, query, keep),
        scaled_dot_product_attention(query, query[:, :, :2], query[:, :, :2]),
    )


def test_a_check_leaves_the_choice_and_the_random_numbers_as_they_were():
    use_backends({MASKED: "math"})
    before, state = dict(backends_in_use()), torch.get_rng_state()
    check_call_kind(CPU, torch.float32, True, 16)
    assert backends_in_use() == before
    assert torch.equal(torch.get_rng_state(), state)


# --- the cache -----------------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("AAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_verdicts_of_a_machine_are_remembered_and_damaged_ones_made_again(cache, monkeypatch):
    checks = check_backends(CPU, (torch.float32,), 8)
    files = sorted(cache.iterdir())
    assert len(files) == 2
    monkeypatch.setattr(attention_checks, "check_call_kind", lambda *_: pytest.fail("measured again"))
    assert check_backends(CPU, (torch.float32,), 8) == checks
    monkeypatch.undo()
    monkeypatch.setenv("AAM_CACHE", str(cache))
    for damage in (
        "{",
        "[]",
        '{"question": 1}',
        json.dumps({**json.loads(files[0].read_text()), "verdict": {"flash": 3}}),
    ):
        files[0].write_text(damage)
        assert check_backends(CPU, (torch.float32,), 8).keys() == checks.keys()
        assert json.loads(files[0].read_text())["verdict"].keys() == checks[MASKED].keys()
    check_backends(CPU, (torch.float32,), 12)
    assert len(list(cache.iterdir())) == 4, "heads of another width are checked on their own"


# --- the choice ----------------------------------------------------------------------------------------------


def check(error: float, seconds: float) -> dict[str, float]:
    return {"forward": error, "backward": error / 2, "seconds": seconds}


MEASURED = {
    MASKED: {
        "sdpa": check(1.73, 0.1),
        "flash": {"refused": "no mask"},
        "mem_efficient": check(1.73, 0.1),
        "math": check(1e-6, 1.0),
    },
    UNMASKED: {
        "sdpa": check(1e-6, 0.1),
        "flash": check(1e-6, 0.1),
        "mem_efficient": check(1e-6, 0.3),
        "math": check(1e-6, 1.0),
    },
}


def test_auto_takes_the_fastest_that_is_right():
    assert choose_backends(MEASURED, "auto", False, True) == {MASKED: "math", UNMASKED: "flash"}
    assert choose_backends(MEASURED, "auto", False, False) == {MASKED: "math", UNMASKED: "sdpa"}
    assert choose_backends(MEASURED, "math", False, True) == {MASKED: "math", UNMASKED: "math"}


@pytest.mark.parametrize(
    ("requested", "message", "backend"),
    [("mem_efficient", "is off by 1.73 against float64", "mem_efficient"), ("flash", "does not serve it", "math")],
)
def test_what_is_wrong_or_does_not_serve_is_refused_unless_inexact_is_allowed(requested, message, backend, caplog):
    with pytest.raises(InputError, match=message) as caught:
        choose_backends(MEASURED, requested, False, True)
    assert len(caught.value.problems) == 1
    assert f"--attn-implementation {requested}: float32, masked" in str(caught.value)
    assert "take auto (here math), or pass --allow-inexact-attention" in str(caught.value)
    with caplog.at_level("WARNING", "aam"):
        assert choose_backends(MEASURED, requested, True, True) == {MASKED: backend, UNMASKED: requested}
    assert message in caplog.text


def test_without_anything_right_there_is_no_training():
    bad = {MASKED: {name: check(2.0, 1.0) for name in ("sdpa", "flash", "mem_efficient", "math")}}
    with pytest.raises(InputError, match="no back end is right here"):
        choose_backends(bad, "auto", True, True)


@pytest.mark.gpu
def test_checks_on_the_device_at_hand():
    device = torch.device("cuda")
    checks = check_backends(device, (torch.float32, torch.bfloat16), 24, refresh=True)
    chosen = choose_backends(checks, "auto", False, True)
    assert not any(is_wrong(kind, checks[kind][name]) for kind, name in chosen.items())
    masked = checks[MASKED][chosen[MASKED]]
    assert max(masked["forward"], masked["backward"]) < 1e-5
