"""The microbiome task in training: steps that learn, runs that repeat, validation on masked input,
best weights.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aam.config import CovariateConfig, FineTuneConfig, ModelConfig, TargetConfig, TrainConfig
from aam.data.batch import pad_batch
from aam.data.loader import Collation, Loader, rarefied_batch
from aam.data.rarefaction import EVALUATION
from aam.device.distributed import SINGLE
from aam.device.precision import UNSCALED
from aam.engine import step as step_module
from aam.engine.checkpoint import load, save
from aam.engine.step import StepOutcome, make_optimizer, total_loss, train_step
from aam.engine.trainer import Trainer
from aam.errors import RunError
from aam.model.aam import HeadConfig
from aam.options import RunConfig
from aam.training.finetune import ENCODERS, RATE_OF_ENCODERS, SupervisedTask
from aam.training.inference import encode_table, run_model
from aam.training.losses import make_masks
from aam.training.pretrain import AmpliconTask, Prepared
from tests.data.labels import by_slot, labelled
from tests.engine.conftest import same as same_weights

CPU = torch.device("cpu")
PRETRAIN = HeadConfig("unifrac", (0.5, 0.2), counts=True)
SUPERVISED = HeadConfig(n_targets=2, n_classes=(3,))
ADDED = CovariateConfig(categorical_fusion="add")
CONDITIONED = dataclasses.replace(SUPERVISED, levels=(4, 3), numbers=1, covariates=ADDED)


def config_of(epochs=3, batch_size=4, targets=None, runtime=None, **train) -> FineTuneConfig:
    return FineTuneConfig(
        targets=targets or TargetConfig(),
        model=ModelConfig(embedding_dim=16, attention_heads=2, max_bp=30),
        train=TrainConfig(**{"lr": 3e-3, "epochs": epochs, "batch_size": batch_size, **train}),
        runtime=runtime or RunConfig(),
    )


def supervised(study):
    """The study with two numeric columns and a class column, all drawn at random, some missing."""
    target = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
    target[2, 0] = target[7, 1] = math.nan
    return labelled(study, target=target, label=np.array([0, 1, 2, -1, 0, 1, 2, 0, 1])[:, None])


def conditioned(study):
    """The same with covariates, some unknown."""
    rng = np.random.default_rng(1)
    covariate = rng.normal(size=(9, 1)).astype(np.float32)
    covariate[4] = math.nan
    category = np.stack([rng.integers(0, 4, 9), rng.integers(0, 3, 9)], axis=1)
    return labelled(supervised(study), category=category, covariate=covariate)


def task_class(model) -> type[AmpliconTask]:
    """The task of a network: supervised where it has targets."""
    return SupervisedTask if model.target is not None or model.labels else AmpliconTask


def trainer_of(model, study, config, validation=range(6, 9), report=None, asvs=None) -> Trainer:
    size, workers = config.train.batch_size, config.runtime.num_workers
    how, of_validation = Collation(tokens=asvs is None), np.array(validation, np.int64)
    loaders = (
        Loader(study, np.arange(6), size, True, workers, how),
        Loader(study, of_validation, size, False, workers, how),
    )
    task = task_class(model)(model, config, *loaders, CPU, asvs)
    return Trainer(task, config.train, config.runtime, on_record=report or dict)


def fit(*arguments, **options) -> tuple[Trainer, list[dict], list[dict]]:
    """A run to its end, and what it recorded of its steps and of its epochs."""
    records: list[dict] = []
    trainer = trainer_of(*arguments, **options, report=records.append)
    trainer.fit()
    steps, epochs = ([r for r in records if r["event"] == event] for event in ("step", "epoch"))
    return trainer, steps, epochs


def task_of(model, study, config) -> AmpliconTask:
    loader = Loader(study, np.arange(0), 1)
    return task_class(model)(model, config, loader, loader, CPU)


def one_step(model, study, batches, config, optimizer, first=0) -> StepOutcome:
    """One step of the optimizer on batches, as a run takes it."""
    task = task_of(model, study, config)
    window = [task.prepare(batch, number) for number, batch in enumerate(batches, first)]
    return train_step(model, window, task, optimizer, UNSCALED, SINGLE, config.train.max_grad_norm)


def check_going_on(make, folder, steps) -> tuple[Trainer, Trainer]:
    """A whole run, and one that goes on from the last of its `steps`; all end with the same bits."""
    whole = make()
    whole.after_step = lambda one: save(folder / str(one.progress.step), one.state())
    whole.fit()
    for step in steps:
        resumed = make()
        torch.manual_seed(99)
        resumed.restore(load(folder / str(step)))
        assert resumed.progress.step == step
        resumed.fit()
        assert same_weights(weights_of(resumed.model), weights_of(whole.model))
        assert same_weights(resumed.last_weights, whole.last_weights)
        assert same_weights(resumed.best_weights, whole.best_weights)
        seconds = resumed.progress.seconds
        assert resumed.progress == dataclasses.replace(whole.progress, seconds=seconds)
    return whole, resumed


def weights_of(model) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


# --- a step ------------------------------------------------------------------------------------


def test_steps_of_a_small_model_reduce_every_loss(study_of, tiny, model_of, monkeypatch):
    monkeypatch.setattr("aam.training.losses.MASKED_ASVS", 1.0)
    config = config_of()
    learned = supervised(study_of(**tiny()))
    batch = rarefied_batch(learned, np.arange(9), 0)
    heads = HeadConfig("unifrac", (0.5, 0.2), counts=True, n_targets=2, n_classes=(3,))
    model = model_of(heads, noise=0.0).train()
    task = task_of(model, learned, config)
    optimizer = make_optimizer(model, config.train)

    def losses() -> dict[str, float]:
        with torch.no_grad():
            terms = task.losses(model, task.prepare(batch, 1))
        return {name: float(total / count) for name, (total, count) in terms.items()}

    before = losses()
    assert set(before) == {"unifrac", "nucleotide", "count", "target", "label0"}
    for step in range(40):
        terms, nonfinite, _ = one_step(model, learned, [batch], config, optimizer, step)
        assert not nonfinite
        assert not any(total.requires_grad for total, _ in terms.values())
    after = losses()
    assert after["nucleotide"] < before["nucleotide"], "random bases: there is little to learn"
    assert all(after[name] < 0.7 * before[name] for name in before if name != "nucleotide"), (
        before,
        after,
    )


def test_a_first_step_moves_encoders_less_than_the_heads_that_were_fitted_to_them(study, model_of):
    """Adam's first step is the learning rate in each weight, whatever its gradient."""
    model = model_of(SUPERVISED, noise=0.0)
    before, rate = weights_of(model), 1e-3
    config = config_of(1, batch_size=6, lr=rate, warmup_steps=0, weight_decay=0.0)
    trainer_of(model, supervised(study), config, validation=()).fit()
    moved: dict[bool, float] = {}
    for name, weights in weights_of(model).items():
        is_encoder = name.startswith(ENCODERS)
        most = float((weights - before[name]).abs().max())
        moved[is_encoder] = max(moved.get(is_encoder, 0.0), most)
    assert moved[False] == pytest.approx(rate, rel=1e-2)
    assert moved[True] == pytest.approx(rate * RATE_OF_ENCODERS, rel=1e-2)


