"""How training starts and moves: heads, weights taken over, linear models fitted, optimizer, learning rate."""

from __future__ import annotations

import logging
import math
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.config import FineTuneConfig, TrainConfig
from aam.data.loader import draw_batch
from aam.data.study import Study
from aam.data.supervision import Covariates
from aam.data.targets import Targets
from aam.errors import InputError
from aam.model.aam import Aam
from aam.model.heads import HeadConfig, Readout, TargetHead
from aam.runtime.device import precision
from aam.runtime.distributed import placed
from aam.training.inference import AsvVectors, run_model
from aam.training.losses import class_weights

Array = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
Linear = tuple[Array, Array]
Model = TypeVar("Model", Ridge, LogisticRegression)

log = logging.getLogger("aam")

SCALE_SAMPLES = 256
DRAWS = 2
PENALTIES = (1e0, 1e1, 1e2, 1e3, 1e4)
# Without held-out samples.
UNTRIED = 1e2
# Intercept of a class that no training sample has.
ABSENT = -10.0
# Parts of a network that an encoder does not have, and those that read categories.
NEW_PARTS = ("target", "labels", "covariates")
CONDITIONED = ("covariates", "target.factors", "target.offsets")


def _scale(study: Study, train_ids: Sequence[str]) -> tuple[float, float]:
    """Mean and standard deviation of the distance, or of Faith PD, in one draw of the training samples."""
    batch = draw_batch(study, study.rows(train_ids[:SCALE_SAMPLES]), 0, tokens=False)
    values = batch.faith_pd
    if batch.distance is not None:
        rows, columns = torch.triu_indices(len(batch.distance), len(batch.distance), 1)
        values = batch.distance[rows, columns]
    if values is None or len(values) < 2 or not values.std() > 0:
        return 0.0, 1.0
    return float(values.double().mean()), float(values.double().std())


def head_config(
    config: FineTuneConfig, study: Study, targets: Targets, covariates: Covariates, train_ids: Sequence[str]
) -> HeadConfig:
    """The heads that `config` asks for, with what the training samples say of distances and targets."""
    metric = study.metric if config.train.penalty > 0 else None
    names = config.covariates.categorical_columns
    return HeadConfig(
        metric=metric,
        scale=(0.0, 1.0) if metric is None else _scale(study, train_ids),
        counts=config.train.count_penalty > 0,
        n_targets=len(targets.numeric),
        n_classes=tuple(len(spec.labels) for spec in targets.classes),
        losses=tuple(spec.loss for spec in targets.numeric),
        quantiles=config.targets.quantiles,
        **{
            name: tuple(spec.encoded(edge[at]) for spec in targets.numeric if (edge := (*(spec.bounds or ()), 0.0)))
            for at, name in enumerate(("low", "high", "zero"))
        },
        levels=tuple(1 + len(levels) for levels in covariates.categorical.values()),
        numbers=len(covariates.numeric),
        scaled_by=tuple(names.index(name) for name in config.covariates.conditional_output_scaling),
        regressor=config.regressor,
        covariates=config.covariates,
    )


def _chosen(models: Sequence[Model], errors: Array) -> Model:
    """The most regularized model whose held-out error is within a standard error of the lowest.

    `models` go from weak to strong penalty; `errors` [models, held-out draws]. The standard error is that of
    the paired difference (the one-standard-error rule of Breiman et al. 1984, section 3.4.3).
    """
    if not errors.shape[1]:
        return models[PENALTIES.index(UNTRIED)]
    apart = errors - errors[errors.mean(axis=1).argmin()]
    near = apart.mean(axis=1) <= apart.std(axis=1) / math.sqrt(max(errors.shape[1] / DRAWS, 1))
    return models[int(np.flatnonzero(near).max())]


def _ridge(x: Array, y: Array, held_x: Array, held_y: Array, weight: Array) -> Linear:
    """Ridge regression; held-out samples choose the penalty by their absolute errors."""
    models = [Ridge(alpha=penalty).fit(x, y, weight) for penalty in PENALTIES]
    errors = [np.abs(model.predict(held_x) - held_y) if len(held_y) else held_y for model in models]
    best = _chosen(models, np.stack(errors))
    return best.coef_[None], np.array([best.intercept_])


