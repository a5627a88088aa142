"""A training step on a GPU: eager, padded, captured, compiled. Parts of five minutes each.

``python -m benchmarks.gpu_step PART --table T.biom --tree T.nwk`` prints a table and adds PART
(``default``, ``wide`` or ``widest``) to docs/benchmarks/DEVICE.json after each case. Each case runs
in a child process, so that one that fails or hangs costs no other its numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from aam.config import DataConfig, ModelConfig, PretrainConfig, TrainConfig
from aam.data.batch import PaddedBatch
from aam.device.measure import synchronize
from aam.device.platform import Facts, choose_device, device_name
from aam.device.probe import ProbeSpec, Verdict, try_now
from aam.engine.capture import CapturedSteps
from aam.engine.step import Snapshot, TakeStep
from aam.options import RunConfig
from aam.training.decisions import PretrainingSteps, make_steps

NETWORKS = {
    "default": ModelConfig(),
    "wide": ModelConfig(embedding_dim=768, attention_layers=8, attention_heads=12),
    "widest": ModelConfig(embedding_dim=1536, attention_layers=8, attention_heads=24),
}


class Case(NamedTuple):
    """A way of taking steps, and the number of workers of the loader.

    A compiled step has the largest bucket of ASVs only, since each bucket takes a minute to
    compile.
    """

    name: str
    constant: bool
    captured: bool
    compiled: bool
    workers: int


# What matters most comes first.
CASES = (
    Case("captured", True, True, False, 4),
    Case("eager", False, False, False, 4),
    Case("captured", True, True, False, 2),
    Case("captured, compiled", True, True, True, 4),
    Case("bins", True, False, False, 4),
)
COMPILER = "inductor"
# Seconds of a part and of a case, and the least that a case is started with.
PART_SECONDS, CASE_SECONDS, LEAST_SECONDS = 300.0, 120.0, 20.0


class Sizes(NamedTuple):
    """Steps before the measurement and in it, its most seconds, and steps that are compared."""

    warm_up: int = 40
    steps: int = 400
    seconds: float = 12.0
    compared: int = 30


FULL = Sizes()


@dataclass
class Way:
    """A way of taking steps, and the batches that it is given."""

    steps: PretrainingSteps
    take: TakeStep

    def batches(self) -> Iterator[PaddedBatch]:
        """Yield batches, epoch after epoch."""
        epochs = (self.steps.task.batches(epoch, 0) for epoch in itertools.count(1))
        return itertools.chain.from_iterable(epochs)

    def step(self, batch: PaddedBatch, number: int) -> None:
        """Take one step."""
        steps = self.steps
        window = [steps.task.prepare(batch, number)]
        self.take(window)


def measured(way: Way, sizes: Sizes) -> dict[str, float]:
    """Return samples per second, milliseconds of a step, and of them those that wait for a
    batch.
    """
    device, batches, samples = way.steps.device, way.batches(), 0
    taken, waited = list[float](), list[float]()
    for number in range(sizes.warm_up):
        way.step(next(batches), number)
    synchronize(device)
    start = time.perf_counter()
    while len(taken) < sizes.steps and time.perf_counter() - start < sizes.seconds:
        begun = time.perf_counter()
        batch = next(batches)
        waited.append(time.perf_counter() - begun)
        way.step(batch, len(taken))
        samples += len(batch.sample_ids)
        taken.append(time.perf_counter() - begun)
    synchronize(device)
    seconds = time.perf_counter() - start
    step, wait = (1e3 * statistics.median(times) for times in (taken, waited))
    return {
        "samples_per_s": samples / seconds,
        "wall_ms": 1e3 * seconds / len(taken),
        "host_ms": step,
        "wait_ms": wait,
    }


def replay_ms(steps: CapturedSteps) -> float:
    """Return the milliseconds of the slowest captured step where nothing waits for the host."""
    slowest, device = 0.0, steps.task.device
    for captured in steps.graphs.values():
        synchronize(device)
        start = time.perf_counter()
        for _ in range(20):
            captured.replay()
        synchronize(device)
        slowest = max(slowest, (time.perf_counter() - start) / 20)
    return 1e3 * slowest


def difference_after(way: Way, number: int) -> float:
    """Return how far apart captured and eager weights are after steps on the same batches."""
    steps = way.steps
    batches = list(itertools.islice(way.batches(), number))
    before, ends = Snapshot(steps.model, steps.optimizer, steps.device), []
    for take in (steps.setup.take, way.take):
        for at, batch in enumerate(batches):
            Way(steps, take).step(batch, at)
        ends.append(torch.cat([value.flatten().double() for value in before.weights()]))
        before.restore()
    return float((ends[0] - ends[1]).norm() / ends[0].norm())


def measure_case(
    device: torch.device,
    part: str,
    case: tuple[Any, ...],
    data: Facts,
    batch_size: int,
    sizes: tuple[Any, ...],
) -> Facts:
    """Return the numbers of one case; the trial of a child process."""
    _, constant, captured, compiled, workers = Case(*case)
    # A CPU is for trials of this program, among others.
    threads = 1 if device.type == "cpu" else None
    config = PretrainConfig(
        data=DataConfig(table=Path(data["table"]), tree=Path(data["tree"]), missing_tips="drop"),
        model=NETWORKS[part],
        train=TrainConfig(batch_size=batch_size),
        runtime=RunConfig(device=str(device), num_workers=workers, threads=threads),
    )
    steps, limits = make_steps(config), Sizes(*sizes)
    task = steps.task
    if constant and task.capacities is None:
        # On a CPU.
        task.use_constant_shapes()
    if not constant:
        task.layout = replace(task.layout, capacities=None)
    if compiled and task.capacities is not None:
        largest = task.capacities._replace(asvs=task.capacities.asvs[-1:])
        task.layout = replace(task.layout, capacities=largest)
        task.compile_losses(COMPILER)
    graphs = CapturedSteps(steps.setup) if captured else None
    way = Way(steps, steps.setup.take if graphs is None else graphs.take)
    try:
        numbers: Facts = dict(measured(way, limits))
        if graphs is not None:
            numbers |= {"graphs": len(graphs.graphs), "right": bool(graphs.is_right)}
            numbers["difference"] = difference_after(way, limits.compared)
            numbers["replay_ms"] = replay_ms(graphs)
    finally:
        task.train.close()
    return numbers


def write(path: Path, name: str, part: str, results: Facts) -> None:
    """Add the results of a part to the file of a device."""
    about: Facts = json.loads(path.read_text()) if path.exists() else {"device": name}
    about.setdefault("step", {})[part] = results
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about, indent=1) + "\n")


def run_part(
    part: str, options: argparse.Namespace, sizes: Sizes = FULL, isolated: bool = True
) -> Facts:
    """Measure all cases of a part, and write the results after each; return them."""
    device = choose_device(options.device)
    name, results, deadline = device_name(device), Facts(), time.monotonic() + PART_SECONDS
    path = options.output or Path("docs/benchmarks") / f"{name.lower().replace(' ', '-')}.json"
    data = {"table": str(options.table), "tree": str(options.tree)}
    for case in CASES:
        key, left = f"{case.name}, {case.workers} workers", deadline - time.monotonic()
        request = {"part": part, "case": list(case), "data": data, "sizes": list(sizes)}
        request["batch_size"] = options.batch_size
        spec = ProbeSpec(
            "benchmarks.gpu_step:measure_case",
            request,
            device,
            seconds=min(left, CASE_SECONDS),
            isolated=isolated,
        )
        outcome = Verdict(False, f"no time is left of {PART_SECONDS:g} s")
        if left > LEAST_SECONDS:
            outcome = try_now(spec)
        results[key] = outcome.facts if outcome.ok else {"failed": outcome.reason}
        print(key, results[key], flush=True)
        write(path, name, part, results)
    return results


def parser() -> argparse.ArgumentParser:
    """Return the options of this program."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("part", choices=NETWORKS)
    options.add_argument("--table", type=Path, required=True)
    options.add_argument("--tree", type=Path, required=True)
    options.add_argument("--device", default="cuda")
    options.add_argument("--batch-size", type=int, default=TrainConfig().samples_per_batch)
    options.add_argument("--output", type=Path, help="file of the results")
    return options


if __name__ == "__main__":
    words = parser().parse_args()
    run_part(words.part, words)
