"""How good an encoder is, against naive loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist, squareform

from aam.config import ModelConfig, TrainConfig
from aam.data.loader import rarefied_batch
from aam.data.rarefaction import EVALUATION
from aam.data.region import RegionProfile
from aam.data.targets import Targets
from aam.data.tokens import PAD, N
from aam.evaluate.metrics import mantel
from aam.model.aam import HeadConfig
from aam.options import RuntimeConfig
from aam.predict.description import InputOptions, Notes
from aam.predict.saved_model import SavedModel
from aam.report import encoder_quality
from aam.report.encoder_quality import evaluate_encoder, masked_bases
from tests.evaluate.test_evaluation import CPU, split_of


def naive_nearest(tokens: np.ndarray, where: np.ndarray, seen_tokens: np.ndarray) -> np.ndarray:
    rows = []
    for row, hidden in zip(tokens, where, strict=True):
        agree = [
            sum(
                1
                for a, b, h in zip(row, other, hidden, strict=True)
                if not h and a == b and 0 < a < N
            )
            for other in seen_tokens
        ]
        rows.append(int(np.argmax(agree)))
    return seen_tokens[rows]


def test_an_encoder_is_compared_with_what_needs_no_model(study_of, tiny, model_of, monkeypatch):
    monkeypatch.setattr(encoder_quality, "SEEN_ASVS_AT_ONCE", 7)
    made = tiny(samples=9, asvs=40, lengths=(20, 17))
    made["counts"][:5, 20:] = 0
    study = study_of(**made, seed=3)
    network, heads = model_of(HeadConfig("unifrac")), HeadConfig("unifrac")
    profile = RegionProfile.fit(study.table.sequences)
    saved = SavedModel(
        data=InputOptions.of(study.config),
        model=ModelConfig(),
        depth=study.depth,
        seed=study.seed,
        profile=profile,
        notes=Notes(),
        targets=Targets(()),
    ).with_network(network, heads)
    split = split_of([5, 6, 7, 8], [3, 4], fold="2")
    (distances, bases), (figure,), (warning,) = evaluate_encoder(
        saved, study, split, RuntimeConfig(), CPU
    )
    assert figure.name == "fold-2-distances"
    assert warning.startswith("Fold 2: The encoder's distances agree with unifrac less well than ")

    batch = rarefied_batch(study, np.arange(5, 9), EVALUATION)
    with torch.no_grad():
        expected = network(batch).distance.double().numpy()
    row_of = {row[0]: row[1:] for row in distances.rows}
    assert distances.title == "Fold 2: Agreement with unifrac on 4 held-out samples"
    assert float(row_of["the model"][0]) == pytest.approx(
        mantel(expected, batch.distance.double().numpy()), abs=2e-4
    )
    present = np.zeros((4, len(batch.tokens)), bool)
    for row in range(4):
        present[row, batch.asv[row, batch.counts[row] > 0]] = True
    expected_mantel = mantel(squareform(pdist(present, "jaccard")), batch.distance.double().numpy())
    assert float(row_of["ASVs, Jaccard"][0]) == pytest.approx(expected_mantel, abs=1e-4)

    counts = study.table.counts.toarray()
    seen, met = (np.flatnonzero(part.sum(axis=0)) for part in (counts[:5], counts[5:]))
    new = np.setdiff1d(met, seen)
    assert bases.title == f"Fold 2: Masked bases of {len(new)} ASVs absent from training"
    tokens, seen_tokens = study.tokens[new], study.tokens[seen].numpy()
    where, guess = masked_bases(network, tokens, CPU, TrainConfig().nuc_mask_ratio, study.seed)
    assert 0 < where.float().mean() < 0.4
    assert not where[(tokens == PAD) | (tokens == N)].any()
    consensus = [
        int(np.argmax([(seen_tokens[:, place] == base).sum() for base in range(1, 5)])) + 1
        for place in range(tokens.shape[1])
    ]
    tokens, where = tokens.numpy(), where.numpy()
    rows = {
        "the model": guess.numpy(),
        "nearest seen ASV": naive_nearest(tokens, where, seen_tokens),
        "consensus": np.broadcast_to(consensus, tokens.shape),
    }
    expected = [(name, f"{(one == tokens)[where].mean():.4f}") for name, one in rows.items()]
    assert list(bases.rows) == expected
