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
from aam.data.batch import Batch
from aam.data.collate import rarefied_batch
from aam.data.shelves import Masks, on_shelves
from aam.engine.step import total_loss
from aam.errors import InputError
from aam.model.aam import Outputs
from aam.model.heads import HeadConfig
from aam.training.losses import (
    class_weights,
    loss_counts,
    loss_terms,
    penalties,
    target_terms,
    unifrac_loss,
)
from aam.training.masking import make_masks

NAN = math.nan


def batch_of(n: int, **fields) -> Batch:
    empty = torch.zeros(n, 1)
    return Batch(
        torch.zeros(1, 1, dtype=torch.uint8), empty.long(), empty + 1, sizes=(1,) * n, **fields
    )


def outputs_of(n: int, **fields) -> Outputs:
    return Outputs(torch.zeros(n, 2), torch.zeros(1, 2), **fields)


def terms_of(outputs: Outputs, batch: Batch, masks: Masks | None = None, kind: str = "mse", **rest):
    outputs, laid_out = replace(outputs, spread=rest.get("spread", 1.0)), on_shelves(batch, masks)
    return {
        **loss_terms(outputs, laid_out, rest.get("depth", 10)),
        **target_terms(outputs, laid_out, kind, rest.get("weights", ())),
    }


def value(term) -> tuple[float, int]:
    return term[0].item(), int(term[1])


# --- UniFrac -----------------------------------------------------------------------------------


def pairs(predicted: np.ndarray, distance: np.ndarray) -> tuple[float, int]:
    total, count = 0.0, 0
    for i in range(len(distance)):
        for j in range(i + 1, len(distance)):
            if math.isfinite(distance[i, j]):
                total += (predicted[i, j] - distance[i, j]) ** 2
                count += 1
    return total, count


def test_unifrac_is_squared_error_over_pairs():
    rng = np.random.default_rng(0)
    predicted, distance = rng.random((2, 7, 7))
    total, count = pairs(predicted, distance)
    assert count == 21
    loss = unifrac_loss(torch.from_numpy(predicted), torch.from_numpy(distance))
    assert value(loss) == (pytest.approx(total, rel=1e-12), 21)
    outputs, batch = (
        outputs_of(7, distance=torch.from_numpy(predicted)),
        batch_of(7, distance=torch.from_numpy(distance)),
    )
    assert value(terms_of(outputs, batch, spread=0.5)["unifrac"]) == (
        pytest.approx(4 * total, rel=1e-12),
        21,
    )


def test_unknown_distances_leave_values_and_gradients_alone():
    predicted, distance = torch.rand(
        2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    distance[1, 3] = distance[3, 1] = NAN
    predicted.requires_grad_()
    total, count = unifrac_loss(predicted, distance)
    assert (total.item(), int(count)) == (
        pytest.approx(pairs(predicted.detach().numpy(), distance.numpy())[0]),
        9,
    )
    total.backward()
    assert torch.isfinite(predicted.grad).all()
    assert predicted.grad[1, 3] == 0
    assert (predicted.grad[0, 1:] != 0).all()


def test_one_sample_has_no_pair():
    predicted = torch.ones(1, 1, requires_grad=True)
    loss = unifrac_loss(predicted, torch.zeros(1, 1))
    assert value(loss) == (0.0, 0)
    total_loss({"unifrac": loss}, {"unifrac": 1.0}).backward()
    assert predicted.grad.item() == 0


# --- targets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("mse", 0.25 + 9 + 1), ("mae", 0.5 + 3 + 1), ("huber", 0.125 + 2.5 + 0.5)],
)
def test_errors_of_numeric_targets(kind, expected):
    predicted = torch.tensor([[1.0, 7.0], [0.0, 5.0], [2.0, 1.0]], requires_grad=True)
    target = torch.tensor([[1.5, NAN], [-3.0, 6.0], [NAN, NAN]])
    total, count = terms_of(outputs_of(3, target=predicted), batch_of(3, target=target), kind=kind)[
        "target"
    ]
    assert value((total, count)) == (pytest.approx(expected), 3)
    total.backward()
    assert torch.isfinite(predicted.grad).all(), (
        "a missing target poisons nothing (failure 5 of the predecessor)"
    )
    assert predicted.grad[torch.isnan(target)].tolist() == [0, 0, 0]
    assert (predicted.grad[torch.isfinite(target)] != 0).all()


def test_a_batch_without_any_target_moves_nothing():
    predicted = torch.ones(2, 1, requires_grad=True)
    term = terms_of(
        outputs_of(2, target=predicted), batch_of(2, target=torch.full((2, 1), NAN)), kind="huber"
    )["target"]
    assert value(term) == (0.0, 0)
    loss = total_loss({"target": term}, {"target": 1.0})
    loss.backward()
    assert (loss.item(), predicted.grad.tolist()) == (0.0, [[0.0], [0.0]])


def test_labels_are_counted_where_they_are_known():
    logits = (
        torch.tensor([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0], [5.0, 5.0, -1.0]]),
        torch.tensor([[1.0, 2.0]] * 3),
    )
    label = torch.tensor([[2, -1], [-1, -1], [0, 1]])
    terms = terms_of(outputs_of(3, labels=logits), batch_of(3, label=label))
    first = -math.log(math.exp(1) / (math.exp(2) + 1 + math.exp(1))) - math.log(
        1 / (2 + math.exp(-6))
    )
    assert value(terms["label0"]) == (pytest.approx(first, rel=1e-5), 2)
    assert value(terms["label1"]) == (pytest.approx(math.log(1 + math.exp(-1)), rel=1e-5), 1)