# --- a run -------------------------------------------------------------------------------------


def test_a_seed_fixes_every_weight(study, model_of):
    def fitted(runtime: RunConfig, dropout: float = 0.1) -> dict[str, Tensor]:
        torch.manual_seed(runtime.seed)
        model = model_of(PRETRAIN, noise=0.0, dropout=dropout)
        seeded = dataclasses.replace(study, seed=runtime.seed)
        trainer = trainer_of(model, seeded, config_of(2, runtime=runtime))
        trainer.fit()
        return weights_of(trainer.model)

    first = fitted(RunConfig(seed=4))
    assert same_weights(fitted(RunConfig(seed=4)), first)
    assert same_weights(fitted(RunConfig(seed=4, num_workers=1)), first), (
        "one more worker changes no bit"
    )
    assert not same_weights(fitted(RunConfig(seed=5)), first)


def test_validation_samples_without_a_value_choose_no_epoch(study, model_of):
    learned = supervised(study)
    target, label = learned.labels.target.copy(), learned.labels.label.copy()
    target[6:], label[6:] = math.nan, -1
    without = labelled(study, target=target, label=label)
    with pytest.raises(RunError, match="val_loss is finite in no epoch"):
        trainer_of(model_of(SUPERVISED), without, config_of(2)).fit()


