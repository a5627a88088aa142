"""How good an encoder is on samples and ASVs that it has not seen, beside rules that need no model;
and what helps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from aam.config import TrainConfig
from aam.data.batch import Batch
from aam.data.collate import rarefied_batch
from aam.data.rarefaction import EVALUATION
from aam.data.splits import Split, fold_folder
from aam.data.study import Study
from aam.data.tokens import MASK, PAD, K, N, kmer_counts
from aam.device.options import RuntimeConfig
from aam.diversity.batch import jaccard
from aam.evaluate.metrics import Array, mantel, neighbours_recovered, partial_mantel
from aam.model.aam import Aam
from aam.predict.network import run_model
from aam.predict.saved_model import SavedModel
from aam.report.charts import Figure
from aam.report.tables import Table
from aam.report.training_figures import ordination_figures

MAX_SAMPLES = 1000

MAX_ASVS = 2000

NEIGHBOURS = 10

SEEN_ASVS_AT_ONCE = 256

# Mantel correlations closer than this are not told apart.
TIE = 0.02


# Sample ids, true and predicted distances [N, N], and those of rules that need no model, by name.
Compared = tuple[tuple[str, ...], Array, Array, dict[str, Array]]


def _agreement(
    saved: SavedModel,
    study: Study,
    rows: npt.NDArray[np.int64],
    config: RuntimeConfig,
    device: torch.device,
) -> tuple[list[Table], Compared | None]:
    """Return tables of what the model and rules predict of some samples, and, if it predicts
    UniFrac, the distances.
    """
    network, metric = saved.required_network, str(study.metric)
    batch = rarefied_batch(study, rows, EVALUATION)
    if (
        network.distance is None
        or batch.distance is None
        or not bool(batch.distance.isfinite().any())
    ):
        return [], None
    predicted = run_model(network, study, rows, device, config, compared=True)
    compared = torch.from_numpy(predicted.reorder(batch.sample_ids).compared).to(device)
    with torch.inference_mode():
        distances = network.distance(compared, compared).double().cpu().numpy()
    rules, truth = _rules(batch), batch.distance.double().numpy()
    table = _distance_table(metric, truth, distances, rules)
    return [table], (batch.sample_ids, truth, distances, rules)


def _rules(batch: Batch) -> dict[str, Array]:
    """Return distances [N, N] that need no model, by name."""
    kept = batch.counts.numpy() > 0
    present = np.zeros((len(batch.counts), len(batch.tokens)), np.float32)
    present[np.nonzero(kept)[0], batch.asv.numpy()[kept]] = 1
    counts = csr_matrix(present)
    richness = np.log(present.sum(axis=1))
    return {
        f"presence of {K}-mers, Jaccard": jaccard(
            counts, features=kmer_counts(batch.tokens.numpy())
        ),
        "ASVs, Jaccard": jaccard(counts),
        "difference of log richness": np.abs(richness[:, None] - richness),
    }


def _distance_table(
    metric: str, truth: Array, distances: Array, rules: Mapping[str, Array]
) -> Table:
    """Return the agreement of distances with UniFrac or another distance."""
    by_name = {"the model": distances, **rules}
    by_words, _, by_richness = rules.values()
    partial = f"{partial_mantel(distances, truth, [by_words, by_richness]):.3f}"
    recovered = {name: neighbours_recovered(d, truth, NEIGHBOURS) for name, d in by_name.items()}
    body = [
        (
            name,
            f"{mantel(d, truth):.4f}",
            "too few samples" if np.isnan(recovered[name]) else f"{recovered[name]:.3f}",
            partial if d is distances else "",
        )
        for name, d in by_name.items()
    ]
    share = f"share of the {NEIGHBOURS} nearest neighbours"
    header = ("", "Mantel", share, "partial Mantel given 8-mers and richness")
    return Table(
        f"Agreement with {metric} on {len(truth)} held-out samples",
        header,
        tuple(body),
        "agreement",
    )


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
    """Return the row of `seen` that agrees with each row of `tokens` at most bases; PAD and N agree
    with nothing.
    """
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


def mantel_advice(
    metric: str, model: float, model_free: Mapping[str, float], learned_samples: int
) -> list[str]:
    """Return what helps an encoder whose distances agree less well with those it learned than
    distances of no model.

    Parameters
    ----------
    metric : str
        The distance that was learned, as the options name it.
    model : float
        Mantel correlation of the encoder's distances with it, on held-out samples.
    model_free : mapping of str to float
        The same correlation of distances that need no model, by their name in the report.
    learned_samples : int
        Samples that the encoder learned from.
    """
    name, best = max(model_free.items(), key=lambda pair: pair[1])
    if model >= best - TIE:
        return []
    return [
        f"The encoder's distances agree with {metric} less well than {name}, which needs no "
        f"model (Mantel {model:.2f} "
        f"against {best:.2f}): it has not learned these distances well. Use UniFrac itself for "
        "ordinations and nearest "
        "neighbours, and judge a model that is fine-tuned from this encoder by its held-out "
        "metrics beside the "
        "baselines. What helps most is more samples of the same region, which need no labels (it "
        "learned from "
        f"{learned_samples}), then more --epochs; a larger --embedding-dim helps only with many "
        "samples."
    ]


def _parts(study: Study, rows: Array, network: Aam) -> list[tuple[str, Array]]:
    """Return the samples to compare, three or more: all of them, or those of each of several
    studies with its name.
    """
    if network.distance is None:
        return []
    if len(study.parts) == 1:
        return [("", rows)] if len(rows) > 2 else []
    parts = [
        (f"{part.name}: ", rows[study.origin[rows] == number])
        for number, part in enumerate(study.parts)
        if part.tree is not None
    ]
    return [(name, part) for name, part in parts if len(part) > 2]


def base_table(
    saved: SavedModel, tokens: Tensor, seen_tokens: Tensor, device: torch.device
) -> Table:
    """Return masked-base accuracy on new ASVs ``[F, L]``, beside rules that know seen ones ``[S,
    L]``.
    """
    where, guess = masked_bases(
        saved.required_network, tokens, device, TrainConfig().nuc_mask_ratio, saved.seed
    )
    counts = torch.stack([(seen_tokens == base).sum(dim=0) for base in range(1, 5)])
    by_name = {
        "the model": guess,
        "nearest seen ASV": seen_tokens[_nearest(tokens.masked_fill(where, PAD), seen_tokens)],
        "consensus": (counts.argmax(dim=0) + 1).expand_as(tokens),
    }
    rows = [
        (name, f"{(predicted == tokens)[where].double().mean():.4f}")
        for name, predicted in by_name.items()
    ]
    return Table(
        f"Masked bases of {len(tokens)} ASVs absent from training",
        ("", "accuracy"),
        tuple(rows),
        "agreement",
    )


def evaluate_encoder(
    saved: SavedModel,
    study: Study,
    split: Split,
    config: RuntimeConfig,
    device: torch.device,
    bases: bool = True,
) -> tuple[list[Table], list[Figure], list[str]]:
    """Return tables and figures of how good an encoder is, and what a reader must be warned of.

    They are of held-out distances, and of masked `bases` of ASVs that it has not seen.
    What ASVs another encoder has seen, from which it started, is not known: then there are none of
    `bases`.
    """
    rows = study.rows(split.held_out[:MAX_SAMPLES])
    seen, of_held_out = (
        study.table.columns_of(at) for at in (study.rows(split.not_held_out), rows)
    )
    new = np.setdiff1d(of_held_out, seen)
    tables: list[Table] = []
    warnings: list[str] = []
    plots: list[Figure] = []
    fold, of_file = (
        (f"Fold {split.test_fold}: ", f"{fold_folder(split.test_fold)}-")
        if split.test_fold
        else ("", "")
    )
    for name, part in _parts(study, rows, saved.required_network):
        found, compared = _agreement(saved, study, part, config, device)
        tables += [dataclasses.replace(table, title=name + table.title) for table in found]
        if name or compared is None:
            continue
        ids, truth, distances, rules = compared
        metric = str(study.metric)
        plots += ordination_figures(truth, distances, metric, ids)
        model, model_free = (
            mantel(distances, truth),
            {name: mantel(d, truth) for name, d in rules.items()},
        )
        warnings += [
            fold + advice
            for advice in mantel_advice(metric, model, model_free, len(split.not_held_out))
        ]
    if len(new) and len(seen):
        unseen, seen_tokens = (
            study.tokens[torch.from_numpy(columns)] for columns in (new[:MAX_ASVS], seen)
        )
        tables += [base_table(saved, unseen, seen_tokens, device)] if bases else []
    return (
        [dataclasses.replace(table, title=fold + table.title) for table in tables],
        [
            dataclasses.replace(one, title=fold + one.title, name=of_file + one.name)
            for one in plots
        ],
        warnings,
    )
