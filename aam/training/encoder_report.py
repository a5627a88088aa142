"""How well a pretrained encoder does on held-out samples, beside what needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aam.config import RuntimeConfig, TrainConfig
from aam.data.split import Side, Split
from aam.data.study import EVALUATION, Study, draw_batch
from aam.data.tokens import MASK, PAD, N
from aam.model.aam import Aam
from aam.training.inference import run_model
from aam.training.metrics import mantel, neighbours_recovered, partial_mantel
from aam.training.model_folder import SavedModel
from aam.training.report import Table

Matrix = npt.NDArray[np.floating[Any]]

MOST_SAMPLES = 1000
MOST_ASVS = 2000
WORD = 8
NEIGHBOURS = 10


def _jaccard(presence: Matrix) -> Matrix:
    """Jaccard distances between the rows of a 0/1 matrix ``[N, F]``."""
    shared = presence @ presence.T
    total = presence.sum(axis=1)
    distance: Matrix = 1 - shared / np.maximum(total[:, None] + total - shared, 1)
    return distance


def _words(tokens: npt.NDArray[np.uint8]) -> Matrix:
    """Presence of 8-mers ``[F, distinct words]`` in the ASVs ``[F, L]``."""
    windows = np.lib.stride_tricks.sliding_window_view(tokens.astype(np.int64), WORD, axis=1)
    valid = ((windows > PAD) & (windows < N)).all(axis=2)
    codes = ((windows - 1) * 4 ** np.arange(WORD)).sum(axis=2)
    known, inverse = np.unique(codes[valid], return_inverse=True)
    result = np.zeros((len(tokens), len(known)), np.float32)
    result[np.nonzero(valid)[0], inverse] = 1
    return result


def _distance_figures(
    saved: SavedModel, study: Study, rows: npt.NDArray[np.int64], config: RuntimeConfig, device: torch.device
) -> Table:
    names = [study.table.sample_ids[row] for row in rows]
    predicted = run_model(saved.network, study, rows, device, config).ordered(names)
    head = saved.network.distance
    if head is None:
        raise ValueError("the model has no UniFrac head")
    with torch.inference_mode():
        vectors = head.vectors(torch.from_numpy(predicted.samples).float().to(device))
        distances = head(vectors, vectors).double().cpu().numpy()
    batch = draw_batch(study, rows, EVALUATION)
    order = [batch.sample_ids.index(name) for name in names]
    if batch.distance is None or batch.column is None:
        raise ValueError("the study has no distances")
    truth = batch.distance.double().numpy()[np.ix_(order, order)]
    present = np.zeros((len(names), len(batch.column)), np.float32)
    kept = batch.counts.numpy() > 0
    present[np.nonzero(kept)[0], batch.asv.numpy()[kept]] = 1
    present = present[order]
    words = (present @ _words(batch.tokens.numpy()) > 0).astype(np.float32)
    richness = np.log(present.sum(axis=1))
    rivals = {
        f"presence of {WORD}-mers, Jaccard": _jaccard(words),
        "ASVs, Jaccard": _jaccard(present),
        "difference of log richness": np.abs(richness[:, None] - richness),
    }
    given = [rivals[f"presence of {WORD}-mers, Jaccard"], rivals["difference of log richness"]]
    partial = partial_mantel(distances, truth, given)
    found = [("the model", distances), *rivals.items()]
    body = [
        (name, f"{mantel(d, truth):.4f}", f"{neighbours_recovered(d, truth, NEIGHBOURS):.3f}",
         f"{partial:.3f}" if d is distances else "")
        for name, d in found
    ]  # fmt: skip
    title = f"Agreement with {study.metric} on {len(names)} held-out samples"
    header = (
        "",
        "Mantel",
        f"share of the {NEIGHBOURS} nearest neighbours",
        "partial Mantel given the first and last rival",
    )
    return Table(title, header, tuple(body))


def masked_bases(
    network: Aam, tokens: torch.Tensor, device: torch.device, ratio: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Predict masked bases of ``tokens`` ``[F, L]``; returns which were masked and the predicted tokens."""
    draw = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed))
    where = (draw < ratio) & (tokens > PAD) & (tokens < N)
    masked = tokens.masked_fill(where, MASK).to(device)
    with torch.inference_mode():
        patches, _ = network.encode_asvs(masked, bool((tokens == PAD).any()))
        guess = network.asv.nucleotide_logits(patches, tokens.shape[1]).argmax(dim=-1) + 1
    return where, guess.cpu()


def _base_figures(
    saved: SavedModel,
    study: Study,
    seen: npt.NDArray[np.int64],
    new: npt.NDArray[np.int64],
    device: torch.device,
) -> Table:
    """Masked-base accuracy on ASVs absent from training, beside the consensus and the nearest seen ASV."""
    tokens = study.tokens[torch.from_numpy(new[:MOST_ASVS])]
    known = study.tokens[torch.from_numpy(seen)]
    where, guess = masked_bases(saved.network, tokens, device, TrainConfig().nuc_mask_ratio, saved.seed)
    counts = torch.stack([(known == base).sum(dim=0) for base in range(1, 5)])
    consensus = (counts.argmax(dim=0) + 1).expand_as(tokens)
    nearest = known[_nearest(tokens.masked_fill(where, PAD), known)]
    rows = [
        (name, f"{float((found == tokens)[where].float().mean()):.4f}")
        for name, found in (("the model", guess), ("nearest seen ASV", nearest), ("consensus", consensus))
    ]
    return Table(f"Masked bases of {len(tokens)} ASVs absent from training", ("", "accuracy"), tuple(rows))


def _nearest(tokens: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Row of `known` that agrees with each row of `tokens` at most of its unmasked bases."""
    agree = torch.zeros(len(tokens), len(known))
    for base in range(1, 5):
        agree += (tokens == base).float() @ (known == base).float().T
    return agree.argmax(dim=1)


def evaluate_encoder(
    saved: SavedModel, study: Study, split: Split, config: RuntimeConfig, device: torch.device
) -> Sequence[Table]:
    """Tables for the report of `aam pretrain`: held-out distances and masked bases of unseen ASVs."""
    side: Side = "test" if split.ids("test") else "validation"
    rows = study.rows(split.ids(side)[:MOST_SAMPLES])
    learned = study.rows([*split.ids("train"), *(split.ids("validation") if side == "test" else ())])
    seen = np.unique(study.table.counts[learned].indices)
    new = np.setdiff1d(np.unique(study.table.counts[rows].indices), seen)
    tables = []
    if saved.network.distance is not None and len(rows) > 2:
        tables.append(_distance_figures(saved, study, rows, config, device))
    if len(new) and len(seen):
        tables.append(_base_figures(saved, study, seen.astype(np.int64), new.astype(np.int64), device))
    return tables
