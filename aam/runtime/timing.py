"""Timers of stages, and the matrix product as a yardstick of speed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

PRODUCT_SIZE = 2048

Shape = Sequence[int]


def synchronize(device: torch.device) -> None:
    """Return when `device` has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Wall time of `work`, the device's part included."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


class Stages:
    """Seconds of each stage of a computation; a stage inside another pauses it, so they add up to the whole.

    Nothing is timed until `around` is entered, and afterwards the functions are what they were.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    def _turn(self) -> None:
        """Give the time since the last turn to the innermost stage."""
        synchronize(self.device)
        now = time.perf_counter()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what runs inside as `name`."""
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    @contextlib.contextmanager
    def around(self, owner: Any, attribute: str, name: str) -> Iterator[None]:
        """Count every call of the function ``owner.attribute`` as `name`, until the context ends."""
        function, own = getattr(owner, attribute), attribute in vars(owner)

        def timed(*arguments: Any, **options: Any) -> Any:
            with self.stage(name):
                return function(*arguments, **options)

        setattr(owner, attribute, timed)
        try:
            yield
        finally:
            if own:
                setattr(owner, attribute, function)
            else:
                delattr(owner, attribute)


def product_rate(device: torch.device, repeats: int = 7) -> float:
    """Operations per second of torch's own product of two float32 matrices of 2,048 rows (median run)."""
    left, right = torch.randn(2, PRODUCT_SIZE, PRODUCT_SIZE, device=device)
    torch.mm(left, right)
    runs = [seconds(lambda: torch.mm(left, right), device) for _ in range(repeats)]
    return 2 * float(PRODUCT_SIZE) ** 3 / median(runs)


def copy_rate(source: torch.device, target: torch.device, repeats: int = 3) -> float:
    """Bytes per second that 64 MiB take from `source` to `target` (median run)."""
    held = torch.ones(1 << 24, device=source)
    return 4 * len(held) / median(seconds(lambda: held.to(target, copy=True), target) for _ in range(repeats))


def _attention(query: Shape, key: Shape, value: Shape, *_: object, **__: object) -> int:
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[2] * (width + value[3])


def _attention_backward(_: Shape, query: Shape, key: Shape, value: Shape, *__: object, **___: object) -> int:
    # Five products where forward has two: the scores are computed anew.
    return _attention(query, key, value) * 5 // 2


def operations(work: Callable[[], object]) -> int:
    """Floating-point operations of the matrix products that `work` carries out, attention included."""
    known = {
        getattr(torch.ops.aten, name): formula
        for name, formula in (
            ("_scaled_dot_product_flash_attention_for_cpu", _attention),
            ("_scaled_dot_product_flash_attention_for_cpu_backward", _attention_backward),
        )
    }
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        work()
    return int(counter.get_total_flops())