def _logistic(x: Array, y: Labels, held_x: Array, held_y: Labels, weight: Array, classes: int) -> Linear:
    """Logistic regression; held-out samples choose the penalty by their likelihoods."""
    known = np.unique(y)
    inside = np.isin(held_y, known)
    true = np.searchsorted(known, held_y[inside])

    def errors(model: LogisticRegression) -> Array:
        if not len(true):
            return np.zeros(0)
        chosen = model.predict_proba(held_x[inside])[np.arange(len(true)), true]
        return np.asarray(-np.log(np.maximum(chosen, 1e-12)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        models = [LogisticRegression(C=1 / penalty, max_iter=200).fit(x, y, weight) for penalty in PENALTIES]
    best = _chosen(models, np.stack([errors(model) for model in models]))
    coefficients, intercepts = best.coef_, best.intercept_
    if len(known) == 2:
        coefficients, intercepts = np.r_[-coefficients, coefficients] / 2, np.r_[-intercepts, intercepts] / 2
    weight, bias = np.zeros((classes, x.shape[1])), np.full(classes, ABSENT)
    weight[known], bias[known] = coefficients, intercepts
    return weight, bias


def _set(layer: nn.Linear, rows: slice, found: Linear, mean: Array, spread: Array) -> None:
    """Write a linear model of standardized vectors into a layer that reads them as they are."""
    weight = found[0] / spread
    with torch.no_grad():
        layer.weight[rows] = torch.from_numpy(weight).to(layer.weight)
        layer.bias[rows] = torch.from_numpy(found[1] - weight @ mean).to(layer.bias)


def fit_heads(
    network: Aam, study: Study, sides: tuple[Rows, Rows], asvs: AsvVectors, device: torch.device, config: FineTuneConfig
) -> None:
    """Fit the linear part of every target head on the vectors of the training samples, weighted as the loss is.

    `sides` are the rows that train and those that validate; only the strength of regularization looks at the latter.
    """
    (train, validation), runtime = sides, config.runtime
    own = np.tile(np.ones(len(train)) if study.weight is None else study.weight[train].astype(float), DRAWS)

    def draws(rows: Rows) -> Array:
        return np.concatenate([run_model(network, study, rows, device, runtime, n, asvs).read for n in range(DRAWS)])

    drawn = draws(train)
    held_drawn = draws(validation) if len(validation) else drawn[:0]

    def standardized(head: Readout) -> tuple[Array, Array, Array, Array]:
        with torch.inference_mode():
            read = [head.features(torch.from_numpy(rows).float().to(device)) for rows in (drawn, held_drawn)]
        x, held_x = (features.double().cpu().numpy() for features in read)
        mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-6
        return (x - mean) / spread, (held_x - mean) / spread, mean, spread

    if network.target is not None and study.target is not None:
        _fit_numbers(network.target, study.target[train], study.target[validation], own, *standardized(network.target))
    for column, head in enumerate(network.labels):
        if study.label is None or not isinstance(head, Readout):
            raise TypeError("class heads need the labels of the study")
        x, held_x, mean, spread = standardized(head)
        label, held_label = (np.tile(study.label[rows, column], DRAWS) for rows in (train, validation))
        known, held, classes = label >= 0, held_label >= 0, head.linear.out_features
        (of_class,) = class_weights(config.targets.class_weights, study.label[train][:, [column]], [classes])
        weight = own if of_class is None else own * of_class.double().numpy()[label]
        found = _logistic(x[known], label[known], held_x[held], held_label[held], weight[known], classes)
        _set(head.linear, slice(None), found, mean, spread)


def _fit_numbers(
    head: TargetHead, target: Floats, held_target: Floats, weight: Array,
    x: Array, held_x: Array, mean: Array, spread: Array,
) -> None:  # fmt: skip
    """Fit each numeric column; quantiles start as those of its residuals."""
    for column in range(target.shape[1]):
        y, held_y = (
            np.tile(head.unlinked(torch.from_numpy(values[:, column]).to(head.edges), column).double().cpu(), DRAWS)
            for values in (target, held_target)
        )
        known, held = np.isfinite(y), np.isfinite(held_y)
        found = _ridge(x[known], y[known], held_x[held], held_y[held], weight[known])
        _set(head.linear, slice(column, column + 1), found, mean, spread)
        if head.steps is not None:
            residual = y[known] - (x[known] @ found[0][0] + found[1][0])
            gaps = np.maximum(np.diff(np.quantile(residual, head.levels)), 1e-3)
            place = head.steps.bias.detach().view(len(gaps), -1)
            place[:, column] = torch.from_numpy(np.log(np.expm1(gaps))).to(place)


def take_weights(network: Aam, start: Aam, source: Path, alike: bool) -> None:
    """Copy what fits from `start`, and say what was loaded, what is new and what was ignored.

    What reads covariates and targets is taken only where both are `alike`. Raises `InputError` where nothing fits.
    """
    have, own = start.state_dict(), network.state_dict()
    have = {name: value for name, value in have.items() if alike or not name.startswith(NEW_PARTS)}
    loaded = [name for name in own if name in have and own[name].shape == have[name].shape]
    if not loaded:
        raise InputError(f"{source}: no weight of it fits this model; pretrain again with the same sizes")
    network.load_state_dict({**own, **{name: have[name] for name in loaded}})
    parts = {"loaded": loaded, "new": own.keys() - set(loaded), "ignored": start.state_dict().keys() - set(loaded)}
    for title, names in parts.items():
        heads = sorted({name.split(".")[0] for name in names})
        log.info("%s: %d tensors %s%s", source, len(names), title, f" ({', '.join(heads)})" if heads else "")


def freeze_base(network: Aam) -> None:
    """Let only the target heads learn."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.startswith(NEW_PARTS))


def thaw(network: Aam, optimizer: Optimizer, epochs: int, epoch: int) -> None:
    """Let learn what may in `epoch`: for `epochs` the new heads alone, then the sample encoder too, then everything.

    Gradual unfreezing (Howard and Ruder 2018), in three stages; nothing is changed where `epochs` is 0.
    """
    if epochs and epoch <= 2 * epochs:
        parts = (NEW_PARTS, (*NEW_PARTS, "sample"), ("",))[epoch // epochs]
        learning = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(name.startswith(parts) and id(parameter) in learning)


def make_optimizer(model: nn.Module, config: TrainConfig, categorical_lr: float | None = None) -> Optimizer:
    """AdamW, Adam or SGD over the trainable parameters, fused; only weight matrices decay.

    What reads categories learns at `categorical_lr`: ``factor`` of a group multiplies the rate of the moment.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    ways = [(trainable, 1.0)]
    if categorical_lr is not None:
        named = {id(p) for name, p in model.named_parameters() if name.startswith(CONDITIONED)}
        ways = [
            ([p for p in trainable if (id(p) in named) == one], f)
            for one, f in ((False, 1.0), (True, categorical_lr / config.lr))
        ]
    groups = [
        {"params": [p for p in parameters if (p.ndim >= 2) == matrices], "weight_decay": decay, "factor": factor}
        for parameters, factor in ways
        for matrices, decay in ((True, config.weight_decay), (False, 0.0))
    ]
    if config.optimizer != "sgd":
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        return kind(groups, lr=config.lr, fused=True)
    sgd = torch.optim.SGD(groups, lr=config.lr, momentum=0.9, fused=True)
    for parameter in trainable:
        # Left to torch, a first step that is skipped would leave what memory held.
        sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def moments(optimizer: Optimizer) -> dict[str, Tensor]:
    """What an optimizer remembers, as ``PARAMETER.NAME``."""
    state = optimizer.state_dict()["state"]
    return {f"{place}.{name}": value for place, values in state.items() for name, value in values.items()}


def take_moments(optimizer: Optimizer, remembered: dict[str, Tensor]) -> None:
    """Put back what `moments` gave."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = defaultdict(dict)
    for name, value in remembered.items():
        place, _, kind = name.partition(".")
        like = parameters[int(place)]
        state[int(place)][kind] = placed(value, like) if value.shape == like.shape else value
    optimizer.load_state_dict({"state": dict(state), "param_groups": optimizer.state_dict()["param_groups"]})


def warmup_steps(config: TrainConfig, total: int) -> int:
    """Steps of warm-up: as asked, or a tenth of the run up to 1,000; always shorter than the run."""
    asked = min(1000, total // 10) if config.warmup_steps is None else config.warmup_steps
    return min(asked, max(total - 1, 0))


def _cosine(share: float) -> float:
    """From 1 at 0 to 0 at 1 along half a cosine; past the end it stays."""
    return 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


def learning_rate(config: TrainConfig, step: int, total: int, epoch_steps: int = 1, plateaus: int = 0) -> float:
    """Learning rate of `step` (from 0) in a run of `total` steps; past the end it stays at its last value.

    ``cosine_restarts`` is that of Loshchilov and Hutter (2017), with periods in epochs of `epoch_steps`; ``onecycle``
    that of Smith and Topin (2019) with torch's proportions; ``plateau`` lowers the rate `plateaus` times.
    """
    low, high = config.scheduler_eta_min, config.lr
    if config.scheduler == "onecycle":
        top = max(0.3 * total - 1, 0.0)
        if step < top:
            return high / 25 + (high - high / 25) * (1 - _cosine(step / top))
        return high / 25e4 + (high - high / 25e4) * _cosine((step - top) / max(total - 1 - top, 1))
    warmup = 0 if config.scheduler == "cosine" else warmup_steps(config, total)
    if step < warmup:
        return high * (step + 1) / warmup
    if config.scheduler == "constant":
        return high
    if config.scheduler == "plateau":
        return max(high * config.scheduler_factor**plateaus, min(config.scheduler_min_lr, high))
    done, period = step - warmup, float(total - warmup)
    if config.scheduler == "cosine_restarts":
        period = float(config.scheduler_t0 * epoch_steps)
        while done >= period:
            done, period = done - int(period), period * config.scheduler_t_mult
    return low + (high - low) * _cosine(done / max(period, 1))


class Scaler(torch.amp.GradScaler):
    """Scales the loss so that gradients survive in fp16, by a factor that it looks for; elsewhere it does nothing."""

    def moved(self, broken: Tensor) -> Tensor:
        """Move on after a step; whether one that was `broken` is more than the search for a factor, which ends at 1."""
        broken = broken & (self.scale(torch.ones_like(broken, dtype=torch.float32)) <= 1)
        self.update()
        return broken


UNSCALED = Scaler("cpu", enabled=False)
# torch starts at 65,536: each halving from there costs a step, and small studies have few.
FACTOR = 1024.0


def make_scaler(config: FineTuneConfig, device: torch.device) -> Scaler:
    """A scaler for fp16; in every other precision one that does nothing."""
    return Scaler(device.type, FACTOR, enabled=precision(config.runtime, device) == torch.float16)
