"""How good an encoder is: held-out distances and masked bases beside model-free rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array

from aam.config import TrainConfig
from aam.data.draw import draw_batch
from aam.data.split import Split
from aam.data.study import EVALUATION, Study
from aam.data.tokens import MASK, PAD, N
from aam.evaluation.distances import WORD, jaccard, mantel, neighbours_recovered, partial_mantel, word_counts
from aam.evaluation.encoder_advice import TIE, mantel_advice
from aam.evaluation.figures.ordination import ordination_figures
from aam.evaluation.figures.svg import Figure
from aam.evaluation.metrics import Array
from aam.evaluation.tables import Table
from aam.model.aam import Aam
from aam.runtime.options import RuntimeConfig
from aam.training.inference import run_model
from aam.training.saved_model import SavedModel

MAX_SAMPLES = 1000

MAX_ASVS = 2000

NEIGHBOURS = 10

SEEN_ASVS_AT_ONCE = 256


@dataclass(frozen=True)
class EncoderQuality:
    """Tables and figures for the report of `aam pretrain`, and what a reader must be warned of."""

    tables: tuple[Table, ...]
    warnings: tuple[str, ...]
    plots: tuple[Figure, ...] = ()


def _distances(
    saved: SavedModel, study: Study, rows: npt.NDArray[np.int64], config: RuntimeConfig, device: torch.device
) -> tuple[npt.NDArray[np.float64], dict[str, npt.NDArray[np.float64]]]:
    """Return UniFrac distances ``[N, N]``, and those of the model and of rules that need no model, by name."""
    batch, head = draw_batch(study, rows, EVALUATION), saved.network.distance
    if head is None or batch.distance is None:
        raise ValueError("the model has no UniFrac head, or the study no distances")
    predicted = run_model(saved.network, study, rows, device, config, compared=True).reorder(batch.sample_ids)
    with torch.inference_mode():
        vectors = torch.from_numpy(predicted.compared).to(device)
        distances = head(vectors, vectors).double().cpu().numpy()
    truth = batch.distance.double().numpy()
    kept = batch.counts.numpy() > 0
    present = np.zeros((len(rows), len(batch.tokens)), np.float32)
    present[np.nonzero(kept)[0], batch.asv.numpy()[kept]] = 1
    words = csr_array(present) @ word_counts(batch.tokens.numpy())
    richness = np.log(present.sum(axis=1))
    by_name = {
        "the model": distances,
        f"presence of {WORD}-mers, Jaccard": jaccard((words.toarray() > 0).astype(np.float32)),
        "ASVs, Jaccard": jaccard(present),
        "difference of log richness": np.abs(richness[:, None] - richness),
    }
    return truth, by_name


def _distance_table(
    truth: npt.NDArray[np.float64], by_name: Mapping[str, npt.NDArray[np.float64]], metric: str | None
) -> Table:
    """Return the agreement of distances with UniFrac."""
    distances, by_words, _, by_richness = by_name.values()
    partial = f"{partial_mantel(distances, truth, [by_words, by_richness]):.3f}"
    recovered = {name: neighbours_recovered(d, truth, NEIGHBOURS) for name, d in by_name.items()}
    body = [
        (name, f"{mantel(d, truth):.4f}", "too few samples" if np.isnan(recovered[name]) else f"{recovered[name]:.3f}",
         partial if d is distances else "")
        for name, d in by_name.items()
    ]  # fmt: skip
    share = f"share of the {NEIGHBOURS} nearest neighbours"
    header = ("", "Mantel", share, "partial Mantel given 8-mers and richness")
    return Table(f"Agreement with {metric} on {len(truth)} held-out samples", header, tuple(body))


def masked_bases(
    network: Aam, tokens: torch.Tensor, device: torch.device, ratio: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Predict masked bases of ``tokens`` ``[F, L]``; return which were masked and the predicted tokens."""
    draw = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed))
    where = (draw < ratio) & (tokens > PAD) & (tokens < N)
    masked = tokens.masked_fill(where, MASK).to(device)
    with torch.inference_mode():
        patches, _ = network.encode_asvs(masked, bool((tokens == PAD).any()))
        guess = network.asv.nucleotide_logits(patches, tokens.shape[1]).argmax(dim=-1) + 1
    return where, guess.cpu()


