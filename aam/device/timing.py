"""Timing: named stages of a computation, seconds of a call, and the rates that a device reaches."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

# Rows of the matrices whose product is timed: a GPU is not busy with fewer.
PRODUCT_SIZE = {"cpu": 2048, "cuda": 8192, "mps": 2048}

Shape = Sequence[int]


def synchronize(device: torch.device) -> None:
    """Wait until `device` has done all work that was queued on it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the wall time of `work` in seconds, the device's part included."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


# --- stages ------------------------------------------------------------------------------------


class StageRecorder:
    """Base of what measures stages: follows which of the stages `names` is the innermost open one.

    A stage inside another pauses it, so measurements of different stages do not overlap. Stages of
    other names are ignored: what runs in them belongs to the stage around them. A context manager
    that gives what is measured of the stages that this thread enters inside, by name.
    """

    def __init__(self, device: torch.device, names: Collection[str]) -> None:
        self.device = device
        self.names = names
        self.measured: dict[str, Any] = {}
        self._open: list[str] = []

    def __enter__(self) -> dict[str, Any]:
        self._token = _recorders.set((*_recorders.get(), self))
        return self.measured

    def __exit__(self, *_: object) -> None:
        self.measure(None)
        _recorders.reset(self._token)

    def open(self, name: str) -> None:
        """Begin a stage."""
        if name in self.names:
            self.measure(self._open[-1] if self._open else None)
            self._open.append(name)

    def close(self, name: str) -> None:
        """End a stage."""
        if name in self.names:
            self.measure(self._open.pop())

    def measure(self, name: str | None) -> None:
        """Attribute what happened since the last call to the stage `name`, or to none."""
        raise NotImplementedError


# The recorders of this thread; none while nothing is measured.
_recorders: ContextVar[tuple[StageRecorder, ...]] = ContextVar("recorders", default=())


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Mark what runs inside as the stage `name`, for recorders and for torch's profiler, if one is
    active.

    Also a decorator. Other threads and processes are not recorded.
    """
    recorders = _recorders.get()
    profiling = torch.autograd.profiler._is_profiler_enabled
    with torch.profiler.record_function(name) if profiling else contextlib.nullcontext():
        for recorder in recorders:
            recorder.open(name)
        try:
            yield
        finally:
            for recorder in recorders:
                recorder.close(name)


class StageTimer(StageRecorder):
    """Exclusive seconds of each stage; each stage ends when the device has done its work."""

    def __init__(self, device: torch.device, names: Collection[str]) -> None:
        super().__init__(device, names)
        self._since = 0.0

    def measure(self, name: str | None) -> None:
        """Add the time since the last call to the stage `name`."""
        synchronize(self.device)
        now = time.perf_counter()
        if name is not None:
            self.measured[name] = self.measured.get(name, 0.0) + now - self._since
        self._since = now


# --- rates -------------------------------------------------------------------------------------


def product_rate(
    device: torch.device, repeats: int = 7, dtype: torch.dtype = torch.float32
) -> float:
    """Return operations per second of torch's product of two square matrices in `dtype` (median of
    `repeats`).
    """
    size = PRODUCT_SIZE[device.type]
    left, right = torch.randn(2, size, size, device=device, dtype=dtype)
    torch.mm(left, right)
    runs = [seconds(lambda: torch.mm(left, right), device) for _ in range(repeats)]
    return 2 * float(size) ** 3 / median(runs)


def _attention_operations(query: Shape, key: Shape, value: Shape, *_: object, **__: object) -> int:
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[2] * (width + value[3])


def _attention_backward_operations(
    _: Shape, query: Shape, key: Shape, value: Shape, *__: object, **___: object
) -> int:
    # Five products where forward has two: the scores are computed again.
    return _attention_operations(query, key, value) * 5 // 2


def count_flops(work: Callable[[], object]) -> int:
    """Return the floating-point operations of the matrix products that `work` carries out,
    attention included.
    """
    # torch's own counter lacks the CPU kernels.
    formulas = {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_operations,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_operations,  # noqa: E501
    }
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        work()
    return int(counter.get_total_flops())
