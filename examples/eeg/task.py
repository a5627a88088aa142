"""The tasks that the engine trains: prediction of labels, and pretraining without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from aam.device.distributed import SINGLE, World
from aam.device.precision import autocast
from aam.device.rng import generator
from aam.engine.step import RunningMeans
from aam.engine.task import Metrics, Terms
from aam.evaluate.metrics import (
    unweighted_metrics,
    weighted_classification_metrics,
    weighted_regression_metrics,
)
from aam.options import RunConfig, TrainingOptions
from examples.eeg.config import ModelOptions, PretrainConfig
from examples.eeg.network import Predictor, Pretrainer, augment, contrast
from examples.eeg.recordings import Recordings, Rows, Target
from examples.runs import RowsTask

# Windows that are predicted at a time.
PREDICTED = 256

# The number of validation batches in the run.
VALIDATION = 10**9

Array = npt.NDArray[np.float64]


class Windows(NamedTuple):
    """A batch: windows ``[B, C, T]``, values ``[B, targets]`` (NaN where missing), its number in
    the run.
    """

    x: Tensor
    values: Tensor
    number: int = 0


class Setting(NamedTuple):
    """Settings of both tasks: options of training and run, device and ranks."""

    train: TrainingOptions
    runtime: RunConfig
    device: torch.device
    world: World = SINGLE


def unfreeze(
    model: nn.Module,
    optimizer: Optimizer,
    stages: Sequence[tuple[str, ...]],
    epochs: int,
    epoch: int,
) -> None:
    """Unfreeze by `epoch`: each of `stages` for `epochs`, then everything that the optimizer has.

    Gradual unfreezing (Howard and Ruder 2018); nothing is changed where `epochs` is 0.

    Parameters
    ----------
    stages : sequence of tuple of str
        Beginnings of the names of the parameters that a stage trains.
    """
    if epochs and epoch <= len(stages) * epochs:
        parts = (*stages, ("",))[epoch // epochs]
        optimized = {
            id(parameter) for group in optimizer.param_groups for parameter in group["params"]
        }
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(parts) and id(parameter) in optimized)


class WindowTask(RowsTask):
    """Batches of windows of the training subjects; `values` ``[S, targets]`` are those of their
    subjects.
    """

    def __init__(
        self, model: nn.Module, data: Recordings, rows: Rows, values: Array, setting: Setting
    ) -> None:
        size, seed = setting.train.samples_per_batch, setting.runtime.seed
        super().__init__(model, rows["train"], size, seed, setting.device, setting.world)
        self.data, self.validation, self.setting = data, rows["validation"], setting
        self.values = torch.from_numpy(values).float()

    def take(self, rows: Tensor) -> Windows:
        """Return some windows."""
        places = rows.numpy()
        return Windows(
            torch.from_numpy(self.data.windows[places]), self.values[self.data.subject[places]]
        )

    def prepare(self, batch: Windows, number: int) -> Windows:
        """Return a batch on the device, under its number in the run."""
        return Windows(batch.x.to(self.device), batch.values.to(self.device), number)

    def samples(self, batch: Windows) -> int:
        """Return the windows of a batch on all ranks."""
        return len(batch.x) * self.ranks

    def random(self, name: str, number: int) -> torch.Generator:
        """Return the random numbers of a batch of the run, on this rank."""
        seed = generator(self.seed, name, number, self.world.rank).integers(2**62)
        return torch.Generator().manual_seed(int(seed))


class LabelTask(WindowTask):
    """Numbers by squared error in standard deviations, classes by cross entropy; missing labels are
    left out.

    Parameters
    ----------
    model : Predictor
    data, rows : Recordings, Rows
    targets : list of Target
    setting : Setting
    options : ModelOptions
        Its augmentation is used.
    unfreeze_epochs : int
    """

    best_metric = "val_score"

    def __init__(
        self,
        model: Predictor,
        data: Recordings,
        rows: Rows,
        targets: list[Target],
        *,
        setting: Setting,
        options: ModelOptions,
        unfreeze_epochs: int = 0,
    ) -> None:
        super().__init__(
            model, data, rows, np.stack([target.values for target in targets], 1), setting
        )
        self.predictor, self.targets, self.options = model, targets, options
        self.unfreeze_epochs = unfreeze_epochs
        self.loss_names = tuple(target.name for target in targets)

    def loss_counts(self, batch: Windows) -> dict[str, Tensor]:
        """Return the windows with a label, for each target."""
        counts = (~batch.values.isnan()).float().sum(0)
        return dict(zip(self.loss_names, counts.unbind(), strict=True))

    def losses(self, network: nn.Module, batch: Windows) -> Terms:
        """Return the loss of each target."""
        x = batch.x
        if network.training:
            x = augment(x, self.options, self.random("augment", batch.number))
        with autocast(self.setting.runtime, self.device):
            outputs = network(x)
        counts, terms = self.loss_counts(batch), {}
        for place, (name, output) in enumerate(zip(self.loss_names, outputs, strict=True)):
            total = self._loss(place, output.float(), batch.values[:, place])
            terms[name] = total, counts[name]
        return terms

    def _loss(self, place: int, output: Tensor, values: Tensor) -> Tensor:
        """Return the sum of the losses of a target over the windows that have a label."""
        is_measured = ~values.isnan()
        if self.targets[place].classes:
            return F.cross_entropy(output[is_measured], values[is_measured].long(), reduction="sum")
        mean, deviation = self.predictor.scale[place]
        error: Tensor = output[is_measured, 0] - (values[is_measured] - mean) / deviation
        return error.square().sum()

    def start_epoch(self, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze the parameters that are trained from this epoch on."""
        spectral = ("encoder.spectral.norm", "encoder.spectral.out")
        blocks = ("heads", "encoder.stack", "encoder.pool", *spectral)
        unfreeze(self.model, optimizer, (("heads",), blocks), self.unfreeze_epochs, epoch)

    def validate(self, network: nn.Module) -> Metrics:
        """Return the metrics of the validation subjects; the score is the mean error of all
        targets.
        """
        metrics: Metrics = {}
        errors = []
        predicted = predict(self.predictor, self.data, self.validation, self.targets, self.setting)
        for target, values in zip(self.targets, predicted, strict=True):
            subjects = scores(target, self.data, self.validation, values)["subjects"]
            metrics |= {f"val_{target.name}_{name}": value for name, value in subjects.items()}
            deviation = 1.0 if target.classes else float(np.nanstd(target.values))
            error = 1 - subjects["accuracy"] if target.classes else subjects["rmse"] / deviation
            errors.append(error)
        return {**metrics, **dict.fromkeys(("val_score", "val_loss"), float(np.mean(errors)))}


