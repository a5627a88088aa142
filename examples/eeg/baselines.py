"""What a network has to be better than: ridge regression on band power, and the mean or the most
frequent class.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import softmax
from sklearn.linear_model import RidgeClassifierCV, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from examples.eeg.network import log_band_power
from examples.eeg.recordings import Recordings, Target

PENALTIES = tuple(10.0**power for power in range(6))

Array = npt.NDArray[np.float64]


def _features(data: Recordings, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return the logarithms of the band power of windows, computed in parts that fit into
    memory.
    """
    parts = [torch.from_numpy(data.windows[part]) for part in np.array_split(rows, 8) if len(part)]
    return np.concatenate([log_band_power(part, data.sampling_rate).numpy() for part in parts])


def baseline_predictions(
    data: Recordings,
    train: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
    targets: list[Target],
) -> dict[str, list[Array]]:
    """Return for each baseline and target what it learns from the windows `train` and predicts for
    the windows `rows`.

    Numbers ``[N]``, or for classes probabilities ``[N, K]``; those of ridge regression are a
    softmax of the decision values.
    """
    x, x_new = _features(data, train), _features(data, rows)
    ridge, constant = [], []
    for target in targets:
        values = target.values[data.subject[train]]
        is_measured = ~np.isnan(values)
        values = values[is_measured]
        model = make_pipeline(
            StandardScaler(), (RidgeClassifierCV if target.classes else RidgeCV)(PENALTIES)
        )
        model.fit(x[is_measured], values)
        if not target.classes:
            ridge.append(model.predict(x_new).astype(np.float64))
            constant.append(np.full(len(rows), values.mean()))
            continue
        decision = model.decision_function(x_new).astype(np.float64)
        scores = np.stack([-decision, decision], 1) if decision.ndim == 1 else decision
        probabilities = np.zeros((len(rows), len(target.classes)))
        probabilities[:, model[-1].classes_.astype(np.int64)] = softmax(scores, 1)
        ridge.append(probabilities)
        shares = np.bincount(values.astype(np.int64), minlength=len(target.classes)) / len(values)
        constant.append(np.tile(shares, (len(rows), 1)))
    return {"ridge on band power": ridge, "mean or most frequent": constant}
