"""Steps of pretraining on two processes of one thread and one core each, against one such process.

``python docs/benchmarks/processes.py data|pipeline [--pairs 5] [--steps 12] [--output FILE]`` on an idle machine,
with AAM_BENCH_DATA set: ``data`` is ``--distributed`` at the same global batch, ``pipeline`` is ``--pipeline``. Runs of
one and of two processes take turns, on the same batches; without loader workers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from aam.config import DataConfig, FineTuneConfig, TrainConfig
from aam.data.loader import Loader
from aam.data.study import load_study
from aam.engine.options import RunConfig
from aam.engine.trainer import Micro, Trainer, train_step
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.runtime.device import device_name, prepare_device
from aam.runtime.distributed import World
from aam.runtime.files import write_text
from aam.runtime.process_group import process_group

WHOLE_BATCH, WARM_UP = 64, 3
Figures = dict[str, Any]


def trainer_of(world: World, runtime: RunConfig) -> Trainer:
    """A run of `aam pretrain` on `oral-age` at default sizes, before its first step."""
    folder = Path(os.environ["AAM_BENCH_DATA"]) / "oral-age"
    data = DataConfig(table=folder / "table.biom", tree=folder / "tree.nwk", missing_tips="drop")
    size = WHOLE_BATCH // (1 if runtime.pipeline else world.size)
    config = FineTuneConfig(data, train=TrainConfig(batch_size=size), runtime=runtime)
    device = prepare_device(runtime)
    study = load_study(data, config.model.max_bp, 0)
    torch.manual_seed(0)
    model = Aam(config.model, study.depth, HeadConfig(study.metric, (0.5, 0.2), counts=True)).to(device).train()
    rows = np.arange(len(study.table.sample_ids))
    loader = Loader(study, rows, size, shuffle=True, shallow=config.train.shallow_draws, world=world)
    model.standardize(loader.draw(rows[:WHOLE_BATCH], 0))
    return Trainer(model, config, loader, loader, device, world=world)


def measured(world: World, runtime: RunConfig, steps: int) -> Figures:
    """Seconds of each step, of it by the processor, and what else is known of this rank."""
    trainer, taken, busy = trainer_of(world, runtime), [], []
    epochs = itertools.chain.from_iterable(map(trainer.train.epoch, itertools.count()))
    for number in range(WARM_UP + steps):
        if number == WARM_UP:
            world.barrier()
            # What warming up exchanged.
            world.communication_metrics()
        start, before = time.perf_counter(), time.process_time()
        batch = next(epochs)
        if not runtime.pipeline:
            world.work.append(batch.work(trainer.config.model.patch))
        train_step(trainer.parallel, [Micro(batch, None, number)], trainer.objective, trainer.optimizer)
        taken.append(time.perf_counter() - start)
        busy.append(time.process_time() - before)
    found = {"step_s": sum(taken[WARM_UP:]) / steps, "processor_s": sum(busy[WARM_UP:]) / steps}
    return {**found, **world.communication_metrics(), "stages": trainer.stages}


def run(size: int, kind: str, steps: int) -> list[Figures]:
    """What each of `size` processes, each on a core of its own, says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / str(rank) for rank in range(size)]
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, kind, "--steps", str(steps), "--output", str(path)],
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank, path in enumerate(paths)
        ]
        ended = [rank.wait() for rank in ranks]
        if any(ended):
            raise SystemExit("a process failed")
        return [json.loads(path.read_text()) for path in paths]


def compared(kind: str, pairs: int, steps: int) -> Figures:
    """One process against two, pair by pair, and the medians."""
    rows = []
    for _ in range(pairs):
        (one,), two = run(1, kind, steps), run(2, kind, steps)
        wall = max(rank["step_s"] for rank in two)
        busy = [rank["processor_s"] for rank in two]
        row: Figures = {"one_s": one["step_s"], "two_s": wall, "ratio": one["step_s"] / wall}
        row |= {"one_processor_s": one["processor_s"], "processor_s": busy}
        row |= {"in_sequence": sum(busy) / wall, "largest_share": max(busy) / sum(busy)}
        row |= {"of_the_best": row["in_sequence"] * row["largest_share"], "load": os.getloadavg()[0]}
        row |= {name: value for name, value in two[0].items() if name.startswith(("sent_", "imbalance", "stages"))}
        rows.append(row)
        print(json.dumps(row), flush=True)
    numbers = [name for name, value in rows[0].items() if isinstance(value, float)]
    return {"median": {name: median(row[name] for row in rows) for name in numbers}, "pairs": rows}


def main() -> None:
    """Compare, or be one of the processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("data", "pipeline"))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    rank = os.environ.get("RANK")
    if rank is not None:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(rank) % len(cores)]})
        many = os.environ["WORLD_SIZE"] != "1"
        runtime = RunConfig(threads=1, distributed=many, pipeline=many and asked.kind == "pipeline", num_workers=0)
        with process_group(runtime) as world:
            figures = measured(world, runtime, asked.steps)
        asked.output.write_text(json.dumps(figures))
        return
    figures = compared(asked.kind, asked.pairs, asked.steps)
    about = {
        "kind": asked.kind,
        "device": device_name(prepare_device(RunConfig(threads=1))),
        "torch": torch.__version__,
    }
    about |= {"python": platform.python_version(), "date": time.strftime("%Y-%m-%d"), "table": "oral-age"}
    if asked.output is not None:
        write_text(asked.output, json.dumps({**about, "steps": asked.steps, **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
