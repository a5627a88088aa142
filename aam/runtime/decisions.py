"""What a run computes with, decided once: device, precision and attention back ends, as run.json records it."""

from __future__ import annotations

import logging
from typing import Any

import torch

from aam.runtime import attention
from aam.runtime.device import device_name
from aam.runtime.options import RuntimeConfig
from aam.runtime.platform import platform_of, recorded_platform
from aam.runtime.precision import precision, resolve_precision

log = logging.getLogger("aam")


def decide(
    config: RuntimeConfig, device: torch.device, width: int, before: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What is computed with here, as plain data; attention with heads of `width` takes its back ends from now on.

    `before` is what an earlier call of the same run, or rank 0, decided: it is taken over where it answers the same
    question. Where a recorded machine is named, what it would take is said, and this one takes its own.

    Raises
    ------
    InputError
        ``--attn-implementation`` names a back end that computes wrong or does not serve.
    """
    facts, wanted, inexact = recorded_platform(), config.attn_implementation, config.allow_inexact_attention
    if facts is not None:
        there = platform_of(facts)
        dtype = resolve_precision(config, there.bf16 and there.vendor != "Apple")
        kinds = [attention.family(dtype, masked) for masked in (True, False)]
        results = {kind: facts["gates"][kind] for kind in kinds if kind in facts["gates"]}
        chosen = attention.choose(results, wanted, inexact, there.vendor in ("AMD", "NVIDIA"))
        log.info("recorded: %s would take attention %s; this machine computes with its own", there.name, chosen)
        attention.use({})
        return {"recorded": there.name, "attention": chosen}
    dtype = precision(config, device)
    question: dict[str, Any] = {
        "asked": wanted,
        "inexact": inexact,
        "on": device_name(device),
        "torch": torch.__version__,
    }
    question |= {"precision": str(dtype), "width": width, "tf32": config.tf32}
    earlier = before or {}
    if earlier.get("question") == question and attention.known(earlier.get("attention"), dtype):
        chosen = earlier["attention"]
    else:
        results = attention.gates(device, (dtype,), width)
        chosen = attention.choose(results, wanted, inexact, device.type == "cuda")
    attention.use(chosen)
    if set(chosen.values()) != {attention.SDPA}:
        log.info("attention: %s", chosen)
    return {"question": question, "attention": chosen}
