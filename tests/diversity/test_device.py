"""UniFrac by operations of constant shape is that of the host."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from aam.config import UnifracMetric
from aam.data.collate import rarefied_batch
from aam.data.shelves import on_shelves
from aam.diversity.batch import batch_unifrac
from aam.diversity.device import TreeOnDevice
from aam.diversity.unifrac import UnifracOptions


@pytest.mark.parametrize("root_length", ["include", "exclude"])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("metric", get_args(UnifracMetric))
def test_distances_are_those_of_the_host(study_of, tiny, metric, double, root_length):
    study = study_of(**tiny())
    tree, options = study.parts[0].tree, UnifracOptions(metric, 0.5, root_length, double=double)
    batch = rarefied_batch(study, np.arange(9), 1)
    table = np.zeros((9, len(study.table.feature_ids)))
    rows, slots = np.nonzero(batch.counts.numpy())
    columns = batch.column[batch.asv].numpy()[rows, slots]
    table[rows, columns] = batch.counts.numpy()[rows, slots]
    expected = batch_unifrac(tree.phylogeny, tree.tips, table, options)
    device = torch.device("cpu")
    shelved = on_shelves(batch)
    feature = shelved.column[shelved.asv]
    actual = TreeOnDevice(tree.phylogeny, tree.tips, options, device).distances(
        feature, shelved.row, shelved.counts, 9
    )
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-12 if double else 1e-6)
