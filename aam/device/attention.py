"""Scaled dot-product attention: its back ends, how they are judged on this machine, and which one
computes.
"""

from __future__ import annotations

import itertools
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from aam.device.measure import seconds
from aam.device.platform import device_name
from aam.device.precision import resolve_precision
from aam.device.probe import ProbeSpec, verdict
from aam.errors import OUT_OF_MEMORY, Problems
from aam.options import RuntimeConfig

log = logging.getLogger("aam")


# --- the call ----------------------------------------------------------------------------------

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "mem_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
# torch's own choice among them.
SDPA = "sdpa"
KERNELS = (SDPA, *BACKENDS)

# Longest sequences of a CPU for which two products and a softmax are faster, forward and backward,
# than torch's own kernel.
SHORT = {torch.float32: 50, torch.bfloat16: 150}

# The name of the back end of each kind of call on a type of device; for a kind that is absent torch
# chooses. A run on a GPU computes on the CPU too, which lacks the GPU's back ends.
_backends: dict[tuple[str, torch.dtype, bool], str] = {}


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Compute attention of `query` over `key` and `value`, each ``[batch, heads, length, width]``.

    `mask` is boolean ``[batch, 1, 1, length]``, true where a key may be seen. The back end is
    entered here, so that a call that is recomputed in backward takes the same one. Where torch
    chooses, short sequences of a CPU are computed as two products and a softmax.
    """
    name = _backends.get((query.device.type, query.dtype, mask is not None))
    if name is not None:
        with sdpa_kernel(BACKENDS[name]):
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    if query.device.type != "cpu" or key.shape[-2] > SHORT.get(query.dtype, 0):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    return masked_softmax(scores, mask, dim=-1).to(value.dtype) @ value


def masked_softmax(scores: Tensor, mask: Tensor | None, dim: int) -> Tensor:
    """Compute the softmax of `scores` over `dim`, zero where the boolean `mask` is false."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=dim)


def call_kind(dtype: torch.dtype, masked: bool) -> str:
    """Return the name of a kind of call, such as ``float32, masked``."""
    return f"{str(dtype).removeprefix('torch.')}, {'masked' if masked else 'unmasked'}"


def _parsed(kind: str) -> tuple[torch.dtype, bool]:
    """Return the precision of a kind of call, and whether it has a mask."""
    dtype, _, masked = kind.partition(", ")
    return getattr(torch, dtype), masked == "masked"


def use_backends(names: dict[str, str], on: str = "cpu") -> None:
    """Let `scaled_dot_product_attention` use these back ends from now on, one for each kind of call
    `on` a device.
    """
    _backends.clear()
    for kind, name in names.items():
        if name != SDPA:
            _backends[(on, *_parsed(kind))] = name


def backends_in_use() -> dict[str, str]:
    """Return the back ends of `use_backends`, by kind of call; torch chooses for all others."""
    return {call_kind(dtype, masked): name for (_, dtype, masked), name in _backends.items()}


# --- the check ---------------------------------------------------------------------------------


# Of one back end: its error ("forward", "backward") and "seconds", or why torch "refused" it.
Check = dict[str, Any]
# By kind of call ("float32, masked") and back end.
Checks = dict[str, dict[str, Check]]

# Largest error of attention and, as a share of the largest, of its gradients; ignoring a mask is
# off by more than 1.
KERNEL_TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 5e-3,
    torch.bfloat16: 3e-2,
}
# Shape of the calls of a network: batch, heads, length, width of a head.
Shape = tuple[int, int, int, int]
TIMED_REPEATS = 10
# Error of a result that is not finite; JSON has no infinity.
NOT_FINITE = 1e30


def _formula(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1) @ value


