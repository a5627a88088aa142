"""The record of a judged target: plain data from which metrics.json is written and all texts of a
report are rendered.
"""

from __future__ import annotations

import functools
import math
import re
import shlex
from collections.abc import Sequence
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from aam.evaluate.comparison import full_baselines, tests_corrected_for
from aam.evaluate.conformal import CONFORMAL_LEVEL
from aam.evaluate.evaluation import Evaluation
from aam.evaluate.intervals import (
    LEAST_GROUPS,
    MetricIntervals,
    limits_text,
    number,
    too_few,
    with_limits,
)
from aam.evaluate.metrics import TITLES
from aam.evaluate.predictions import EvaluatedSubset, TargetPredictions

# The last word of a column's name, where that is a unit.
TIMES = ("year", "month", "week", "day", "hour", "minute", "second")
UNITS = ("kg", "g", "mg", "cm", "mm", "m", "ml", "mmol", "percent")

# How a report calls the metrics of samples, and the samples in a sentence.
SUBSET_TITLES: dict[EvaluatedSubset, tuple[str, str]] = {
    "held-out": ("Held-out metrics", "held-out samples"),
    "validation": ("Validation metrics (not held out)", "validation samples (not held out)"),
    "training": ("Metrics of samples seen in training", "samples seen in training"),
    "seen-group": ("Metrics of groups seen in training", "samples of groups seen in training"),
}

Record = dict[str, Any]


def unit_of(column: str) -> str:
    """The unit that the name of a column ends with, after a blank: " months"; '' without one."""
    word = (re.findall(r"[a-z]+", column.lower()) or [""])[-1]
    time = word.removesuffix("s")
    return f" {time}s" if time in TIMES else f" {word}" if word in UNITS else ""


def _values(metrics: MetricIntervals) -> dict[str, float]:
    return {name: metric.value for name, metric in metrics.items()}


def _division(complete: TargetPredictions) -> Record:
    """The samples that are judged, their groups and folds, and the values of the target."""
    if complete.labels:
        sizes = np.bincount(complete.truth, minlength=len(complete.labels)).tolist()
        values = dict(zip(complete.labels, sizes, strict=True))
    else:
        ends = (complete.truth.min(), complete.truth.max()) if len(complete.truth) else ()
        values = dict(zip(("least", "most"), map(float, ends), strict=False))
    folds = pd.Series(complete.folds).groupby(complete.resampling_units).nunique()
    return {
        "samples": len(complete.truth),
        "deciding_samples": complete.count_that_decides,
        "groups": 0 if complete.groups is None else complete.group_count,
        "has_intervals": complete.group_count >= LEAST_GROUPS,
        "cross_validated": complete.cross_validated,
        "folds_of_group": int(folds.max()) if len(folds) else 0,
        "labels": list(complete.labels),
        "values": values,
    }


def record_of(result: Evaluation) -> Record:
    """The record of a target; what is NaN is missing."""
    names, rivals, verdict = result.names, result.comparisons, result.verdict
    parts = {
        level: {"samples": count, **_values(values)}
        for level, (count, values) in result.batches.items()
    }
    tests = {
        rival.name: {"difference": rival.difference, "p": rival.p, "corrected_p": rival.corrected_p}
        for rival in rivals
    }
    compared = [
        {
            "name": rival.name,
            "constant": rival.constant,
            "tested": math.isfinite(rival.p),
            "metric": rival.metrics[result.key],
        }
        for rival in full_baselines(rivals)
    ]
    return {
        "target": names.target,
        "unit": unit_of(names.target),
        "group": names.group,
        "batch": names.batch,
        "key": result.key,
        "subset": result.subset,
        **_division(result.complete),
        "metrics": result.metrics,
        "folds": {fold: _values(values) for fold, (_, values) in result.folds.items()},
        "parts": {names.batch: parts} if parts else {},
        "in_new_batches": result.in_new_batches,
        "intervals": result.coverage,
        "baselines": {rival.name: _values(rival.metrics) for rival in rivals},
        "compared": compared,
        "tests": tests,
        "tests_corrected_for": tests_corrected_for(rivals),
        "answer": {"words": verdict.words, "sentence": verdict.sentence, "sign": verdict.sign},
        "verdict": list(verdict.sentences),
    }


# --- texts ---------------------------------------------------------------------------------------


def enumeration(items: Sequence[str]) -> str:
    """Items of a list in a sentence."""
    *first, last = [*items] or [""]
    return f"{', '.join(first)} and {last}" if first else last


@functools.cache
def texts() -> jinja2.Environment:
    """Return the templates of plain text, which is escaped where a page shows it.

    What a record lacks is empty.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("aam.report"),
        undefined=jinja2.ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "limits": limits_text,
        "limited": with_limits,
        "enumeration": enumeration,
        "called": lambda name, names: names[name],
        "commas": lambda count: f"{count:,}" if isinstance(count, int) else str(count),
        "quoted": shlex.quote,
        "sentence": lambda text: text[:1].upper() + text[1:],
    }
    environment.globals |= {
        "titles": TITLES,
        "subsets": SUBSET_TITLES,
        "least_groups": LEAST_GROUPS,
        "too_few": too_few,
        "conformal": f"{100 * CONFORMAL_LEVEL:.0f} %",
    }
    return environment


def rendered(name: str, **facts: object) -> Any:
    """Return what a template sets, by name, from facts."""
    return texts().get_template(name).make_module(facts)


def judged_samples(record: Record) -> str:
    """The target and the judged samples in words."""
    return str(rendered("answer.j2", target=record).samples)


def tiles(record: Record) -> list[dict[str, str]]:
    """The metric that decides, the best baseline, and the verdict, each with question, answer,
    sentence, limits and sign; none without a metric.
    """
    module = rendered("answer.j2", target=record)
    has_metric = not math.isnan(record["metrics"][record["key"]].value)
    return [*module.tiles] if has_metric else []
