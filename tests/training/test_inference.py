"""Running a model: each ASV encoded once gives what the whole network gives, in any order and
company.
"""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from aam.data.loader import rarefied_batch
from aam.model.aam import HeadConfig
from aam.options import RuntimeConfig
from aam.training import inference
from aam.training.inference import EncodedAsvs, Predicted, encode_table, run_model

CPU, PLAIN = torch.device("cpu"), RuntimeConfig()
HEADS = HeadConfig("unifrac", n_targets=2, n_classes=(3, 2))
LENGTHS = (20, 13, 30)


def assert_same(actual: Predicted, expected: Predicted, tolerance: float = 1e-5) -> None:
    assert actual.sample_ids == expected.sample_ids
    pairs = [(actual.target, expected.target), (actual.samples, expected.samples)]
    for one, other in [*pairs, *zip(actual.probabilities, expected.probabilities, strict=True)]:
        assert one.dtype == np.float64
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance, equal_nan=False)


@pytest.fixture
def study(study_of, tiny):
    return study_of(**tiny(lengths=LENGTHS))


@pytest.mark.parametrize("patch_size", [5, 1])
def test_each_asv_once_equals_the_whole_network(study, model_of, patch_size):
    model, rows = model_of(HEADS, patch_size=patch_size), np.array([7, 0, 4, 3])
    predicted = run_model(model, study, rows, CPU, PLAIN, rarefaction=5)
    assert predicted.sample_ids == ("s7", "s0", "s4", "s3")
    batch = rarefied_batch(study, rows, 5)
    with torch.no_grad():
        outputs = model(batch)
    read = outputs.target, outputs.samples, outputs.read
    numbers = [values.double().numpy() for values in read]
    classes = tuple(torch.softmax(logits.double(), 1).numpy() for logits in outputs.labels)
    nothing = np.zeros((4, 0), np.float32)
    expected = Predicted(batch.sample_ids, *numbers, nothing, classes)
    assert expected.target.std() > 0.05
    assert_same(predicted, Predicted.concatenate([expected], predicted.sample_ids))
    for probabilities in predicted.probabilities:
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)


def test_the_table_is_encoded_in_any_chunks(study, model_of):
    model = model_of()
    batch = rarefied_batch(study, np.arange(9), 0)
    with torch.no_grad():
        expected = model(batch).asvs
    for size in (None, 1, 5, 24, 100):
        vectors = encode_table(model, study, CPU, RuntimeConfig(asv_chunk_size=size))
        assert vectors.shape == (24, 16)
        torch.testing.assert_close(vectors[batch.column], expected, rtol=1e-5, atol=1e-5)


def test_only_the_asvs_of_some_samples_are_encoded_where_only_these_are_read(
    study, model_of, monkeypatch
):
    model, rows, encoded = model_of(), np.array([2, 5]), []
    forward = model.asv.contextual

    def contextual(tokens, *more):
        encoded.append(len(tokens))
        return forward(tokens, *more)

    monkeypatch.setattr(model.asv, "contextual", contextual)
    some = encode_table(model, study, CPU, PLAIN, rows)
    columns = study.table.columns_of(rows)
    assert sum(encoded) == len(columns) < len(study.lengths)
    expected = encode_table(model, study, CPU, PLAIN)[columns]
    torch.testing.assert_close(some[columns], expected, rtol=1e-5, atol=1e-5)


def test_networks_that_read_asvs_alike_share_their_vectors(study, model_of):
    model, copy, encoded = model_of(), model_of(), EncodedAsvs()
    copy.load_state_dict(model.state_dict())
    first = encoded.encode(model, study, CPU, PLAIN)
    assert encoded.encode(copy, study, CPU, PLAIN) is first
    with torch.no_grad():
        next(copy.asv.parameters()).add_(1.0)
    again = encoded.encode(copy, study, CPU, PLAIN)
    assert again is not first
    assert torch.equal(again, encode_table(copy, study, CPU, PLAIN))
    # A fold has labels of its own, and the ASVs of all.
    assert encoded.encode(copy, dataclasses.replace(study), CPU, PLAIN) is again
    other = dataclasses.replace(study, table=dataclasses.replace(study.table))
    assert encoded.encode(copy, other, CPU, PLAIN) is not again


def test_no_order_changes_a_prediction(study, study_of, tiny, model_of):
    """Neither that of rows and columns of the table, nor of the samples asked for (failure 11)."""
    made, model, rng = tiny(lengths=LENGTHS), model_of(HEADS), np.random.default_rng(2)
    rows, columns, asked = rng.permutation(9), rng.permutation(24), rng.permutation(9)
    sequences = [made["sequences"][column] for column in columns]
    names = [f"s{row}" for row in rows]
    shuffled = study_of(made["counts"][rows][:, columns], sequences, names=names)
    expected = run_model(model, study, np.arange(9), CPU, PLAIN)
    assert np.ptp(expected.samples, axis=0).max() > 0.1
    predicted = run_model(model, shuffled, asked, CPU, PLAIN)
    assert_same(predicted, Predicted.concatenate([expected], predicted.sample_ids))


def test_a_prediction_does_not_depend_on_the_other_samples(study, study_of, tiny, model_of):
    """Asked for alone, and from a table that holds nothing but this sample and its ASVs."""
    made, model = tiny(lengths=LENGTHS), model_of(HEADS)
    together = run_model(model, study, np.arange(9), CPU, PLAIN)
    for row in range(9):
        expected = Predicted.concatenate([together], [f"s{row}"])
        assert_same(run_model(model, study, np.array([row]), CPU, PLAIN), expected)
        columns = np.flatnonzero(made["counts"][row])
        sequences = [made["sequences"][column] for column in columns]
        alone = study_of(made["counts"][[row]][:, columns], sequences, names=[f"s{row}"])
        assert_same(run_model(model, alone, np.array([0]), CPU, PLAIN), expected)


def test_predictions_are_not_in_bf16_unless_asked(study, model_of, monkeypatch):
    """A GPU with bf16 in hardware is simulated; the CPU computes."""
    asked = []

    def recorded(config, device, in_bf16=True):
        asked.append(in_bf16)
        return nullcontext()

    monkeypatch.setattr(inference, "autocast", recorded)
    run_model(model_of(), study, np.arange(9), CPU, PLAIN)
    assert asked == [False, False], "of ASVs, then of samples"
