"""Attention against its formula; what its checks catch and keep; what is chosen, and taken over."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointError, checkpoint

from aam.device import attention
from aam.device.attention import (
    SHORT,
    backends_in_use,
    check_backends,
    choose_backends,
    decide_execution,
    is_wrong,
    masked_softmax,
    scaled_dot_product_attention,
    use_backends,
)
from aam.device.probe import ProbeSpec
from aam.errors import InputError
from aam.options import RuntimeConfig


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Iterator[Path]:
    """A cache of its own, and the choice of torch afterwards."""
    monkeypatch.setenv("AAM_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    use_backends({})


def test_attention_is_its_formula():
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 5, 8, generator=generator, dtype=torch.float64)
    scores = query @ key.transpose(-1, -2) / math.sqrt(8)
    torch.testing.assert_close(
        scaled_dot_product_attention(query, key, value), scores.softmax(-1) @ value
    )
    keep = torch.tensor([[True, True, False, True, False], [True] * 5])[:, None, None, :]
    expected = scores.masked_fill(~keep, -math.inf).softmax(-1) @ value
    torch.testing.assert_close(scaled_dot_product_attention(query, key, value, keep), expected)
    changed = torch.where(keep.transpose(-1, -2), value, 1e6)
    torch.testing.assert_close(scaled_dot_product_attention(query, key, changed, keep), expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("masked", [False, True])
def test_short_and_long_sequences_of_a_cpu_are_the_same_attention(dtype, tolerance, masked):
    """The last position attends alike whether the sequence is short or is filled up with positions
    not seen.
    """
    generator = torch.Generator().manual_seed(0)
    length, longer = 12, SHORT[dtype] + 1
    inputs = torch.randn(3, 2, 4, longer, 8, generator=generator).to(dtype).requires_grad_()
    query, key, value = inputs.unbind(0)
    seen = torch.arange(longer) < torch.tensor([length, 5 if masked else length])[:, None]
    keep = seen[:, None, None, :]
    long = scaled_dot_product_attention(query, key, value, keep)[:, :, :length]
    cut = [x[:, :, :length] for x in (query, key, value)]
    short = scaled_dot_product_attention(*cut, keep[..., :length] if masked else None)
    assert short.dtype == dtype
    torch.testing.assert_close(short, long, rtol=tolerance, atol=tolerance)
    weight = torch.randn(short.shape, generator=generator).to(dtype)
    of_short, of_long = (
        torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True)[0]
        for out in (short, long)
    )
    torch.testing.assert_close(of_short, of_long, rtol=tolerance, atol=tolerance)


def test_masked_softmax():
    scores = torch.tensor([[1.0, 2.0, 3.0], [4.0, 4.0, 900.0]], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    weights = masked_softmax(scores, mask, dim=1)
    torch.testing.assert_close(weights[0], scores[0].softmax(0))
    torch.testing.assert_close(weights[1], torch.tensor([0.5, 0.5, 0.0]))
    torch.testing.assert_close(masked_softmax(scores, None, dim=0), scores.softmax(0))
    weights.square().sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[1, 2] == 0
    nothing = masked_softmax(torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.bool), dim=1)
    assert torch.isfinite(nothing).all(), "no NaN where nothing is kept"
    half = masked_softmax(torch.ones(1, 3, dtype=torch.bfloat16), mask[1:], dim=1)
    assert half.tolist() == [[0.5, 0.5, 0.0]]


def attended_sum(x: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(x, x, x).sum()


def test_a_back_end_chosen_inside_is_the_same_when_recomputed():
    x = torch.randn(2, 2, 16, 8, dtype=torch.float64, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH):
        outside = checkpoint(attended_sum, x, use_reentrant=False)
    different = r"[Rr]ecomputed values.*different metadata|[Dd]ifferent number of tensors"
    with pytest.raises(CheckpointError, match=different):
        outside.backward()
    use_backends({"float32, unmasked": "math"})
    checkpoint(attended_sum, x, use_reentrant=False).backward()
    recomputed, x.grad = x.grad, None
    attended_sum(x).backward()
    assert torch.equal(x.grad, recomputed)


# --- the check ---------------------------------------------------------------------------------

CPU = torch.device("cpu")
# Of an ASV encoder and of a sample encoder, with fewer sequences.
SHAPES = ((6, 2, 20, 8), (3, 2, 139, 8))
MASKED, UNMASKED = "float32, masked", "float32, unmasked"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_what_torch_offers_here_is_right(dtype):
    checks = check_backends(CPU, (dtype,), SHAPES, refresh=True)
    name = str(dtype).removeprefix("torch.")
    assert list(checks) == [f"{name}, masked", f"{name}, unmasked"]
    for kind, results in checks.items():
        assert list(results) == ["sdpa", "flash", "mem_efficient", "math"]
        assert not any(is_wrong(kind, result) for result in results.values())
        assert "refused" in results["mem_efficient"], "a CPU has none"
        served = [results[each] for each in ("sdpa", "flash", "math")]
        assert all(result[way] > 0 for result in served for way in ("forward", "backward"))
        assert choose_backends({kind: results}, "auto", False) == {kind: "sdpa"}


def break_flash(monkeypatch) -> None:
    """Plant a flash back end that ignores its mask, as a wrong library would have it."""
    real = F.scaled_dot_product_attention

    def faulty(query, key, value, attn_mask=None):
        mask = None if torch.backends.cuda.flash_sdp_enabled() else attn_mask
        return real(query, key, value, attn_mask=mask)

    monkeypatch.setattr(F, "scaled_dot_product_attention", faulty)


def test_a_back_end_that_ignores_the_mask_is_caught_named_and_avoided(monkeypatch, caplog):
    break_flash(monkeypatch)
    checks = check_backends(CPU, (torch.float32,), SHAPES, refresh=True)
    assert checks[MASKED]["flash"]["forward"] > 1
    assert checks[MASKED]["sdpa"]["forward"] > 0.1
    assert is_wrong(MASKED, checks[MASKED]["flash"])
    assert not is_wrong(UNMASKED, checks[UNMASKED]["flash"])
    with caplog.at_level("WARNING", "aam"):
        chosen = choose_backends(checks, "auto", False)
    assert chosen == {MASKED: "math", UNMASKED: "sdpa"}
    assert "attention, float32, masked: flash is off by" in caplog.text
    use_backends(chosen)
    query = torch.randn(1, 1, 4, 8)
    keep = torch.tensor([True, True, False, False])[None, None, None]
    seen = query[:, :, :2]
    expected = scaled_dot_product_attention(query, seen, seen)
    actual = scaled_dot_product_attention(query, query, query, keep)
    torch.testing.assert_close(actual, expected)


# --- the cache ---------------------------------------------------------------------------------


def test_verdicts_of_a_machine_are_remembered_and_damaged_ones_made_again(cache, monkeypatch):
    checks = check_backends(CPU, (torch.float32,), SHAPES)
    files = sorted(cache.iterdir())
    assert len(files) == 2
    monkeypatch.setattr(attention, "_check_backend", lambda *_: pytest.fail("measured again"))
    assert check_backends(CPU, (torch.float32,), SHAPES) == checks
    monkeypatch.undo()
    monkeypatch.setenv("AAM_CACHE", str(cache))
    content = json.loads(files[0].read_text())
    other = json.dumps({**content, "verdict": {"flash": 3}})
    for damage in ("{", "[]", '{"question": 1}', other):
        files[0].write_text(damage)
        assert check_backends(CPU, (torch.float32,), SHAPES).keys() == checks.keys()
        verdict = json.loads(files[0].read_text())["verdict"]
        assert verdict["facts"].keys() == checks[MASKED].keys()
    check_backends(CPU, (torch.float32,), SHAPES[:1])
    assert len(list(cache.iterdir())) == 4, "other shapes are checked on their own"


# --- back ends that end their process ------------------------------------------------------------


@pytest.fixture
def ended(monkeypatch) -> set[str]:
    """Back ends that end the process in which they are tried, here without a process."""
    names, check = set[str](), attention._check_backend

    def broken(name, *call):
        if name in names:
            raise RuntimeError("its process ended with SIGSEGV")
        return check(name, *call)

    monkeypatch.setattr(attention, "_check_backend", broken)
    return names


def test_a_back_end_that_crashes_is_left_out_alone(ended):
    ended |= {"flash", "sdpa"}
    checks = attention._probed(masked_spec())
    assert checks["flash"] == checks["sdpa"] == {"refused": "its process ended with SIGSEGV"}
    assert choose_backends({MASKED: checks}, "auto", False) == {MASKED: "math"}
    with pytest.raises(InputError, match=r"flash: .* SIGSEGV\); take auto \(here math\)"):
        choose_backends({MASKED: checks}, "flash", False)


def test_a_probe_that_never_ends_well_ends_no_run(ended, caplog):
    ended |= {"sdpa", "flash", "mem_efficient", "math"}
    assert attention._probed(masked_spec()) == {}
    assert choose_backends({MASKED: {}}, "auto", True) == {MASKED: "math"}
    assert choose_backends({MASKED: {}}, "flash", True) == {MASKED: "flash"}
    assert "attention, float32, masked: nothing could be tried; math is taken" in caplog.text


def masked_spec() -> ProbeSpec:
    options = {"kind": MASKED, "shapes": [[3, 2, 5, 8]], "deterministic": False}
    options["names"] = ["sdpa", "flash", "mem_efficient", "math"]
    return ProbeSpec("aam.device.attention:try_backends", options, CPU, isolated=False)


@pytest.mark.slow
def test_a_child_process_checks_as_this_one_does():
    spec = masked_spec()
    alone, here = attention._probed(replace(spec, isolated=True)), attention._probed(spec)
    assert alone.keys() == here.keys()
    assert alone["sdpa"]["forward"] == here["sdpa"]["forward"]


# --- the choice --------------------------------------------------------------------------------


def check(error: float, seconds: float) -> dict[str, float]:
    return {"forward": error, "backward": error / 2, "seconds": seconds}


WRONG, FAST, SLOW = check(1.73, 0.1), check(1e-6, 0.1), check(1e-6, 1.0)
MEASURED = {
    MASKED: {"sdpa": WRONG, "flash": {"refused": "no mask"}, "mem_efficient": WRONG, "math": SLOW},
    UNMASKED: {"sdpa": FAST, "flash": FAST, "mem_efficient": check(1e-6, 0.3), "math": SLOW},
}


def test_auto_takes_the_fastest_that_is_right():
    assert choose_backends(MEASURED, "auto", True) == {MASKED: "math", UNMASKED: "flash"}
    assert choose_backends(MEASURED, "auto", False) == {MASKED: "math", UNMASKED: "sdpa"}
    assert choose_backends(MEASURED, "math", True) == {MASKED: "math", UNMASKED: "math"}


@pytest.mark.parametrize(
    ("requested", "message"),
    [("mem_efficient", "is off by 1.73 against float64"), ("flash", "does not serve it")],
)
def test_what_is_wrong_or_does_not_serve_is_refused(requested, message):
    with pytest.raises(InputError, match=message) as caught:
        choose_backends(MEASURED, requested, True)
    assert len(caught.value.problems) == 1
    assert f"--attn-implementation {requested}: float32, masked" in str(caught.value)
    assert "take auto (here math)" in str(caught.value)


def test_without_anything_right_there_is_no_training():
    bad = {MASKED: {name: check(2.0, 1.0) for name in ("sdpa", "flash", "mem_efficient", "math")}}
    with pytest.raises(InputError, match="no back end is correct here"):
        choose_backends(bad, "auto", True)


@pytest.mark.gpu
def test_checks_on_the_device_at_hand():
    device = torch.device("cuda")
    checks = check_backends(device, (torch.float32, torch.bfloat16), SHAPES, refresh=True)
    chosen = choose_backends(checks, "auto", True)
    assert not any(is_wrong(kind, checks[kind][name]) for kind, name in chosen.items())
    masked = checks[MASKED][chosen[MASKED]]
    assert max(masked["forward"], masked["backward"]) < 1e-5


# --- what a run computes with ------------------------------------------------------------------

PLATFORMS = Path(__file__).parents[1] / "golden" / "platforms"


def test_a_decision_is_used_from_then_on():
    decision = decide_execution(RuntimeConfig(attn_implementation="math"), CPU, SHAPES)
    assert decision["attention"] == {MASKED: "math", UNMASKED: "math"}
    assert backends_in_use() == {MASKED: "math", UNMASKED: "math"}
    usual = {MASKED: "sdpa", UNMASKED: "sdpa"}
    assert decide_execution(RuntimeConfig(), CPU, SHAPES)["attention"] == usual
    assert backends_in_use() == {}


@pytest.mark.filterwarnings("ignore")
def test_a_run_on_a_gpu_leaves_the_cpu_its_own():
    """Where the GPU's back ends have no CPU version, its runs still compute their first batch
    there.
    """
    query = torch.randn(1, 1, 60, 8)
    expected = scaled_dot_product_attention(query, query, query)
    use_backends({UNMASKED: "mem_efficient"}, "cuda")
    assert torch.equal(scaled_dot_product_attention(query, query, query), expected)
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION), pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(query, query, query)


def test_a_run_that_trains_in_bf16_has_back_ends_for_predictions_in_float32(monkeypatch):
    facts = json.loads((PLATFORMS / "sm_90-torch2.11-cuda13.0.json").read_text())
    half = ["bfloat16, masked", "bfloat16, unmasked"]
    kinds = {torch.float32: [MASKED, UNMASKED], torch.bfloat16: half}
    precisions = {True: torch.bfloat16, False: torch.float32}
    monkeypatch.setattr(attention, "device_name", lambda device: facts["device"]["name"])
    monkeypatch.setattr(attention, "resolve_precision", lambda c, d, in_bf16: precisions[in_bf16])

    def recorded(device, dtypes, shapes):
        return {kind: facts["gates"][kind] for dtype in dtypes for kind in kinds[dtype]}

    monkeypatch.setattr(attention, "check_backends", recorded)
    config, device = RuntimeConfig(), torch.device("cuda")
    first = decide_execution(config, device, SHAPES)
    assert first["attention"].keys() == {*half, MASKED, UNMASKED}
    assert decide_execution(config, device, SHAPES, first) == first
    predicting = decide_execution(config, device, SHAPES, in_bf16=False)
    assert predicting["attention"].keys() == {MASKED, UNMASKED}


def test_an_earlier_decision_is_taken_over_where_the_question_is_the_same():
    first = decide_execution(RuntimeConfig(), CPU, SHAPES)
    earlier = {**first, "attention": {MASKED: "math", UNMASKED: "sdpa"}}
    assert decide_execution(RuntimeConfig(), CPU, SHAPES, earlier) == earlier
    assert backends_in_use() == {MASKED: "math"}
    other = decide_execution(RuntimeConfig(), CPU, SHAPES[:1], earlier)
    assert other["attention"] == first["attention"]
