"""What is reported of a run: held-out predictions beside trivial baselines, and how good an encoder is."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from scipy.spatial.distance import squareform

from aam.config import RuntimeConfig, TrainConfig
from aam.config_commands import ForestConfig
from aam.data.batch import MASK, PAD, N
from aam.data.loader import draw_batch
from aam.data.metadata import Metadata
from aam.data.split import Split, kfold
from aam.data.study import EVALUATION, Study
from aam.data.targets import TargetSpec
from aam.model.aam import Aam
from aam.runtime.files import write_text
from aam.training import report
from aam.training.baselines import Baseline
from aam.training.checkpoint import SavedModel
from aam.training.forest import Columns, baselines_in, baselines_of, laid_out, levels, truth_of
from aam.training.inference import run_model
from aam.training.metrics import LEVEL, Array, Conformal, Interval, Predictions, pearson
from aam.training.predictions import PredictionTable
from aam.training.report import ReportData, Table, TargetResult, plain_json

log = logging.getLogger("aam")

MOST_SAMPLES = 1000
MOST_ASVS = 2000
WORD = 8
NEIGHBOURS = 10
KNOWN_AT_ONCE = 256


# --- targets -----------------------------------------------------------------------------------------------
def _losses(study: Study, spec: TargetSpec, metadata: Metadata) -> dict[str, tuple[int, int]]:
    """Samples of each class in the metadata of the table, and those that reach the depth."""
    kept, dropped = (
        Counter(metadata.values(spec.name, [name for name in names if name in metadata]))
        for names in (study.table.sample_ids, study.dropped)
    )
    return {label: (kept[label] + dropped[label], kept[label]) for label in spec.labels}


def _predictions(table: PredictionTable, spec: TargetSpec, metadata: Metadata, columns: Columns) -> Predictions:
    return Predictions(
        sample_ids=table.sample_ids,
        truth=truth_of(metadata, spec, table.sample_ids),
        predicted=table.values[spec.name] if spec.kind == "numeric" else table.probabilities[spec.name],
        labels=spec.labels,
        fold=np.array(table.folds) if len(set(table.folds)) > 1 else None,
        groups=levels(metadata, columns.group, table.sample_ids),
        batch=levels(metadata, columns.batch, table.sample_ids),
        limits=table.limits(spec.name),
    )


def with_intervals(
    table: PredictionTable, metadata: Metadata, columns: Columns, seed: int
) -> tuple[PredictionTable, dict[str, Conformal]]:
    """Held-out predictions with conformal intervals, and by target what makes those of new samples.

    All of these samples were held out of training and of early stopping. The interval of each comes from samples of
    other folds or, where there is one fold only, of other fifths of the groups; that of new samples from all. Where
    that would be fewer than `metrics.FEW_GROUPS` groups there are none, which is logged.
    """
    fitted = {}
    for spec in table.specs:
        if spec.kind != "numeric":
            continue
        predictions = _predictions(table, spec, metadata, columns)
        known = predictions.known()
        limits, fit = _held_out_limits(known, _parts(known, seed)), Conformal.fit(known)
        if limits is None or fit is None:
            drawn = len(np.unique(known.resampled))
            log.warning("%s: no %.0f %% intervals, %d held-out groups are too few", spec.name, 100 * LEVEL, drawn)
            continue
        every = np.full((len(table.sample_ids), 2), math.nan)
        every[predictions.complete] = limits
        table, fitted[spec.name] = table.with_limits(spec.name, every), fit
    return table, fitted


def _held_out_limits(known: Predictions, parts: Array) -> Array | None:
    """Limits [N, 2] of each sample's interval, fitted on the samples of the other `parts` [N] of whole groups."""
    limits = np.empty((len(parts), 2))
    for part in np.unique(parts):
        fitted = Conformal.fit(known.at(parts != part))
        if fitted is None:
            return None
        limits[parts == part] = fitted.limits(known.predicted[parts == part])
    return limits


def _parts(known: Predictions, seed: int) -> Array:
    """Folds or, without them, five parts of whole groups, [N]."""
    if known.fold is not None or len(np.unique(known.resampled)) < 5:
        return np.zeros(len(known.truth)) if known.fold is None else known.fold
    splits = kfold(known.sample_ids, 5, None if known.groups is None else known.groups.tolist(), seed=seed)
    place = dict(zip(splits[0].sample_ids, splits[0].folds, strict=True))
    return np.array([place[name] for name in known.sample_ids])


@dataclasses.dataclass(frozen=True)
class Rivals:
    """Baselines of a report: trivial ones on the `splits` of a study, with `forest` learned ones, those of a file."""

    study: Study | None = None
    splits: Sequence[Split] = ()
    forest: ForestConfig | None = None
    given: PredictionTable | None = None

    def of(
        self, spec: TargetSpec, metadata: Metadata, columns: Columns, table: PredictionTable
    ) -> tuple[Baseline, ...]:
        """Baselines of one target, laid out like the predictions `table`; those of the file come first."""
        found: dict[str, Baseline] = {}
        if self.study is not None and self.splits:
            ids, fitted = baselines_of(self.study, self.splits, spec, metadata, columns, self.forest)
            found = {one.name: laid_out(one, ids, table.sample_ids) for one in fitted}
        if self.given is not None:
            found |= {one.name: one for one in baselines_in(self.given, spec, table)}
        return tuple(found.values())


