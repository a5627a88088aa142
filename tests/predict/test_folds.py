"""The folds of a run."""

from __future__ import annotations

import torch

from aam.config import DataConfig, FineTuneConfig
from aam.data.splits import Split
from aam.device.distributed import World
from aam.predict.folds import Folds


def test_a_fold_that_is_too_small_for_the_ranks_is_named_wherever_it_stands(study):
    ids = study.table.sample_ids
    small = Split(ids, ("train",) * 3 + ("test",) * 6, ("b",) * 3 + ("a",) * 6)
    large = Split(ids, ("test",) * 3 + ("train",) * 6, small.folds)
    options = FineTuneConfig(), DataConfig(cv="fold"), study
    for splits in ((small, large), (large, small)):
        folds = Folds(*options, splits, torch.device("cpu"), World(size=4))
        (problem,) = folds.rank_problems()
        says = "fold a: the train subset has 3 samples for 4 devices; take fewer devices"
        assert problem == says