@torch.no_grad()
def predict(
    model: Predictor,
    data: Recordings,
    rows: npt.NDArray[np.int64],
    targets: list[Target],
    setting: Setting,
) -> list[Array]:
    """Return for each target the numbers ``[N]`` in their own units, or the probabilities ``[N,
    K]``, of windows.
    """
    model.eval()
    parts = []
    for start in range(0, len(rows), PREDICTED):
        x = torch.from_numpy(data.windows[rows[start : start + PREDICTED]]).to(setting.device)
        with autocast(setting.runtime, setting.device):
            parts.append([output.double().cpu() for output in model(x)])
    made, scales = [], model.scale.cpu().double()
    for target, scale, outputs in zip(targets, scales, zip(*parts, strict=True), strict=True):
        output = torch.cat(outputs)
        values = output.softmax(1) if target.classes else output[:, 0] * scale[1] + scale[0]
        made.append(values.numpy())
    return made


def by_subject(
    data: Recordings, rows: npt.NDArray[np.int64], values: Array
) -> tuple[npt.NDArray[np.int64], Array]:
    """Return the subjects of windows, and the mean of their predictions."""
    subjects, place, counts = np.unique(data.subject[rows], return_inverse=True, return_counts=True)
    sums = np.zeros((len(subjects), *values.shape[1:]))
    np.add.at(sums, place, values)
    return subjects, (sums.T / counts).T


def scores(
    target: Target, data: Recordings, rows: npt.NDArray[np.int64], predicted: Array
) -> dict[str, dict[str, float]]:
    """Return the metrics of predictions of windows, by window and by subject; subjects without a
    label are left out.
    """
    measure = weighted_classification_metrics if target.classes else weighted_regression_metrics
    subjects, means = by_subject(data, rows, predicted)
    made = {}
    for name, places, values in (
        ("windows", data.subject[rows], predicted),
        ("subjects", subjects, means),
    ):
        truth = target.values[places]
        is_measured = ~np.isnan(truth)
        labels = truth[is_measured].astype(np.int64 if target.classes else np.float64)
        made[name] = unweighted_metrics(measure, labels, values[is_measured])
    return made


class PretrainingTask(WindowTask):
    """Masked patches are predicted; two windows of a subject are closer to each other than to other
    subjects.
    """

    loss_names = ("masked", "contrast")

    def __init__(
        self,
        model: Pretrainer,
        data: Recordings,
        rows: Rows,
        config: PretrainConfig,
        setting: Setting,
    ) -> None:
        super().__init__(model, data, rows, np.zeros((len(data.subjects), 0)), setting)
        self.pretrainer, self.config = model, config
        # Pairs of a batch.
        self.batch_rows = max(self.batch_rows // 2, 1)
        self.batches_per_epoch = -(-len(self.order(0)) // self.batch_rows)

    def pairs(self, rows: npt.NDArray[np.int64], epoch: int) -> Tensor:
        """Return windows in pairs of one subject ``[N, 2]``, in random order."""
        random = generator(self.seed, "pairs", epoch)
        pairs = []
        for subject in np.unique(self.data.subject[rows]):
            windows = random.permutation(rows[self.data.subject[rows] == subject])
            pairs.append(windows[: len(windows) // 2 * 2].reshape(-1, 2))
        return torch.from_numpy(random.permutation(np.concatenate(pairs)))

    def order(self, epoch: int) -> Tensor:
        """Return the windows of an epoch, in pairs of one subject."""
        return self.pairs(self.rows, epoch)

    def losses(self, network: nn.Module, batch: Windows) -> Terms:
        """Return the error of the masked patches and the contrast of the pairs."""
        random = self.random("mask", batch.number)
        x = augment(batch.x, self.config.model, random) if network.training else batch.x
        drawn = torch.rand(len(x), self.pretrainer.encoder.tokens, generator=random)
        mask = drawn.to(x) < self.config.mask_share
        with autocast(self.setting.runtime, self.device):
            error, vectors = network(x, mask)
        pairs = contrast(vectors.float(), self.config.temperature)
        return {
            "masked": ((error.float() * mask).sum(), mask.float().sum()),
            "contrast": (pairs.sum(), torch.tensor(float(len(pairs)), device=self.device)),
        }

    def validate(self, network: nn.Module) -> Metrics:
        """Return the losses of the validation subjects, with fixed masks and pairs."""
        means = RunningMeans(self.loss_names)
        for number, pairs in enumerate(self.pairs(self.validation, 0).split(self.batch_rows)):
            batch = self.prepare(self.take(pairs.flatten()), VALIDATION + number)
            means.add(self.losses(self.pretrainer, batch))
        return {f"val_{name}": value for name, value in means.read(self.loss_weights).items()}
