"""The commands: a teacher and its windows, a student, and the comparison of students."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression

from aam.device.distributed import World, launch, process_count
from aam.device.environment import is_launcher, rank_of
from aam.device.platform import prepare_device
from aam.engine.run import Run, describe, open_run, training_outputs
from aam.errors import FINISHED, InputError
from aam.files.atomic import write_text
from aam.options import not_none, to_dict
from examples.htft.config import (
    EvaluateConfig,
    TeachConfig,
    TrainConfig,
    device_names,
    published,
    train_problems,
)
from examples.htft.language import LanguageModel, LanguageTask
from examples.htft.ranks import shard_rows
from examples.htft.student import Shape, Student, evaluate, unigram_logits
from examples.htft.task import FIRST, Data, PipelinedTask, StudentTask
from examples.htft.teachers import Corpus, Teacher, capture, make_teacher, markov_corpus
from examples.htft.windows import Capture, read_windows, write_windows
from examples.runs import fit_and_save

MODULE = "examples.htft"


def teach(config: TeachConfig) -> int:
    """Train or load a teacher and write windows/ next to its run; return the exit status."""
    options = config.teacher
    files = {
        name: path for name in ("source", "text") if (path := getattr(options, name)) is not None
    }
    if files and options.provider not in ("aam", "hf"):
        given_options = " and ".join(f"--{name} {path}" for name, path in files.items())
        raise InputError(
            f"{given_options}: --provider {options.provider} reads neither; give --provider aam "
            "or hf"
        )

    if is_launcher(config.runtime):
        return launch(process_count(config.runtime), sys.argv[1:], MODULE)
    with open_run(config) as run:
        device, is_trained = prepare_device(config.runtime), options.provider not in ("aam", "hf")
        teacher, corpus = (None, None) if is_trained else make_teacher(options)
        facts = {"device": str(device), "ranks": run.world.size}
        windows = (f"windows/{name}" for name in ("manifest.json", "state.json", "*.safetensors"))
        outputs = (*training_outputs(), *windows)
        record = describe(f"{MODULE} teach", to_dict(config), files, facts, outputs)
        if config.runtime.dry_run:
            run.print_plan(record)
            return FINISHED
        run.begin(record)
        if run.is_finished():
            return FINISHED
        if teacher is None or corpus is None:
            teacher, corpus = train_teacher(config, run, device)
        captured = capture(teacher, corpus, options)
        write_windows(run.path / "windows", captured)
        run.write_results({"classes": captured.classes, **table_of(captured)})
    return FINISHED


def train_teacher(config: TeachConfig, run: Run, device: torch.device) -> tuple[Teacher, Corpus]:
    """Train a teacher on windows of a simulated language; return it with these windows."""
    options = config.teacher
    corpus = markov_corpus(options, config.runtime.seed)
    torch.manual_seed(config.runtime.seed)
    model = LanguageModel(options.provider, options.vocabulary, options.width, options.length)
    windows, held_out = corpus.windows.tensor_split([corpus.train])
    size, seed = config.train.samples_per_batch, config.runtime.seed
    task = LanguageTask(model, windows, held_out, size, seed, device)
    state = fit_and_save(lambda: task, config.train, run, run.path, "teacher", {})
    model.load_state_dict(state.tensors)
    return model.cpu().eval().teach, corpus


def build(config: TrainConfig, captured: Capture, world: World) -> Student:
    """Return a student with new weights."""
    options, windows, seed = config.student, captured.windows["train"], config.runtime.seed
    unigram = unigram_logits(windows.target, captured.classes) if options.unigram_bias else None
    sharing = world if options.shard_units else World()
    student = Student(options, Shape.of(windows, captured.classes), seed, unigram, sharing)
    if options.locality == "anchor":
        rows = torch.randperm(len(windows), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            sample = windows.rows(rows[: max(options.units)])
            first = student.first.project(student.first_input(sample))
            student.first.field.place_anchors(first[: options.units[0]])
            second = student.second.project(student.second_input(student.target(sample), sample))
            student.second.field.place_anchors(second[: options.units[1]])
    for stage in (student.first, student.second):
        shard_rows(stage.field, sharing)
    return student


def train(config: TrainConfig) -> int:
    """Train a student on the windows of a teacher; return the exit status."""
    config = published(config) if config.variant == "published" else config
    if problems := list(train_problems(config)):
        raise InputError(*problems)
    devices = device_names(config)
    if devices:
        place = rank_of(os.environ)
        device_name = devices[0 if place is not None and place.rank == FIRST else 1]
        runtime = dataclasses.replace(config.runtime, data_parallel=True, device=device_name)
        config = dataclasses.replace(config, runtime=runtime)
    runtime, path = config.runtime, not_none(config.windows)
    if is_launcher(runtime):
        return launch(2 if devices else process_count(runtime), sys.argv[1:], MODULE)
    with open_run(config) as run:
        device, captured = prepare_device(runtime), read_windows(path)
        splits_batches = not (devices or config.student.shard_units)
        facts = {"device": str(device), "ranks": run.world.size if splits_batches else 1}
        files, outputs = {"windows": path}, training_outputs()
        record = describe(f"{MODULE} train", to_dict(config), files, facts, outputs)
        if runtime.dry_run:
            run.print_plan(record)
            return FINISHED
        run.begin(record)
        if run.is_finished():
            return FINISHED
        data = Data(captured.windows["train"], captured.windows["validation"], runtime.seed)
        student = build(config, captured, run.world).to(device)

        def make_task() -> StudentTask:
            if devices:
                return PipelinedTask(student, data, config.train, device, run.world)
            return StudentTask(
                student, data, config.train, device, run.world, not config.student.shard_units
            )

        best = fit_and_save(
            make_task, config.train, run, run.path, "student", student.description()
        )
        trained = Student.from_description(best.facts, runtime.seed).to(device)
        trained.load_state_dict(best.tensors)
        score = evaluate(trained, data.validation, device)
        quality = {"r2": score.r2, "perplexity": score.perplexity}
        run.write_results({**table_of(captured), **quality})
    return FINISHED


def table_of(captured: Capture) -> dict[str, float]:
    """Return the held-out perplexities of what a student is compared with.

    They are those of unigram frequencies, of the teacher where it gives probabilities, and of a
    linear read-out of its last hidden state, which is a logistic regression.
    """
    train, held_out = captured.windows["train"], captured.windows["validation"]
    rows = torch.arange(len(held_out))
    unigram = unigram_logits(train.target, captured.classes)[held_out.target].mean()
    inputs, new = train.hidden[:, -1].numpy(), held_out.hidden[:, -1].numpy()
    readout = LogisticRegression(max_iter=300).fit(inputs, train.target.numpy())
    logits = np.full((len(held_out), captured.classes), -30.0)
    logits[:, readout.classes_] = readout.predict_log_proba(new)
    perplexities = {"unigram": float((-unigram).exp())}
    if held_out.teacher.shape[1]:
        perplexities["teacher"] = float((-held_out.teacher[rows, held_out.target].mean()).exp())
    return {**perplexities, "linear read-out": float(np.exp(-logits[rows, held_out.target].mean()))}


def compare_students(config: EvaluateConfig) -> None:
    """Print a table of students and what they are compared with."""
    captured = read_windows(not_none(config.windows))
    device = torch.device("cpu")
    table = Table("held-out windows", "stage-1 R2", "perplexity", "of the unigram's")
    compared = table_of(captured)
    rows: dict[str, tuple[float | None, float]] = {
        name: (None, value) for name, value in compared.items()
    }
    names = [_name(path) for path in config.model]
    for name, path in zip(names, config.model, strict=True):
        score = evaluate(Student.load(path, captured), captured.windows["validation"], device)
        # A name that stands for several, or for what students are compared with, says nothing: then
        # it is the path.
        unique = names.count(name) == 1 and name not in compared
        rows[name if unique else str(path)] = score.r2, score.perplexity
    for name, (r2, perplexity) in rows.items():
        table.add_row(
            name,
            "" if r2 is None else f"{r2:.2f}",
            f"{perplexity:.1f}",
            f"{perplexity / compared['unigram']:.2f}",
        )
    Console().print(table)
    if config.output is not None:
        values = {
            name: {"r2": r2, "perplexity": perplexity} for name, (r2, perplexity) in rows.items()
        }
        write_text(config.output, json.dumps(values, indent=1) + "\n")


def _name(path: Path) -> str:
    """Return how the table calls the student in ``RUN/model``."""
    return path.resolve().parent.name
