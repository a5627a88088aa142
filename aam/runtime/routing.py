"""Operations that are wrong on this device run on the CPU and bring their results back."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aam.errors import InputError, shown
from aam.runtime.device import platform_here
from aam.runtime.platform import platform_of, recorded_platform

# By name: the functions that are routed, and a use of them that is judged, from a matrix.
OPERATIONS: dict[str, tuple[tuple[Callable[..., Any], ...], Callable[[Tensor], Tensor]]] = {
    "fft": (
        (torch.fft.fft, torch.fft.ifft, torch.fft.rfft, torch.fft.irfft),
        lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2),
    ),
    "cumsum": ((torch.cumsum, Tensor.cumsum), lambda x: x.cumsum(0)),
    "softmax": ((torch.softmax, Tensor.softmax, torch.nn.functional.softmax), lambda x: torch.softmax(x, -1)),
    "layer_norm": ((torch.nn.functional.layer_norm,), lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:])),
    "gelu": ((torch.nn.functional.gelu,), torch.nn.functional.gelu),
    "product": ((torch.mm, torch.matmul, Tensor.matmul, torch.nn.functional.linear), lambda x: x @ x.mT),
    "scatter_add": (
        (Tensor.scatter_add_, Tensor.scatter_add),
        lambda x: torch.zeros_like(x).scatter_add(1, torch.arange(x.shape[1], device=x.device).expand_as(x) // 2, x),
    ),
}

OPERATION_TOLERANCE = 1e-3


def cpu_operations(device: torch.device) -> tuple[str, ...]:
    """Operations that run on the CPU: by the platform's rules, changed by ``AAM_OPERATIONS=fft=cpu,cumsum=device``."""
    facts = recorded_platform()
    names: dict[str, None] = dict.fromkeys((platform_of(facts) if facts else platform_here(device)).elsewhere)
    for word in filter(None, os.environ.get("AAM_OPERATIONS", "").split(",")):
        name, _, place = word.partition("=")
        if name not in OPERATIONS or place not in ("cpu", "device"):
            expected = f"NAME=cpu or NAME=device of {shown(OPERATIONS, 20)}"
            raise InputError(f"AAM_OPERATIONS: {word!r} is unknown, expected {expected}")
        names.pop(name, None)
        names |= {name: None} if place == "cpu" else {}
    return tuple(names)


class RouteToCpu(TorchFunctionMode):
    """Runs the operations `names` on the CPU and brings their results back to where the tensors came from."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.functions = {function for name in names for function in OPERATIONS[name][0]}

    def __torch_function__(self, function: Any, types: Any, given: Any = (), options: Any = None) -> Any:
        """Called by torch in place of each of its functions."""
        options = options or {}
        place = next((each.device for each in (*given, *options.values()) if isinstance(each, Tensor)), None)
        if function not in self.functions or place is None:
            return function(*given, **options)
        there = {name: each.cpu() if isinstance(each, Tensor) else each for name, each in options.items()}
        return function(*(each.cpu() if isinstance(each, Tensor) else each for each in given), **there).to(place)


def judge_operation(name: str, device: torch.device) -> dict[str, Any]:
    """How far an operation, forward and backward in float32, is from float64 on the CPU."""
    use = OPERATIONS[name][1]
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    found = []
    try:
        for leaf in (x.double().requires_grad_(), x.to(device, copy=True).requires_grad_()):
            result = use(leaf)
            (gradient,) = torch.autograd.grad(result.square().sum(), leaf)
            found.append(torch.cat([result.detach().flatten(), gradient.flatten()]).double().cpu())
    except RuntimeError as error:
        return {"wrong": True, "said": str(error).splitlines()[0]}
    apart = float((found[1] - found[0]).abs().max() / found[0].abs().max())
    return {"wrong": not apart < OPERATION_TOLERANCE, "said": f"off by {apart:.3g}"}