def evaluate_targets(
    table: PredictionTable, metadata: Metadata, columns: Columns, rivals: Rivals | None = None
) -> tuple[TargetResult, ...]:
    """Figures of every target beside those of its `rivals`."""
    results, rivals = [], rivals or Rivals()
    ids = table.sample_ids
    for spec in table.specs:
        predictions = _predictions(table, spec, metadata, columns)
        names = report.Names(spec.name, columns.batch or "batch", columns.group or "sample")
        losses = {} if rivals.study is None else _losses(rivals.study, spec, metadata)
        asked = [*columns.categories, *([] if columns.group is None else [columns.group])]
        parts = {name: values for name in asked if (values := levels(metadata, name, ids)) is not None}
        found = rivals.of(spec, metadata, columns, table)
        results.append(report.target_result(names, predictions, found, losses, parts))
    return tuple(results)


# --- encoder -----------------------------------------------------------------------------------------------
def _pairs(matrix: Array) -> Array:
    """Upper triangle of a symmetric matrix."""
    return np.asarray(squareform(matrix.astype(np.float64), checks=False))


def mantel(first: Array, second: Array) -> float:
    """Pearson correlation of the upper triangles of two distance matrices [N, N]."""
    return pearson(_pairs(first), _pairs(second))


def partial_mantel(first: Array, second: Array, given: Sequence[Array]) -> float:
    """Correlation of two distance matrices [N, N] given others: Smouse, Long and Sokal 1986."""
    pair = np.stack([_pairs(first), _pairs(second)], axis=1)
    known = np.stack([np.ones(len(pair)), *map(_pairs, given)], axis=1)
    rest = pair - known @ np.linalg.lstsq(known, pair, rcond=None)[0]
    if (np.abs(rest).max(axis=0, initial=0.0) <= 1e-10 * np.abs(pair).max(axis=0, initial=0.0)).any():
        return math.nan
    return pearson(rest[:, 0], rest[:, 1])


def neighbours_recovered(predicted: Array, truth: Array, k: int = 10) -> float:
    """Mean share of a sample's k nearest by predicted distance [N, N] that are among its k nearest in truth.

    True ties at the k-th place all count. Chance is k / (N - 1).
    """
    if not 0 < k < len(truth):
        return math.nan
    apart = np.eye(len(truth), dtype=bool)
    nearest = np.argsort(np.where(apart, np.inf, predicted), axis=1, kind="stable")[:, :k]
    true = np.where(apart, np.inf, truth)
    reach = np.partition(true, k - 1, axis=1)[:, k - 1 : k]
    return float((np.take_along_axis(true, nearest, axis=1) <= reach).mean())


def _jaccard(presence: Array) -> Array:
    """Jaccard distances between the rows of a 0/1 matrix ``[N, F]``."""
    shared, total = presence @ presence.T, presence.sum(axis=1)
    return np.asarray(1 - shared / np.maximum(total[:, None] + total - shared, 1))


def _words(tokens: Array) -> csr_array:
    """How often each word of A, C, G and T stands in the ASVs ``[F, L]``, ``[F, 4 ** WORD]``."""
    windows = np.lib.stride_tricks.sliding_window_view(tokens.astype(np.int32), WORD, axis=1)
    valid = ((windows > PAD) & (windows < N)).all(axis=2)
    codes = ((windows - 1) @ 4 ** np.arange(WORD, dtype=np.int32))[valid]
    places = (np.ones(len(codes), np.float32), (np.nonzero(valid)[0], codes))
    return csr_array(places, shape=(len(tokens), 4**WORD))


