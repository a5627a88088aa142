"""Scaled dot-product attention: the one place where its back end is entered, and the gate that chooses it."""

from __future__ import annotations

import itertools
import logging
import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from aam.errors import Problems
from aam.runtime.device import device_name
from aam.runtime.timing import seconds
from aam.runtime.verdicts import cached_verdict

log = logging.getLogger("aam")

# What each back end gave, by family of calls ("float32, masked"); one that refused says why.
Results = dict[str, dict[str, dict[str, Any]]]

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "mem_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# torch's own choice among them.
SDPA = "sdpa"
# Largest error of what attention gives and, as a share of the largest, of its gradients; ignoring a mask is off by
# more than 1.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
TF32_TOLERANCE = 5e-3
# Positions of the calls that are judged, the last also timed; on a CPU nothing is timed.
LENGTHS = {"cpu": [77], "cuda": [77, 1000], "mps": [77]}
REPEATS = 10
# Error of what is not finite; JSON has no infinity.
NOT_FINITE = 1e30
FORMAT = 1

# The back end of each kind of call, (precision, masked); what is not here is torch's own choice.
_chosen: dict[tuple[torch.dtype, bool], SDPBackend] = {}


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of `query` over `key` and `value`, each ``[batch, heads, length, width]``.

    `mask` is boolean ``[batch, 1, 1, length]``, true where a key may be seen. The back end is entered here, so that
    a call that is recomputed in backward takes the same one.
    """
    backend = _chosen.get((query.dtype, mask is not None))
    if backend is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def masked_softmax(scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
    """Softmax of `scores` over `dim`, zero where the boolean `mask` is false."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=dim)


# --- the gate ------------------------------------------------------------------------------------------------


def family(dtype: torch.dtype, masked: bool) -> str:
    """The name of a kind of call."""
    return f"{str(dtype).removeprefix('torch.')}, {'masked' if masked else 'unmasked'}"