# --- going on ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "options"),
    [
        (PRETRAIN, {"ema_decay": 0.7}),
        (CONDITIONED, {"batch_size": 1, "gradient_accumulation_steps": 2, "ema_decay": 0.7}),
    ],
    ids=["pretraining", "covariates"],
)
def test_a_run_that_goes_on_ends_as_if_it_had_never_stopped(
    study, model_of, tmp_path, heads, options
):
    targets = TargetConfig(metadata_column=() if heads is PRETRAIN else ("a", "b", "c"))
    config = config_of(3, targets=targets, **{"patience": 3, "batch_size": 2, **options})
    learned = study if heads is PRETRAIN else conditioned(study)

    records: list[list[dict]] = []

    def trainer() -> Trainer:
        torch.manual_seed(3)
        model = model_of(heads, noise=0.0, dropout=0.2)
        records.append([])
        made = trainer_of(model, learned, config, report=records[-1].append)
        made.task.train = dataclasses.replace(
            made.task.train, collation=Collation(covariate_dropout=0.4)
        )
        return made

    # In the first epoch, before any validation; amid a later one; with the last validation alone
    # left.
    whole, _ = check_going_on(trainer, tmp_path, (1, 5, 9))
    assert whole.progress.step == 9
    for record in itertools.chain(*records):
        record.pop("samples_per_s", None)
    for after in records[1:]:
        assert after == records[0][len(records[0]) - len(after) :]


# --- several batches a step --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "heads"), [((4, 4, 1), SUPERVISED), ((1, 8), CONDITIONED)], ids=["plain", "weighted"]
)
def test_batches_of_a_step_weigh_as_one(study, model_of, sizes, heads):
    """Uneven batches with missing targets: gradients are those of all samples at once."""
    learned = conditioned(study) if heads is CONDITIONED else supervised(study)
    config = config_of(nuc_penalty=0.0, count_penalty=0.0, max_grad_norm=0.05)
    gradients, losses = [], []
    ends = np.cumsum([0, *sizes])
    for parts in ([np.arange(9)], [np.arange(a, b) for a, b in itertools.pairwise(ends)]):
        model = model_of(heads).train()
        batches = [rarefied_batch(learned, rows, 0) for rows in parts]
        step = one_step(model, learned, batches, config, make_optimizer(model, config.train))
        found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        gradients.append(torch.cat(found))
        losses.append({name: float(total / count) for name, (total, count) in step.terms.items()})
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-7)
    assert gradients[1].norm().item() == pytest.approx(0.05, rel=1e-3), "clipped once, as a whole"
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


# --- validation --------------------------------------------------------------------------------


