"""One of several processes that train small models in every way there is, for test_distributed.py.

``python ranks.py FOLDER``, with RANK and so on in the environment, writes for each case
weights.safetensors and records.json below FOLDER, from the leading rank. Eight samples are in a
batch, whatever the number of ranks.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aam.config import CovariateConfig, FineTuneConfig, ModelConfig, TargetConfig, TrainConfig
from aam.data.loader import Collation, Loader
from aam.data.study import Study
from aam.device.distributed import World, end_rank, process_group
from aam.engine.capture import CapturedSteps
from aam.engine.checkpoint import State, broadcast_state, load, save
from aam.engine.trainer import Trainer
from aam.errors import InputError
from aam.files.tensors import write_tensors
from aam.model.aam import Aam, HeadConfig
from aam.options import RunConfig
from aam.training.finetune import SupervisedTask
from aam.training.pretrain import AmpliconTask
from tests.data.labels import labelled
from tests.data.studies import make_study, random_tree
from tests.graphs import stand_in

SAMPLES, ASVS, WHOLE_BATCH = 28, 60, 8
UNIFRAC = HeadConfig("unifrac", (0.5, 0.2), counts=True)
# Classes and numbers from ASVs, categories and numbers of the metadata, with weights of the
# samples.
SUPERVISED = HeadConfig(n_targets=2, n_classes=(3,))
ADDED = CovariateConfig(categorical_fusion="add")
CONDITIONED = dataclasses.replace(SUPERVISED, levels=(4, 3), numbers=1, covariates=ADDED)
WITHOUT_MASKS = {"count_penalty": 0.0, "nuc_penalty": 0.0}
ACCUMULATED = {"gradient_accumulation_steps": 2}
EVERYTHING = HeadConfig("weighted", (0.5, 0.2), True, 2, (3,), (4, 3), 1, ADDED)
AVERAGED = {**ACCUMULATED, "ema_decay": 0.9}
# Batches of constant shape on several ranks, of exact shape on one.
CONSTANT = {"constant": True}
# The same in graphs, which a CPU records and replays.
CAPTURED = {**CONSTANT, "captured": True}
# Heads, options of training, options of the process group.
CASES: dict[str, tuple[HeadConfig, dict[str, Any], dict[str, bool]]] = {
    "pretraining": (UNIFRAC, {}, {}),
    "weighted": (dataclasses.replace(UNIFRAC, metric="weighted"), {}, {}),
    "regression": (HeadConfig(n_targets=2), WITHOUT_MASKS, {}),
    "classes, average": (HeadConfig(n_classes=(3,)), {"ema_decay": 0.9, "count_penalty": 0.0}, {}),
    "covariates": (CONDITIONED, WITHOUT_MASKS, {}),
    "both, accumulated": (HeadConfig("unifrac", (0.5, 0.2), True, 2, (3,)), ACCUMULATED, {}),
    "constant": (UNIFRAC, {}, CONSTANT),
    "constant, everything": (EVERYTHING, AVERAGED, CONSTANT),
    "constant, without distances": (HeadConfig(None, counts=True), {}, CONSTANT),
    "captured": (UNIFRAC, {}, CAPTURED),
    "captured, everything": (EVERYTHING, {"ema_decay": 0.9}, CAPTURED),
    "frozen": (CONDITIONED, {"count_penalty": 0.0}, {"frozen": True}),
    "given distances": (UNIFRAC, {}, {**CAPTURED, "tree": False}),
    "sharded": (UNIFRAC, {}, {"fsdp": True}),
    "sharded, accumulated": (SUPERVISED, ACCUMULATED, {"fsdp": True}),
}


def study_of(metric: str | None) -> Study:
    """Samples of very different size, ASVs of three lengths, targets some of which are missing."""
    rng = np.random.default_rng(4)
    sequences = ["".join(rng.choice(list("ACGT"), (30, 17, 24)[each % 3])) for each in range(ASVS)]
    reads = rng.poisson(30, (SAMPLES, ASVS))
    counts = reads * (rng.random((SAMPLES, ASVS)) < rng.random((SAMPLES, 1)))
    counts[:, 0] += 50
    tree, metric = random_tree(rng, sequences), metric or "unifrac"
    study = make_study(counts, sequences, newick=tree, unifrac_metric=metric)
    target = rng.normal(size=(SAMPLES, 2)).astype(np.float32)
    target[rng.random((SAMPLES, 2)) < 0.2] = np.nan
    covariate = rng.normal(size=(SAMPLES, 1)).astype(np.float32)
    covariate[5] = np.nan
    label = rng.integers(-1, 3, (SAMPLES, 1))
    category = np.stack([rng.integers(0, 4, SAMPLES), rng.integers(0, 3, SAMPLES)], axis=1)
    return labelled(study, target=target, label=label, category=category, covariate=covariate)


def trainer_of(name: str, world: World, epochs: int = 7) -> Trainer:
    """The case `name` on all ranks: 22 samples train, in three steps an epoch, 6 validate."""
    heads, train, runtime = CASES[name]
    frozen, constant = runtime.get("frozen", False), runtime.get("constant", False)
    captured, options = runtime.get("captured", False), runtime
    runtime = runtime if world.size > 1 and not (frozen or constant) else {}
    supervised = heads.n_targets or heads.n_classes
    weights = ("1", "0.5", "2.5") if heads.n_classes else ()
    config = FineTuneConfig(
        targets=TargetConfig(metadata_column=("y",) * bool(supervised), class_weights=weights),
        model=ModelConfig(embedding_dim=16, attention_heads=2, max_bp=30),
        train=TrainConfig(lr=3e-3, epochs=epochs, batch_size=WHOLE_BATCH // world.size, **train),
        runtime=RunConfig(**runtime),
    )
    torch.manual_seed(0)
    model, study = Aam(config.model, 40, heads), study_of(heads.metric)
    if not heads.n_targets:
        study = labelled(study, target=None)
    if not heads.n_classes:
        study = labelled(study, label=None)
    if not heads.levels:
        study = labelled(study, category=None, covariate=None)
    collation = Collation(distances=heads.metric is not None)
    drawn = dataclasses.replace(collation, shallow=0.5, covariate_dropout=0.2)
    train_side = Loader(
        study, np.arange(22), config.train.batch_size, True, collation=drawn, world=world
    )
    held_out = dataclasses.replace(
        train_side, rows=np.arange(22, SAMPLES), shuffle=False, collation=collation
    )
    kind = SupervisedTask if supervised else AmpliconTask
    device, asvs = torch.device("cpu"), None
    if frozen:
        with torch.no_grad():
            asvs = model.encode_asvs(study.tokens, has_short_asvs=True)[1]
        for part, parameter in model.named_parameters():
            parameter.requires_grad_(part.startswith(("target", "labels", "covariates")))
    task = kind(model, config, train_side, held_out, device, asvs, world=world)
    if constant and world.size > 1:
        with pytest.MonkeyPatch.context() as patch:
            if not options.get("tree", True):
                patch.setattr("aam.training.pretrain.tree_on_device", lambda *_: None)
            task.use_constant_shapes()
        assert task.capacities is not None
    trainer = Trainer(task, config.train, config.runtime, world)
    if captured and world.size > 1:
        stand_in(pytest.MonkeyPatch())
        trainer.steps = CapturedSteps(trainer.setup, trainer.rank_steps.parts)
    return trainer


def run(name: str, world: World, folder: Path) -> None:
    """Train a case, and write what came of it."""
    records: list[dict[str, Any]] = []
    trainer = trainer_of(name, world)
    trainer.on_record = records.append
    fit(trainer, world, folder)
    if isinstance(trainer.steps, CapturedSteps):
        assert trainer.steps.is_right
        # ASVs, samples, losses, gradients of ASVs, optimizer.
        assert [len(step.graphs) for step in trainer.steps.graphs.values()][:1] == [5]
    if world.is_main:
        (folder / "records.json").write_text(json.dumps(records))


def fit(trainer: Trainer, world: World, folder: Path) -> None:
    """Train, and write the weights."""
    trainer.fit()
    if world.is_main:
        folder.mkdir(parents=True)
        write_tensors(trainer.last_weights, folder / "weights.safetensors")


def run_on(name: str, world: World, saved: Path, folder: Path) -> None:
    """Save after 4 steps in `saved`, where nothing stands there, or go on from there; then as
    `run`.
    """
    trainer = trainer_of(name, world)
    if (saved / "manifest.json").exists():
        state = broadcast_state(load(saved) if world.is_main else None, world)
        assert state is not None
        trainer.restore(state)
    else:

        def offer(trainer: Trainer) -> None:
            if trainer.progress.step == 4:
                state = trainer.state()
                save(saved, State(state.tensors, state.facts), world)

        trainer.after_step = offer
    fit(trainer, world, folder)


class Off:
    """A step in graphs that moves a weight as no eager step does."""

    def __init__(self, steps: CapturedSteps) -> None:
        self.replay = steps._replay
        self.weight = next(steps.task.model.parameters())

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Take the step."""
        outcome = self.replay(*arguments, **options)
        with torch.no_grad():
            self.weight.mul_(1.01)
        return outcome


