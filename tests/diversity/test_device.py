"""UniFrac by operations of constant shape is that of the host."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from aam.config import UnifracMetric
from aam.diversity.device import TreeOnDevice
from aam.diversity.distances import batch_unifrac
from aam.diversity.unifrac import UnifracOptions


@pytest.mark.parametrize("root_length", ["include", "exclude"])
@pytest.mark.parametrize("metric", get_args(UnifracMetric))
def test_distances_are_those_of_the_host(study_of, tiny, metric, root_length):
    study = study_of(**tiny())
    tree, options = study.parts[0].tree, UnifracOptions(metric, 0.5, root_length, double=True)
    table = study.table.counts[:9].toarray()
    tips = np.where(np.arange(table.shape[1]) % 7, tree.tips, -1)
    # The first two samples have no read on the tree.
    table[:2] = np.where(tips >= 0, 0, table[:2])
    expected = batch_unifrac(tree.phylogeny, tips, table, options)
    row, feature = (torch.from_numpy(places) for places in np.nonzero(table + 1))
    reads = torch.from_numpy(table.flatten().astype(np.float32))
    on_device = TreeOnDevice(tree.phylogeny, tips, options, torch.device("cpu"))
    actual = on_device.distances(feature, row, reads, 9)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-12)
