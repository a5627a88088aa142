"""Losses against hand computations: sums and counts that add up, blind to what is missing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from aam.config import TrainConfig
from aam.data.batch import Batch, Masks, pad_batch
from aam.data.loader import rarefied_batch
from aam.engine.step import total_loss
from aam.errors import InputError
from aam.model.aam import Outputs
from aam.training.losses import (
    class_weights,
    loss_counts,
    loss_terms,
    make_masks,
    penalties,
    target_terms,
    unifrac_loss,
)

NAN = math.nan


def batch_of(n: int, **fields) -> Batch:
    empty = torch.zeros(n, 1)
    tokens = torch.zeros(1, 1, dtype=torch.uint8)
    return Batch(tokens, empty.long(), empty + 1, sizes=(1,) * n, **fields)


def outputs_of(n: int, **fields) -> Outputs:
    return Outputs(torch.zeros(n, 2), torch.zeros(1, 2), **fields)


def terms_of(outputs: Outputs, batch: Batch, masks: Masks | None = None, kind: str = "mse", **rest):
    outputs, laid_out = replace(outputs, spread=rest.get("spread", 1.0)), pad_batch(batch, masks)
    of_targets = target_terms(outputs, laid_out, kind, rest.get("weights", ()))
    return loss_terms(outputs, laid_out, rest.get("depth", 10)) | of_targets


def value(term) -> tuple[float, int]:
    return term[0].item(), int(term[1])


# --- UniFrac -----------------------------------------------------------------------------------


def test_unknown_distances_leave_values_and_gradients_alone():
    random = torch.Generator().manual_seed(0)
    predicted, distance = torch.rand(2, 5, 5, dtype=torch.float64, generator=random)
    squares = (predicted - distance).square().triu(1)
    expected = float(squares.sum() - squares[1, 3])
    distance[1, 3] = distance[3, 1] = NAN
    predicted.requires_grad_()
    total, count = unifrac_loss(predicted, distance)
    assert (total.item(), int(count)) == (pytest.approx(expected), 9)
    total.backward()
    assert torch.isfinite(predicted.grad).all()
    assert predicted.grad[1, 3] == 0
    assert (predicted.grad[0, 1:] != 0).all()


# --- targets -----------------------------------------------------------------------------------


TARGET = [[1.5, NAN], [-3.0, 6.0], [NAN, NAN]]


@pytest.mark.parametrize(
    ("kind", "target", "expected"),
    [
        ("mse", TARGET, 0.25 + 9 + 1),
        ("mae", TARGET, 0.5 + 3 + 1),
        ("huber", TARGET, 0.125 + 2.5 + 0.5),
        ("huber", [[NAN, NAN]] * 3, 0.0),
    ],
)
def test_errors_of_numeric_targets(kind, target, expected):
    """A missing target poisons nothing (failure 5 of the predecessor)."""
    predicted = torch.tensor([[1.0, 7.0], [0.0, 5.0], [2.0, 1.0]], requires_grad=True)
    target = torch.tensor(target)
    known = torch.isfinite(target)
    outputs, batch = outputs_of(3, target=predicted), batch_of(3, target=target)
    term = terms_of(outputs, batch, kind=kind)["target"]
    assert value(term) == (pytest.approx(expected), int(known.sum()))
    loss = total_loss({"target": term}, {"target": 1.0})
    loss.backward()
    assert loss.item() == pytest.approx(expected / max(int(known.sum()), 1))
    assert torch.equal(predicted.grad != 0, known)
    assert torch.isfinite(predicted.grad).all()


# --- total -------------------------------------------------------------------------------------


def test_a_batch_of_which_no_asv_was_masked_still_has_a_loss(study_of, tiny, model_of, monkeypatch):
    """Masked nucleotides alone, in a last batch so small that the draw took none of its ASVs."""
    monkeypatch.setattr("aam.training.losses.MASKED_ASVS", 0.0)
    batch = rarefied_batch(study_of(**tiny(tree=False)), np.array([0]), 0)
    masks = make_masks(batch, TrainConfig(count_penalty=0.0), 0, 0)
    assert len(masks.rows) == 0
    model = model_of()
    terms = terms_of(model(batch, masks), batch, masks)
    loss = total_loss(terms, penalties(TrainConfig(), 0))
    loss.backward()
    assert loss.item() == 0


def test_balanced_weights_are_those_of_scikit_learn():
    labels = np.array([[0, 1], [0, 0], [0, 1], [1, -1], [-1, 1], [2, 1]])
    weights_of_columns = class_weights(("balanced",), labels, (3, 2))
    for column, weights in enumerate(weights_of_columns):
        known_labels = labels[labels[:, column] >= 0, column]
        expected = compute_class_weight("balanced", classes=np.unique(known_labels), y=known_labels)
        assert weights.tolist() == pytest.approx(expected.tolist())
    assert class_weights((), labels, (3, 2)) == (None, None)
    assert class_weights(("1", "2.5"), labels[:, 1:], (2,))[0].tolist() == [1, 2.5]


@pytest.mark.parametrize("asked", [("1",), ("1", "2", "3"), ("1", "-1"), ("1", "nan"), ("1", "x")])
def test_weights_that_do_not_fit_the_classes(asked):
    with pytest.raises(
        InputError, match=r"--class-weights is .*, expected balanced, or 2 numbers above 0"
    ):
        class_weights(asked, np.zeros((4, 1), np.int64), (2,))


def test_weighted_classes_are_those_of_torch():
    logits, label = torch.randn(6, 3), torch.tensor([0, 1, 2, -1, 1, 1])
    weight = torch.tensor([0.1, 0.2, 0.05])
    batch = batch_of(6, label=label[:, None])
    terms = terms_of(outputs_of(6, labels=(logits,)), batch, weights=(weight,))
    expected = F.cross_entropy(logits, label, weight, ignore_index=-1)
    assert total_loss(terms, {"label": 1.0}).item() == pytest.approx(expected.item(), rel=1e-5)
    count = loss_counts(pad_batch(batch), (weight,))["label0"].item()
    assert count == pytest.approx(terms["label0"][1].item())
