"""Routing of single operations: those that a device computes wrong run on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aam.device.platform import platform_here, platform_of, recorded_platform
from aam.errors import InputError, shown

# Environment variable that overrides the rules of the platform: fft=cpu,cumsum=device.
ROUTE = "AAM_ROUTE"


class Operation(NamedTuple):
    """The functions of torch that carry out an operation, and a use of it on a matrix, to probe it."""

    functions: tuple[Callable[..., Any], ...]
    probe: Callable[[Tensor], Tensor]


def _pair_sums(x: Tensor) -> Tensor:
    """Return the sums of neighbouring columns, by scatter_add."""
    columns = torch.arange(x.shape[1], device=x.device).expand_as(x) // 2
    return torch.zeros_like(x).scatter_add(1, columns, x)


OPERATIONS = {
    "fft": Operation(
        (torch.fft.fft, torch.fft.ifft, torch.fft.rfft, torch.fft.irfft),
        lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2),
    ),
    "cumsum": Operation((torch.cumsum, Tensor.cumsum), lambda x: x.cumsum(0)),
    "softmax": Operation((torch.softmax, Tensor.softmax, torch.nn.functional.softmax), lambda x: torch.softmax(x, -1)),
    "layer_norm": Operation(
        (torch.nn.functional.layer_norm,), lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:])
    ),
    "gelu": Operation((torch.nn.functional.gelu,), torch.nn.functional.gelu),
    "product": Operation((torch.mm, torch.matmul, Tensor.matmul, torch.nn.functional.linear), lambda x: x @ x.mT),
    "scatter_add": Operation((Tensor.scatter_add_, Tensor.scatter_add, torch.scatter_add), _pair_sums),
}

IN_PLACE = (Tensor.scatter_add_,)

# Largest error of a probe, as a share of its largest value.
PROBE_TOLERANCE = 1e-3


def routed_operations(device: torch.device) -> tuple[str, ...]:
    """Return the names of the operations that run on the CPU.

    These are the ones that the rules of the platform name, changed by ``AAM_ROUTE=fft=cpu,cumsum=device``.

    Raises
    ------
    InputError
        ``AAM_ROUTE`` names an unknown operation or place; lists all that are wrong.
    """
    facts = recorded_platform()
    names = dict.fromkeys((platform_of(facts) if facts else platform_here(device)).cpu_operations)
    problems = []
    for rule in filter(None, os.environ.get(ROUTE, "").split(",")):
        name, _, place = rule.partition("=")
        if name not in OPERATIONS or place not in ("cpu", "device"):
            problems.append(
                f"{ROUTE}: {rule!r} is unknown, expected NAME=cpu or NAME=device of {shown(OPERATIONS, 20)}"
            )
            continue
        names.pop(name, None)
        if place == "cpu":
            names[name] = None
    if problems:
        raise InputError(*problems)
    return tuple(names)


def routed(device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which the routed operations of `device` run on the CPU; it does nothing without any."""
    names = routed_operations(device)
    return RouteToCpu(names) if names else nullcontext()


def _to_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


class RouteToCpu(TorchFunctionMode):
    """Run the operations `names` on the CPU; results and gradients return to the device of the inputs."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.functions = {function for name in names for function in OPERATIONS[name].functions}

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        """Run `function`; torch calls this in place of each of its functions."""
        options = options or {}
        tensors = [value for value in (*arguments, *options.values()) if isinstance(value, Tensor)]
        if function not in self.functions or not tensors:
            return function(*arguments, **options)
        on_cpu = {name: _to_cpu(value) for name, value in options.items()}
        result = function(*map(_to_cpu, arguments), **on_cpu).to(tensors[0].device)
        return tensors[0].copy_(result) if function in IN_PLACE else result


def probe_operation(name: str, device: torch.device) -> dict[str, Any]:
    """Compare an operation on `device`, forward and backward in float32, with float64 on the CPU.

    Returns
    -------
    dict
        ``wrong``, whether it fails or is off by more than `PROBE_TOLERANCE` of the largest value, and a ``message``.
    """
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    results = []
    try:
        for leaf in (x.double().requires_grad_(), x.to(device, copy=True).requires_grad_()):
            result = OPERATIONS[name].probe(leaf)
            (gradient,) = torch.autograd.grad(result.square().sum(), leaf)
            results.append(torch.cat([result.detach().flatten(), gradient.flatten()]).double().cpu())
    except RuntimeError as error:
        return {"wrong": True, "message": str(error).splitlines()[0]}
    difference = float((results[1] - results[0]).abs().max() / results[0].abs().max())
    return {"wrong": not difference < PROBE_TOLERANCE, "message": f"off by {difference:.3g}"}
