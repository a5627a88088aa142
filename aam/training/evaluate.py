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

from aam.config import RuntimeConfig, TrainConfig
from aam.data.batch import MASK, PAD, N
from aam.data.metadata import Metadata
from aam.data.split import Split
from aam.data.study import EVALUATION, Study, draw_batch
from aam.data.table import rarefied_row
from aam.data.targets import TargetSpec
from aam.model.aam import Aam
from aam.runtime.files import write_text
from aam.training import report
from aam.training.baselines import Baseline, Fold, Task, trivial_baselines
from aam.training.checkpoint import SavedModel
from aam.training.inference import PredictionTable, run_model
from aam.training.metrics import Array, Interval, Predictions, mantel, neighbours_recovered, partial_mantel
from aam.training.report import ReportData, Table, TargetResult

log = logging.getLogger("aam")

MOST_SAMPLES = 1000
MOST_ASVS = 2000
WORD = 8
NEIGHBOURS = 10
KNOWN_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class Columns:
    """Metadata columns that group the samples of a report."""

    group: str | None = None
    batch: str | None = None


# --- targets -----------------------------------------------------------------------------------------------
def _truth(metadata: Metadata, spec: TargetSpec, ids: Sequence[str]) -> Array:
    if spec.kind == "numeric":
        return metadata.numbers(spec.name, ids)
    place = {label: index for index, label in enumerate(spec.labels)}
    return np.array([place.get(value or "", -1) for value in metadata.values(spec.name, ids)], np.int64)


def _levels(metadata: Metadata, column: str | None, ids: Sequence[str]) -> Array | None:
    return None if column is None else np.array([value or "" for value in metadata.values(column, ids)])


def _sides(split: Split) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Samples learned from and held out; validation is held out where there is no test side."""
    test, validation = split.ids("test"), split.ids("validation")
    return (split.ids("train") + validation, test) if test else (split.ids("train"), validation)


def _baselines(
    study: Study, splits: Sequence[Split], spec: TargetSpec, metadata: Metadata, columns: Columns
) -> tuple[tuple[str, ...], tuple[Baseline, ...]]:
    """Samples of the study that have metadata, and trivial baselines on the training side of each split."""
    ids = tuple(name for name in study.table.sample_ids if name in metadata)
    rows = study.rows(ids)
    drawn = [rarefied_row(study.table, row, study.depth, study.seed, EVALUATION) for row in rows.tolist()]
    levels = {name: _levels(metadata, name, ids) for name in (columns.group, columns.batch) if name}
    folds = (Fold(*(np.isin(ids, side) for side in _sides(split))) for split in splits)
    task = Task(
        truth=_truth(metadata, spec, ids),
        labels=spec.labels,
        folds=tuple(folds),
        depth=study.table.depths[rows],
        richness=np.array([len(present) for present, _ in drawn]),
        levels={name: values for name, values in sorted(levels.items()) if values is not None},
    )
    return ids, trivial_baselines(task, study.seed)


def _laid_out(baseline: Baseline, ids: Sequence[str], wanted: Sequence[str]) -> Baseline:
    """Rows for `wanted` in their order; those that the baseline lacks are NaN."""
    place = {name: row for row, name in enumerate(ids)}
    padded = np.concatenate([baseline.predicted, np.full_like(baseline.predicted[:1], math.nan)])
    return dataclasses.replace(baseline, predicted=padded[[place.get(name, -1) for name in wanted]])


def _losses(study: Study, spec: TargetSpec, metadata: Metadata) -> dict[str, tuple[int, int]]:
    """Samples of each class in the metadata of the table, and those that reach the depth."""
    kept, dropped = (
        Counter(metadata.values(spec.name, [name for name in names if name in metadata]))
        for names in (study.table.sample_ids, study.dropped)
    )
    return {label: (kept[label] + dropped[label], kept[label]) for label in spec.labels}


def evaluate_targets(
    table: PredictionTable,
    metadata: Metadata,
    columns: Columns,
    study: Study | None = None,
    splits: Sequence[Split] = (),
) -> tuple[TargetResult, ...]:
    """Figures of every target; with `study` and `splits`, the trivial baselines beside them."""
    results = []
    for spec in table.specs:
        found: tuple[Baseline, ...] = ()
        if study is not None and splits:
            ids, found = _baselines(study, splits, spec, metadata, columns)
            found = tuple(_laid_out(one, ids, table.sample_ids) for one in found)
        names = report.Names(spec.name, columns.batch or "batch", columns.group or "sample")
        losses = {} if study is None else _losses(study, spec, metadata)
        predictions = Predictions(
            sample_ids=table.sample_ids,
            truth=_truth(metadata, spec, table.sample_ids),
            predicted=table.values[spec.name] if spec.kind == "numeric" else table.probabilities[spec.name],
            labels=spec.labels,
            fold=np.array(table.folds) if len(set(table.folds)) > 1 else None,
            groups=_levels(metadata, columns.group, table.sample_ids),
            batch=_levels(metadata, columns.batch, table.sample_ids),
        )
        results.append(report.target_result(names, predictions, found, losses))
    return tuple(results)


# --- encoder -----------------------------------------------------------------------------------------------
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
    learned, held_out = _sides(split)
    rows = study.rows(held_out[:MOST_SAMPLES])
    sides = (study.table.counts[at].indices.astype(np.int64) for at in (study.rows(learned), rows))
    seen, met = map(np.unique, sides)
    new, tables = np.setdiff1d(met, seen), []
    if saved.network.distance is not None and len(rows) > 2:
        tables.append(_distance_figures(saved, study, rows, config, device))
    if len(new) and len(seen):
        tables.append(_base_figures(saved, study, seen, new, device))
    fold = f"Fold {split.test_fold}: " if split.test_fold else ""
    return [dataclasses.replace(table, title=fold + table.title) for table in tables]


# --- writing -----------------------------------------------------------------------------------------------
def _json(value: object) -> object:
    """What JSON can hold of nested dicts of numbers: NaN becomes null."""
    if isinstance(value, dict):
        return {name: _json(one) for name, one in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def write_results(folder: Path, results: ReportData) -> None:
    """Write report.html and metrics.json, and log what matters."""
    write_text(folder / "report.html", report.report_html(results))

    def plain(figures: dict[str, Interval]) -> dict[str, float]:
        return {name: figure.value for name, figure in figures.items()}

    targets = {
        result.names.target: {
            "pooled": {name: dataclasses.asdict(figure) for name, figure in result.pooled.items()},
            "folds": {fold: plain(values) for fold, (_, values) in result.folds.items()},
            "baselines": {one.name: plain(one.figures) for one in result.comparisons},
            "verdict": list(result.sentences),
        }
        for result in results.targets
    }
    tables = {t.title: [dict(zip(t.header, row, strict=True)) for row in t.rows] for t in results.tables}
    text = json.dumps(_json({"targets": targets, "tables": tables}), indent=1) + "\n"
    write_text(folder / "metrics.json", text)
    for line in report.summary_lines(results):
        log.info("%s", line)
