"""One of several processes that train a small student, for test_htft.py: ``htft_ranks.py KIND SIZE
FOLDER [STATE]``.

KIND is ``batches`` (DDP), ``units`` (units in shards) or ``stages`` (the pipeline). The state after
six steps is written to FOLDER/state; with STATE the run goes on from there. The main rank writes
FOLDER/weights.safetensors.
"""

from __future__ import annotations

import sys
from pathlib import Path

import safetensors.torch
import torch

from aam.device.distributed import World, end_rank, process_group
from aam.engine.checkpoint import broadcast_state, load, save
from aam.engine.trainer import Trainer
from aam.options import RunConfig, TrainingOptions
from examples.htft.commands import build
from examples.htft.config import StudentOptions, TrainConfig
from examples.htft.task import Data, PipelinedTask, StudentTask
from examples.htft.windows import Capture, Windows

# Windows of a step, whatever the number of ranks.
STEP = 16
# After how many steps the state is saved; where the stages run apart that is possible every ten
# steps.
SAVED = 10


def random_windows(count: int, seed: int = 0) -> Windows:
    """Windows of 6 tokens with hidden states of width 8, whose last one decides among 5 classes."""
    random = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, 6, 8, generator=random)
    target = hidden[:, -1, :5].argmax(1)
    return Windows(
        torch.randint(9, (count, 6), generator=random), hidden, target, torch.zeros(count, 0)
    )


def small_options(**changes: object) -> StudentOptions:
    sizes = {"units": (16, 20), "embedding": 8, "tail": 2, "bigrams": 16}
    sizes |= {"sketch": 64, "projected": 64, "block": 16}
    return StudentOptions(**{**sizes, **changes})


def make_trainer(kind: str, world: World, changes: dict[str, object] | None = None) -> Trainer:
    student_options = small_options(shard_units=kind == "units", **(changes or {}))
    size = STEP // world.size if kind == "batches" else STEP
    options = TrainingOptions(
        epochs=3, batch_size=size, lr=0.03, weight_decay=0.0, ema_decay=0.5, max_grad_norm=0.3
    )
    config = TrainConfig(student=student_options, train=options)
    train, validation = random_windows(100), random_windows(40, 1)
    student = build(config, Capture({"train": train, "validation": validation}, 5, {}), world)
    data, device = Data(train, validation, 0), torch.device("cpu")
    if kind == "stages" and world.size > 1:
        task: StudentTask = PipelinedTask(student, data, options, device, world)
    else:
        task = StudentTask(student, data, options, device, world, kind == "batches")
    return Trainer(task, options, RunConfig(distributed=world.size > 1), world)


def main(kind: str, size: int, folder: Path, state: Path | None) -> None:
    torch.set_num_threads(1)
    with process_group(RunConfig(distributed=size > 1)) as world:
        trainer = make_trainer(kind, world)

        def after_step(trainer: Trainer) -> None:
            if trainer.progress.step == SAVED and state is None:
                save(folder / "state", trainer.state(), world)

        trainer.after_step = after_step
        if state is not None:
            loaded = broadcast_state(load(state) if world.is_main else None, world)
            assert loaded is not None
            trainer.restore(loaded)
        trainer.fit()
        if world.is_main:
            safetensors.torch.save_file(trainer.last_weights, folder / "weights.safetensors")


if __name__ == "__main__":
    kind, ranks, place, *rest = sys.argv[1:]
    main(kind, int(ranks), Path(place), Path(rest[0]) if rest else None)
    end_rank(0)
