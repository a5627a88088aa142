"""The file of baselines: their predictions as one table, what they were made from, and both read back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from aam.data.splits import Split
from aam.data.targets import TargetSpec
from aam.errors import InputError, shown
from aam.evaluate.comparison import Baseline
from aam.evaluate.predictions import PredictionTable
from aam.files.atomic import read_json
from aam.predict.baselines import LEARNED, rows_for


def split_digest(split: Split) -> str:
    """Return SHA-256 of which samples are learned from and which are held out."""
    held_out = set(split.held_out)
    lines = sorted(f"{name}\t{'held out' if name in held_out else 'learned'}\n" for name in split.sample_ids)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class Provenance:
    """What baselines were made from, and what a model beside them is evaluated on; None = not known.

    `table` is the SHA-256 of the file and `splits` are those of `split_digest`.
    """

    depth: int | None = None
    seed: int | None = None
    table: str | None = None
    splits: tuple[str, ...] = ()
    covariates: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, object]:
        """Return what `read_provenance` reads."""
        return asdict(self)


def read_provenance(baselines: Path) -> Provenance | None:
    """Return what a file of baselines was made from, written beside it as .json; none where that is not there."""
    path = baselines.with_suffix(".json")
    if not path.is_file():
        return None
    content = read_json(path)
    made_from = content.get("made_from") if isinstance(content, dict) else None
    if not isinstance(made_from, dict):
        return None
    try:
        lists = {name: tuple(map(str, made_from[name])) for name in ("splits", "covariates")}
        return Provenance(**{**made_from, **lists})
    except (KeyError, TypeError):
        return None


def check_provenance(path: Path, evaluated: Provenance) -> list[str]:
    """Return warnings about baselines that were made otherwise than what they are compared with.

    Raises
    ------
    InputError
        They come from another table, split or depth.
    """
    made = read_provenance(path)
    if made is None:
        beside = path.with_suffix(".json").name
        return [f"--baselines {path}: {beside} is not beside it or does not say what the baselines were made from"]
    problems = []
    if None not in (made.table, evaluated.table) and made.table != evaluated.table:
        problems.append("they were made from another --table")
    if None not in (made.depth, evaluated.depth) and made.depth != evaluated.depth:
        problems.append(f"they read {made.depth} reads of each sample and the model {evaluated.depth} (--rarefy-depth)")
    if made.splits and evaluated.splits and not set(evaluated.splits) <= set(made.splits):
        problems.append("they were made on another --split")
    if problems:
        again = "run `aam baselines` again on the table, split and depth of the model"
        raise InputError(*(f"--baselines {path}: {problem}; {again}" for problem in problems))
    warnings = []
    if None not in (made.seed, evaluated.seed) and made.seed != evaluated.seed:
        warnings.append(f"--baselines {path}: seed {made.seed} drew their reads, and seed {evaluated.seed} the model's")
    if made.covariates is not None and (lacking := set(evaluated.covariates or ()) - set(made.covariates)):
        warnings.append(
            f"--baselines {path}: the model reads the covariates {shown(sorted(lacking))} and they do not: "
            "pass `aam baselines` the same --categorical-columns, --numeric-columns and --normalize-by"
        )
    return warnings


def as_prediction_table(
    ids: Sequence[str], baselines: Sequence[tuple[TargetSpec, tuple[Baseline, ...]]], splits: Sequence[Split]
) -> PredictionTable:
    """Return held-out predictions as one table, whose targets are called TARGET: BASELINE."""
    fold = {name: split.test_fold for split in splits for name in split.held_out}
    columns = [
        (replace(spec, name=f"{spec.name}: {baseline.name}"), baseline.predicted)
        for spec, of_target in baselines
        for baseline in of_target
    ]
    table = PredictionTable(
        tuple(ids),
        tuple(spec for spec, _ in columns),
        {spec.name: predicted for spec, predicted in columns if not spec.labels},
        {},
        {spec.name: predicted for spec, predicted in columns if spec.labels},
        ("",) * len(ids),
        tuple(fold.get(name, "") for name in ids),
    )
    return table.with_rows([name for name in ids if name in fold], {})


def _from_columns(table: PredictionTable, column: TargetSpec, spec: TargetSpec) -> Baseline:
    """Return one baseline of the target `spec`, its classes in the order of the target's."""
    if unknown := set(column.labels) - set(spec.labels):
        raise InputError(f"--baselines: {column.name!r} has classes {shown(unknown)} that the model has not")
    name = column.name.removeprefix(f"{spec.name}: ")
    predicted = table.values.get(column.name)
    if predicted is None:
        predicted = np.zeros((len(table.sample_ids), len(spec.labels)))
        places = [spec.labels.index(label) for label in column.labels]
        predicted[:, places] = table.probabilities[column.name]
    return Baseline(name, predicted, trivial=name not in LEARNED)


def baselines_in(table: PredictionTable, spec: TargetSpec, target: PredictionTable) -> tuple[Baseline, ...]:
    """Return those that `aam baselines` wrote for a target, with the rows of the predictions `target`.

    Raises `InputError`: no baseline of any target, other classes, or a sample that another fold held out.
    """
    fold_of = dict(zip(table.sample_ids, table.folds, strict=True))
    moved = [
        name
        for name, fold in zip(target.sample_ids, target.folds, strict=True)
        if fold and fold_of.get(name, fold) != fold
    ]
    if moved:
        raise InputError(f"--baselines: {len(moved)} samples were held out in another fold: {shown(moved)}; one split")
    columns = [column for column in table.specs if column.name.startswith(f"{spec.name}: ")]
    baselines = [_from_columns(table, column, spec) for column in columns]
    if not any(column.name.startswith(f"{other.name}: ") for other in target.specs for column in table.specs):
        names = shown([column.name for column in table.specs])
        raise InputError(f"--baselines: no column '{spec.name}: BASELINE'; it has {names}; run `aam baselines` again")
    return tuple(rows_for(baseline, table.sample_ids, target.sample_ids) for baseline in baselines)
