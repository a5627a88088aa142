"""What is measured by `aam bench`, and memory: steps of pretraining beside a plain rival, predictions, and UniFrac."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import inspect
import itertools
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import aam.data.loader
from aam.config import DataConfig, FineTuneConfig, ModelConfig, RuntimeConfig
from aam.data.batch import Batch, RegionProfile
from aam.data.loader import Loader
from aam.data.phylogeny import match_tips, read_tree
from aam.data.study import Study, load_study
from aam.data.table import read_table
from aam.data.targets import Targets, TargetSpec
from aam.data.unifrac import Metric, UnifracOptions, unifrac_matrix
from aam.model.aam import Aam, Masks
from aam.model.heads import HeadConfig
from aam.runtime.device import decide, prepare, random_state, set_random_state
from aam.runtime.timing import Stages, operations, peak_memory, product_rate, seconds
from aam.training.checkpoint import SavedModel, save_model
from aam.training.loop import Micro, Objective, train_step
from aam.training.optim import make_optimizer, make_scaler

log = logging.getLogger("aam")

Figures = dict[str, Any]

STAGES = (
    "data wait", "UniFrac", "transfer", "ASV encoder", "sample encoder", "losses", "backward", "optimizer"
)  # fmt: skip
WARM_UP = 2
RIVALS: dict[Metric, dict[str, Any]] = {
    "unifrac": {"metric": "unweighted_unifrac"},
    "weighted": {"metric": "weighted_unifrac"},
    "weighted-normalized": {"metric": "weighted_unifrac", "normalized": True},
}
RIVAL_SAMPLES = 300


# --- training steps ----------------------------------------------------------------------------------------


def every_slot(batch: Batch) -> Batch:
    """`batch` as a plain implementation holds it: a row of tokens for each slot, up to the largest sample."""
    samples, slots = batch.asv.shape
    rows = batch.asv.flatten()
    asv = torch.arange(len(rows), device=rows.device).view(samples, slots)
    return replace(
        batch,
        tokens=batch.tokens[rows],
        key=None if batch.key is None else batch.key[rows],
        asv=asv,
        column=None,
        sizes=(slots,) * samples,
    )


class PlainObjective(Objective):
    """The objective on a batch of `every_slot`: the same losses as on that of distinct ASVs."""

    def masks(self, batch: Batch, step: int) -> Masks | None:
        """The masks of `step`, one masked copy of each distinct ASV."""
        masks = super().masks(batch, step)
        if masks is None:
            return None
        _, first = np.unique(masks.tokens.cpu().numpy(), axis=0, return_index=True)
        rows = torch.from_numpy(np.sort(first)).to(masks.rows.device)
        return Masks(masks.rows[rows], masks.tokens[rows], masks.where[rows], masks.counts)


@dataclass(eq=False)
class Steps:
    """Steps of `aam pretrain`: loader, masks, network, losses and optimizer of the real run."""

    model: Aam
    objective: Objective
    optimizer: torch.optim.Optimizer
    loader: Loader
    device: torch.device
    losses: list[Tensor] = field(default_factory=list)

    def take(self, number: int, draw: int) -> tuple[list[float], list[Batch]]:
        """Seconds and batches of `number` steps from the start of epoch `draw` on."""
        epochs = itertools.chain.from_iterable(map(self.loader.epoch, itertools.count(draw)))
        plain = isinstance(self.objective, PlainObjective)
        taken: list[Batch] = []

        def one() -> None:
            batch = every_slot(next(epochs)) if plain else next(epochs)
            self.step(batch, len(taken))
            taken.append(batch)

        return [seconds(one, self.device) for _ in range(number)], taken

    def step(self, batch: Batch, number: int = 0) -> None:
        """One step on one batch."""
        micro = Micro(batch.to(self.device), None, number)
        outcome = train_step(self.model, [micro], self.objective, self.optimizer)
        self.losses.append(self.objective.total(outcome.terms))

    def stages(self, number: int, draw: int) -> Figures:
        """Mean seconds of each stage of a step, and their sum's share of the wall time."""
        stages = Stages(self.device)
        places = [
            (Loader, "window", "data wait"),
            (aam.data.loader, "batch_unifrac", "UniFrac"),
            (Batch, "to", "transfer"),
            (self.model, "encode_asvs", "ASV encoder"),
            (self.model, "encode_samples", "sample encoder"),
            *((Objective, name, "losses") for name in ("masks", "run", "total")),
            (Tensor, "backward", "backward"),
            *((self.optimizer, name, "optimizer") for name in ("zero_grad", "step")),
            *((nn.utils, name, "optimizer") for name in ("get_total_norm", "clip_grads_with_norm_")),
        ]
        with contextlib.ExitStack() as stack:
            for owner, attribute, name in places:
                stack.enter_context(stages.around(owner, attribute, name))
            wall = sum(self.take(number, draw)[0])
        means = {name: stages.seconds.get(name, 0.0) / number for name in STAGES}
        return {"stages": means, "accounted": number * sum(means.values()) / wall}


