"""Shapes in annotations hold: a wrong one fails under pytest, and nothing but the tests needs jaxtyping."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from aam.config import ModelConfig
from aam.data.batch import Batch
from aam.data.collate import rarefied_batch
from aam.model.aam import Outputs
from aam.model.heads import DistanceHead, HeadConfig, TargetHead
from aam.model.layers import AsvEncoder, SampleEncoder
from aam.training.losses import unifrac_loss

SMALL = ModelConfig(embedding_dim=8, attention_heads=2, max_bp=20)
TOKENS = torch.ones(3, 20, dtype=torch.uint8)


@pytest.fixture
def batch(study_of, tiny) -> Batch:
    return rarefied_batch(study_of(**tiny()), np.arange(9), 0)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("tokens", lambda tokens: tokens.long()),
        ("asv", lambda asv: asv[:, 1:]),
        ("distance", lambda distance: distance[1:]),
    ],
)
def test_a_batch_of_wrong_shapes_or_types_fails(batch, field, change):
    with pytest.raises(TypeCheckError):
        dataclasses.replace(batch, **{field: change(getattr(batch, field))})


@pytest.mark.parametrize(
    "call",
    [
        lambda: AsvEncoder(SMALL)(TOKENS.float(), False),
        lambda: SampleEncoder(SMALL, 40)(torch.zeros(2, 4, 8), torch.ones(2, 5)),
        lambda: DistanceHead(8, True)(torch.zeros(2, 8), torch.zeros(2, 7)),
        lambda: TargetHead(8, HeadConfig(n_targets=1)).predict(torch.zeros(2, 8), torch.zeros(3, 1).long()),
        lambda: Outputs(torch.zeros(2, 8), torch.zeros(3, 7)),
        lambda: unifrac_loss(torch.zeros(3, 3), torch.zeros(3, 4)),
    ],
)
def test_encoders_and_heads_refuse_wrong_shapes(call):
    with pytest.raises(TypeCheckError):
        call()


def test_jaxtyping_is_no_runtime_dependency(plain_python):
    source = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("jaxtyping", "beartype"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import torch
from aam.config import ModelConfig
from aam.model.aam import Aam
from aam.model.heads import HeadConfig
from aam.model.reference import fixed_batch
outputs = Aam(ModelConfig(), 1000, HeadConfig("unifrac"))(fixed_batch())
print(tuple(outputs.distance.shape), "jaxtyping" in sys.modules)
"""
    assert plain_python(source).split("\n")[0] == "(6, 6) False"
