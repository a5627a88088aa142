"""How long a report takes, from predictions to its page."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aam.device.measure import peak_memory
from aam.device.platform import prepare_device
from aam.evaluate.comparison import MAJORITY, MEDIAN, Baseline
from aam.evaluate.evaluation import Names, evaluate_target
from aam.evaluate.predictions import TargetPredictions
from aam.options import RuntimeConfig
from aam.report.files import write_results
from aam.report.page import ReportData

Measurements = dict[str, Any]


def time_report(runtime: RuntimeConfig, samples: int = 1000, baselines: int = 10) -> Measurements:
    """Return ``seconds`` and ``processor_seconds`` from predictions to the written report, by
    classes (0: numbers).

    Simulated predictions of `samples` samples, in groups of three and in five folds, are compared
    with a constant and `baselines` other baselines; nothing is fitted. ``peak_bytes`` is the
    largest memory of the process.
    """
    prepare_device(runtime)
    draw = np.random.default_rng(0)
    group = np.arange(samples) // 3
    measured: dict[str, Measurements] = {}
    for classes in (0, 2, 6):
        truth = draw.integers(classes, size=samples) if classes else draw.normal(size=samples)
        signal = np.eye(classes)[truth] if classes else truth[:, None]
        several = [signal + draw.normal(size=signal.shape) for _ in range(1 + baselines)]
        several.append(np.zeros_like(signal))
        values = [
            np.exp(one) / np.exp(one).sum(1, keepdims=True) if classes else one[:, 0]
            for one in several
        ]
        rivals = [Baseline(f"baseline {number}", one) for number, one in enumerate(values[1:-1], 1)]
        rivals.append(Baseline(MAJORITY if classes else MEDIAN, values[-1]))
        ids, labels = (
            tuple(map(str, range(samples))),
            tuple(f"class {number}" for number in range(classes)),
        )
        predictions = TargetPredictions(ids, truth, values[0], labels, fold=group % 5, groups=group)
        start = time.perf_counter(), time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            result = evaluate_target(Names("target"), predictions, rivals)
            write_results(Path(folder), ReportData("report", {}, {}, {}, targets=(result,)))
        taken = time.perf_counter() - start[0], time.process_time() - start[1]
        measured[str(classes)] = dict(zip(("seconds", "processor_seconds"), taken, strict=True))
    about = {
        "samples": samples,
        "baselines": baselines,
        "peak_bytes": peak_memory(torch.device("cpu")),
    }
    return {**about, "classes": measured}
