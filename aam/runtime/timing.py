"""Stage timers that are put around functions from outside, the product as a yardstick, and peak memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

PRODUCT_SIZE = 2048
# Of the memory there is, that a run may fill unless told otherwise.
SHARE = 0.8
Shape = Sequence[int]


def wait(device: torch.device) -> None:
    """Return when `device` has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Wall time of `work`, the device's part included."""
    wait(device)
    start = time.perf_counter()
    work()
    wait(device)
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
        wait(self.device)
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


class MemoryStages(Stages):
    """Most memory of each stage: bytes at its peak and reserved by torch (both of the device), and resident."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.most: dict[str, dict[str, int]] = {}
        forget_peak(device)

    def _turn(self) -> None:
        name = self._open[-1] if self._open else "between"
        super()._turn()
        reserved = torch.cuda.max_memory_reserved(self.device) if self.device.type == "cuda" else 0
        now = {"peak_bytes": peak_memory(self.device), "reserved_bytes": reserved, "resident_bytes": resident_memory()}
        before = self.most.get(name, now)
        self.most[name] = {kind: max(value, before[kind]) for kind, value in now.items()}
        forget_peak(self.device)


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


def peak_memory(device: torch.device) -> int:
    """Most bytes that this process held: of the device where it has memory of its own, else resident."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    status = Path("/proc/self/status")
    if status.exists():
        # The kernel hands ru_maxrss on from whoever started the process; VmHWM begins anew with it.
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)
        if found:
            return 1024 * int(found[1])
    return _most_resident(resource.RUSAGE_SELF)


def _most_resident(who: int) -> int:
    peak = resource.getrusage(who).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def largest_child() -> int:
    """Most bytes that one of the processes which this one started, and which have ended, held."""
    return _most_resident(resource.RUSAGE_CHILDREN)


def forget_peak(device: torch.device) -> None:
    """Let `peak_memory` begin anew; where the system does not allow that, it goes on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        # What was freed would be counted until glibc hands it back; other systems have no such call.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")


def memory_limit(device: torch.device, share: float | None) -> int:
    """`share` of the bytes that this process could hold: of the device's, else of what is free or already its own."""
    share = SHARE if share is None else share
    if device.type == "cuda":
        return int(share * torch.cuda.get_device_properties(device).total_memory)
    listed = Path("/proc/meminfo")
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", listed.read_text(), re.MULTILINE) if listed.exists() else None
    free = 1024 * int(found[1]) if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(share * (free + resident_memory()))


def device_name(device: torch.device) -> str:
    """What computes, for people and for file names: the GPU's name, or processor and threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    processor = platform.processor() or platform.machine()
    listed = Path("/proc/cpuinfo")
    if listed.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", listed.read_text(), re.MULTILINE)
        processor = found[1] if found else processor
    kind = "CPU" if device.type == "cpu" else device.type.upper()
    return f"{kind} {processor}, {torch.get_num_threads()} threads"


def slug(name: str) -> str:
    """`name` in lower case, letters and digits joined by hyphens."""
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))


def resident_memory() -> int:
    """Bytes of memory that this process holds now; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


class Watch:
    """Tells a person when a loop stands still, when a step took far longer than others, and when memory grows.

    The loop calls `beat` with what it does next; a thread says so through `say` when that takes over
    `PATIENCE` seconds, and again each time that it has taken twice as long.
    """

    PATIENCE = 60.0
    # A step this much longer than the median of its epoch, and than this many seconds, is said.
    SLOW, SECONDS = 20, 10.0
    # Growth since the first epoch that is said: as a factor, and in bytes.
    GROWTH, BYTES = 1.5, 1 << 29

    def __init__(self, say: Callable[..., object]) -> None:
        self.say = say
        self.doing, self.since, self.said = "start", time.monotonic(), 1.0
        self.taken: dict[str, list[float]] = {}
        self.memory = 0
        self._ended = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def beat(self, doing: str) -> None:
        """What went before is done, and `doing` begins."""
        now = time.monotonic()
        self.taken.setdefault(self.doing, []).append(now - self.since)
        self.doing, self.since, self.said = doing, now, 1.0

    def rest(self, name: str) -> None:
        """Say what was unusual since the last rest, here called `name`."""
        for kind, taken in self.taken.items():
            if len(taken) > 2 and max(taken) > max(self.SLOW * median(taken), self.SECONDS):
                usual = f"{median(taken):.3g} s is usual"
                self.say("%s: %s took %.0f s once, %s", name, kind, max(taken), usual)
        self.taken.clear()
        held = resident_memory()
        if self.memory and held > max(self.GROWTH * self.memory, self.memory + self.BYTES):
            self.say("%s: memory has grown from %.1f to %.1f GiB", name, self.memory / 2**30, held / 2**30)
            self.memory = held
        self.memory = self.memory or held
        self.beat("between epochs")

    def _look(self) -> None:
        while not self._ended.wait(self.PATIENCE / 20):
            waited = time.monotonic() - self.since
            if waited > self.PATIENCE * self.said:
                self.said *= 2
                self.say("%s takes %.0f s so far; is the file system slow, or a process stuck?", self.doing, waited)
