"""On a GPU: attention is right, and the network says there what it says on the CPU."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from aam.data.draw import draw_batch
from aam.model.heads import HeadConfig

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_attention_is_right(name, masked):
    selftest = runpy.run_path(str(ROOT / "containers" / "inside" / "selftest.py"))
    for index in range(torch.cuda.device_count()):
        error = selftest["gate"](torch.device("cuda", index), getattr(torch, name), masked)
        assert error < selftest["TOLERANCE"][name]
    assert torch.cuda.device_count() > 0


def test_the_network_agrees_with_the_cpu(study_of, tiny, model_of):
    study, model = study_of(**tiny()), model_of(HeadConfig("unifrac", (0.5, 0.2), n_targets=2))
    batch = draw_batch(study, np.arange(9), 0)
    expected = model(batch)
    found = model.to("cuda")(batch.to(torch.device("cuda")))
    torch.testing.assert_close(found.samples.cpu(), expected.samples, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.distance.cpu(), expected.distance, rtol=1e-4, atol=1e-4)