def _check_current(device: torch.device, dtype: torch.dtype, masked: bool, shape: Shape) -> Check:
    """Return the errors of the back end in use, forward and backward, against the formula in
    float64.
    """
    batch, _, length, _ = shape
    generator = torch.Generator().manual_seed(length)
    inputs = torch.randn(4, *shape, generator=generator, dtype=torch.float64).to(dtype).unbind()
    # The first sequence is full.
    lengths = length - torch.arange(batch) * 7 % length
    mask = (torch.arange(length) < lengths[:, None])[:, None, None, :] if masked else None
    device_mask = None if mask is None else mask.to(device)

    def results(attend: Any, leaves: Sequence[Tensor], mask: Tensor | None) -> list[Tensor]:
        *read, weight = leaves
        out = attend(*read, mask)
        gradients = torch.autograd.grad((out * weight.detach()).sum(), read)
        return [part.detach().double().cpu() for part in (out, *gradients)]

    exact = results(_formula, [x.double().clone().requires_grad_() for x in inputs], mask)
    leaves = [x.to(device, copy=True).requires_grad_() for x in inputs]
    actual = results(scaled_dot_product_attention, leaves, device_mask)
    errors = [float((a - e).abs().max()) for a, e in zip(actual, exact, strict=True)]
    forward, *backward = (error if math.isfinite(error) else NOT_FINITE for error in errors)
    largest = max(float(gradient.abs().max()) for gradient in exact[1:])

    def step() -> None:
        query, key, value, _ = leaves
        scaled_dot_product_attention(query, key, value, device_mask).sum().backward()

    duration = (
        0.0 if device.type == "cpu" else min(seconds(step, device) for _ in range(TIMED_REPEATS))
    )
    return {"forward": forward, "backward": max(backward) / max(largest, 1.0), "seconds": duration}


def _check_backend(name: str, device: torch.device, kind: str, shapes: Sequence[Shape]) -> Check:
    """Return the largest errors of one back end over all shapes, and the seconds of all, or why it
    refuses.
    """
    use_backends({kind: name}, device.type)
    dtype, masked = _parsed(kind)
    try:
        with warnings.catch_warnings():
            # torch explains by warnings why a back end does not serve a call.
            warnings.simplefilter("ignore")
            runs = [_check_current(device, dtype, masked, shape) for shape in shapes]
    except RuntimeError as error:
        if OUT_OF_MEMORY.search(str(error)):
            # It says nothing of the back end, and the verdict would be remembered.
            raise
        return {"refused": str(error).splitlines()[0]}
    largest = {kind: max(run[kind] for run in runs) for kind in ("forward", "backward")}
    return {**largest, "seconds": sum(run["seconds"] for run in runs)}


def try_backends(
    device: torch.device,
    kind: str,
    shapes: Sequence[Shape],
    names: Sequence[str] = KERNELS,
    deterministic: bool = False,
) -> dict[str, Check]:
    """Check back ends for calls of one kind and of these shapes, as the probe calls it
    (`aam.device.probe`); back ends in use stay as they are.
    """
    if deterministic != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(deterministic)
    backends, threads = dict(_backends), torch.get_num_threads()
    # So little work that a second thread, on a busy machine, costs seconds.
    torch.set_num_threads(1)
    try:
        return {name: _check_backend(name, device, kind, shapes) for name in names}
    finally:
        torch.set_num_threads(threads)
        _backends.clear()
        _backends.update(backends)


def _probed(spec: ProbeSpec) -> dict[str, Check]:
    """Return the checks of back ends for one kind of call; empty if no trial came to its end.

    A back end that ends its process is tried again alone, so that the others have their checks.
    """
    outcome = verdict("attention", spec)
    if outcome.ok:
        return outcome.facts
    checks, ended = dict[str, Check](), 0
    for name in KERNELS:
        alone = replace(spec, options={**spec.options, "names": [name]})
        outcome = verdict(f"attention-{name}", alone)
        checks[name] = outcome.facts[name] if outcome.ok else {"refused": outcome.reason}
        ended += not outcome.ok
    return {} if ended == len(KERNELS) else checks


def check_backends(
    device: torch.device,
    dtypes: Sequence[torch.dtype],
    shapes: Sequence[Shape],
    refresh: bool = False,
) -> Checks:
    """Check every back end for every kind of call, or, unless `refresh`, take what an earlier
    process measured.
    """
    options = {"shapes": [list(shape) for shape in shapes], "names": list(KERNELS)}
    options["deterministic"] = torch.are_deterministic_algorithms_enabled()
    # A CPU computes with torch's own kernels all the time: they need no process.
    isolated, trial = device.type != "cpu", "aam.device.attention:try_backends"
    spec = ProbeSpec(trial, options, device, refresh=refresh, isolated=isolated)
    kinds = (call_kind(*kind) for kind in itertools.product(dtypes, (True, False)))
    return {kind: _probed(replace(spec, options={**options, "kind": kind})) for kind in kinds}


# --- the choice --------------------------------------------------------------------------------


