"""Operations that run on the CPU: which, that they do, and that results and gradients return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aam.device.options import RuntimeConfig
from aam.device.platform import OPERATIONS, ROUTE, probe_operation, routed, routed_operations
from aam.device.precision import autocast
from aam.errors import InputError

CPU = torch.device("cpu")
GFX1010 = Path(__file__).parents[1] / "golden" / "platforms" / "gfx1010-torch2.7-rocm6.3.json"


class Calls(TorchFunctionMode):
    """Notes the functions of torch that are called, in order, and the devices of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []
        self.devices: dict[Any, str] = {}

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        self.functions.append(function)
        result = function(*arguments, **(options or {}))
        if isinstance(result, Tensor):
            self.devices[function] = result.device.type
        return result


@pytest.fixture(autouse=True)
def _no_rules(monkeypatch):
    monkeypatch.delenv(ROUTE, raising=False)
    monkeypatch.delenv("AAM_PLATFORM", raising=False)


def test_rules_of_the_platform_are_overridden_by_the_environment(monkeypatch):
    assert routed_operations(CPU) == ()
    monkeypatch.setenv(ROUTE, "cumsum=cpu,fft=cpu")
    assert routed_operations(CPU) == ("cumsum", "fft")
    monkeypatch.setenv("AAM_PLATFORM", str(GFX1010))
    monkeypatch.setenv(ROUTE, "")
    assert routed_operations(CPU) == ("fft",)
    monkeypatch.setenv(ROUTE, "cumsum=cpu,fft=device")
    assert routed_operations(CPU) == ("cumsum",)


def test_rules_that_are_unknown_are_named_together(monkeypatch):
    monkeypatch.setenv(ROUTE, "fft=cpu,fftt=cpu,gelu=gpu")
    with pytest.raises(
        InputError, match="'fftt=cpu' is unknown, expected NAME=cpu or NAME=device of 'fft'"
    ) as caught:
        routed_operations(CPU)
    assert len(caught.value.problems) == 2


def test_nothing_is_routed_without_a_rule():
    with Calls() as calls, routed(CPU):
        torch.fft.rfft(torch.ones(4))
    assert Tensor.cpu not in calls.functions


def test_autocast_routes_nothing(monkeypatch):
    monkeypatch.setenv(ROUTE, "gelu=cpu")
    with Calls() as calls, autocast(RuntimeConfig(mixed_precision="bf16"), CPU):
        torch.nn.functional.gelu(torch.ones(4))
    assert Tensor.cpu not in calls.functions


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_probe_of_a_routed_operation_runs_on_the_cpu(name, monkeypatch):
    monkeypatch.setenv(ROUTE, f"{name}=cpu")
    x = torch.randn(6, 8, requires_grad=True)
    expected = OPERATIONS[name].probe(x)
    (gradient,) = torch.autograd.grad(expected.square().sum(), x)
    with Calls() as calls, routed(CPU):
        result = OPERATIONS[name].probe(x)
    assert Tensor.cpu in calls.functions
    assert calls.functions.index(Tensor.cpu) < calls.functions.index(Tensor.to)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(result.square().sum(), x)[0], gradient, rtol=0, atol=0
    )
    assert not probe_operation(name, CPU)["wrong"]


def test_a_probe_that_fails_or_is_off_is_wrong(monkeypatch):
    def fail(x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            raise RuntimeError("no kernel\nat line 7")
        return x

    monkeypatch.setitem(OPERATIONS, "gelu", OPERATIONS["gelu"]._replace(probe=fail))
    assert probe_operation("gelu", CPU) == {"wrong": True, "message": "no kernel"}
    monkeypatch.setitem(
        OPERATIONS, "gelu", OPERATIONS["gelu"]._replace(probe=lambda x: x * x.element_size())
    )
    assert probe_operation("gelu", CPU) == {"wrong": True, "message": "off by 0.75"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPERATIONS)
def test_results_and_gradients_return_to_the_device(name, monkeypatch):
    monkeypatch.setenv(ROUTE, f"{name}=cpu")
    device = torch.device("cuda")
    x = torch.randn(6, 8)
    leaf, on_device = x.clone().requires_grad_(), x.to(device).requires_grad_()
    expected = OPERATIONS[name].probe(leaf)
    with Calls() as calls, routed(device):
        result = OPERATIONS[name].probe(on_device)
    assert result.device.type == "cuda"
    torch.testing.assert_close(result.cpu(), expected)
    result.square().sum().backward()
    expected.square().sum().backward()
    assert on_device.grad.device.type == "cuda"
    torch.testing.assert_close(on_device.grad.cpu(), leaf.grad)
    assert {
        calls.devices[function]
        for function in OPERATIONS[name].functions
        if function in calls.devices
    } == {"cpu"}


@pytest.mark.gpu
def test_an_operation_in_place_changes_the_tensor_on_the_device(monkeypatch):
    monkeypatch.setenv(ROUTE, "scatter_add=cpu")
    device = torch.device("cuda")
    sums, columns = torch.zeros(1, 3, device=device), torch.tensor([[0, 2, 2]], device=device)
    with routed(device):
        returned = sums.scatter_add_(1, columns, torch.ones(1, 3, device=device))
    assert returned is sums
    assert sums.tolist() == [[1.0, 0.0, 2.0]]
