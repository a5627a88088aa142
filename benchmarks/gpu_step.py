"""A training step on a GPU: eager, on shelves, captured, compiled. Two parts of two minutes each.

``python -m benchmarks.gpu_step PART --table T.biom --tree T.nwk`` prints a table and adds PART
(``default`` or ``wide``) to docs/benchmarks/DEVICE.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aam.config import DataConfig, ModelConfig, PretrainConfig, TrainConfig
from aam.data.batch import Shelved
from aam.device.distributed import SINGLE
from aam.device.platform import device_name
from aam.engine.capture import CapturedSteps
from aam.engine.step import MicroBatch, Snapshot, StepOutcome, train_step
from aam.options import RunConfig
from aam.training.decisions import PretrainingSteps, make_steps

NETWORKS = {
    "default": ModelConfig(),
    "wide": ModelConfig(embedding_dim=768, attention_layers=8, attention_heads=12),
}
# Name, constant shapes, captured, compiled, workers of the loader. A compiled step has the largest
# bucket of ASVs only, since each bucket takes a minute to compile.
CASES = (
    ("eager", False, False, False, 4),
    ("shelves", True, False, False, 4),
    ("captured", True, True, False, 1),
    ("captured", True, True, False, 4),
    ("captured, compiled", True, True, True, 4),
)
WARM_UP, STEPS, SECONDS = 40, 400, 12.0


@dataclass
class Way:
    """A way of taking steps, and the batches that it is given."""

    steps: PretrainingSteps
    take: Callable[..., StepOutcome]

    def batches(self) -> Iterator[Shelved]:
        """Yield batches, epoch after epoch."""
        epochs = (self.steps.task.batches(epoch, 0) for epoch in itertools.count(1))
        return itertools.chain.from_iterable(epochs)

    def step(self, batch: Shelved, number: int) -> None:
        """Take one step."""
        steps = self.steps
        window = [MicroBatch(steps.task.prepare(batch, number), number)]
        arguments = (steps.task, steps.optimizer, steps.scaler, SINGLE, steps.max_grad_norm)
        self.take(steps.task.network, window, *arguments)


def measured(way: Way) -> dict[str, float]:
    """Return samples per second, milliseconds of a step, and of them those that wait for a batch,
    over at most `SECONDS`.
    """
    device, batches, samples = way.steps.device, way.batches(), 0
    taken, waited = list[float](), list[float]()
    for number in range(WARM_UP):
        way.step(next(batches), number)
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    while len(taken) < STEPS and time.perf_counter() - start < SECONDS:
        begun = time.perf_counter()
        batch = next(batches)
        waited.append(time.perf_counter() - begun)
        way.step(batch, len(taken))
        samples += len(batch.sample_ids)
        taken.append(time.perf_counter() - begun)
    torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    step, wait = (1e3 * statistics.median(times) for times in (taken, waited))
    return {
        "samples_per_s": samples / seconds,
        "wall_ms": 1e3 * seconds / len(taken),
        "host_ms": step,
        "wait_ms": wait,
    }


def replay_ms(take: CapturedSteps) -> float:
    """Return the milliseconds of the slowest captured step where nothing waits for the host."""
    slowest = 0.0
    for captured in take.graphs.values():
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            captured.graph.replay()
        torch.cuda.synchronize()
        slowest = max(slowest, (time.perf_counter() - start) / 20)
    return 1e3 * slowest


def difference_after(way: Way, number: int = 50) -> float:
    """Return how far apart captured and eager weights are after steps on the same batches."""
    steps = way.steps
    batches = list(itertools.islice(way.batches(), number))
    before, ends = Snapshot(steps.model, steps.optimizer, steps.device), []
    for take in (train_step, way.take):
        for at, batch in enumerate(batches):
            Way(steps, take).step(batch, at)
        ends.append(torch.cat([value.flatten().double() for value in before.moved()]))
        before.restore()
    return float((ends[0] - ends[1]).norm() / ends[0].norm())


def write(part: str, results: dict[str, Any]) -> None:
    """Add the results of a part to docs/benchmarks/DEVICE.json."""
    name = device_name(torch.device("cuda"))
    path = Path("docs/benchmarks") / f"{name.lower().replace(' ', '-')}.json"
    about: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"device": name}
    about.setdefault("step", {})[part] = results
    path.write_text(json.dumps(about, indent=1) + "\n")


def main() -> None:
    """Run one part and write its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=NETWORKS)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--tree", type=Path, required=True)
    options = parser.parse_args()
    data = DataConfig(table=options.table, tree=options.tree, missing_tips="drop")
    results: dict[str, Any] = {}
    for name, constant, captured, compiled, workers in CASES:
        runtime = RunConfig(device="cuda", num_workers=workers)
        config = PretrainConfig(
            data=data, model=NETWORKS[options.part], train=TrainConfig(), runtime=runtime
        )
        steps = make_steps(config)
        if not constant:
            steps.task.capacities = None
        if compiled and steps.task.capacities is not None:
            largest = steps.task.capacities.asvs[-1:]
            steps.task.capacities = steps.task.capacities._replace(asvs=largest)
            steps.task.compile_losses("inductor")
        take = CapturedSteps(steps.task, steps.optimizer) if captured else train_step
        key = f"{name}, {steps.task.train.workers} workers"
        try:
            way = Way(steps, take)
            numbers: dict[str, Any] = dict(measured(way))
            if isinstance(take, CapturedSteps):
                numbers |= {"graphs": len(take.graphs), "right": bool(take.is_right)}
                numbers["difference"] = difference_after(way)
                numbers["replay_ms"] = replay_ms(take)
            results[key] = numbers
        except RuntimeError as error:
            results[key] = {"failed": str(error).splitlines()[0]}
        print(key, results[key], flush=True)
        write(options.part, results)
        del steps, take
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
