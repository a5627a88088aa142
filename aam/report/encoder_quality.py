"""Quality of an encoder on new samples and ASVs, compared with rules that need no model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import altair as alt
import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from aam.config import TrainConfig
from aam.data.batch import Batch
from aam.data.loader import rarefied_batch
from aam.data.rarefaction import EVALUATION
from aam.data.splits import Split, fold_folder
from aam.data.study import Study
from aam.data.tokens import MASK, PAD, K, N, kmer_counts
from aam.diversity.distances import jaccard
from aam.evaluate.intervals import number
from aam.evaluate.metrics import mantel, neighbours_recovered, upper_triangle
from aam.model.aam import Aam
from aam.options import RuntimeConfig
from aam.predict.saved_model import SavedModel
from aam.report.charts import LIGHT, Figure, Table, data, diagonal, sized, x_axis, y_axis
from aam.training.inference import Predicted, run_model
from aam.typing import Array

MAX_QUALITY_SAMPLES, MAX_ASVS, SEEN_ASVS_AT_ONCE = 1000, 2000, 256

QUALITY_NEIGHBOURS = 10

# Mantel correlations closer than this are not told apart.
TIE = 0.02

BINS = 40


def distances_figure(truth: Array, predicted: Array, metric: str) -> Figure:
    """Predicted against true distances [N, N] of all pairs, as shades of how many there are."""
    x, y = upper_triangle(truth), upper_triangle(predicted)
    metric = metric.replace("unifrac", "UniFrac").replace("_", " ")
    (counts, xs, ys), rows = np.histogram2d(x, y, BINS), []
    for i, j in np.argwhere(counts > 0).tolist():
        shade = round(0.1 + 0.9 * float(np.sqrt(counts[i, j] / counts.max())), 2)
        row = {"x": xs[i], "x2": xs[i + 1], "y": ys[j], "y2": ys[j + 1], "shade": shade}
        rows.append({**row, "tip": f"{int(counts[i, j])} pairs"})
    cells = alt.Chart(data(rows)).mark_rect(aria=True, color=LIGHT[0])
    axes = (x_axis(f"true {metric}", nice=False), y_axis(f"predicted {metric}", nice=False))
    marks = alt.X2("x2:Q"), alt.Y2("y2:Q"), alt.Opacity("shade:Q", scale=None)
    drawn = cells.encode(*axes, *marks, alt.Description("tip:N"))
    correlation = f"The Mantel correlation is {number(mantel(predicted, truth))}."
    return Figure(
        "distances",
        f"Predicted against true {metric}",
        sized(drawn, diagonal(float(x.min()), float(x.max()))),
        "Pairs of held-out samples; a stronger colour means more pairs. Points on the dashed line "
        f"are exact. {correlation}",
    )


def _rules(batch: Batch) -> dict[str, Array]:
    """Distances [N, N] that need no model, by name."""
    kept = batch.counts.numpy() > 0
    present = np.zeros((len(batch.counts), len(batch.tokens)), np.float32)
    present[np.nonzero(kept)[0], batch.asv.numpy()[kept]] = 1
    counts, richness = csr_matrix(present), np.log(present.sum(axis=1))
    kmers = kmer_counts(batch.tokens.numpy())
    return {
        f"presence of {K}-mers, Jaccard": jaccard(counts @ kmers),
        "ASVs, Jaccard": jaccard(counts),
        "difference of log richness": np.abs(richness[:, None] - richness),
    }


def _agreement(
    network: Aam, study: Study, rows: Array, config: RuntimeConfig, device: torch.device
) -> tuple[list[Table], list[Figure], list[str]]:
    """Predicted and true distances of some samples: a table, a figure, and a warning if a rule
    agrees better; nothing without true distances.
    """
    batch, metric = rarefied_batch(study, rows, EVALUATION), str(study.metric)
    if network.distance is None or batch.distance is None or not batch.distance.isfinite().any():
        return [], [], []
    predicted = run_model(network, study, rows, device, config, compared=True)
    ordered = Predicted.concatenate([predicted], batch.sample_ids)
    compared = torch.from_numpy(ordered.compared).to(device)
    with torch.inference_mode():
        distances = network.distance(compared, compared).double().cpu().numpy()
    truth, body, correlations = batch.distance.double().numpy(), [], {}
    for name, matrix in {"the model": distances, **_rules(batch)}.items():
        correlations[name] = mantel(matrix, truth)
        recovered = neighbours_recovered(matrix, truth, QUALITY_NEIGHBOURS)
        share = "too few samples" if np.isnan(recovered) else f"{recovered:.3f}"
        body.append((name, f"{correlations[name]:.4f}", share))
    model = correlations.pop("the model")
    best, largest = max(correlations.items(), key=lambda pair: pair[1])
    title = f"Agreement with {metric} on {len(truth)} held-out samples"
    header = ["", "Mantel", f"share of the {QUALITY_NEIGHBOURS} nearest neighbours"]
    table = Table(title, pd.DataFrame(body, columns=header), "agreement")
    warning = (
        f"The encoder's distances agree with {metric} less well than {best}, which needs no model "
        f"(Mantel {model:.2f} and {largest:.2f}). More samples of this region help most; they need "
        "no labels."
    )
    figure = distances_figure(truth, distances, metric)
    return [table], [figure], [warning] if model < largest - TIE else []


def masked_bases(
    network: Aam, tokens: Tensor, device: torch.device, ratio: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Predict masked bases of ``tokens`` ``[F, L]``; return which were masked and the predicted
    tokens.
    """
    draw = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed))
    where = (draw < ratio) & (tokens > PAD) & (tokens < N)
    masked = tokens.masked_fill(where, MASK).to(device)
    with torch.inference_mode():
        patches, _ = network.encode_asvs(masked, bool((tokens == PAD).any()))
        guess = network.asv.nucleotide_logits(patches, tokens.shape[1]).argmax(dim=-1) + 1
    return where, guess.cpu()


