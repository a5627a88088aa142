"""A synthetic 16S study whose communities follow the traits of ASVs: for tests and self-tests."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from aam.device.rng import generator
from aam.io.tables import write_hdf5
from aam.typing import Array

CLASSES = {
    "biome": ("gut", "skin", "mouth", "gill"),
    "season": ("spring", "summer", "autumn", "winter"),
    "batch": ("batch-1", "batch-2", "batch-3", "batch-4"),
}
EFFECTS = {"biome": 0.7, "season": 0.4, "batch": 0.6}
SIMULATED_FOLDS, POOL, NICHE_WIDTH, CONCENTRATION = 5, 180, 1.3, 150.0
BASES, FREQUENCIES = np.frombuffer(b"ACGT", np.uint8), np.array([0.25, 0.18, 0.35, 0.22])


def random_tree(asvs: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Parent and branch length of each node: tips first, children before parents, the root last.

    Tips form clusters of about five; neighbours join at random heights (Popovic 2004).
    """
    cluster = np.sort(rng.integers(0, max(2, asvs // 5), asvs))
    low = 0.004 * 7.5 ** rng.random(asvs - 1) * rng.uniform(0.2, 1, asvs - 1)
    joined = np.where(np.diff(cluster) == 0, low, 0.03 + 0.15 * rng.beta(2, 1.5, asvs - 1))
    parent, top, other_end = np.arange(2 * asvs - 1), np.arange(asvs), np.arange(asvs)
    for new, left in enumerate(np.argsort(joined), start=asvs):
        first, last = other_end[[left, left + 1]]
        parent[top[[left, left + 1]]] = new
        top[[first, last]], other_end[first], other_end[last] = new, last, first
    height = np.concatenate([np.zeros(asvs), np.sort(joined)])
    return parent, (height[parent] - height) * rng.lognormal(0, 0.25, len(parent))


def evolve(
    parent: Array, branch: Array, bases: int, traits: int, rng: np.random.Generator
) -> tuple[list[str], Array]:
    """Distinct sequences of the tips, whose sites evolve at their own rates, and standardized
    traits [tips, traits], which follow Brownian motion along the tree (Felsenstein 1981, 1985).
    """
    rates = rng.gamma(0.7, size=bases)
    rates /= rates.mean() * (1 - np.sum(FREQUENCIES**2))
    values = rng.standard_normal((len(parent), traits)) * np.sqrt(branch)[:, None]
    sites = np.empty((len(parent), bases), np.uint8)
    sites[-1] = rng.choice(4, bases, p=FREQUENCIES)
    for node in range(len(parent) - 2, -1, -1):
        changed = np.flatnonzero(rng.random(bases) < -np.expm1(-rates * branch[node]))
        sites[node], values[node] = sites[parent[node]], values[node] + values[parent[node]]
        sites[node, changed] = rng.choice(4, len(changed), p=FREQUENCIES)
    tips, sequences = sites[: len(sites) // 2 + 1], set[bytes]()
    for tip in tips:
        while tip.tobytes() in sequences:
            tip[rng.integers(bases)] = rng.integers(4)
        sequences.add(tip.tobytes())
    values = values[: len(tips)] - values[: len(tips)].mean(0)
    return [BASES[tip].tobytes().decode() for tip in tips], values / values.std(0)


def random_metadata(samples: int, subjects: int, rng: np.random.Generator) -> pd.DataFrame:
    """Metadata of the samples: fold, batch and the usual pH belong to the subject."""
    subject = np.sort([*range(subjects), *rng.integers(0, subjects, samples - subjects)])
    columns: dict[str, Any] = {
        "ph": (rng.uniform(4.5, 8.5, subjects)[subject] + rng.normal(0, 0.6, samples)).round(2),
        "biome": rng.permutation(np.resize(CLASSES["biome"], samples)),
        "season": rng.permutation(np.resize(CLASSES["season"], samples)),
        "subject": [f"subject-{number + 1}" for number in subject],
        "batch": rng.permutation(np.resize(CLASSES["batch"], subjects))[subject],
        "depth_confounded": rng.permutation(np.resize(("control", "case"), samples)),
        "null": rng.standard_normal(samples).round(3),
        "fold": rng.permutation(np.arange(subjects) % SIMULATED_FOLDS)[subject],
    }
    ids = [f"sample-{number:0{len(str(samples))}d}" for number in range(1, samples + 1)]
    return pd.DataFrame(columns, pd.Index(ids, name="sample-id"))


def random_counts(
    metadata: pd.DataFrame, traits: Array, home: Array, depth: int, rng: np.random.Generator
) -> sparse.csr_matrix:
    """Counts [samples, ASVs]: each sample draws from the pool of its subject; cases have a third
    of the reads. An ASV whose `home` is a fold, not -1, occurs in that fold only.
    """
    prevalence = 2.5 * rng.standard_normal(len(traits))
    abundance = rng.standard_normal(len(traits)) + 0.3 * prevalence
    counts = sparse.lil_matrix((len(metadata), len(traits)), dtype=np.int64)
    rows = iter(range(len(metadata)))
    for _, samples in metadata.groupby("subject", sort=False):
        allowed = (home < 0) | (home == samples["fold"].iloc[0])
        key = np.where(allowed, prevalence + rng.gumbel(size=len(home)), -np.inf)
        pool = np.argsort(-key)[: min(POOL, allowed.sum())]
        usual = abundance[pool] + 0.7 * rng.standard_normal(len(pool))
        for sample in samples.to_dict("records"):
            share = usual - 0.5 * ((sample["ph"] - 6.5 - traits[pool, 0]) / NICHE_WIDTH) ** 2
            for place, (column, effect) in enumerate(EFFECTS.items()):
                level = 1 + 4 * place + CLASSES[column].index(sample[column])
                share = share + effect * traits[pool, level]
            share = np.exp(share + 0.8 * rng.standard_normal(len(pool)))
            share[(rng.random(len(pool)) > 0.6) & (share < share.max())] = 0
            share = rng.gamma(CONCENTRATION * share / share.sum())
            usual_reads = depth * 3 ** (0.5 - (sample["depth_confounded"] == "case"))
            reads = max(1, round(usual_reads * rng.lognormal(0, 0.4)))
            counts[next(rows), pool] = rng.multinomial(reads, share / share.sum())
    # Each ASV visits one sample, so that none is absent and many are seen once.
    for asv, fold in enumerate(home):
        counts[rng.choice(np.flatnonzero((fold < 0) | (metadata["fold"] == fold))), asv] += 1
    return counts.tocsr()


def simulate(
    folder: Path,
    samples: int = 300,
    asvs: int | None = None,
    subjects: int | None = None,
    length: int = 150,
    depth: int = 8_000,
    seed: int = 0,
    turnover: float = 0.0,
) -> None:
    """Write table.biom, tree.nwk and metadata.tsv of a study into a folder; a seed gives the same
    bytes each time. `turnover` is the share of ASVs that occur in one fold only.
    """
    rng = generator(seed, "simulate")
    asvs = asvs or max(50, round(1_000 * (samples / 300) ** 0.5))
    parent, branch = random_tree(asvs, rng)
    sequences, traits = evolve(parent, branch, length, 1 + 4 * len(EFFECTS), rng)
    metadata = random_metadata(samples, subjects or max(SIMULATED_FOLDS, samples // 5), rng)
    home = np.where(rng.random(asvs) < turnover, np.arange(asvs) % SIMULATED_FOLDS, -1)
    counts = random_counts(metadata, traits, home, depth, rng)
    text = list(sequences) + [""] * (asvs - 1)
    for node in range(len(parent) - 1):
        inner = parent[node] >= asvs and text[parent[node]]
        text[node] = f"{text[node]}{')' if node >= asvs else ''}:{branch[node]:.6f}"
        text[parent[node]] = f"{inner},{text[node]}" if inner else f"({text[node]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tree.nwk").write_text(f"{text[-1]});\n", encoding="utf-8")
    metadata.to_csv(folder / "metadata.tsv", sep="\t", lineterminator="\n")
    write_hdf5(folder / "table.biom", counts, list(metadata.index), sequences)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m aam.data.simulate", description=__doc__)
    parser.add_argument("folder", type=Path)
    for option in ("samples", "asvs", "subjects", "length", "depth", "seed"):
        parser.add_argument(f"--{option}", type=int, default=argparse.SUPPRESS)
    simulate(**vars(parser.parse_args()))