class CompilationError(Exception):
    """As Triton raises it: no RuntimeError."""


# Errors of rank 1 alone: in the capture, in the check.
ERRORS = {
    "capture": RuntimeError("CUDA error: operation not permitted when stream is capturing"),
    "compiler": CompilationError("cannot convert int1 to int8"),
    "full": torch.OutOfMemoryError("CUDA out of memory"),
    "replay": RuntimeError("CUDA error: an illegal instruction was encountered"),
}
FAULTS = (*ERRORS, "gate", "refusal", "late refusal", "memory")


def run_with(fault: str, world: World, folder: Path) -> None:
    """Train in graphs with a fault of rank 1 only, and write what each rank made of it."""
    trainer = trainer_of("pretraining" if fault == "hang" else "captured", world, epochs=3)
    steps, patch, agreed = trainer.steps, pytest.MonkeyPatch(), list[int]()

    def fail(*_: Any, **__: Any) -> None:
        raise ERRORS[fault]

    def wish(trainer: Trainer) -> None:
        wishes = {1: 2, 0: 1} if trainer.progress.step in (1, 4) else {}
        agreed.append(trainer.agree(wishes.get(world.rank, 0)))

    def refuse(trainer: Trainer) -> None:
        trainer.task.refusal = "the probe says: its process ended with SIGSEGV"

    if world.rank == 1 and fault in ERRORS:
        patch.setattr(steps, "_replay" if fault == "replay" else "_capture", fail)
    elif world.rank == 1 and fault == "gate":
        patch.setattr(steps, "_replay", Off(steps))
    elif world.rank == 1 and fault == "refusal":
        refuse(trainer)
    elif fault == "wish":
        trainer.after_step = wish
    elif fault == "hang":
        patch.setattr("aam.device.distributed.STEP_SECONDS", 15.0)
        patch.setattr("aam.device.distributed.LOOK_SECONDS", 0.2)
        if world.rank == 1:
            trainer.after_step = lambda _: time.sleep(600)
    elif world.rank == 1 and fault == "late refusal":
        trainer.after_step = refuse
    elif world.rank == 1:
        patch.setattr("aam.engine.capture.memory_limit", lambda *_: 10**6)
    try:
        trainer.fit()
        end = float(sum(value.double().sum() for value in trainer.last_weights.values()))
    except InputError as error:
        end = str(error)
    finally:
        patch.undo()
    facts = {"captures": bool(steps.graphs), "steps": trainer.progress.step, "end": end}
    facts["agreed"] = agreed
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank{world.rank}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    out = Path(sys.argv[1])
    try:
        with process_group(RunConfig(distributed=os.environ["WORLD_SIZE"] != "1")) as everyone:
            for case in sys.argv[2].split(";") if len(sys.argv) > 2 else CASES:
                if case in (*FAULTS, "wish", "hang"):
                    run_with(case, everyone, out / case)
                elif len(sys.argv) > 3:
                    run_on(case, everyone, Path(sys.argv[3]) / case, out / case)
                else:
                    run(case, everyone, out / case)
    except Exception:
        end_rank(1)  # as the command line does
        raise
    end_rank(0)
