"""Running a trained model, every ASV encoded once; predictions in original units, written and read."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from aam.config import RuntimeConfig
from aam.data.batch import Batch
from aam.data.loader import Loader
from aam.data.study import EVALUATION, Study
from aam.data.targets import TargetSpec
from aam.errors import InputError
from aam.model.aam import Aam, Outputs
from aam.runtime.device import autocast
from aam.runtime.distributed import World
from aam.runtime.files import write_text
from aam.training.checkpoint import SavedModel
from aam.training.metrics import Conformal, classification_metrics, regression_metrics

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

ASVS_AT_ONCE = 1024
SAMPLES_AT_ONCE = 128
# Columns TARGET.SUFFIX: standard deviation over the models of an ensemble, limits of the conformal interval.
MEMBERS, LOW, HIGH = "member-sd", "low", "high"


@dataclass(frozen=True, eq=False)
class AsvVectors:
    """Vectors ``[F, D]`` of every ASV of a table, on the device."""

    vectors: Tensor

    def of(self, batch: Batch) -> Tensor:
        """Those of the batch's distinct ASVs, ``[U, D]``."""
        if batch.column is None:
            raise ValueError("the batch does not say which columns of the table its ASVs are")
        return self.vectors[batch.column]


def encode_table(model: Aam, study: Study, device: torch.device, config: RuntimeConfig) -> AsvVectors:
    """Encode every ASV of the table once, those of one length together so that nothing is padded."""
    order = torch.from_numpy(np.argsort(study.lengths, kind="stable"))
    lengths = torch.from_numpy(study.lengths)[order]
    vectors = torch.empty(len(order), model.asv.position.shape[1], device=device)
    at_once = config.asv_chunk_size or ASVS_AT_ONCE
    model.eval()
    with torch.inference_mode(), autocast(config, device):
        for start in range(0, len(order), at_once):
            chosen = order[start : start + at_once]
            shortest, longest = int(lengths[start]), int(lengths[start + len(chosen) - 1])
            tokens = study.tokens[chosen, :longest].to(device)
            _, encoded = model.asv(tokens, shortest < longest)
            vectors[chosen.to(device)] = encoded.float()
    return AsvVectors(vectors)


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predictions: `target` [N, T] in transformed units, and [N, classes] for each class column."""

    sample_ids: tuple[str, ...]
    target: Array
    probabilities: tuple[Array, ...]
    samples: Array

    @staticmethod
    def joined(parts: Sequence[Predicted]) -> Predicted:
        """One after the other."""
        return Predicted(
            sum((part.sample_ids for part in parts), ()),
            np.concatenate([part.target for part in parts]),
            tuple(np.concatenate(columns) for columns in zip(*(p.probabilities for p in parts), strict=True)),
            np.concatenate([part.samples for part in parts]),
        )

    def of_all(self, world: World, study: Study) -> Predicted:
        """Those of all ranks."""
        if world.size == 1:
            return self
        rows = np.concatenate(world.arrays(study.rows(self.sample_ids)))
        target, samples, *probabilities = (
            np.concatenate(world.arrays(values)) for values in (self.target, self.samples, *self.probabilities)
        )
        names = tuple(study.table.sample_ids[row] for row in rows)
        return Predicted(names, target, tuple(probabilities), samples)

    def ordered(self, sample_ids: Sequence[str]) -> Predicted:
        """In the order of `sample_ids`."""
        place = {name: row for row, name in enumerate(self.sample_ids)}
        rows = np.array([place[name] for name in sample_ids], np.int64)
        probabilities = tuple(column[rows] for column in self.probabilities)
        return Predicted(tuple(sample_ids), self.target[rows], probabilities, self.samples[rows])


def collect(outputs: Outputs, batch: Batch) -> Predicted:
    """The predictions of one batch on the host, in float64."""

    def host(values: Tensor) -> Array:
        return values.detach().double().cpu().numpy()

    target = np.zeros((len(batch.sample_ids), 0)) if outputs.target is None else host(outputs.target)
    probabilities = tuple(host(torch.softmax(logits.float(), dim=-1)) for logits in outputs.labels)
    return Predicted(batch.sample_ids, target, probabilities, host(outputs.samples))


def mean_scores(
    target: npt.NDArray[np.float32] | None, label: Rows | None, rows: Rows, predicted: Predicted
) -> dict[str, float]:
    """The figures that choose an epoch, each the mean over the columns that have it, in transformed units.

    `target` [N, T] and `label` [N, K] are those of a study, `rows` those of the samples that were predicted.
    """
    collected: dict[str, list[float]] = {}
    for truth, values in () if target is None else zip(target[rows].T, predicted.target.T, strict=True):
        known = np.isfinite(truth)
        scores = regression_metrics(truth[known], values[known])
        for name in ("mae", "r2"):
            collected.setdefault(name, []).append(scores[name])
    for classes, shares in () if label is None else zip(label[rows].T, predicted.probabilities, strict=True):
        scores = classification_metrics(classes[classes >= 0], shares[classes >= 0])
        for name, key in (("accuracy", "accuracy"), ("f1", "macro_f1"), ("auroc", "auroc")):
            collected.setdefault(name, []).append(scores[key])
    return {name: float(np.mean(values)) for name, values in collected.items()}


def run_model(
    model: Aam,
    study: Study,
    rows: npt.NDArray[np.int64],
    device: torch.device,
    config: RuntimeConfig,
    draw: int = EVALUATION,
    asvs: AsvVectors | None = None,
) -> Predicted:
    """Predict the samples at `rows` from one rarefied draw; every distinct ASV is encoded once."""
    asvs = encode_table(model, study, device, config) if asvs is None else asvs
    loader = Loader(study, rows, SAMPLES_AT_ONCE, workers=config.num_workers, tokens=False, distances=False)
    model.eval()
    parts = []
    with torch.inference_mode(), autocast(config, device):
        for batch in loader.epoch(draw):
            moved = batch.to(device)
            parts.append(collect(model(moved, None, asvs.of(moved)), moved))
    return Predicted.joined(parts).ordered([study.table.sample_ids[row] for row in rows])


@dataclass(frozen=True, eq=False)
class PredictionTable:
    """One row per sample.

    Attributes
    ----------
    sample_ids : tuple of str [N]
    specs : tuple of TargetSpec
        The targets, in the order of their columns.
    values : dict of target to float64 [N]
        Numeric targets in their own units; NaN where no prediction was made.
    spreads : dict of target to float64 [N]
        Standard deviation over rarefied draws, when there were several.
    probabilities : dict of target to float64 [N, classes]
    notes : tuple of str [N]
        Why a value is missing; empty otherwise.
    folds : tuple of str [N]
        Fold in which the sample was held out; empty without folds.
    derived : dict of column to float64 [N]
        What more is said of numeric targets, by name of the column: `MEMBERS`, `LOW` and `HIGH` after a dot.
    """

    sample_ids: tuple[str, ...]
    specs: tuple[TargetSpec, ...]
    values: dict[str, Array]
    spreads: dict[str, Array]
    probabilities: dict[str, Array]
    notes: tuple[str, ...]
    folds: tuple[str, ...]
    derived: dict[str, Array] = field(default_factory=dict)

    def limits(self, target: str) -> Array | None:
        """Limits of the conformal intervals of a target, [N, 2], if there are any."""
        low, high = (self.derived.get(f"{target}.{suffix}") for suffix in (LOW, HIGH))
        return None if low is None or high is None else np.stack([low, high], axis=1)

    def with_limits(self, target: str, limits: Array) -> PredictionTable:
        """The table with the conformal intervals [N, 2] of a target."""
        ends = {f"{target}.{suffix}": limits[:, at] for at, suffix in enumerate((LOW, HIGH))}
        return replace(self, derived={**self.derived, **ends})

    def with_rows(self, sample_ids: Sequence[str], notes: dict[str, str]) -> PredictionTable:
        """Rows for `sample_ids` in their order; those without a prediction are empty and say why."""
        place = {name: row for row, name in enumerate(self.sample_ids)}
        rows = np.array([place.get(name, -1) for name in sample_ids], np.int64)

        def laid_out(values: Array) -> Array:
            result = np.full((len(rows), *values.shape[1:]), math.nan)
            result[rows >= 0] = values[rows[rows >= 0]]
            return result

        return replace(
            self,
            sample_ids=tuple(sample_ids),
            values={name: laid_out(column) for name, column in self.values.items()},
            spreads={name: laid_out(column) for name, column in self.spreads.items()},
            probabilities={name: laid_out(columns) for name, columns in self.probabilities.items()},
            derived={name: laid_out(column) for name, column in self.derived.items()},
            notes=tuple(notes.get(name, "") for name in sample_ids),
            folds=tuple(self.folds[row] if row >= 0 else "" for row in rows),
        )


def _of_same_labels(tables: Sequence[PredictionTable]) -> tuple[tuple[TargetSpec, ...], list[dict[str, Array]]]:
    """Targets and probabilities of each table over the labels of all; a label that one never saw gets 0."""
    specs, probabilities = [], [dict[str, Array]() for _ in tables]
    for column, versions in enumerate(zip(*(table.specs for table in tables), strict=True)):
        every = {label for each in versions for label in each.labels}
        labels = next((each.labels for each in versions if set(each.labels) == every), tuple(sorted(every)))
        specs.append(spec := replace(versions[0], labels=labels))
        for table, found in zip(tables, probabilities, strict=True):
            if spec.kind == "class":
                found[spec.name] = np.zeros((len(table.sample_ids), len(spec.labels)))
                places = [spec.labels.index(label) for label in table.specs[column].labels]
                found[spec.name][:, places] = table.probabilities[spec.name]
    return tuple(specs), probabilities


def joined(tables: Sequence[PredictionTable]) -> PredictionTable:
    """The tables one below the other."""
    specs, probabilities = _of_same_labels(tables)

    def below(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    return PredictionTable(
        sum((table.sample_ids for table in tables), ()),
        specs,
        below([table.values for table in tables]),
        below([table.spreads for table in tables]),
        below(probabilities),
        sum((table.notes for table in tables), ()),
        sum((table.folds for table in tables), ()),
    )


def combined(tables: Sequence[PredictionTable]) -> PredictionTable:
    """What several models predict of the same samples: means of values, limits and probabilities.

    The spread over draws is that within a model; the one between the models stands beside it.
    """
    if len(tables) == 1:
        return tables[0]
    specs, probabilities = _of_same_labels(tables)

    def mean(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
        shared = [name for name in parts[0] if all(name in part for part in parts)]
        return {name: np.mean([part[name] for part in parts], axis=0) for name in shared}

    squares = mean([{name: spread**2 for name, spread in table.spreads.items()} for table in tables])
    between = {f"{name}.{MEMBERS}": np.std([one.values[name] for one in tables], axis=0) for name in tables[0].values}
    return replace(
        tables[0],
        specs=specs,
        values=mean([table.values for table in tables]),
        spreads={name: np.sqrt(square) for name, square in squares.items()},
        probabilities=mean(probabilities),
        derived={**between, **mean([table.derived for table in tables])},
    )


def predict_rows(
    saved: SavedModel,
    study: Study,
    sample_ids: Sequence[str],
    config: RuntimeConfig,
    device: torch.device,
    passes: int,
    fold: str = "",
) -> PredictionTable:
    """Predict samples of `study` from `passes` rarefied draws each; every ASV is encoded once.

    Numbers are means over the draws, spreads their standard deviation, probabilities their mean; intervals are there
    where the model holds what makes them.
    """
    rows = study.rows(sample_ids)
    asvs = encode_table(saved.network, study, device, config)
    draws = [
        run_model(saved.network, study, rows, device, config, EVALUATION - 1 - number, asvs) for number in range(passes)
    ]
    numbers = np.stack([saved.targets.decode(draw.target, study.metadata, sample_ids) for draw in draws])
    numeric = [spec.name for spec in saved.targets.numeric]
    classes = [spec.name for spec in saved.targets.classes]
    table = PredictionTable(
        sample_ids=tuple(sample_ids),
        specs=saved.targets.specs,
        values={name: numbers.mean(axis=0)[:, column] for column, name in enumerate(numeric)},
        spreads={name: numbers.std(axis=0)[:, column] for column, name in enumerate(numeric)} if passes > 1 else {},
        probabilities={
            name: np.mean([draw.probabilities[column] for draw in draws], axis=0) for column, name in enumerate(classes)
        },
        notes=("",) * len(sample_ids),
        folds=(fold,) * len(sample_ids),
    )
    for name, fitted in saved.notes.get("intervals", {}).items():
        table = table.with_limits(name, Conformal.from_json(fitted).limits(table.values[name]))
    return table


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.7g}"


def write_predictions(path: Path, table: PredictionTable) -> None:
    """Write ``sample-id``, one column per target (with TARGET.sd and others, TARGET=LABEL), ``fold`` and ``note``."""
    header, columns = ["sample-id"], [list(table.sample_ids)]
    for spec in table.specs:
        if spec.kind == "numeric":
            header.append(spec.name)
            columns.append([_number(value) for value in table.values[spec.name]])
            if spec.name in table.spreads:
                header.append(f"{spec.name}.sd")
                columns.append([_number(value) for value in table.spreads[spec.name]])
            for name in (f"{spec.name}.{suffix}" for suffix in (MEMBERS, LOW, HIGH)):
                if name in table.derived:
                    header.append(name)
                    columns.append([_number(value) for value in table.derived[name]])
            continue
        probabilities = table.probabilities[spec.name]
        header.append(spec.name)
        columns.append(["" if np.isnan(row).any() else spec.labels[int(row.argmax())] for row in probabilities])
        for column, label in enumerate(spec.labels):
            header.append(f"{spec.name}={label}")
            columns.append([_number(value) for value in probabilities[:, column]])
    if any(table.folds):
        header.append("fold")
        columns.append(list(table.folds))
    header.append("note")
    columns.append(list(table.notes))
    text = io.StringIO(newline="")
    writer = csv.writer(text, dialect="excel-tab", lineterminator="\n")
    writer.writerow(header)
    writer.writerows(zip(*columns, strict=True))
    write_text(path, text.getvalue())


def read_predictions(path: Path) -> PredictionTable:
    """Read what `write_predictions` wrote.

    Raises
    ------
    InputError
        The file cannot be read, lacks ``sample-id`` or a target column, or holds text where numbers belong.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.reader(file, dialect="excel-tab"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as predictions ({error})") from None
    if not rows or rows[0][:1] != ["sample-id"] or any(len(row) != len(rows[0]) for row in rows):
        expected = "rows of equal length below a header that begins with sample-id"
        raise InputError(f"{path}: no predictions; expected {expected}")
    header, body = rows[0], rows[1:]
    columns = {name: [row[place] for row in body] for place, name in enumerate(header)}
    if len(columns) < len(header) or len(set(columns["sample-id"])) < len(body) or not body:
        raise InputError(f"{path}: a column or a sample-id stands there twice, or there is no sample")
    labels: dict[str, list[str]] = {}
    for name in header:
        # Target and label may both hold "=": the target is the shortest column that begins the name.
        target = min((other for other in header if name.startswith(f"{other}=")), key=len, default=None)
        if target is not None:
            labels.setdefault(target, []).append(name.removeprefix(f"{target}="))
    derived = {
        "sample-id",
        "fold",
        "note",
        *(f"{name}.{suffix}" for name in header for suffix in ("sd", MEMBERS, LOW, HIGH)),
        *(f"{t}={x}" for t in labels for x in labels[t]),
    }
    targets = [name for name in header if name not in derived]
    if not targets:
        raise InputError(f"{path}: no target column beside {header}")

    def numbers(name: str) -> Array:
        try:
            return np.array([math.nan if cell == "" else float(cell) for cell in columns[name]])
        except ValueError as error:
            raise InputError(f"{path}: column {name!r} holds text where numbers belong ({error})") from None

    specs = tuple(
        TargetSpec(name, "class" if name in labels else "numeric", tuple(labels.get(name, ()))) for name in targets
    )
    empty = [""] * len(body)
    return PredictionTable(
        tuple(columns["sample-id"]),
        specs,
        {name: numbers(name) for name in targets if name not in labels},
        {name: numbers(f"{name}.sd") for name in targets if f"{name}.sd" in columns},
        {t: np.stack([numbers(f"{t}={label}") for label in labels[t]], axis=1) for t in labels},
        tuple(columns.get("note", empty)),
        tuple(columns.get("fold", empty)),
        {f"{t}.{x}": numbers(f"{t}.{x}") for t in targets for x in (MEMBERS, LOW, HIGH) if f"{t}.{x}" in columns},
    )
