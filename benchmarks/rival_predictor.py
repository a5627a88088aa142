"""Held-out predictions of GeneICL or DEBIAS-M: ``python rival_predictor.py PROGRAM TASK OUTPUT``.

`benchmarks/rivals.py` calls it with the Python of an environment that has the program and numpy,
and not `aam`. TASK is an .npz with counts [N, F], truth [N], the number of classes (0 for numbers),
the batch of each sample [N], and the rows train_0, test_0, train_1, ... of the folds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np


def geneicl(task: Mapping[str, Any], train: Any, test: Any) -> Any:
    """Predictions of GeneICL from log(1 + reads per million), with its default checkpoint."""
    from geneicl import GeneICL

    counts = task["counts"]
    values = np.log1p(1e6 * counts / counts.sum(axis=1, keepdims=True))
    values = values[:, counts[train].any(axis=0)]
    mode = "classification" if task["classes"] else "regression"
    model = GeneICL(mode, device="cpu").fit(values[train], task["truth"][train])
    if not task["classes"]:
        return model.predict(values[test])
    result = np.zeros((len(test), int(task["classes"])))
    result[:, model.classes_] = model.predict_proba(values[test])
    return result


def debias_m(task: Mapping[str, Any], train: Any, test: Any) -> Any:
    """Probabilities of DEBIAS-M, which also learns from the reads of the held-out samples."""
    import torch
    from debiasm import DebiasMClassifier

    torch.manual_seed(0)
    counts = task["counts"]
    # Batches are numbered from 0; it expects none without samples.
    batch = np.unique(task["batch"], return_inverse=True)[1]
    table = np.concatenate([batch[:, None], counts[:, counts[train].any(axis=0)]], axis=1)
    model = DebiasMClassifier(x_val=table[test], random_state=0)
    model.fit(table[train], task["truth"][train])
    return model.predict_proba(table[test])


PROGRAMS = {"GeneICL": geneicl, "DEBIAS-M": debias_m}


def main(program: str, source: str, output: str) -> None:
    """Predict the held-out samples of each fold and write them, [N] or [N, K]."""
    with np.load(source) as parts:
        task = dict(parts)
    rows, classes = len(task["counts"]), int(task["classes"])
    result = np.full((rows, classes) if classes else rows, np.nan)
    for fold in range(sum(name.startswith("train_") for name in task)):
        train, test = task[f"train_{fold}"], task[f"test_{fold}"]
        result[test] = PROGRAMS[program](task, train, test)
        print(f"{program}: fold {fold} done", flush=True)
    np.save(output, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
