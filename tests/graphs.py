"""A stand-in for the graphs of torch.cuda: records operations on a CPU, and replays them.

As on a GPU, what is recorded reads and writes the same tensors each time, numbers of the host are
part of the graph, and whatever makes the host wait is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aam.device.measure import resident_memory
from benchmarks.step import waits


class Graph:
    """Operations in their order, with the tensors that they read and wrote."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def pool(self) -> tuple[int, int]:
        """Return a name for the memory of the graph."""
        return (0, 1)

    @torch.no_grad()
    def replay(self) -> None:
        """Run the operations anew; their results get into the tensors of the recording."""
        for function, args, kwargs, results in self.operations:
            fresh = _tensors(function(*args, **kwargs))
            for old, new in zip(results, fresh, strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.copy_(new)


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


class Recorder(TorchDispatchMode):
    """Writes what runs into a graph, and puts back what that wrote over.

    A GPU runs nothing while it records.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        # By storage: tensors that the recording made, and those of before with their values.
        self.made: set[int] = set()
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self.random = torch.get_rng_state()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        arguments = func._schema.arguments
        if waits(func._schema.name.split("::")[1], args):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        named = zip(arguments, args, strict=False)
        passed = {item.name: value for item, value in named} | kwargs
        read = {_place(value) for value in _tensors(passed)}
        for item in arguments:
            if item.alias_info is not None and item.alias_info.is_write:
                for value in _tensors(passed.get(item.name)):
                    if _place(value) not in self.made:
                        self.before.setdefault(_place(value), (value, value.clone()))
        results = func(*args, **kwargs)
        self.made |= {_place(value) for value in _tensors(results)} - read
        self.graph.operations.append((func, args, kwargs, _tensors(results)))
        return results

    def put_back(self) -> None:
        """Put back what was there before the recording."""
        with torch.no_grad():
            for value, before in self.before.values():
                value.copy_(before)
        torch.set_rng_state(self.random)


def _place(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()


# The graphs that are being recorded.
capturing: list[Graph] = []


class DeviceState:
    """The current stream and the generator of the device, which is also its state.

    As in torch 2.7, a failed capture leaves both in the capture.
    """

    def __init__(self) -> None:
        self.stream, self.generator_captures = "default", False

    def set_stream(self, stream: str) -> None:
        """Change the current stream."""
        self.stream = stream

    def clone_state(self) -> str:
        """Return a copy of the state, which no capture uses."""
        assert self.stream == "default"
        return "copy"

    def graphsafe_set_state(self, state: str) -> None:
        """Take a state."""
        assert state == "copy"
        self.generator_captures = False


device_state = DeviceState()


@contextlib.contextmanager
def graph(into: Graph, pool: Any = None, capture_error_mode: str = "global") -> Iterator[None]:
    """Record what runs inside."""
    # Another thread asks for events, which ends a process on ROCm 6.3.
    assert capture_error_mode == "thread_local"
    assert not device_state.generator_captures
    capturing.append(into)
    device_state.stream, device_state.generator_captures = "capture", True
    recorder = Recorder(into)
    try:
        with recorder:
            yield
    except RuntimeError as error:
        later = "CUDA error: operation failed due to a previous error during capture"
        raise RuntimeError(later) from error
    finally:
        capturing.pop()
        recorder.put_back()
    device_state.stream, device_state.generator_captures = "default", False


def no_state(*_: Any) -> tuple[list[int], list[Tensor]]:
    """Refuse to read the random state, as torch up to 2.9 does while a graph is recorded."""
    if capturing:
        raise RuntimeError("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture")
    return [], []


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `torch.cuda` make graphs on a CPU until the test ends."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    device_state.__init__()  # type: ignore[misc]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: device_state.stream)
    monkeypatch.setattr(torch.cuda, "set_stream", device_state.set_stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "default_generators", (device_state,))
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *_: resident_memory())