def _distance_figures(
    saved: SavedModel, study: Study, rows: npt.NDArray[np.int64], config: RuntimeConfig, device: torch.device
) -> Table:
    """Agreement of predicted distances with UniFrac, beside distances that need no model."""
    batch, head = draw_batch(study, rows, EVALUATION), saved.network.distance
    if head is None or batch.distance is None:
        raise ValueError("the model has no UniFrac head, or the study no distances")
    predicted = run_model(saved.network, study, rows, device, config).ordered(batch.sample_ids)
    with torch.inference_mode():
        vectors = head.vectors(torch.from_numpy(predicted.samples).float().to(device))
        distances = head(vectors, vectors).double().cpu().numpy()
    truth, kept = batch.distance.double().numpy(), batch.counts.numpy() > 0
    present = np.zeros((len(rows), len(batch.tokens)), np.float32)
    present[np.nonzero(kept)[0], batch.asv.numpy()[kept]] = 1
    words, richness = csr_array(present) @ _words(batch.tokens.numpy()), np.log(present.sum(axis=1))
    found = {
        "the model": distances,
        f"presence of {WORD}-mers, Jaccard": _jaccard((words.toarray() > 0).astype(np.float32)),
        "ASVs, Jaccard": _jaccard(present),
        "difference of log richness": np.abs(richness[:, None] - richness),
    }
    _, first, _, last = found.values()
    partial = f"{partial_mantel(distances, truth, [first, last]):.3f}"
    body = [
        (name, f"{mantel(d, truth):.4f}", f"{neighbours_recovered(d, truth, NEIGHBOURS):.3f}",
         partial if d is distances else "")
        for name, d in found.items()
    ]  # fmt: skip
    recovered = f"share of the {NEIGHBOURS} nearest neighbours"
    header = ("", "Mantel", recovered, "partial Mantel given the first and last rival")
    return Table(f"Agreement with {study.metric} on {len(rows)} held-out samples", header, tuple(body))


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


def _nearest(tokens: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Row of `known` that agrees with each row of `tokens` at most bases, PAD and N agreeing with nothing."""
    best, row = torch.full((len(tokens),), -1.0), torch.zeros(len(tokens), dtype=torch.long)
    bases = torch.arange(1, 5)
    wanted = (tokens[..., None] == bases).flatten(1).float()
    for start in range(0, len(known), KNOWN_AT_ONCE):
        offered = (known[start : start + KNOWN_AT_ONCE, :, None] == bases).flatten(1).float()
        agree, at = (wanted @ offered.T).max(dim=1)
        row = torch.where(agree > best, start + at, row)
        best = torch.maximum(best, agree)
    return row


def _base_figures(saved: SavedModel, study: Study, seen: Array, new: Array, device: torch.device) -> Table:
    """Masked-base accuracy on ASVs absent from training, beside the consensus and the nearest seen ASV."""
    tokens, known = study.tokens[torch.from_numpy(new[:MOST_ASVS])], study.tokens[torch.from_numpy(seen)]
    where, guess = masked_bases(saved.network, tokens, device, TrainConfig().nuc_mask_ratio, saved.seed)
    counts = torch.stack([(known == base).sum(dim=0) for base in range(1, 5)])
    found = {
        "the model": guess,
        "nearest seen ASV": known[_nearest(tokens.masked_fill(where, PAD), known)],
        "consensus": (counts.argmax(dim=0) + 1).expand_as(tokens),
    }
    rows = [(name, f"{(one == tokens)[where].double().mean():.4f}") for name, one in found.items()]
    return Table(f"Masked bases of {len(tokens)} ASVs absent from training", ("", "accuracy"), tuple(rows))


def evaluate_encoder(
    saved: SavedModel, study: Study, split: Split, config: RuntimeConfig, device: torch.device
) -> Sequence[Table]:
    """Tables for the report of `aam pretrain`: held-out distances and masked bases of unseen ASVs."""
    rows = study.rows(split.held_out[:MOST_SAMPLES])
    sides = (study.table.counts[at].indices.astype(np.int64) for at in (study.rows(split.learned), rows))
    seen, met = map(np.unique, sides)
    new, tables = np.setdiff1d(met, seen), []
    if saved.network.distance is not None and len(rows) > 2:
        tables.append(_distance_figures(saved, study, rows, config, device))
    if len(new) and len(seen):
        tables.append(_base_figures(saved, study, seen, new, device))
    fold = f"Fold {split.test_fold}: " if split.test_fold else ""
    return [dataclasses.replace(table, title=fold + table.title) for table in tables]


# --- writing -----------------------------------------------------------------------------------------------
def write_results(folder: Path, results: ReportData) -> None:
    """Write report.html and metrics.json, and log what matters."""
    write_text(folder / "report.html", report.report_html(results))

    def plain(figures: dict[str, Interval]) -> dict[str, float]:
        return {name: figure.value for name, figure in figures.items()}

    targets = {
        result.names.target: {
            "pooled": {name: dataclasses.asdict(figure) for name, figure in result.pooled.items()},
            "folds": {fold: plain(values) for fold, (_, values) in result.folds.items()},
            "parts": {
                column: {level: {"samples": n, **plain(values)} for level, (n, values) in part.items()}
                for column, part in {result.names.batch: result.batches, **result.parts}.items()
                if part
            },
            "intervals": {name: dataclasses.asdict(figure) for name, figure in result.coverage.items()},
            "baselines": {one.name: plain(one.figures) for one in result.comparisons},
            "verdict": list(result.sentences),
        }
        for result in results.targets
    }
    tables = {t.title: [dict(zip(t.header, row, strict=True)) for row in t.rows] for t in results.tables}
    text = json.dumps(plain_json({"targets": targets, "tables": tables}), indent=1) + "\n"
    write_text(folder / "metrics.json", text)
    for line in report.summary_lines(results):
        log.info("%s", line)