def _nearest(tokens: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Return the row of `seen` that agrees with each row of `tokens` at most bases; PAD and N agree with nothing."""
    best = torch.full((len(tokens),), -1.0)
    row = torch.zeros(len(tokens), dtype=torch.long)
    bases = torch.arange(1, 5)
    wanted = (tokens[..., None] == bases).flatten(1).float()
    for start in range(0, len(seen), SEEN_ASVS_AT_ONCE):
        one_hot = (seen[start : start + SEEN_ASVS_AT_ONCE, :, None] == bases).flatten(1).float()
        agree, at = (wanted @ one_hot.T).max(dim=1)
        row = torch.where(agree > best, start + at, row)
        best = torch.maximum(best, agree)
    return row


def _rows_with_distances(study: Study, rows: Array) -> list[tuple[str, Array]]:
    """Return the samples to compare, three or more: all of them, or those of each of several studies with its name."""
    if study.origin is None:
        return [("", rows)] if len(rows) > 2 else []
    parts = [
        (f"{part.name}: ", rows[study.origin[rows] == number])
        for number, part in enumerate(study.parts)
        if part.tree is not None
    ]
    return [(name, part) for name, part in parts if len(part) > 2]


def base_table(saved: SavedModel, tokens: torch.Tensor, seen_tokens: torch.Tensor, device: torch.device) -> Table:
    """Return masked-base accuracy on new ASVs ``[F, L]``, beside rules that know seen ones ``[S, L]``."""
    where, guess = masked_bases(saved.network, tokens, device, TrainConfig().nuc_mask_ratio, saved.seed)
    counts = torch.stack([(seen_tokens == base).sum(dim=0) for base in range(1, 5)])
    by_name = {
        "the model": guess,
        "nearest seen ASV": seen_tokens[_nearest(tokens.masked_fill(where, PAD), seen_tokens)],
        "consensus": (counts.argmax(dim=0) + 1).expand_as(tokens),
    }
    rows = [(name, f"{(predicted == tokens)[where].double().mean():.4f}") for name, predicted in by_name.items()]
    return Table(f"Masked bases of {len(tokens)} ASVs absent from training", ("", "accuracy"), tuple(rows))


def _of_fold(figure: Figure, fold: str) -> Figure:
    """Return a figure with the fold in its title and in the name of its file."""
    return (
        dataclasses.replace(figure, title=f"Fold {fold}: {figure.title}", name=f"fold-{fold}-{figure.name}")
        if fold
        else figure
    )


def evaluate_encoder(
    saved: SavedModel, study: Study, split: Split, config: RuntimeConfig, device: torch.device
) -> EncoderQuality:
    """Return how good an encoder is: held-out distances, and masked bases of ASVs that it has not seen."""
    rows = study.rows(split.held_out[:MAX_SAMPLES])
    seen, of_held_out = (study.table.columns_of(at) for at in (study.rows(split.not_held_out), rows))
    new = np.setdiff1d(of_held_out, seen)
    tables: list[Table] = []
    warnings: list[str] = []
    plots: list[Figure] = []
    fold = f"Fold {split.test_fold}: " if split.test_fold else ""
    for name, part in _rows_with_distances(study, rows) if saved.network.distance is not None else ():
        truth, by_name = _distances(saved, study, part, config, device)
        table = _distance_table(truth, by_name, study.metric)
        tables.append(dataclasses.replace(table, title=name + table.title))
        if name:
            continue
        plots += ordination_figures(truth, by_name["the model"], str(study.metric))
        model, *model_free = (mantel(distances, truth) for distances in by_name.values())
        names = list(by_name)[1:]
        advice = mantel_advice(
            str(study.metric), model, dict(zip(names, model_free, strict=True)), len(split.not_held_out)
        )
        warnings += [fold + advice] if model < max(model_free) - TIE else []
    if len(new) and len(seen):
        unseen, seen_tokens = (study.tokens[torch.from_numpy(columns)] for columns in (new[:MAX_ASVS], seen))
        tables.append(base_table(saved, unseen, seen_tokens, device))
    return EncoderQuality(
        tuple(dataclasses.replace(table, title=fold + table.title) for table in tables),
        tuple(warnings),
        tuple(_of_fold(figure, split.test_fold) for figure in plots),
    )