def fault(kind: str, check: Check) -> str:
    """Return why a back end cannot be used for a kind of call; empty where it can."""
    if "refused" in check:
        return f"does not serve it ({check['refused']})"
    error = max(check["forward"], check["backward"])
    is_right = error <= KERNEL_TOLERANCE[_parsed(kind)[0]]
    return "" if is_right else f"is off by {error:.3g} against float64"


def is_wrong(kind: str, check: Check) -> bool:
    """Return whether a back end serves this kind of call and computes it wrong."""
    return "refused" not in check and fault(kind, check) != ""


def best_backend(kind: str, checks: Mapping[str, Check], timed: bool) -> str | None:
    """Return the fastest back end that is right or, where nothing was `timed`, torch's own choice
    if that is right; None if none is, and ``math`` where nothing could be tried.
    """
    order = BACKENDS if timed else KERNELS
    right = [name for name in order if name in checks and not fault(kind, checks[name])]
    if timed:
        right.sort(key=lambda name: checks[name]["seconds"])
    return "math" if not checks else next(iter(right), None)


def choose_backends(checks: Checks, requested: str, timed: bool) -> dict[str, str]:
    """Choose the back end of each kind of call, from the checks alone; ``auto`` takes the best.

    Raises
    ------
    InputError
        The requested back end is wrong or does not serve; names the alternative. Or none is right.
    """
    problems, chosen = Problems(), {}
    for kind, backends in checks.items():
        best = best_backend(kind, backends, timed)
        faults = {name: fault(kind, check) for name, check in backends.items()}
        if best is None:
            reasons = "; ".join(f"{name} {reason}" for name, reason in faults.items())
            no_one = f"attention, {kind}: no back end is correct here ({reasons})"
            problems.add(f"{no_one}; --device cpu computes elsewhere")
            continue
        chosen[kind] = best if requested == "auto" else requested
        if not backends:
            log.warning("attention, %s: nothing could be tried; %s is taken", kind, chosen[kind])
        for name, check in backends.items() if requested == "auto" else ():
            if is_wrong(kind, check):
                text = "attention, %s: %s %s; %s is taken"
                log.warning(text, kind, name, faults[name], best)
        if reason := faults.get(chosen[kind]):
            refused = f"--attn-implementation {requested}: {kind}: {reason}"
            problems.add(f"{refused}; take auto (here {best})")
    problems.raise_if_any()
    return chosen


def decide_execution(
    config: RuntimeConfig,
    device: torch.device,
    shapes: Sequence[Shape],
    earlier: dict[str, Any] | None = None,
    in_bf16: bool = True,
) -> dict[str, Any]:
    """Decide what this process computes with, and let attention use it from now on.

    Parameters
    ----------
    config : RuntimeConfig
    device : torch.device
    shapes : sequence of tuple of int
        Batch, heads, length and width of the calls of the network.
    earlier : dict, optional
        What an earlier call of the same run, or rank 0, decided; taken over where it answers the
        same question.
    in_bf16 : bool
        As for `resolve_precision`; what only predicts is decided too.

    Returns
    -------
    dict
        Plain data for run.json.

    Raises
    ------
    InputError
        ``--attn-implementation`` names a back end that computes wrong or does not serve.
    """
    precisions = (resolve_precision(config, device, wide) for wide in (in_bf16, False))
    dtypes = tuple(dict.fromkeys(precisions))
    question: dict[str, Any] = {"asked": config.attn_implementation}
    question |= {"device": device_name(device), "torch": torch.__version__}
    question["precisions"] = [str(dtype) for dtype in dtypes]
    question["shapes"] = [list(shape) for shape in shapes]
    kinds = {call_kind(*kind) for kind in itertools.product(dtypes, (True, False))}
    earlier = earlier or {}
    backends = earlier.get("attention") if earlier.get("question") == question else {}
    chosen = backends if isinstance(backends, dict) else {}
    if chosen.keys() != kinds or not set(KERNELS).issuperset(map(str, chosen.values())):
        checks, timed = check_backends(device, dtypes, shapes), device.type == "cuda"
        chosen = choose_backends(checks, config.attn_implementation, timed)
    before = backends_in_use()
    use_backends(chosen, device.type)
    if backends_in_use() not in ({}, before):
        log.info("attention: %s", chosen)
    return {"question": question, "attention": chosen}