def _nearest(tokens: Tensor, seen: Tensor) -> Tensor:
    """The row of `seen` that agrees with each row of `tokens` at most bases; PAD and N agree with
    nothing.
    """
    bases, agreement = torch.arange(1, 5), []
    wanted = (tokens[..., None] == bases).flatten(1).float()
    for part in seen.split(SEEN_ASVS_AT_ONCE):
        one_hot = (part[..., None] == bases).flatten(1).float()
        agreement.append((wanted @ one_hot.T).max(dim=1))
    best = torch.stack([part.values for part in agreement]).argmax(dim=0)
    rows = torch.stack([part.indices for part in agreement]).gather(0, best[None])[0]
    return rows + best * SEEN_ASVS_AT_ONCE


def _base_table(
    network: Aam, tokens: Tensor, seen_tokens: Tensor, device: torch.device, seed: int
) -> Table:
    """Masked-base accuracy on new ASVs ``[F, L]``, compared with rules that know seen ones
    ``[S, L]``.
    """
    where, guess = masked_bases(network, tokens, device, TrainConfig().nuc_mask_ratio, seed)
    counts = torch.stack([(seen_tokens == base).sum(dim=0) for base in range(1, 5)])
    nearest = seen_tokens[_nearest(tokens.masked_fill(where, PAD), seen_tokens)]
    consensus = (counts.argmax(dim=0) + 1).expand_as(tokens)
    rows = []
    guesses = {"the model": guess, "nearest seen ASV": nearest, "consensus": consensus}
    for name, predicted in guesses.items():
        rows.append((name, f"{(predicted == tokens)[where].double().mean():.4f}"))
    title = f"Masked bases of {len(tokens)} ASVs absent from training"
    return Table(title, pd.DataFrame(rows, columns=["", "accuracy"]), "agreement")


def _parts(study: Study, rows: Array) -> Iterator[tuple[str, Array]]:
    """The samples to compare, three or more: all, or those of each of several studies."""
    several = len(study.parts) > 1
    for at, part in enumerate(study.parts):
        inside = rows[study.origin[rows] == at] if several else rows
        if len(inside) > 2 and (part.tree is not None or not several):
            yield f"{part.name}: " if several else "", inside


def evaluate_encoder(
    saved: SavedModel,
    study: Study,
    split: Split,
    config: RuntimeConfig,
    device: torch.device,
    bases: bool = True,
) -> tuple[list[Table], list[Figure], list[str]]:
    """Tables and figures of how good an encoder is on a split, and warnings.

    They are of held-out distances, and of masked `bases` of ASVs that it has not seen. An encoder
    that started from another one may have seen any ASV, so `bases` is left out.
    """
    network = saved.require_network()
    rows = study.rows(split.held_out[:MAX_QUALITY_SAMPLES])
    fold = f"Fold {split.test_fold}: " if split.test_fold else ""
    file = f"{fold_folder(split.test_fold)}-" if split.test_fold else ""
    tables, figures, warnings = list[Table](), list[Figure](), list[str]()
    for name, part in _parts(study, rows):
        found, drawn, advice = _agreement(network, study, part, config, device)
        tables += [replace(table, title=f"{fold}{name}{table.title}") for table in found]
        for figure in drawn if not name else ():
            figures.append(replace(figure, title=fold + figure.title, name=file + figure.name))
        warnings += [f"{fold}{name}{text}" for text in advice]
    seen = study.table.columns_of(study.rows(split.not_held_out))
    new = np.setdiff1d(study.table.columns_of(rows), seen)
    if bases and len(new) and len(seen):
        unseen, known = (study.tokens[torch.from_numpy(part)] for part in (new[:MAX_ASVS], seen))
        table = _base_table(network, unseen, known, device, saved.seed)
        tables.append(replace(table, title=fold + table.title))
    return tables, figures, warnings
