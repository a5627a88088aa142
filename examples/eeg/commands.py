"""The commands: pretraining, training with held-out subjects, finders, and challenge files."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

from aam.data.splits import Split, write_split
from aam.device.attention import decide_execution
from aam.device.distributed import launch, process_count
from aam.device.environment import is_launcher
from aam.device.measure import memory_limit
from aam.device.platform import prepare_device
from aam.device.precision import make_scaler
from aam.engine.checkpoint import load
from aam.engine.run import Run, describe, open_run, training_outputs
from aam.engine.step import StepRunner, batch_and_accumulation, largest_batch
from aam.errors import FINISHED, InputError
from aam.files.atomic import write_text
from aam.options import not_none, to_dict
from examples.eeg.baselines import baseline_predictions
from examples.eeg.config import (
    CARD_SHARE,
    CARDS,
    FindConfig,
    ModelOptions,
    PretrainConfig,
    TrainConfig,
    band_problems,
    model_problems,
)
from examples.eeg.network import PatchEncoder, Predictor, Pretrainer, make_encoder
from examples.eeg.rates import learning_rate_curve, suggested_learning_rate
from examples.eeg.recordings import (
    Recordings,
    Rows,
    Target,
    check_splits,
    make_splits,
    make_targets,
    read_recordings,
)
from examples.eeg.task import (
    Array,
    LabelTask,
    PretrainingTask,
    Setting,
    by_subject,
    predict,
    scores,
)
from examples.runs import fit_and_save

MODULE = "examples.eeg"

TrainInputs = tuple[TrainConfig, Recordings, list[Target], list[Split]]


def _check(config: PretrainConfig | TrainConfig | FindConfig) -> dict[str, Path]:
    """Refuse options that are wrong, all at once; return the files that the command reads."""
    if problems := [*model_problems(config.model), *band_problems(config.recordings)]:
        raise InputError(*problems)
    return {"cohort": not_none(config.recordings.cohort) / "participants.tsv"}


def build(
    data: Recordings,
    targets: list[Target],
    train: npt.NDArray[np.int64],
    options: ModelOptions,
    seed: int,
) -> Predictor:
    """Return a network with new weights, for targets on the scales of the training windows."""
    torch.manual_seed(seed)
    encoder = make_encoder(data.shape, data.sampling_rate, options)
    values = [target.values[data.subject[train]] for target in targets]
    scale = [
        (0.0, 1.0) if t.classes else (np.nanmean(v), np.nanstd(v))
        for t, v in zip(targets, values, strict=True)
    ]
    return Predictor(encoder, targets, torch.tensor(scale, dtype=torch.float32))


def attention_shapes(
    data: Recordings, config: PretrainConfig | TrainConfig
) -> tuple[tuple[int, int, int, int], ...]:
    """Return batch, heads, length and width of the attention calls of a network."""
    model, samples = config.model, data.shape[1]
    tokens = max((samples - model.patch) // (model.patch // 2) + 1, 1)
    return ((config.train.samples_per_batch, model.heads, tokens, model.width // model.heads),)


def pretrain(config: PretrainConfig) -> int:
    """Pretrain an encoder on the training subjects; return the exit status."""
    files = _check(config)

    if is_launcher(config.runtime):
        return launch(process_count(config.runtime), sys.argv[1:], MODULE)
    with open_run(config) as run:
        device = prepare_device(config.runtime)
        data = read_recordings(config.recordings)
        decide_execution(config.runtime, device, attention_shapes(data, config))
        (split,) = make_splits(data.subjects, config.labels, config.runtime.seed)
        facts = {"device": str(device), "ranks": run.world.size}
        outputs = ("split.tsv", *training_outputs())
        record = describe(f"{MODULE} pretrain", to_dict(config), files, facts, outputs)
        if config.runtime.dry_run:
            run.print_plan(record)
            return FINISHED
        run.begin(record)
        if run.is_finished():
            return FINISHED
        write_split(run.path / "split.tsv", split)
        torch.manual_seed(config.runtime.seed)
        encoder = PatchEncoder(data.shape, data.sampling_rate, config.model)
        model = Pretrainer(encoder, data.shape[0], config.model)
        setting = Setting(config.train, config.runtime, device, run.world)
        task = PretrainingTask(model, data, data.rows_of(split), config, setting)
        sizes = {"model": to_dict(config.model)}
        state = fit_and_save(lambda: task, config.train, run, run.path, "pretrain", sizes)
        run.write_results({"best_epoch": state.facts["best_epoch"]})
    return FINISHED


def load_encoder(model: Predictor, folder: Path) -> None:
    """Give a network the encoder that `pretrain` wrote; `InputError` where it is not of the same
    sizes.
    """
    try:
        model.encoder.load_state_dict(load(folder).part("encoder"))
    except RuntimeError as error:
        problem = str(error).splitlines()[1].strip()
        wrong = f"does not fit this network ({problem}); give the sizes of pretrain"
        raise InputError(f"--pretrained {folder}: {wrong}") from None


def make_steps(
    config: TrainConfig | FindConfig, data: Recordings, targets: list[Target], device: torch.device
) -> tuple[LabelTask, StepRunner]:
    """Return a task on all windows, and single steps of its training, for the finders."""
    rows = np.arange(len(data.windows))
    model = build(data, targets, rows, config.model, config.runtime.seed)
    setting = Setting(config.train, config.runtime, device)
    subsets = {"train": rows, "validation": rows[:0]}
    task = LabelTask(model, data, subsets, targets, setting=setting, options=config.model)
    model.train()
    optimizer = task.configure_optimizer(config.train)
    return task, StepRunner(task, optimizer, make_scaler(config.runtime, device))


def measure_batches(
    config: TrainConfig | FindConfig,
    data: Recordings,
    targets: list[Target],
    device: torch.device,
    *,
    limit: int,
    max_size: int,
) -> dict[int, int]:
    """Return the peak bytes of the batches that fit into `limit` bytes."""
    task, steps = make_steps(config, data, targets, device)

    def peak(size: int) -> int:
        return steps.peak_bytes(task.take(torch.arange(size) % len(data.windows)))

    return largest_batch(steps, peak, limit, max_size)


def fit_card(
    config: TrainConfig, data: Recordings, targets: list[Target], device: torch.device
) -> TrainConfig:
    """Return the options with the sizes of ``--card``, the largest batch that fits, and
    accumulation for the rest.
    """
    if config.card is None:
        return config
    card = CARDS[config.card]
    config = dataclasses.replace(
        config, model=dataclasses.replace(config.model, width=card.width, heads=card.heads)
    )
    limit = min(int(CARD_SHARE * card.gigabytes * 1e9), memory_limit(device))
    sizes = measure_batches(
        config, data, targets, device, limit=limit, max_size=card.effective_batch
    )
    size, accumulation = batch_and_accumulation(card.effective_batch, max(sizes))
    train = dataclasses.replace(
        config.train, batch_size=size, gradient_accumulation_steps=accumulation
    )
    return dataclasses.replace(config, train=train)


def find(config: FindConfig) -> dict[str, Any]:
    """Measure the best learning rate, or the largest batch."""
    _check(config)
    device = prepare_device(config.runtime)
    data = read_recordings(config.recordings)
    targets = make_targets(data, config.labels, config.runtime.seed)
    if config.what == "batch-size":
        limit = memory_limit(device)
        sizes = measure_batches(
            config, data, targets, device, limit=limit, max_size=config.max_size
        )
        return {"largest batch": max(sizes), "peak": f"{sizes[max(sizes)] / 1e9:.2f} GB"}
    task, steps = make_steps(config, data, targets, device)
    batches = (batch for epoch in itertools.count() for batch in task.batches(epoch, 0))
    rate = suggested_learning_rate(learning_rate_curve(steps, batches, config.steps))
    return {"learning rate": f"{rate:.2g}"}


def train(config: TrainConfig) -> int:
    """Train on every split and with every seed, and judge held-out subjects; return the exit
    status.
    """
    files = _check(config)
    files |= {} if config.pretrained is None else {"pretrained": config.pretrained}

    if is_launcher(config.runtime):
        return launch(process_count(config.runtime), sys.argv[1:], MODULE)
    with open_run(config) as run:
        device = prepare_device(config.runtime)
        sized, data, targets, splits = read_inputs(config, device)
        facts = {"device": str(device), "ranks": run.world.size}
        outputs = training_names(config)
        record = describe(f"{MODULE} train", to_dict(config), files, facts, outputs)
        if config.runtime.dry_run:
            run.print_plan(record)
            return FINISHED
        run.begin(record)
        if run.is_finished():
            return FINISHED
        tested: list[npt.NDArray[np.int64]] = []
        predicted: dict[str, list[list[Array]]] = {}
        for fold, split in enumerate(splits):
            folder = run.path if config.labels.cv is None else run.path / f"fold-{fold}"
            folder.mkdir(exist_ok=True)
            write_split(folder / "split.tsv", split)
            rows = data.rows_of(split)
            tested.append(rows["test"])
            network = _train_seeds(sized, run, folder, data, targets, rows, device)
            made: dict[str, list[Array]] = {config.model.network: network}
            if config.baselines:
                made |= baseline_predictions(data, rows["train"], rows["test"], targets)
            for name, values in made.items():
                predicted.setdefault(name, []).append(values)
        joined = {
            name: [np.concatenate(v) for v in zip(*made, strict=True)]
            for name, made in predicted.items()
        }
        run.write_results(_report(run, data, targets, np.concatenate(tested), joined))
    return FINISHED


def read_inputs(config: TrainConfig, device: torch.device) -> TrainInputs:
    """Read and check the inputs of `train`; return them after the options with their sizes.

    Raises
    ------
    InputError
        Problems of the recordings, the targets, the splits or the encoder.
    """
    data = read_recordings(config.recordings)
    targets = make_targets(data, config.labels, config.runtime.seed)
    splits = make_splits(data.subjects, config.labels, config.runtime.seed)
    check_splits(data, targets, splits)
    sized = fit_card(config, data, targets, device)
    decide_execution(config.runtime, device, attention_shapes(data, sized))
    if config.pretrained is not None:
        rows = np.arange(len(data.windows))
        model = build(data, targets, rows, sized.model, config.runtime.seed)
        load_encoder(model, config.pretrained)
    return sized, data, targets, splits


def training_names(config: TrainConfig) -> tuple[str, ...]:
    """Names of what `train` may write."""
    folds = "" if config.labels.cv is None else "fold-*/"
    places = folds + ("seed-*/" if config.seeds > 1 else "")
    runs = (*training_outputs(), *training_outputs(places))
    return ("predictions.tsv", f"{folds}split.tsv", *runs)


def _train_seeds(
    config: TrainConfig,
    run: Run,
    folder: Path,
    data: Recordings,
    targets: list[Target],
    rows: Rows,
    device: torch.device,
) -> list[Array]:
    """Train one network for each seed; return the means of their predictions of the held-out
    windows.
    """
    predicted: list[list[Array]] = []
    for seed in range(config.seeds):
        runtime = dataclasses.replace(config.runtime, seed=config.runtime.seed + seed)
        setting = Setting(config.train, runtime, device, run.world)
        model = build(data, targets, rows["train"], config.model, runtime.seed)
        if config.pretrained is not None:
            load_encoder(model, config.pretrained)
        make_task = functools.partial(
            LabelTask,
            model,
            data,
            rows,
            targets,
            setting=setting,
            options=config.model,
            unfreeze_epochs=config.unfreeze_epochs,
        )
        place = folder if config.seeds == 1 else folder / f"seed-{seed}"
        facts = {
            "model": to_dict(config.model),
            "targets": [[t.name, list(t.classes)] for t in targets],
        }
        state = fit_and_save(
            make_task, config.train, run, place, f"{config.model.network} {place.name}", facts
        )
        model.load_state_dict({name: value.to(device) for name, value in state.tensors.items()})
        predicted.append(predict(model, data, rows["test"], targets, setting))
    return [np.mean(values, axis=0) for values in zip(*predicted, strict=True)]


def _report(
    run: Run,
    data: Recordings,
    targets: list[Target],
    rows: npt.NDArray[np.int64],
    predicted: dict[str, list[Array]],
) -> dict[str, Any]:
    """Print and return the metrics of all predictors by window and by subject, and write
    predictions.tsv.
    """
    results: dict[str, Any] = {"subjects": len(data.subjects), "windows": len(data.windows)}
    results["dropped"] = data.dropped
    table = Table("predictor", "target", "metric", "windows", "subjects")
    for name, of_targets in predicted.items():
        for target, values in zip(targets, of_targets, strict=True):
            metrics = results.setdefault(name, {})[target.name] = scores(target, data, rows, values)
            for metric in ("accuracy", "auroc") if target.classes else ("pearson", "mae"):
                shown = (f"{metrics[level][metric]:.3f}" for level in ("windows", "subjects"))
                table.add_row(name, target.name, metric, *shown)
    if run.world.is_main:
        Console().print(table)
        write_predictions(
            run.path / "predictions.tsv", data, targets, rows, next(iter(predicted.values()))
        )
    return results


def write_predictions(
    path: Path,
    data: Recordings,
    targets: list[Target],
    rows: npt.NDArray[np.int64],
    predicted: list[Array],
) -> None:
    """Write the predictions of the held-out subjects, a row for each: numbers, or the class and its
    probability.
    """
    subjects = np.unique(data.subject[rows])
    columns = {"participant_id": [data.subjects[subject] for subject in subjects]}
    for target, values in zip(targets, predicted, strict=True):
        means = by_subject(data, rows, values)[1]
        if target.classes:
            columns[target.name] = [target.classes[place] for place in means.argmax(1)]
            columns[f"{target.name}_confidence"] = [f"{share:.6f}" for share in means.max(1)]
        else:
            columns[target.name] = [f"{value:.6f}" for value in means]
    lines = [columns, *zip(*columns.values(), strict=True)]
    write_text(path, "\n".join("\t".join(line) for line in lines) + "\n")
