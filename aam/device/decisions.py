"""What a run computes with, decided once: device, precision and attention back ends, as run.json records it."""

from __future__ import annotations

import logging
from typing import Any

import torch

from aam.device.attention import SDPA, call_kind, is_valid_choice, use_backends
from aam.device.attention_checks import check_backends, choose_backends
from aam.device.device import device_name
from aam.device.options import RuntimeConfig
from aam.device.platform import Facts, platform_of, recorded_platform
from aam.device.precision import resolve_precision, select_precision

log = logging.getLogger("aam")


def _decide_for(facts: Facts, config: RuntimeConfig) -> dict[str, Any]:
    """Return what would be decided on a recorded machine."""
    platform = platform_of(facts)
    dtype = select_precision(config, platform.bf16 and platform.vendor != "Apple")
    kinds = [call_kind(dtype, masked) for masked in (True, False)]
    checks = {kind: facts["gates"][kind] for kind in kinds if kind in facts["gates"]}
    timed = platform.vendor in ("AMD", "NVIDIA")
    backends = choose_backends(checks, config.attn_implementation, config.allow_inexact_attention, timed)
    return {"recorded": platform.name, "attention": backends}


def decide_execution(
    config: RuntimeConfig, device: torch.device, width: int, earlier: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Decide what this process computes with, and let attention with heads of `width` use it from now on.

    Where ``AAM_PLATFORM`` names a recorded machine, what would be decided there is reported and nothing changed here.

    Parameters
    ----------
    config : RuntimeConfig
    device : torch.device
    width : int
        Width of an attention head.
    earlier : dict, optional
        What an earlier call of the same run, or rank 0, decided; taken over where it answers the same question.

    Returns
    -------
    dict
        Plain data for run.json.

    Raises
    ------
    InputError
        ``--attn-implementation`` names a back end that computes wrong or does not serve.
    """
    facts = recorded_platform()
    if facts is not None:
        decision = _decide_for(facts, config)
        text = "recorded: %s would take attention %s; this machine computes with its own"
        log.info(text, decision["recorded"], decision["attention"])
        use_backends({})
        return decision
    dtype = resolve_precision(config, device)
    question = {
        "asked": config.attn_implementation,
        "inexact": config.allow_inexact_attention,
        "on": device_name(device),
        "torch": torch.__version__,
        "precision": str(dtype),
        "width": width,
        "tf32": config.tf32,
    }
    earlier = earlier or {}
    if earlier.get("question") == question and is_valid_choice(earlier.get("attention"), dtype):
        backends = earlier["attention"]
    else:
        checks, timed = check_backends(device, (dtype,), width), device.type == "cuda"
        backends = choose_backends(checks, config.attn_implementation, config.allow_inexact_attention, timed)
    use_backends(backends)
    if set(backends.values()) != {SDPA}:
        log.info("attention: %s", backends)
    return {"question": question, "attention": backends}