def test_validation_is_on_masked_input(study, model_of):
    """Failure 4 of the predecessor. Each term is computed here, sample by sample and base by
    base.
    """
    weights = {"unifrac": 0.5, "nucleotide": 2.0, "count": 3.0}
    config = config_of(1, lr=1e-30, penalty=0.5, nuc_penalty=2.0, count_penalty=3.0)
    model = model_of(PRETRAIN)
    (metrics,) = fit(model, study, config)[2]
    sums: dict[str, float] = dict.fromkeys(("nucleotide", "count", "unifrac"), 0.0)
    counts: dict[str, int] = dict.fromkeys(sums, 0)
    batch = rarefied_batch(study, np.array([6, 7, 8]), EVALUATION)
    masks = make_masks(batch, config.train, 0, EVALUATION)
    with torch.no_grad():
        outputs = model(batch, masks)
        unmasked = model(
            batch, dataclasses.replace(masks, tokens=batch.tokens[masks.rows])
        ).nucleotides[masks.where]
    for row, place in masks.where.nonzero().tolist():
        assert masks.tokens[row, place] == 6
        truth = int(batch.tokens[masks.rows[row], place]) - 1
        sums["nucleotide"] -= float(outputs.nucleotides[row, place].log_softmax(0)[truth])
        counts["nucleotide"] += 1
    for i in range(3):
        for j in range(i + 1, 3):
            sums["unifrac"] += float(outputs.distance[i, j] - batch.distance[i, j]) ** 2 / 0.2**2
            counts["unifrac"] += 1
    shares = by_slot(batch, outputs.counts)
    for sample, slot in masks.counts.nonzero().tolist():
        error = abs(float(shares[sample, slot]) - math.log(float(batch.counts[sample, slot]) / 40))
        sums["count"] += error - 0.5 if error > 1 else error**2 / 2
        counts["count"] += 1
    assert min(counts.values()) >= 3
    for name, total in sums.items():
        assert metrics[f"val_{name}"] == pytest.approx(total / counts[name], rel=1e-4)
    expected = sum(weights[name] * sums[name] / counts[name] for name in sums)
    assert metrics["val_loss"] == pytest.approx(expected, rel=1e-4)
    truth = batch.tokens[masks.rows][masks.where].long() - 1
    assert abs(F.cross_entropy(unmasked, truth).item() - metrics["val_nucleotide"]) > 1e-3


def test_scores_are_those_of_the_predictions(study, model_of):
    """On whole input, some targets missing; the loss that decides is that of these predictions
    too.
    """
    learned, model = supervised(study), model_of(HeadConfig("unifrac", (0.5, 0.2), True, 2, (3,)))
    metrics = fit(model, learned, config_of(1, 64, lr=1e-30), validation=range(2, 9))[2][-1]
    predicted = run_model(model, learned, np.arange(2, 9), CPU, RunConfig())
    truth, label = learned.labels.target[2:], learned.labels.label[2:, 0]
    errors = np.abs(predicted.target - truth)
    assert metrics["val_mae"] == pytest.approx(np.nanmean(errors, axis=0).mean(), rel=1e-5)
    spread = np.nansum((truth - np.nanmean(truth, axis=0)) ** 2, axis=0)
    assert metrics["val_r2"] == pytest.approx(
        (1 - np.nansum(errors**2, axis=0) / spread).mean(), rel=1e-4
    )
    hits = predicted.probabilities[0].argmax(1) == label
    assert metrics["val_accuracy"] == pytest.approx(hits[label >= 0].mean())
    assert metrics["val_loss"] == pytest.approx(metrics["val_target"] + metrics["val_label0"])
    huber = np.nanmean(np.where(errors > 1, errors - 0.5, errors**2 / 2))
    assert metrics["val_target"] == pytest.approx(huber, rel=1e-5)


@pytest.mark.parametrize(("metric", "sign"), [("r2", -1), ("mae", 1)])
def test_the_metric_that_was_asked_for_decides(study, model_of, metric, sign):
    config = config_of(3, patience=0, lr=0.01, targets=TargetConfig(best_metric=metric))
    trainer, _, epochs = fit(model_of(SUPERVISED), supervised(study), config, range(3, 9))
    scores = [sign * record[f"val_{metric}"] for record in epochs]
    assert len(set(scores)) > 1
    assert trainer.progress.best_epoch == epochs[int(np.argmin(scores))]["epoch"]
    assert trainer.progress.best == min(scores)


# --- frozen ------------------------------------------------------------------------------------