def _inputs(length: int, width: int, masked: bool) -> tuple[list[Tensor], Tensor | None]:
    """Query, key, value and the weights of a loss, float64, and a mask."""
    generator = torch.Generator().manual_seed(length)
    inputs = torch.randn(4, 3, 2, length, width, generator=generator, dtype=torch.float64).unbind(0)
    kept = torch.tensor([length, length // 2 + 1, 5])
    return list(inputs), (torch.arange(length) < kept[:, None])[:, None, None, :] if masked else None


def _by_formula(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1) @ value


def _apart(found: Tensor, exact: Tensor) -> float:
    """The largest difference."""
    error = float((found.double().cpu() - exact).abs().max())
    return error if math.isfinite(error) else NOT_FINITE


def _judged(device: torch.device, dtype: torch.dtype, masked: bool, length: int, width: int) -> dict[str, Any]:
    """Errors of the back end that is chosen now, forward and backward, against the formula in float64."""
    inputs, mask = _inputs(length, width, masked)
    rounded = [each.to(dtype) for each in inputs]
    exact = [each.double().clone().requires_grad_() for each in rounded]
    given = [each.to(device, copy=True).requires_grad_() for each in rounded]
    there = None if mask is None else mask.to(device)
    results = []
    for leaves, function, seen in ((exact, _by_formula, mask), (given, attend, there)):
        query, key, value, weight = leaves
        out = function(query, key, value, seen)
        (out * weight.detach()).sum().backward()
        results.append([out.detach(), *(leaf.grad for leaf in (query, key, value) if leaf.grad is not None)])
    forward, *backward = itertools.starmap(_apart, zip(results[1], results[0], strict=True))
    largest = max(float(each.abs().max()) for each in results[0][1:])

    def step() -> None:
        attend(given[0], given[1], given[2], there).sum().backward()

    timed = device.type != "cpu"
    taken = min(seconds(step, device) for _ in range(REPEATS)) if timed else 0.0
    return {"forward": forward, "backward": max(backward) / max(largest, 1.0), "seconds": taken}


def gate(device: torch.device, dtype: torch.dtype, masked: bool, width: int) -> dict[str, dict[str, Any]]:
    """What each back end gives for one kind of call with heads of `width`: errors, seconds, or why it refuses."""
    key, results = (dtype, masked), {}
    before, threads = _chosen.get(key), torch.get_num_threads()
    # So little work that a second thread, on a busy machine, costs seconds.
    torch.set_num_threads(1)
    try:
        for name in (SDPA, *BACKENDS):
            _chosen.pop(key, None)
            _chosen.update({key: BACKENDS[name]} if name in BACKENDS else {})
            try:
                with warnings.catch_warnings():
                    # torch explains by warnings why a back end does not serve.
                    warnings.simplefilter("ignore")
                    runs = [_judged(device, dtype, masked, length, width) for length in LENGTHS[device.type]]
            except RuntimeError as error:
                results[name] = {"refused": str(error).splitlines()[0]}
                continue
            worst = {kind: max(run[kind] for run in runs) for kind in ("forward", "backward")}
            results[name] = {**worst, "seconds": runs[-1]["seconds"]}
    finally:
        torch.set_num_threads(threads)
        _chosen.pop(key, None)
        _chosen.update({} if before is None else {key: before})
    return results


def _valid(found: Any) -> bool:
    known = isinstance(found, dict) and tuple(found) == (SDPA, *BACKENDS)
    return known and all("refused" in r or {"forward", "backward", "seconds"} <= r.keys() for r in found.values())


def gates(device: torch.device, dtypes: Sequence[torch.dtype], width: int, anew: bool = False) -> Results:
    """The gate of every kind of call; unless `anew`, what this machine found out earlier is taken over."""
    results = {}
    for dtype, masked in itertools.product(dtypes, (True, False)):
        kind, tf32 = family(dtype, masked), torch.backends.cuda.matmul.allow_tf32
        of: dict[str, Any] = {"format": FORMAT, "device": device_name(device), "torch": torch.__version__, "call": kind}
        of |= {"width": width, "tf32": tf32, "lengths": LENGTHS[device.type]}
        of |= {"deterministic": torch.are_deterministic_algorithms_enabled()}
        make = partial(gate, device, dtype, masked, width)
        results[kind] = cached_verdict("attention", of, make, _valid, anew)
    return results


# --- the choice ----------------------------------------------------------------------------------------------


def wrong(kind: str, result: dict[str, Any]) -> bool:
    """Whether a back end serves this kind of call and computes it wrong."""
    dtype = getattr(torch, kind.partition(",")[0])
    tf32 = dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    most = TF32_TOLERANCE if tf32 else TOLERANCE[dtype]
    return "refused" not in result and not max(result["forward"], result["backward"]) <= most


def _right(kind: str, result: dict[str, Any]) -> bool:
    return "refused" not in result and not wrong(kind, result)


def _why_not(result: dict[str, Any]) -> str:
    if "refused" in result:
        return f"does not serve it ({result['refused']})"
    return f"is off by {max(result['forward'], result['backward']):.3g} against float64"


def choose(results: Results, wanted: str, inexact: bool, timed: bool) -> dict[str, str]:
    """The back end of each kind of call; decides from the results of the gates alone.

    ``auto`` takes the fastest that is right or, where nothing was `timed`, torch's own choice if that is right.
    With `inexact`, a back end that is wanted and wrong is taken; one that does not serve a call never is.

    Raises
    ------
    InputError
        What is wanted is wrong or does not serve; names the alternative. Or nothing is right.
    """
    problems, chosen = Problems(), {}
    for kind, found in results.items():
        order = list(BACKENDS) if timed else [SDPA, *BACKENDS]
        right = [name for name in order if name in found and _right(kind, found[name])]
        if not right:
            tried = "; ".join(f"{name} {_why_not(found[name])}" for name in found)
            problems.add(f"attention, {kind}: no back end is right here ({tried}); --device cpu computes elsewhere")
            continue
        best = min(right, key=lambda name: found[name]["seconds"]) if timed else right[0]
        chosen[kind] = best
        if wanted == "auto":
            for name in (each for each in found if wrong(kind, found[each])):
                log.warning("attention, %s: %s %s; %s is taken", kind, name, _why_not(found[name]), best)
        elif _right(kind, found[wanted]):
            chosen[kind] = wanted
        elif not inexact:
            problems.add(
                f"--attn-implementation {wanted}: {kind}: {_why_not(found[wanted])}; take auto (here {best}), or pass "
                "--allow-inexact-attention"
            )
        else:
            chosen[kind] = best if "refused" in found[wanted] else wanted
            log.warning("attention, %s: %s %s; %s is taken", kind, wanted, _why_not(found[wanted]), chosen[kind])
    problems.raise_if_any()
    return chosen


def known(chosen: Any, dtype: torch.dtype) -> bool:
    """Whether this, read from a file, names a back end for each kind of call."""
    kinds = {family(dtype, True), family(dtype, False)}
    return isinstance(chosen, dict) and chosen.keys() == kinds and set(map(str, chosen.values())) <= {SDPA, *BACKENDS}


def use(chosen: dict[str, str]) -> None:
    """Let `attend` take these back ends from now on."""
    _chosen.clear()
    for kind, name in chosen.items():
        dtype, _, masked = kind.partition(", ")
        if name != SDPA:
            _chosen[getattr(torch, dtype), masked == "masked"] = BACKENDS[name]
