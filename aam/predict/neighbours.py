"""Nearest neighbours on a distance between samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aam.predict.features import Inputs
from aam.predict.learner import Floats, Folds, Learner, Rows, Truth, error_of

NEAREST = (1, 3, 5, 10, 20, 40)


@dataclass(eq=False)
class Neighbours(Learner):
    """The mean of the nearest training samples, weighted by one over their distance, in each rarefaction.

    It predicts samples of the table that it was fitted on: its feature holds distances to all of them.

    Attributes
    ----------
    distance : str
        Feature of distances ``[n, N]`` to all N samples of the table.
    n_neighbors : tuple of int
        Candidates, of which inner folds choose one.
    """

    distance: str = "unifrac"
    n_neighbors: tuple[int, ...] = NEAREST

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that are read."""
        return (self.distance,)

    def _fit(self, X: Inputs, truth: Truth, folds: Folds) -> None:
        self.places_ = X.places
        self.targets_ = truth.indicators if self.n_classes else truth.values[:, None]
        least = min([len(learn) for learn, _ in folds] or [len(X)])
        candidates = [number for number in self.n_neighbors if number <= least] or [1]
        self.chosen_ = candidates[0]
        if folds and len(candidates) > 1:
            held_out = np.empty((len(candidates), *self.targets_.shape))
            for learn, predict in folds:
                for number, predicted in zip(candidates, held_out, strict=True):
                    predicted[predict] = self._vote(X.rarefaction(0)[predict], learn, number)
            best = int(np.argmin([error_of(truth, predicted) for predicted in held_out]))
            self.chosen_, self.out_of_fold_ = candidates[best], held_out[best]

    def _vote(self, X: Inputs, learn: Rows, number: int) -> Floats:
        """Return what the `number` nearest of the training samples `learn` say of samples."""
        from sklearn.neighbors import KNeighborsRegressor

        model, columns = KNeighborsRegressor(number, metric="precomputed", weights="distance"), self.places_[learn]
        by_rarefaction = []
        for rarefaction in range(X.rarefactions):
            distances: Floats = np.asarray(X.read(self.distance, rarefaction))[:, columns]
            # The model learns no more than the targets and that there are so many distances.
            model.fit(np.zeros((len(learn), len(learn))), self.targets_[learn])
            by_rarefaction.append(model.predict(distances))
        return np.asarray(np.mean(by_rarefaction, axis=0))

    def outputs(self, X: Inputs) -> Floats:
        """Return numbers ``[n, 1]`` or shares of classes ``[n, n_classes]``."""
        return self._vote(X, np.arange(len(self.places_)), self.chosen_)