@contextlib.contextmanager
def restored(steps: Steps) -> Iterator[None]:
    """Give weights, optimizer, loader, losses and random numbers back as they were, whatever happens inside."""
    model, optimizer = copy.deepcopy((steps.model.state_dict(), steps.optimizer.state_dict()))
    loader, losses, random = steps.loader, list(steps.losses), random_state(steps.device)
    try:
        yield
    finally:
        steps.optimizer.zero_grad(set_to_none=True)
        steps.model.load_state_dict(model)
        steps.optimizer.load_state_dict(optimizer)
        steps.loader, steps.losses = loader, losses
        set_random_state(random, steps.device)


def make_steps(config: FineTuneConfig, plain: bool = False) -> Steps:
    """Everything that a step needs, as `aam pretrain` makes it."""
    device = prepare(config.runtime)
    decide(config.runtime, device, config.model.head_width)
    return steps_of(config, load_study(config.data, config.model.max_bp, config.runtime.seed), device, plain)


def steps_of(config: FineTuneConfig, study: Study, device: torch.device, plain: bool = False) -> Steps:
    """Steps on the whole of a study, with a head for a numeric target where `aam train` names one."""
    targets = int(bool(config.targets.metadata_column))
    if targets:
        study = replace(study, target=np.zeros((len(study.table.sample_ids), 1), np.float32))
    torch.manual_seed(config.runtime.seed)
    heads = HeadConfig(metric=study.metric, scale=(0.5, 0.2), counts=config.train.count_penalty > 0, n_targets=targets)
    model = Aam(config.model, study.depth, heads).to(device).train()
    model.bound_memory(config.runtime.asv_chunk_size, config.runtime.gradient_checkpointing)
    scaler = make_scaler(config, device)
    objective = (PlainObjective if plain else Objective)(config, study.depth, device, scaler=scaler)
    rows = np.arange(len(study.table.sample_ids))
    size, shallow = config.train.batch_size, config.train.shallow_draws if study.tree is not None else 0.0
    loader = Loader(study, rows, size, shuffle=True, distances=study.metric is not None, shallow=shallow)
    return Steps(model, objective, make_optimizer(model, config.train), loader, device)


