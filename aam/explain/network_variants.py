"""What a network says of variants of samples, and the attention that it pays to the ASVs of a sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from aam.data.collate import batch_of_reads
from aam.data.study import Row, Rows, Study
from aam.device.options import RuntimeConfig
from aam.device.precision import autocast
from aam.device.routing import routed
from aam.explain.variants import Floats, Variants
from aam.model.aam import Aam
from aam.predict.network import AsvVectors, collect, per_target

VARIANTS_AT_ONCE = 256


def _largest_first(reads: Sequence[Row]) -> Rows:
    return np.argsort([-len(columns) for columns, _ in reads], kind="stable")


def network_variants(
    network: Aam,
    study: Study,
    rows: Rows,
    reads: Sequence[Row],
    variants: Variants,
    asvs: AsvVectors,
    config: RuntimeConfig,
) -> list[Floats]:
    """Return what a network says of variants, one array ``[M, W]`` for each target, numbers encoded.

    Parameters
    ----------
    network : Aam
    study : Study
    rows : int64 [n]
        Rows of the table.
    reads : sequence of (columns, reads)
        What the network reads of these samples, at most ``--token-limit`` ASVs of each.
    variants : Variants
    asvs : AsvVectors
        Vectors of all ASVs of the table.
    config : RuntimeConfig
    """
    device = asvs.vectors.device
    parts: list[list[Floats]] = []
    network.eval()
    with torch.inference_mode(), autocast(config, device), routed(device):
        for start in range(0, len(variants.sample), VARIANTS_AT_ONCE):
            numbers = np.arange(start, min(start + VARIANTS_AT_ONCE, len(variants.sample)))
            changed = [variants.row(reads[variants.sample[number]], number) for number in numbers.tolist()]
            order = _largest_first(changed)
            samples = rows[variants.sample[numbers[order]]]
            batch = batch_of_reads(study, samples, [changed[place] for place in order]).to(device)
            predicted = collect(network(batch, None, asvs.select(batch)), batch)
            back = np.argsort(order)
            parts.append([values[back] for values in per_target(predicted)])
    return [np.concatenate(values) for values in zip(*parts, strict=True)]


def attention_paid(
    network: Aam, study: Study, rows: Rows, reads: Sequence[Row], asvs: AsvVectors, config: RuntimeConfig
) -> list[Floats]:
    """Return the weight of each ASV of each sample in the attention pool of the sample encoder, of sum 1 by sample.

    It says what the network looks at, not what changes its prediction.
    """
    device = asvs.vectors.device
    order, attention_of = _largest_first(reads), dict[int, Floats]()
    network.eval()
    with torch.inference_mode(), autocast(config, device), routed(device):
        for start in range(0, len(order), VARIANTS_AT_ONCE):
            places = order[start : start + VARIANTS_AT_ONCE]
            batch = batch_of_reads(study, rows[places], [reads[place] for place in places]).to(device)
            weights = network.sample.attention(asvs.select(batch)[batch.asv], batch.counts).double().cpu().numpy()
            attention_of |= {
                int(place): row[:size] for place, row, size in zip(places, weights, batch.sizes, strict=True)
            }
    return [attention_of[place] for place in range(len(rows))]
