"""Back-test of learning curves: those of half of the subjects predict the error with all.

``python -m benchmarks.backtest OUTPUT.tsv`` reads the studies in the folder that AAM_BENCH_DATA
names and appends one row per study, target and half.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from aam.api.training import load_folds
from aam.config import DataConfig, FineTuneConfig, TargetConfig
from aam.data.targets import fit_targets
from aam.predict.baselines import TargetData, target_data
from aam.predict.learning_curve import learning_curve
from aam.predict.out_of_fold import group_folds

DEPTH, HALVES = 1000, 3


class Case(NamedTuple):
    """A target of a study."""

    study: str
    target: str
    group: str | None = None
    classifier: bool = False
    cohort: str | None = None


CASES = (
    Case("infant-age", "month", "host_subject_id"),
    Case("infant-age", "delivery", "host_subject_id"),
    Case("infant-age", "diet", "host_subject_id"),
    Case("infant-age", "sex", "host_subject_id"),
    Case("mackerel-type", "sample_type", "fish"),
    Case("braces", "braces"),
    Case("braces", "sex"),
    Case("qiime2-crc", "sex", "subject"),
    Case("qiime2-crc", "age", "subject"),
    Case("qiime2-crc", "bmi", "subject"),
    *(
        Case("cohorts", "status", None, False, cohort)
        for cohort in (
            "IBD_Crohn_disease_Gevers",
            "Obesity_Cuesta-Zuluaga",
            "Parkinson_Hill-Burns",
            "Parkinson_Wallen",
            "IBD_Crohn_disease_Zhou",
            "Gastroenteritis_Braun",
            "Hypertension_UKtwins",
            "Bipolar_Evans",
            "Diabetes_T1_Cinek",
        )
    ),
)


def task_of(case: Case, folder: Path) -> tuple[TargetData, int, int]:
    """What predictors may know of a case, with its depth and seed."""
    data = folder / case.study
    (table,) = (path for name in ("table.biom", "table.qza") if (path := data / name).is_file())
    metadata = data / "metadata.tsv"
    with tempfile.TemporaryDirectory() as made:
        if case.cohort is not None:
            rows = pd.read_csv(metadata, sep="\t", dtype=str)
            metadata = Path(made) / "metadata.tsv"
            rows[rows["cohort"] == case.cohort].to_csv(metadata, sep="\t", index=False)
        options = DataConfig(
            table=table,
            metadata=metadata,
            rarefy_depth=DEPTH,
            missing="drop",
            group_column=case.group,
            cv="5",
        )
        targets = TargetConfig((case.target,), classifier=case.classifier)
        prepared = load_folds(FineTuneConfig(options, targets))
    study = prepared.study
    assert study.metadata is not None
    config = TargetConfig(metadata_column=(case.target,))
    specs = fit_targets(study.sample_metadata, config).specs
    task = target_data(study, prepared.splits, specs[0])
    return task, study.depth, study.seed


def half_of(task: TargetData, seed: int) -> TargetData:
    """The samples of a random half of the groups, in five folds of whole groups."""
    assert task.samples is not None
    units = np.arange(len(task.truth)) if task.groups is None else task.groups
    names = np.unique(units)
    kept = np.random.default_rng(seed).permutation(names)[: len(names) // 2]
    rows = np.flatnonzero(np.isin(units, kept))
    part = replace(
        task,
        truth=task.truth[rows],
        groups=None if task.groups is None else task.groups[rows],
        samples=task.samples[rows],
    )
    ids = [task.samples.sample_ids[row] for row in rows.tolist()]
    groups = None if part.groups is None else [str(name) for name in part.groups]
    strata = [str(one) for one in part.truth] if task.labels else part.truth
    folds = group_folds(ids, 5, groups, strata, seed)
    return replace(part, folds=folds)


def backtests(case: Case, folder: Path) -> Iterator[dict[str, object]]:
    """Rows of a case: the error with all groups, and what curves of halves expect of it."""
    task, depth, seed = task_of(case, folder)
    whole = learning_curve(task, depth, seed, shares={1.0: 1})
    assert whole is not None
    last = whole.points.iloc[-1]
    for number in range(HALVES):
        begun = time.monotonic()
        curve = learning_curve(half_of(task, number), depth, seed)
        row = {"study": case.cohort or case.study, "target": case.target, "half": number}
        row |= {"metric": whole.metric, "groups": last["groups"], "truth": last["value"]}
        if curve is not None:
            row |= vars(curve.expected(float(last["groups"])))
            row |= {"points": len(curve.points), "predicted_groups": curve.group_count}
            row |= {"half_value": curve.points["value"].iloc[-1]}
        yield row | {"seconds": time.monotonic() - begun}


def main() -> None:
    """Write the rows of all cases as they come, and say how often the interval holds the truth."""
    output, rows = Path(sys.argv[1]), list[dict[str, object]]()
    for case in CASES:
        for row in backtests(case, Path(os.environ["AAM_BENCH_DATA"])):
            rows.append(row)
            frame = pd.DataFrame(rows)
            frame.to_csv(output, sep="\t", index=False, float_format="%.4g")
            given = frame.dropna(subset=["low"])
            held = (given["low"] <= given["truth"]) & (given["truth"] <= given["high"])
            print(f"{row}; {held.sum()} of {len(given)} intervals hold the truth", flush=True)


if __name__ == "__main__":
    main()
