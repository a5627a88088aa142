"""What a training run says at its start: where and on what it learns, and what it learns."""

from __future__ import annotations

import math

from aam.data.loader import Loader
from aam.data.splits import SUBSETS, Split
from aam.device.platform import device_name
from aam.training.inputs import Prepared, labels_used


def loss_names(prepared: Prepared) -> list[str]:
    """Return the losses that have a weight above 0, in words."""
    config, study = prepared.config, prepared.study
    columns = config.targets.metadata_column
    # A frozen encoder reads vectors that are computed once: nothing of the encoder is learned.
    frozen = config.targets.freeze_base
    names: dict[str, bool] = {
        str(study.metric): study.metric is not None and config.train.penalty > 0 and not frozen,
        **dict.fromkeys(config.data.targets, config.train.targets_penalty > 0),
        "masked nucleotides": config.train.nuc_penalty > 0 and not frozen,
        "masked counts": config.train.count_penalty > 0 and not frozen,
        ", ".join(columns): bool(columns) and config.targets.target_penalty > 0,
    }
    return [name for name, weighs in names.items() if weighs]


def start_message(prepared: Prepared, command: str) -> list[str]:
    """Return one line on device, samples, ASVs, depth and losses, and another where no UniFrac term is learned."""
    study, data = prepared.study, prepared.config.data
    ranks = f" x {prepared.world.size}" if prepared.world.size > 1 else ""
    lines = [
        f"{command}: {device_name(prepared.device)}{ranks}; {len(study.table.sample_ids)} samples, "
        f"{len(study.table.sequences)} ASVs, rarefied to {study.depth} reads; "
        f"losses: {', '.join(loss_names(prepared)) or 'none'}"
    ]
    if study.metric is None and command == "pretrain":
        lines.append(
            "without --tree or --unifrac-matrix no UniFrac term is learned: the encoder learns from masked "
            f"nucleotides and counts {'beside --targets' if data.targets else 'only'}"
        )
    elif study.metric is None and not prepared.config.targets.freeze_base:
        lines.append("without --tree or --unifrac-matrix no UniFrac term is learned beside the targets")
    return lines


def dry_run_message(prepared: Prepared, plan: str) -> list[str]:
    """Return what ``--dry-run`` shows below the start message: the members, the samples of each split, the steps.

    `plan` says what a run would do to its folder.
    """
    targets = prepared.config.targets
    lines = [f"members that predict together: {', '.join(targets.members)}"] if targets.metadata_column else []
    lines += [_split_line(prepared, split) for split in prepared.splits]
    return [*lines, f"{prepared.config.runtime.output_dir}: {plan}; --dry-run has changed nothing"]


def _split_line(prepared: Prepared, split: Split) -> str:
    """Return the samples and groups of each subset, and for how many steps the network is trained."""
    study, config = prepared.study, prepared.config
    column, train = config.data.group_column, config.train
    used = labels_used(prepared, split)
    sizes = []
    for subset in SUBSETS:
        ids = used.ids(subset)
        groups = study.metadata.values(column, ids) if study.metadata is not None and column is not None else ()
        sizes.append(f"{len(ids)} {subset}" + (f" ({len(set(groups))} different {column})" if groups else ""))
    name = f"fold {split.test_fold}: " if split.test_fold else ""
    line = f"{name}samples: {', '.join(sizes)}"
    if not train.epochs or (config.targets.metadata_column and not config.targets.network_predicts):
        return line
    loader = Loader(study, study.rows(used.ids("train")), train.batch_size, shuffle=True, world=prepared.world)
    steps = math.ceil(len(loader) / train.gradient_accumulation_steps)
    return f"{line}; at most {train.epochs} epochs of {steps} step{'s' if steps > 1 else ''}"