def time_training(config: FineTuneConfig, repeats: int, plain: bool = False) -> Figures:
    """Speed, memory, arithmetic rate and stages of pretraining steps; the plain rival's speed and memory.

    Returns
    -------
    dict
        ``samples_per_s`` and ``step_s`` (p50 and p95 over `repeats` steps, no timer inside), ``peak_bytes``
        (after those steps and one on the epoch's largest batch), ``losses`` of every step, ``operations`` of the
        step at the p50, ``rate`` and ``share`` of the product's rate (measured before and after): of the operations
        executed, and of those needed, without what is recomputed.
    """
    steps = make_steps(config, plain)
    product = product_rate(steps.device)
    steps.take(WARM_UP, 0)
    taken, batches = steps.take(repeats, 1)
    speeds = [len(batch.counts) / second for second, batch in zip(taken, batches, strict=True)]
    p50, p5 = np.percentile(speeds, [50, 5])
    figures: Figures = {
        "samples_per_s": {"p50": float(p50), "p5": float(p5)},
        "step_s": dict(zip(("p50", "p95"), np.percentile(taken, [50, 95]).tolist(), strict=True)),
        "steps": repeats,
        "batch_size": config.train.batch_size,
        "asv_chunk_size": config.runtime.asv_chunk_size,
        "gradient_checkpointing": config.runtime.gradient_checkpointing,
        "distinct_asvs": float(np.mean([len(batch.tokens) for batch in batches])),
        "slots": float(np.mean([batch.asv.shape[1] for batch in batches])),
        "losses": [float(loss) for loss in steps.losses],
        "epoch_s": len(steps.loader.rows) / float(p50),
    }
    if plain:
        return {**figures, "peak_bytes": peak_memory(steps.device)}
    order = steps.loader.order(0)
    steps.step(max((steps.loader.draw(rows, 0) for rows in order), key=lambda batch: len(batch.tokens)))
    figures |= {"peak_bytes": peak_memory(steps.device), **steps.stages(max(repeats // 2, 1), 2)}
    product = (product + product_rate(steps.device)) / 2
    middle = int(np.argsort(taken)[(repeats - 1) // 2])
    executed = operations(lambda: steps.step(batches[middle]))
    steps.model.bound_memory(config.runtime.asv_chunk_size, False)
    needed = operations(lambda: steps.step(batches[middle]))
    rates = {"executed": executed / taken[middle], "needed": needed / taken[middle]}
    shares = {name: rate / product for name, rate in rates.items()}
    return {**figures, "operations": needed, "rate": rates, "product_rate": product, "share": shares}


# --- predictions and UniFrac -------------------------------------------------------------------------------


def time_prediction(table: Path, runtime: RuntimeConfig, repeats: int) -> Figures:
    """Seconds from the start of the process `aam predict` to its written file, with a default model."""
    study = load_study(DataConfig(table=table), ModelConfig().max_bp, runtime.seed)
    heads, spec = HeadConfig(n_targets=1), TargetSpec("value", "numeric", bounds=(0.0, 1.0))
    saved = SavedModel(
        network=Aam(ModelConfig(), study.depth, heads),
        data=DataConfig(),
        model=ModelConfig(),
        heads=heads,
        depth=study.depth,
        seed=runtime.seed,
        targets=Targets((spec,)),
        profile=RegionProfile.fit(study.table.sequences),
        notes={},
    )
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / "model", saved)
        words = [sys.executable, "-m", "aam", "predict", "--model", f"{folder}/model", "--table", str(table)]
        words += ["--device", runtime.device]
        words += [] if runtime.threads is None else ["--threads", str(runtime.threads)]
        for number in range(repeats):
            start = time.perf_counter()
            subprocess.run([*words, "--output", f"{folder}/{number}.tsv"], check=True, capture_output=True)
            taken.append(time.perf_counter() - start)
    p50, p95 = np.percentile(taken, [50, 95]).tolist()
    samples, asvs = len(study.all_sample_ids), len(study.table.sequences)
    return {"seconds": {"p50": p50, "p95": p95}, "samples": samples, "distinct_asvs": asvs}


def _engines(function: Callable[..., Any]) -> list[str]:
    """Engines of the installed scikit-bio: its default, and numba where both know it."""
    known = "engine" in inspect.signature(function).parameters
    return ["default", *(["numba"] if known and importlib.util.find_spec("numba") else [])]


def time_unifrac(table_path: Path, tree_path: Path, runtime: RuntimeConfig, repeats: int = 3) -> Figures:
    """Seconds of every metric on the whole table, and of scikit-bio on some of its samples.

    Features without a tip are left out on both sides.

    Returns
    -------
    dict
        Per metric the ``seconds`` of the whole table (fastest of `repeats`), and for the ones that scikit-bio
        has ``<engine>_seconds`` measured, ``<engine>_whole_seconds`` extrapolated with the square of the
        samples, ``<engine>_ratio`` (how often faster `aam` is) and ``difference``, the largest between the
        two. Numba compiles before it is timed. ``peak_bytes`` is taken before scikit-bio runs.
    """
    device = prepare(runtime)
    table = read_table(table_path, need_sequences=False)
    tree = read_tree(tree_path)
    tips = match_tips(tree, table.feature_ids, "drop")
    total = len(table.sample_ids)
    chosen = np.sort(np.random.default_rng(runtime.seed).permutation(total)[:RIVAL_SAMPLES])
    metrics: dict[str, dict[str, float]] = {}
    parts: dict[str, Any] = {}

    def ours(metric: Metric) -> None:
        parts[metric] = unifrac_matrix(tree, tips, table.counts, UnifracOptions(metric))[np.ix_(chosen, chosen)]

    for metric in (*RIVALS, "generalized"):
        metrics[metric] = {"seconds": min(seconds(partial(ours, metric), device) for _ in range(repeats))}
    figures = {"samples": total, "compared": len(chosen), "peak_bytes": peak_memory(torch.device("cpu"))}

    from skbio import TreeNode
    from skbio.diversity import beta_diversity

    known = np.flatnonzero(tips >= 0)
    counts = table.counts[chosen][:, known].toarray().astype(np.int64)
    common = {"taxa": [table.feature_ids[column] for column in known], "ids": [str(row) for row in chosen]}
    common["tree"] = TreeNode.read(str(tree_path), convert_underscores=False)
    for (metric, arguments), engine in itertools.product(RIVALS.items(), _engines(beta_diversity)):
        options = {**arguments, **common, **({} if engine == "default" else {"engine": engine})}
        beta_diversity(counts=counts[:4], **{**options, "ids": common["ids"][:4]})
        start = time.perf_counter()
        expected = np.asarray(beta_diversity(counts=counts, **options).data)
        taken, found = time.perf_counter() - start, metrics[metric]
        found[f"{engine}_seconds"] = taken
        found[f"{engine}_whole_seconds"] = taken * (total / len(chosen)) ** 2
        found[f"{engine}_ratio"] = found[f"{engine}_whole_seconds"] / found["seconds"]
        found["difference"] = float(np.abs(parts[metric] - expected).max())
    return {**figures, "metrics": metrics}
