"""On a GPU: the self-test of the image passes, and the network gives the results of the CPU."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from aam.data.collate import rarefied_batch
from aam.model.heads import HeadConfig

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.gpu


def test_attention_passes_the_self_test():
    selftest = runpy.run_path(str(ROOT / "containers" / "inside" / "selftest.py"))
    report = selftest["check_devices"]()
    assert len(report) == torch.cuda.device_count() > 0


def test_the_network_agrees_with_the_cpu(study_of, tiny, model_of):
    study, model = study_of(**tiny()), model_of(HeadConfig("unifrac", (0.5, 0.2), n_targets=2))
    batch = rarefied_batch(study, np.arange(9), 0)
    expected = model(batch)
    outputs = model.to("cuda")(batch.to(torch.device("cuda")))
    torch.testing.assert_close(outputs.samples.cpu(), expected.samples, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(outputs.distance.cpu(), expected.distance, rtol=1e-4, atol=1e-4)