# --- masks -------------------------------------------------------------------------------------


def test_nucleotides_and_counts_by_hand():
    tokens = torch.tensor([[1, 2, 3, 0], [4, 4, 1, 5], [2, 2, 2, 2]], dtype=torch.uint8)
    where = torch.tensor([[True, False, True, False], [False, True, False, False]])
    masks = Masks(
        torch.tensor([2, 1]),
        tokens[[2, 1]].masked_fill(where, 6),
        where,
        torch.tensor([[True, False], [False, True]]),
    )
    batch = Batch(
        tokens, torch.tensor([[0, 1], [2, 1]]), torch.tensor([[4.0, 6.0], [9.0, 1.0]]), sizes=(2, 2)
    )
    logits = torch.full((2, 4, 4), 9.0)
    logits[where] = torch.tensor([[0.0, 3.0, 0, 0], [1.0, 0.0, 0, 0], [0.0, 0.0, 0, 2.0]])
    shares = torch.tensor([math.log(0.5), 7.0, 7.0, math.log(0.8)])
    terms = terms_of(outputs_of(2, nucleotides=logits, counts=shares), batch, masks)
    # The masked bases are C, C and T: the second column twice, then the fourth.
    expected = (
        -(3 - math.log(math.exp(3) + 3))
        - (0 - math.log(math.e + 3))
        - (2 - math.log(math.exp(2) + 3))
    )
    assert value(terms["nucleotide"]) == (pytest.approx(expected, rel=1e-5), 3)
    first, second = abs(math.log(0.5) - math.log(0.4)), abs(math.log(0.8) - math.log(0.1))
    assert value(terms["count"]) == (pytest.approx(first**2 / 2 + second - 0.5, rel=1e-5), 2)
    assert set(terms) == {"nucleotide", "count"}


def test_the_sums_of_batches_add_up(study_of, tiny, model_of):
    """All terms but the pairs, whichever samples share a batch."""
    made = tiny()
    study = study_of(**made, names=[f"s{row}" for row in range(9)])
    model = model_of(HeadConfig(counts=True, n_targets=2, n_classes=(3,)))
    rng = np.random.default_rng(0)
    target = rng.normal(size=(9, 2)).astype(np.float32)
    target[rng.random((9, 2)) < 0.3] = NAN
    label = rng.integers(-1, 3, (9, 1))
    train = TrainConfig()

    def terms(rows: list[int]):
        batch = rarefied_batch(study, np.array(rows), 0)
        order = study.rows(batch.sample_ids)
        fields = {
            "target": torch.from_numpy(target[order]),
            "label": torch.from_numpy(label[order]),
        }
        batch = Batch(**{**vars(batch), **fields})
        masks = make_masks(batch, train, 0, 0)
        with torch.no_grad():
            return terms_of(model(batch, masks), batch, masks, "huber", depth=40)

    whole = terms(list(range(9)))
    for parts in ([[0, 1, 2, 3, 4], [5, 6, 7, 8]], [[row] for row in range(9)]):
        pieces = [terms(rows) for rows in parts]
        for name in ("target", "label0", "count"):
            assert sum(int(piece[name][1]) for piece in pieces) == int(whole[name][1]) > 3
            total = sum(float(piece[name][0]) for piece in pieces)
            assert total == pytest.approx(float(whole[name][0]), rel=1e-5)


# --- total -------------------------------------------------------------------------------------


def test_the_total_is_the_weighted_sum_of_the_means():
    weights = penalties(TrainConfig(penalty=2.0, nuc_penalty=0.5, count_penalty=3.0), 13)
    terms = {
        "unifrac": (torch.tensor(6.0), torch.tensor(3)),
        "nucleotide": (torch.tensor(8.0), torch.tensor(4)),
        "count": (torch.tensor(1.0), torch.tensor(2)),
        "target": (torch.tensor(5.0), torch.tensor(5)),
        "label0": (torch.tensor(1.0), torch.tensor(10)),
        "label12": (torch.tensor(0.0), torch.tensor(0)),
    }
    assert total_loss(terms, weights).item() == pytest.approx(2 * 2 + 0.5 * 2 + 3 * 0.5 + 1 + 0.1)


def test_a_batch_of_which_no_asv_was_masked_still_has_a_loss(study_of, tiny, model_of, monkeypatch):
    """Masked nucleotides alone, in a last batch so small that the draw took none of its ASVs."""
    monkeypatch.setattr("aam.training.masking.MASKED_ASVS", 0.0)
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


@pytest.mark.parametrize(
    "asked",
    [("1",), ("1", "2", "3"), ("1", "0"), ("1", "-1"), ("1", "nan"), ("1", "x"), ("inf", "1")],
)
def test_weights_that_do_not_fit_the_classes(asked):
    with pytest.raises(
        InputError, match=r"--class-weights is .*, expected balanced, or 2 numbers above 0"
    ):
        class_weights(asked, np.zeros((4, 1), np.int64), (2,))


def test_weighted_classes_are_those_of_torch():
    logits, label, weight = (
        torch.randn(6, 3),
        torch.tensor([0, 1, 2, -1, 1, 1]),
        torch.tensor([0.1, 0.2, 0.05]),
    )
    batch = batch_of(6, label=label[:, None])
    terms = terms_of(outputs_of(6, labels=(logits,)), batch, weights=(weight,))
    expected = F.cross_entropy(logits, label, weight, ignore_index=-1)
    assert total_loss(terms, {"label": 1.0}).item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss_counts(on_shelves(batch), (weight,))["label0"].item() == pytest.approx(
        terms["label0"][1].item()
    )