def test_a_frozen_trunk_stays_and_its_heads_learn_the_same(study, model_of):
    """With ASV vectors computed once the heads get the gradients that they get from sequences."""
    learned, config = supervised(study), config_of(2, lr=0.01, nuc_penalty=0.0, count_penalty=0.0)
    fitted = []
    for beforehand in (False, True):
        model = model_of(SUPERVISED)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(("target", "labels")))
        start = weights_of(model)
        asvs = encode_table(model, study, CPU, RunConfig()) if beforehand else None
        trainer_of(model, learned, config, asvs=asvs).fit()
        end = weights_of(model)
        for name in start:
            assert torch.equal(start[name], end[name]) != name.startswith(("target", "labels")), (
                name
            )
        fitted.append(end)
    for name, value in fitted[0].items():
        torch.testing.assert_close(value, fitted[1][name], rtol=1e-3, atol=1e-5)


# --- covariates --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["frozen", "averaged", "recomputed"])
def test_validation_and_prediction_read_covariates_as_training_does(study, model_of, way):
    """Failure 3 of the predecessor: in validation of a wrapped model they were silently dropped."""
    learned, model = conditioned(study), model_of(CONDITIONED)
    more = {"ema_decay": 0.5} if way == "averaged" else {}
    targets = TargetConfig(metadata_column=("a", "b", "c"))
    config = config_of(1, targets=targets, **more)
    if way == "recomputed":
        model.bound_memory(3, True)
    asvs = encode_table(model, learned, CPU, config.runtime) if way == "frozen" else None
    losses, category = [], learned.labels.category
    for study_read in (learned, labelled(learned, category=0 * category)):
        trainer = trainer_of(copy.deepcopy(model), study_read, config, asvs=asvs)
        losses.append(trainer._validate()["val_loss"])
        rows = np.arange(6, 9)
        predicted = run_model(model, study_read, rows, CPU, config.runtime)
        with torch.no_grad():
            for batch in trainer.task.validation.epoch(EVALUATION):
                prepared = Prepared(pad_batch(batch), None if asvs is None else asvs[batch.column])
                outputs, _ = trainer.task.outputs(model.eval(), prepared)
                order = [predicted.sample_ids.index(one) for one in batch.sample_ids]
                np.testing.assert_allclose(predicted.target[order], outputs.target, atol=1e-5)
    assert abs(losses[0] - losses[1]) > 1e-3


# --- half precision: the scale of the loss in fp16 is searched, and kept in checkpoints --------


def half_trainer_of(study, model_of, precision: str, epochs: int = 2, made=trainer_of):
    runtime = RunConfig(device="cpu", mixed_precision=precision)
    config = config_of(epochs, 3, patience=0, runtime=runtime)
    return made(model_of(PRETRAIN, noise=0.0), study, config)


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_training_in_half_precision_learns_what_float32_learns(study, model_of, half):
    losses = {}
    for precision in ("none", half):
        _, _, epochs = half_trainer_of(study, model_of, precision, made=fit)
        losses[precision] = [record["val_loss"] for record in epochs]
    assert losses[half] == pytest.approx(losses["none"], rel=0.05)
    assert losses[half] != losses["none"]


def test_a_gradient_that_overflows_changes_no_weight_and_halves_the_factor(
    study, model_of, monkeypatch
):
    trainer = half_trainer_of(study, model_of, "fp16", epochs=1)
    monkeypatch.setattr(step_module, "total_loss", lambda *terms: total_loss(*terms) * 1e34)
    before = weights_of(trainer.model)
    trainer.fit()
    assert trainer.progress.step == 2
    assert same_weights(before, trainer.last_weights)
    assert trainer.scaler.get_scale() == 1024 / 4


def test_a_run_in_fp16_goes_on_with_its_factor(study, model_of, tmp_path):
    def trainer() -> Trainer:
        made = half_trainer_of(study, model_of, "fp16")
        made.scaler.load_state_dict({**made.scaler.state_dict(), "growth_interval": 2})
        return made

    whole, resumed = check_going_on(trainer, tmp_path, (1, 3))
    assert resumed.scaler.state_dict() == whole.scaler.state_dict()
    assert whole.scaler.get_scale() != 1024
